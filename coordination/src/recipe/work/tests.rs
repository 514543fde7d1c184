//! The steps against a small model, and what each of them costs.

mod claimants;
mod cost;
mod outboxes;
mod size;
#[cfg(feature = "memory")]
mod unreadable;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::claim::{
    Ask, bring_back, bring_back_then, claim, detach, lasts, release, renew, seen, undo,
};
use super::clear::{clean, delete_queue, gc, sweep, tidy};
use super::draft::{Draft, Known, Outcome, Step, Stop, letter_name};
use super::ids::{ClaimId, ItemId};
use super::items::{ack, delete, nack, pop};
use super::layout::{Head, Letter, Micros, PAGE, Poison, REMEMBERED};
use super::letters;
use super::look::{Counts, Which, list, stats};
use super::post::{New, left_to_tidy, post};
use crate::backend::{Beside, Data, MOST_BESIDE, Source};
use crate::error::{ErrorKind, Result};

/// A queue, and what each step costs it.
#[derive(Clone, Default)]
struct Fake {
    head: Head,
    version: u64,
    now: Micros,
    records: HashMap<Arc<str>, Data>,
    /// Of the last step: records read and written, and rounds of reading.
    cost: (usize, usize, usize),
    /// How many bytes the last step has written, and how many it has read in records.
    length: usize,
    heard: usize,
    /// Somebody has removed records.
    is_damaged: bool,
}

/// What every store takes in one step: a transaction of Consul has 512 KiB at the most, in base64.
const MOST_WRITTEN: usize = 376 * 1024;

fn length_of(head: &Head, beside: &[Beside]) -> usize {
    let data = beside.iter().filter_map(|record| record.data.as_ref());
    let head = serde_json::to_string(head).expect("it can be written");
    // It is stored as a string in JSON.
    let head = serde_json::to_string(&head).expect("it can be written");
    head.len() + data.map(|data| data.len()).sum::<usize>()
}

/// The latest time that a record of items or of claims has in it; zero: it is another record.
fn latest(record: &Beside) -> Micros {
    let has_times = record.name.contains(['p', 'c']);
    record.data.as_ref().filter(|_| has_times).map_or(0, latest_in)
}

fn latest_in(record: &Data) -> Micros {
    let of_item = |item: &super::layout::Item| item.expires.max(item.not_before).max(item.made);
    let of_claim = |claim: &super::layout::Claim| claim.expires.max(claim.touched);
    let page = serde_json::from_str::<super::layout::Page>(record).ok();
    let claims = serde_json::from_str::<super::layout::Claims>(record).ok();
    let items = page.iter().flat_map(|page| page.values().map(of_item)).max();
    let claims = claims.iter().flat_map(|claims| claims.values().map(of_claim)).max();
    items.max(claims).unwrap_or_default()
}

