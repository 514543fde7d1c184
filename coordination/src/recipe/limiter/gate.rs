//! The limiter's policy: who works, who stands by and who is refused.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use super::super::engine::data::{MAX_VALUE_BYTES, to_data};
use super::super::engine::policy::{Decision, Policy};
use super::super::engine::slots::{self, Claim};
use super::{Refusal, Standing};
use crate::backend::{Entry, Listing, Mode};
use crate::error::{Error, ErrorKind, Result};

/// The limits, as the queue's value has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Limits {
    pub(super) slots: u32,
    pub(super) standby: u32,
    pub(super) latest_wins: bool,
}

impl fmt::Display for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let order = if self.latest_wins { "the latest wins" } else { "first come, first served" };
        write!(f, "{} slots and {} on standby, {order}", self.slots, self.standby)
    }
}

/// Decides who works, who waits and who is refused.
pub(super) struct Gate {
    limits: Limits,
    /// Whether the entry may be put on standby.
    is_patient: bool,
    standing: watch::Sender<Standing>,
    /// Whether the store has answered: only then the gate is asked.
    was_asked: AtomicBool,
    /// The reason, if the last decision was to refuse.
    refusal: Mutex<Option<Refusal>>,
    /// Why the store refuses to keep what was decided.
    by_store: Mutex<Option<Error>>,
}

/// What an entry that decides finds of the other entries.
#[derive(Default)]
struct Others {
    used: BTreeSet<u32>,
    standby_before: usize,
    standby: usize,
    /// Whether an entry after ours works or is on standby.
    is_replaced: bool,
}

impl Policy for Gate {
    fn decide(&self, listing: &Listing, own: &Entry) -> Result<Decision> {
        self.was_asked.store(true, Ordering::Relaxed);
        *lock(&self.refusal) = None;
        let waits = Claim::of(own)?;
        let Some(limits) = slots::stored(listing, &self.limits, waits.standby)? else {
            return Ok(Decision::Initialize(to_data("enter", &self.limits, MAX_VALUE_BYTES)?));
        };
        let (mut others, mut arriving) = (Others::default(), None);
        for entry in listing.entries.iter().filter(|entry| entry.seq != own.seq) {
            let is_before = entry.seq < own.seq;
            if entry.mode == Mode::Exclusive {
                if is_before {
                    arriving = Some(entry);
                }
                continue;
            }
            let claim = Claim::of(entry)?;
            others.standby += usize::from(claim.standby);
            others.standby_before += usize::from(claim.standby && is_before);
            others.is_replaced |= !is_before;
            others.used.extend(claim.slots);
        }
        match (waits.standby, arriving) {
            (true, _) => self.on_standby(limits, &others, waits),
            (false, Some(before)) => Ok(Decision::WaitFor(before.into())),
            (false, None) => self.arriving(limits, &others, waits),
        }
    }

    fn stands(&self, listing: &Listing, own: &Entry) -> Result<bool> {
        slots::stand(listing, own)
    }

    fn is_patient(&self) -> bool {
        self.is_patient
    }

    fn refused(&self, by_store: Option<&Error>) {
        *lock(&self.by_store) = by_store.cloned();
    }
}

impl Gate {
    /// A gate, and a channel that reports how far its entry is.
    pub(super) fn new(limits: Limits, is_patient: bool) -> (Arc<Self>, watch::Receiver<Standing>) {
        let (standing, told) = watch::channel(Standing::Arriving);
        let (was_asked, refusal, by_store) = Default::default();
        let gate = Self { limits, is_patient, standing, was_asked, refusal, by_store };
        (Arc::new(gate), told)
    }

    /// Whether the store has told of the queue, with our entry in it.
    pub(super) fn was_asked(&self) -> bool {
        self.was_asked.load(Ordering::Relaxed)
    }

