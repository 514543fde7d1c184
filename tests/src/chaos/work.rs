//! Tasks that post items to a work queue, claim items, and acknowledge them or give them back.

use std::time::{Duration, Instant};

use coordination::{
    Ack, ClaimOptions, Coordinator, Effect, NewItem, Result, WorkClaim, WorkItem, WorkQueue,
};
use coordination_history::{Event, Record, Work, now};
use rand::{RngExt, rngs::StdRng};
use tokio::time::sleep;

use super::{
    client::Pen,
    fleet::Book,
    things::{NAMED, Pace, Thing, What},
};

/// The most items of one post, and of one claim.
const MOST: u64 = 6;
/// The longest time for which an item that was given back is not handed out.
const LONGEST_DELAY: Duration = Duration::from_millis(200);
/// The driver's claims have numbers from here on, so that they are apart from what it carries over.
const FIRST: u64 = 1_000_000;

/// Posts to one queue and claims from it.
pub(super) struct Worker {
    queue: WorkQueue,
    rng: StdRng,
    client: u32,
    pace: Pace,
}

/// An item of a claim.
struct Held<'a> {
    item: &'a WorkItem,
    /// Whether the worker has neither acknowledged the item nor given it back, and has not begun to do so.
    is_kept: bool,
}

impl Worker {
    /// Creates a worker for this object, if it is a work queue.
    pub(super) fn new(
        coordinator: &Coordinator,
        thing: &Thing,
        client: u32,
        rng: StdRng,
        pace: Pace,
    ) -> Option<Self> {
        let queue = (thing.what == What::Queue).then(|| coordinator.queue(thing.name))?;
        Some(Self { queue: queue.expect(NAMED), rng, client, pace })
    }

    /// Posts some items, or makes one claim and works on its items.
    pub(super) async fn turn(&mut self, pen: &Pen) {
        if self.rng.random_bool(0.3) {
            self.post(pen).await;
        } else if self.rng.random_bool(0.1) {
            self.hand_on(pen).await;
        } else if let Some((claim, call)) = self.claim().await {
            self.work(&claim, call, pen).await;
            if self.rng.random_bool(0.5) {
                // If it fails, the claim ends by itself.
                let _ = claim.release().await;
            }
        }
    }

    async fn post(&mut self, pen: &Pen) {
        let first = (u64::from(self.client) << 40) | (pen.attempt() << 3);
        let numbers: Vec<u64> = (first..).take(self.rng.random_range(1..=MOST as usize)).collect();
        let call = now();
        let note = |what| numbers.iter().for_each(|item| write(pen, call, *item, 0, what));
        note(Work::Posting);
        let items: Vec<_> =
            numbers.iter().map(|item| NewItem::new(item.to_le_bytes().to_vec())).collect();
        match self.queue.post(&items).await {
            Ok(_) => note(Work::Posted),
            Err(error) if error.effect() == Effect::None => note(Work::NotPosted),
            // The store may have the items, or may get them yet.
            Err(_) => {}
        }
    }

    async fn claim(&mut self) -> Option<(WorkClaim, u64)> {
        let ttl = match self.rng.random_range(0..10) {
            0..3 => Duration::from_millis(self.rng.random_range(50..500)),
            _ => Duration::from_secs(20),
        };
        let limit = self.rng.random_range(1..=MOST as usize);
        let options = ClaimOptions::default().limit(limit).ttl(ttl);
        let (call, cut) = (now(), self.rng.random_range(0..40));
        let claimed = match self.rng.random_range(0..10) {
            // The caller gives up. What may have been claimed is given back.
            0 => tokio::time::timeout(Duration::from_millis(cut), self.queue.claim(options)).await,
            1..4 => Ok(self.queue.claim_wait(options, Some(Duration::from_millis(300))).await),
            _ => Ok(self.queue.claim(options).await),
        };
        let mut claim = claimed.ok()?.ok()??;
        if self.rng.random_bool(0.5) {
            claim.keep_alive();
        }
        Some((claim, call))
    }

    async fn work(&mut self, claim: &WorkClaim, call: u64, pen: &Pen) {
        let token = claim.token().value();
        let items = claim.items().iter();
        let mut items: Vec<_> = items.map(|item| Held { item, is_kept: true }).collect();
        items.iter().for_each(|held| write(pen, call, number(held.item), token, Work::Claimed));
        for nth in 0..items.len() {
            let pause = match self.rng.random_range(0..50) {
                0 => self.pace.longest,
                _ => Duration::from_micros(self.rng.random_range(0..=self.pace.hold)),
            };
            sleep(pause).await;
            items.iter().for_each(|held| had(claim, held, pen));
            match self.rng.random_range(0..10) {
                0 => {}
                1 => self.give_back(claim, &mut items[nth], pen).await,
                _ => acknowledge(claim, &mut items[nth], pen).await,
            }
        }
        items.iter().for_each(|held| had(claim, held, pen));
    }

