//! Chaos for as long as a test may take; `cargo run --bin chaos` runs it for longer.
//!
//! `COORDINATION_TEST_SEED` chooses other faults.

use std::{
    panic::{catch_unwind, resume_unwind},
    path::PathBuf,
    sync::{Condvar, Mutex, PoisonError},
    time::Duration,
};

use coordination_tests::chaos::{Chaos, Store, Summary, run::default_keep};
use coordination_tests::checks::tools::given_seed;
use coordination_tests::must_hold;

/// How many servers may run at the same time, in all tests of this file. More servers would starve one another. The
/// checker would then mistake pauses that lack of processor time causes for planned pauses.
const SERVERS: usize = 3;

static RUNNING: (Mutex<usize>, Condvar) = (Mutex::new(0), Condvar::new());

fn survives(store: Store, seconds: u64) -> Summary {
    let (running, ended) = &RUNNING;
    let servers = store.nodes.max(1);
    let count = running.lock().unwrap_or_else(PoisonError::into_inner);
    let mut count = ended
        .wait_while(count, |count| *count + servers > SERVERS)
        .unwrap_or_else(PoisonError::into_inner);
    *count += servers;
    drop(count);
    let chaos = Chaos {
        store,
        length: Duration::from_secs(seconds),
        seed: given_seed().unwrap_or(1),
        clients: 5,
        keep: default_keep(),
        program: PathBuf::from(env!("CARGO_BIN_EXE_chaos")),
    };
    let outcome = catch_unwind(|| chaos.run());
    *running.lock().unwrap_or_else(PoisonError::into_inner) -= servers;
    ended.notify_all();
    let outcome = outcome.unwrap_or_else(|panic| resume_unwind(panic));
    println!("{}", outcome.summary);
    let summary = &outcome.summary;
    let is_safe = summary.broken.keys().all(|rule| rule.is_of_time()) && summary.fenced_lost() == 0;
    must_hold!(is_safe, "{}", outcome.failures.join("\n"));
    assert!(outcome.failures.is_empty(), "{}", outcome.failures.join("\n"));
    outcome.summary
}

#[test]
fn file() {
    let summary = survives(Store::FILE, 40);
    assert!(summary.grants >= 2_000, "too little happened");
    assert!(summary.faults() >= 12 && summary.faults.len() >= 8, "too little was broken");
    // Far more than before the first fault: the work queue works after faults, too.
    assert!(summary.work.2 >= 500, "too few items were acknowledged");
}

/// Runs 90 seconds of chaos, in which there must be at least 2,000 grants, and 30 faults of 12 kinds.
fn survives_ninety_seconds(store: Store) {
    let summary = survives(store, 90);
    assert!(summary.grants >= 2_000, "too little happened");
    assert!(summary.faults() >= 30 && summary.faults.len() >= 12, "too little was broken");
    assert!(summary.work.2 >= 200, "too few items were acknowledged");
}

#[cfg(feature = "etcd")]
#[test]
fn etcd() {
    survives_ninety_seconds(Store::ETCD3);
}

#[cfg(feature = "zookeeper")]
#[test]
fn zookeeper() {
    survives_ninety_seconds(Store::ZOOKEEPER3);
}

#[cfg(feature = "consul")]
#[test]
fn consul() {
    survives_ninety_seconds(Store::CONSUL3);
}

#[cfg(feature = "redis")]
#[test]
fn redis() {
    survives_ninety_seconds(Store::REDIS);
}

#[cfg(feature = "postgres")]
#[test]
fn postgres() {
    survives_ninety_seconds(Store::POSTGRES);
}

#[cfg(feature = "mysql")]
#[test]
fn mysql() {
    survives_ninety_seconds(Store::MYSQL);
}