impl Fake {
    fn run<T>(&mut self, mut step: impl FnMut(&mut Draft<'_>) -> Step<Outcome<T>>) -> Result<T> {
        (self.cost, self.heard) = ((0, 0, 0), 0);
        loop {
            if let Outcome::Done(answer) = self.once(&mut step)? {
                return Ok(answer);
            }
        }
    }

    fn once<T>(
        &mut self,
        step: &mut impl FnMut(&mut Draft<'_>) -> Step<Outcome<T>>,
    ) -> Result<Outcome<T>> {
        let (mut known, mut is_sweeping) = (Known::new(), false);
        loop {
            let mut draft = Draft::new(self.head.clone(), self.version, self.now, &known);
            let done = if is_sweeping { sweep(&mut draft) } else { step(&mut draft) };
            let sets_no_time = draft.sets_no_time;
            let done = done.and_then(|outcome| Ok((outcome, draft.finish()?)));
            let (outcome, writes) = match done {
                Ok((_, Some(_))) if self.head.is_cluttered() && !is_sweeping => {
                    is_sweeping = true;
                    continue;
                }
                Ok(done) => done,
                Err(Stop::Fail(error)) => return Err(error),
                Err(Stop::Fetch(names)) => {
                    self.cost.0 += names.len();
                    self.cost.2 += 1;
                    let record =
                        |name: Arc<str>| (Arc::clone(&name), self.records.get(&name).cloned());
                    let read: Vec<_> = names.into_iter().map(record).collect();
                    let lengths = read.iter().flat_map(|(_, data)| data).map(|data| data.len());
                    self.heard += lengths.sum::<usize>();
                    known.extend(read);
                    continue;
                }
            };
            if let Some((head, beside)) = writes {
                assert!(beside.len() <= MOST_BESIDE, "{} records", beside.len());
                self.cost.1 += beside.len();
                self.length = length_of(&head, &beside);
                assert!(self.length <= MOST_WRITTEN, "{} bytes", self.length);
                for record in beside {
                    let before = self.records.get(&record.name);
                    assert!(!sets_no_time || latest(&record) <= before.map_or(0, latest_in));
                    let is_there = self.records.contains_key(&record.name);
                    assert!(record.is_new != is_there || self.is_damaged, "{}", record.name);
                    match record.data {
                        Some(data) => drop(self.records.insert(record.name, data)),
                        None => drop(self.records.remove(&record.name)),
                    }
                }
                (self.head, self.version) = (head, self.version + 1);
            }
            return Ok(outcome);
        }
    }

    fn look<T>(&mut self, mut step: impl FnMut(&mut Draft<'_>) -> Step<T>) -> T {
        self.run(|draft| step(draft).map(Outcome::Done)).expect("it is there")
    }

    fn post(&mut self, items: &[New]) -> Vec<ItemId> {
        let step = |draft: &mut Draft<'_>| -> Step<_> {
            let posted = post(draft, items)?;
            let left = left_to_tidy(draft, items);
            Ok(posted.map(|ids| (ids, left)))
        };
        let (ids, left) = self.run(step).expect("it has room");
        self.tidy(left);
        ids
    }

    fn tidy(&mut self, mut left: usize) {
        while left > 0 {
            let looked_at = self.run(|draft| tidy(draft, left)).expect("never refused");
            left = if looked_at > 0 { left - looked_at } else { 0 };
        }
    }

    fn claim(&mut self, ask: &Ask) -> Vec<ItemId> {
        let taken = self.run(|draft| claim(draft, ask)).expect("it is a new id");
        taken.map_or_else(Vec::new, |seen| seen.items.iter().map(|item| item.id).collect())
    }

    fn pop(&mut self, limit: usize) -> Vec<ItemId> {
        let popped = self.run(|draft| pop(draft, limit, |item| Ok(item.id)));
        popped.expect("never refused").expect("all can be read")
    }
}

fn new(mark: u64, ttl: Micros, delay: Micros, length: usize) -> New {
    New { body: "x".repeat(length), ttl, delay, claims: 0, mark }
}

fn ask(limit: usize, ttl: Micros, grace: Micros, holder: Option<u64>) -> Ask {
    Ask { id: ClaimId::random(), limit, ttl, grace, holder }
}

/// The same under a name that is in one of so many buckets, a power of two.
fn in_buckets(count: u8, ask: Ask) -> Ask {
    let random = u128::from_str_radix(&ask.id.to_string(), 16).expect("hexadecimal");
    let name = format!("{:032x}", random & !u128::from(u8::MAX - (count - 1)));
    Ask { id: name.parse().unwrap_or_else(|never| match never {}), ..ask }
}

/// What a queue is to be: all items in one list.
#[derive(Default)]
struct Model {
    now: Micros,
    items: BTreeMap<ItemId, Item>,
    claims: BTreeMap<ClaimId, Claim>,
    poison: Option<u32>,
}

#[derive(Clone)]
struct Item {
    made: Micros,
    expires: Micros,
    not_before: Micros,
    claim: Option<ClaimId>,
    claims: u32,
}

struct Claim {
    ttl: Micros,
    grace: Micros,
    expires: Micros,
    holder: Option<u64>,
}

impl Model {
    fn is_live(&self, id: ClaimId) -> bool {
        self.claims.get(&id).is_some_and(|claim| self.now < claim.expires)
    }

    fn alive(&self, id: ItemId) -> Option<&Item> {
        self.items.get(&id).filter(|item| self.now < item.expires)
    }

    fn owner(&self, item: &Item) -> Option<ClaimId> {
        item.claim.filter(|id| self.is_live(*id))
    }

    fn is_ready(&self, item: &Item) -> bool {
        self.now < item.expires && self.owner(item).is_none() && self.now >= item.not_before
    }

    fn select(&mut self, limit: usize) -> Vec<ItemId> {
        let ready = self.items.iter().filter(|(_, item)| self.is_ready(item));
        let (mut taken, mut poisoned) = (Vec::new(), Vec::new());
        for (id, item) in ready {
            match self.poison {
                _ if taken.len() == limit => break,
                Some(max) if item.claims >= max => poisoned.push(*id),
                _ => taken.push(*id),
            }
        }
        for id in &poisoned {
            self.items.remove(id);
        }
        taken
    }

    fn claim(&mut self, ask: &Ask) -> Vec<ItemId> {
        let (taken, expires) = (self.select(ask.limit), self.now + ask.ttl);
        for id in &taken {
            let item = self.items.get_mut(id).expect("it was selected");
            (item.claim, item.claims) = (Some(ask.id), item.claims + 1);
            item.expires = item.expires.max(expires + ask.grace);
        }
        if !taken.is_empty() {
            let (ttl, grace, holder) = (ask.ttl, ask.grace, ask.holder);
            self.claims.insert(ask.id, Claim { ttl, grace, expires, holder });
        }
        taken
    }

    fn members(&self, id: ClaimId) -> Vec<ItemId> {
        let has = |item: &Item| self.now < item.expires && self.owner(item) == Some(id);
        self.items.iter().filter(|(_, item)| has(item)).map(|(id, _)| *id).collect()
    }

    fn renew(&mut self, id: ClaimId, ttl: Option<Micros>, grace: Option<Micros>) {
        let (now, members) = (self.now, self.members(id));
        let claim = self.claims.get_mut(&id).expect("it is live");
        (claim.ttl, claim.grace) = (ttl.unwrap_or(claim.ttl), grace.unwrap_or(claim.grace));
        claim.expires = now + claim.ttl;
        let least = claim.expires + claim.grace;
        for item in members {
            let item = self.items.get_mut(&item).expect("it is a member");
            item.expires = item.expires.max(least);
        }
    }

    fn release(&mut self, id: ClaimId) -> usize {
        let freed = self.members(id).len();
        if let Some(claim) = self.claims.get_mut(&id) {
            claim.expires = claim.expires.min(self.now);
        }
        freed
    }

    /// Why this claim cannot acknowledge the item; `Ok(false)`: the item is gone.
    fn check(&self, id: ItemId, claim: ClaimId) -> std::result::Result<bool, ErrorKind> {
        let Some(item) = self.alive(id) else { return Ok(false) };
        if !self.is_live(claim) {
            return Err(ErrorKind::NoSuchClaim);
        }
        match self.owner(item) {
            None => Err(ErrorKind::NotClaimed),
            Some(owner) if owner != claim => Err(ErrorKind::NotClaimedBy),
            Some(_) => Ok(true),
        }
    }

    fn ages(&self) -> (Option<Micros>, Option<Micros>) {
        let alive = || self.items.values().filter(|item| self.now < item.expires);
        let ages = || alive().map(|item| self.now - item.made);
        (ages().max(), ages().min())
    }

    fn counts(&self) -> (u64, u64, u64) {
        let alive = || self.items.values().filter(|item| self.now < item.expires);
        let claimed = alive().filter(|item| self.owner(item).is_some()).count() as u64;
        let ready = alive().filter(|item| self.is_ready(item)).count() as u64;
        (ready, claimed, alive().count() as u64 - ready - claimed)
    }
}

/// A fake queue and the model, to which the same steps are applied.
struct Both {
    fake: Fake,
    model: Model,
    rng: StdRng,
    entries: Vec<u64>,
    /// All claims are in one bucket, which has several parts before long.
    is_crowded: bool,
    /// The names so far: steps also use names of items and claims that are gone or over.
    seen: (Vec<ItemId>, Vec<ClaimId>),
}

impl Both {
    fn new(seed: u64) -> Self {
        let (fake, model, rng) = (Fake::default(), Model::default(), StdRng::seed_from_u64(seed));
        let is_crowded = seed.is_multiple_of(2);
        Self { fake, model, rng, entries: vec![1, 2, 3], is_crowded, seen: Default::default() }
    }

    fn item(&mut self) -> ItemId {
        match self.seen.0.len() {
            0 => ItemId::new(7, 7),
            all => {
                let newest = self.rng.random_range(0..all.min(30));
                self.seen.0[all - 1 - newest]
            }
        }
    }

    /// One that follows from the seed, as all else does.
    fn name(&mut self) -> ClaimId {
        let name = format!("{:032x}", self.rng.random::<u128>());
        name.parse().unwrap_or_else(|never| match never {})
    }

    fn a_claim(&mut self) -> ClaimId {
        match self.seen.1.len() {
            0 => self.name(),
            all => {
                let newest = self.rng.random_range(0..all.min(6));
                self.seen.1[all - 1 - newest]
            }
        }
    }

    /// A claim, and most often one of its items.
    fn claimed_item(&mut self) -> (ItemId, ClaimId) {
        let claim = self.a_claim();
        match self.model.members(claim).first() {
            Some(item) if self.rng.random_bool(0.7) => (*item, claim),
            _ => (self.item(), claim),
        }
    }

    fn step(&mut self) {
        match self.rng.random_range(0..26) {
            0..=4 => self.post(),
            5..=9 => self.claim(),
            10 => self.renew(),
            11 => self.release(),
            12..=15 => self.ack(),
            16..=17 => self.nack(),
            18 => self.delete(),
            19 => self.pop(),
            20 => self.gc(),
            21 => self.end_a_session(),
            22 if self.rng.random_bool(0.02) => self.delete_queue(),
            22 => self.detach(),
            _ => {
                let passed = [1, 5, 20, 100][self.rng.random_range(0..4)];
                self.model.now += passed;
                self.fake.now = self.model.now;
            }
        }
        self.compare();
    }

    fn post(&mut self) {
        let count = match self.rng.random_range(0..20) {
            0 => self.rng.random_range(1..200),
            _ => self.rng.random_range(1..5),
        };
        let rng = &mut self.rng;
        // No more than may be posted at once.
        let longest = 352 * 1024 / count - 160;
        let some = |_| {
            let length = longest.min([3, 300, 20_000][rng.random_range(0..3)]);
            let ttl = rng.random_range(1..400);
            new(rng.random(), ttl, rng.random_range(0..3) * rng.random_range(0..ttl), length)
        };
        let items: Vec<_> = (0..count).map(some).collect();
        if self.is_crowded {
            // Other items have come and gone.
            self.fake.head.rank += [0, 4_096][self.rng.random_range(0..2)];
        }
        let ids = self.fake.post(&items);
        for (id, new) in ids.iter().zip(&items) {
            let (expires, not_before) = (self.model.now + new.ttl, self.model.now + new.delay);
            let made = self.model.now;
            let item = Item { made, expires, not_before, claim: None, claims: 0 };
            self.model.items.insert(*id, item);
        }
        self.seen.0.extend(ids);
    }

    fn claim(&mut self) {
        let holder = self.entries[self.rng.random_range(0..self.entries.len())];
        let holder = self.rng.random_bool(0.5).then_some(holder);
        let (ttl, grace) = (self.rng.random_range(1..200), self.rng.random_range(0..50));
        let ask = ask(self.rng.random_range(1..9), ttl, grace, holder);
        let ask = Ask { id: self.name(), ..ask };
        let ask = if self.is_crowded { in_buckets(1, ask) } else { ask };
        assert_eq!(self.fake.claim(&ask), self.model.claim(&ask));
        self.seen.1.push(ask.id);
    }

    fn renew(&mut self) {
        let id = self.a_claim();
        let ttl = self.rng.random_bool(0.7).then(|| self.rng.random_range(1..200));
        let grace = self.rng.random_bool(0.5).then(|| self.rng.random_range(0..50));
        let renewed = self.fake.run(|draft| renew(draft, id, ttl, grace));
        match self.model.is_live(id) {
            true => {
                self.model.renew(id, ttl, grace);
                let renewed = renewed.ok().map(|renewed| (renewed.lasts, renewed.until));
                let expected = self.model.claims.get(&id).map(|claim| (claim.ttl, claim.expires));
                assert_eq!(renewed, expected);
            }
            false => assert_eq!(renewed.expect_err("it is over").kind(), ErrorKind::NoSuchClaim),
        }
    }

    fn release(&mut self) {
        let id = self.a_claim();
        let released = self.fake.run(|draft| release(draft, id)).expect("never refused");
        assert_eq!(released, self.model.release(id));
    }

    fn detach(&mut self) {
        let id = self.a_claim();
        let detached = self.fake.run(|draft| detach(draft, id));
        assert_eq!(detached.is_ok(), self.model.is_live(id));
        if let Some(claim) = self.model.claims.get_mut(&id).filter(|_| detached.is_ok()) {
            claim.holder = None;
        }
    }

    fn ack(&mut self) {
        let (item, claim) = self.claimed_item();
        let done = self.fake.run(|draft| ack(draft, &[item], claim));
        let done = done.map(|count| count == 1).map_err(|error| error.kind());
        let expected = self.model.check(item, claim);
        assert_eq!(done, expected);
        if expected == Ok(true) {
            self.model.items.remove(&item);
        }
    }

    fn nack(&mut self) {
        let (item, claim) = self.claimed_item();
        let delay = self.rng.random_range(0..60);
        let done = self.fake.run(|draft| nack(draft, item, claim, delay));
        let expected = self.model.check(item, claim);
        assert_eq!(done.map_err(|error| error.kind()), expected);
        let now = self.model.now;
        let grace = self.model.claims.get(&claim).map_or(0, |claim| claim.grace);
        if let Some(item) = self.model.items.get_mut(&item).filter(|_| expected == Ok(true)) {
            (item.claim, item.not_before) = (None, now + delay);
            item.expires = item.expires.max(item.not_before + grace);
        }
    }

    fn delete(&mut self) {
        let (id, by_force) = (self.item(), self.rng.random_bool(0.2));
        let done = self.fake.run(|draft| delete(draft, id, by_force)).map_err(|error| error.kind());
        let item = self.model.alive(id).cloned();
        let is_claimed = item.as_ref().is_some_and(|item| self.model.owner(item).is_some());
        match is_claimed && !by_force {
            true => assert_eq!(done, Err(ErrorKind::IsClaimed)),
            false => {
                assert_eq!(done, Ok(item.is_some()));
                self.model.items.remove(&id);
            }
        }
    }

    fn pop(&mut self) {
        let limit = self.rng.random_range(1..6);
        let popped = self.fake.pop(limit);
        let expected = self.model.select(limit);
        assert_eq!(popped, expected);
        for id in &expected {
            self.model.items.remove(id);
        }
    }

    fn gc(&mut self) {
        let budget = self.rng.random_range(1..30);
        let removed = self.fake.run(|draft| gc(draft, budget)).expect("never refused");
        assert!(removed.items + removed.claims <= budget);
    }

    fn end_a_session(&mut self) {
        let last = self.entries.iter().max().copied().unwrap_or_default();
        let index = self.rng.random_range(0..self.entries.len());
        let dead = self.entries.remove(index);
        self.entries.push(last + 1);
        let entries = self.entries.clone();
        self.fake.run(|draft| bring_back(draft, &entries)).expect("never refused");
        let of_it = |(id, claim): (&ClaimId, &Claim)| (claim.holder == Some(dead)).then_some(*id);
        let claims: Vec<_> = self.model.claims.iter().filter_map(of_it).collect();
        for id in claims {
            self.model.release(id);
        }
    }

    fn delete_queue(&mut self) {
        self.fake.run(delete_queue).expect("never refused");
        (self.model.items, self.model.claims, self.model.poison) = Default::default();
    }

    fn compare(&mut self) {
        let counts = self.fake.look(stats);
        assert_eq!((counts.ready, counts.claimed, counts.delayed), self.model.counts());
        assert_eq!((counts.oldest, counts.newest), self.model.ages());
        let id = self.a_claim();
        let found = self.fake.run(|draft| seen(draft, id).map(Outcome::Done));
        match self.model.is_live(id) {
            true => {
                let found: Vec<_> =
                    found.expect("it is live").items.iter().map(|it| it.id).collect();
                assert_eq!(found, self.model.members(id));
            }
            false => assert_eq!(found.expect_err("it is over").kind(), ErrorKind::NoSuchClaim),
        }
    }

    /// Nothing is left of what is over.
    fn clear(&mut self) {
        self.model.now += 1_000 + REMEMBERED;
        self.fake.now = self.model.now;
        self.fake.run(|draft| bring_back(draft, &[])).expect("never refused");
        for _ in 0..1_000 {
            let removed = self.fake.run(|draft| gc(draft, 50)).expect("never refused");
            let head = &self.fake.head;
            if removed == Default::default() && head.trash.is_empty() && head.litter.is_empty() {
                break;
            }
        }
        assert_eq!(self.fake.records.keys().collect::<Vec<_>>(), Vec::<&Arc<str>>::new());
        assert_eq!(self.fake.head.live.holders.len(), 0);
    }
}

#[test]
fn c1_random_steps_are_those_of_the_model() {
    for seed in 0..60 {
        let mut both = Both::new(seed);
        if seed % 3 == 0 {
            both.model.poison = Some(2);
            both.fake.head.poison = Some(Poison { max_claims: 2, queue: "dead".into(), ttl: None });
            // A head that says so has been written, so that deleting the queue removes that, too.
            both.fake.version = 1;
        }
        for step in 0..400 {
            let stepped = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| both.step()));
            assert!(stepped.is_ok(), "seed {seed}, step {step}");
        }
        if seed % 3 > 0 {
            both.clear();
        }
    }
}

