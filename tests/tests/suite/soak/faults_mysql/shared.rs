//! Rows that stand in the soak's `crowd`, `connecting` and `shortage` for all other stores: those parts of the soak need no
//! MariaDB.

use coordination_tests::checks::Backend;
use coordination_tests::harness::{judged, judged_alone};

use super::super::{connecting, crowd, shortage};

#[test]
fn f44_one_process() {
    judged_alone(|| crowd::f44_one_process(Backend::Mysql));
}

#[test]
fn f44_twenty_processes() {
    judged_alone(|| crowd::f44_twenty_processes(Backend::Mysql));
}

#[test]
fn f64_held_over_a_shortage() {
    judged(|| shortage::f64_held_over_a_shortage(Backend::Mysql));
}

#[test]
fn f67_all_connect() {
    judged(|| connecting::f67_all_connect(Backend::Mysql));
}
