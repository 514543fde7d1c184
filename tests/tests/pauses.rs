//! The pause study on etcd, as far as there is time for it here; `--bin pauses` does more.
#![cfg(feature = "etcd")]

use std::time::Duration;

use coordination_tests::checks::tools::seed;
use coordination_tests::faults::{Site, pauses::Study};
use coordination_tests::harness::Etcd;

#[test]
fn paused_clients_are_never_wrong() {
    let etcd = Etcd::one();
    let site = Site::etcd(&etcd.authority(), Duration::from_secs(2), env!("CARGO_BIN_EXE_worker"));
    let seed = seed("pauses");
    let figures = Study { count: 60, processes: 20, seed }.run(&site);
    println!("pauses: {figures}");
    assert!(figures.wrong.is_empty(), "{figures}; --seed {seed}");
    assert_eq!(figures.stops, 60);
    assert!(
        figures.losses > 0 && figures.kept > 0,
        "the pauses are too short or too long: {figures}"
    );
}
