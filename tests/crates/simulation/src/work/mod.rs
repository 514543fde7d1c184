//! The work that the tasks of the clients do in a run.

mod barrier;
pub(crate) mod cohort;
mod double_barrier;
mod downgrade;
mod election;
mod grants;
mod group;
mod guest;
pub(crate) mod held;
mod latch;
mod once;
mod partition;
mod queue;
mod rates;
pub(crate) mod resize;
pub(crate) mod several;
mod values;
mod watch;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use coordination::simulation::nanos;
use rand::RngExt;

use crate::plan::Recipe;
use crate::stage::{Process, Stage};

/// For each recipe, a ledger of what clients did with it. The recipe's promises are checked against the ledger.
#[derive(Default)]
pub(crate) struct Ledgers {
    barrier: Mutex<barrier::Ledger>,
    cohort: Mutex<cohort::Ledger>,
    double_barrier: Mutex<double_barrier::Ledger>,
    election: Mutex<election::Ledger>,
    group: Mutex<group::Ledger>,
    latch: Mutex<latch::Ledger>,
    once: Mutex<once::Ledger>,
    partition: Mutex<partition::Ledger>,
    queue: Mutex<queue::Ledger>,
    rates: Mutex<rates::Ledger>,
    resize: Mutex<resize::Ledger>,
    watch: Mutex<watch::Ledger>,
}

/// Starts a process and its tasks.
pub(crate) async fn start(stage: &Arc<Stage>) -> Arc<Process> {
    let process = stage.start().await;
    for recipe in &stage.plan.recipes {
        follow(stage, &process, *recipe);
    }
    for _ in 0..stage.plan.tasks {
        stage.expect(&process, process.client.spawn(work(Arc::clone(stage), Arc::clone(&process))));
    }
    process
}

/// One task of a process: it performs one action after the other until the run is over.
async fn work(stage: Arc<Stage>, process: Arc<Process>) {
    while !stage.is_over() {
        let think = stage.up_to(stage.plan.think);
        if !think.is_zero() {
            tokio::time::sleep(think).await;
        }
        match stage.draw(|random| random.random_range(0..20)) {
            0..2 => values::operate(&stage, &process).await,
            2..5 => act(&stage, &process).await,
            5..7 => several::attempt(&stage, &process).await,
            7 => guest::visit(&stage, &process).await,
            8 => resize::act(&stage, &process).await,
            _ => grants::attempt(&stage, &process).await,
        }
        // If the store is within the process, its calls take no time. Without this sleep, simulated time might never
        // pass.
        if !stage.plan.traits.is_remote && stage.draw(|random| random.random_ratio(1, 10)) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

/// Starts the background task that a process runs for this recipe, if the recipe has one. Most of these tasks follow
/// the changes of something.
fn follow(stage: &Arc<Stage>, process: &Arc<Process>, recipe: Recipe) {
    let (stage, of) = (Arc::clone(stage), Arc::clone(process));
    match recipe {
        Recipe::Group => drop(process.client.spawn(group::follow(stage, of))),
        Recipe::Observe => drop(process.client.spawn(election::follow(stage, of))),
        Recipe::Watch => drop(process.client.spawn(watch::follow(stage, of))),
        Recipe::Partition => drop(process.client.spawn(partition::follow(stage, of))),
        _ => {}
    }
}

/// Performs an action with one of the recipes that this run uses.
async fn act(stage: &Arc<Stage>, process: &Arc<Process>) {
    let recipes = &stage.plan.recipes;
    match recipes[stage.draw(|random| random.random_range(0..recipes.len()))] {
        Recipe::Group => group::act(stage, process).await,
        Recipe::Partition => partition::act(stage, process).await,
        Recipe::Observe => election::act(stage, process).await,
        Recipe::Watch => values::operate(stage, process).await,
        Recipe::Barrier => barrier::act(stage, process).await,
        Recipe::DoubleBarrier => double_barrier::act(stage, process).await,
        Recipe::Latch => latch::act(stage, process).await,
        Recipe::Once => once::act(stage, process).await,
        Recipe::Rate => rates::act(stage, process).await,
        Recipe::Queue => queue::act(stage, process).await,
    }
}

/// After the faults have ended, checks for each recipe that observers and waiters reach the last state.
pub(crate) async fn conclude(stage: &Arc<Stage>) {
    // A message that was sent before the end of the faults may arrive up to this much later, so the checks begin after
    // this time.
    tokio::time::sleep(5 * stage.plan.ttl).await;
    for recipe in &stage.plan.recipes {
        match recipe {
            Recipe::Group => group::conclude(stage).await,
            Recipe::Partition => partition::conclude(stage).await,
            Recipe::Observe => election::conclude(stage).await,
            Recipe::Watch => watch::conclude(stage).await,
            Recipe::Barrier => barrier::conclude(stage).await,
            Recipe::DoubleBarrier => double_barrier::conclude(stage).await,
            Recipe::Latch => latch::conclude(stage).await,
            Recipe::Once => once::conclude(stage),
            Recipe::Rate => rates::conclude(stage),
            Recipe::Queue => queue::conclude(stage).await,
        }
    }
}

/// Repeats a check until it finds nothing wrong. Returns what is wrong if this does not happen within the time for
/// recovery.
async fn becomes(stage: &Stage, mut wrong: impl AsyncFnMut() -> Option<String>) -> Option<String> {
    let bound = nanos() + stage.plan.recovery().as_nanos() as u64;
    loop {
        let found = wrong().await?;
        if nanos() > bound {
            return Some(found);
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Runs the task within a process, so that the task uses that process's clocks.
async fn within<T: Send + 'static>(
    process: &Process,
    task: impl Future<Output = T> + Send + 'static,
) -> T {
    process.client.spawn(task).await.expect("it does not fail, and nobody kills it any more")
}
