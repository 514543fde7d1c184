//! A step of a queue in the making: what was read of it, and what is to be written.
//!
//! A step is a function of a [`Draft`], without I/O. Where it asks for a record that was not read yet it ends with
//! [`Stop::Fetch`], and is run anew when that was read. So all that it does is one compare-and-set of the head.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use sha2::{Digest as _, Sha256};
use tokio::time::Instant;

use super::buckets::Bucket;
use super::ids::ClaimId;
use super::layout::{
    Bodies, Body, Claims, GROUP, Head, Held, Index, Item, Kept, Letter, Micros, PAGE, Page,
    Received, Summary,
};
use crate::backend::{Beside, Data, Source};
use crate::error::{Error, ErrorKind, Result};
use crate::recipe::engine::data::from_data;
use crate::time::BootInstant;

/// Records as they are at one version of the head; `None`: there is none.
pub(super) type Known = HashMap<Arc<str>, Option<Data>>;

/// After how many changed records a step leaves the rest to the next one. One more page, with all that changes with it, then
/// still fits beside the write (`MOST_BESIDE`).
const FULL: usize = 40;
/// After about how many bytes of pages and letters a step leaves the rest to the next one. Every store takes 384 KiB at once
/// (Consul no more): what is left of that is enough for one more page, the head, a bucket and a holder. A thousand items with
/// bodies of up to 24 bytes fit into one step.
pub(super) const HEAVY: usize = 240 * 1024;
/// How long the head may be before it counts among those bytes.
const SHORT_HEAD: usize = 16 * 1024;
/// What an item takes in its page at the most, beside its body, also when a claim has it.
const BESIDE_BODY: usize = 200;

#[derive(Debug)]
pub(super) enum Stop {
    /// These records are needed.
    Fetch(Vec<Arc<str>>),
    Fail(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Fail(error)
    }
}

pub(super) type Step<T> = Result<T, Stop>;

#[derive(Debug, PartialEq)]
pub(super) enum Outcome<T> {
    Done(T),
    /// What was done so far is to be written, and the step made again.
    Again,
}

impl<T> Outcome<T> {
    pub(super) fn map<U>(self, change: impl FnOnce(T) -> U) -> Outcome<U> {
        match self {
            Self::Done(answer) => Outcome::Done(change(answer)),
            Self::Again => Outcome::Again,
        }
    }
}

pub(super) struct Draft<'a> {
    pub(super) head: Head,
    /// The head's version; zero: there is no queue yet.
    pub(super) version: u64,
    pub(super) now: Micros,
    /// When the store was asked for the head.
    pub(super) asked: Instant,
    /// The same moment by the clock that counts suspend, as the ttl of a claim is counted: `now` is at or after it.
    pub(super) sent: BootInstant,
    /// Who gave the head, for what has to be confirmed.
    pub(super) source: Option<Source>,
    /// The entries that there are, in order; `None`: all that claims name are there.
    pub(super) entries: Option<&'a [u64]>,
    /// What this step writes has no time in it that is later than those which were there.
    pub(super) sets_no_time: bool,
    /// This step adds to the queue, and so leaves room in the head for those that do not.
    pub(super) adds: bool,
    /// What this step writes was decided by which entries there are, so that only who has given the head may carry it out.
    pub(super) by_entries: bool,
    /// The ranks of items that are removed because somebody has removed their bodies.
    pub(super) without_body: Vec<u64>,
    known: &'a Known,
    pages: Shelf<u64, Page>,
    groups: Shelf<u64, Index>,
    buckets: Shelf<Bucket, Claims>,
    holders: Shelf<u64, Held>,
    bodies: Shelf<u64, Bodies>,
    letters: Shelf<LetterPlace, Option<Letter>>,
    received: Shelf<u8, Received>,
    has_changed: bool,
}

/// The number with which its outbox began, and its own.
pub(super) type LetterPlace = (u64, u64);

/// Records of one kind.
type Shelf<K, V> = BTreeMap<K, Slot<V>>;

