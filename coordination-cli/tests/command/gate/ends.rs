//! Every way in which `coordination run` ends, and its code.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use coordination_tests::harness::{Etcd, copy_program, rerun_if_starved, wait_until};
use rustix::process::{Pid, Signal};

use crate::{LONG, Store, Wrapper, code, is_alive, output, plain, stderr, stdout, written};

/// Another user than root.
const NOBODY: u32 = 65534;

/// On one host, and on a server.
pub(super) fn everywhere(check: impl Fn(&Store)) {
    rerun_if_starved(|| check(&Store::file()));
    rerun_if_starved(|| {
        let server = Etcd::one();
        check(&Store::at(format!("etcd://{}/cli", server.node(0).address())));
    });
}

#[test]
fn the_commands_own_code_comes_through() {
    everywhere(|store| {
        for code in [0, 1, 3, 64, 75, 124, 255] {
            let command = store.script("exits", &format!("#!/bin/sh\nexit {code}\n"));
            let ended = store.run(&format!("--lock x -- {command}"));
            assert_eq!((ended.status.code(), stderr(&ended).as_str()), (Some(code), ""));
        }
        let killed = store.script("killed", "#!/bin/sh\nkill -KILL $$\n");
        assert_eq!(code(store.run(&format!("--lock x -- {killed}")).status), Some(137));
    });
}

