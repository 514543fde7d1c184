//! Wrappers on one host that are killed: the lock ends after the command, and nothing is left.

use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread::{scope, sleep};
use std::time::Duration;

use coordination_tests::harness::wait_until;
use rustix::process::Signal;

use super::{LONG, Store, Wrapper};

/// How many wait for the lock, or have it.
const CROWD: usize = 4;

/// A process that is always busy; killed when dropped.
pub(crate) struct Busy(Child);

impl Busy {
    pub(crate) fn start() -> Self {
        let mut busy = Command::new("sh");
        Self(busy.args(["-c", "while :; do :; done"]).spawn().expect("a shell"))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Kills the one who has the lock, so many times for each of so many locks, and after every second time one who is about to
/// start.
pub(crate) fn kills(locks: u32, each: u32) {
    scope(|scope| {
        let all: Vec<_> =
            (0..locks).map(|lock| scope.spawn(move || of_one_lock(lock, each))).collect();
        all.into_iter().for_each(|one| one.join().expect("no overlap, and nothing left"));
    });
}

fn of_one_lock(lock: u32, kills: u32) {
    let store = Store::file();
    let alive = store.path("alive");
    let (mut output, input) = std::io::pipe().expect("a pipe");
    let mut number = 0;
    let mut start = || {
        number += 1;
        let started = store.path(&format!("started-{number}"));
        // As long as any of it lives it has a lock of the kernel's; 99 is an overlap.
        let text = format!(
            "#!/bin/sh\nexec flock -n -E 99 {} sh -c 'sleep 600 & sleep 600 & echo > {}; exec sleep 600'\n",
            alive.display(),
            started.display()
        );
        let command = store.script(&format!("command-{number}"), &text);
        let mut coordination = store.coordination(["run", "--lock", "x", "--", &command]);
        // All that a wrapper starts has this open until it ends.
        coordination.stdout(Stdio::from(input.try_clone().expect("a descriptor")));
        (Wrapper(coordination.spawn().expect("it was built")), started)
    };
    let mut crowd = Vec::new();
    for kill in 0..kills {
        while crowd.len() < CROWD {
            crowd.push(start());
        }
        if kill % 2 == 1 {
            // Somewhere between its first instruction and its place in the queue.
            let (mut newcomer, _) = start();
            sleep(moment(lock, kill, 20));
            newcomer.signal(Signal::KILL);
            newcomer.status();
        }
        let mut holder = None;
        assert!(
            wait_until(LONG, || {
                for (waiting, _) in &mut crowd {
                    assert!(
                        waiting.is_running(),
                        "kill {kill}: {:?}; 99 is an overlap",
                        waiting.code()
                    );
                }
                holder = crowd.iter().position(|(_, started)| started.exists());
                holder.is_some()
            }),
            "kill {kill}: nobody follows"
        );
        let (mut holder, _) = crowd.remove(holder.expect("just seen"));
        sleep(moment(lock, kill, 30));
        holder.signal(Signal::KILL);
        holder.status();
    }
    // The wrappers first: a watch that is the only one to know has a second to look.
    drop(crowd);
    drop(input);
    let (ended, end) = mpsc::channel();
    std::thread::spawn(move || {
        let _ = output.read_to_end(&mut Vec::new());
        let _ = ended.send(());
    });
    assert!(end.recv_timeout(LONG).is_ok(), "a command lives");
}

/// A moment within so many milliseconds, another one for each.
fn moment(lock: u32, kill: u32, within: u64) -> Duration {
    let scattered = u64::from(lock * 7_919 + kill).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    Duration::from_micros(scattered % (within * 1_000))
}
