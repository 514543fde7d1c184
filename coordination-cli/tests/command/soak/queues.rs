//! `work`, while its store is away.

use std::time::Duration;

use coordination_tests::harness::{Etcd, Proxy, rerun_if_starved};

use crate::{Store, Wrapper, output, stderr, stdout, written};

/// For longer than a call is repeated, and not for as long as the claim lasts.
#[test]
fn an_item_is_done_once_though_the_store_is_away_as_its_command_ends() {
    rerun_if_starved(|| {
        let etcd = Etcd::one();
        let proxy = Proxy::start(etcd.node(0).address());
        let store = Store::at(format!("etcd://{}/work?ttl=1m", proxy.address()));
        let posted = output(&mut store.coordination(["post", "jobs", "one"]));
        assert_eq!(posted.status.code(), Some(0), "{}", stderr(&posted));
        let [started, go] = ["started", "go"].map(|name| store.path(name));
        let text = format!(
            "#!/bin/sh\necho $$ > {}\nuntil [ -e {} ]; do sleep 0.05; done\n",
            started.display(),
            go.display()
        );
        let command = store.script("command", &text);
        let words = ["work", "jobs", "--once", "--ttl", "1m", "--", &command];
        let mut worker = Wrapper::start(&mut store.coordination(words));
        written(&started);
        proxy.refuse();
        proxy.close_all();
        std::fs::write(&go, "").expect("the directory is there");
        std::thread::sleep(Duration::from_secs(9));
        assert!(worker.is_running(), "it has given up");
        proxy.accept();
        assert_eq!(worker.code(), Some(0));
        let status = stdout(&output(&mut store.coordination(["status", "jobs", "--json"])));
        assert!(status.contains(r#""ready":0,"claimed":0,"delayed":0"#), "{status}");
    });
}

/// Its life is over before its delay is.
#[test]
fn an_item_outlives_its_delay() {
    rerun_if_starved(|| {
        let store = Store::file();
        let posted = output(&mut store.coordination(["post", "jobs", "--ttl", "1s", "one"]));
        assert_eq!(posted.status.code(), Some(0), "{}", stderr(&posted));
        let words = ["work", "jobs", "--once", "--ttl", "1s", "--delay", "75s", "--", "false"];
        assert_eq!(output(&mut store.coordination(words)).status.code(), Some(1));
        std::thread::sleep(Duration::from_secs(65));
        let status = stdout(&output(&mut store.coordination(["status", "jobs", "--json"])));
        assert!(status.contains(r#""delayed":1"#), "{status}");
    });
}
