//! `elect` and `leader`, `join` and `members`.

use std::process::Stdio;

use coordination_tests::harness::{rerun_if_starved, wait_until};
use rustix::process::Signal;

use crate::{LONG, Store, Wrapper, output, stderr, stdout, written};

#[test]
fn one_leads_and_the_next_follows() {
    rerun_if_starved(|| {
        let store = Store::file();
        let leader = || output(&mut store.coordination(["leader", "boss"]));
        assert_eq!(
            (stdout(&leader()).as_str(), leader().status.code()),
            ("nobody leads\n", Some(1))
        );
        let term = store.path("term");
        let command = store.script(
            "lead",
            &format!(
                "#!/bin/sh\necho $LOCK_NAME $LOCK_TOKEN > {}\nexec sleep 60\n",
                term.display()
            ),
        );
        let elect = |id: &str, more: &[&str]| {
            let mut coordination = store.coordination(["--member-id", id, "elect", "boss"]);
            coordination.args(more).args(["--", &command]);
            Wrapper::start(&mut coordination)
        };
        let mut first = elect("one", &["--value", "10.0.0.1"]);
        let told = written(&term);
        assert!(told.starts_with("boss "), "{told}");
        assert!(stdout(&leader()).starts_with("one  term "), "{}", stdout(&leader()));
        assert!(stdout(&leader()).ends_with("  \"10.0.0.1\"\n"), "{}", stdout(&leader()));
        assert_eq!(elect("late", &["--wait", "0"]).code(), Some(75));
        let _second = elect("two", &[]);
        first.signal(Signal::TERM);
        assert_eq!(first.code(), Some(143));
        assert!(wait_until(LONG, || stdout(&leader()).starts_with("two  term ")));
        let again = written(&term);
        assert!(wait_until(LONG, || written(&term) != told), "{again}");
    });
}

#[test]
fn changes_of_the_leader_are_told() {
    rerun_if_starved(|| {
        let store = Store::file();
        let seen = store.path("seen");
        let watching = follow(&store, &["leader", "boss", "--watch"], &seen);
        assert!(wait_until(LONG, || written(&seen) == "nobody leads\n"));
        let elected = Wrapper::start(&mut store.coordination([
            "--member-id",
            "one",
            "elect",
            "boss",
            "--",
            "sleep",
            "60",
        ]));
        assert!(wait_until(LONG, || written(&seen).contains("one  term ")));
        drop(elected);
        assert!(wait_until(LONG, || written(&seen).ends_with("nobody leads\n")
            && written(&seen).lines().count() == 3));
        drop(watching);
    });
}

#[test]
fn members_come_and_go_with_their_commands() {
    rerun_if_starved(|| {
        let store = Store::file();
        let members = || output(&mut store.coordination(["members", "web"]));
        assert_eq!(members().status.code(), Some(69), "{}", stderr(&members()));
        let join = |id: &str, more: &[&str]| {
            let mut coordination = store.coordination(["--member-id", id, "join", "web"]);
            coordination.args(more).args(["--", "sleep", "60"]);
            Wrapper::start(&mut coordination)
        };
        let mut one = join("one", &["--capabilities", r#"{"port":8080}"#]);
        assert!(
            wait_until(LONG, || stdout(&members()) == "one  {\"port\":8080}\n"),
            "{}",
            stdout(&members())
        );
        let seen = store.path("seen");
        let _watching = follow(&store, &["members", "web", "--watch", "--json"], &seen);
        assert!(wait_until(LONG, || written(&seen).contains(r#""event":"member""#)));
        let two = join("two", &[]);
        assert!(wait_until(LONG, || written(&seen).contains(r#""event":"joined""#)));
        one.signal(Signal::TERM);
        assert_eq!(one.code(), Some(143));
        assert!(wait_until(LONG, || written(&seen).contains(r#""event":"left","incarnation""#)));
        assert_eq!(stdout(&members()), "two  null\n");
        drop(two);
        assert!(wait_until(LONG, || stdout(&members()).is_empty()));
    });
}

/// A command whose output goes to a file.
fn follow(store: &Store, words: &[&str], seen: &std::path::Path) -> Wrapper {
    let file = std::fs::File::create(seen).expect("the directory is there");
    let mut command = store.coordination(words);
    Wrapper(command.stdout(Stdio::from(file)).spawn().expect("it was built"))
}
