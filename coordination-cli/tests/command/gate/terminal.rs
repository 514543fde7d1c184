//! At a terminal: a real one, by a pseudo-terminal.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::thread;

use coordination_tests::harness::{rerun_if_starved, wait_until};
use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Action, tcflow};

use crate::{LONG, Store, Wrapper, is_alive, written};

/// What somebody at the terminal sees and types.
pub(super) struct Terminal {
    keys: File,
    /// The end that programs have.
    program_end: File,
    seen: Arc<Mutex<String>>,
}

impl Terminal {
    pub(super) fn new() -> Self {
        let ours =
            openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("there are pseudo-terminals");
        grantpt(&ours).and_then(|()| unlockpt(&ours)).expect("it is ours");
        let name = ptsname(&ours, Vec::new()).expect("it has a name");
        let theirs = rustix::fs::open(name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty())
            .expect("it is unlocked");
        let (keys, seen) = (File::from(ours), Arc::new(Mutex::new(String::new())));
        let (mut reads, sees) =
            (keys.try_clone().expect("a descriptor is free"), Arc::clone(&seen));
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            // Ends when all programs have closed it.
            while let Ok(count @ 1..) = reads.read(&mut bytes) {
                sees.lock().expect("no panic").push_str(&String::from_utf8_lossy(&bytes[..count]));
            }
        });
        Self { keys, program_end: File::from(theirs), seen }
    }

    /// Starts `coordination run` with this as its controlling terminal.
    pub(super) fn start(&self, store: &Store, words: &str) -> Wrapper {
        self.starts(store, &format!("run {words}"))
    }

    /// Starts `coordination` with this as its controlling terminal.
    pub(super) fn starts(&self, store: &Store, words: &str) -> Wrapper {
        self.started(store, &format!("{} {words}", env!("CARGO_BIN_EXE_coordination")))
    }

    /// Starts a program with this as its controlling terminal.
    pub(super) fn started(&self, store: &Store, words: &str) -> Wrapper {
        let end = || self.program_end.try_clone().expect("a descriptor is free");
        let mut command = Command::new("setsid");
        command.args(["--ctty", "--wait", "env", "--default-signal"]);
        command.args(words.split(' '));
        command.env("COORDINATION_URL", &store.url).env_remove("COORDINATION_CONFIG");
        command.stdin(end()).stdout(end()).stderr(end());
        Wrapper(command.spawn().expect("util-linux is installed"))
    }

    pub(super) fn types(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).expect("it is open");
    }

    /// Forgets what was seen so far.
    pub(super) fn clear(&self) {
        self.seen.lock().expect("no panic").clear();
    }

    pub(super) fn seen(&self) -> String {
        self.seen.lock().expect("no panic").clone()
    }

    pub(super) fn sees(&self, wanted: &str) {
        let is_seen = || self.seen().contains(wanted);
        assert!(wait_until(LONG, is_seen), "{wanted:?} is not in {:?}", self.seen());
    }
}

#[test]
fn a_wait_says_what_it_waits_for_and_who_has_it() {
    rerun_if_starved(|| {
        let store = Store::file();
        let started = store.path("started");
        let command = store.script(
            "holder",
            &format!("#!/bin/sh\necho $$ > {}\nexec sleep 60\n", started.display()),
        );
        let holder = store.start(&format!("--member-id me-here --lock x -- {command}"));
        written(&started);
        let terminal = Terminal::new();
        let mut waiter = terminal.start(&store, "--lock x -- echo done");
        terminal.sees("waiting for lock \"x\" since 1 s: held by me-here");
        terminal.sees("since 2 s");
        drop(holder);
        // The line is wiped before the command says something.
        terminal.sees("\r\x1b[Kdone");
        assert_eq!(waiter.code(), Some(0));

        let holder = {
            std::fs::remove_file(&started).expect("it was written");
            store.start(&format!("--lock x -- {command}"))
        };
        written(&started);
        let quiet = Terminal::new();
        let mut waiter = quiet.start(&store, "--quiet --lock x --wait 3s --if-busy skip -- true");
        assert_eq!(waiter.code(), Some(0));
        assert_eq!(*quiet.seen.lock().expect("no panic"), "");
        drop(holder);
    });
}

#[test]
fn a_terminal_that_stands_still_keeps_no_command_from_its_turn() {
    rerun_if_starved(|| {
        let store = Store::file();
        let holder = store.runs("--lock x");
        let ran = store.path("ran");
        let command = store.script("waits", &format!("#!/bin/sh\necho > {}\n", ran.display()));
        let terminal = Terminal::new();
        let mut waiter = terminal.start(&store, &format!("--lock x -- {command}"));
        terminal.sees("waiting for lock");
        // What Ctrl-S does.
        tcflow(&terminal.program_end, Action::OOff).expect("a terminal");
        drop(holder);
        written(&ran);
        tcflow(&terminal.program_end, Action::OOn).expect("a terminal");
        assert_eq!(waiter.code(), Some(0));
    });
}