#[test]
fn who_brings_back_what_the_dead_had_gets_it_in_the_same_step() {
    let mut fake = Fake::default();
    let mut ids = fake.post(&[new(0, 1_000_000, 0, 8)]);
    let claimed = fake.claim(&ask(1, 500_000, 0, Some(9)));
    assert_eq!(claimed, ids);
    // Nothing is ready on its page, and others are on the next ones.
    let later: Vec<_> = (1..=3 * PAGE).map(|mark| new(mark, 1_000_000, 0, 8)).collect();
    ids.extend(fake.post(&later));
    let first_page = fake.claim(&ask(PAGE as usize - 1, 500_000, 0, None));
    assert_eq!(first_page, ids[1..PAGE as usize]);
    let ask = ask(2, 500_000, 0, Some(10));
    let taken = fake.run(|draft| bring_back_then(draft, &[10], |draft| claim(draft, &ask)));
    let taken = taken.expect("it is a new id").expect("items are ready");
    let taken: Vec<_> = taken.items.iter().map(|item| item.id).collect();
    assert_eq!(taken, [ids[0], ids[PAGE as usize]]);
}

#[test]
fn what_a_dead_process_had_is_found_where_nothing_else_is_ready() {
    let mut fake = Fake::default();
    let ids = fake.post(&[new(0, 1_000_000, 0, 8)]);
    assert_eq!(fake.claim(&ask(1, 500_000, 0, Some(9))), ids);
    let pop = |draft: &mut Draft<'_>| pop(draft, 1, |item| Ok(item.id));
    let popped = fake.run(|draft| bring_back_then(draft, &[], pop));
    assert_eq!(popped.expect("never refused").expect("it can be read"), ids);
}