    /// Makes a claim, hands it on, and acknowledges its items by its id, as another process would.
    async fn hand_on(&mut self, pen: &Pen) {
        // Nobody ends it if this process is killed: it is to be over when the round ends.
        let ttl = self.rng.random_range(LONGEST_DELAY / 4..LONGEST_DELAY);
        let (call, options) = (now(), ClaimOptions::default().limit(MOST as usize).ttl(ttl));
        let Ok(Some(claim)) = self.queue.claim(options).await else { return };
        let (items, token) = (claim.items().to_vec(), claim.token().value());
        items.iter().for_each(|item| write(pen, call, number(item), token, Work::Claimed));
        let Ok(id) = claim.detach().await else { return };
        for item in &items {
            sleep(Duration::from_micros(self.rng.random_range(0..=self.pace.hold))).await;
            let call = now();
            write(pen, call, number(item), token, Work::Acking);
            if let Some(acked) = acked(&self.queue.ack(item.id(), id).await) {
                write(pen, call, number(item), token, acked);
            }
        }
        // If it fails, the claim ends by itself.
        let _ = self.queue.release(id).await;
    }

    async fn give_back(&mut self, claim: &WorkClaim, held: &mut Held<'_>, pen: &Pen) {
        held.is_kept = false;
        let (call, delay) = (now(), self.rng.random_range(Duration::ZERO..LONGEST_DELAY));
        if let Ok(Ack::Done) = claim.nack(held.item.id(), delay).await {
            write(pen, call, number(held.item), claim.token().value(), Work::GivenBack);
        }
    }
}

/// Records that the claim has the item, if the claim says so.
fn had(claim: &WorkClaim, held: &Held<'_>, pen: &Pen) {
    let before = now();
    if held.is_kept && claim.is_held() {
        write(pen, before, number(held.item), claim.token().value(), Work::Had);
    }
}

async fn acknowledge(claim: &WorkClaim, held: &mut Held<'_>, pen: &Pen) {
    held.is_kept = false;
    let (call, item, token) = (now(), number(held.item), claim.token().value());
    write(pen, call, item, token, Work::Acking);
    if let Some(acked) = acked(&claim.ack(held.item.id()).await) {
        write(pen, call, item, token, acked);
    }
}

/// What an acknowledgement came to; `None`: that is not known.
fn acked(answer: &Result<Ack>) -> Option<Work> {
    match answer {
        Ok(Ack::Done) => Some(Work::Acked),
        Ok(Ack::AlreadyGone) => Some(Work::Gone),
        Err(error) if error.effect() == Effect::None => Some(Work::NotAcked),
        Err(_) => None,
    }
}

fn write(pen: &Pen, call: u64, item: u64, token: u64, what: Work) {
    pen.write(Event::Work { call, item, token, what });
}

/// The number of an item, which is its body.
fn number(item: &WorkItem) -> u64 {
    item.body().try_into().map_or(0, u64::from_le_bytes)
}

/// Claims and acknowledges what a round has left in the queue, and records that the queue is empty. Returns what is
/// wrong if the queue is not empty within `limit`.
pub(super) async fn empty(
    coordinator: &Coordinator,
    thing: &Thing,
    book: &Book,
    limit: Duration,
) -> Option<String> {
    let queue = coordinator.queue(thing.name).expect(NAMED);
    let until = Instant::now() + limit + LONGEST_DELAY;
    for attempt in FIRST.. {
        let note = |call, item, token, what| {
            let event = Event::Work { call, item, token, what };
            book.write(Record { at: now(), client: 0, attempt, object: thing.id, event });
        };
        let left = match empty_some(&queue, note).await {
            Ok(0) => return None,
            Ok(left) => format!("{left} items of {} cannot be claimed", thing.name),
            Err(error) => format!("{} cannot be emptied: {error}", thing.name),
        };
        if Instant::now() > until {
            return Some(left);
        }
        sleep(Duration::from_millis(20)).await;
    }
    None
}

/// Makes one claim, and returns how many items are left after it.
async fn empty_some(queue: &WorkQueue, note: impl Fn(u64, u64, u64, Work)) -> Result<u64> {
    let call = now();
    if let Some(claim) = queue.claim(ClaimOptions::default().limit(100)).await? {
        let token = claim.token().value();
        for item in claim.items() {
            note(call, number(item), token, Work::Claimed);
        }
        let items: Vec<_> = claim.items().iter().map(number).collect();
        let call = now();
        items.iter().for_each(|item| note(call, *item, token, Work::Acking));
        if claim.ack_all().await? == items.len() {
            items.iter().for_each(|item| note(call, *item, token, Work::Acked));
        }
    }
    let call = now();
    let left = queue.stats().await?.total();
    if left == 0 {
        note(call, 0, 0, Work::Emptied);
    }
    Ok(left)
}
