//! Signals to the wrapper.

use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::Command;

use coordination_tests::harness::{rerun_if_starved, wait_until};
use rustix::process::{Pid, Signal};

use super::ends::everywhere;
use crate::{LONG, Store, Wrapper, is_alive, output, state, written};

#[test]
fn signals_reach_the_command_and_its_children() {
    everywhere(|store| {
        let (ready, got) = (store.path("ready"), store.path("got"));
        let text = format!(
            "#!/bin/sh\ntrap 'echo usr1 > {got}' USR1\ntrap 'exit 9' TERM\necho $$ > {ready}\n\
         while :; do sleep 0.01; done\n",
            got = got.display(),
            ready = ready.display()
        );
        let command = store.script("command", &text);
        let mut wrapper = store.start(&format!("--lock x -- {command}"));
        written(&ready);
        // `sleep` dies of it, and the loop goes on.
        wrapper.signal(Signal::USR1);
        assert_eq!(written(&got), "usr1\n");
        wrapper.signal(Signal::TERM);
        assert_eq!(wrapper.code(), Some(9));
    });
}

/// Whatever can be received: by its name or by its number, whether others die of it or not.
#[test]
fn every_signal_that_can_be_received_reaches_the_command() {
    rerun_if_starved(|| {
        let store = Store::file();
        let got = store.path("got");
        let numbers = "1 2 3 5 6 10 12 14 15 16 23 24 26 27 28 29 30 31 34 35 50 64";
        // One that is not for other shells: dash knows no signal from 34 on.
        let text = format!(
            "#!/usr/bin/env python3\nimport signal, time\ndef note(number, _):\n    open({got:?}, 'a').write(f'{{number}}\\n')\n\
             for number in map(int, '{numbers}'.split()): signal.signal(number, note)\nopen({got:?}, 'w').write('ready\\n')\n\
             while True: time.sleep(60)\n",
        );
        let (script, mut seen) = (store.script("notes", &text), String::from("ready\n"));
        let mut wrapper = store.start(&format!("--lock x -- {script}"));
        assert_eq!(written(&got), seen);
        for number in numbers.split(' ') {
            let words = format!("kill -{number} {}", wrapper.0.id());
            assert!(output(Command::new("bash").args(["-c", &words])).status.success());
            seen.push_str(number);
            seen.push('\n');
            let is_there = || std::fs::read_to_string(&got).is_ok_and(|text| text == seen);
            assert!(wait_until(LONG, is_there), "{number}: {:?}", std::fs::read_to_string(&got));
            assert!(wrapper.is_running(), "{number}");
        }
    });
}

/// What ends others ends the command and not the wrapper alone, which would get it SIGKILL and no chance to clean up.
#[test]
fn a_signal_that_ends_others_ends_the_command() {
    rerun_if_starved(|| {
        let store = Store::file();
        for number in [6, 14, 24, 31, 34, 64] {
            let (mut wrapper, _) = store.running(&format!("--lock x{number}"));
            let words = format!("kill -{number} {}", wrapper.0.id());
            assert!(output(Command::new("bash").args(["-c", &words])).status.success());
            assert_eq!(wrapper.code(), Some(128 + number));
        }
    });
}

#[test]
fn signals_that_end_reach_a_command_that_stands_still() {
    rerun_if_starved(|| {
        let store = Store::file();
        for (signal, code) in [(Signal::TERM, 143), (Signal::INT, 130), (Signal::HUP, 129)] {
            let (mut wrapper, id) = store.running(&format!("--lock {code}"));
            let command = id.trim().parse().ok().and_then(Pid::from_raw).expect("a process id");
            rustix::process::kill_process(command, Signal::STOP).expect("it runs");
            assert!(wait_until(LONG, || state(&id) == Some('T')));
            wrapper.signal(signal);
            assert_eq!(wrapper.code(), Some(code));
        }
    });
}

