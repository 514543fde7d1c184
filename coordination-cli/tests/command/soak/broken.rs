//! `break` of a holder that is not told: each way not to be told, and what the next one and the operator do then.

use coordination_tests::harness::{Consul, Etcd, Postgres, Redis, Zookeeper, rerun_if_starved};

use crate::broken::{
    holder_goes_on, holder_has_ended, holder_is_cut_off, holder_stands_still, next_is_broken_too,
    next_is_hasty, on_one_host,
};

/// A holder of each kind that was told is seen so often.
const ROUNDS: usize = 10;

#[test]
fn etcd() {
    rerun_if_starved(holder_stands_still::<Etcd>);
    rerun_if_starved(holder_is_cut_off::<Etcd>);
    rerun_if_starved(holder_has_ended::<Etcd>);
    rerun_if_starved(next_is_hasty::<Etcd>);
    rerun_if_starved(next_is_broken_too::<Etcd>);
}

#[test]
fn redis() {
    rerun_if_starved(holder_is_cut_off::<Redis>);
    rerun_if_starved(holder_goes_on::<Redis>);
    rerun_if_starved(next_is_broken_too::<Redis>);
}

#[test]
fn zookeeper() {
    rerun_if_starved(holder_stands_still::<Zookeeper>);
    rerun_if_starved(holder_is_cut_off::<Zookeeper>);
}

#[test]
fn consul() {
    rerun_if_starved(holder_stands_still::<Consul>);
    rerun_if_starved(holder_is_cut_off::<Consul>);
}

#[test]
fn postgres() {
    rerun_if_starved(holder_stands_still::<Postgres>);
    rerun_if_starved(holder_is_cut_off::<Postgres>);
}

#[test]
fn file() {
    rerun_if_starved(|| on_one_host(ROUNDS));
}
