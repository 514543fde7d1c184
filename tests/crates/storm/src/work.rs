//! Clients that post items to work queues, claim items, and acknowledge them or give them back.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use coordination::{
    Ack, ClaimOptions, Coordinator, ErrorKind, NewItem, WorkClaim, WorkItem, WorkQueue,
};
use coordination_history::{Event, Work, now};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::cancel::within_polls;
use crate::client::Client;
use crate::diary::{Attempt, Diary};
use crate::options::Options;
use crate::plan::Dice;
use crate::{Complaint, ENDING};

/// The ttl of a claim that does not end by itself.
const LONG: Duration = Duration::from_secs(60);
/// The ttl of a claim that is to end by itself.
const SHORT: Duration = Duration::from_millis(5);
/// The most items of one post, and of one claim.
const MOST_POSTED: usize = 12;
const MOST_CLAIMED: usize = 4;

/// Runs this many tasks, and returns when the storm has ended and all tasks have ended.
pub(crate) async fn storm(
    client: Client,
    coordinator: &Coordinator,
    tasks: u32,
) -> coordination::Result<()> {
    let queues: coordination::Result<Vec<_>> =
        client.targets.iter().map(|target| coordinator.queue(&target.name)).collect();
    let worker = Arc::new(Worker { client, queues: queues?, posted: AtomicU64::new(0) });
    let mut storming = JoinSet::new();
    for task in 0..tasks {
        let dice = Dice::new(worker.client.seed, worker.client.id, task);
        storming.spawn(work(Arc::clone(&worker), dice));
    }
    while let Some(ended) = storming.join_next().await {
        ended.expect("a task does not panic")?;
    }
    Ok(())
}

/// What the tasks of a client share.
struct Worker {
    client: Client,
    queues: Vec<WorkQueue>,
    /// How many items this client has posted. It makes the items' numbers unique.
    posted: AtomicU64,
}

/// An item of a claim.
struct Item<'a> {
    item: &'a WorkItem,
    number: u64,
    /// Whether the client has neither acknowledged the item nor given it back, and has not begun to do so.
    is_kept: bool,
}

async fn work(worker: Arc<Worker>, mut dice: Dice) -> coordination::Result<()> {
    while !worker.client.over.load(Ordering::Relaxed) {
        let index = dice.below(worker.queues.len());
        if !worker.claim(index, &mut dice).await? || dice.below(10) == 0 {
            worker.post(index, 1 + dice.below(MOST_POSTED)).await?;
        }
        // If all calls of a task succeed at once, the task never waits. So it yields here, so that other tasks can run.
        tokio::task::yield_now().await;
    }
    Ok(())
}

impl Worker {
    async fn post(&self, index: usize, count: usize) -> coordination::Result<()> {
        let first = self.posted.fetch_add(count as u64, Ordering::Relaxed);
        let numbers = (first..first + count as u64).map(|item| own(self.client.id, item));
        let numbers: Vec<u64> = numbers.collect();
        let attempt = self.client.diary.attempt(index);
        let call = now();
        numbers.iter().for_each(|item| note(attempt, call, *item, 0, Work::Posting));
        let items: Vec<_> =
            numbers.iter().map(|item| NewItem::new(item.to_le_bytes().to_vec())).collect();
        self.queues[index].post(&items).await?;
        numbers.iter().for_each(|item| note(attempt, call, *item, 0, Work::Posted));
        Ok(())
    }

    /// Makes one claim and works on its items. Returns false if there was nothing to claim.
    async fn claim(&self, index: usize, dice: &mut Dice) -> coordination::Result<bool> {
        let attempt = self.client.diary.attempt(index);
        let (call, ends_by_itself) = (now(), dice.below(50) == 0);
        let ttl = if ends_by_itself { SHORT } else { LONG };
        let options = ClaimOptions::default().limit(1 + dice.below(MOST_CLAIMED)).ttl(ttl);
        let claiming = self.queues[index].claim(options);
        let claimed = match dice.below(10) {
            0 => within_polls(1 + dice.below(8) as u32, claiming).await,
            _ => Some(claiming.await),
        };
        // If the caller drops its future, nothing stays claimed.
        let Some(claimed) = claimed else { return Ok(true) };
        let claim = match claimed {
            Ok(Some(claim)) => claim,
            Ok(None) => return Ok(false),
            // A claim with the short ttl may be over before its call returns.
            Err(error) if ends_by_itself && error.kind() == ErrorKind::NoSuchClaim => {
                return Ok(true);
            }
            Err(error) => return Err(error),
        };
        let token = claim.token().value();
        let items = claim.items().iter();
        let mut items: Vec<_> =
            items.map(|item| Item { item, number: number(item), is_kept: true }).collect();
        items.iter().for_each(|item| note(attempt, call, item.number, token, Work::Claimed));
        self.client.granted.fetch_add(1, Ordering::Relaxed);
        if ends_by_itself && dice.below(2) == 0 {
            sleep(2 * SHORT).await;
        } else if dice.below(20) == 0 {
            sleep(Duration::from_millis(1)).await;
        }
        for item in &mut items {
            had(&claim, attempt, item);
            match dice.below(12) {
                0 | 1 => {}
                2 => give_back(&claim, attempt, item, dice).await?,
                _ => acknowledge(&claim, attempt, item, dice).await?,
            }
        }
        items.iter().for_each(|item| had(&claim, attempt, item));
        if dice.below(2) == 0 {
            claim.release().await?;
        }
        Ok(true)
    }
}

