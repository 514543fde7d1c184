//! `acquire` and `release`: a lock that a shell script holds by a handle.

use std::io::{self, Read, Write};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use coordination_tests::harness::{Etcd, rerun_if_starved, wait_until};
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::process::{Pid, Signal, kill_process};

use super::ends::everywhere;
use crate::{LONG, Store, Wrapper, code, is_alive, output, plain, stderr, stdout, written};

/// `coordination acquire`, to its end; words are split at blanks. We are whom it is for.
fn acquire(store: &Store, words: &str) -> Output {
    output(store.coordination(["acquire"]).args(words.split(' ')))
}

/// The same where it has to succeed; answers the handle.
fn acquired(store: &Store, words: &str) -> String {
    let ended = acquire(store, words);
    assert_eq!(ended.status.code(), Some(0), "{words}: {}", stderr(&ended));
    stdout(&ended).trim_end().to_owned()
}

/// The code of a release, and what it says.
fn release(handle: &str) -> (Option<i32>, String) {
    let ended = output(plain().args(["release", handle]));
    (ended.status.code(), stderr(&ended))
}

/// Whether somebody else could have it at this moment.
fn is_free(store: &Store, lock: &str) -> bool {
    store.run(&format!("--lock {lock} --wait 0 -- true")).status.code() == Some(0)
}

/// Whether nobody holds it or waits for it.
fn is_unknown(store: &Store, lock: &str) -> bool {
    let status = output(&mut store.coordination(["status", lock, "--json"]));
    stdout(&status).trim() == "[]"
}

/// The number of the process behind a handle.
fn holder_of(handle: &str) -> String {
    let name = Path::new(handle).file_name().expect("a path").to_string_lossy().into_owned();
    name.split('-').next().expect("a number").to_owned()
}

fn kill(id: &str, signal: Signal) {
    let id = id.trim().parse().ok().and_then(Pid::from_raw);
    kill_process(id.expect("a number"), signal).expect("it lives");
}

/// A script, run by `sh`, with the program in its variable `c`.
fn script(store: &Store, shell: &str, text: &str) -> Command {
    let path = store.script("script", text);
    let mut command = Command::new(shell);
    command.arg(path).env("c", env!("CARGO_BIN_EXE_coordination"));
    command.env("COORDINATION_URL", &store.url).stdin(Stdio::null());
    command
}

#[test]
fn a_lock_is_held_from_acquire_to_release_and_no_longer() {
    everywhere(|store| {
        let handle = acquired(store, "x --member-id me --label nightly");
        assert!(!is_free(store, "x"));
        let busy = acquire(store, "x --wait 0");
        assert_eq!((busy.status.code(), stdout(&busy).as_str()), (Some(75), ""));
        assert!(stderr(&busy).contains("held by me (nightly)"), "{}", stderr(&busy));
        let directory = Path::new(&handle).parent().expect("a directory");
        let mode = std::fs::metadata(directory).expect("it is there").permissions();
        assert_eq!(std::os::unix::fs::PermissionsExt::mode(&mode) & 0o777, 0o700);
        let holder = holder_of(&handle);
        assert!(is_alive(&holder));
        assert_eq!(release(&handle), (Some(0), String::new()));
        assert!(is_free(store, "x"), "at once");
        let (code, said) = release(&handle);
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains("released before"), "{said}");
        assert!(wait_until(LONG, || !is_alive(&holder)));
    });
}

#[test]
fn several_are_held_or_none_and_shares_go_together() {
    everywhere(|store| {
        let said = acquired(store, "b a --tokens");
        let words: Vec<_> = said.split(' ').collect();
        let [handle, tokens @ ..] = words.as_slice() else { panic!("{said}") };
        assert!(tokens.len() == 2 && tokens.iter().all(|token| token.parse::<u64>().is_ok()));
        assert!(!is_free(store, "a") && !is_free(store, "b"));
        assert_eq!(acquire(store, "c a --wait 0").status.code(), Some(75));
        assert!(is_free(store, "c"));
        assert_eq!(release(handle).0, Some(0));
        let shares = [acquired(store, "a --shared"), acquired(store, "a --shared --wait 0")];
        assert!(!is_free(store, "a"));
        for handle in shares {
            assert_eq!(release(&handle).0, Some(0));
        }
        assert!(is_free(store, "a"));
    });
}