struct Slot<V> {
    value: V,
    was_there: bool,
    has_changed: bool,
}

impl<'a> Draft<'a> {
    pub(super) fn new(head: Head, version: u64, now: Micros, known: &'a Known) -> Self {
        Self {
            head,
            version,
            now,
            asked: Instant::now(),
            sent: BootInstant::now(),
            source: None,
            entries: None,
            sets_no_time: false,
            adds: false,
            by_entries: false,
            without_body: Vec::new(),
            known,
            pages: BTreeMap::new(),
            groups: BTreeMap::new(),
            buckets: BTreeMap::new(),
            holders: BTreeMap::new(),
            bodies: BTreeMap::new(),
            letters: BTreeMap::new(),
            received: BTreeMap::new(),
            has_changed: false,
        }
    }

    /// Whether this entry is there.
    pub(super) fn is_there(&self, entry: u64) -> bool {
        self.entries.is_none_or(|entries| entries.binary_search(&entry).is_ok())
    }

    /// Whether an item may be ready, as far as the head tells.
    pub(super) fn may_be_ready(&self) -> bool {
        self.head.live.groups.values().any(|group| group.may_be_ready(self.now))
    }

    /// Whether the head alone, as it was read, shows that nothing is ready.
    pub(super) fn has_nothing(&self) -> bool {
        !self.has_changed && !self.may_be_ready()
    }

    /// The head, which then is to be written.
    pub(super) fn change(&mut self) -> &mut Head {
        self.has_changed = true;
        &mut self.head
    }

    /// Asks for several records at once.
    pub(super) fn want(&self, names: impl IntoIterator<Item = Arc<str>>) -> Step<()> {
        let missing = names.into_iter().filter(|name| !self.known.contains_key(name));
        let missing: Vec<_> = missing.collect();
        if missing.is_empty() { Ok(()) } else { Err(Stop::Fetch(missing)) }
    }

    pub(super) fn page_name(&self, page: u64) -> Arc<str> {
        name('p', self.head.live.generation, page)
    }

    pub(super) fn group_name(&self, page: u64) -> Arc<str> {
        name('g', self.head.live.generation, self.head.live.group_of(page))
    }

    pub(super) fn bucket_name(&self, claim: ClaimId) -> Arc<str> {
        self.bucket_name_of(self.head.live.bucket_of(claim))
    }

    pub(super) fn bucket_name_of(&self, bucket: Bucket) -> Arc<str> {
        name('c', self.head.live.generation, bucket.into())
    }

    pub(super) fn holder_name(&self, holder: u64) -> Arc<str> {
        name('h', self.head.live.generation, holder)
    }

    pub(super) fn body_name(&self, bodies: u64) -> Arc<str> {
        name('b', self.head.live.generation, bodies)
    }

    pub(super) fn page(&mut self, page: u64) -> Step<&Page> {
        let name = self.page_name(page);
        self.pages.open(page, &name, self.known).map(|slot| &slot.value)
    }

    /// The summary of a page that changes is made anew when the step is done.
    pub(super) fn page_mut(&mut self, page: u64) -> Step<&mut Page> {
        self.want([self.page_name(page), self.group_name(page)])?;
        self.has_changed = true;
        let name = self.page_name(page);
        self.pages.open(page, &name, self.known).map(Slot::change)
    }

    pub(super) fn group(&mut self, group: u64) -> Step<&Index> {
        let name = self.group_name(group * GROUP);
        self.groups.open(group, &name, self.known).map(|slot| &slot.value)
    }

    /// The head has to be told of what changes.
    pub(super) fn group_mut(&mut self, group: u64) -> Step<&mut Index> {
        let name = self.group_name(group * GROUP);
        self.groups.open(group, &name, self.known).map(Slot::change)
    }

