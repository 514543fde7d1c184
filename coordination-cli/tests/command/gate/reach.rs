//! What has left the command's process group, and ends with the command all the same.
//!
//! Each row of a table is a way out, each column an end of the run. The work tells by itself: it has a lock of the kernel's for as
//! long as any of it lives, so that whoever gets that lock too early ends with a code of its own.

use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use coordination_tests::harness::{rerun_if_starved, wait_until};
use rustix::process::{Pid, Signal, geteuid};

use crate::{LONG, Store, Wrapper, is_alive, output, stderr, written};

/// The code of who finds that the work goes on.
const OVERLAP: i32 = 99;

/// How the work leaves the command's process group; `WORK` is the work.
const WAYS: [(&str, &str); 10] = [
    ("the group", "#!/bin/sh\nWORK & wait\n"),
    ("timeout", "#!/bin/sh\ntimeout 60 WORK & wait\n"),
    ("timeout, waited for", "#!/bin/sh\ntimeout 60 WORK\n"),
    ("set -m", "#!/bin/bash\nset -m\nWORK & wait\n"),
    (
        "start_new_session",
        "#!/usr/bin/env python3\nimport subprocess\nsubprocess.run(['WORK'], start_new_session=True)\n",
    ),
    ("setsid", "#!/bin/sh\nsetsid WORK & wait\n"),
    ("an orphan", "#!/bin/sh\n(setsid WORK &)\nexec sleep 600\n"),
    ("no environment", "#!/bin/sh\nenv -i setsid WORK & wait\n"),
    // As a daemon that writes its title over its environment, once it is noticed.
    (UNMARKED, "#!/bin/sh\nenv -u COORDINATION_RUN setsid -f WORK\nexec sleep 600\n"),
    // As sudo does it; its own keepers of sessions differ from host to host.
    ("another user", "#!/bin/sh\nenv -i setsid setpriv --reuid=65534 --clear-groups WORK & wait\n"),
];

const UNMARKED: &str = "an orphan without the mark";
/// How long the wrapper may take to notice an orphan.
const NOTICED: Duration = Duration::from_millis(2_500);

/// What ends the run.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Term,
    Kill,
    Break,
    /// Only the command itself has ended.
    Command,
}

const ENDS: [End; 4] = [End::Term, End::Kill, End::Break, End::Command];

/// Work that runs under a lock, and is told of by a lock of the kernel's.
struct Case {
    store: Store,
    script: String,
    alive: PathBuf,
    work: PathBuf,
    command: PathBuf,
}

