//! H4: a minute of faults on each store.

use std::time::Duration;

use coordination_tests::harness::rerun_alone;

use crate::chaos::{Place, run};

const LENGTH: Duration = Duration::from_secs(60);

#[test]
fn h4_a_minute_of_faults_on_a_directory() {
    rerun_alone(|| run(Place::Directory, LENGTH));
}

#[test]
fn h4_a_minute_of_faults_on_etcd() {
    rerun_alone(|| run(Place::etcd(), LENGTH));
}

#[test]
fn h4_a_minute_of_faults_on_redis() {
    rerun_alone(|| run(Place::redis(), LENGTH));
}