    /// The pages of a group are in another one from now on, the next one before it, if both have no more than a group may have. Those
    /// that this step makes are not counted yet.
    pub(super) fn join_groups(&mut self, first: u64, second: u64) -> Step<()> {
        self.want([self.group_name(first * GROUP), self.group_name(second * GROUP)])?;
        if self.group(first)?.len() + self.group(second)?.len() > GROUP as usize {
            return Ok(());
        }
        let pages = std::mem::take(self.group_mut(second)?);
        self.group_mut(first)?.extend(pages);
        self.change().live.join(first, second);
        Ok(())
    }

    pub(super) fn claims(&mut self, of: ClaimId) -> Step<&Claims> {
        self.bucket(self.head.live.bucket_of(of))
    }

    /// The same record, which then is to be written.
    pub(super) fn claims_mut(&mut self, of: ClaimId) -> Step<&mut Claims> {
        self.bucket_mut(self.head.live.bucket_of(of))
    }

    pub(super) fn bucket(&mut self, bucket: Bucket) -> Step<&Claims> {
        let name = self.bucket_name_of(bucket);
        self.buckets.open(bucket, &name, self.known).map(|slot| &slot.value)
    }

    pub(super) fn bucket_mut(&mut self, bucket: Bucket) -> Step<&mut Claims> {
        self.has_changed = true;
        let name = self.bucket_name_of(bucket);
        self.buckets.open(bucket, &name, self.known).map(Slot::change)
    }

    /// Adds a part to the bucket of this claim, which takes its share of the claims of another part.
    pub(super) fn divide_bucket(&mut self, of: ClaimId) -> Step<()> {
        let live = &self.head.live;
        let Some((from, to)) = live.next_division(live.bucket_of(of)) else { return Ok(()) };
        self.want([self.bucket_name_of(from), self.bucket_name_of(to)])?;
        self.change().live.divide_bucket(from);
        let claims = std::mem::take(self.bucket_mut(from)?);
        for (id, claim) in claims {
            self.claims_mut(id)?.insert(id, claim);
        }
        Ok(())
    }

    pub(super) fn held(&mut self, holder: u64) -> Step<&mut Held> {
        self.has_changed = true;
        let name = self.holder_name(holder);
        self.holders.open(holder, &name, self.known).map(Slot::change)
    }

    /// The claims of a holder, which are not to be changed.
    pub(super) fn peek_held(&mut self, holder: u64) -> Step<&Held> {
        let name = self.holder_name(holder);
        self.holders.open(holder, &name, self.known).map(|slot| &slot.value)
    }

    /// New bodies: nobody has used this number before.
    pub(super) fn new_bodies(&mut self, number: u64, bodies: Bodies) {
        self.has_changed = true;
        let slot = Slot { value: bodies, was_there: false, has_changed: true };
        self.bodies.insert(number, slot);
    }

    /// Writes a letter, or removes it (`None`), also where what is there cannot be read.
    pub(super) fn set_letter(&mut self, place: LetterPlace, letter: Option<Letter>) -> Step<()> {
        let name = letter_name(place);
        self.want([Arc::clone(&name)])?;
        let was_there = self.known.get(&name).is_some_and(Option::is_some);
        self.has_changed = true;
        self.letters.insert(place, Slot { value: letter, was_there, has_changed: true });
        Ok(())
    }

    pub(super) fn peek_letter(&mut self, place: LetterPlace) -> Step<Option<Letter>> {
        let slot = self.letters.open(place, &letter_name(place), self.known)?;
        Ok(slot.value.clone())
    }

    /// What is left of a letter that was read and [is not as it was written](remains).
    pub(super) fn remains_of_letter(&self, place: LetterPlace, most: usize) -> String {
        remains(self.raw(&letter_name(place)), most)
    }

    /// A record that was read, as it is.
    fn raw(&self, name: &Arc<str>) -> &str {
        self.known.get(name).and_then(Option::as_deref).unwrap_or_default()
    }

    /// The record for letters that come from this queue.
    pub(super) fn received(&mut self, from: &str) -> Step<&mut Received> {
        self.has_changed = true;
        let part = part_of(from);
        self.received.open(part, &received_name(part), self.known).map(Slot::change)
    }

