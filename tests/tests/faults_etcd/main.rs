//! The fault matrix on `etcd://`: a test for each row, or the reason why there is none.
//!
//! Leases are of two seconds and heartbeats 300 ms apart, unless a row needs longer ones.
#![cfg(feature = "etcd")]

mod connecting;
mod cuts;
mod dropped;
mod network;
mod operator;
mod pauses;
mod server;
mod silent;

use std::sync::LazyLock;
use std::time::Duration;

use coordination_tests::{
    checks::Programs,
    faults::{Site, crash, crash::since, guards, identity, matrix},
    harness::{Etcd, Pulse, log::now_ns},
};

const WORKER: &str = env!("CARGO_BIN_EXE_worker");
const PROGRAMS: Programs = Programs { worker: WORKER, forker: env!("CARGO_BIN_EXE_forker") };
/// The lease.
const TTL: Duration = Duration::from_secs(2);
/// Longer than anything that a row waits for.
const LONG: Duration = Duration::from_secs(30);
/// Contract T2 and T3: how soon a loss is told.
const AT_ONCE: Duration = Duration::from_millis(50);

/// Beats from the first server on.
static PULSE: LazyLock<Pulse> = LazyLock::new(Pulse::start);

/// Rows without a test here, and why.
const NOT_APPLICABLE: &[(u32, &str)] = &[
    (35, "there is no lock file; F-23 deletes the key"),
    (37, "there is no directory; a role without the permission is in F-48"),
    (38, "there is no file system"),
    (40, "needs `fork`: the check of contract C9, which runs on every backend"),
];

#[test]
fn every_row_has_a_test_or_a_reason() {
    let sources = [
        include_str!("main.rs"),
        include_str!("../crowd.rs"),
        include_str!("connecting.rs"),
        include_str!("cuts.rs"),
        include_str!("dropped.rs"),
        include_str!("network.rs"),
        include_str!("operator.rs"),
        include_str!("pauses.rs"),
        include_str!("server.rs"),
        include_str!("silent.rs"),
    ];
    matrix::assert_complete(&sources, NOT_APPLICABLE);
}

/// One node or three, and the site there.
fn cluster(nodes: usize) -> (Etcd, Site) {
    cluster_with(nodes, TTL)
}

fn cluster_with(nodes: usize, ttl: Duration) -> (Etcd, Site) {
    LazyLock::force(&PULSE);
    let etcd = Etcd::options().nodes(nodes).start();
    let site = Site::etcd(&etcd.authority(), ttl, WORKER);
    (etcd, site)
}

/// A loss that could be known from then on was told at once, apart from what the machine withheld.
fn assert_told(from_ns: u64, told_ns: u64) -> Duration {
    let (told, withheld) = (since(from_ns, told_ns), PULSE.allowance(from_ns, now_ns()));
    assert!(told <= AT_ONCE + withheld, "told only after {told:?}, {withheld:?} allowed for");
    told
}

/// The keys of contenders.
fn contenders(etcd: &Etcd) -> Vec<String> {
    etcd.keys("coordination/lock/")
}

#[test]
fn f01_holder_killed() {
    let (etcd, site) = cluster(1);
    println!("F-1 etcd: free after {:?}", crash::holder_killed(&site));
    assert_eq!(contenders(&etcd), [""; 0]);
}

#[test]
fn f01_holder_killed_of_three() {
    let (etcd, site) = cluster(3);
    println!("F-1 etcd ×3: free after {:?}", crash::holder_killed(&site));
    assert_eq!(contenders(&etcd), [""; 0]);
}

#[test]
fn f02_waiters_killed() {
    let (_etcd, site) = cluster(1);
    println!("F-2 etcd: both served after {:?}", crash::waiters_killed(&site));
}

#[tokio::test(flavor = "multi_thread")]
async fn f39_children_spawned_while_held() {
    let (_etcd, site) = cluster(1);
    guards::spawned_children(&site, 1_000).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn f42_release_after_loss() {
    let (_etcd, site) = cluster(1);
    guards::release_after_loss(&site).await;
}

#[test]
fn f43_exit_with_a_guard() {
    let (_etcd, site) = cluster(1);
    println!("F-43 etcd: free {:?} after the exit", crash::holder_exits(&site));
}

#[test]
fn f43_runtime_dropped() {
    let (_etcd, site) = cluster(1);
    guards::runtime_dropped(&site);
}

#[test]
fn f43_tied_runtime_dropped() {
    let (_etcd, site) = cluster(1);
    guards::tied_runtime_dropped(&site);
}

#[test]
fn f46_odd_names() {
    let (etcd, site) = cluster(1);
    identity::odd_names_are_distinct(&site);
    assert!(contenders(&etcd).len() == identity::odd_names().len());
}

#[test]
fn f51_member_exists() {
    let (_etcd, site) = cluster(1);
    println!("F-51 etcd: id free {:?} after a death", identity::member_exists(&site));
}
