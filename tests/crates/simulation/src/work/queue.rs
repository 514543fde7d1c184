//! A work queue, whose items are claimed, acknowledged and given back.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use coordination::simulation::nanos;
use coordination::{
    Ack, ClaimOptions, ErrorKind, FencingToken, ItemId, NewItem, WorkClaim, WorkQueue,
};
use rand::RngExt;

use super::{becomes, within};
use crate::stage::{Process, Stage, lock};

/// How many claims a task makes in one action.
const ROUNDS: usize = 3;

#[derive(Default)]
pub(crate) struct Ledger {
    /// One handle for each process: a program should not have more, and the simulation does as a program should.
    queues: BTreeMap<u32, WorkQueue>,
    items: BTreeMap<ItemId, Item>,
    /// The claims that clients hold at present.
    live: Vec<Live>,
    highest: Option<FencingToken>,
}

/// What the run knows of an item.
#[derive(Default)]
struct Item {
    /// Whether its post was confirmed.
    is_posted: bool,
    /// The largest token of a claim that got the item.
    highest: Option<FencingToken>,
    /// When a call returned that acknowledged the item; `None` if no call has.
    done: Option<u64>,
    /// How many calls have tried to acknowledge the item and have no known result yet.
    open: usize,
}

/// A claim that a client holds.
struct Live {
    process: Arc<Process>,
    claim: Arc<WorkClaim>,
    since: u64,
    /// The items of the claim that the client has neither acknowledged nor given back.
    items: BTreeSet<ItemId>,
}

fn queue(stage: &Stage, process: &Process) -> WorkQueue {
    let made = || process.coordinator.queue("queue").expect("the name is one");
    lock(&stage.ledgers.queue).queues.entry(process.number).or_insert_with(made).clone()
}

/// Posts some items, and then makes a few claims. Of the items of a claim it acknowledges some and gives back others.
pub(crate) async fn act(stage: &Arc<Stage>, process: &Arc<Process>) {
    let queue = queue(stage, process);
    if stage.draw(|random| random.random_ratio(1, 2)) {
        let count = stage.draw(|random| random.random_range(1..=4));
        let items: Vec<_> = (0..count).map(|_| NewItem::new("job")).collect();
        match queue.post(&items).await {
            Ok(ids) => {
                let mut ledger = lock(&stage.ledgers.queue);
                ids.iter().for_each(|id| ledger.items.entry(*id).or_default().is_posted = true);
            }
            Err(error) => stage.failed("post", &error),
        }
    }
    for _ in 0..ROUNDS {
        if stage.is_over() || !claim_some(stage, process, &queue).await {
            return;
        }
    }
}

/// Makes one claim and works on its items. Returns false if there was nothing to claim.
async fn claim_some(stage: &Arc<Stage>, process: &Arc<Process>, queue: &WorkQueue) -> bool {
    let limit = stage.draw(|random| random.random_range(1..=4));
    let ttl = [20, 40, 150, 2_000][stage.draw(|random| random.random_range(0..4))];
    let options = ClaimOptions::default().limit(limit).ttl(Duration::from_millis(ttl));
    let (call, highest) = (nanos(), lock(&stage.ledgers.queue).highest);
    let mut claim = match queue.claim(options).await {
        Ok(Some(claim)) => claim,
        Ok(None) => return false,
        Err(error) => {
            stage.failed("claim", &error);
            return false;
        }
    };
    if stage.draw(|random| random.random_ratio(1, 3)) {
        claim.keep_alive();
    }
    let claim = Arc::new(claim);
    begin(stage, process, &claim, call, highest);
    if stage.draw(|random| random.random()) {
        // Some workers sleep so long that their claim may end, and that other workers claim its items.
        tokio::time::sleep(stage.up_to(Duration::from_millis(2 * ttl.min(150)))).await;
    }
    for item in claim.items() {
        tokio::time::sleep(stage.up_to(stage.plan.hold)).await;
        let chosen = stage.draw(|random| random.random_range(0..6));
        if chosen > 0 {
            let mut ledger = lock(&stage.ledgers.queue);
            let own = ledger.live.iter_mut().find(|live| Arc::ptr_eq(&live.claim, &claim));
            own.map(|own| own.items.remove(&item.id()));
        }
        match chosen {
            0 => {}
            1 => match claim.nack(item.id(), Duration::from_millis(10)).await {
                Err(error) if !is_refusal(error.kind()) => stage.failed("nack", &error),
                _ => {}
            },
            _ => acknowledge(stage, &claim, item.id()).await,
        }
    }
    let is_it = |live: &Live| Arc::ptr_eq(&live.claim, &claim);
    lock(&stage.ledgers.queue).live.retain(|live| !is_it(live));
    true
}