    /// A record of a queue that was deleted.
    pub(super) fn old<V: Kept>(&self, name: &Arc<str>) -> Step<V> {
        self.want([Arc::clone(name)])?;
        read(name, self.known).map(Option::unwrap_or_default)
    }

    /// The first page from this one on whose summary is so.
    pub(super) fn next_page(
        &mut self,
        from: u64,
        is_so: impl Fn(&Summary) -> bool,
    ) -> Step<Option<u64>> {
        let groups = self.head.live.groups.range(self.head.live.group_of(from)..);
        let groups: Vec<_> =
            groups.filter(|(_, all)| is_so(all)).map(|(group, _)| *group).collect();
        for group in groups {
            let mut pages = self.group(group)?.range(from..);
            if let Some((page, _)) = pages.find(|(_, summary)| is_so(summary)) {
                return Ok(Some(*page));
            }
        }
        Ok(None)
    }

    /// Removes an item, and its record of bodies if no other item is in that. Answers the item; `None`: it was not there.
    pub(super) fn remove(&mut self, rank: u64) -> Step<Option<Item>> {
        let page = self.page_mut(rank / PAGE)?;
        let Some(item) = page.remove(&rank) else { return Ok(None) };
        if let Body::There(bodies, _) = item.body {
            // Items that were posted together and stand on one page may share a record of bodies.
            let is_used = page.values().any(|other| match other.body {
                Body::There(others, _) => others == bodies,
                Body::Here(_) => false,
            });
            if !is_used {
                let name = self.body_name(bodies);
                self.head.litter.push(name.to_string());
            }
        }
        Ok(Some(item))
    }

    /// The name of the record that an item's body is in; `None`: it stands with the item.
    pub(super) fn unread_body(&self, body: &Body) -> Option<Arc<str>> {
        match body {
            Body::Here(_) => None,
            Body::There(bodies, _) => Some(self.body_name(*bodies)),
        }
    }

    /// The body of an item, in base64; `None`: somebody has removed the record that it was in. If somebody has changed that record so that
    /// it cannot be read, what is [left](remains) of it: the items in it cannot be read then, but hold up nobody.
    pub(super) fn body(&mut self, rank: u64, body: &Body) -> Step<Option<String>> {
        match body {
            Body::Here(text) => Ok(Some(text.clone())),
            Body::There(bodies, length) => {
                let name = self.body_name(*bodies);
                let all = self.bodies.open(*bodies, &name, self.known);
                match all.map(|all| all.value.get(&rank).cloned()) {
                    // No more than the body's length, as many items may share the record, and nothing is longer than was reckoned with.
                    Err(Stop::Fail(error)) if error.kind() == ErrorKind::Corrupt => {
                        let most = usize::try_from(*length).unwrap_or(usize::MAX);
                        Ok(Some(remains(self.raw(&name), most)))
                    }
                    body => body,
                }
            }
        }
    }

    /// Whether this step has to leave the rest to the next one: never, if it has changed nothing yet.
    pub(super) fn is_full(&self) -> bool {
        let changed = self.changed();
        changed >= FULL || (changed > 0 && self.weight() >= HEAVY)
    }

    /// Whether these pages can be changed in this step too, with a claim that has items on them; always if no page was changed
    /// yet.
    pub(super) fn has_room_for(&mut self, pages: &BTreeSet<u64>) -> Step<bool> {
        let (mut records, mut weight) = (self.changed(), self.weight());
        if self.pages.changed().is_empty() && self.buckets.changed().is_empty() {
            return Ok(true);
        }
        for page in pages {
            if !self.pages.get(page).is_some_and(|slot| slot.has_changed) {
                (records, weight) = (records + 2, weight + weight_of(self.page(*page)?));
            }
        }
        Ok(records + 2 <= FULL && weight <= HEAVY)
    }

