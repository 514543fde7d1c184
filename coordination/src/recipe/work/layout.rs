//! How a queue of work is laid out: a head, which is the queue's value, and records beside it.
//!
//! Items stand in pages by their rank, and pages in groups. A group has a [`Summary`] of each of its pages, and the head
//! one of each group: how many items are ready, and when the next one changes by time alone. So whoever looks for ready
//! items passes over those that are claimed, delayed or dead, many at once. Claims are spread over buckets by their
//! name, see [`buckets`](super::buckets). For each process that holds claims there is a list of them, by the number of its entry in the queue.
//!
//! Why it is so: `docs/decisions/work-queues.md`.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use rand::RngExt;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::ids::{ClaimId, ItemId};
use crate::env;

/// A time on the queue's clock, or a length, in microseconds.
pub(super) type Micros = u64;

/// How many items a page has, and ([`GROUP`]) how many pages a group has.
pub(super) const PAGE: u64 = 64;
pub(super) const GROUP: u64 = 64;

/// How long a claim that is over is remembered, so that its name is not used twice.
pub(super) const REMEMBERED: Micros = 60_000_000;

/// How many records that are to be removed the head may name, and ([`MOST_TRASH`]) how many deleted queues: if there are more,
/// a step removes some of them before it writes anything else.
pub(super) const MOST_LITTER: usize = 256;
const MOST_TRASH: usize = 4;

/// The queue's value.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Head {
    /// Random: another one for each queue that was ever made.
    pub(super) id: u64,
    /// The rank of the next item.
    pub(super) rank: u64,
    /// The fencing token of the last claim.
    pub(super) fence: u64,
    pub(super) clock: Stamp,
    #[serde(default)]
    pub(super) poison: Option<Poison>,
    pub(super) live: Contents,
    /// What deleted queues of this name have left.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) trash: Vec<Contents>,
    /// Records to be removed when there is room for that.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) litter: Vec<String>,
    /// Letters on their way, by the name of the dead letter queue to which they go. An outbox has letters.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) outboxes: BTreeMap<String, Outbox>,
    /// The number of the first letter in the next outbox, larger than that of every letter before: a dead letter queue takes a letter of
    /// a smaller number than it expects for one that it has.
    #[serde(default)]
    pub(super) next_letter: u64,
    /// The last writes, so that one whose answer was lost is found again.
    pub(super) done: VecDeque<u64>,
}

impl Head {
    /// The head of a queue that is not there yet. Its generation is random, so that its records have names of their own: an
    /// operator may have removed the head of another queue of this name and left its records.
    pub(super) fn of_new_queue() -> Self {
        let generation = env::rng().random::<u32>().into();
        Self { live: Contents { generation, ..Contents::default() }, ..Self::default() }
    }

    /// How many letters are on their way to dead letter queues.
    pub(super) fn letters_on_their_way(&self) -> u64 {
        self.outboxes.values().map(|outbox| outbox.end.saturating_sub(outbox.first)).sum()
    }

    pub(super) fn has_letters(&self) -> bool {
        !self.outboxes.is_empty()
    }

    /// About how many bytes the head takes where it is long.
    pub(super) fn weight(&self) -> usize {
        let contents = self.trash.iter().chain([&self.live]);
        let outboxes = self.outboxes.keys().map(|queue| queue.len() + 64).sum::<usize>();
        contents.map(Contents::weight).sum::<usize>() + 24 * self.litter.len() + outboxes
    }

    /// Whether too much is to be removed for the head to grow by more.
    pub(super) fn is_cluttered(&self) -> bool {
        self.litter.len() > MOST_LITTER || self.trash.len() > MOST_TRASH
    }
}

/// What goes when the queue is deleted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Contents {
    /// What the names of its records begin with.
    pub(super) generation: u64,
    pub(super) groups: Index,
    /// Groups that others were joined to, each with the number of the last one.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) joined: BTreeMap<u64, u64>,
    /// The buckets of claims that there are, and how many parts a bucket has, if it has several.
    pub(super) buckets: BTreeSet<u8>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) parts: BTreeMap<u8, u8>,
    /// The entries whose sessions hold claims.
    pub(super) holders: BTreeSet<u64>,
}

impl Contents {
    fn weight(&self) -> usize {
        let small = self.joined.len() + self.buckets.len() + self.parts.len() + self.holders.len();
        150 * self.groups.len() + 10 * small
    }

    /// The group that a page is in.
    pub(super) fn group_of(&self, page: u64) -> u64 {
        let number = page / GROUP;
        let before = self.joined.range(..=number).next_back();
        before.filter(|(_, last)| number <= **last).map_or(number, |(first, _)| *first)
    }