/// A subshell, as there is in brackets, ends at once, and is not whom the lock is for.
#[test]
fn a_script_holds_it_until_it_ends() {
    everywhere(|store| {
        for shell in ["sh", "bash"] {
            let (handle, go) = (store.path("handle"), store.path("go"));
            let text = format!(
                "h=$(cd / 2> /dev/null; \"$c\" acquire x 2> /dev/null || exit)\n\
                 echo \"$h\" > {}\nwhile ! [ -e {} ]; do sleep 0.01; done\nkill -KILL $$\n",
                handle.display(),
                go.display()
            );
            let mut script = Wrapper::start(&mut script(store, shell, &text));
            let handle_text = written(&handle).trim().to_owned();
            assert!(!is_free(store, "x"), "{shell}");
            std::fs::write(&go, "").expect("the directory is there");
            assert_eq!(script.code(), Some(137));
            assert_eq!(store.run("--lock x --wait 30 -- true").status.code(), Some(0));
            assert!(wait_until(LONG, || !Path::new(&handle_text).exists()));
            assert_eq!(release(&handle_text).0, Some(1));
            for file in [handle, go] {
                std::fs::remove_file(file).expect("it is there");
            }
        }
    });
}

/// Whatever it is that ends the wait, nobody holds the lock afterwards, or waits for it.
#[test]
fn nobody_waits_whose_caller_was_killed() {
    everywhere(|store| {
        let is_there = || {
            let status = output(&mut store.coordination(["status", "x"]));
            stdout(&status).contains("waits")
        };
        for signal in [Signal::KILL, Signal::TERM, Signal::INT] {
            let handle = acquired(store, "x");
            let mut waits = store.coordination(["acquire", "x", "--member-id", "waits", "--quiet"]);
            let mut waits = Wrapper::start(&mut waits);
            assert!(wait_until(LONG, is_there));
            waits.signal(signal);
            waits.code();
            assert!(wait_until(LONG, || !is_there()), "{signal:?}");
            assert_eq!(release(&handle).0, Some(0));
            assert!(wait_until(LONG, || is_unknown(store, "x")), "{signal:?}");
        }
        // And where it is whom it is for that is killed while it waits.
        let handle = acquired(store, "x");
        let mut sleeps = Wrapper::start(Command::new("sleep").arg("600"));
        let words = format!("x --for-pid {} --member-id waits --quiet", sleeps.0.id());
        let mut waits = store.coordination(["acquire"]);
        let mut waits = Wrapper::start(waits.args(words.split(' ')));
        assert!(wait_until(LONG, is_there));
        sleeps.signal(Signal::KILL);
        sleeps.code();
        assert_eq!(waits.code(), Some(71));
        assert_eq!(release(&handle).0, Some(0));
        assert!(wait_until(LONG, || is_unknown(store, "x")));
    });
}

#[test]
fn whoever_cannot_print_the_handle_holds_nothing() {
    everywhere(|store| {
        let (reader, writer) = io::pipe().expect("descriptors are free");
        drop(reader);
        let mut acquire = store.coordination(["acquire", "x"]);
        let ended = output(acquire.stdout(writer));
        assert_eq!(ended.status.code(), Some(71), "{}", stderr(&ended));
        assert!(wait_until(LONG, || is_unknown(store, "x")));
    });
}