impl Case {
    fn new(way: &str) -> Self {
        let store = Store::file();
        let (alive, work, command) =
            (store.path("alive"), store.path("work-started"), store.path("command-started"));
        std::fs::write(&alive, "").expect("the directory is there");
        let text = format!(
            "#!/bin/sh\nexec flock -n -E {OVERLAP} {} sh -c 'echo $$ > {}; exec sleep 600'\n",
            alive.display(),
            work.display()
        );
        let script = store.script("work", &text);
        let first = format!("echo $$ > {}", command.display());
        let text = match way.contains("python") {
            // Its parent is the command, whose number it does not need.
            true => way.to_owned(),
            false => way.replacen('\n', &format!("\n{first}\n"), 1),
        };
        let script = store.script("script", &text.replace("WORK", &script));
        // Another user is to reach it.
        for path in [store.path("."), alive.clone()] {
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o777);
            std::fs::set_permissions(path, mode).expect("ours");
        }
        Self { store, script, alive, work, command }
    }

    /// Its code tells whether the work goes on.
    fn looks(&self) -> String {
        format!("flock -n -E {OVERLAP} {} true", self.alive.display())
    }

    /// Whether the work had ended when the next one got the lock.
    fn ends_in_time(&self, end: End, after: Duration) -> bool {
        let mut wrapper = self.store.start(&format!("--quiet --lock x -- {}", self.script));
        written(&self.work);
        sleep(after);
        match end {
            End::Term => wrapper.signal(Signal::TERM),
            End::Kill => wrapper.signal(Signal::KILL),
            End::Break => {
                let broken = output(&mut self.store.coordination(["break", "x", "--yes"]));
                assert!(broken.status.success(), "{}", stderr(&broken));
            }
            End::Command => {
                let id = command_of(&wrapper);
                rustix::process::kill_process(id, Signal::KILL).expect("it runs");
            }
        }
        let next = self.store.run(&format!("--lock x --wait 60s -- {}", self.looks()));
        wrapper.status();
        assert!(matches!(next.status.code(), Some(0 | OVERLAP)), "{}", stderr(&next));
        next.status.success()
    }

    /// The same under flock(1), whose lock stays with whoever has its file open.
    fn ends_in_time_with_flock(&self, end: End) -> Option<bool> {
        let lock = self.store.path("flock");
        let mut flock = Command::new("flock");
        flock.arg(&lock).arg(&self.script).stdout(Stdio::null());
        let mut wrapper = Wrapper(flock.spawn().expect("util-linux is installed"));
        written(&self.work);
        match end {
            End::Term => wrapper.signal(Signal::TERM),
            End::Kill => wrapper.signal(Signal::KILL),
            End::Command => {
                let id = command_of(&wrapper);
                rustix::process::kill_process(id, Signal::KILL).expect("it runs");
            }
            End::Break => return None,
        }
        wrapper.status();
        let next = Command::new("flock")
            .args(["-n", "-E", "1"])
            .arg(&lock)
            .args(self.looks().split(' '))
            .status();
        Some(next.expect("util-linux is installed").code() != Some(OVERLAP))
    }
}

/// The child that is no watch.
fn command_of(wrapper: &Wrapper) -> Pid {
    let id = wrapper.0.id();
    let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children"));
    let children = children.expect("it runs");
    let is_watch = |child: &&str| {
        let words = std::fs::read_to_string(format!("/proc/{child}/cmdline")).unwrap_or_default();
        words.split('\0').nth(1) == Some("__watch")
    };
    let mut commands = children.split_whitespace().filter(|child| !is_watch(child));
    commands.next().and_then(|id| Pid::from_raw(id.parse().ok()?)).expect("it runs")
}

impl Drop for Case {
    /// What flock(1) has left.
    fn drop(&mut self) {
        for path in [&self.work, &self.command] {
            let id = std::fs::read_to_string(path).unwrap_or_default();
            let pid = id.trim().parse().ok().and_then(Pid::from_raw);
            if let Some(pid) = pid.filter(|_| is_alive(&id)) {
                let _ = rustix::process::kill_process(pid, Signal::KILL);
            }
        }
    }
}

#[test]
fn all_that_the_command_has_started_ends_before_the_lock_is_free() {
    rerun_if_starved(|| {
        let mut failed = Vec::new();
        for (name, way) in WAYS {
            if name == "another user" && !geteuid().is_root() {
                continue;
            }
            for end in ENDS {
                let after = if name == UNMARKED { NOTICED } else { Duration::ZERO };
                let ours = Case::new(way).ends_in_time(end, after);
                println!("{name}, {end:?}: {ours}");
                if !ours {
                    failed.push((name, end));
                }
            }
        }
        assert!(failed.is_empty(), "the work goes on beside the next one: {failed:?}");
    });
}

/// The yardstick: what works there is not worse here. Python closes the file that flock(1) hands on, as sudo does.
#[test]
fn flock_keeps_its_lock_as_long_as_the_work_has_its_file() {
    rerun_if_starved(|| {
        for (name, way) in WAYS.into_iter().filter(|(name, _)| *name != "another user") {
            for end in ENDS {
                let theirs = Case::new(way).ends_in_time_with_flock(end);
                println!("{name}, {end:?}: {theirs:?}");
                assert!(theirs != Some(false) || name == "start_new_session", "{name}, {end:?}");
            }
        }
    });
}

