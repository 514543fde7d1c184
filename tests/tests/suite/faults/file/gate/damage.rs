//! F-35: somebody removes, replaces or truncates the files of the locks.
//!
//! The holder notices the damage with its next heartbeat, and the waiter notices it at once. Between these two
//! moments both may claim to hold the lock, and only fencing tokens protect what the lock guards.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    time::Duration,
};

use coordination_tests::must_hold;
use coordination_tests::{
    faults::{HEARTBEAT, Process, SCHEDULING, Site, crash::since},
    harness::{Scratch, log::now_ns, rerun_if_starved},
};

use super::site;

/// How soon a lock is granted that is free, whatever was before (L2).
const AGAIN: Duration = Duration::from_secs(2);
const LOCK: &str = "damaged";
const LONG: Duration = Duration::from_secs(10);

/// A lock that one process holds and another one waits for.
struct Contended {
    _scratch: Scratch,
    site: Site,
    directory: PathBuf,
    holder: Process,
    waiter: Process,
    waiting: u64,
    token: u64,
}

impl Contended {
    fn new() -> Self {
        let (scratch, site) = site();
        let (holder, waiter) = (site.process("holder"), site.process("waiter"));
        let token = holder.acquire(LOCK).token;
        holder.observe(LOCK);
        let waiting = waiter.wait_for(LOCK);
        waiter.sees_contenders(LOCK, 2);
        let directory = scratch.join("locks");
        Self { _scratch: scratch, site, directory, holder, waiter, waiting, token }
    }

    fn file(&self) -> PathBuf {
        self.directory.join("coordination/queues").join(format!("lock.{LOCK}"))
    }

    /// Asserts that a damage done at `damaged_ns` costs the holder its lock within a heartbeat interval, that the
    /// waiter gets the lock, and that the lock then works again.
    fn settles(&self, damaged_ns: u64) {
        let lost = self.holder.lost(LONG);
        let took = since(damaged_ns, lost.t_ns);
        assert!(took <= HEARTBEAT + SCHEDULING, "the loss was told only after {took:?}");
        assert!(
            ["EntryDeleted", "Revoked", "ExpiredByServer"].contains(&&*lost.reason),
            "{lost:?}"
        );
        assert!(!self.holder.is_held(LOCK));
        let mut next = self.waiter.granted(self.waiting, LONG);
        let took = since(damaged_ns, now_ns());
        assert!(took <= AGAIN + HEARTBEAT + SCHEDULING, "granted only after {took:?}");
        must_hold!(next.token > self.token, "{next:?} after {}", self.token);
        // The waiter may have been granted the lock because of what was left in the damaged files. In this case the
        // waiter's next heartbeat notices the damage, and the waiter loses the lock too.
        let settled = (HEARTBEAT + SCHEDULING).saturating_sub(since(damaged_ns, now_ns()));
        std::thread::sleep(settled);
        if !self.waiter.is_held(LOCK) {
            next = self.waiter.acquire(LOCK);
        }
        self.waiter.observe(LOCK);
        self.works(next.token);
    }

    /// Asserts that only the waiter holds the lock, and that later contenders are served in order.
    fn works(&self, token: u64) {
        let third = self.site.process("third");
        assert!(third.try_acquire(LOCK).is_none(), "granted to two");
        let waiting = third.wait_for(LOCK);
        third.sees_contenders(LOCK, 2);
        std::thread::sleep(3 * HEARTBEAT);
        self.waiter.keeps(LOCK);
        assert!(third.poll(waiting).is_none(), "granted to two");
        self.waiter.release(LOCK);
        must_hold!(third.granted(waiting, LONG).token > token);
    }
}

#[test]
fn f35_lock_file_unlinked() {
    rerun_if_starved(|| {
        let lock = Contended::new();
        let damaged_ns = now_ns();
        fs::remove_file(lock.file()).expect("it is there");
        lock.settles(damaged_ns);
    });
}