#[test]
fn ctrl_c_ends_the_command_and_the_wait() {
    rerun_if_starved(|| {
        let store = Store::file();
        let started = store.path("started");
        let text = format!("#!/bin/sh\necho $$ > {}\nexec sleep 60\n", started.display());
        let command = store.script("command", &text);
        let mut terminal = Terminal::new();
        let mut wrapper = terminal.start(&store, &format!("--lock x -- {command}"));
        let child = written(&started);
        let mut other = Terminal::new();
        let mut waiter = other.start(&store, "--lock x -- true");
        other.sees("waiting for lock");
        other.types("\x03");
        assert_eq!(waiter.code(), Some(130));
        assert!(is_alive(&child) && wrapper.is_running());
        terminal.types("\x03");
        assert_eq!(wrapper.code(), Some(130));
        assert!(!is_alive(&child));
    });
}

/// A shell's script goes on after a command that has ended with a code, whatever it means.
#[test]
fn ctrl_c_ends_the_script_as_well() {
    rerun_if_starved(|| {
        let store = Store::file();
        let program = env!("CARGO_BIN_EXE_coordination");
        let started = store.path("started");
        let text = format!("#!/bin/sh\necho $$ > {}\nexec sleep 60\n", started.display());
        let command = store.script("command", &text);
        for run in [format!("--lock x -- {command}"), "--lock x -- true".to_owned()] {
            let _held = run.ends_with("true").then(|| store.runs("--lock x"));
            let text = format!("#!/bin/bash\n{program} run {run}\necho went on with $?\n");
            let script = store.script("script", &text);
            let mut terminal = Terminal::new();
            let mut shell = terminal.started(&store, &script);
            match run.ends_with("true") {
                true => terminal.sees("waiting for lock"),
                false => drop(written(&started)),
            }
            terminal.types("\x03");
            assert_eq!(shell.status().signal(), Some(Signal::INT.as_raw()), "{run}");
            assert!(!terminal.seen().contains("went on"), "{}", terminal.seen());
        }
    });
}

/// A job of a shell, which has the terminal for itself until the job is fetched.
#[test]
fn in_the_background_a_wait_draws_nothing() {
    rerun_if_starved(|| {
        let store = Store::file();
        let _holder = store.runs("--lock x");
        let program = env!("CARGO_BIN_EXE_coordination");
        let text = format!(
            "#!/bin/bash\nset -m\n{program} run --lock x --wait 8s --if-busy skip -- true &\n\
             sleep 3\necho until here\nfg\n"
        );
        let terminal = Terminal::new();
        let mut shell = terminal.started(&store, &store.script("shell", &text));
        terminal.sees("until here");
        let seen = terminal.seen();
        let (before, _) = seen.split_once("until here").expect("just seen");
        assert!(!before.contains("waiting for lock") && !before.contains('\x1b'), "{before:?}");
        terminal.sees("waiting for lock");
        assert_eq!(shell.code(), Some(0));
    });
}

/// As in a container, where the wrapper is all that runs at the terminal.
#[test]
fn ctrl_z_does_nothing_where_no_shell_could_let_it_go_on() {
    rerun_if_starved(|| {
        let store = Store::file();
        let (ready, got) = (store.path("ready"), store.path("got"));
        let text = format!(
            "#!/bin/sh\ntrap 'echo usr1 > {}' USR1\ntrap 'exit 9' TERM\necho $$ > {}\n\
             while :; do sleep 0.01; done\n",
            got.display(),
            ready.display()
        );
        let command = store.script("command", &text);
        let terminal = Terminal::new();
        // Alone, and below a shell that is not one for people.
        let program = env!("CARGO_BIN_EXE_coordination");
        let run = format!("{program} run --lock x -- {command}");
        let shell = store.script("shell", &format!("#!/bin/sh\n{run}\nexit $?\n"));
        for words in [&run, &shell] {
            let mut wrapper = terminal.started(&store, words);
            let id = written(&ready);
            let us = wrapper_of(&id);
            kill_process(us, Signal::TSTP).expect("it runs");
            kill_process(us, Signal::USR1).expect("it runs");
            // By then the first one has been received, too.
            written(&got);
            kill_process(us, Signal::TERM).expect("it runs");
            assert_eq!(wrapper.code(), Some(9));
            for path in [&ready, &got] {
                std::fs::remove_file(path).expect("it was written");
            }
        }
    });
}

/// The parent of this command.
fn wrapper_of(command: &str) -> Pid {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", command.trim()));
    let stat = stat.expect("it runs");
    let (_, fields) = stat.rsplit_once(") ").expect("a name");
    let parent = fields.split(' ').nth(1).and_then(|parent| parent.parse().ok());
    parent.and_then(Pid::from_raw).expect("a process id")
}

#[test]
fn in_the_foreground_a_command_reads_the_terminal() {
    rerun_if_starved(|| {
        let store = Store::file();
        let mut terminal = Terminal::new();
        let command = store.script("asks", "#!/bin/sh\nread answer\necho \"got $answer\"\n");
        let mut wrapper = terminal.start(&store, &format!("--foreground --lock x -- {command}"));
        terminal.types("yes\n");
        terminal.sees("got yes");
        assert_eq!(wrapper.code(), Some(0));
    });
}