/// A name of Latin-1, for instance.
#[test]
fn a_process_whose_name_is_no_text_ends_as_well() {
    rerun_if_starved(|| {
        use std::os::unix::ffi::OsStrExt;

        let store = Store::file();
        let program = store.path(".").join(std::ffi::OsStr::from_bytes(b"caf\xe9"));
        std::fs::copy("/bin/sleep", &program).expect("there is room");
        let script =
            store.script("script", "#!/bin/sh\nsetsid \"$1\" 60 &\necho $! > \"$2\"\nexit 4\n");
        let id = store.path("id");
        let mut run = store.coordination(["run", "--lock", "x", "--", &script]);
        let ended = output(run.arg(&program).arg(&id));
        assert_eq!(ended.status.code(), Some(4), "{}", stderr(&ended));
        let id = written(&id);
        let lives = lives_by_any_name(&id);
        if lives {
            end(id.trim().parse().ok().and_then(Pid::from_raw).expect("a process id"));
        }
        assert!(!lives, "{}", stderr(&ended));
    });
}

/// [`is_alive`], also where the name is no text.
fn lives_by_any_name(id: &str) -> bool {
    let stat = std::fs::read(format!("/proc/{}/stat", id.trim())).unwrap_or_default();
    let stat = String::from_utf8_lossy(&stat).into_owned();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

#[test]
fn what_is_to_stay_says_so_and_stays() {
    rerun_if_starved(|| {
        let store = Store::file();
        let stays = store.path("stays");
        let work = store.script(
            "daemon",
            &format!("#!/bin/sh\necho $$ > {}\nexec sleep 60\n", stays.display()),
        );
        // As often as the place where the one begins and the other ends is to be met.
        for _ in 0..20 {
            let text = format!(
                "#!/bin/sh\nCOORDINATION_RUN=leave setsid -f {work} > {work}.out 2>&1\nexit 3\n"
            );
            let script = store.script("script", &text);
            let ended = store.run(&format!("--lock x -- {script}"));
            assert_eq!((ended.status.code(), stderr(&ended).as_str()), (Some(3), ""));
            let id = written(&stays);
            assert_eq!(store.run("--lock x --wait 0 -- true").status.code(), Some(0));
            sleep(Duration::from_millis(20));
            assert!(is_alive(&id), "it was ended");
            let id = id.trim().parse().ok().and_then(Pid::from_raw).expect("a process id");
            rustix::process::kill_process(id, Signal::KILL).expect("it runs");
            std::fs::remove_file(&stays).expect("it was written");
        }
    });
}

#[test]
fn what_is_ended_is_named() {
    rerun_if_starved(|| {
        let store = Store::file();
        let script = store.script("script", "#!/bin/sh\nsetsid sleep 60 &\nexit 4\n");
        let ended = store.run(&format!("--lock x -- {script}"));
        assert_eq!(ended.status.code(), Some(4));
        let said = stderr(&ended);
        assert!(said.contains("ended what the command had left running: ") && said.contains("("));
        // It is no news for who has ended the command, or wants to hear of errors only.
        let quiet = store.run(&format!("--quiet --lock x -- {script}"));
        assert_eq!((quiet.status.code(), stderr(&quiet).as_str()), (Some(4), ""));
    });
}

/// The reader at the end of a pipe, which bash does not wait for.
#[test]
fn what_ends_by_itself_soon_is_let_end() {
    rerun_if_starved(|| {
        let store = Store::file();
        let got = store.path("got");
        let text = format!(
            "#!/bin/bash\nexec > >(sleep 0.02; cat > {got}; echo >> {got})\necho all of it\n",
            got = got.display()
        );
        let script = store.script("script", &text);
        for _ in 0..5 {
            let ended = store.run(&format!("--lock x -- {script}"));
            assert_eq!((ended.status.code(), stderr(&ended).as_str()), (Some(0), ""));
            assert_eq!(std::fs::read_to_string(&got).expect("it had the time"), "all of it\n\n");
            std::fs::remove_file(&got).expect("it was written");
        }
    });
}

/// Whoever becomes the wrapper may have children; they are not the command's.
#[test]
fn children_that_the_wrapper_had_before_are_left_alone() {
    rerun_if_starved(|| {
        let store = Store::file();
        let started = store.path("started");
        let text = format!(
            "#!/bin/sh\nsleep 60 > /dev/null 2>&1 &\necho $! > {}\nexec {} run --lock x -- sh -c 'setsid sleep 60 & exit 5'\n",
            started.display(),
            env!("CARGO_BIN_EXE_coordination")
        );
        let mut script = Command::new(store.script("script", &text));
        let ended = output(script.env("COORDINATION_URL", &store.url));
        assert_eq!(ended.status.code(), Some(5), "{}", stderr(&ended));
        let id = written(&started);
        assert!(is_alive(&id), "it is not the command's");
        let id = id.trim().parse().ok().and_then(Pid::from_raw).expect("a process id");
        rustix::process::kill_process(id, Signal::KILL).expect("it runs");
    });
}

/// Needs a second user: as root there is one.
#[test]
fn what_cannot_be_ended_keeps_the_lock() {
    if !geteuid().is_root() {
        return;
    }
    rerun_if_starved(|| {
        let store = Store::file();
        let started = store.path("started");
        let text = format!("#!/bin/sh\necho $$ > {}\nexec sleep 60\n", started.display());
        let script = store.script("command", &text);
        let begin = || {
            let _ = std::fs::remove_file(&started);
            let wrapper = super::ends::as_nobody(&store, &["--kill-after", "10ms"], &script);
            let group = written(&started).trim().parse().expect("a process id");
            use std::os::unix::process::CommandExt;
            let other = Command::new("sleep").arg("60").process_group(group).spawn();
            (wrapper, Wrapper(other.expect("the group is there")))
        };
        let is_free = || super::ends::as_nobody(&store, &["--wait", "0"], "true").code() == Some(0);

        // While the wrapper lives, and when it has been told to end as well.
        let (mut wrapper, other) = begin();
        wrapper.signal(Signal::TERM);
        sleep(Duration::from_secs(2));
        assert!(wrapper.is_running() && !is_free());
        drop(other);
        assert_eq!(wrapper.code(), Some(143));
        assert!(is_free());

        let (mut wrapper, other) = begin();
        wrapper.signal(Signal::TERM);
        sleep(Duration::from_secs(2));
        wrapper.signal(Signal::TERM);
        assert_eq!(wrapper.code(), Some(143));
        assert!(!is_free());
        drop(other);
        assert!(wait_until(LONG, is_free));
    });
}

/// As nobody, something that is root's by a program of root's, without the command's environment or group, whose parent has ended.
struct Beyond {
    store: Store,
    script: String,
    other: PathBuf,
}

impl Beyond {
    fn new() -> Self {
        let store = Store::file();
        let (program, other) = (store.path("as-root"), store.path("other"));
        std::fs::copy("/usr/bin/setpriv", &program).expect("util-linux is installed");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o4755);
        std::fs::set_permissions(&program, mode).expect("ours");
        let text = format!(
            "#!/bin/sh\nenv -i {} --reuid=0 --clear-groups setsid -f sh -c 'echo $$ > {}; exec sleep 60'\nexec sleep 60\n",
            program.display(),
            other.display()
        );
        let script = store.script("command", &text);
        Self { store, script, other }
    }

    fn begin(&self) -> (Wrapper, Pid) {
        let _ = std::fs::remove_file(&self.other);
        let wrapper = super::ends::as_nobody(&self.store, &["--kill-after", "10ms"], &self.script);
        let id = written(&self.other);
        (wrapper, id.trim().parse().ok().and_then(Pid::from_raw).expect("a process id"))
    }

    /// An operator takes the lock away.
    fn breaks(&self) {
        let mut command = super::ends::nobodys(&self.store);
        let broken = output(command.args(["break", "x", "--yes"]));
        assert!(broken.status.success(), "{}", stderr(&broken));
    }

    fn is_free(&self) -> bool {
        super::ends::as_nobody(&self.store, &["--wait", "0"], "true").code() == Some(0)
    }
}

