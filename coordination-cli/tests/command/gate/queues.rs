//! `post` and `work`: items for a command, one after the other.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

use coordination_tests::harness::{rerun_if_starved, wait_until};
use rustix::process::Signal;
use serde_json::Value;

use crate::{LONG, Store, Wrapper, output, plain, state, stderr, stdout, written};

fn post(store: &Store, words: &[&str]) -> Output {
    output(store.coordination(["post", "jobs"]).args(words))
}

/// `coordination work jobs`, with these words before the command.
fn work(store: &Store, words: &[&str], command: &str) -> Output {
    output(store.coordination(["work", "jobs"]).args(words).args(["--", command]))
}

fn status(store: &Store) -> String {
    stdout(&output(&mut store.coordination(["status", "jobs", "--json"])))
}

/// A command that writes what it reads, and what it is told, to a file.
fn noting(store: &Store, end: &str) -> (String, PathBuf) {
    let notes = store.path("notes");
    let text = format!(
        "#!/bin/sh\nread -r item; echo \"$item $LOCK_NAME $LOCK_TOKEN\" >> {}\n{end}\n",
        notes.display()
    );
    (store.script("note", &text), notes)
}

/// A command that says that it runs, and does so for a minute.
fn sleeping(store: &Store) -> (String, PathBuf) {
    let started = store.path("started");
    let text = format!("#!/bin/sh\necho $$ > {}\nexec sleep 60\n", started.display());
    (store.script("sleeps", &text), started)
}

/// It may not have been waited for.
fn is_dead(id: &str) -> bool {
    let status = Path::new("/proc").join(id.trim()).join("status");
    std::fs::read_to_string(status).map_or(true, |status| status.contains("State:\tZ"))
}