/// Another server that has taken over may know that they live. So that is written by itself, and only where they are taken for dead.
#[test]
fn what_a_dead_process_had_is_brought_back_only_where_it_is_taken_for_dead() {
    let mut fake = Fake::default();
    let ids = fake.post(&[new(0, 1_000_000, 0, 8)]);
    assert_eq!(fake.claim(&ask(1, 500_000, 0, Some(9))), ids);
    let mut parts = Vec::new();
    let popped = fake.run(|draft| {
        draft.source = Some(Source::default());
        let done = bring_back_then(draft, &[], |draft| pop(draft, 1, |item| Ok(item.id)))?;
        parts.push((draft.by_entries, matches!(done, Outcome::Done(_))));
        Ok(done)
    });
    assert_eq!(popped.expect("never refused").expect("it can be read"), ids);
    assert_eq!(parts, [(true, false), (false, true)]);
}

/// What is read and written for a claim of one item, usually: whose random id leads to a record that is full, or in several parts, costs a
/// few more.
fn usual_cost(fake: &mut Fake) -> (usize, usize) {
    let (mut read, mut written): (Vec<_>, Vec<_>) = (0..9).map(|_| cost_of_a_claim(fake)).unzip();
    read.sort_unstable();
    written.sort_unstable();
    (read[4], written[4])
}

