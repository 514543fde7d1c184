//! Who goes first where many change a queue at the same time.
//!
//! A step is a compare-and-set over all that it has read, and begins anew where others have written meanwhile. Whoever is
//! further from the store than the others, or has more to read, would lose every time. So a step that has lost a few times
//! enters the queue, with an entry that says so, and whoever sees that entry in what it has read lets the step go first;
//! several go in their order. A write that was on its way by then may still come first: one of each process.
//!
//! Precedence is a courtesy and no lock: nothing but the number of new beginnings depends on it. So nobody waits for one
//! entry longer than [`COURTESY`]: its process may be paused, or dead.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;

use super::engine::{Engine, Look};
use crate::backend::{Blocker, EntryRef, Listing, Mode};
use crate::recipe::engine::grant::Grant;
use crate::recipe::engine::own_entry::Contents;
use crate::recipe::engine::turn::Request;
use crate::retry::DecorrelatedJitter;

/// What the entry of a step that goes first has as its data. A process that holds claims has none.
const MARK: &str = "first";
/// How often a step begins anew before it asks to go first.
const TRIES: u32 = 3;
/// How long others wait for one that goes first, and those that have to be in time.
const COURTESY: Duration = Duration::from_secs(1);
const SHORT_COURTESY: Duration = Duration::from_millis(100);
/// How long they wait where the store cannot say whether it is done, or says so wrongly.
const PAUSE: Duration = Duration::from_millis(10);

/// What a step is to others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Manner {
    /// It writes, and so makes others begin anew.
    Writes,
    /// It writes, and has to be in time.
    InTime,
    /// It makes nobody begin anew, and so lets nobody go first before it has asked to go first itself.
    Reads,
}

/// What one step has had to wait for so far.
pub(super) struct Precedence<'a> {
    engine: &'a Engine,
    manner: Manner,
    /// The newest entry for which it waits no longer.
    passed_over: u64,
    tries: u32,
    delays: DecorrelatedJitter,
    /// Its entry, once it has asked to go first, and since when.
    own: Option<(Grant, Instant)>,
    /// The entry that it waits for, and since when.
    waits_for: Option<(u64, Instant)>,
    /// The entry of which the store has said last that it is gone.
    said_gone: Option<u64>,
}

/// The entries of those that go first, in order.
pub(super) fn ahead(listing: &Listing) -> Vec<Blocker> {
    let marked = listing.entries.iter().filter(|entry| &*entry.data == MARK);
    marked.map(Blocker::from).collect()
}

impl<'a> Precedence<'a> {
    pub(super) fn new(engine: &'a Engine, manner: Manner) -> Self {
        let delays = DecorrelatedJitter::new(Duration::from_millis(1), Duration::from_millis(50));
        let passed_over = engine.passed_over.load(Ordering::Acquire);
        let (own, waits_for, said_gone) = (None, None, None);
        Self { engine, manner, passed_over, tries: 0, delays, own, waits_for, said_gone }
    }

    /// Lets those go first that have asked for it before; true: it has waited, and what was read is old.
    pub(super) async fn let_others_go(&mut self, look: &Look) -> bool {
        if self.manner == Manner::Reads && self.own.is_none() {
            return false;
        }
        let passed = self.passed_over;
        let own = self.own.as_ref().and_then(|(own, _)| own.own_entry().seq());
        let is_before = |seq: u64| seq > passed && own.is_none_or(|own| seq < own);
        // The last of them: those before that one go before it anyway.
        let Some(last) = look.ahead.iter().rev().find(|entry| is_before(entry.seq)) else {
            return false;
        };
        let since = match self.waits_for {
            Some((seq, since)) if seq == last.seq => since,
            _ => self.waits_for.insert((last.seq, Instant::now())).1,
        };
        let courtesy = if self.manner == Manner::InTime { SHORT_COURTESY } else { COURTESY };
        let left = courtesy.saturating_sub(since.elapsed());
        if left.is_zero() {
            self.passed_over = last.seq;
            if courtesy == COURTESY {
                self.engine.passed_over.fetch_max(last.seq, Ordering::AcqRel);
            }
        } else {
            self.until_gone(last, left).await;
        }
        self.ask_if_due().await;
        true
    }

    /// Waits until the store says that the entry is gone, for so long at the most. It may say so though the entry stands.
    async fn until_gone(&mut self, entry: &Blocker, limit: Duration) {
        if self.said_gone == Some(entry.seq) {
            tokio::time::sleep(PAUSE).await;
        }
        let (queue, seq) = (&self.engine.queue, entry.seq);
        let entry = EntryRef { queue: queue.key.clone(), id: entry.id.clone() };
        let gone = queue.session.gone(&entry, seq, Mode::Exclusive, COURTESY);
        match tokio::time::timeout(limit, gone).await {
            Ok(Ok(())) => self.said_gone = Some(seq),
            Ok(Err(_)) => tokio::time::sleep(PAUSE).await,
            Err(_) => {}
        }
    }

    /// The step has to begin anew, since others have written.
    pub(super) async fn lost(&mut self) {
        if !self.ask_if_due().await {
            tokio::time::sleep(self.delays.next_delay()).await;
        }
    }

    /// Counts a try, and asks to go first if it was one too many; answers whether this goes first.
    async fn ask_if_due(&mut self) -> bool {
        self.tries += 1;
        // One whose session was lost stands nowhere, and others do not wait longer than that for one.
        let counts = |(own, since): &(Grant, Instant)| own.is_held() && since.elapsed() < COURTESY;
        self.own = self.own.take().filter(counts);
        if self.tries >= TRIES && self.own.is_none() {
            let queue = &self.engine.queue;
            // Shared, so that no process has to wait until it may hold claims.
            let contents = Contents { mode: Mode::Shared, data: MARK.into(), ..queue.contents() };
            let request = Request { contents, policy: None };
            match queue.acquire_within(&request, Some(COURTESY)).await {
                Ok(own) => self.own = Some((own, Instant::now())),
                Err(error) => tracing::debug!(%error, "a step goes on without going first"),
            }
        }
        self.own.is_some()
    }
}

#[cfg(all(test, feature = "memory"))]
mod tests;