#[test]
fn items_are_done_in_order() {
    rerun_if_starved(|| {
        let store = Store::file();
        let posted = post(&store, &["one", "two", "three"]);
        assert_eq!(posted.status.code(), Some(0), "{}", stderr(&posted));
        assert_eq!(stdout(&posted).lines().count(), 3, "their names");
        assert!(status(&store).contains(r#""ready":3,"claimed":0,"delayed":0,"dead":0"#));
        let (command, notes) = noting(&store, "exit 0");
        let worked = work(&store, &["--wait", "0"], &command);
        assert_eq!(worked.status.code(), Some(0), "{}", stderr(&worked));
        let notes = written(&notes);
        let words: Vec<Vec<_>> = notes.lines().map(|line| line.split(' ').collect()).collect();
        let items: Vec<_> = words.iter().map(|words| words[0]).collect();
        assert_eq!(items, ["one", "two", "three"]);
        assert!(words.iter().all(|words| words[1] == "jobs"), "{notes}");
        let tokens: Vec<u64> =
            words.iter().map(|words| words[2].parse().expect("a number")).collect();
        assert!(tokens.is_sorted() && tokens[0] > 0, "{tokens:?}");
        assert!(status(&store).contains(r#""ready":0,"claimed":0,"delayed":0,"dead":0"#));
    });
}

#[test]
fn what_comes_on_stdin_is_an_item_or_one_for_each_line() {
    rerun_if_starved(|| {
        let store = Store::file();
        for (words, text) in [(&["--lines"][..], "a\nb\n"), (&[], "c\nd\n")] {
            let mut posting = store.coordination(["post", "jobs"]);
            posting.args(words).stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut posting = posting.spawn().expect("it was built");
            let mut stdin = posting.stdin.take().expect("it is piped");
            stdin.write_all(text.as_bytes()).expect("it reads");
            drop(stdin);
            assert!(posting.wait().expect("it is our child").success());
        }
        let got = store.path("got");
        let command =
            store.script("cat", &format!("#!/bin/sh\ncat >> {0}; echo . >> {0}\n", got.display()));
        assert_eq!(work(&store, &["--wait", "0"], &command).status.code(), Some(0));
        assert_eq!(written(&got), "a.\nb.\nc\nd\n.\n");
    });
}

#[test]
fn a_command_that_fails_gives_its_item_back_with_a_growing_delay() {
    rerun_if_starved(|| {
        let store = Store::file();
        post(&store, &["bad"]);
        let (command, notes) = noting(&store, "exit 3");
        let once = |more: &[&str]| {
            work(&store, &[&["--once", "--delay", "2s"], more].concat(), &command).status.code()
        };
        let begun = Instant::now();
        assert_eq!(once(&[]), Some(3), "its own code");
        assert!(status(&store).contains(r#""delayed":1"#), "{}", status(&store));
        assert_eq!(once(&["--wait", "0"]), Some(75), "nothing is ready");
        assert_eq!(once(&[]), Some(3));
        assert_eq!(once(&[]), Some(3));
        assert!(begun.elapsed() >= Duration::from_secs(2 + 4), "{:?}", begun.elapsed());
        assert_eq!(written(&notes).lines().count(), 3);
    });
}

#[test]
fn an_item_comes_back_when_its_worker_is_killed() {
    rerun_if_starved(|| {
        let store = Store::file();
        post(&store, &["job"]);
        let (sleeps, started) = sleeping(&store);
        let worker = Wrapper::start(&mut store.coordination(["work", "jobs", "--", &sleeps]));
        let id = written(&started);
        assert!(status(&store).contains(r#""claimed":1"#), "{}", status(&store));
        worker.signal(Signal::KILL);
        let (command, notes) = noting(&store, "exit 0");
        let next = work(&store, &["--once", "--wait", "30s"], &command);
        assert_eq!(next.status.code(), Some(0), "{}", stderr(&next));
        assert!(written(&notes).starts_with("job "));
        assert!(wait_until(LONG, || is_dead(&id)), "the command does not outlive its worker");
    });
}

#[test]
fn a_claim_is_kept_alive_and_a_signal_ends_the_worker_with_its_command() {
    rerun_if_starved(|| {
        let store = Store::file();
        post(&store, &["slow", "next"]);
        let (slow, notes) = noting(&store, "sleep 2");
        let kept = work(&store, &["--once", "--ttl", "1s"], &slow);
        assert_eq!(kept.status.code(), Some(0), "{}", stderr(&kept));
        assert!(written(&notes).starts_with("slow "));
        let (sleeps, started) = sleeping(&store);
        let mut worker = Wrapper::start(
            &mut store.coordination(["work", "jobs", "--delay", "0", "--", &sleeps]),
        );
        written(&started);
        worker.signal(Signal::TERM);
        assert_eq!(worker.code(), Some(143));
        assert!(status(&store).contains(r#""ready":1,"claimed":0"#), "{}", status(&store));
    });
}

#[test]
fn a_worker_that_stands_still_beyond_its_ttl_has_its_command_ended() {
    rerun_if_starved(|| {
        let store = Store::file();
        post(&store, &["job"]);
        let (sleeps, started) = sleeping(&store);
        let mut worker = Wrapper::start(
            &mut store.coordination(["work", "jobs", "--once", "--ttl", "2s", "--", &sleeps]),
        );
        let id = written(&started);
        worker.signal(Signal::STOP);
        // The watch ends it, whatever has become of the worker.
        assert!(wait_until(LONG, || is_dead(&id)));
        let (command, notes) = noting(&store, "exit 0");
        let next = work(&store, &["--once", "--wait", "30s"], &command);
        assert_eq!(next.status.code(), Some(0), "{}", stderr(&next));
        assert!(written(&notes).starts_with("job "));
        worker.signal(Signal::CONT);
        assert_eq!(worker.code(), Some(70), "the claim was lost");
    });
}

#[test]
fn a_program_that_is_not_there_claims_nothing() {
    rerun_if_starved(|| {
        let store = Store::file();
        post(&store, &["job"]);
        assert_eq!(work(&store, &["--once"], "no-such-program").status.code(), Some(127));
        assert!(status(&store).contains(r#""ready":1"#), "{}", status(&store));
        let refused = post(&store, &["--delay", "2h", "job"]);
        assert_eq!(refused.status.code(), Some(64), "{}", stderr(&refused));
    });
}

#[test]
fn a_command_that_uses_the_store_finds_it() {
    rerun_if_starved(|| {
        let store = Store::file();
        post(&store, &["one", "two"]);
        let program = env!("CARGO_BIN_EXE_coordination");
        let inner = format!("{program} post done it");
        let words = ["work", "jobs", "--once"];
        let by_environment = output(store.coordination(words).arg("--").args(inner.split(' ')));
        let by_argument =
            output(plain().args(words).args(["--url", &store.url, "--"]).args(inner.split(' ')));
        for ended in [by_environment, by_argument] {
            assert_eq!(ended.status.code(), Some(0), "{}", stderr(&ended));
        }
        // The second command of a worker as the first one.
        post(&store, &["three", "four"]);
        let worked = output(
            store.coordination(["work", "jobs", "--wait", "0", "--"]).args(inner.split(' ')),
        );
        assert_eq!(worked.status.code(), Some(0), "{}", stderr(&worked));
        assert!(
            status(&store).contains(r#""ready":0,"claimed":0,"delayed":0"#),
            "{}",
            status(&store)
        );
        let done = stdout(&output(&mut store.coordination(["status", "done", "--json"])));
        assert!(done.contains(r#""ready":4"#), "{done}");
    });
}

#[test]
fn all_is_posted_though_nobody_reads_the_names() {
    rerun_if_starved(|| {
        let store = Store::file();
        let mut posting = store.coordination(["post", "jobs", "--lines"]);
        posting.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut posting = posting.spawn().expect("it was built");
        // As `head` does, which has seen enough.
        drop(posting.stdout.take());
        let lines: String = (0..2_500).map(|number| format!("{number}\n")).collect();
        let mut stdin = posting.stdin.take().expect("it is piped");
        stdin.write_all(lines.as_bytes()).expect("it reads");
        drop(stdin);
        assert_eq!(posting.wait().expect("it is our child").code(), Some(0));
        assert!(status(&store).contains(r#""ready":2500"#), "{}", status(&store));
    });
}

/// More than go with one post, of which the last one is too long: whoever posts them again is told what is there.
#[test]
fn a_post_that_is_cut_short_says_what_is_posted() {
    rerun_if_starved(|| {
        let store = Store::file();
        let mut posting = store.coordination(["post", "jobs", "--lines"]);
        posting.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut posting = posting.spawn().expect("it was built");
        let lines = format!("{}{}\n", "a\n".repeat(1_000), "b".repeat(300_000));
        let mut stdin = posting.stdin.take().expect("it is piped");
        stdin.write_all(lines.as_bytes()).expect("it reads");
        drop(stdin);
        let posted = posting.wait_with_output().expect("it is our child");
        assert_eq!(posted.status.code(), Some(64), "{}", stderr(&posted));
        assert!(stderr(&posted).contains("the first 1000 of 1001 items"), "{}", stderr(&posted));
        assert!(status(&store).contains(r#""ready":1000"#), "{}", status(&store));
    });
}

/// Such as where the names go to a file, and the disk is full.
#[test]
fn a_post_whose_names_cannot_be_written_says_what_is_posted() {
    rerun_if_starved(|| {
        let store = Store::file();
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("Linux has it");
        let mut posting = store.coordination(["post", "jobs", "vol-7", "vol-8"]);
        let posted = posting.stdout(full).stderr(Stdio::piped()).output().expect("it was built");
        assert_eq!(posted.status.code(), Some(71), "{}", stderr(&posted));
        assert!(stderr(&posted).contains("the first 2 of 2 items"), "{}", stderr(&posted));
        assert!(status(&store).contains(r#""ready":2"#), "{}", status(&store));
    });
}

/// What Ctrl-Z stops goes on with `bg`; what is not said to end a worker ends its command at most.
#[test]
fn a_worker_is_stopped_once_and_ended_by_four_signals_only() {
    rerun_if_starved(|| {
        let store = Store::file();
        post(&store, &["one", "two", "three"]);
        let [started, go] = ["started", "go"].map(|name| store.path(name));
        let text = format!(
            "#!/bin/sh\ntrap '' ALRM\nread -r item; echo $item >> {}\n\
             until [ -e {}.$item ]; do sleep 0.01; done\n",
            started.display(),
            go.display()
        );
        let mut command = store.coordination(["work", "jobs", "--wait", "0", "--"]);
        // A job as a shell has it: we could let it go on.
        command.arg(store.script("command", &text)).process_group(0);
        let mut worker = Wrapper::start(&mut command);
        let id = worker.0.id().to_string();
        let runs = |items: &str| {
            let runs = || std::fs::read_to_string(&started).is_ok_and(|text| text == items);
            assert!(wait_until(LONG, runs), "{items:?} {:?}", state(&id));
        };
        let ends = |item: &str| {
            let go = store.path(&format!("go.{item}"));
            std::fs::write(go, "").expect("the directory is there");
        };
        runs("one\n");
        worker.signal(Signal::TSTP);
        assert!(wait_until(LONG, || state(&id) == Some('T')));
        worker.signal(Signal::CONT);
        assert!(wait_until(LONG, || state(&id) == Some('S')));
        ends("one");
        runs("one\ntwo\n");
        worker.signal(Signal::ALARM);
        ends("two");
        runs("one\ntwo\nthree\n");
        ends("three");
        assert_eq!(worker.code(), Some(0));
    });
}

/// Without its id, which would let the operator acknowledge its items.
#[test]
fn a_claim_is_taken_away_by_its_token() {
    rerun_if_starved(|| {
        let store = Store::file();
        let breaks = |words: &str| {
            let mut command = store.coordination(["break", "jobs", "--recipe", "queue", "--yes"]);
            output(command.args(words.split_whitespace()))
        };
        assert!(stderr(&breaks("")).contains("nobody holds \"jobs\""));
        post(&store, &["one", "two"]);
        let claims = || -> Vec<Value> {
            let all: Vec<Value> = serde_json::from_str(&status(&store)).expect("an array");
            all.into_iter().filter(|row| row["recipe"] == "claim").collect()
        };
        let (sleeps, _) = sleeping(&store);
        let works = |member: &str, count| {
            let words = ["--member-id", member, "work", "jobs", "--once", "--ttl", "3s", "--"];
            let worker = Wrapper::start(store.coordination(words).arg(&sleeps));
            assert!(wait_until(LONG, || claims().len() == count), "{:?}", claims());
            worker
        };
        let (mut first, mut second) = (works("first", 1), works("second", 2));
        let members: Vec<_> = claims().iter().map(|row| row["member"].clone()).collect();
        assert_eq!(members, ["first", "second"]);
        assert!(claims().iter().all(|row| row["state"] == "claims"), "{:?}", claims());
        let unsure = breaks("");
        assert_eq!(unsure.status.code(), Some(64));
        assert!(stderr(&unsure).contains("--token"), "{}", stderr(&unsure));

        let token = format!("--token {}", claims()[0]["token"]);
        let one = breaks(&token);
        assert_eq!(one.status.code(), Some(0), "{}", stderr(&one));
        assert!(stderr(&one).contains("held by first with token"), "{}", stderr(&one));
        let (command, notes) = noting(&store, "exit 0");
        let next = work(&store, &["--once", "--wait", "30s"], &command);
        assert_eq!(next.status.code(), Some(0), "{}", stderr(&next));
        assert!(written(&notes).starts_with("one "), "its item, and no other");
        assert_eq!(first.code(), Some(70), "its command was stopped");
        assert!(second.is_running());
        assert!(stderr(&breaks(&token)).contains("nobody holds \"jobs\" with token"));
    });
}

#[test]
fn an_item_is_kept_as_long_as_a_queue_can() {
    let help = stdout(&output(plain().args(["post", "--help"])));
    assert!(help.contains("[default: 14d]"), "{help}");
}
