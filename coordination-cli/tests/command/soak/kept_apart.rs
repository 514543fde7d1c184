//! A command whose lock is lost is dead before the next one starts: a hundred times out of a hundred.

use coordination_tests::harness::{Consul, Etcd, Redis, Zookeeper, rerun_if_starved};

use crate::kept_apart::{
    lock_is_broken, network_is_cut, on_one_host_lock_is_broken, on_one_host_wrapper_stands_still,
    server_stands_still, session_is_revoked, wrapper_is_killed, wrapper_stands_still,
};

/// At a time.
const PAIRS: usize = 25;
/// As often: a hundred pairs in all.
const ROUNDS: usize = 4;
/// Where a hundred have shown how it is done.
const ONCE: usize = 1;

#[test]
fn etcd_server_stands_still() {
    rerun_if_starved(|| server_stands_still::<Etcd>(ROUNDS, PAIRS));
}

#[test]
fn etcd_network_is_cut() {
    rerun_if_starved(|| network_is_cut::<Etcd>(ROUNDS, PAIRS));
}

#[test]
fn etcd_session_is_revoked() {
    rerun_if_starved(|| session_is_revoked::<Etcd>(ROUNDS, PAIRS));
}

#[test]
fn etcd_wrapper_stands_still() {
    rerun_if_starved(|| wrapper_stands_still::<Etcd>(ROUNDS, PAIRS));
}

#[test]
fn etcd_wrapper_is_killed() {
    rerun_if_starved(|| wrapper_is_killed::<Etcd>(ROUNDS, PAIRS));
}

#[test]
fn redis() {
    rerun_if_starved(|| server_stands_still::<Redis>(ONCE, PAIRS));
    rerun_if_starved(|| network_is_cut::<Redis>(ONCE, PAIRS));
    rerun_if_starved(|| session_is_revoked::<Redis>(ROUNDS, PAIRS));
    rerun_if_starved(|| lock_is_broken::<Redis>(ROUNDS, PAIRS));
}

#[test]
fn zookeeper() {
    rerun_if_starved(|| server_stands_still::<Zookeeper>(ONCE, PAIRS));
    rerun_if_starved(|| network_is_cut::<Zookeeper>(ONCE, PAIRS));
    rerun_if_starved(|| session_is_revoked::<Zookeeper>(ONCE, PAIRS));
}

#[test]
fn consul() {
    rerun_if_starved(|| server_stands_still::<Consul>(ONCE, PAIRS));
    rerun_if_starved(|| network_is_cut::<Consul>(ONCE, PAIRS));
    rerun_if_starved(|| session_is_revoked::<Consul>(ONCE, PAIRS));
}

#[test]
fn on_one_host() {
    rerun_if_starved(|| on_one_host_lock_is_broken(100));
    rerun_if_starved(on_one_host_wrapper_stands_still);
}
