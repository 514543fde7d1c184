//! Stores that are away when a command begins, waits or ends.

use std::fs::File;
use std::process::Stdio;

use coordination_tests::harness::{Etcd, rerun_if_starved};

use crate::{Store, Wrapper, written};

/// A command on this store, and what it has said so far.
fn logged(store: &Store, log: &str, words: &str) -> (Wrapper, impl Fn() -> String + use<>) {
    let log = store.path(log);
    let file = File::create(&log).expect("the directory is there");
    let mut command = store.coordination(words.split(' '));
    let wrapper = command.stdout(Stdio::null()).stderr(file).spawn().expect("it was built");
    (Wrapper(wrapper), move || std::fs::read_to_string(&log).unwrap_or_default())
}

#[test]
fn a_command_that_ended_in_time_keeps_its_code_whatever_the_release_says() {
    rerun_if_starved(|| {
        let server = Etcd::one();
        let at = server.node(0).address();
        let store = Store::at(format!("etcd://{at}/cli?ttl=3s&heartbeat=200ms"));
        let (started, end) = (store.path("started"), store.path("end"));
        let text = format!(
            "#!/bin/sh\necho $$ > {}\nuntil [ -e {} ]; do sleep 0.01; done\nexit 5\n",
            started.display(),
            end.display()
        );
        let command = store.script("command", &text);
        let (mut run, log) = logged(&store, "log", &format!("run --lock x -- {command}"));
        written(&started);
        server.node(0).pause();
        std::fs::write(&end, "").expect("the directory is there");
        assert_eq!((run.code(), log().as_str()), (Some(5), ""));
        server.node(0).resume();
    });
}