/// The holder gives up while the handle is printed: nobody who was told 0 is without the lock.
#[test]
fn whoever_is_told_that_it_is_held_holds_it() {
    rerun_if_starved(|| {
        let store = Store::file();
        let (mut reader, mut writer) = io::pipe().expect("descriptors are free");
        // There is no room for the handle yet.
        fcntl_setfl(&writer, OFlags::NONBLOCK).expect("it is ours");
        while let Ok(1..) = writer.write(&[b'x'; 4096]) {}
        fcntl_setfl(&writer, OFlags::empty()).expect("it is ours");
        let mut acquire = store.coordination(["acquire", "x"]);
        let mut front = Wrapper(acquire.stdout(writer).spawn().expect("it was built"));
        // So that the pipe has no other writer.
        drop(acquire);
        let id = front.0.id();
        let mut holder = String::new();
        let has_left_the_job = || {
            let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children"));
            holder = children.unwrap_or_default().trim().to_owned();
            let stat = std::fs::read_to_string(format!("/proc/{holder}/stat")).unwrap_or_default();
            let fields = stat.rsplit_once(") ").map_or("", |(_, fields)| fields);
            !holder.is_empty() && fields.split(' ').nth(3) == Some(&*holder)
        };
        assert!(wait_until(LONG, has_left_the_job));
        // By then it has told the handle, too, where it was not kept from that.
        std::thread::sleep(Duration::from_millis(500));
        kill(&holder, Signal::STOP);
        fcntl_setfl(&reader, OFlags::NONBLOCK).expect("it is ours");
        let mut said = Vec::new();
        let mut is_printed = || {
            let _ = reader.read_to_end(&mut said);
            said.ends_with(b"\n")
        };
        if !wait_until(Duration::from_secs(5), &mut is_printed) {
            kill(&holder, Signal::CONT);
        }
        assert!(wait_until(LONG, is_printed));
        // It has the time to end, which it should not.
        let _ = wait_until(Duration::from_secs(1), || !front.is_running());
        kill(&holder, Signal::TERM);
        kill(&holder, Signal::CONT);
        match front.code() {
            // The holder has read the word before it saw the signal.
            Some(0) => {
                let said = String::from_utf8_lossy(&said);
                let handle = said.trim_end().trim_start_matches('x');
                assert_eq!(release(handle), (Some(0), String::new()));
            }
            code => assert_eq!(code, Some(71)),
        }
        assert!(wait_until(LONG, || is_unknown(&store, "x")));
    });
}

/// Whoever reads the handle may take its time.
#[test]
fn what_is_lost_before_the_handle_is_printed_is_not_told_to_be_held() {
    rerun_if_starved(|| {
        let store = Store::file();
        let (mut reader, mut writer) = io::pipe().expect("descriptors are free");
        fcntl_setfl(&writer, OFlags::NONBLOCK).expect("it is ours");
        while let Ok(1..) = writer.write(&[b'x'; 4096]) {}
        fcntl_setfl(&writer, OFlags::empty()).expect("it is ours");
        let mut acquire = store.coordination(["acquire", "x"]);
        let mut front = Wrapper(acquire.stdout(writer).spawn().expect("it was built"));
        // So that the pipe has no other writer.
        drop(acquire);
        assert!(wait_until(LONG, || !is_unknown(&store, "x")));
        let broken = output(&mut store.coordination(["break", "x", "--yes"]));
        assert_eq!(broken.status.code(), Some(0), "{}", stderr(&broken));
        // It learns of that with its next heartbeat, and nobody else can see that.
        assert!(
            !wait_until(Duration::from_secs(3), || !front.is_running()) || front.code() == Some(70)
        );
        let mut said = Vec::new();
        reader.read_to_end(&mut said).expect("it is a pipe");
        // With 70 it was lost before there was a handle.
        assert!([Some(71), Some(70)].contains(&front.code()));
        assert!(wait_until(LONG, || is_unknown(&store, "x")));
    });
}