/// WK1: checks a new claim. No other client may believe that it has one of the claim's items, and the claim's token has
/// to be larger than the tokens of earlier claims.
fn begin(
    stage: &Stage,
    process: &Arc<Process>,
    claim: &Arc<WorkClaim>,
    call: u64,
    highest: Option<FencingToken>,
) {
    let mut ledger = lock(&stage.ledgers.queue);
    if stage.has_all_data() && Some(claim.token()) <= highest {
        stage.broken(format!("WK1: {claim:?} after token {highest:?}"));
    }
    let living: Vec<_> = stage.processes().iter().map(|process| process.number).collect();
    ledger.live.retain(|live| living.contains(&live.process.number));
    for item in claim.items() {
        let known = ledger.items.entry(item.id()).or_default();
        let is_done = known.done.is_some_and(|done| done < call);
        known.highest = known.highest.max(Some(claim.token()));
        if is_done && stage.has_all_data() {
            stage.broken(format!("WK3: {} is handed out after it was acknowledged", item.id()));
        }
        for other in ledger.live.iter().filter(|other| stage.is_sound(other.since)) {
            if !other.items.contains(&item.id()) {
                continue;
            }
            stage.judges("WK1");
            // `is_held` of the other claim is called within the process of that claim, so that it uses that process's
            // clock. If the reply to the call of the new claim arrived late, the new claim may be over already. In this
            // case the items may belong to the other claim, so `is_held` of the new claim is called too.
            if claim.is_held() && other.process.client.enter(|| other.claim.is_held()) {
                stage.broken(format!("WK1: {} has two claims that are held", item.id()));
            }
        }
    }
    ledger.highest = ledger.highest.max(Some(claim.token()));
    let items = claim.items().iter().map(coordination::WorkItem::id).collect();
    let (process, claim) = (Arc::clone(process), Arc::clone(claim));
    ledger.live.push(Live { process, claim, since: call, items });
}

/// WK2 and WK3: acknowledges an item, and checks the result: only the claim that has the item can acknowledge it, and
/// only once, and no item disappears for another reason.
async fn acknowledge(stage: &Stage, claim: &WorkClaim, id: ItemId) {
    let taken = {
        let mut ledger = lock(&stage.ledgers.queue);
        let item = ledger.items.entry(id).or_default();
        item.open += 1;
        // Whether a later claim had got the item before this call began. If it had, this call must not succeed.
        item.highest > Some(claim.token())
    };
    let answer = claim.ack(id).await;
    let mut ledger = lock(&stage.ledgers.queue);
    let item = ledger.items.entry(id).or_default();
    let is_known = match &answer {
        Ok(_) => true,
        Err(error) => is_refusal(error.kind()),
    };
    if is_known {
        item.open -= 1;
    }
    match answer {
        _ if !stage.has_all_data() => {}
        Ok(Ack::Done) => {
            stage.judges("WK3");
            if item.done.is_some() {
                stage.broken(format!("WK3: {id} is acknowledged twice"));
            }
            if taken {
                stage.broken(format!("WK3: {id} is acknowledged by a claim that is over"));
            }
            item.done = Some(nanos());
        }
        Ok(Ack::AlreadyGone) if item.done.is_none() && item.open == 0 => {
            stage.broken(format!("WK2: {id} is gone, and nobody has acknowledged it"));
        }
        Err(error) if !is_refusal(error.kind()) => stage.failed("ack", &error),
        Ok(_) | Err(_) => {}
    }
}

/// Whether the error means that the claim is over, or does not have the item any more. In both cases the call changed
/// nothing.
fn is_refusal(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::NoSuchClaim | ErrorKind::NotClaimed | ErrorKind::NotClaimedBy)
}

/// WK2 and WK4: checks after the run that all items that are left can be claimed and acknowledged, whatever happened to
/// earlier claims, and that no item is lost.
pub(crate) async fn conclude(stage: &Arc<Stage>) {
    let Some(process) = stage.processes().first().cloned() else { return };
    lock(&stage.ledgers.queue).live.clear();
    let queue = queue(stage, &process);
    finished(stage, &process, &queue).await;
    drop(queue);
    // When the last handle of a process is dropped, the library also removes the entry that the process has for its
    // claims.
    let mut queues = std::mem::take(&mut lock(&stage.ledgers.queue).queues);
    for process in stage.processes() {
        process.client.enter(|| drop(queues.remove(&process.number)));
    }
}

async fn finished(stage: &Arc<Stage>, process: &Arc<Process>, queue: &WorkQueue) {
    let left = becomes(stage, async || {
        let (stage, queue) = (Arc::clone(stage), queue.clone());
        within(process, async move { finish(&stage, &queue).await }).await
    });
    if let Some(left) = left.await {
        return stage.broken(format!("WK4: {left}"));
    }
    if !stage.has_all_data() {
        return;
    }
    for (id, item) in &lock(&stage.ledgers.queue).items {
        stage.judges("WK2");
        if item.is_posted && item.done.is_none() && item.open == 0 {
            stage.broken(format!("WK2: {id} is lost"));
        }
    }
}

/// Claims and acknowledges all items that can be claimed. Returns a description of the items that are left, if there
/// are any.
async fn finish(stage: &Stage, queue: &WorkQueue) -> Option<String> {
    loop {
        match queue.claim(ClaimOptions::default().limit(100)).await {
            Ok(Some(claim)) => {
                for item in claim.items() {
                    acknowledge(stage, &claim, item.id()).await;
                }
            }
            Ok(None) => break,
            Err(error) => return Some(error.to_string()),
        }
    }
    match queue.stats().await {
        Ok(stats) if stats.total() == 0 => None,
        stats => Some(format!("{stats:?}")),
    }
}
