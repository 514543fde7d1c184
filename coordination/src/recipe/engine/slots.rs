//! Numbered slots of a queue: which entry has which of them, and which entry may take some.
//!
//! An entry's data says how many slots the entry wants and, once it has them, which ones. An entry is exclusive until it has
//! decided what to do, and shared from then on. It decides when all entries before it have decided. So entries decide one after
//! the other, in the order of the queue, and no two take the same slot. The tokens of a slot's holders rise, because whoever
//! takes the slot later also came later.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use super::data::{MAX_ENTRY_BYTES, MAX_VALUE_BYTES, from_data, to_data};
use super::queue::{Change, Queue};
use crate::backend::{Data, Entry, Listing, Mode, Room};
use crate::canary::{Canary, sings};
use crate::error::{Error, ErrorKind, Result};
use crate::serialize;
use crate::token::FencingToken;

/// The most slots that a queue can have.
pub(in crate::recipe) const MAX_SLOTS: u32 = 10_000;
/// The most slots that one entry can take: its data lists their numbers.
pub(in crate::recipe) const MAX_TAKEN: u32 = 500;

/// The data of an entry that wants slots.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(in crate::recipe) struct Claim {
    /// How many slots the entry wants.
    pub(in crate::recipe) wants: u32,
    /// Which slots the entry has; empty: none yet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(in crate::recipe) slots: Vec<u32>,
    /// Whether the entry was let in to stand by.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(in crate::recipe) standby: bool,
}

impl Claim {
    pub(in crate::recipe) fn of(entry: &Entry) -> Result<Self> {
        let claim: Self = from_data("acquire", &entry.data)?;
        // No version of this library writes such numbers, and working with them could take much memory.
        if claim.wants > MAX_TAKEN || claim.slots.iter().any(|slot| *slot >= MAX_SLOTS) {
            let message = "the store has an entry with more slots than there can be";
            return Err(Error::new(ErrorKind::Corrupt, "acquire", message));
        }
        Ok(claim)
    }

    pub(in crate::recipe) fn wants(count: u32) -> Self {
        Self { wants: count, slots: Vec::new(), standby: false }
    }

    pub(in crate::recipe) fn on_standby(self) -> Self {
        Self { standby: true, ..self }
    }

    pub(in crate::recipe) fn has(self, slots: Vec<u32>) -> Self {
        Self { slots, standby: false, ..self }
    }

    pub(in crate::recipe) fn data(&self) -> Result<Data> {
        to_data("acquire", self, MAX_ENTRY_BYTES)
    }

    /// The space that the store has to keep for this entry until it has its slots, if it is updated this many times.
    pub(in crate::recipe) fn room(&self, updates: usize) -> Result<Room> {
        let slots = (0..self.wants).map(|_| MAX_SLOTS - 1).collect();
        let longest = Self { slots, standby: true, ..self.clone() };
        Ok(Room { updates, bytes: longest.data()?.len() })
    }
}

/// The lowest free slots, counted from 0; `None`: fewer are free than are wanted.
pub(in crate::recipe) fn free(limit: u32, used: &BTreeSet<u32>, wants: u32) -> Option<Vec<u32>> {
    // After a resize to fewer slots, slots above the limit may still be in use. They count against the limit, too.
    let counted = if sings(Canary::SlotsAboveLimit) { 0 } else { used.len() };
    let room = usize::try_from(limit).unwrap_or(usize::MAX).saturating_sub(counted);
    let free: Vec<_> = (0..limit)
        .filter(|slot| !used.contains(slot))
        .take(room)
        .take(wants.try_into().unwrap_or(usize::MAX))
        .collect();
    (free.len() == usize::try_from(wants).unwrap_or(usize::MAX)).then_some(free)
}