impl Drop for Beyond {
    fn drop(&mut self) {
        let id = std::fs::read_to_string(&self.other).unwrap_or_default();
        if let Some(pid) = id.trim().parse().ok().and_then(Pid::from_raw).filter(|_| is_alive(&id))
        {
            end(pid);
        }
    }
}

fn end(pid: Pid) {
    rustix::process::kill_process(pid, Signal::KILL).expect("it runs");
}

/// The watch of a run within is not what its command has left behind: it has the inner lock for as long as that is to be kept.
#[test]
fn what_cannot_be_ended_keeps_the_lock_of_a_run_within_as_well() {
    if !geteuid().is_root() {
        return;
    }
    rerun_if_starved(|| {
        let mut beyond = Beyond::new();
        let text = format!(
            "#!/bin/sh\nexec {} run --lock within --kill-after 10ms -- {}\n",
            beyond.store.path("coordination").display(),
            beyond.script
        );
        beyond.script = beyond.store.script("outer", &text);
        let (mut outer, pid) = beyond.begin();
        let said = outer.0.stderr.take().expect("a pipe");
        let mut lines = std::io::BufRead::lines(std::io::BufReader::new(said));
        let mut keeps = || {
            lines.any(|line| line.is_ok_and(|line| line.contains("processes of the command go on")))
        };
        // The inner wrapper stays with what it cannot end; then it is killed, and the outer one stays.
        outer.signal(Signal::TERM);
        assert!(keeps());
        rustix::process::kill_process(command_of(&outer), Signal::KILL).expect("it runs");
        assert!(keeps());
        let is_free = || {
            let mut run = super::ends::nobodys(&beyond.store);
            let ended = output(run.args(["run", "--lock", "within", "--wait", "0", "--", "true"]));
            ended.status.code() == Some(0)
        };
        assert!(outer.is_running() && !is_free() && !beyond.is_free());
        end(pid);
        assert!(wait_until(LONG, is_free) && wait_until(LONG, || beyond.is_free()));
        assert_eq!(outer.code(), Some(137));
    });
}

