//! The tests of four fault rows on MariaDB. For all other stores, the tests of these rows are in the soak's modules
//! `crowd`, `connecting` and `shortage`, and in the gate's module `panics`. The parts of the soak that run these modules, and the
//! gate, do not need MariaDB.

use std::time::Duration;

use coordination_tests::checks::Backend;
use coordination_tests::faults::Site;
use coordination_tests::harness::{rerun_alone, rerun_if_starved};

use crate::WORKER;
use crate::gate::panics;
use crate::soak::{connecting, crowd, shortage};

/// The lease of clients whose poll panics.
const LEASE: Duration = Duration::from_secs(16);

#[test]
fn f44_one_process() {
    rerun_alone(|| crowd::f44_one_process(Backend::Mysql));
}

#[test]
fn f44_twenty_processes() {
    rerun_alone(|| crowd::f44_twenty_processes(Backend::Mysql));
}

#[test]
fn f64_held_over_a_shortage() {
    rerun_if_starved(|| shortage::f64_held_over_a_shortage(Backend::Mysql));
}

#[test]
fn f67_all_connect() {
    rerun_if_starved(|| connecting::f67_all_connect(Backend::Mysql));
}

#[test]
fn f70_who_tells_panics() {
    // With a short lease, waiters would soon notice by themselves that nobody is told anything.
    let site = || Site::start(Backend::Mysql, 1, WORKER).with_ttl(LEASE);
    rerun_if_starved(|| panics::who_tells_panics(&site()));
}

/// The poll goes on after a panic, without anybody who begins to wait and so starts another poll.
#[test]
fn f70_who_tells_goes_on() {
    rerun_if_starved(|| {
        let site = Site::start(Backend::Mysql, 1, WORKER).with_ttl(LEASE);
        panics::who_tells_goes_on(&site);
    });
}

#[test]
fn f70_who_connects_panics() {
    rerun_if_starved(|| panics::f70_who_connects_panics(Backend::Mysql));
}