/// What is read and written for a claim of one item.
fn cost_of_a_claim(fake: &mut Fake) -> (usize, usize) {
    let ask = ask(1, 1_000, 0, Some(9));
    let items = fake.claim(&ask);
    assert_eq!(items.len(), 1);
    let claimed = fake.cost;
    assert_eq!(fake.run(|draft| ack(draft, &items, ask.id)).ok(), Some(1));
    fake.run(|draft| release(draft, ask.id)).expect("never refused");
    (claimed.0, claimed.1)
}

fn posted(fake: &mut Fake, count: u64, ttl: Micros, delay: Micros) {
    for first in (0..count).step_by(500) {
        let items: Vec<_> =
            (first..count.min(first + 500)).map(|mark| new(mark, ttl, delay, 8)).collect();
        fake.post(&items);
    }
}

#[test]
fn c8_a_claim_costs_the_same_behind_20_000_claimed_delayed_or_dead_ones() {
    let mut plain = Fake::default();
    posted(&mut plain, 10, 1_000_000, 0);
    let few = usual_cost(&mut plain);
    for what in ["claimed", "delayed", "dead"] {
        let mut fake = Fake::default();
        match what {
            "claimed" => {
                posted(&mut fake, 20_000, 1_000_000, 0);
                while !fake.claim(&ask(1_000, 500_000, 0, None)).is_empty() {}
            }
            "delayed" => posted(&mut fake, 20_000, 1_000_000, 500_000),
            _ => posted(&mut fake, 20_000, 100, 0),
        }
        fake.now += 200;
        // The first page is shared with those in front.
        posted(&mut fake, 200, 1_000_000, 0);
        for _ in 0..70 {
            cost_of_a_claim(&mut fake);
        }
        let many = usual_cost(&mut fake);
        assert!(many.0 <= few.0 + 1 && many.1 <= few.1 + 1, "{what}: {many:?}, else {few:?}");
    }
}

