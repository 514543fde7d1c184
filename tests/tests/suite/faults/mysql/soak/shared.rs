//! The tests of three fault rows on MariaDB. For all other stores, the tests of these rows are in the soak's modules
//! `crowd`, `connecting` and `shortage`. The parts of the soak that run these modules do not need MariaDB.

use coordination_tests::checks::Backend;
use coordination_tests::harness::{rerun_alone, rerun_if_starved};

use crate::soak::{connecting, crowd, shortage};

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
