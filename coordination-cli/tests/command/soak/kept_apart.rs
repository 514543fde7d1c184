//! A command whose lock is lost is dead before the next one starts: a hundred times out of a hundred.

use coordination_tests::harness::{Consul, Etcd, Redis, Zookeeper};

use crate::kept_apart::{
    network_is_cut, server_stands_still, session_is_revoked, wrapper_is_killed,
    wrapper_stands_still,
};

/// At a time.
const PAIRS: usize = 25;
/// As often: a hundred pairs in all.
const ROUNDS: usize = 4;
/// Where a hundred have shown how it is done.
const ONCE: usize = 1;

#[test]
fn etcd_server_stands_still() {
    server_stands_still::<Etcd>(ROUNDS, PAIRS);
}

#[test]
fn etcd_network_is_cut() {
    network_is_cut::<Etcd>(ROUNDS, PAIRS);
}

#[test]
fn etcd_session_is_revoked() {
    session_is_revoked::<Etcd>(ROUNDS, PAIRS);
}

#[test]
fn etcd_wrapper_stands_still() {
    wrapper_stands_still::<Etcd>(ROUNDS, PAIRS);
}

#[test]
fn etcd_wrapper_is_killed() {
    wrapper_is_killed::<Etcd>(ROUNDS, PAIRS);
}

#[test]
fn redis() {
    server_stands_still::<Redis>(ONCE, PAIRS);
    network_is_cut::<Redis>(ONCE, PAIRS);
    session_is_revoked::<Redis>(ROUNDS, PAIRS);
}

#[test]
fn zookeeper() {
    server_stands_still::<Zookeeper>(ONCE, PAIRS);
    network_is_cut::<Zookeeper>(ONCE, PAIRS);
    session_is_revoked::<Zookeeper>(ONCE, PAIRS);
}

#[test]
fn consul() {
    server_stands_still::<Consul>(ONCE, PAIRS);
    network_is_cut::<Consul>(ONCE, PAIRS);
    session_is_revoked::<Consul>(ONCE, PAIRS);
}