/// What is to be delivered next.
fn next_pending(from: &mut Fake) -> Option<letters::Pending> {
    from.run(|draft| letters::pending(draft, |_| false)).expect("never refused")
}

/// The letters of that.
fn pending(from: &mut Fake) -> Vec<(u64, Letter)> {
    next_pending(from).map(|pending| pending.letters).unwrap_or_default()
}

#[test]
fn a_letter_is_posted_once_though_it_comes_twice() {
    let (mut from, mut to) = (Fake::default(), Fake::default());
    from.head.poison = Some(Poison { max_claims: 1, queue: "dead".into(), ttl: Some(9_999) });
    posted(&mut from, 3, 1_000, 0);
    let ask_one = ask(3, 1, 0, None);
    assert_eq!(from.claim(&ask_one).len(), 3);
    from.now += 1;
    assert!(from.claim(&ask(3, 1, 0, None)).is_empty());
    let letters = pending(&mut from);
    assert_eq!(letters.len(), 3);
    for _ in 0..2 {
        to.run(|draft| letters::receive(draft, "q", &letters, &[1, 2, 3])).expect("it has room");
    }
    from.run(|draft| letters::delivered(draft, 0, "dead", 2)).expect("never refused");
    assert_eq!(next_pending(&mut from), None);
    assert_eq!(from.look(stats), Counts::default());
    let which = Which { after: None, limit: 10, claimed: false, delayed: false };
    let listed = to.look(|draft| list(draft, which));
    assert_eq!(
        listed.iter().map(|item| (item.claims, item.expires_in)).collect::<Vec<_>>(),
        [(1, 9_999); 3]
    );
}

