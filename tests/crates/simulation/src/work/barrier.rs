//! A barrier. The run checks that a waiter returns only if the barrier was open.

use std::sync::Arc;
use std::time::Duration;

use coordination::simulation::moment;
use coordination::{Barrier, ErrorKind};
use coordination_history::NEVER;
use rand::RngExt;

use super::within;
use crate::stage::{Process, Stage, lock};

/// All calls of this run that open or close the barrier. From them follows whether a waiter may return.
#[derive(Default)]
pub(crate) struct Ledger {
    changes: Vec<Change>,
}

/// A call that opens or closes the barrier.
#[derive(Debug)]
struct Change {
    opens: bool,
    call: u64,
    /// When the call returned; [`NEVER`] if it is unknown whether the call has taken effect, and when.
    end: u64,
}

impl Ledger {
    /// Whether the barrier was certainly open (or closed, if `open` is false) from `call` to `end`. For this, a call
    /// that opened (or closed) it must have returned before `call`, and no call that may have undone this may overlap
    /// the time since then.
    fn was(&self, open: bool, call: u64, end: u64) -> bool {
        let last = self.changes.iter().filter(|change| change.opens == open && change.end < call);
        let Some(last) = last.max_by_key(|change| change.call) else { return false };
        let undoes = |change: &&Change| {
            change.opens != open && change.call <= end && change.end >= last.call
        };
        !self.changes.iter().any(|change| undoes(&change))
    }
}

fn barrier(process: &Process) -> Barrier {
    process.coordinator.barrier("barrier").expect("the name is one")
}

/// Closes the barrier, opens it, reads its state, or waits at it.
pub(crate) async fn act(stage: &Arc<Stage>, process: &Arc<Process>) {
    let barrier = barrier(process);
    match stage.draw(|random| random.random_range(0..8)) {
        0 => change(stage, &barrier, false).await,
        1 => change(stage, &barrier, true).await,
        2..5 => look(stage, &barrier).await,
        _ => wait(stage, &barrier).await,
    }
}

async fn change(stage: &Stage, barrier: &Barrier, opens: bool) {
    let call = moment();
    let index = {
        let mut ledger = lock(&stage.ledgers.barrier);
        ledger.changes.push(Change { opens, call, end: NEVER });
        ledger.changes.len() - 1
    };
    let outcome = if opens { barrier.open().await } else { barrier.close().await };
    match outcome {
        Ok(_) => lock(&stage.ledgers.barrier).changes[index].end = moment(),
        Err(error) => stage.failed("open or close", &error),
    }
}

async fn look(stage: &Stage, barrier: &Barrier) {
    let call = moment();
    match barrier.is_open().await {
        Ok(is_open) => judge(stage, is_open, call, "is_open"),
        Err(error) => stage.failed("is_open", &error),
    }
}

async fn wait(stage: &Stage, barrier: &Barrier) {
    let call = moment();
    let limit = stage.up_to(Duration::from_millis(200));
    match barrier.wait(Some(limit)).await {
        Ok(()) => judge(stage, true, call, "wait"),
        Err(error) if error.kind() == ErrorKind::Timeout && limit.is_zero() => {
            judge(stage, false, call, "wait");
        }
        Err(error) => stage.failed("wait", &error),
    }
}

/// BR1: checks a result that says that the barrier was open (or closed, if `is_open` is false) at some moment since
/// `call`.
fn judge(stage: &Stage, is_open: bool, call: u64, what: &str) {
    let (ledger, now) = (lock(&stage.ledgers.barrier), moment());
    if !stage.has_all_data() {
        return;
    }
    // Counts as a test of the promise only if the opposite result would have been noticed as wrong.
    if ledger.was(is_open, call, now) {
        stage.judges(if is_open { "BR1 open" } else { "BR1 closed" });
    }
    if ledger.was(!is_open, call, now) {
        let last = ledger.changes.iter().rev().take(6).collect::<Vec<_>>();
        stage.broken(format!("BR1: {what} since {call}: open is {is_open}, after {last:?}"));
    }
}

/// BR1: checks after the run that all waiters return when the barrier is opened, and none before.
pub(crate) async fn conclude(stage: &Arc<Stage>) {
    let processes = stage.processes();
    let Some(first) = processes.first() else { return };
    let closing = barrier(first);
    if let Err(error) = within(first, async move { closing.close().await }).await {
        return stage.broken(format!("L5: closing a barrier after healing: {error}"));
    }
    let mut waiting = Vec::new();
    for process in &processes {
        let barrier = barrier(process);
        waiting.push(process.client.spawn(async move { barrier.wait(None).await }));
    }
    tokio::time::sleep(Duration::from_millis(20)).await;
    if waiting.iter().any(|waiting| waiting.is_finished()) {
        stage.broken("BR1: somebody got through a closed barrier".to_owned());
    }
    let opening = barrier(first);
    if let Err(error) = within(first, async move { opening.open().await }).await {
        return stage.broken(format!("L5: opening a barrier after healing: {error}"));
    }
    for task in waiting {
        let through = tokio::time::timeout(stage.plan.recovery(), task).await;
        if !matches!(through, Ok(Ok(Ok(())))) {
            stage.broken(format!("BR1: it was opened, and somebody waits: {through:?}"));
        }
    }
}
