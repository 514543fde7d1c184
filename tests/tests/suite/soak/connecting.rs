//! F-67: twenty-four threads that connect and stop as fast as they can.

use std::time::Duration;

use coordination_tests::bounds::CROWD;
use coordination_tests::checks::Backend;
use coordination_tests::faults::Site;
use coordination_tests::harness::{Connecting, wait_until};

use crate::WORKER;

pub(crate) fn f67_all_connect(backend: Backend) {
    let site = Site::start(backend, 1, WORKER);
    let enough = if backend == Backend::File { 7_200 } else { 480 };
    let connecting = Connecting::start(&site.url, Duration::ZERO);
    let is_over = || connecting.count() >= enough || connecting.has_failed();
    assert!(wait_until(CROWD, is_over), "{} have connected", connecting.count());
}

coordination_tests::each_store!(processes f67_all_connect);
