//! A double barrier. The run checks that parties enter together and leave together.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use coordination::simulation::moment;
use coordination::{DoubleBarrier, FencingToken, Inside};
use coordination_history::NEVER;
use rand::RngExt;
use tokio::task::JoinHandle;

use super::within;
use crate::stage::{Process, Stage, lock};

const NAME: &str = "phase";
const PARTIES: u32 = 2;

#[derive(Default)]
pub(crate) struct Ledger {
    /// For each party, by a unique number: when it called `enter`, and until when its entry may exist.
    came: BTreeMap<u64, (u64, u64)>,
    /// The parties that are inside at present, by the tokens of their guards.
    inside: BTreeMap<FencingToken, Guest>,
    /// For each round, by the number of its last entry: how many parties were let in with it.
    rounds: BTreeMap<u64, u32>,
}

struct Guest {
    process: Arc<Process>,
    inside: Arc<Inside>,
    since: u64,
    /// The number of the last entry of its round; `None` if that is not known.
    round: Option<u64>,
}

fn barrier(process: &Process) -> DoubleBarrier {
    process.coordinator.double_barrier(NAME, PARTIES).expect("the name is one")
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
    let since = moment();
    let round = judge_round(stage, &inside, since);
    let guest = Guest { process: Arc::clone(process), inside, since, round };
    lock(&stage.ledgers.double_barrier).inside.insert(token, guest);
    tokio::time::sleep(stage.up_to(stage.plan.hold)).await;
    // From here on, this party may leave at any moment, so it no longer counts as being inside. But its entry may
    // exist until the store has confirmed the leave. So the time in `came` is set only after that.
    let Some(guest) = lock(&stage.ledgers.double_barrier).inside.remove(&token) else { return };
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
            judge_out(stage, token, round, since);
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

/// BR2: checks that a party that was let in just now is in a round of the store, which is not for more parties than the barrier needs.
/// Returns the number of that round's last entry; `None` if the party may have lost its place already.
fn judge_round(stage: &Stage, inside: &Inside, since: u64) -> Option<u64> {
    // Only as long as the place is held, its entry exists for certain, and so the store keeps the round.
    if !inside.is_held() || !stage.is_sound(since) {
        return None;
    }
    let token = inside.token();
    let stored = stage.world.value("double-barrier", NAME).unwrap_or_default();
    let Some(round) = last_entries(&stored).find(|last| token.value() <= *last) else {
        stage.broken(format!("BR2: {token} was let in, and is in no round of the store: {stored}"));
        return None;
    };
    let mut ledger = lock(&stage.ledgers.double_barrier);
    let parties = ledger.rounds.entry(round).or_default();
    *parties += 1;
    if *parties > PARTIES {
        stage.broken(format!("BR2: {parties} parties are in the round that ends with {round}"));
    }
    Some(round)
}

/// The numbers of the last entries of the rounds that the store keeps, in order. It is the store that tells them, so that a mistake of the
/// library about which round a party is in is noticed.
fn last_entries(stored: &str) -> impl Iterator<Item = u64> {
    let (_, through) = stored.split_once("\"through\":[").unwrap_or_default();
    let (through, _) = through.split_once(']').unwrap_or_default();
    through.split(',').filter_map(|last| last.parse().ok())
}

/// BR2: checks, when a party has left, that all parties of its round have left too, those that came before it and those that came after
/// it. Parties of other rounds may still be in.
fn judge_out(stage: &Stage, token: FencingToken, round: Option<u64>, since: u64) {
    let ledger = lock(&stage.ledgers.double_barrier);
    let Some(parties) = round.and_then(|round| ledger.rounds.get(&round)) else { return };
    // Counts as a test of the promise only if the others of the round were let in, too.
    if *parties == PARTIES {
        stage.judges("BR2 out");
    }
    let is_in = |guest: &Guest| {
        let client = &guest.process.client;
        let is_held = !client.is_dead() && client.enter(|| guest.inside.is_held());
        is_held && stage.is_sound(guest.since) && stage.is_sound(since)
    };
    let mut of_round = ledger.inside.iter().filter(|(_, guest)| guest.round == round);
    if let Some((other, guest)) = of_round.find(|(_, guest)| is_in(guest)) {
        stage.broken(format!("BR2: {token} is out, and {other} is in: {:?}", guest.inside));
    }
}

/// Checks after the run that rounds still succeed: enough parties come, get in and get out. One party of a first round stays
/// inside meanwhile, and is not waited for by those of the second round.
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
    let enter = |barrier: DoubleBarrier| async move { barrier.enter(None).await };
    let Some(inside) = together(stage, &processes, enter).await else { return };
    let mut inside = processes.iter().cycle().zip(inside);
    let Some((process, stays)) = inside.next() else { return };
    for (process, goes) in inside {
        // Dropping it leaves without waiting.
        within(process, async move { drop(goes) }).await;
    }
    let pass = |barrier: DoubleBarrier| async move { barrier.enter(None).await?.leave(None).await };
    if together(stage, &processes, pass).await.is_some() {
        let leaving = process.client.spawn(async move { stays.leave(None).await });
        returned(stage, leaving).await;
    }
}

/// Runs a call for each of as many parties as the barrier needs, in one process after the other, and returns what the calls return;
/// `None` if one did not succeed.
async fn together<T, F>(
    stage: &Stage,
    processes: &[Arc<Process>],
    call: impl Fn(DoubleBarrier) -> F,
) -> Option<Vec<T>>
where
    T: fmt::Debug + Send + 'static,
    F: Future<Output = coordination::Result<T>> + Send + 'static,
{
    let begin = |process: &Arc<Process>| process.client.spawn(call(barrier(process)));
    let calls: Vec<_> = processes.iter().cycle().take(PARTIES as usize).map(begin).collect();
    let mut results = Vec::new();
    for call in calls {
        results.push(returned(stage, call).await?);
    }
    Some(results)
}

/// Waits for a call of a party that has nobody to wait for. If it does not succeed in time, reports that and returns `None`.
async fn returned<T: fmt::Debug>(
    stage: &Stage,
    call: JoinHandle<coordination::Result<T>>,
) -> Option<T> {
    match tokio::time::timeout(stage.plan.recovery(), call).await {
        Ok(Ok(Ok(result))) => Some(result),
        through => {
            stage.broken(format!("BR2: all have come or left, and one says {through:?}"));
            None
        }
    }
}
