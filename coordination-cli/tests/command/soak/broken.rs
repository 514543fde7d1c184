//! `break` of a holder that is not told, on the other stores.

use coordination_tests::harness::{Consul, Postgres, Zookeeper, rerun_if_starved};

use crate::broken::{holder_is_cut_off, holder_stands_still};

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
