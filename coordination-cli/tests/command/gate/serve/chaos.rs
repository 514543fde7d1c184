//! H4: ten seconds of faults on each store; the soak has minutes of them.

use std::time::Duration;

use coordination_tests::harness::rerun_if_starved;

use crate::chaos::{Place, run};

const SHORT: Duration = Duration::from_secs(10);

#[test]
fn h4_nobody_overlaps_while_instances_die_on_a_directory() {
    rerun_if_starved(|| run(Place::Directory, SHORT));
}

#[test]
fn h4_nobody_overlaps_while_instances_and_etcd_die() {
    rerun_if_starved(|| run(Place::etcd(), SHORT));
}

#[test]
fn h4_nobody_overlaps_while_instances_and_redis_die() {
    rerun_if_starved(|| run(Place::redis(), SHORT));
}