#[test]
fn output_and_input_are_the_commands() {
    everywhere(|store| {
        use std::io::Write;

        let mut command = store.coordination(["run", "--lock", "x", "--", "cat"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut cat = command.spawn().expect("it was built");
        cat.stdin.take().expect("a pipe").write_all(b"through\n").expect("it reads");
        let ended = cat.wait_with_output().expect("it is our child");
        assert_eq!((stdout(&ended).as_str(), ended.status.code()), ("through\n", Some(0)));
    });
}

#[test]
fn a_program_that_is_not_there_is_missed_before_anything_is_waited_for() {
    everywhere(|store| {
        let _held = store.runs("--lock x");
        let start = Instant::now();
        let missing = store.run("--lock x -- no-such-program");
        assert_eq!(missing.status.code(), Some(127));
        assert!(
            stderr(&missing).contains("no-such-program: command not found"),
            "{}",
            stderr(&missing)
        );
        let unusable = store.run("--lock x -- /etc/passwd");
        assert_eq!(unusable.status.code(), Some(126));
        assert!(stderr(&unusable).contains("/etc/passwd: not executable"), "{}", stderr(&unusable));
        // A file that says it is a program, and is none.
        let empty = store.script("no-interpreter", "#!/no/such/shell\n");
        assert_eq!(store.run(&format!("--lock y -- {empty}")).status.code(), Some(127));
        assert!(start.elapsed() < LONG, "it waited for the lock");
    });
}

#[test]
fn busy_is_75_or_skipped() {
    everywhere(|store| {
        let mut held = store.runs("--lock x");
        for wait in ["0", "100ms"] {
            let busy = store.run(&format!("--lock x --wait {wait} -- true"));
            assert_eq!(busy.status.code(), Some(75), "{wait}");
            assert!(stderr(&busy).contains("\"x\""), "{}", stderr(&busy));
            let skipped = store.run(&format!("--lock x --wait {wait} --if-busy skip -- true"));
            assert_eq!((skipped.status.code(), stderr(&skipped).as_str()), (Some(0), ""), "{wait}");
        }
        assert!(held.is_running());
        assert_eq!(store.run("--lock y --wait 0 -- true").status.code(), Some(0), "another lock");
    });
}

#[test]
fn wrong_use_is_64_and_says_what_is_right() {
    rerun_if_starved(|| {
        let store = Store::file();
        for (words, said) in [
            ("--lock x true", "-- <CMD>"),
            ("-- true", "--lock"),
            ("--lock x --wait soon -- true", "`forever`"),
            ("--semaphore x:y -- true", "encode:3"),
            ("--semaphore x:0 -- true", "permits"),
            ("--lock x --kill-after 1s --on-lost never -- true", "ignore"),
        ] {
            let refused = store.run(words);
            assert_eq!(refused.status.code(), Some(64), "{words}: {}", stderr(&refused));
            assert!(stderr(&refused).contains(said), "{words}: {}", stderr(&refused));
        }
        let nowhere = output(plain().args(["run", "--lock", "x", "--", "true"]));
        assert_eq!(nowhere.status.code(), Some(64));
        assert!(stderr(&nowhere).contains("COORDINATION_URL"), "{}", stderr(&nowhere));
        let unknown =
            output(plain().args(["run", "--url", "ftp://h", "--lock", "x", "--", "true"]));
        assert_eq!(unknown.status.code(), Some(64), "{}", stderr(&unknown));
    });
}

/// The store is away until the command is asked to end, and the time of `--release-after` comes before it has ended.
#[test]
fn a_period_is_not_spent_by_a_command_that_is_being_stopped() {
    rerun_if_starved(|| {
        let server = Etcd::one();
        let at = server.node(0).address();
        let store = Store::at(format!("etcd://{at}/cli?ttl=3s&heartbeat=100ms"));
        let (started, asked) = (store.path("started"), store.path("asked"));
        let text = format!(
            "#!/bin/sh\ntrap 'echo > {}' TERM\necho $$ > {}\nwhile :; do sleep 0.05; done\n",
            asked.display(),
            started.display()
        );
        let command = store.script("command", &text);
        // It is asked two seconds after the store's last word, and killed nearly a second later.
        let words = "--quiet --lock x --every 24h --kill-after 900ms --release-after 2400ms";
        let mut run = store.start(&format!("{words} -- {command}"));
        written(&started);
        server.node(0).pause();
        written(&asked);
        server.node(0).resume();
        assert_eq!(run.code(), Some(70));
        let ran = store.path("ran");
        let next = format!("--lock x --every 24h -- touch {}", ran.display());
        assert!(wait_until(LONG, || store.run(&next).status.code() == Some(0)));
        assert!(ran.exists(), "the period is spent");
    });
}

/// A third of the lease, whatever is left of that when the command starts.
#[test]
fn the_longest_kill_after_goes_by_the_lease_and_not_by_the_last_heartbeat() {
    rerun_if_starved(|| {
        let server = Etcd::one();
        let at = server.node(0).address();
        let store = Store::at(format!("etcd://{at}/cli?ttl=3s&heartbeat=1s"));
        // The more of the lease is over, the more often.
        for settle in ["300ms", "600ms", "900ms"] {
            let ended = store.run(&format!("--lock x --kill-after 1s --settle {settle} -- true"));
            assert_eq!((ended.status.code(), stderr(&ended).as_str()), (Some(0), ""));
        }
        let item = output(&mut store.coordination(["post", "q", "item"]));
        assert_eq!(item.status.code(), Some(0), "{}", stderr(&item));
        // Before anything is waited for, or claimed.
        let held = store.runs("--lock x");
        for words in [
            &["run", "--lock", "x", "--kill-after", "1001ms", "--", "true"][..],
            &["work", "q", "--once", "--ttl", "3s", "--kill-after", "1001ms", "--", "true"],
        ] {
            let refused = output(&mut store.coordination(words));
            assert_eq!(refused.status.code(), Some(64), "{words:?}: {}", stderr(&refused));
            assert!(stderr(&refused).contains("--kill-after is 1.001s"), "{}", stderr(&refused));
        }
        drop(held);
        let done = output(&mut store.coordination(["work", "q", "--once", "--", "true"]));
        assert_eq!(done.status.code(), Some(0), "{}", stderr(&done));
    });
}

#[test]
fn a_password_is_not_taken_from_the_command_line_and_not_handed_on() {
    rerun_if_starved(|| {
        let secret = "redis://user:canary-5d1@127.0.0.1:1/0";
        let argument = output(plain().args(["run", "--url", secret, "--lock", "x", "--", "true"]));
        assert_eq!(argument.status.code(), Some(64));
        let environment = output(
            plain().env("COORDINATION_URL", secret).args(["run", "--lock", "x", "--", "true"]),
        );
        assert_eq!(environment.status.code(), Some(69), "{}", stderr(&environment));
        for said in [stderr(&argument), stderr(&environment)] {
            assert!(!said.contains("canary") && !said.is_empty(), "{said}");
        }
        // Put where it does not belong.
        for words in [&[secret, "status"][..], &["--config", secret, "status"], &["help", secret]] {
            let refused = output(plain().args(words));
            let said = stderr(&refused);
            assert_eq!(refused.status.code(), Some(64), "{said}");
            assert!(!said.contains("canary") && said.contains("redis://***@"), "{said}");
        }
    });
}

/// Not as if there were none: the lock would be taken on another store.
#[test]
fn a_url_that_is_no_text_is_refused() {
    rerun_if_starved(|| {
        let url = OsStr::from_bytes(b"file:///tmp/\xff");
        let refused = output(plain().env("COORDINATION_URL", url).arg("status"));
        assert_eq!(refused.status.code(), Some(64));
        assert!(stderr(&refused).contains("COORDINATION_URL is not UTF-8"), "{}", stderr(&refused));
    });
}

#[test]
fn a_config_file_names_the_store() {
    rerun_if_starved(|| {
        let store = Store::file();
        let config = store.path("config.toml");
        let text = format!("url = {:?}\nmember_id = \"<host>-<pid>\"\n", store.url);
        std::fs::write(&config, text).expect("the directory is there");
        let with_file = |words: &str| {
            let mut command = plain();
            output(command.arg("run").arg("--config").arg(&config).args(words.split(' ')))
        };
        assert_eq!(with_file("--lock x -- true").status.code(), Some(0));
        let _held = store.runs("--lock x");
        assert_eq!(
            with_file("--lock x --wait 0 -- true").status.code(),
            Some(75),
            "the same store"
        );
        let wrong =
            output(plain().args(["run", "--config", "/no/such/file", "--lock", "x", "--", "true"]));
        assert_eq!(wrong.status.code(), Some(64));
    });
}

#[test]
fn a_store_out_of_reach_is_69() {
    rerun_if_starved(|| {
        for url in ["etcd://127.0.0.1:1", "redis://127.0.0.1:1", "consul://127.0.0.1:1"] {
            let store = Store::at(url.to_owned());
            let ended = store.run("--lock x -- true");
            assert_eq!(ended.status.code(), Some(69), "{url}: {}", stderr(&ended));
            assert!(stderr(&ended).contains("127.0.0.1:1"), "{}", stderr(&ended));
        }
    });
}

#[test]
fn a_lost_lock_is_70() {
    rerun_if_starved(|| {
        let server = Etcd::one();
        let store =
            Store::at(format!("etcd://{}/cli?ttl=2s&heartbeat=200ms", server.node(0).address()));
        let (mut wrapper, child) = store.running("--lock x");
        assert!(is_alive(&child));
        server.node(0).pause();
        assert_eq!(wrapper.code(), Some(70));
        assert!(!is_alive(&child));
        server.node(0).resume();

        // The same, and the command is left alone.
        let started = store.path("started-again");
        let command = store.script(
            "again",
            &format!("#!/bin/sh\necho $$ > {}\nsleep 4\nexit 5\n", started.display()),
        );
        let mut wrapper = store.start(&format!("--lock x --on-lost ignore -- {command}"));
        written(&started);
        server.node(0).pause();
        std::thread::sleep(Duration::from_secs(3));
        server.node(0).resume();
        assert_eq!(wrapper.code(), Some(5));
    });
}

/// It has fifty milliseconds between the two signals, in which it can clean up.
#[test]
fn a_command_whose_lock_is_taken_away_is_asked_to_end_before_it_is_killed() {
    everywhere(|store| {
        let has_time = |nth: i32| {
            let (lock, cleaned) = (format!("x-{nth}"), store.path(&format!("cleaned-{nth}")));
            let started = store.path(&format!("started-{nth}"));
            let text = format!(
                "#!/bin/sh\ntrap 'sleep 0.02; echo > {}; exit 9' TERM\necho $$ > {}\nwhile :; do sleep 0.01; done\n",
                cleaned.display(),
                started.display()
            );
            let command = store.script(&format!("command-{nth}"), &text);
            let mut wrapper = store.start(&format!("--quiet --lock {lock} -- {command}"));
            written(&started);
            let broken = output(&mut store.coordination(["break", &lock, "--yes"]));
            assert_eq!(broken.status.code(), Some(0), "{}", stderr(&broken));
            assert_eq!(wrapper.code(), Some(70));
            cleaned.exists()
        };
        // One of some: on a machine that others use it may take longer.
        assert!((0..10).any(has_time), "it was killed at once");
    });
}

#[test]
fn what_the_command_leaves_behind_ends_before_the_lock_is_free() {
    everywhere(|store| {
        let left = store.path("left");
        let text = format!("#!/bin/sh\nsleep 60 &\necho $! > {}\nexit 4\n", left.display());
        let command = store.script("leaves", &text);
        assert_eq!(store.run(&format!("--lock x -- {command}")).status.code(), Some(4));
        assert!(!is_alive(&written(&left)));
        assert_eq!(store.run("--lock x --wait 0 -- true").status.code(), Some(0));
    });
}

#[test]
fn orphans_that_end_do_not_pile_up() {
    rerun_if_starved(|| {
        let store = Store::file();
        let made = store.path("made");
        let text = format!(
            "#!/bin/sh\nfor _ in $(seq 50); do (true &); done\necho $$ > {}\nexec sleep 60\n",
            made.display()
        );
        let mut wrapper = store.start(&format!("--lock x -- {}", store.script("orphans", &text)));
        let id = written(&made);
        // The watch and the command.
        assert!(wait_until(LONG, || children(&wrapper).len() == 2), "{:?}", children(&wrapper));
        assert!(is_alive(&id) && wrapper.is_running());
        wrapper.signal(Signal::TERM);
        assert_eq!(wrapper.code(), Some(143), "the command's own end is not taken");
    });
}

/// Needs a second user: as root there is one.
#[test]
fn what_another_user_has_in_the_group_is_waited_for_and_told() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    rerun_if_starved(|| {
        let store = Store::file();
        let started = store.path("started");
        let text = format!("#!/bin/sh\necho $$ > {}\nexec sleep 60\n", started.display());
        let script = store.script("command", &text);
        let mut wrapper = as_nobody(&store, &["--kill-after", "10ms"], &script);
        let group = written(&started).trim().parse().expect("a process id");
        let other = Command::new("sleep").arg("60").process_group(group).spawn();
        let mut other = Wrapper(other.expect("the group is there"));
        wrapper.signal(Signal::TERM);
        std::thread::sleep(Duration::from_secs(2));
        assert!(other.is_running() && wrapper.is_running());
        drop(other);
        assert_eq!(wrapper.code(), Some(143));
        let mut said = String::new();
        let mut stderr = wrapper.0.stderr.take().expect("a pipe");
        std::io::Read::read_to_string(&mut stderr, &mut said).expect("text");
        assert!(said.contains("another user's") && said.contains("(sleep)"), "{said}");
    });
}

/// A wrapper, and its command, of another user than ours; what is said can be read.
pub(super) fn as_nobody(store: &Store, options: &[&str], script: &str) -> Wrapper {
    let mut command = nobodys(store);
    command.arg("run").args(options).args(["--lock", "x", "--", script]).stderr(Stdio::piped());
    Wrapper::start(&mut command)
}

/// Our program, started by another user.
pub(super) fn nobodys(store: &Store) -> Command {
    // What the other user needs is his, or open to all.
    let program = store.path("coordination");
    if !program.exists() {
        copy_program(env!("CARGO_BIN_EXE_coordination"), &program);
    }
    std::os::unix::fs::chown(store.path("."), Some(NOBODY), None).expect("we are root");
    let mut command = Command::new("setpriv");
    command.arg(format!("--reuid={NOBODY}")).arg("--clear-groups").arg(program);
    command.env("COORDINATION_URL", &store.url);
    command
}

#[test]
fn a_wrapper_that_is_killed_takes_all_with_it() {
    everywhere(|store| {
        let (own, grandchild) = (store.path("own"), store.path("grandchild"));
        let text = format!(
            "#!/bin/sh\nsleep 60 &\necho $! > {}\necho $$ > {}\nwait\n",
            grandchild.display(),
            own.display()
        );
        let command = store.script("command", &text);
        let mut wrapper = store.start(&format!("--lock x -- {command}"));
        let ids = [written(&own), written(&grandchild)];
        assert!(ids.iter().all(|id| is_alive(id)));
        wrapper.signal(Signal::KILL);
        wrapper.status();
        assert!(wait_until(LONG, || ids.iter().all(|id| !is_alive(id))));
    });
}

/// Also while it starts the command.
#[test]
fn a_wrapper_that_is_killed_at_any_moment_leaves_nothing() {
    rerun_if_starved(|| {
        use std::io::Read;

        let store = Store::file();
        // From before its first instruction to well after the command's.
        for moment in 0..200 {
            let mut command = store.coordination(["run", "--lock", "x", "--", "sleep", "600"]);
            let mut wrapper =
                Wrapper(command.stdout(Stdio::piped()).spawn().expect("it was built"));
            let mut output = wrapper.0.stdout.take().expect("a pipe");
            std::thread::sleep(Duration::from_micros(100) * moment);
            wrapper.signal(Signal::KILL);
            let (ended, end) = mpsc::channel();
            std::thread::spawn(move || {
                // All that could write have it open until they end.
                let _ = output.read_to_end(&mut Vec::new());
                let _ = ended.send(());
            });
            assert!(
                end.recv_timeout(LONG).is_ok(),
                "killed after {moment} * 100 µs: the command lives"
            );
        }
    });
}

#[test]
fn a_watch_that_is_killed_is_replaced() {
    rerun_if_starved(|| {
        let store = Store::file();
        let (mut wrapper, id) = store.running("--lock x");
        let first = watch_of(&wrapper).expect("it runs");
        rustix::process::kill_process(first, Signal::KILL).expect("it runs");
        assert!(wait_until(LONG, || watch_of(&wrapper).is_some_and(|watch| watch != first)));
        wrapper.signal(Signal::KILL);
        wrapper.status();
        assert!(wait_until(LONG, || !is_alive(&id)));
    });
}

/// The kernel sends SIGHUP to what is stopped when its parent dies.
#[test]
fn a_watch_that_is_stopped_kills_when_it_goes_on() {
    rerun_if_starved(|| {
        let store = Store::file();
        let (mut wrapper, id) = store.running("--lock x");
        let watch = watch_of(&wrapper).expect("it runs");
        assert!(wait_until(LONG, || survives_hangup(watch)), "it has just been started");
        rustix::process::kill_process(watch, Signal::STOP).expect("it runs");
        let stat = format!("/proc/{}/stat", watch.as_raw_nonzero());
        let is_stopped = || std::fs::read_to_string(&stat).is_ok_and(|stat| stat.contains(") T "));
        assert!(wait_until(LONG, is_stopped));
        wrapper.signal(Signal::KILL);
        wrapper.status();
        // Nobody else lets it go on, if the kernel does not.
        let _ = rustix::process::kill_process(watch, Signal::CONT);
        assert_eq!(store.run("--lock x --wait 30s -- true").status.code(), Some(0));
        assert!(!is_alive(&id), "the lock was free before the command was dead");
    });
}

/// Whether this process handles SIGHUP.
fn survives_hangup(process: Pid) -> bool {
    let status = format!("/proc/{}/status", process.as_raw_nonzero());
    let status = std::fs::read_to_string(status).unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask & 1 != 0)
}

