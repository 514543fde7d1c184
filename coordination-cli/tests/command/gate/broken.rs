//! `break` of a holder that is not told, on etcd, where wrappers note their commands under a lock, and on Redis, where they do not. The soak
//! sees each way not to be told on each store.

use coordination_tests::harness::{Etcd, Redis, rerun_if_starved};

use crate::broken::{holder_goes_on, holder_stands_still, nobody_goes_on, on_one_host};

#[test]
fn etcd_holder_goes_on() {
    rerun_if_starved(holder_goes_on::<Etcd>);
}

#[test]
fn redis_holder_stands_still() {
    rerun_if_starved(holder_stands_still::<Redis>);
}

#[test]
fn file() {
    rerun_if_starved(|| on_one_host(1));
    rerun_if_starved(nobody_goes_on);
}
