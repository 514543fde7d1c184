//! H4: ten seconds of faults on each store; the soak has minutes of them.

use std::time::Duration;

use coordination_tests::harness::rerun_if_starved;

use crate::chaos::on_each_store;

on_each_store!(rerun_if_starved, Duration::from_secs(10));