#[test]
fn a_command_stops_and_goes_on_with_us() {
    rerun_if_starved(|| {
        let store = Store::file();
        let started = store.path("started");
        let text = format!("#!/bin/sh\necho $$ > {}\nexec sleep 60\n", started.display());
        let mut command = store.coordination(["run", "--lock", "x", "--"]);
        // A job as a shell has it: we could let it go on.
        command.arg(store.script("command", &text)).process_group(0);
        let mut wrapper = Wrapper::start(&mut command);
        let ids = [written(&started), wrapper.0.id().to_string()];
        let stand_still = || ids.iter().all(|id| state(id) == Some('T'));
        // What Ctrl-Z sends.
        wrapper.signal(Signal::TSTP);
        assert!(wait_until(LONG, stand_still));
        wrapper.signal(Signal::CONT);
        assert!(wait_until(LONG, || ids.iter().all(|id| state(id) == Some('S'))));
        wrapper.signal(Signal::TERM);
        assert_eq!(wrapper.code(), Some(143));
    });
}

/// Whatever ends the wrapper, also what it does not receive. On `file://`, where the command has a second for that.
#[test]
fn a_command_may_clean_up_when_its_wrapper_dies() {
    rerun_if_starved(|| {
        let store = Store::file();
        for signal in [Signal::KILL, Signal::ILL, Signal::FPE] {
            let number = signal.as_raw();
            let (ready, cleaned) =
                (store.path(&format!("ready{number}")), store.path(&format!("cleaned{number}")));
            let text = format!(
                "#!/bin/sh\ntrap 'echo yes > {}; exit 0' TERM\necho $$ > {}\nwhile :; do sleep 0.01; done\n",
                cleaned.display(),
                ready.display()
            );
            let command = store.script(&format!("cleans{number}"), &text);
            let mut wrapper = store.start(&format!("--lock x{number} -- {command}"));
            let id = written(&ready);
            wrapper.signal(signal);
            assert_eq!(wrapper.status().signal(), Some(number));
            assert!(wait_until(LONG, || !is_alive(&id)));
            let cleaned = std::fs::read_to_string(&cleaned).unwrap_or_default();
            assert_eq!(cleaned, "yes\n", "{number}");
        }
    });
}

/// As a command does that is started without us: a shell's script ends then, and a supervisor knows how its service has ended.
#[test]
fn we_die_of_the_signal_that_the_command_died_of() {
    rerun_if_starved(|| {
        let store = Store::file();
        for signal in [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT, Signal::ALARM] {
            let (mut wrapper, _) = store.running(&format!("--lock x{}", signal.as_raw()));
            wrapper.signal(signal);
            assert_eq!(wrapper.status().signal(), Some(signal.as_raw()));
        }
        let mut waiter = store.start("--rate r:1/1h -- true");
        assert_eq!(waiter.code(), Some(0));
        waiter = store.start("--rate r:1/1h -- true");
        std::thread::sleep(std::time::Duration::from_millis(300));
        waiter.signal(Signal::INT);
        assert_eq!(waiter.status().signal(), Some(Signal::INT.as_raw()), "by a wait");
        // Of its own accord, and also where whoever started us ignores the signal; and only the command leaves a core.
        let program = env!("CARGO_BIN_EXE_coordination");
        for (name, number) in [("KILL", 9), ("SEGV", 11), ("PIPE", 13), ("USR1", 10), ("INT", 2)] {
            let text = format!("#!/bin/sh\nexec env --default-signal sh -c 'kill -{name} $$'\n");
            let dies = store.script(name, &text);
            let text = format!(
                "#!/bin/sh\nulimit -c unlimited\ntrap '' INT\nexec {program} run --url {} --lock y -- {dies}\n",
                store.url
            );
            let mut starts = Command::new(store.script("starts", &text));
            // Where the command leaves its core.
            let status = output(starts.current_dir(store.path("."))).status;
            assert_eq!((status.signal(), status.core_dumped()), (Some(number), false), "{name}");
        }
    });
}

/// Also that of the first process of a container, which dies of nothing that it does not handle.
#[test]
fn a_code_that_means_a_signal_is_a_code() {
    rerun_if_starved(|| {
        let store = Store::file();
        let command = store.script("exits", "#!/bin/sh\nexit 143\n");
        assert_eq!(store.run(&format!("--lock x -- {command}")).status.code(), Some(143));
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let dies = store.script("dies", "#!/bin/sh\nkill -TERM $$\n");
        let mut container = Command::new("unshare");
        container.args(["--pid", "--fork", "--mount-proc", env!("CARGO_BIN_EXE_coordination")]);
        container.args(["run", "--url", &store.url, "--lock", "x", "--", &dies]);
        let ended = output(&mut container);
        assert_eq!(ended.status.code(), Some(143), "{}", crate::stderr(&ended));
    });
}