#[test]
fn a_loss_is_told_by_a_signal_and_by_the_release() {
    everywhere(|store| {
        let (handle, lost) = (store.path("handle"), store.path("lost"));
        let text = format!(
            "trap 'echo lost > {}' USR1\nh=$(\"$c\" acquire x --on-lost usr1) || exit\necho \"$h\" > {}\n\
             while ! [ -e {} ]; do sleep 0.01; done\n\"$c\" release \"$h\"\n",
            lost.display(),
            handle.display(),
            lost.display()
        );
        let mut script = Wrapper::start(&mut script(store, "sh", &text));
        written(&handle);
        let broken = output(&mut store.coordination(["break", "x", "--yes"]));
        assert_eq!(broken.status.code(), Some(0), "{}", stderr(&broken));
        assert_eq!(written(&lost), "lost\n");
        assert_eq!(script.code(), Some(70));
        assert_eq!(store.run("--lock x --wait 30 -- true").status.code(), Some(0));
    });
}

#[test]
fn a_hold_ends_when_its_time_is_over_and_the_release_says_so() {
    everywhere(|store| {
        let handle = acquired(store, "x --max-hold 100ms");
        assert_eq!(store.run("--lock x --wait 30 -- true").status.code(), Some(0));
        let (code, said) = release(&handle);
        assert_eq!(code, Some(70), "{said}");
        assert!(said.contains("--max-hold"), "{said}");
        assert_eq!(release(&handle).0, Some(1));
    });
}

#[test]
fn the_end_of_the_holder_is_a_loss() {
    let check = |store: &Store| {
        let handle = acquired(store, "x");
        let holder = holder_of(&handle);
        kill(&holder, Signal::KILL);
        assert!(wait_until(LONG, || !is_alive(&holder)));
        let (code, said) = release(&handle);
        assert_eq!(code, Some(70), "{said}");
        assert_eq!(store.run("--lock x --wait 30 -- true").status.code(), Some(0));
        std::fs::remove_file(&handle).expect("it is left");
    };
    rerun_if_starved(|| check(&Store::file()));
    rerun_if_starved(|| {
        let server = Etcd::one();
        // With a lease that ends soon.
        let url = format!("etcd://{}/cli?ttl=3s&heartbeat=500ms", server.node(0).address());
        check(&Store::at(url));
    });
}

/// When a service is stopped, all of its processes are sent SIGTERM, and its script may still write.
#[test]
fn no_signal_that_is_sent_to_all_takes_the_lock_from_a_script_that_lives() {
    everywhere(|store| {
        let handle = acquired(store, "x");
        let holder = holder_of(&handle);
        for signal in [Signal::TERM, Signal::HUP, Signal::INT, Signal::QUIT, Signal::USR1] {
            kill(&holder, signal);
        }
        assert!(!is_free(store, "x"));
        // Whoever was ended by a signal would have ended within this time.
        assert!(!wait_until(std::time::Duration::from_secs(1), || !is_alive(&holder)));
        assert_eq!(release(&handle), (Some(0), String::new()));
        assert!(is_free(store, "x"));
    });
}

/// What was held is not known to be free: that is not the same as a loss.
#[test]
fn a_release_that_the_store_does_not_confirm_is_69() {
    rerun_if_starved(|| {
        let server = Etcd::one();
        // With a lease that does not end before the release is asked for.
        let url = format!("etcd://{}/cli?ttl=10s&heartbeat=500ms", server.node(0).address());
        let store = Store::at(url);
        let handle = acquired(&store, "x");
        server.node(0).pause();
        let (code, said) = release(&handle);
        server.node(0).resume();
        assert_eq!(code, Some(69), "{said}");
        assert_eq!(store.run("--lock x --wait 30 -- true").status.code(), Some(0));
    });
}

/// `$XDG_RUNTIME_DIR` goes with the user's last login, and what was started there may go on.
#[test]
fn a_handle_whose_file_was_removed_is_not_told_to_be_free() {
    rerun_if_starved(|| {
        let store = Store::file();
        let handle = acquired(&store, "x");
        std::fs::remove_file(&handle).expect("it is there");
        let (code, said) = release(&handle);
        assert_eq!(code, Some(69), "{said}");
        assert!(said.contains(&format!("kill -KILL {}", holder_of(&handle))), "{said}");
        assert!(!is_free(&store, "x"));
        kill(&holder_of(&handle), Signal::KILL);
        assert!(wait_until(LONG, || is_free(&store, "x")));
        assert_eq!(release(&handle).0, Some(1));
    });
}

