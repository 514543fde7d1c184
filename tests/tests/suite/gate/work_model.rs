//! C1 and what else is specified of single calls of a work queue: random calls, compared with a model.

use coordination_tests::checks::tools::seed;
use coordination_tests::work_model::{Time, run};

/// Makes calls on `memory://` in paused time.
pub(crate) fn on_memory(steps: usize) {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
    let runtime = runtime.expect("a runtime");
    let run = run("memory://work-model", steps, seed("work model"), Time::Paused);
    runtime.block_on(run).expect("the store is there");
}

#[test]
fn c1_random_calls_are_those_of_the_model() {
    on_memory(3_000);
}
