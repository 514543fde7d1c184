//! Several locks in one run: all of them or none.

use std::thread;
use std::time::Instant;

use coordination_tests::harness::rerun_if_starved;

use super::ends::everywhere;
use crate::{LONG, Store, Wrapper, is_alive, output, stderr, stdout, written};

#[test]
fn the_command_knows_each_lock_and_its_token() {
    everywhere(|store| {
        let names = "${LOCK_NAME_1-} ${LOCK_NAME_2-} ${LOCK_NAME_3-}";
        let tokens = "${LOCK_TOKEN_1-} ${LOCK_TOKEN_2-}";
        let text =
            format!("#!/bin/sh\necho \"$LOCK_NAME {names}\"\necho \"$LOCK_TOKEN {tokens}\"\n");
        let says = store.script("says", &text);
        let mut before = [0, 0];
        for _ in 0..2 {
            let said = stdout(&store.run(&format!("--lock b --lock a -- {says}")));
            let (names, tokens) = said.split_once('\n').expect("two lines");
            assert_eq!(names, "b b a ");
            let tokens: Vec<u64> =
                tokens.split_whitespace().map(|token| token.parse().expect("a number")).collect();
            let [of_first, one, two] = tokens[..] else { panic!("{tokens:?}") };
            assert_eq!(of_first, one);
            assert!(one > before[0] && two > before[1], "{before:?}, then {one} and {two}");
            before = [one, two];
        }
        // A run within has its own.
        let run = format!("{} run --lock c -- {says}", env!("CARGO_BIN_EXE_coordination"));
        let within = store.script("within", &format!("#!/bin/sh\nexec {run}\n"));
        let said = stdout(&store.run(&format!("--lock b --lock a -- {within}")));
        assert!(said.starts_with("c   \n"), "{said:?}");
    });
}

#[test]
fn all_are_held_or_none() {
    everywhere(|store| {
        let holder = store.runs("--member-id who-has-it --lock b");
        let refused = store.run("--lock c --lock b --lock a --wait 0 -- true");
        assert_eq!(refused.status.code(), Some(75));
        let said = stderr(&refused);
        assert!(said.contains("locks \"a\", \"b\", \"c\" are busy: held by who-has-it"), "{said}");
        for free in ["a", "c"] {
            let ended = store.run(&format!("--lock {free} --wait 0 -- true"));
            assert_eq!(ended.status.code(), Some(0), "{free}");
        }
        let mut waiter = store.start("--lock b --lock a -- true");
        drop(holder);
        assert_eq!(waiter.code(), Some(0));
        let _two = store.runs("--lock a --lock b");
        for held in ["a", "b"] {
            let ended = store.run(&format!("--lock {held} --wait 0 -- true"));
            assert_eq!(ended.status.code(), Some(75), "{held}");
        }
    });
}

/// Named in any order, they are acquired in one; and no two run at once that have one in common.
#[test]
fn who_names_them_in_another_order_does_not_wait_for_ever() {
    rerun_if_starved(|| {
        let store = Store::file();
        let (alive, runs) = (store.path("alive"), store.path("runs"));
        let text = format!(
            "#!/bin/sh\nexec flock -n -E 99 {} sh -c 'echo run >> {}'\n",
            alive.display(),
            runs.display()
        );
        let job = store.script("job", &text);
        let orders = ["--lock a --lock b", "--lock b --lock a", "--lock b --lock c --lock a"];
        thread::scope(|scope| {
            let (store, job) = (&store, &job);
            for order in orders {
                scope.spawn(move || {
                    for _ in 0..10 {
                        assert_eq!(store.run(&format!("{order} -- {job}")).status.code(), Some(0));
                    }
                });
            }
        });
        assert_eq!(written(&runs).lines().count(), 30);
    });
}

#[test]
fn the_loss_of_one_is_the_loss_of_all() {
    everywhere(|store| {
        for lost in ["a", "b"] {
            let started = store.path(&format!("started-{lost}"));
            let text = format!("#!/bin/sh\necho $$ > {}\nexec sleep 60\n", started.display());
            let command = store.script(&format!("command-{lost}"), &text);
            let mut words = store.coordination(["run", "--lock", "b", "--lock", "a", "--"]);
            words.arg(command).stderr(std::process::Stdio::piped());
            let mut wrapper = Wrapper::start(&mut words);
            let id = written(&started);
            let broken = output(&mut store.coordination(["break", lost, "--yes"]));
            assert_eq!(broken.status.code(), Some(0), "{}", stderr(&broken));
            assert_eq!(wrapper.code(), Some(70));
            assert!(!is_alive(&id));
            let mut said = String::new();
            let pipe = wrapper.0.stderr.as_mut().expect("a pipe");
            std::io::Read::read_to_string(pipe, &mut said).expect("it is text");
            assert!(said.contains(&format!("lost \"{lost}\": ")), "{said}");
            // The other one is free as well.
            assert_eq!(store.run("--lock a --lock b --wait 5 -- true").status.code(), Some(0));
        }
    });
}

#[test]
fn one_that_is_held_around_is_refused_at_once() {
    rerun_if_starved(|| {
        let store = Store::file();
        let run = format!("{} run --lock c --lock a -- true", env!("CARGO_BIN_EXE_coordination"));
        let within = store.script("within", &format!("#!/bin/sh\nexec {run}\n"));
        let start = Instant::now();
        let ended = store.run(&format!("--lock b --lock a -- {within}"));
        assert_eq!(ended.status.code(), Some(75));
        let said = stderr(&ended);
        assert!(said.contains("lock \"a\" is held by the run that this one runs in"), "{said}");
        assert!(start.elapsed() < LONG);
    });
}