#[test]
fn f35_lock_file_replaced() {
    rerun_if_starved(|| {
        let lock = Contended::new();
        let other = lock.directory.join("other");
        File::create(&other).expect("the directory is ours");
        let damaged_ns = now_ns();
        fs::rename(other, lock.file()).expect("it can be replaced");
        lock.settles(damaged_ns);
    });
}

/// The copy has the same entries as the original file, so neither the holder nor the waiter loses its entry.
#[test]
fn f35_lock_file_replaced_by_its_copy() {
    rerun_if_starved(|| {
        let lock = Contended::new();
        let other = lock.directory.join("other");
        fs::copy(lock.file(), &other).expect("it is there");
        fs::rename(other, lock.file()).expect("it can be replaced");
        std::thread::sleep(3 * HEARTBEAT);
        lock.holder.keeps(LOCK);
        assert!(lock.waiter.poll(lock.waiting).is_none(), "granted to two");
        lock.holder.release(LOCK);
        let next = lock.waiter.granted(lock.waiting, LONG);
        lock.waiter.observe(LOCK);
        lock.works(next.token);
    });
}

/// After the lock file was replaced by its copy, an entry that is released must also go from the copy. Otherwise it
/// would block the lock for ever.
#[test]
fn f35_lock_file_replaced_by_its_copy_and_released_at_once() {
    rerun_if_starved(|| {
        let lock = Contended::new();
        let other = lock.directory.join("other");
        fs::copy(lock.file(), &other).expect("it is there");
        fs::rename(other, lock.file()).expect("it can be replaced");
        lock.holder.release(LOCK);
        let next = lock.waiter.granted(lock.waiting, LONG);
        must_hold!(next.token > lock.token);
        lock.waiter.observe(LOCK);
        lock.works(next.token);
    });
}

#[test]
fn f35_lock_file_emptied() {
    rerun_if_starved(|| cut_to(|_| 0));
}

/// The lock file is truncated within its header.
#[test]
fn f35_lock_file_cut_in_the_header() {
    rerun_if_starved(|| cut_to(|_| 40));
}

/// The lock file is truncated after its header and name, so it has no entry.
#[test]
fn f35_lock_file_cut_after_the_header() {
    rerun_if_starved(|| cut_to(|text| text.find("\n+ ").expect("there are entries") + 1));
}

/// The lock file is truncated within the holder's entry, so the waiter's entry, which comes later, is gone too.
#[test]
fn f35_lock_file_cut_in_an_entry() {
    rerun_if_starved(|| cut_to(|text| text.find("\n+ ").expect("there are entries") + 30));
}

fn cut_to(length: impl Fn(&str) -> usize) {
    let lock = Contended::new();
    let text = fs::read_to_string(lock.file()).expect("it is text");
    let file = File::options().write(true).open(lock.file()).expect("it is there");
    let damaged_ns = now_ns();
    file.set_len(length(&text) as u64).expect("it can be cut");
    lock.settles(damaged_ns);
}

#[test]
fn f35_directory_renamed() {
    rerun_if_starved(|| {
        directory_goes(|directory| {
            fs::rename(directory, directory.with_file_name("elsewhere"))
                .expect("it can be renamed");
        });
    });
}

#[test]
fn f35_directory_removed() {
    rerun_if_starved(|| {
        directory_goes(|directory| fs::remove_dir_all(directory).expect("it can be removed"))
    });
}

#[test]
fn f35_queues_renamed() {
    rerun_if_starved(|| {
        directory_goes(|directory| {
            let queues = directory.join("coordination/queues");
            fs::rename(&queues, queues.with_file_name("elsewhere")).expect("it can be renamed");
        });
    });
}

#[test]
fn f35_sessions_removed() {
    rerun_if_starved(|| {
        directory_goes(|directory| {
            fs::remove_dir_all(directory.join("coordination/sessions")).expect("it can be removed");
        });
    });
}

fn directory_goes(damage: impl Fn(&Path)) {
    let lock = Contended::new();
    let damaged_ns = now_ns();
    damage(&lock.directory);
    lock.settles(damaged_ns);
}