/// Records that the claim has the item, if the claim says so.
fn had(claim: &WorkClaim, attempt: Attempt<'_>, item: &Item<'_>) {
    let before = now();
    if item.is_kept && claim.is_held() {
        note(attempt, before, item.number, claim.token().value(), Work::Had);
    }
}

async fn give_back(
    claim: &WorkClaim,
    attempt: Attempt<'_>,
    item: &mut Item<'_>,
    dice: &mut Dice,
) -> coordination::Result<()> {
    item.is_kept = false;
    let call = now();
    let delay = Duration::from_millis(dice.below(3) as u64);
    match claim.nack(item.item.id(), delay).await {
        Ok(Ack::Done) => {
            note(attempt, call, item.number, claim.token().value(), Work::GivenBack);
            Ok(())
        }
        Ok(Ack::AlreadyGone) => Ok(()),
        Err(error) => expected(claim, error),
    }
}

async fn acknowledge(
    claim: &WorkClaim,
    attempt: Attempt<'_>,
    item: &mut Item<'_>,
    dice: &mut Dice,
) -> coordination::Result<()> {
    item.is_kept = false;
    let (call, token) = (now(), claim.token().value());
    note(attempt, call, item.number, token, Work::Acking);
    let acknowledging = claim.ack(item.item.id());
    let acked = match dice.below(20) {
        0 => within_polls(1 + dice.below(4) as u32, acknowledging).await,
        _ => Some(acknowledging.await),
    };
    match acked {
        None => Ok(()),
        Some(Ok(Ack::Done)) => {
            note(attempt, call, item.number, token, Work::Acked);
            Ok(())
        }
        Some(Ok(Ack::AlreadyGone)) => {
            note(attempt, call, item.number, token, Work::Gone);
            Ok(())
        }
        Some(Err(error)) => {
            expected(claim, error)?;
            note(attempt, call, item.number, token, Work::NotAcked);
            Ok(())
        }
    }
}

/// Whether the call may have failed with this error: only because the claim was over.
fn expected(claim: &WorkClaim, error: coordination::Error) -> coordination::Result<()> {
    let is_refusal = matches!(
        error.kind(),
        ErrorKind::NoSuchClaim | ErrorKind::NotClaimed | ErrorKind::NotClaimedBy
    );
    // If the claim is held even now, it was live during the call.
    if is_refusal && !claim.is_held() { Ok(()) } else { Err(error) }
}

/// Claims and acknowledges what the storm has left in the queues, and records that they are empty.
pub(crate) async fn empty(
    coordinator: &Coordinator,
    options: &Options,
    diary: &Diary,
) -> Result<(), Complaint> {
    for (index, target) in options.targets().iter().enumerate() {
        let emptied = empty_one(coordinator, &target.name, diary, index).await;
        let left = emptied.map_err(|error| format!("{}: {error}", target.name))?;
        if left > 0 {
            return Err(format!("{} items of {} cannot be claimed", left, target.name));
        }
    }
    Ok(())
}

async fn empty_one(
    coordinator: &Coordinator,
    name: &str,
    diary: &Diary,
    index: usize,
) -> coordination::Result<u64> {
    let (queue, begun) = (coordinator.queue(name)?, Instant::now());
    loop {
        let (attempt, call) = (diary.attempt(index), now());
        if let Some(claim) = queue.claim(ClaimOptions::default().limit(100)).await? {
            let token = claim.token().value();
            for item in claim.items() {
                note(attempt, call, number(item), token, Work::Claimed);
            }
            for item in claim.items() {
                let call = now();
                note(attempt, call, number(item), token, Work::Acking);
                let acked = match claim.ack(item.id()).await? {
                    Ack::Done => Work::Acked,
                    Ack::AlreadyGone => Work::Gone,
                };
                note(attempt, call, number(item), token, acked);
            }
            continue;
        }
        let call = now();
        let left = queue.stats().await?.total();
        if left == 0 {
            note(attempt, call, 0, 0, Work::Emptied);
        }
        if left == 0 || begun.elapsed() > ENDING {
            return Ok(left);
        }
        sleep(Duration::from_millis(5)).await;
    }
}

fn note(attempt: Attempt<'_>, call: u64, item: u64, token: u64, what: Work) {
    attempt.note(Event::Work { call, item, token, what });
}

/// The number of a client's item. It begins with the client, so that no other client has it.
fn own(client: u32, item: u64) -> u64 {
    (u64::from(client) << 40) | (item + 1)
}

/// The number of an item, which is its body.
fn number(item: &WorkItem) -> u64 {
    item.body().try_into().map_or(0, u64::from_le_bytes)
}
