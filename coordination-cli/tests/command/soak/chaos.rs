//! H4: a minute of faults on each store.

use std::time::Duration;

use coordination_tests::harness::rerun_alone;

use crate::chaos::on_each_store;

on_each_store!(rerun_alone, Duration::from_secs(60));
