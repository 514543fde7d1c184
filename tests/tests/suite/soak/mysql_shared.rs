//! The tests of this folder that are the same on several stores, on MariaDB. On all other stores they are in parts of the soak that
//! do not need MariaDB.

use coordination_tests::checks::Backend;
use coordination_tests::harness::{rerun_alone, rerun_if_starved};

use super::{limiter_storm, pauses, rates, work_model, work_size};

#[test]
fn storm() {
    rerun_alone(|| limiter_storm::storm(Backend::Mysql));
}

#[test]
fn paused_clients_are_never_wrong() {
    rerun_if_starved(|| pauses::paused_clients_are_never_wrong(Backend::Mysql));
}

#[test]
fn t5_saturated() {
    rerun_if_starved(|| rates::t5_saturated(Backend::Mysql));
}

#[test]
fn c1_two_thousand_random_calls() {
    rerun_if_starved(|| work_model::c1_two_thousand_random_calls(Backend::Mysql));
}

#[test]
fn c8_what_is_in_front_costs_a_claim_little() {
    rerun_alone(|| work_size::c8_what_is_in_front_costs_a_claim_little(Backend::Mysql));
}