    /// From now on the pages of a group are in another one, the next one before it.
    pub(super) fn join(&mut self, first: u64, second: u64) {
        let last = self.joined.remove(&second).unwrap_or(second);
        self.joined.insert(first, last);
        let pages = self.groups.remove(&second);
        let all = [self.groups.get(&first).copied(), pages].into_iter().flatten();
        self.groups.insert(first, all.fold(Summary::NOTHING, Summary::with));
    }

    /// Notes what is in a group; `None`: it has no pages.
    pub(super) fn note_group(&mut self, group: u64, all: Option<Summary>) {
        match all {
            Some(all) => drop(self.groups.insert(group, all)),
            None => {
                self.groups.remove(&group);
                self.joined.remove(&group);
            }
        }
    }
}

/// The queue's clock as of the last write.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Stamp {
    pub(super) now: Micros,
    /// Which write it was: random.
    pub(super) by: u64,
    /// Clocks by which that moment is known: epoch, and what it showed then or later.
    pub(super) witnesses: Vec<(u64, Micros)>,
    /// Which of these clocks showed that then, as it is the writer's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) of_writer: Option<u64>,
    /// When a write last followed one that was made by another clock; `None`: not for a while.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) turned: Option<Micros>,
}

/// The numbers of letters on their way to one queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Outbox {
    /// That of the first letter that was ever in it, which tells its letters from those in other outboxes.
    pub(super) began: u64,
    /// That of the first letter, and the one after that of the last.
    pub(super) first: u64,
    pub(super) end: u64,
}

/// What becomes of items that were claimed too often.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Poison {
    pub(super) max_claims: u32,
    pub(super) queue: String,
    /// How long an item lives there; `None`: for what is left of its life.
    pub(super) ttl: Option<Micros>,
}

/// Summaries of pages, or of groups, by number.
pub(super) type Index = BTreeMap<u64, Summary>;

/// What there is in a page or a group, as of the moment when it was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Summary {
    #[serde(rename = "r")]
    pub(super) ready: u64,
    #[serde(rename = "c")]
    pub(super) claimed: u64,
    #[serde(rename = "d")]
    pub(super) delayed: u64,
    #[serde(rename = "x")]
    pub(super) dead: u64,
    /// When the first of them changes by time alone.
    #[serde(rename = "w")]
    pub(super) wake: Micros,
    /// When the last of them dies.
    #[serde(rename = "u")]
    pub(super) until: Micros,
    /// When the oldest and the newest of those were posted that are not dead.
    #[serde(rename = "o")]
    pub(super) oldest: Micros,
    #[serde(rename = "n")]
    pub(super) newest: Micros,
}

impl Summary {
    pub(super) const NOTHING: Self = Self {
        ready: 0,
        claimed: 0,
        delayed: 0,
        dead: 0,
        wake: Micros::MAX,
        until: 0,
        oldest: Micros::MAX,
        newest: 0,
    };

    pub(super) fn of(page: &Page, now: Micros) -> Self {
        page.values().fold(Self::NOTHING, |sum, item| sum.with(Self::of_one(item, now)))
    }

    pub(super) fn of_all(index: &Index) -> Self {
        index.values().fold(Self::NOTHING, |sum, next| sum.with(*next))
    }

    fn of_one(item: &Item, now: Micros) -> Self {
        let alive = Self {
            wake: item.next_change(now),
            until: item.expires,
            oldest: item.made,
            newest: item.made,
            ..Self::NOTHING
        };
        match item.state(now) {
            State::Ready => Self { ready: 1, ..alive },
            State::Claimed => Self { claimed: 1, ..alive },
            State::Delayed => Self { delayed: 1, ..alive },
            State::Dead => Self { dead: 1, ..Self::NOTHING },
        }
    }

    pub(super) fn with(self, next: Self) -> Self {
        Self {
            ready: self.ready + next.ready,
            claimed: self.claimed + next.claimed,
            delayed: self.delayed + next.delayed,
            dead: self.dead + next.dead,
            wake: self.wake.min(next.wake),
            until: self.until.max(next.until),
            oldest: self.oldest.min(next.oldest),
            newest: self.newest.max(next.newest),
        }
    }

    /// The summary once all items are dead.
    pub(super) fn when_dead(self) -> Self {
        let dead = self.ready + self.claimed + self.delayed + self.dead;
        Self { dead, ..Self::NOTHING }
    }

    /// Whether an item of it is alive.
    pub(super) fn is_alive(&self, now: Micros) -> bool {
        now < self.until
    }

    /// Whether an item may have changed by time since the summary was written.
    pub(super) fn is_due(&self, now: Micros) -> bool {
        self.wake <= now
    }

    /// Whether an item of it may be ready.
    pub(super) fn may_be_ready(&self, now: Micros) -> bool {
        self.is_alive(now) && (self.ready > 0 || self.is_due(now))
    }

    /// Whether an item of it may be dead.
    pub(super) fn may_be_dead(&self, now: Micros) -> bool {
        self.dead > 0 || self.is_due(now)
    }
}

