//! The systemd units of docs/cli.md, started and stopped by a stand-in that sends what systemd sends.

use std::collections::BTreeSet;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::ExitStatus;
use std::thread::sleep;
use std::time::{Duration, Instant};

use coordination_tests::harness::{Etcd, rerun_if_starved, wait_until};
use rustix::process::{Pid, Signal, kill_process};

use crate::{LONG, Store, Wrapper, is_alive, written};

/// How often each unit is started and stopped.
const TIMES: u64 = 100;
/// How long the store is away. Who is started a few times in it is started no more often in an hour.
const OUTAGE: Duration = Duration::from_secs(20);
/// The signals of which a service may die and has not failed for systemd.
const CLEAN: [Signal; 4] = [Signal::HUP, Signal::INT, Signal::TERM, Signal::PIPE];

/// What systemd reads of a unit, as far as it matters here.
struct Unit {
    /// The words after the program's name.
    words: Vec<String>,
    /// Codes besides 0 that are no failure.
    success: Vec<i32>,
    /// Whether it is started again a second after each of its ends, for ever.
    is_kept: bool,
}

impl Unit {
    /// Those of the page.
    fn all() -> Vec<Self> {
        let page = include_str!("../../../../docs/cli.md");
        let blocks = page.split("```ini\n").skip(1);
        blocks.filter_map(|block| Self::read(block.split("```").next()?)).collect()
    }

    fn read(text: &str) -> Option<Self> {
        let value = |key: &str| text.lines().find_map(|line| line.strip_prefix(key));
        let words = value("ExecStart=/usr/local/bin/coordination ")?;
        let success = value("SuccessExitStatus=").unwrap_or_default();
        let success = success.split_whitespace().map(|code| code.parse().expect("a code"));
        let is_said = |setting: &&str| text.lines().any(|line| line == *setting);
        let kept = ["StartLimitIntervalSec=0", "Restart=always", "RestartSec=1"];
        Some(Self {
            words: words.split(' ').map(str::to_owned).collect(),
            success: success.collect(),
            is_kept: kept.iter().all(is_said),
        })
    }

    /// With this command in the place of the page's.
    fn start(&self, store: &Store, command: &str) -> Wrapper {
        let (last, words) = self.words.split_last().expect("a command");
        assert!(last.starts_with("/usr/local/bin/"), "{last}");
        let mut words = words.to_vec();
        words.retain(|word| word != "--leader");
        words.push(command.to_owned());
        Wrapper::start(&mut store.coordination(words))
    }

    /// Waits until the command runs. Where the lock may still be another's lease, the unit is started again, as its timer does.
    fn runs(&self, store: &Store, command: &str, wrapper: &mut Wrapper, started: &Path) {
        let runs = wait_until(LONG, || {
            if !wrapper.is_running() {
                assert!(self.is_clean(wrapper.status()));
                *wrapper = self.start(store, command);
            }
            std::fs::read_to_string(started).is_ok_and(|text| text.ends_with('\n'))
        });
        assert!(runs, "nothing was written to {}", started.display());
    }

    /// Whether systemd takes it for no failure.
    fn is_clean(&self, status: ExitStatus) -> bool {
        let signal = status.signal().and_then(Signal::from_named_raw);
        signal.is_some_and(|signal| CLEAN.contains(&signal))
            || status.code().is_some_and(|code| code == 0 || self.success.contains(&code))
    }
}

/// All in the control group: the wrapper and what descends from it.
fn control_group(wrapper: &Wrapper) -> BTreeSet<u32> {
    let mut all = BTreeSet::from([wrapper.0.id()]);
    loop {
        let before = all.len();
        for entry in std::fs::read_dir("/proc").expect("Linux").flatten() {
            let Some(id) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
            let parent = stat.rsplit_once(") ").and_then(|(_, fields)| fields.split(' ').nth(1));
            if parent.and_then(|parent| parent.parse().ok()).is_some_and(|id| all.contains(&id)) {
                all.insert(id);
            }
        }
        if all.len() == before {
            return all;
        }
    }
}

