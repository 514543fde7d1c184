//! A double barrier. The run checks that parties enter together and leave together.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use coordination::simulation::moment;
use coordination::{DoubleBarrier, FencingToken, Inside};
use coordination_history::NEVER;
use rand::RngExt;

use super::within;
use crate::stage::{Process, Stage, lock};

const PARTIES: u32 = 2;

#[derive(Default)]
pub(crate) struct Ledger {
    /// For each party, by a unique number: when it called `enter`, and until when its entry may exist.
    came: BTreeMap<u64, (u64, u64)>,
    /// The parties that are inside at present, by the tokens of their guards.
    inside: BTreeMap<FencingToken, Guest>,
}

struct Guest {
    process: Arc<Process>,
    inside: Arc<Inside>,
    since: u64,
}

fn barrier(process: &Process) -> DoubleBarrier {
    process.coordinator.double_barrier("phase", PARTIES).expect("the name is one")
}

/// Enters the barrier, stays inside for a while, and leaves.
pub(crate) async fn act(stage: &Arc<Stage>, process: &Arc<Process>) {
    let (number, call) = (stage.number(), moment());
    lock(&stage.ledgers.double_barrier).came.insert(number, (call, NEVER));
    let timeout = stage.up_to(Duration::from_millis(300));
    let inside = match barrier(process).enter(Some(timeout)).await {
        Ok(inside) => Arc::new(inside),
        // If the call fails, its entry may still exist for a while, or may arrive at the store later. So the time in
        // `came` until which the entry may exist stays `NEVER`.
        Err(error) => return stage.failed("enter", &error),
    };
    let token = inside.token();
    judge_in(stage, number, call);
    let guest = Guest { process: Arc::clone(process), inside, since: moment() };
    lock(&stage.ledgers.double_barrier).inside.insert(token, guest);
    tokio::time::sleep(stage.up_to(stage.plan.hold)).await;
    // From here on, this party may leave at any moment, so it no longer counts as being inside. But its entry may
    // exist until the store has confirmed the leave. So the time in `came` is set only after that.
    let Some(guest) = lock(&stage.ledgers.double_barrier).inside.remove(&token) else { return };
    let since = guest.since;
    let Some(inside) = Arc::into_inner(guest.inside) else {
        return stage.broken(format!("somebody else has the guard {token}"));
    };
    if stage.draw(|random| random.random_ratio(1, 4)) {
        return drop(inside);
    }
    let leaving = Some(stage.up_to(Duration::from_millis(300)));
    match inside.leave(leaving).await {
        Ok(()) => {
            let now = moment();
            judge_out(stage, token, since);
            lock(&stage.ledgers.double_barrier).came.insert(number, (call, now));
        }
        Err(error) => stage.failed("leave", &error),
    }
}

/// BR2: checks that at some moment since `call` there were as many parties as the barrier needs, including this one.
fn judge_in(stage: &Stage, number: u64, call: u64) {
    let ledger = lock(&stage.ledgers.double_barrier);
    let others = ledger.came.iter().filter(|(of, (_, end))| **of != number && *end >= call);
    let others = others.count();
    if !stage.has_all_data() {
        return;
    }
    // Counts as a test of the promise only if there were exactly as many parties as needed: with one party less it
    // would have been wrong that this party got in.
    if others + 1 == PARTIES as usize {
        stage.judges("BR2 in");
    }
    if others + 1 < PARTIES as usize {
        stage.broken(format!("BR2: number {number} got in since {call} ns with {others} others"));
    }
}

/// BR2: checks, when a party has left, that all parties of its round and of earlier rounds have left too.
fn judge_out(stage: &Stage, token: FencingToken, since: u64) {
    stage.judges("BR2 out");
    let ledger = lock(&stage.ledgers.double_barrier);
    let is_in = |guest: &Guest| {
        let client = &guest.process.client;
        let is_held = !client.is_dead() && client.enter(|| guest.inside.is_held());
        is_held && stage.is_sound(guest.since) && stage.is_sound(since)
    };
    let before = ledger.inside.range(..token).find(|(_, guest)| is_in(guest));
    if let Some((other, guest)) = before {
        stage.broken(format!("BR2: {token} is out, and {other} is in: {:?}", guest.inside));
    }
}

/// Checks after the run that a round still succeeds: enough parties come, get in and get out.
pub(crate) async fn conclude(stage: &Arc<Stage>) {
    let processes = stage.processes();
    let Some(first) = processes.first() else { return };
    let wrong = super::becomes(stage, async || {
        let barrier = barrier(first);
        match within(first, async move { barrier.waiting().await }).await {
            Ok(0) => None,
            waiting => Some(format!("nobody waits any more, and {waiting:?} are counted")),
        }
    });
    if let Some(wrong) = wrong.await {
        return stage.broken(format!("C2: {wrong}"));
    }
    let tasks: Vec<_> = (0..PARTIES as usize)
        .map(|index| {
            let process = &processes[index % processes.len()];
            let barrier = barrier(process);
            process.client.spawn(async move { barrier.enter(None).await?.leave(None).await })
        })
        .collect();
    for task in tasks {
        let through = tokio::time::timeout(stage.plan.recovery(), task).await;
        if !matches!(through, Ok(Ok(Ok(())))) {
            stage.broken(format!("BR2: all have come, and one says {through:?}"));
        }
    }
}