/// The process that watches for this wrapper.
pub(super) fn watch_of(wrapper: &Wrapper) -> Option<Pid> {
    let is_watch = |child: &String| {
        let words = std::fs::read_to_string(format!("/proc/{child}/cmdline")).unwrap_or_default();
        words.split('\0').nth(1) == Some("__watch")
    };
    let child = children(wrapper).into_iter().find(is_watch)?;
    child.parse().ok().and_then(Pid::from_raw)
}

/// Those of this wrapper, the dead that it has not waited for with them.
fn children(wrapper: &Wrapper) -> Vec<String> {
    let id = wrapper.0.id();
    let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children"));
    children.unwrap_or_default().split_whitespace().map(str::to_owned).collect()
}

#[test]
fn a_wait_ends_by_a_signal_and_leaves_nothing() {
    everywhere(|store| {
        let mut held = store.runs("--lock x");
        for (signal, code) in [(Signal::TERM, 143), (Signal::INT, 130), (Signal::HUP, 129)] {
            let mut waiter = store.start("--lock x -- true");
            std::thread::sleep(Duration::from_millis(300));
            assert!(waiter.is_running());
            waiter.signal(signal);
            assert_eq!(waiter.code(), Some(code));
        }
        held.signal(Signal::TERM);
        held.status();
        assert_eq!(
            store.run("--lock x --wait 0 -- true").status.code(),
            Some(0),
            "nobody is before us"
        );
    });
}