#[test]
fn what_cannot_be_ended_and_has_left_the_group_keeps_the_lock() {
    if !geteuid().is_root() {
        return;
    }
    rerun_if_starved(|| {
        let case = Beyond::new();
        // Told to end twice; and killed while it stays with what it cannot end.
        for last in [Signal::TERM, Signal::KILL] {
            let (mut wrapper, other) = case.begin();
            wrapper.signal(Signal::TERM);
            sleep(Duration::from_secs(2));
            assert!(wrapper.is_running() && !case.is_free(), "{last:?}");
            wrapper.signal(last);
            assert_eq!(wrapper.status().signal(), Some(last.as_raw()));
            // Longer than the watch looks for what it was not told of.
            sleep(Duration::from_millis(1_500));
            assert!(!case.is_free(), "{last:?}");
            end(other);
            assert!(wait_until(LONG, || case.is_free()), "{last:?}");
        }
    });
}

/// Where an operator takes the lock away, the next one waits as it does for any command before: five seconds at most.
#[test]
fn who_follows_a_broken_lock_waits_for_what_cannot_be_ended() {
    if !geteuid().is_root() {
        return;
    }
    rerun_if_starved(|| {
        let case = Beyond::new();
        let (mut wrapper, other) = case.begin();
        case.breaks();
        let mut next = super::ends::as_nobody(&case.store, &[], "true");
        sleep(Duration::from_millis(2_500));
        assert!(wrapper.is_running() && next.is_running());
        end(other);
        assert_eq!((wrapper.code(), next.code()), (Some(70), Some(0)));

        // It does not wait for ever; nor does the wrapper, whose lock is another's by then.
        let (mut wrapper, _other) = case.begin();
        case.breaks();
        let mut next = super::ends::as_nobody(&case.store, &[], "true");
        assert_eq!((next.code(), wrapper.code()), (Some(0), Some(70)));
    });
}

