//! Row F-44 of the fault matrix: a thousand waiters on one lock, on every store.
//!
//! Apart from the other rows, and one test at a time: each of them keeps the whole machine busy.

use std::sync::{Mutex, MutexGuard, PoisonError};

use coordination_tests::{
    faults::{Site, many},
    harness::Scratch,
};

const WORKER: &str = env!("CARGO_BIN_EXE_worker");

/// The machine.
fn alone() -> MutexGuard<'static, ()> {
    static MACHINE: Mutex<()> = Mutex::new(());
    MACHINE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn file(processes: usize, tasks: usize) {
    let _alone = alone();
    let scratch = Scratch::new("crowd-file");
    let site = Site::file(&scratch.join("locks"), WORKER).with_default_heartbeat();
    println!("F-44 file, {processes} × {tasks}: {:?}", many::crowd(&site, processes, tasks));
}

#[test]
fn f44_file_one_process() {
    file(1, 1_000);
}

#[test]
fn f44_file_twenty_processes() {
    file(20, 50);
}

#[cfg(feature = "etcd")]
fn etcd(processes: usize, tasks: usize) {
    use std::time::Duration;

    let _alone = alone();
    let etcd = coordination_tests::harness::Etcd::one();
    // The library's own intervals: a crowd on two cores takes its time.
    let site = Site::etcd(&etcd.authority(), Duration::from_secs(10), WORKER);
    let served = many::crowd(&site.with_default_heartbeat(), processes, tasks);
    println!("F-44 etcd, {processes} × {tasks}: {served:?}");
    println!("F-44 etcd, {processes} × {tasks}: {:?}", etcd.request_counts());
    assert_eq!(etcd.keys("coordination/lock/"), [""; 0]);
}

#[cfg(feature = "etcd")]
#[test]
fn f44_etcd_one_process() {
    etcd(1, 1_000);
}

#[cfg(feature = "etcd")]
#[test]
fn f44_etcd_twenty_processes() {
    etcd(20, 50);
}
