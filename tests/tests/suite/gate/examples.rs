//! Runs the examples as a user runs them. Checks their exit codes, and for some examples also what they print.

#![cfg(feature = "etcd")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use coordination_tests::harness::etcd::Etcd;
use coordination_tests::harness::{Scratch, rerun_if_starved};

/// The command that runs the built example `name`; `tests/run` builds all examples before it runs any test.
pub(crate) fn example(name: &str) -> Command {
    let beside = PathBuf::from(crate::WORKER);
    let folder = beside.parent().expect("a binary lies in a folder");
    let program = folder.join("examples").join(name);
    assert!(program.is_file(), "{} is missing: cargo build --examples", program.display());
    let mut command = Command::new(program);
    command.env_remove("COORDINATION_URL");
    command
}

pub(crate) fn shown(output: &Output) -> String {
    let text = [output.stdout.as_slice(), &output.stderr].concat();
    String::from_utf8_lossy(&text).into_owned()
}

fn passes(output: &Output) {
    let text = shown(output);
    assert!(output.status.success(), "{text}");
    for promise in ["no update lost", "no overlap", "tokens rise", "TAKES OVER", "PASSED"] {
        assert!(text.contains(promise), "{promise} is missing in:\n{text}");
    }
}

#[test]
fn resize_keeps_every_update_without_a_server() {
    rerun_if_starved(|| {
        passes(&example("resize").output().expect("it starts"));
    });
}

/// Nobody can take over in the time that is left then.
#[test]
fn resize_says_that_the_machine_stood_still() {
    rerun_if_starved(|| {
        // It keeps what it has written, as evidence.
        let scratch = Scratch::new("resize");
        let mut running = example("resize");
        running.env("TMPDIR", scratch.join("."));
        let running = running.stdout(Stdio::piped()).spawn().expect("it starts");
        let id = rustix::process::Pid::from_child(&running);
        let signal = |signal| rustix::process::kill_process(id, signal).expect("it runs");
        std::thread::sleep(Duration::from_millis(500));
        signal(rustix::process::Signal::STOP);
        std::thread::sleep(Duration::from_secs(12));
        signal(rustix::process::Signal::CONT);
        let text = shown(&running.wait_with_output().expect("it ends"));
        assert!(text.contains("this machine stood still for 1"), "{text}");
    });
}

#[test]
fn resize_without_the_lock_loses_updates() {
    rerun_if_starved(|| {
        let output = example("resize").arg("--unlocked").output().expect("it starts");
        let text = shown(&output);
        assert!(!output.status.success() && text.contains("LOST"), "{text}");
    });
}

/// Sends a request to a running example, and returns the whole response.
fn request(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("it listens");
    let head = format!("POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers");
    answer
}

#[test]
fn a_service_that_is_told_to_end_finishes_what_it_has_begun() {
    rerun_if_starved(|| {
        let mut service = example("drain")
            .env("ADDRESS", "127.0.0.1:0")
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut lines = BufReader::new(service.stdout.take().expect("it is piped")).lines();
        let mut line = || lines.next().map(|line| line.expect("text")).unwrap_or_default();
        let address = line().strip_prefix("listening on ").expect("it says where").to_owned();
        assert!(request(&address, "/").starts_with("HTTP/1.1 404"));
        let resize = |path: &'static str| {
            let address = address.clone();
            std::thread::spawn(move || request(&address, path))
        };
        let first = resize("/volumes/7");
        std::thread::sleep(Duration::from_millis(150));
        let second = resize("/volumes/7");
        std::thread::sleep(Duration::from_millis(100));
        let service_id = i32::try_from(service.id()).expect("a process id");
        let service_id = rustix::process::Pid::from_raw(service_id).expect("a process id");
        rustix::process::kill_process(service_id, rustix::process::Signal::TERM).expect("it runs");
        let (first, second) = (first.join().expect("answered"), second.join().expect("answered"));
        assert!(
            first.starts_with("HTTP/1.1 200") && first.ends_with("volume 7 was resized"),
            "{first}"
        );
        assert!(second.starts_with("HTTP/1.1 503") && second.contains("being stopped"), "{second}");
        assert_eq!([line(), line()], ["draining: 1 held", "drained"]);
        assert!(service.wait().expect("it ends").success());
    });
}

#[test]
fn resize_keeps_every_update_on_one_etcd() {
    rerun_if_starved(|| {
        let etcd = Etcd::one();
        let url = format!("etcd://{}/resize", etcd.authority());
        passes(&example("resize").env("COORDINATION_URL", url).output().expect("it starts"));
    });
}

#[test]
fn resize_keeps_every_update_on_three_etcd_of_which_one_is_killed() {
    rerun_if_starved(|| {
        let etcd = Etcd::three();
        let url = format!("etcd://{}/resize", etcd.authority());
        let mut running = example("resize");
        running.env("COORDINATION_URL", url);
        running.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
        let running = running.spawn().expect("it starts");
        std::thread::sleep(Duration::from_secs(1));
        etcd.node(0).kill();
        passes(&running.wait_with_output().expect("it ends"));
    });
}

#[cfg(feature = "postgres")]
#[test]
fn a_transaction_of_an_old_holder_is_refused_by_postgres() {
    use coordination_tests::harness::{Postgres, Server};
    rerun_if_starved(|| {
        let postgres = Postgres::one();
        let url = postgres.url(&postgres.authority(), "");
        let mut program = example("fenced_transaction");
        let output = program.env("COORDINATION_URL", url).output().expect("it starts");
        let text = shown(&output);
        assert!(output.status.success(), "{text}");
        for promise in ["refused: ERROR: token", "is not that of a holder", "PASSED"] {
            assert!(text.contains(promise), "{promise} is missing in:\n{text}");
        }
    });
}

#[test]
fn the_small_examples_end_well_without_a_server() {
    rerun_if_starved(|| {
        let names = [
            "boot",
            "timeouts",
            "fenced",
            "blocking",
            "operators",
            "read_write",
            "several_locks",
            "cohort",
            "semaphore",
            "limiter",
            "rate_limiter",
            "once",
            "group",
            "partition",
            "election",
            "barrier",
            "values",
            "work_queue",
        ];
        for name in names {
            let output = example(name).output().expect("it starts");
            assert!(output.status.success(), "{name}: {}", shown(&output));
        }
    });
}