/// Items by rank.
pub(super) type Page = BTreeMap<u64, Item>;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Item {
    /// The random part of its name.
    #[serde(rename = "i")]
    pub(super) mark: u64,
    #[serde(rename = "m")]
    pub(super) made: Micros,
    #[serde(rename = "e")]
    pub(super) expires: Micros,
    #[serde(rename = "b")]
    pub(super) not_before: Micros,
    /// The last claim that had the item, and when that claim is over; `None`: there was none, or it gave the item back.
    #[serde(rename = "c", default, skip_serializing_if = "Option::is_none")]
    pub(super) claim: Option<(ClaimId, Micros)>,
    #[serde(rename = "n")]
    pub(super) claims: u32,
    #[serde(rename = "t")]
    pub(super) body: Body,
}

/// Where an item's body is, in base64.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Body {
    #[serde(rename = "h")]
    Here(String),
    /// In the record of bodies with this number; and how long it is.
    #[serde(rename = "f")]
    There(u64, u64),
}

/// Bodies by the rank of their item.
pub(super) type Bodies = BTreeMap<u64, String>;

/// What an item is at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Ready,
    Claimed,
    Delayed,
    Dead,
}

impl Item {
    pub(super) fn state(&self, now: Micros) -> State {
        match self.claim {
            _ if now >= self.expires => State::Dead,
            Some((_, until)) if now < until => State::Claimed,
            _ if now < self.not_before => State::Delayed,
            _ => State::Ready,
        }
    }

    /// When the item's state changes next by time alone.
    fn next_change(&self, now: Micros) -> Micros {
        let next = match self.state(now) {
            State::Claimed => self.claim.map_or(Micros::MAX, |(_, until)| until),
            State::Delayed => self.not_before,
            State::Ready | State::Dead => Micros::MAX,
        };
        next.min(self.expires)
    }

    pub(super) fn id(&self, rank: u64) -> ItemId {
        ItemId::new(rank, self.mark)
    }

    /// Whether this claim has the item, and is live.
    pub(super) fn is_of(&self, claim: ClaimId, now: Micros) -> bool {
        self.state(now) == State::Claimed && self.claim.is_some_and(|(id, _)| id == claim)
    }
}

/// The claims of a record.
pub(super) type Claims = BTreeMap<ClaimId, Claim>;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Claim {
    #[serde(rename = "t")]
    pub(super) ttl: Micros,
    #[serde(rename = "g")]
    pub(super) grace: Micros,
    #[serde(rename = "m")]
    pub(super) touched: Micros,
    /// When it is over: by time, or since it was released.
    #[serde(rename = "e")]
    pub(super) expires: Micros,
    #[serde(rename = "f")]
    pub(super) fence: u64,
    /// The entry with which the claim ends; `None`: it ends by its ttl only.
    #[serde(rename = "h", default, skip_serializing_if = "Option::is_none")]
    pub(super) holder: Option<u64>,
    /// The items that it was made of: some may be gone, or other claims' by now.
    #[serde(rename = "r")]
    pub(super) ranks: Vec<u64>,
}

impl Claim {
    pub(super) fn is_live(&self, now: Micros) -> bool {
        now < self.expires
    }

    pub(super) fn is_forgotten(&self, now: Micros) -> bool {
        now >= self.expires.saturating_add(REMEMBERED)
    }
}

/// The claims of one holder.
pub(super) type Held = BTreeSet<ClaimId>;

/// An item on its way to a dead letter queue.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Letter {
    pub(super) body: String,
    pub(super) claims: u32,
    /// How long it is to live there.
    pub(super) ttl: Micros,
}

/// What is known of the queues that send letters here, by their name and id. One of several such records: see
/// [`Draft::received`](super::draft::Draft::received).
pub(super) type Received = BTreeMap<String, Sender>;

/// A queue that sends letters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Sender {
    /// The number of the next letter that is expected from it: those with smaller ones have come.
    #[serde(rename = "n")]
    pub(super) next: u64,
    /// Larger than that of each queue in the same record whose last letters came before. Not a time: the queue's clock may stand still
    /// while letters come.
    #[serde(rename = "m")]
    pub(super) came: u64,
}

/// What is kept in a record. One that has nothing is removed.
pub(super) trait Kept: Default + Serialize + DeserializeOwned {
    fn is_nothing(&self) -> bool;
}

impl<K: Ord, V> Kept for BTreeMap<K, V>
where
    Self: Serialize + DeserializeOwned,
{
    fn is_nothing(&self) -> bool {
        self.is_empty()
    }
}

impl<K: Ord> Kept for BTreeSet<K>
where
    Self: Serialize + DeserializeOwned,
{
    fn is_nothing(&self) -> bool {
        self.is_empty()
    }
}

impl<T> Kept for Option<T>
where
    Self: Serialize + DeserializeOwned,
{
    fn is_nothing(&self) -> bool {
        self.is_none()
    }
}
