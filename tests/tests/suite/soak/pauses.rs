//! The study of pauses, for as long as a test may take; `--bin pauses` runs longer studies.

use coordination_tests::checks::{Backend, tools::seed};
use coordination_tests::faults::{Site, pauses::Study};

use crate::WORKER;

pub(super) fn paused_clients_are_never_wrong(backend: Backend) {
    let site = Site::start(backend, 1, WORKER);
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

coordination_tests::each_store!(servers paused_clients_are_never_wrong);
