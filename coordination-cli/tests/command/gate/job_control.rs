//! A command at a terminal, as a job of a shell: it reads there, is stopped there, and goes on.

use coordination_tests::harness::wait_until;

use super::ends::everywhere;
use super::terminal::Terminal;
use crate::{LONG, Store, Wrapper, is_alive, state, written};

const PROGRAM: &str = env!("CARGO_BIN_EXE_coordination");

/// As ssh and sudo ask: at the terminal itself, whatever stdin and stdout are, and without showing the answer.
const ASKS: &str = "#!/bin/sh\nexec 3<> /dev/tty\nstty -echo <&3\nprintf 'password: ' >&3\n\
                    read answer <&3\nstty echo <&3\necho \"got $answer\" >&3\n";
/// As a pager does, which takes each key by itself.
const PAGES: &str = "#!/bin/sh\nstty -icanon -echo min 1\nprintf 'a page: '\nkey=$(head -c 1)\nstty icanon echo\n\
                     echo \"left by $key\"\n";
const ANSWER: &str = "read answer\necho \"the script got $answer\"\n";

/// A shell as somebody has it who types there.
fn shell(terminal: &mut Terminal, store: &Store) -> Wrapper {
    let shell = terminal.started(store, "bash --norc --noprofile -i");
    // What it echoes is not what it was asked to say.
    terminal.types("PS1=; echo ready$((40+2))\n");
    terminal.sees("ready42");
    shell
}

/// A script that runs this under a lock, and reads the terminal itself afterwards.
fn script(store: &Store, name: &str, run: &str) -> String {
    store.script(name, &format!("#!/bin/bash\n{run}\n{ANSWER}"))
}

#[test]
fn a_command_reads_the_terminal_and_gives_it_back() {
    everywhere(|store| {
        for (name, text, sees, types, says) in [
            ("asks", ASKS, "password: ", "secret\n", "got secret"),
            ("pages", PAGES, "a page: ", "q", "left by q"),
        ] {
            let command = store.script(name, text);
            let run = format!("{PROGRAM} run --lock x -- {command}");
            // By itself; at the end of a pipe, and at its beginning, where others may want the keys.
            let runs = match name {
                "asks" => vec![run.clone(), format!("echo no | {run}"), format!("{run} | cat")],
                _ => vec![run],
            };
            for run in runs {
                let mut terminal = Terminal::new();
                let mut script = terminal.started(store, &script(store, "script", &run));
                terminal.sees(sees);
                terminal.types(types);
                terminal.sees(says);
                terminal.types("yes\n");
                terminal.sees("the script got yes");
                assert_eq!(script.code(), Some(0), "{run}");
            }
        }
    });
}

/// The real one, under a shell for people.
#[test]
fn less_shows_pages_under_a_lock() {
    everywhere(|store| {
        let lines: String = (0..500).map(|line| format!("line {line} of it\n")).collect();
        let text = store.path("text");
        std::fs::write(&text, lines).expect("the directory is there");
        let mut terminal = Terminal::new();
        let mut shell = shell(&mut terminal, store);
        terminal.types(&format!(
            "export TERM=vt100 LESS=; {PROGRAM} run --lock x -- less {}\n",
            text.display()
        ));
        terminal.sees("line 3 of it");
        terminal.types("G");
        terminal.sees("line 499 of it");
        terminal.types("q");
        terminal.types("echo back$((40+2))\n");
        terminal.sees("back42");
        terminal.types("exit 7\n");
        assert_eq!(shell.code(), Some(7));
    });
}

#[test]
fn ctrl_z_stops_a_job_and_fg_lets_it_go_on() {
    everywhere(|store| {
        let started = store.path("started");
        let text = format!(
            "#!/bin/sh\necho $$ > {}\nwhile read line; do echo \"got $line.\"; done\nexit 3\n",
            started.display()
        );
        let reads = store.script("reads", &text);
        // A script between the two stops and goes on as well.
        let run = format!("{PROGRAM} run --lock x -- {reads}");
        let within = store.script("within", &format!("#!/bin/bash\n{run}\nexit $?\n"));
        for run in [&run, &within] {
            let mut terminal = Terminal::new();
            let mut shell = shell(&mut terminal, store);
            terminal.types(&format!("{run}\n"));
            let id = written(&started);
            terminal.types("one\n");
            terminal.sees("got one.");
            for round in ["two", "three"] {
                terminal.types("\x1a");
                terminal.sees("Stopped");
                assert!(wait_until(LONG, || state(&id) == Some('T')));
                terminal.clear();
                terminal.types("echo shell$((40+2))\n");
                terminal.sees("shell42");
                terminal.types("fg\n");
                terminal.types(&format!("{round}\n"));
                terminal.sees(&format!("got {round}."));
            }
            // In the background it stands still as soon as it reads, and the shell says so.
            terminal.types("\x1a");
            terminal.sees("Stopped");
            terminal.clear();
            terminal.types("bg; sleep 0.5; echo shell$((40+2))\n");
            terminal.sees("shell42");
            assert!(wait_until(LONG, || state(&id) == Some('T')));
            // The shell has to know it: it sends nobody on whom it takes for running.
            terminal
                .types("until jobs | grep -q Stopped; do sleep 0.1; done; echo known$((40+2))\n");
            terminal.sees("known42");
            terminal.types("fg\n");
            terminal.types("four\n");
            terminal.sees("got four.");
            terminal.types("\x04");
            assert!(wait_until(LONG, || !is_alive(&id)));
            terminal.types("exit $?\n");
            assert_eq!(shell.code(), Some(3), "{run}");
            std::fs::remove_file(&started).expect("it was written");
        }
    });
}