/// The first process of a container is given all orphans there, those of `docker exec` among them.
#[test]
fn orphans_of_whoever_enters_a_container_are_waited_for_and_not_ended() {
    if !geteuid().is_root() {
        return;
    }
    rerun_if_starved(|| {
        let store = Store::file();
        let [ran, go] = ["ran", "go"].map(|name| store.path(name));
        let text = format!(
            "#!/bin/sh\necho $$ >> {}\nwhile ! rm {} 2> /dev/null; do sleep 0.01; done\n",
            ran.display(),
            go.display()
        );
        let script = store.script("command", &text);
        let posted = output(&mut store.coordination(["post", "jobs", "one", "two", "three"]));
        assert!(posted.status.success(), "{}", stderr(&posted));
        let mut command = Command::new("unshare");
        command.args(["--pid", "--fork", "--kill-child", "--mount-proc"]);
        command.args([env!("CARGO_BIN_EXE_coordination"), "work", "jobs", "--", &script]);
        let mut container = Wrapper::start(command.env("COORDINATION_URL", &store.url));
        let has_run = |times: usize| {
            let ran = std::fs::read_to_string(&ran).unwrap_or_default();
            ran.lines().count() == times
        };
        assert!(wait_until(LONG, || has_run(1)));
        let first = child_of(container.0.id());
        let enter = |words: &str| {
            let mut entered = Command::new("nsenter");
            entered.arg(format!("--target={first}")).args(["--pid", "--mount", "sh", "-c", words]);
            assert!(entered.status().expect("util-linux is installed").success());
        };
        enter("setsid -f sleep 60");
        let strangers =
            || children_of(first).into_iter().filter(|id| name_of(*id) == "sleep").count();
        assert!(wait_until(LONG, || strangers() == 1));
        std::fs::write(&go, "").expect("the directory is there");
        assert!(wait_until(LONG, || has_run(2)));
        assert_eq!(strangers(), 1, "it was ended with a command that has not started it");
        // What ends is waited for, also while there is no command.
        for times in [2, 3] {
            enter("setsid -f sleep 0.3");
            assert!(wait_until(LONG, || strangers() == 2));
            assert!(wait_until(LONG, || strangers() == 1), "it is dead and there: {times}");
            std::fs::write(&go, "").expect("the directory is there");
            assert!(times == 3 || wait_until(LONG, || has_run(3)));
        }
        assert!(wait_until(LONG, || !go.exists()));
        enter("setsid -f sleep 0.3");
        assert!(wait_until(LONG, || strangers() == 2));
        assert!(wait_until(LONG, || strangers() == 1), "it is dead and there");
        container.signal(Signal::KILL);
        container.status();
    });
}

fn children_of(id: u32) -> Vec<u32> {
    let list = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children"));
    list.unwrap_or_default().split_whitespace().filter_map(|id| id.parse().ok()).collect()
}

fn child_of(id: u32) -> u32 {
    *children_of(id).first().expect("it has started one")
}

/// Of a process, dead or alive.
fn name_of(id: u32) -> String {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    let name = stat.split_once('(').and_then(|(_, rest)| rest.rsplit_once(')'));
    name.map(|(name, _)| name.to_owned()).unwrap_or_default()
}
