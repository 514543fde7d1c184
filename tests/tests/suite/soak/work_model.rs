//! The random calls of `gate/work_model.rs`: many on memory, and some on each other store.

use coordination_tests::checks::{Backend, tools::seed};
use coordination_tests::faults::Site;
use coordination_tests::harness::on_threads;
use coordination_tests::work_model::{Time, run};

use crate::WORKER;
use crate::gate::work_model::on_memory;

#[test]
fn c1_a_hundred_thousand_random_calls_on_memory() {
    on_memory(100_000);
}

pub(super) fn c1_two_thousand_random_calls(backend: Backend) {
    let site = Site::start(backend, 1, WORKER);
    let run = run(&site.url, 2_000, seed("work model"), Time::Real);
    on_threads(run).expect("the store is there");
}

coordination_tests::each_store!(processes c1_two_thousand_random_calls);
