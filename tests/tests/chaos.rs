//! Chaos, for as long as a test may take; `cargo run --bin chaos` goes on for longer.
//!
//! `COORDINATION_TEST_SEED` chooses other faults than usual.

use std::{path::PathBuf, time::Duration};

use coordination_tests::chaos::{Chaos, Store, Summary, run::default_keep};
use coordination_tests::checks::tools::given_seed;

fn survives(store: Store, seconds: u64) -> Summary {
    let chaos = Chaos {
        store,
        length: Duration::from_secs(seconds),
        seed: given_seed().unwrap_or(1),
        clients: 5,
        keep: default_keep(),
        program: PathBuf::from(env!("CARGO_BIN_EXE_chaos")),
    };
    let outcome = chaos.run();
    println!("{}", outcome.summary);
    assert!(outcome.failures.is_empty(), "{}", outcome.failures.join("\n"));
    outcome.summary
}

#[test]
fn file() {
    let summary = survives(Store::FILE, 40);
    assert!(summary.grants >= 2_000, "too little happened");
    assert!(summary.faults() >= 12 && summary.faults.len() >= 8, "too little was broken");
}

/// Contract 4.4.
#[cfg(feature = "etcd")]
#[test]
fn etcd() {
    let summary = survives(Store::ETCD3, 90);
    assert!(summary.grants >= 2_000, "too little happened");
    assert!(summary.faults() >= 30 && summary.faults.len() >= 12, "too little was broken");
}

/// The same.
#[cfg(feature = "redis")]
#[test]
fn redis() {
    let summary = survives(Store::REDIS, 90);
    assert!(summary.grants >= 2_000, "too little happened");
    assert!(summary.faults() >= 30 && summary.faults.len() >= 12, "too little was broken");
}

/// The same.
#[cfg(feature = "consul")]
#[test]
fn consul() {
    let summary = survives(Store::CONSUL, 90);
/// Contract 4.4.
#[cfg(feature = "zookeeper")]
#[test]
fn zookeeper() {
    let summary = survives(Store::ZOOKEEPER3, 90);
    assert!(summary.grants >= 2_000, "too little happened");
    assert!(summary.faults() >= 30 && summary.faults.len() >= 12, "too little was broken");
}
