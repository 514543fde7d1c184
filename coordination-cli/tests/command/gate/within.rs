//! A run within a run.

use std::time::Instant;

use coordination_tests::harness::{Redis, Server, Setup, rerun_if_starved};

use crate::{LONG, Store, output, plain, stderr, stdout};

/// It would wait for itself; beside another lock, or as one more who shares, it runs.
#[test]
fn what_is_held_around_a_run_is_refused_at_once() {
    rerun_if_starved(|| {
        let store = Store::file();
        let program = env!("CARGO_BIN_EXE_coordination");
        for (outer, inner, code) in [
            ("run --lock x", "run --lock x", 75),
            ("run --lock x", "run --lock x --shared", 75),
            ("run --lock x --shared", "run --lock x", 75),
            ("run --lock x --shared", "run --lock x --shared", 3),
            ("run --lock x", "run --lock y", 3),
            ("run --lock x", "run --semaphore x:1", 3),
            ("run --semaphore x:1", "run --semaphore x:1", 75),
            ("run --semaphore z:2", "run --semaphore z:2", 3),
            ("run --singleton x --standby 1", "run --singleton x --standby 1", 75),
            ("elect x", "elect x", 75),
            ("elect x", "elect y", 3),
        ] {
            let start = Instant::now();
            // Through one more: what is held is known at any depth.
            let middle = format!("{program} run --lock between -- {program} {inner} -- sh -c");
            let script = store.script("inner", &format!("#!/bin/sh\nexec {middle} 'exit 3'\n"));
            let words = format!("--member-id outer {outer} -- {script}");
            let ended = output(&mut store.coordination(words.split(' ')));
            assert_eq!(ended.status.code(), Some(code), "{outer}, {inner}: {}", stderr(&ended));
            assert!(start.elapsed() < LONG, "{outer}, {inner}");
            if code == 75 {
                let said = stderr(&ended);
                assert!(said.contains("by the run that this one runs in, outer"), "{said}");
            }
        }
    });
}

/// Somebody waits to have it alone: who shares it within would wait behind that one.
#[test]
fn who_shares_within_does_not_wait_behind_one_who_waits_for_it() {
    rerun_if_starved(|| {
        let store = Store::file();
        let program = env!("CARGO_BIN_EXE_coordination");
        let go = store.path("go");
        let text = format!(
            "#!/bin/sh\nwhile ! [ -e {} ]; do sleep 0.01; done\nexec {program} run --lock x --shared -- true\n",
            go.display()
        );
        let mut outer =
            store.start(&format!("--lock x --shared -- {}", store.script("inner", &text)));
        let states = || {
            let status = output(&mut store.coordination(["status", "x"]));
            stdout(&status).lines().count()
        };
        assert!(coordination_tests::harness::wait_until(LONG, || states() == 2));
        let mut waiter = store.start("--lock x -- true");
        assert!(coordination_tests::harness::wait_until(LONG, || states() == 3));
        std::fs::write(&go, "").expect("the directory is there");
        assert_eq!(outer.code(), Some(75));
        assert_eq!(waiter.code(), Some(0));
    });
}

/// However the store was named, unless its URL has a password.
#[test]
fn a_run_within_finds_the_store() {
    rerun_if_starved(|| {
        let store = Store::file();
        let program = env!("CARGO_BIN_EXE_coordination");
        let inner = format!("{program} run --lock y -- echo found");
        let by_environment =
            output(store.coordination(["run", "--lock", "x", "--"]).args(inner.split(' ')));
        let by_argument = output(
            plain().args(["run", "--url", &store.url, "--lock", "x", "--"]).args(inner.split(' ')),
        );
        let config = store.path("config.toml");
        std::fs::write(&config, format!("url = {:?}\n", store.url))
            .expect("the directory is there");
        let by_file = output(
            plain()
                .arg("run")
                .arg("--config")
                .arg(&config)
                .args(["--lock", "x", "--"])
                .args(inner.split(' ')),
        );
        for ended in [by_environment, by_argument, by_file] {
            assert_eq!(
                (ended.status.code(), stdout(&ended).as_str()),
                (Some(0), "found\n"),
                "{}",
                stderr(&ended)
            );
        }
    });
}

#[test]
fn a_url_with_a_password_is_not_handed_on_and_that_is_said() {
    rerun_if_starved(|| {
        let server = Redis::set_up(&Setup::of(1));
        let plainly = server.url(&server.authority(), "within");
        // A server without users takes any option; this one is a stranger to us and might be a secret.
        let program = env!("CARGO_BIN_EXE_coordination");
        let store = Store::at(plainly.clone());
        let handed =
            output(store.coordination(["run", "--lock", "x", "--", "env"]).env("HOME", "/"));
        assert!(stdout(&handed).contains("COORDINATION_URL=redis://"), "{}", stderr(&handed));
        let secret = "redis://:canary-5d1@127.0.0.1:1/0";
        let inner = output(
            plain().env("COORDINATION_RUN", "1-2").args(["run", "--lock", "y", "--", "true"]),
        );
        assert_eq!(inner.status.code(), Some(64));
        assert!(stderr(&inner).contains("has not handed its URL on"), "{}", stderr(&inner));
        let out_of_reach = output(
            plain().env("COORDINATION_URL", secret).args(["run", "--lock", "x", "--", program]),
        );
        assert!(!stderr(&out_of_reach).contains("canary"), "{}", stderr(&out_of_reach));
    });
}