    /// Whether a letter of this length can be written in this step too: always if it is the first, and only its own page has
    /// changed.
    pub(super) fn has_room_for_letter(&self, length: usize) -> bool {
        let is_first = self.pages.changed().len() <= 1 && self.letters.is_empty();
        let others = self.buckets.changed().len() + self.holders.changed().len();
        (is_first && others == 0) || (!self.is_full() && self.weight() + length <= HEAVY)
    }

    /// About how many bytes the pages and letters take that are to be written, and the head, if that is long.
    fn weight(&self) -> usize {
        let head = self.head.weight().saturating_sub(SHORT_HEAD);
        let pages = self.pages.values().filter(|slot| slot.has_changed);
        let letters = self.letters.values().filter_map(|slot| slot.value.as_ref());
        let pages: usize = pages.map(|slot| weight_of(&slot.value)).sum();
        head + pages + letters.map(|letter| letter.body.len() + BESIDE_BODY).sum::<usize>()
    }

    fn changed(&self) -> usize {
        let pages = self.pages.changed();
        let of_pages = pages.iter().map(|page| self.head.live.group_of(**page));
        let groups: BTreeSet<_> =
            of_pages.chain(self.groups.changed().into_iter().copied()).collect();
        let others = self.buckets.changed().len() + self.holders.changed().len();
        let bodies = self.bodies.changed().len() + self.letters.changed().len();
        pages.len() + groups.len() + others + bodies + self.received.changed().len()
    }

    /// Brings the summaries up to date, and answers the head and the records that are to be written; `None`: nothing is.
    pub(super) fn finish(mut self) -> Step<Option<(Head, Vec<Beside>)>> {
        if !self.has_changed {
            return Ok(None);
        }
        self.sum_up()?;
        let room = FULL.saturating_sub(self.changed());
        let litter = self.head.litter.len();
        let swept = self.head.litter.split_off(litter.saturating_sub(room));
        self.note_which_are_there();
        let generation = self.head.live.generation;
        let mut beside: Vec<_> = swept
            .into_iter()
            .map(|name| Beside { name: name.into(), data: None, is_new: false })
            .collect();
        self.pages.write(&mut beside, |page| name('p', generation, *page))?;
        self.groups.write(&mut beside, |group| name('g', generation, *group))?;
        self.buckets.write(&mut beside, |bucket| name('c', generation, (*bucket).into()))?;
        self.holders.write(&mut beside, |holder| name('h', generation, *holder))?;
        self.bodies.write(&mut beside, |bodies| name('b', generation, *bodies))?;
        self.letters.write(&mut beside, |place| letter_name(*place))?;
        self.received.write(&mut beside, |part| received_name(*part))?;
        Ok(Some((self.head, beside)))
    }

    /// Brings the summaries of the pages up to date that have changed so far.
    pub(super) fn sum_up(&mut self) -> Step<()> {
        let changed: Vec<_> = self.pages.changed().into_iter().copied().collect();
        for page in changed {
            let summary = self.pages.get(&page).map(|slot| Summary::of(&slot.value, self.now));
            let name = self.group_name(page);
            let number = self.head.live.group_of(page);
            let group = self.groups.open(number, &name, self.known)?.change();
            match summary {
                Some(summary) if !self.pages.get(&page).is_some_and(Slot::is_nothing) => {
                    group.insert(page, summary)
                }
                _ => group.remove(&page),
            };
            let all = (!group.is_empty()).then(|| Summary::of_all(group));
            self.head.live.note_group(number, all);
        }
        Ok(())
    }

    /// Notes in the head which buckets and holders there are.
    fn note_which_are_there(&mut self) {
        let live = &mut self.head.live;
        let is_nothing =
            |bucket| self.buckets.get(&bucket).is_some_and(|slot: &Slot<Claims>| slot.is_nothing());
        let opened: Vec<_> = self.buckets.keys().copied().collect();
        live.note_buckets(&opened, is_nothing);
        for (holder, slot) in &self.holders {
            match slot.is_nothing() {
                true => live.holders.remove(holder),
                false => live.holders.insert(*holder),
            };
        }
    }
}