/// The store was given back older data while letters were delivered: what the other queue has noted is not taken for other letters.
#[test]
fn the_letters_of_a_queue_that_was_set_back_come_all_the_same() {
    let (mut from, mut to) = (Fake::default(), Fake::default());
    from.head.poison = Some(Poison { max_claims: 1, queue: "dead".into(), ttl: Some(9_999) });
    posted(&mut from, 3, 1_000, 0);
    assert_eq!(from.claim(&ask(2, 1, 0, None)).len(), 2);
    from.now += 1;
    let before = from.clone();
    assert_eq!(from.claim(&ask(3, 1, 0, None)).len(), 1);
    let letters = pending(&mut from);
    assert_eq!(letters.len(), 2);
    from = before;
    to.run(|draft| letters::receive(draft, "q", &letters, &[1, 2])).expect("it has room");
    from.run(|draft| letters::delivered(draft, 0, "dead", 1)).expect("never refused");
    assert_eq!(from.claim(&ask(3, 1, 0, None)).len(), 1);
    let letters = pending(&mut from);
    assert_eq!(letters.len(), 2, "they are on their way");
    to.run(|draft| letters::receive(draft, "q", &letters, &[3, 4])).expect("it has room");
    assert_eq!(to.look(stats).ready, 4);
}

/// While letters were delivered, somebody removed their queue, and another one of its name was made: its letters have the same numbers,
/// and stay until they are delivered.
#[test]
fn the_letters_of_another_queue_of_the_same_name_are_not_taken_for_delivered() {
    let dying = |id| {
        let mut from = Fake::default();
        from.head.id = id;
        from.head.poison = Some(Poison { max_claims: 1, queue: "dead".into(), ttl: Some(9_999) });
        posted(&mut from, 2, 1_000, 0);
        assert_eq!(from.claim(&ask(2, 1, 0, None)).len(), 2);
        from.now += 1;
        assert!(from.claim(&ask(2, 1, 0, None)).is_empty());
        from
    };
    let (mut first, mut second) = (dying(1), dying(2));
    let of_first = next_pending(&mut first).expect("two are on their way");
    second.run(|draft| letters::delivered(draft, 1, "dead", of_first.upto)).expect("no change");
    assert_eq!(next_pending(&mut second), Some(of_first), "its own are on their way");
    second.run(|draft| letters::delivered(draft, 2, "dead", 1)).expect("never refused");
    assert_eq!(next_pending(&mut second), None);
}

/// Somebody has removed the records of letters, as no step does.
#[test]
fn letters_that_are_missing_are_passed_over() {
    let mut from = Fake::default();
    from.head.poison = Some(Poison { max_claims: 1, queue: "dead".into(), ttl: Some(9_999) });
    posted(&mut from, 20, 1_000, 0);
    assert_eq!(from.claim(&ask(20, 1, 0, None)).len(), 20);
    from.now += 1;
    assert!(from.claim(&ask(20, 1, 0, None)).is_empty());
    from.records.retain(|name, _| !(0..16).any(|number| *name == letter_name((0, number))));
    let missing = next_pending(&mut from).expect("they are on their way");
    assert_eq!((missing.letters.len(), missing.upto), (0, 15));
    from.run(|draft| letters::delivered(draft, 0, "dead", 15)).expect("never refused");
    let rest = next_pending(&mut from).expect("they are on their way");
    assert_eq!((rest.letters.len(), rest.upto), (4, 19));
}