/// `fg` as soon as the shell says that the job stands still: by then the script does, and the wrapper may just have begun to.
#[test]
fn fg_comes_as_soon_as_a_script_stands_still() {
    everywhere(|store| {
        let text = "#!/bin/sh\nwhile read line; do echo \"got $line.\"; done\nexit 3\n";
        let run = format!("{PROGRAM} run --lock x -- {}", store.script("reads", text));
        let within = store.script("within", &format!("#!/bin/bash\n{run}\nexit $?\n"));
        let mut terminal = Terminal::new();
        let mut shell = shell(&mut terminal, store);
        terminal.types(&format!("{within}\n"));
        terminal.types("start\n");
        terminal.sees("got start.");
        for round in 0..30 {
            terminal.clear();
            terminal.types("\x1a");
            terminal.sees("Stopped");
            terminal.types(&format!("fg\n{round}\n"));
            terminal.sees(&format!("got {round}."));
        }
        terminal.types("\x04");
        terminal.types("exit $?\n");
        assert_eq!(shell.code(), Some(3));
    });
}

/// Also where the command has the terminal, so that Ctrl-C reaches nobody else.
#[test]
fn ctrl_c_at_a_command_that_reads_ends_the_script() {
    everywhere(|store| {
        for (shell, reads) in [("bash", "cat"), ("sh", "cat"), ("bash", "sh -c 'cat; true'")] {
            let text = format!("#!/bin/{shell}\n{PROGRAM} run --lock x -- {reads}\necho went on\n");
            let script = store.script("script", &text);
            let mut terminal = Terminal::new();
            let mut script = terminal.started(store, &script);
            terminal.types("line\n");
            terminal.sees("line\r\nline");
            terminal.types("\x03");
            assert_eq!(script.code(), Some(130), "{shell}: {reads}");
            assert!(!terminal.seen().contains("went on"), "{}", terminal.seen());
            let free = store.run("--lock x --wait 5 -- true");
            assert_eq!(free.status.code(), Some(0));
        }
    });
}

/// What a script starts with `&` leaves the terminal to the script; what wants it all the same does not keep its lock for good.
#[test]
fn beside_a_script_a_command_does_not_take_its_terminal() {
    everywhere(|store| {
        let asks = store.script("asks", ASKS);
        for (command, code) in [("sleep 1", 0), (asks.as_str(), 129)] {
            let run = format!("{PROGRAM} run --lock x -- {command} &\n{ANSWER}wait $!\nexit $?\n");
            let script = store.script("script", &format!("#!/bin/bash\n{run}"));
            let mut terminal = Terminal::new();
            let mut script = terminal.started(store, &script);
            std::thread::sleep(std::time::Duration::from_millis(500));
            terminal.types("yes\n");
            terminal.sees("the script got yes");
            assert_eq!(script.code(), Some(code), "{command}");
            let was_told = terminal.seen().contains("waits for the terminal");
            assert_eq!(was_told, code != 0, "{}", terminal.seen());
        }
    });
}

/// As in a container: there is nobody who could let it go on.
#[test]
fn ctrl_z_at_a_command_that_reads_does_nothing_without_a_shell() {
    everywhere(|store| {
        let started = store.path("started");
        let text = format!(
            "#!/bin/sh\necho $$ > {}\nwhile read line; do echo \"got $line.\"; done\n",
            started.display()
        );
        let reads = store.script("reads", &text);
        let mut terminal = Terminal::new();
        let mut wrapper = terminal.start(store, &format!("--lock x -- {reads}"));
        written(&started);
        terminal.types("\x1a");
        terminal.types("line\n");
        terminal.sees("got line.");
        terminal.types("\x04");
        assert_eq!(wrapper.code(), Some(0));
    });
}
