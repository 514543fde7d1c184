//! A command whose lock is lost is dead before the next one starts, on etcd: once for each way to lose it.

use coordination_tests::harness::{Etcd, judged};

use crate::kept_apart::{
    network_is_cut, server_stands_still, session_is_revoked, wrapper_is_killed,
    wrapper_stands_still,
};

const ROUNDS: usize = 1;
const PAIRS: usize = 5;

#[test]
fn few_while_the_server_stands_still() {
    judged(|| server_stands_still::<Etcd>(ROUNDS, PAIRS));
}

#[test]
fn few_while_the_network_is_cut() {
    judged(|| network_is_cut::<Etcd>(ROUNDS, PAIRS));
}

#[test]
fn few_whose_session_is_revoked() {
    judged(|| session_is_revoked::<Etcd>(ROUNDS, PAIRS));
}

#[test]
fn few_whose_wrapper_stands_still() {
    judged(|| wrapper_stands_still::<Etcd>(ROUNDS, PAIRS));
}

#[test]
fn few_whose_wrapper_is_killed() {
    judged(|| wrapper_is_killed::<Etcd>(ROUNDS, PAIRS));
}
