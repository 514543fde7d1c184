//! What a wait says where nobody sits at a terminal, and what is said when it is given up.

use std::process::Stdio;
use std::time::Duration;

use coordination_tests::harness::{rerun_if_starved, wait_until};
use rustix::process::Signal;

use crate::{LONG, Store, Wrapper, output, stderr};

/// A wrapper whose log can be read at any time.
fn logged(store: &Store, words: &str) -> (Wrapper, impl Fn() -> String) {
    let log = store.path("log");
    let file = std::fs::File::create(&log).expect("the directory is there");
    let mut command = store.coordination(words.split(' '));
    let wrapper =
        Wrapper(command.stdout(Stdio::null()).stderr(file).spawn().expect("it was built"));
    (wrapper, move || std::fs::read_to_string(&log).unwrap_or_default())
}

#[test]
fn a_wait_is_told_in_a_log_and_so_is_its_end() {
    rerun_if_starved(|| {
        let store = Store::file();
        for (outer, inner) in [
            ("run --lock x", "run --lock x -- true"),
            ("run --semaphore s:1", "run --semaphore s:1 -- true"),
            ("run --singleton n --standby 1", "run --singleton n --standby 1 -- true"),
            ("elect e", "elect e -- true"),
        ] {
            let holds = format!("--member-id me-here {outer} -- sleep 60");
            let mut holder = Wrapper::start(&mut store.coordination(holds.split(' ')));
            let name = outer.rsplit(' ').next().unwrap_or_default();
            let is_held = || {
                let status = output(&mut store.coordination(["status"]));
                crate::stdout(&status).contains("me-here")
            };
            assert!(wait_until(LONG, is_held), "{name}");
            let (mut waiter, log) = logged(&store, inner);
            assert!(
                wait_until(LONG, || log().contains("since 1 s: held by me-here since ")),
                "{}",
                log()
            );
            // The next line comes much later.
            std::thread::sleep(Duration::from_millis(2_500));
            assert_eq!(log().lines().count(), 1, "{}", log());
            holder.signal(Signal::TERM);
            holder.status();
            assert_eq!(waiter.code(), Some(0));
            let said = log();
            assert!(
                said.lines().nth(1).is_some_and(|line| line.contains("coordination: got ")),
                "{said}"
            );
        }
    });
}

#[test]
fn a_short_wait_and_a_quiet_one_say_nothing() {
    rerun_if_starved(|| {
        let store = Store::file();
        let holder = store.runs("--lock x");
        let (mut waiter, log) = logged(&store, "--quiet run --lock x -- true");
        std::thread::sleep(Duration::from_millis(2_500));
        drop(holder);
        assert_eq!((waiter.code(), log().as_str()), (Some(0), ""));
        assert_eq!(stderr(&store.run("--lock x -- true")), "");
    });
}

#[test]
fn whoever_gives_up_says_who_has_it_since_when_and_how_many_wait() {
    rerun_if_starved(|| {
        let store = Store::file();
        let _holder = store.runs("--member-id me-here --lock x");
        let _waiter = store.start("--member-id before --lock x -- true");
        let waits = || {
            let status = output(&mut store.coordination(["status", "x"]));
            crate::stdout(&status).lines().count() == 3
        };
        assert!(wait_until(LONG, waits));
        for wait in ["0", "100ms", "2s"] {
            let busy = store.run(&format!("--quiet --lock x --wait {wait} -- true"));
            assert_eq!(busy.status.code(), Some(75));
            let said = stderr(&busy);
            let (start, end) = (
                "coordination: lock \"x\" is busy: held by me-here since ",
                " s, 1 in the queue\n",
            );
            assert!(said.starts_with(start) && said.ends_with(end), "{wait}: {said}");
        }
        let _leader = Wrapper::start(
            &mut store.coordination("--member-id leads elect e -- sleep 60".split(' ')),
        );
        let leads = || output(&mut store.coordination(["leader", "e"])).status.success();
        assert!(wait_until(LONG, leads));
        let busy = output(&mut store.coordination("elect e --wait 0 -- true".split(' ')));
        assert_eq!(busy.status.code(), Some(75));
        assert!(
            stderr(&busy).contains("election \"e\" is busy: held by leads since "),
            "{}",
            stderr(&busy)
        );
    });
}

/// Its slot comes in an hour, and the lock is another's by now.
#[test]
fn a_wait_for_a_rate_ends_when_the_lock_is_lost() {
    rerun_if_starved(|| {
        let store = Store::file();
        assert_eq!(store.run("--rate r:1/1h -- true").status.code(), Some(0));
        let (mut waiter, log) = logged(&store, "run --lock x --rate r:1/1h -- true");
        assert!(wait_until(LONG, || log().contains("waiting for rate \"r\"")), "{}", log());
        let broken = output(&mut store.coordination(["break", "x", "--yes"]));
        assert_eq!(broken.status.code(), Some(0), "{}", stderr(&broken));
        assert_eq!(waiter.code(), Some(70), "{}", log());
    });
}

#[test]
fn a_wait_for_a_rate_is_told_too() {
    rerun_if_starved(|| {
        let store = Store::file();
        assert_eq!(store.run("--rate r:1/5s -- true").status.code(), Some(0));
        let (mut quiet, silence) = logged(&store, "--quiet run --rate r:1/5s -- true");
        assert_eq!((quiet.code(), silence().as_str()), (Some(0), ""));
        let (mut waiter, log) = logged(&store, "run --rate r:1/5s -- true");
        let line = "coordination: waiting for rate \"r\" since 1 s: at most 1 in 5s";
        assert!(wait_until(LONG, || log().lines().any(|said| said == line)), "{}", log());
        assert_eq!(waiter.code(), Some(0));
        let said = log();
        assert!(said.lines().nth(1).is_some_and(|line| line.contains("got rate \"r\" after ")));
        // Whoever needs not wait says nothing.
        assert_eq!(stderr(&store.run("--rate s:2/5s -- true")), "");
    });
}