/// As `systemctl stop` does, with the default of `KillMode`: SIGTERM to all there are and to whoever comes meanwhile, and SIGCONT.
fn stop(wrapper: &Wrapper, in_turn: bool) -> BTreeSet<u32> {
    let mut told = BTreeSet::new();
    loop {
        let mut new: Vec<u32> = control_group(wrapper).difference(&told).copied().collect();
        if new.is_empty() {
            return told;
        }
        if in_turn {
            new.reverse();
        }
        for id in new {
            let pid = i32::try_from(id).ok().and_then(Pid::from_raw).expect("a process id");
            for signal in [Signal::TERM, Signal::CONT] {
                // It may have ended by now.
                let _ = kill_process(pid, signal);
            }
            told.insert(id);
        }
    }
}

/// Each time at another moment: before it runs, as it begins, when its command runs, and where another host has the lock.
fn again_and_again(store: &Store, unit: &Unit, name: &str) {
    let started = store.path(&format!("{name}-started"));
    let text = format!("#!/bin/sh\nsleep 60 &\necho $$ > {}\nwait\n", started.display());
    let command = store.script(&format!("{name}-command"), &text);
    for time in 0..TIMES {
        let _ = std::fs::remove_file(&started);
        let mut wrapper = unit.start(store, &command);
        match time % 4 {
            0 => sleep(Duration::from_millis(time / 4)),
            1 => sleep(Duration::from_millis(3 * time)),
            _ => unit.runs(store, &command, &mut wrapper, &started),
        }
        // Another host's, which is busy, or a candidate.
        let mut other = (time % 4 == 3).then(|| unit.start(store, &command));
        if other.is_some() {
            sleep(Duration::from_millis(100));
        }
        for wrapper in other.iter_mut().chain([&mut wrapper]) {
            let all = stop(wrapper, time % 2 == 0);
            let status = wrapper.status();
            assert!(unit.is_clean(status), "{name}, {time}: {status}");
            let left = || all.iter().filter(|id| is_alive(&id.to_string())).count();
            assert!(wait_until(LONG, || left() == 0), "{name}, {time}: {} of {all:?}", left());
        }
        if let Ok(id) = std::fs::read_to_string(&started) {
            assert!(id.is_empty() || !is_alive(&id), "{name}, {time}: the command goes on");
        }
    }
    // What is left keeps nobody waiting.
    assert!(wait_until(LONG, || unit.start(store, "true").status().code() == Some(0)), "{name}");
}

#[test]
fn units_start_and_stop_a_hundred_times() {
    let units = Unit::all();
    assert_eq!(units.len(), 2, "the page has others: say here how they are stopped");
    for (number, unit) in units.iter().enumerate() {
        let name = format!("unit-{number}");
        rerun_if_starved(|| again_and_again(&Store::file(), unit, &name));
        rerun_if_starved(|| {
            let server = Etcd::one();
            let store = Store::at(format!("etcd://{}/units", server.node(0).address()));
            again_and_again(&store, unit, &name);
        });
    }
}

/// The daemon is stopped when the store is away for longer than the lease, and runs again when the store is back.
#[test]
fn the_leaders_unit_outlives_an_outage() {
    let mut units = Unit::all().into_iter();
    let unit = units.find(|unit| unit.words[0] == "elect").expect("the page has it");
    assert!(unit.is_kept, "systemd gives it up");
    rerun_if_starved(|| {
        let server = Etcd::one();
        let store = Store::at(format!("etcd://{}/units?ttl=3s", server.node(0).address()));
        let started = store.path("started");
        let text = format!("#!/bin/sh\necho $$ > {}\nexec sleep 600\n", started.display());
        let command = store.script("command", &text);
        let mut wrapper = unit.start(&store, &command);
        let id = written(&started);
        std::fs::remove_file(&started).expect("it was written");
        let mut starts = 0;
        let mut keep = || {
            if !wrapper.is_running() {
                sleep(Duration::from_secs(1));
                wrapper = unit.start(&store, &command);
                starts += 1;
            }
        };
        server.node(0).kill();
        let begun = Instant::now();
        while begun.elapsed() < OUTAGE {
            keep();
            sleep(Duration::from_millis(10));
        }
        assert!(!is_alive(&id), "it goes on without the leadership");
        server.node(0).restart();
        server.wait_ready();
        let runs = wait_until(LONG, || {
            keep();
            started.exists()
        });
        assert!(runs && wrapper.is_running());
        assert!(starts <= 3, "started {starts} times");
    });
}
