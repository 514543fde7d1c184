//! A command inherits what whoever started the wrapper had set: the same as alone, and as under flock(1).

use std::process::{Command, Output, Stdio};

use coordination_tests::harness::rerun_if_starved;

use crate::{Store, output, stderr, stdout, written};

/// Who starts it, and how; the rest of the words is what is started.
const STARTERS: [(&str, &[&str]); 12] = [
    ("as usual", &["env"]),
    ("SIGCHLD ignored", &["env", "--ignore-signal=CHLD"]),
    ("SIGPIPE ignored", &["env", "--ignore-signal=PIPE"]),
    ("SIGHUP and SIGINT ignored", &["env", "--ignore-signal=HUP,INT"]),
    ("all signals ignored", &["env", "--ignore-signal"]),
    ("SIGCHLD blocked", &["env", "--block-signal=CHLD"]),
    ("SIGTERM and SIGPIPE blocked", &["env", "--block-signal=TERM,PIPE"]),
    ("all signals blocked, SIGPIPE ignored", &["env", "--block-signal", "--ignore-signal=PIPE"]),
    ("a umask", &["sh", "-c", "umask 027; exec \"$@\"", "sh"]),
    ("limits", &["sh", "-c", "ulimit -n 100; ulimit -c 0; ulimit -s 4096; exec \"$@\"", "sh"]),
    ("a directory", &["env", "--chdir=/usr"]),
    ("a descriptor", &["sh", "-c", "exec 7< /etc/passwd; exec \"$@\"", "sh"]),
];

/// Says what it has got: signals, umask, limits, directory, a descriptor.
const PROBE: &str = "#!/bin/sh
grep -E '^(SigBlk|SigIgn|Umask)' /proc/self/status
ulimit -a
pwd
readlink /proc/self/fd/7
exit 7
";

fn started(starter: &[&str], with: &Command) -> Output {
    // As whoever runs the tests has it, but for what the starter sets after that.
    let mut command = Command::new("env");
    command.arg("--default-signal").args(starter);
    command.arg(with.get_program()).args(with.get_args()).stdin(Stdio::null());
    output(&mut command)
}

fn coordination(store: &Store, words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_coordination"));
    command.args(["run", "--url", &store.url]).args(words);
    command
}

#[test]
fn a_command_gets_what_whoever_started_us_had_set() {
    rerun_if_starved(|| {
        let store = Store::file();
        let probe = store.script("probe", PROBE);
        let mut flock = Command::new("flock");
        flock.arg(store.path("flock")).arg(&probe);
        let ours = coordination(&store, &["--lock", "x", "--", &probe]);
        let mut differ = Vec::new();
        for (name, starter) in STARTERS {
            let [alone, under_flock, under_us] =
                [&Command::new(&probe), &flock, &ours].map(|with| {
                    let ended = started(starter, with);
                    (stdout(&ended), ended.status.code())
                });
            println!("{name}: {}", under_us == alone);
            assert_eq!((under_flock.1, alone.1), (Some(7), Some(7)), "{name}");
            assert_eq!(under_flock, alone, "{name}: the yardstick");
            if under_us != alone {
                differ.push(format!("{name}: {under_us:?} in place of {alone:?}"));
            }
        }
        assert!(differ.is_empty(), "{}", differ.join("\n"));
    });
}

/// Whatever was set, the command's code comes through and what it leaves ends.
#[test]
fn a_run_ends_as_it_should_whoever_started_it() {
    rerun_if_starved(|| {
        let store = Store::file();
        let left = store.path("left");
        let text = format!(
            "#!/bin/sh\nsleep 600 > /dev/null 2>&1 &\necho $! > {}\nexit 7\n",
            left.display()
        );
        let leaves = store.script("leaves", &text);
        for (name, starter) in STARTERS {
            let words = ["--quiet", "--lock", "x", "--kill-after", "50ms", "--", &leaves];
            let ended = started(starter, &coordination(&store, &words));
            assert_eq!((ended.status.code(), stderr(&ended).as_str()), (Some(7), ""), "{name}");
            assert!(!crate::is_alive(&written(&left)), "{name}");
            std::fs::remove_file(&left).expect("it was written");
        }
    });
}

/// A pipe whose reader is gone is an error to who ignores SIGPIPE, and no end: it can clean up.
#[test]
fn a_command_that_may_write_to_nobody_cleans_up() {
    rerun_if_starved(|| {
        let store = Store::file();
        let cleaned = store.path("cleaned");
        let text = format!(
            "#!/bin/bash\nsleep 0.3\necho to nobody 2> /dev/null\necho yes > {}\n",
            cleaned.display()
        );
        let script = store.script("writes", &text);
        let words = format!(
            "{} run --url {} --lock x -- {script} | true",
            env!("CARGO_BIN_EXE_coordination"),
            store.url
        );
        let starter = ["env", "--ignore-signal=PIPE", "bash", "-c"];
        let mut piped = Command::new(starter[0]);
        output(piped.args(&starter[1..]).arg(&words));
        assert_eq!(written(&cleaned), "yes\n");
    });
}

/// A program that is no program is told as ever, though it is we who become it.
#[test]
fn what_cannot_be_run_is_told_whoever_started_it() {
    rerun_if_starved(|| {
        let store = Store::file();
        let empty = store.script("no-interpreter", "#!/no/such/shell\n");
        let ours = coordination(&store, &["--lock", "x", "--", &empty]);
        for (name, starter) in STARTERS {
            let ended = started(starter, &ours);
            assert_eq!(ended.status.code(), Some(127), "{name}");
            assert!(stderr(&ended).contains("No such file"), "{name}: {}", stderr(&ended));
        }
    });
}

/// The kernel's lock of a script that holds one by a descriptor, as flock(1) has it.
#[test]
fn the_watch_keeps_nothing_of_its_starter_open() {
    rerun_if_starved(|| {
        let store = Store::file();
        let lock = store.path("lock-of-a-script");
        let text = format!(
            "#!/bin/sh\nexec 9> {lock}\nflock -n 9 || exit 99\nCOORDINATION_URL={} {} run --lock x -- true\n",
            store.url,
            env!("CARGO_BIN_EXE_coordination"),
            lock = lock.display()
        );
        let script = store.script("script", &text);
        for round in 0..50 {
            let code = output(&mut Command::new(&script)).status.code();
            assert_eq!(code, Some(0), "round {round}: 99 is a lock that outlives its script");
        }
    });
}
