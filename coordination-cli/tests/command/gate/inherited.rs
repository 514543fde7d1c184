//! What the wrapper gets from whoever starts it, at its worst.

use std::io::{self, PipeReader, PipeWriter, Write};
use std::process::Command;

use coordination_tests::harness::rerun_if_starved;

use crate::{Store, Wrapper, is_alive, output, stderr, stdout, written};

#[test]
fn a_lost_lock_ends_its_command_though_nobody_reads_what_is_said() {
    rerun_if_starved(|| {
        let (unread, full) = full_pipe();
        let store = Store::file();
        let (script, started) = leader(&store);
        let mut command = store.coordination(["run", "--lock", "x", "--", &script]);
        let mut holder = Wrapper::start(command.stderr(full));
        drop(command);
        ends_before_the_next_one(&store, &written(&started));
        assert_eq!(holder.code(), Some(70));
        drop(unread);
    });
}

/// In the background, whoever writes to such a terminal is stopped.
#[test]
fn a_lost_lock_ends_its_command_though_the_terminal_stops_who_writes() {
    rerun_if_starved(|| {
        let terminal = super::terminal::Terminal::new();
        let store = Store::file();
        let (script, started) = leader(&store);
        let run = format!("{} run --lock x -- {script}", env!("CARGO_BIN_EXE_coordination"));
        let shell =
            store.script("shell", &format!("#!/bin/sh\nset -m\nstty tostop\n{run} &\nsleep 60\n"));
        let _shell = terminal.started(&store, &shell);
        ends_before_the_next_one(&store, &written(&started));
    });
}

/// As where `unshare`, or who starts a container, is outside: session and group are, too, and have no number for us.
#[test]
fn a_session_outside_of_the_pid_namespace_has_no_number() {
    rerun_if_starved(|| {
        let store = Store::file();
        // Nobody within could let the wrapper go on, so it does not stop.
        let signals = "trap 'exit 9' USR1\nkill -TSTP $PPID\nkill -USR1 $PPID\n";
        let text = format!("#!/bin/sh\n{signals}while :; do sleep 0.01; done\n");
        let command = store.script("command", &text);
        let mut contained = Command::new("unshare");
        contained.args(["--pid", "--fork", "--kill-child", "--mount-proc", "--"]);
        contained.args([env!("CARGO_BIN_EXE_coordination"), "run", "--url", &store.url]);
        contained.args(["--lock", "x", "--", &command]);
        assert_eq!(Wrapper::start(&mut contained).code(), Some(9));
    });
}

/// A script that runs for long, and where it writes its process id.
fn leader(store: &Store) -> (String, std::path::PathBuf) {
    let started = store.path("started");
    let text = format!("#!/bin/sh\necho $$ > {}\nexec sleep 60\n", started.display());
    (store.script("leader", &text), started)
}

/// Breaks the lock of this command, and looks at it when the next one has it.
fn ends_before_the_next_one(store: &Store, command: &str) {
    assert!(is_alive(command));
    let broken = output(&mut store.coordination(["break", "x", "--yes"]));
    assert_eq!(broken.status.code(), Some(0));
    assert_eq!(
        store.run(&format!("--lock x -- test -d /proc/{}", command.trim())).status.code(),
        Some(1),
        "both ran"
    );
}

/// A pipe with no room left, whose reader does not read.
fn full_pipe() -> (PipeReader, PipeWriter) {
    let (unread, mut full) = io::pipe().expect("descriptors are free");
    rustix::io::ioctl_fionbio(&full, true).expect("a pipe");
    while full.write(&[b'.'; 4096]).is_ok() {}
    rustix::io::ioctl_fionbio(&full, false).expect("a pipe");
    (unread, full)
}

/// As some programs written in Perl or Python have it.
#[test]
fn a_commands_end_is_seen_though_the_ends_of_children_are_ignored() {
    rerun_if_starved(|| {
        let store = Store::file();
        let run = |words: &str| {
            let mut command = Command::new("env");
            command.args(["--ignore-signal=CHLD", env!("CARGO_BIN_EXE_coordination"), "run"]);
            command.env("COORDINATION_URL", &store.url).args(words.split(' '));
            output(&mut command)
        };
        let runs = store.path("runs");
        let text = format!("#!/bin/sh\necho run >> {}\n", runs.display());
        let job = format!("--lock job --every 8784h -- {}", store.script("job", &text));
        for _ in 0..2 {
            let ended = run(&job);
            assert_eq!((ended.status.code(), stderr(&ended).as_str()), (Some(0), ""));
        }
        assert_eq!(written(&runs), "run\n");
        let seven = store.script("seven", "#!/bin/sh\nexit 7\n");
        assert_eq!(run(&format!("--lock x -- {seven}")).status.code(), Some(7));
    });
}

/// As execvp(3) has it, and with it flock(1) and cron.
#[test]
fn a_script_without_a_first_line_is_read_by_the_shell() {
    rerun_if_starved(|| {
        let store = Store::file();
        let script = store.script("script", "echo \"$# $2\"\n");
        for trap in ["", "trap '' PIPE; "] {
            for program in [env!("CARGO_BIN_EXE_coordination"), "flock"] {
                let words = match program {
                    "flock" => format!("flock {}", store.path("flock").display()),
                    _ => format!("{program} run --lock x --"),
                };
                let words = format!("{trap}exec {words} {script} one 'two words'");
                let mut shell = Command::new("sh");
                let ended = output(shell.args(["-c", &words]).env("COORDINATION_URL", &store.url));
                let said = (ended.status.code(), stdout(&ended), stderr(&ended));
                assert_eq!(said, (Some(0), "2 two words\n".to_owned(), String::new()), "{words}");
            }
        }
        let nameless = output(store.coordination(["run", "--lock", "x", "--"]).arg(""));
        assert_eq!(nameless.status.code(), Some(127), "{}", stderr(&nameless));
    });
}