/// Until then the release tells of the loss.
#[test]
fn what_a_killed_holder_has_left_goes_when_nobody_is_there_to_ask() {
    rerun_if_starved(|| {
        let (store, runtime) =
            (Store::file(), tempfile::tempdir_in("/tmp").expect("there is room"));
        let acquired = |words: &str| {
            let mut acquire = store.coordination(["acquire"]);
            acquire.args(words.split(' ')).env("XDG_RUNTIME_DIR", runtime.path());
            let ended = output(&mut acquire);
            assert_eq!(ended.status.code(), Some(0), "{words}: {}", stderr(&ended));
            stdout(&ended).trim_end().to_owned()
        };
        let others_come_and_go = || assert_eq!(release(&acquired("z")).0, Some(0));
        let mut sleeps = Wrapper::start(Command::new("sleep").arg("600"));
        let left = acquired(&format!("x --for-pid {}", sleeps.0.id()));
        let lives = acquired("y");
        kill(&holder_of(&left), Signal::KILL);
        assert!(wait_until(LONG, || !is_alive(&holder_of(&left))));
        others_come_and_go();
        assert_eq!(release(&left).0, Some(70));
        sleeps.signal(Signal::KILL);
        sleeps.code();
        others_come_and_go();
        assert!(!Path::new(&left).exists());
        assert!(!is_free(&store, "y"));
        assert_eq!(release(&lives), (Some(0), String::new()));
        let files = std::fs::read_dir(runtime.path().join("coordination")).expect("it is there");
        assert_eq!(files.count(), 0);
    });
}

/// Nobody else would let go of it.
#[test]
fn who_waits_for_what_is_held_for_the_same_process_is_told_so() {
    everywhere(|store| {
        let told = |words: &str, handle: &str| {
            let ended = acquire(store, words);
            assert_eq!(ended.status.code(), Some(75), "{words}: {}", stderr(&ended));
            stderr(&ended).contains(handle)
        };
        let handle = acquired(store, "x y");
        assert!(told("y --wait 1s", &handle));
        assert!(told("y --shared --wait 1s", &handle));
        for words in ["y --wait 0", "y --wait 1s --quiet", "y --wait 1s --for-pid 1"] {
            assert!(!told(words, &handle), "{words}");
        }
        assert_eq!(release(&handle).0, Some(0));
        // One who shares does not wait for another.
        let handles = [acquired(store, "x --shared"), acquired(store, "x --shared --wait 30s")];
        for handle in handles {
            assert_eq!(release(&handle).0, Some(0));
        }
    });
}

/// What is left open by whoever has started it, as a lock of the kernel's or the end of a pipe, is not the holder's.
#[test]
fn the_holder_keeps_nothing_open_and_no_signal_of_the_job_reaches_it() {
    rerun_if_starved(|| {
        let store = Store::file();
        let text = "exec 7> \"$1\"\nflock -n 7 || exit 9\n\"$c\" acquire x --for-pid \"$2\"\nkill -INT 0\n";
        let (lock, us) = (store.path("flock"), std::process::id().to_string());
        let mut command = script(&store, "sh", text);
        // The end of the job's signal is for the job.
        std::os::unix::process::CommandExt::process_group(command.arg(&lock).arg(us), 0);
        let ended = output(&mut command);
        assert_eq!(code(ended.status), Some(130), "{}", stderr(&ended));
        let handle = stdout(&ended).trim_end().to_owned();
        let holder = holder_of(&handle);
        let place = std::fs::read_link(format!("/proc/{holder}/cwd"));
        assert_eq!(place.expect("it lives"), Path::new("/"));
        // No signal but SIGKILL ends it by now: the job is told by the numbers of group and session.
        let stat = std::fs::read_to_string(format!("/proc/{holder}/stat")).expect("it lives");
        let (_, fields) = stat.rsplit_once(") ").expect("it has a name");
        let job: Vec<_> = fields.split(' ').skip(2).take(2).collect();
        assert_eq!(job, [holder.as_str(), holder.as_str()]);
        let free = output(Command::new("flock").arg("-n").arg(&lock).arg("true"));
        assert_eq!(free.status.code(), Some(0));
        assert!(!is_free(&store, "x"));
        assert_eq!(release(&handle), (Some(0), String::new()));
    });
}