    fn arriving(&self, limits: Limits, others: &Others, claim: Claim) -> Result<Decision> {
        // While others stand by, a free slot is for the first of them.
        if others.standby == 0
            && let Some(slots) = slots::free(limits.slots, &others.used, 1)
        {
            return Ok(Decision::Take(claim.has(slots).data()?));
        }
        let room = usize::try_from(limits.standby).unwrap_or(usize::MAX);
        match others.standby {
            _ if !self.is_patient || room == 0 => self.refuse(Refusal::AllBusy),
            // With `latest_wins`, a newcomer goes on standby, and the contender that was on standby gives up. A third one waits
            // until that contender has gone.
            0 | 1 if limits.latest_wins => Ok(Decision::Publish(claim.on_standby().data()?)),
            _ if limits.latest_wins => Ok(Decision::Wait),
            waiting if waiting < room => Ok(Decision::Publish(claim.on_standby().data()?)),
            _ => self.refuse(Refusal::StandbyFull),
        }
    }

    fn on_standby(&self, limits: Limits, others: &Others, claim: Claim) -> Result<Decision> {
        self.standing.send_if_modified(|standing| {
            let is_news = *standing == Standing::Arriving;
            *standing = Standing::Standby;
            is_news
        });
        if limits.latest_wins && others.is_replaced {
            return self.refuse(Refusal::Replaced);
        }
        // This also holds with `latest_wins`: a contender before us may have decided to take the slot before we came, and its
        // update may be in flight.
        let is_first = others.standby_before == 0;
        match slots::free(limits.slots, &others.used, 1).filter(|_| is_first) {
            Some(slots) => Ok(Decision::Take(claim.has(slots).data()?)),
            None => Ok(Decision::Wait),
        }
    }

    fn refuse(&self, refusal: Refusal) -> Result<Decision> {
        *lock(&self.refusal) = Some(refusal);
        Err(Error::new(ErrorKind::Timeout, "enter", "refused"))
    }

    /// Why the entry was refused, if it was.
    pub(super) fn refusal(&self) -> Option<Refusal> {
        *lock(&self.refusal)
    }

    /// Why the store refuses for now to keep what was decided, if it does.
    pub(super) fn refusal_by_store(&self) -> Option<Error> {
        lock(&self.by_store).clone()
    }
}

fn lock<T>(known: &Mutex<T>) -> MutexGuard<'_, T> {
    known.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::engine::data::stored;

    fn listing(limits: Limits, claims: &[Claim]) -> Listing {
        let entry = |(seq, claim): (u64, &Claim)| {
            stored::entry(seq, Mode::Shared, claim.data().expect("it fits"))
        };
        let data = to_data("enter", &limits, MAX_VALUE_BYTES).expect("it fits");
        stored::listing((1..).zip(claims).map(entry).collect(), Some(&data))
    }

    /// What the entry with this index is to do, and why if it is refused.
    fn told(limits: Limits, claims: &[Claim], own: usize) -> (&'static str, Option<Refusal>) {
        let listing = listing(limits, claims);
        let (gate, _standing) = Gate::new(limits, true);
        let verdict = match gate.decide(&listing, &listing.entries[own]) {
            Ok(Decision::Take(_)) => "take",
            Ok(Decision::Wait) => "wait",
            Ok(_) => "other",
            Err(_) => "refused",
        };
        (verdict, gate.refusal())
    }

    #[test]
    fn nobody_takes_a_slot_while_one_before_him_may_be_about_to() {
        for latest_wins in [false, true] {
            let limits = Limits { slots: 1, standby: 1, latest_wins };
            let waits = || Claim::wants(1).on_standby();
            assert_eq!(told(limits, &[waits()], 0), ("take", None));
            // The first contender may have decided before the second came, and its update may be in flight.
            assert_eq!(told(limits, &[waits(), waits()], 1), ("wait", None));
            let first = match latest_wins {
                true => ("refused", Some(Refusal::Replaced)),
                false => ("take", None),
            };
            assert_eq!(told(limits, &[waits(), waits()], 0), first);
        }
    }
}
