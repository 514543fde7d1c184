//! A command whose lock is lost is dead before the next one starts, on etcd: once for each way to lose it. And where a loss
//! is told with a heartbeat.

use coordination_tests::harness::{Etcd, Redis, rerun_if_starved};

use crate::kept_apart::{
    lock_is_broken, network_is_cut, on_one_host_lock_is_broken, server_stands_still,
    session_is_revoked, wrapper_is_killed, wrapper_stands_still,
};

const ROUNDS: usize = 1;
const PAIRS: usize = 5;

#[test]
fn few_while_the_server_stands_still() {
    rerun_if_starved(|| server_stands_still::<Etcd>(ROUNDS, PAIRS));
}

#[test]
fn few_while_the_network_is_cut() {
    rerun_if_starved(|| network_is_cut::<Etcd>(ROUNDS, PAIRS));
}

#[test]
fn few_whose_session_is_revoked() {
    rerun_if_starved(|| session_is_revoked::<Etcd>(ROUNDS, PAIRS));
}

#[test]
fn few_whose_wrapper_stands_still() {
    rerun_if_starved(|| wrapper_stands_still::<Etcd>(ROUNDS, PAIRS));
}

#[test]
fn few_whose_wrapper_is_killed() {
    rerun_if_starved(|| wrapper_is_killed::<Etcd>(ROUNDS, PAIRS));
}

#[test]
fn few_whose_lock_is_broken() {
    rerun_if_starved(|| lock_is_broken::<Redis>(ROUNDS, PAIRS));
}

#[test]
fn few_whose_lock_is_broken_on_one_host() {
    rerun_if_starved(|| on_one_host_lock_is_broken(PAIRS));
}

#[test]
fn few_whose_wrapper_is_killed_on_one_host() {
    rerun_if_starved(|| crate::killed::kills(1, 15));
}