impl<V> Slot<V> {
    fn change(&mut self) -> &mut V {
        self.has_changed = true;
        &mut self.value
    }
}

impl<V: Kept> Slot<V> {
    fn is_nothing(&self) -> bool {
        self.value.is_nothing()
    }
}

/// What all kinds of records have in common.
trait Shelved<K, V> {
    fn open(&mut self, key: K, name: &Arc<str>, known: &Known) -> Step<&mut Slot<V>>;
    fn changed(&self) -> Vec<&K>;
    fn write(&self, beside: &mut Vec<Beside>, name: impl Fn(&K) -> Arc<str>) -> Step<()>;
}

impl<K: Ord + Copy, V: Kept> Shelved<K, V> for Shelf<K, V> {
    fn open(&mut self, key: K, name: &Arc<str>, known: &Known) -> Step<&mut Slot<V>> {
        match self.entry(key) {
            std::collections::btree_map::Entry::Occupied(slot) => Ok(slot.into_mut()),
            std::collections::btree_map::Entry::Vacant(slot) => {
                let value = read(name, known)?;
                let was_there = value.is_some();
                let value = value.unwrap_or_default();
                Ok(slot.insert(Slot { value, was_there, has_changed: false }))
            }
        }
    }

    fn changed(&self) -> Vec<&K> {
        self.iter().filter(|(_, slot)| slot.has_changed).map(|(key, _)| key).collect()
    }

    fn write(&self, beside: &mut Vec<Beside>, name: impl Fn(&K) -> Arc<str>) -> Step<()> {
        for (key, slot) in self.iter().filter(|(_, slot)| slot.has_changed) {
            let (name, is_new) = (name(key), !slot.was_there);
            match slot.is_nothing() {
                true if is_new => {}
                true => beside.push(Beside { name, data: None, is_new }),
                false => {
                    let data = Some(written(&slot.value)?);
                    beside.push(Beside { name, data, is_new });
                }
            }
        }
        Ok(())
    }
}

fn read<V: Kept>(name: &Arc<str>, known: &Known) -> Step<Option<V>> {
    match known.get(name) {
        None => Err(Stop::Fetch(vec![Arc::clone(name)])),
        Some(None) => Ok(None),
        Some(Some(data)) => Ok(Some(from_data("read", data)?)),
    }
}

/// What is left of a text that cannot be read, for the body of an item that cannot be read either, as `!` is not in base64: what may be of
/// a body stays, of the first characters of the text, so many at the most.
fn remains(text: &str, most: usize) -> String {
    let is_of_body = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '/');
    let kept = text.chars().take(most).map(|c| if is_of_body(c) { c } else { '!' });
    std::iter::once('!').chain(kept).collect()
}

fn written(value: &impl serde::Serialize) -> Step<Data> {
    let text = serde_json::to_string(value);
    let text = text.map_err(|error| corrupt().with_source(error))?;
    Ok(text.into())
}

/// About how many bytes a page takes.
fn weight_of(page: &Page) -> usize {
    let weight = |item: &Item| match &item.body {
        Body::Here(text) => text.len() + BESIDE_BODY,
        Body::There(..) => BESIDE_BODY,
    };
    page.values().map(weight).sum()
}

/// No name is the beginning of another one: some store can only read all keys that begin with a name.
pub(super) fn name(kind: char, generation: u64, number: u64) -> Arc<str> {
    format!("{generation}{kind}{number}-").into()
}

pub(super) fn letter_name((outbox, number): LetterPlace) -> Arc<str> {
    name('l', outbox, number)
}

fn received_name(part: u8) -> Arc<str> {
    name('m', 0, part.into())
}

/// In which of 256 records the number of this queue's next letter is. One record for all queues would be too long to be written,
/// where each of many jobs has a queue of its own, and all of them have one dead letter queue.
fn part_of(from: &str) -> u8 {
    Sha256::digest(from.as_bytes())[0]
}

pub(super) fn corrupt() -> Error {
    Error::new(ErrorKind::Corrupt, "read", "the queue's records do not fit together")
}