/// Somebody has removed the bodies of items, as no step does: those behind them are handed out all the same.
#[test]
fn wk2_items_without_bodies_hold_up_nobody() {
    let mut fake = Fake::default();
    let posted: Vec<_> = (0..6).flat_map(|mark| fake.post(&[new(mark, 1_000, 0, 300)])).collect();
    let is_gone = |name: &Arc<str>| name.contains('b') && !name.ends_with("b3-");
    let gone: Vec<_> = fake.records.keys().filter(|name| is_gone(name)).cloned().collect();
    assert_eq!(gone.len(), 5, "{gone:?}");
    fake.records.retain(|name, _| !is_gone(name));
    fake.is_damaged = true;
    let which = Which { after: None, limit: 10, claimed: true, delayed: true };
    for limit in [10, 2, 1] {
        let listed = fake.look(|draft| list(draft, Which { limit, ..which }));
        assert_eq!(listed.iter().map(|item| item.id).collect::<Vec<_>>(), [posted[3]], "{limit}");
    }
    fake.head.poison = Some(Poison { max_claims: 0, queue: "dead".into(), ttl: None });
    let mut poisoned = fake.clone();
    assert!(poisoned.claim(&ask(2, 500, 0, None)).is_empty());
    assert_eq!(poisoned.head.letters_on_their_way(), 1);
    fake.head.poison = None;
    assert_eq!(fake.clone().pop(2), [posted[3]]);
    assert_eq!(fake.claim(&ask(2, 500, 0, None)), [posted[3]]);
    assert!(fake.claim(&ask(2, 500, 0, None)).is_empty());
    assert_eq!(fake.look(stats).ready, 0);
}

/// WK4: a claim of which a server that has taken over does not know the last renewal goes on, and is renewed there.
#[test]
fn wk4_an_unknown_renewal_does_not_end_a_claim() {
    let mut fake = Fake::default();
    posted(&mut fake, 1, 1_000, 0);
    let held = ask(1, 500, 0, None);
    fake.claim(&held);
    let expires = fake.now + 500;
    let mut lasts_until = |id, until| {
        let done = fake.run(|draft| lasts(draft, id, until).map(Outcome::Done));
        done.map_err(|error| error.kind())
    };
    assert_eq!(lasts_until(held.id, expires), Ok(()));
    assert_eq!(lasts_until(held.id, expires + 1), Err(ErrorKind::Unavailable));
    assert_eq!(lasts_until(ClaimId::random(), 0), Err(ErrorKind::NoSuchClaim));
}

/// WK3, WK4: with the session the claim is over, also before somebody else has its items.
#[test]
fn wk4_a_claim_whose_session_has_ended_is_not_renewed() {
    let mut fake = Fake::default();
    posted(&mut fake, 3, 1_000, 0);
    let held = ask(1, 500, 0, Some(7));
    let items = fake.claim(&held);
    let kind = |done: Result<()>| done.map_err(|error| error.kind());
    for (entries, expected) in [(&[7_u64], Ok(())), (&[8], Err(ErrorKind::NoSuchClaim))] {
        let with = |fake: &mut Fake, step: &dyn Fn(&mut Draft<'_>) -> Step<Outcome<()>>| {
            fake.run(|draft| {
                draft.entries = Some(entries);
                step(draft)
            })
        };
        let renewed =
            with(&mut fake, &|draft| renew(draft, held.id, None, None).map(|done| done.map(drop)));
        assert_eq!(kind(renewed), expected);
        let found = with(&mut fake, &|draft| seen(draft, held.id).map(|_| Outcome::Done(())));
        assert_eq!(kind(found), expected);
        let mut copy = fake.clone();
        assert_eq!(kind(with(&mut copy, &|draft| detach(draft, held.id))), expected);
    }
    // What is done is done: nobody else was given it.
    let done = fake.run(|draft| {
        draft.entries = Some(&[8]);
        ack(draft, &items, held.id)
    });
    assert_eq!(done.ok(), Some(1));
}

/// WK4: a claim that nobody got does not count if it is taken back. If its session is lost first, whoever claims next brings its items
/// back as those of a worker that died, and it counts, also if it is taken back later.
#[test]
fn wk4_a_claim_that_nobody_got_counts_if_its_session_is_lost_first() {
    let alive = [10];
    for (is_brought_back, counted) in [(false, 1), (true, 2)] {
        let mut fake = Fake::default();
        posted(&mut fake, 1, 1_000, 0);
        let (lost, next) = (ask(1, 500, 0, Some(9)), ask(1, 500, 0, Some(10)));
        assert_eq!(fake.claim(&lost).len(), 1);
        if is_brought_back {
            fake.run(|draft| bring_back(draft, &alive)).expect("never refused");
        }
        fake.run(|draft| undo(draft, lost.id)).expect("never refused");
        let taken = fake.run(|draft| bring_back_then(draft, &alive, |draft| claim(draft, &next)));
        let taken = taken.expect("it is a new id").expect("it is free");
        assert_eq!(taken.items[0].claims, counted);
    }
}