/// Whether nobody else has a slot of this entry, and everybody before it has decided: nobody before it can take one of its slots.
pub(in crate::recipe) fn stand(listing: &Listing, own: &Entry) -> Result<bool> {
    let slots = Claim::of(own)?.slots;
    for entry in listing.entries.iter().filter(|entry| entry.seq != own.seq) {
        let (claim, is_before) = (Claim::of(entry)?, entry.seq < own.seq);
        let decides = is_before && (entry.mode == Mode::Exclusive || claim.standby);
        if decides || claim.slots.iter().any(|slot| slots.contains(slot)) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The stored limits; `None`: there are none. It is an error if they differ from the wanted ones, unless the caller accepts
/// limits that were `resized`.
pub(in crate::recipe) fn stored<L>(
    listing: &Listing,
    wanted: &L,
    resized: bool,
) -> Result<Option<L>>
where
    L: for<'de> Deserialize<'de> + PartialEq + std::fmt::Display,
{
    let Some(value) = &listing.value else { return Ok(None) };
    let stored: L = from_data("acquire", &value.data)?;
    if stored == *wanted || resized {
        return Ok(Some(stored));
    }
    let message = format!("the store has {stored}; asked for: {wanted}; see `resize`");
    Err(Error::new(ErrorKind::Mismatch, "acquire", message))
}

/// The stored limits, whatever anybody asks for; `None`: there are none yet.
pub(in crate::recipe) async fn limits<L: for<'de> Deserialize<'de>>(
    queue: &Queue,
) -> Result<Option<L>> {
    limits_in(queue, &queue.read("list").await?)
}

/// The limits that this listing of the queue has.
pub(in crate::recipe) fn limits_in<L: for<'de> Deserialize<'de>>(
    queue: &Queue,
    listing: &Listing,
) -> Result<Option<L>> {
    let value = listing.value.as_ref();
    queue.named(value.map(|value| from_data("list", &value.data)).transpose())
}

/// Stores these limits, whatever limits are stored now.
pub(in crate::recipe) async fn set_limits(
    queue: &Queue,
    limits: impl Serialize + Send + 'static,
) -> Result<()> {
    let data = to_data("resize", &limits, MAX_VALUE_BYTES)?;
    queue.modify("resize", move |_| Ok(Change::Write(Some(Arc::clone(&data)), ()))).await
}

/// A holder of slots, or somebody who waits for them, as listed by
/// [`Semaphore::holders`](crate::Semaphore::holders) and [`Limiter::inspect`](crate::Limiter::inspect).
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
/// # let coordinator = coordination::Coordinator::connect("memory://").await?;
/// let uploads = coordinator.semaphore("uploads", 3)?;
/// let permits = uploads.acquire_many(2, None).await?;
///
/// for occupant in uploads.holders().await? {
///     match occupant.slots.is_empty() {
///         true => println!("{} waits for {}", occupant.member, occupant.wants),
///         false => println!("{} has {:?}", occupant.member, occupant.slots),
///     }
/// }
/// # drop(permits);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Occupant {
    /// The contender's member id.
    pub member: String,
    /// The [label](crate::Semaphore::label) that it was given; empty if it was given none.
    pub label: String,
    /// When it asked, by the wall clock of its own host: for people to read, not to be compared.
    /// Written with serde, it is a number of seconds since 1970.
    #[serde(serialize_with = "serialize::since::serialize")]
    pub since: Option<SystemTime>,
    /// The token that it has, or will have.
    pub token: FencingToken,
    /// How many slots it asked for.
    pub wants: u32,
    /// The slots it has; empty while it waits.
    pub slots: Vec<u32>,
    /// Whether it is on standby at a limiter.
    pub standby: bool,
}

/// The holders of slots and the waiters, in the order of the queue. The numbers of slots begin with `first`.
pub(in crate::recipe) async fn occupants(queue: &Queue, first: u32) -> Result<Vec<Occupant>> {
    occupants_in(queue, &queue.read("list").await?, first)
}

/// Those that this listing of the queue has.
pub(in crate::recipe) fn occupants_in(
    queue: &Queue,
    listing: &Listing,
    first: u32,
) -> Result<Vec<Occupant>> {
    let occupant = |entry| occupant(queue, entry, first).transpose();
    listing.entries.iter().filter_map(occupant).collect()
}

/// Takes away what the occupant with this token holds or waits for, and answers it as it was.
pub(in crate::recipe) async fn break_grant(
    queue: &Queue,
    first: u32,
    token: FencingToken,
) -> Result<Option<Occupant>> {
    let listing = queue.read("break").await?;
    let Some(entry) = listing.entry(token.value()) else { return Ok(None) };
    let occupant = occupant(queue, entry, first)?;
    queue.take_away(entry).await?;
    Ok(occupant)
}

fn occupant(queue: &Queue, entry: &Entry, first: u32) -> Result<Option<Occupant>> {
    let claim = queue.named(Claim::of(entry))?;
    Ok(FencingToken::new(entry.seq).map(|token| Occupant {
        member: entry.member.to_string(),
        label: entry.label(),
        since: entry.since,
        token,
        wants: claim.wants,
        slots: claim.slots.iter().map(|slot| slot + first).collect(),
        standby: claim.standby,
    }))
}

/// Fails if this number of slots is not between 1 and `max`.
pub(in crate::recipe) fn check(what: &str, count: u32, max: u32) -> Result<u32> {
    if (1..=max).contains(&count) {
        return Ok(count);
    }
    let message = format!("{what} is {count}, and 1 to {max} are allowed");
    Err(Error::new(ErrorKind::Input, "acquire", message))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Mode;
    use crate::recipe::engine::data::stored;

    #[test]
    fn a_claim_is_one_that_can_have_been_made() {
        let kind = |data: &str| {
            let entry = stored::entry(7, Mode::Shared, data);
            Claim::of(&entry).err().map(|error| error.kind())
        };
        assert_eq!(kind(r#"{"wants":500,"slots":[9999]}"#), None);
        for damaged in [
            "",
            r#"{"wants":501}"#,
            r#"{"wants":4294967295}"#,
            r#"{"wants":1,"slots":[10000]}"#,
            r#"{"wants":1,"slots":[4294967295]}"#,
        ] {
            assert_eq!(kind(damaged), Some(ErrorKind::Corrupt), "{damaged}");
        }
    }

    #[test]
    fn slots_stand_if_nobody_else_has_or_may_take_them() {
        let has = |slots: &[u32]| Claim::wants(1).has(slots.to_vec());
        let stands = |others: &[(u64, Mode, Claim)]| {
            let own = (5, Mode::Shared, has(&[1]));
            let entry = |(seq, mode, claim): &(u64, Mode, Claim)| {
                stored::entry(*seq, *mode, claim.data().expect("it fits"))
            };
            let mut entries: Vec<_> = others.iter().chain([&own]).map(entry).collect();
            entries.sort_by_key(|entry| entry.seq);
            let listing = stored::listing(entries, None);
            stand(&listing, listing.entry(5).expect("it is there")).expect("they are readable")
        };
        let (wants, standby) = (|| Claim::wants(1), || Claim::wants(1).on_standby());
        assert!(stands(&[]));
        assert!(stands(&[(4, Mode::Shared, has(&[0])), (6, Mode::Shared, has(&[2]))]));
        assert!(!stands(&[(4, Mode::Shared, has(&[1]))]), "the server that took over says so");
        assert!(!stands(&[(4, Mode::Exclusive, wants())]), "it decides by what is there");
        assert!(!stands(&[(4, Mode::Shared, standby())]), "likewise");
        assert!(!stands(&[(6, Mode::Shared, has(&[1]))]));
        assert!(stands(&[(6, Mode::Exclusive, wants()), (7, Mode::Shared, standby())]));
    }

    #[test]
    fn the_lowest_free_slots_are_taken_if_there_are_enough() {
        let used = BTreeSet::from([0, 2]);
        assert_eq!(free(4, &used, 2), Some(vec![1, 3]));
        assert_eq!(free(4, &used, 3), None);
        assert_eq!(free(2, &used, 1), None, "two are in use, if not the first two");
        assert_eq!(free(1, &BTreeSet::new(), 1), Some(vec![0]));
    }
}
