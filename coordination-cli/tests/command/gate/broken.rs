//! `break` of a holder that is not told: once for each way not to be told, on etcd, where wrappers note their commands under a lock, and
//! on Redis, where they do not.

use coordination_tests::harness::{Etcd, Redis, rerun_if_starved};

use crate::broken::{
    holder_goes_on, holder_has_ended, holder_is_cut_off, holder_stands_still, next_is_hasty,
    on_one_host,
};

/// A holder of each kind that was told is seen so often.
const ROUNDS: usize = 2;

#[test]
fn etcd_holder_stands_still() {
    rerun_if_starved(holder_stands_still::<Etcd>);
}

#[test]
fn etcd_holder_is_cut_off() {
    rerun_if_starved(holder_is_cut_off::<Etcd>);
}

#[test]
fn etcd_holder_goes_on() {
    rerun_if_starved(holder_goes_on::<Etcd>);
}

#[test]
fn etcd_holder_has_ended() {
    rerun_if_starved(holder_has_ended::<Etcd>);
}

#[test]
fn etcd_next_is_hasty() {
    rerun_if_starved(next_is_hasty::<Etcd>);
}

#[test]
fn redis_holder_stands_still() {
    rerun_if_starved(holder_stands_still::<Redis>);
}

#[test]
fn redis_holder_is_cut_off() {
    rerun_if_starved(holder_is_cut_off::<Redis>);
}

#[test]
fn redis_holder_goes_on() {
    rerun_if_starved(holder_goes_on::<Redis>);
}

#[test]
fn file() {
    rerun_if_starved(|| on_one_host(ROUNDS));
}
