//! Fault row F-44: a thousand waiters on one lock, on every store.
//!
//! These tests are apart from the other rows, and run one at a time, because each of them keeps the whole machine busy.

use std::time::Duration;

use coordination_tests::checks::Backend;
use coordination_tests::faults::{Site, many};

use crate::WORKER;

/// So long that no client loses its session, or reconnects because of a late heartbeat, while a thousand acquires
/// keep two cores busy.
const LEASE: Duration = Duration::from_secs(60);

pub(crate) fn f44_one_process(backend: Backend) {
    crowd(backend, 1, 1_000);
}

pub(crate) fn f44_twenty_processes(backend: Backend) {
    crowd(backend, 20, 50);
}

fn crowd(backend: Backend, processes: usize, tasks: usize) {
    let mut site = Site::start(backend, 1, WORKER).with_heartbeat(LEASE / 6);
    if site.has_server() {
        site = site.with_ttl(LEASE);
    }
    let served = many::crowd(&site, processes, tasks);
    println!("F-44 {}, {processes} × {tasks}: {served:?}", site.name());
    if site.has_server() {
        let requests = site.server().request_counts();
        println!("F-44 {}, {processes} × {tasks}: {requests:?}", site.name());
    }
    assert_eq!(site.entries(), [""; 0]);
}

coordination_tests::each_store!(alone processes f44_one_process f44_twenty_processes);