#[test]
fn what_is_held_around_is_refused_and_what_is_wrong_is_64() {
    rerun_if_starved(|| {
        let store = Store::file();
        let within = format!("#!/bin/sh\n{} acquire x\n", env!("CARGO_BIN_EXE_coordination"));
        let within = store.script("within", &within);
        let refused = store.run(&format!("--lock x -- {within}"));
        assert_eq!(refused.status.code(), Some(75), "{}", stderr(&refused));
        for (words, said) in [
            ("x --for-pid 2147483647", "no process"),
            ("x --wait soon", "`forever`"),
            ("x --url ftp://h", "ftp"),
        ] {
            let refused = acquire(&store, words);
            assert_eq!(refused.status.code(), Some(64), "{words}: {}", stderr(&refused));
            assert!(stderr(&refused).contains(said), "{words}: {}", stderr(&refused));
        }
        let by_descriptor = acquire(&store, "x --config /dev/fd/63");
        assert_eq!(by_descriptor.status.code(), Some(64));
        assert!(stderr(&by_descriptor).contains("inherits"), "{}", stderr(&by_descriptor));
        // Root may send a signal to anybody.
        if !rustix::process::geteuid().is_root() {
            let refused = acquire(&store, "x --for-pid 1 --on-lost term");
            assert_eq!(refused.status.code(), Some(64), "{}", stderr(&refused));
            assert!(stderr(&refused).contains("--on-lost"), "{}", stderr(&refused));
        }
        // That there can be no handle is told before the wait.
        let (held, runtime) =
            (acquired(&store, "x"), tempfile::tempdir_in("/tmp").expect("there is room"));
        std::fs::write(runtime.path().join("coordination"), "").expect("there is room");
        let mut waits = store.coordination(["acquire", "x", "--wait", "1s"]);
        let refused = output(waits.env("XDG_RUNTIME_DIR", runtime.path()));
        assert_eq!(refused.status.code(), Some(71), "{}", stderr(&refused));
        assert!(stderr(&refused).contains("XDG_RUNTIME_DIR"), "{}", stderr(&refused));
        assert_eq!(release(&held).0, Some(0));
        for none in ["/etc/passwd", "/"] {
            let (code, said) = release(none);
            assert_eq!(code, Some(64), "{said}");
        }
        // It ends with us, and the lock would be let go of before the script's next line.
        let words = ["60", env!("CARGO_BIN_EXE_coordination"), "acquire", "x"];
        let mut passing = Command::new("timeout");
        let refused = output(passing.args(words).env("COORDINATION_URL", &store.url));
        assert_eq!(refused.status.code(), Some(64), "{}", stderr(&refused));
        assert!(stderr(&refused).contains("`timeout`"), "{}", stderr(&refused));
        // Whoever has taken its place of a shell that was killed may live for ever.
        let mut orphan = Command::new("setsid");
        orphan.args(["-w", env!("CARGO_BIN_EXE_coordination"), "acquire", "x"]);
        let refused = output(orphan.env("COORDINATION_URL", &store.url));
        assert_eq!(refused.status.code(), Some(64), "{}", stderr(&refused));
        assert!(stderr(&refused).contains("--for-pid"), "{}", stderr(&refused));
        assert!(is_free(&store, "x"));
    });
}
