//! Who goes first where many change a queue at the same time.
//!
//! A step is a compare-and-set over all that it has read, and begins anew where others have written meanwhile. Whoever is
//! further from the store than the others, or has more to read, would lose every time. So a step that has lost a few times
//! enters the queue, with an entry that says so, and whoever sees that entry in what it has read lets the step go first;
//! several go in their order. A write that was on its way by then may still come first: one of each process.
//!
//! Precedence is a courtesy and no lock: nothing but the number of new beginnings depends on it. So nobody waits for one
//! entry longer than it asks for, from when it is the first of those that are there: its process may be paused, or dead. It
//! asks for a few times what its own tries have taken. Where processes die again and again, as many entries of dead ones stand
//! in the line, each until its session is over, and all that the others wait for them is lost.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::OwnedMutexGuard;
use tokio::time::Instant;

use super::engine::{Engine, Look};
use crate::backend::{Blocker, Entry, EntryRef, Listing, Mode};
use crate::recipe::engine::grant::Grant;
use crate::recipe::engine::own_entry::Contents;
use crate::recipe::engine::turn::Request;
use crate::retry::DecorrelatedJitter;
use crate::session::Purpose;

/// The data of an entry of a step that goes first is this, and for how many milliseconds it asks. The entry of a process that holds
/// claims has no data.
const MARK: &str = "first ";
/// How often a step begins anew before it asks to go first.
const TRIES: u32 = 3;
/// How often a step that only reads may go first in vain, because it takes longer than others wait. After that it fails: each
/// time it keeps all writers waiting.
const IN_VAIN: u32 = 3;
/// How long others wait for a step that goes first, at the most, and for one whose tries take no time.
pub(super) const COURTESY: Duration = Duration::from_secs(1);
const LEAST_COURTESY: Duration = Duration::from_millis(50);
/// How many of its tries a step that goes first asks for. Writes that were on their way by then may come before the first of them, and
/// before the second.
const ASKED_TRIES: u32 = 4;
/// How long a renewal by the claim's id alone waits for others in all: when it has to be done is not known here.
pub(super) const SHORT_COURTESY: Duration = Duration::from_millis(100);
/// How long others wait if the store cannot say whether that step is done, or has said so wrongly.
const PAUSE: Duration = Duration::from_millis(10);

/// What a step is to others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Manner {
    /// It writes, and so makes others begin anew.
    Writes,
    /// It writes, and has to be in time: from this moment on it lets nobody go first.
    InTime(Instant),
    /// It makes nobody begin anew, and so lets nobody go first before it has asked to go first itself.
    Reads,
}

/// What one step has had to wait for so far.
pub(super) struct Precedence<'a> {
    engine: &'a Engine,
    manner: Manner,
    tries: u32,
    delays: DecorrelatedJitter,
    /// When the try began that is made, and the longest so far.
    begun: Instant,
    longest: Duration,
    /// Its entry, once it has asked to go first.
    own: Option<Own>,
    /// For how long it asks the next time at least: it was not done within less.
    least: Duration,
    /// How often it has gone first, and was not done within [`COURTESY`].
    in_vain: u32,
    /// Whether this step may ask to go first, if it only reads.
    asking: Asking,
    /// The entry of which the store has said last that it is gone.
    said_gone: Option<u64>,
}

/// The entry with which a step has asked to go first.
struct Own {
    grant: Grant,
    /// For how long it asks, and since when it has been the first.
    courtesy: Duration,
    first_since: Option<Instant>,
}

impl Own {
    /// It is of no use any more if its session was lost, or if it has been the first for as long as others wait.
    fn counts(&self) -> bool {
        self.grant.is_held() && self.first_since.is_none_or(|since| since.elapsed() < self.courtesy)
    }
}

/// The entry of a step that goes first, as others see it.
#[derive(Clone, Debug)]
pub(super) struct First {
    entry: Blocker,
    courtesy: Duration,
}

impl First {
    fn new(entry: &Entry) -> Option<Self> {
        let millis = entry.data.strip_prefix(MARK)?.parse().ok()?;
        Some(Self {
            entry: Blocker::from(entry),
            courtesy: Duration::from_millis(millis).min(COURTESY),
        })
    }
}

/// The turn to ask to go first, among the steps of this process that only read. If more than one could ask, all of them might
/// have entries, which everybody who looks at the queue has to read.
enum Asking {
    No,
    /// It waits for its turn, and goes on trying meanwhile.
    Waits(Pin<Box<dyn Future<Output = OwnedMutexGuard<()>> + Send>>),
    Yes {
        _turn: OwnedMutexGuard<()>,
    },
}

/// The entries of steps that go first, as this process has seen them.
#[derive(Debug, Default)]
pub(super) struct Line {
    /// The newest entry for which nobody here waits any longer.
    passed_over: u64,
    /// The one that was the first when they were seen last, and since when.
    first: Option<(u64, Instant)>,
}

impl Line {
    /// The last of those that go before a step, and how long it waits yet for the first of them. Those before the last one go
    /// before it anyway.
    fn before<'a>(
        &mut self,
        ahead: &'a [First],
        own: Option<u64>,
    ) -> Option<(&'a Blocker, Duration)> {
        loop {
            let passed_over = self.passed_over;
            let is_before = |seq: u64| seq > passed_over && own.is_none_or(|own| seq < own);
            let mut line = ahead.iter().filter(|first| is_before(first.entry.seq));
            let first = line.next()?;
            let seq = first.entry.seq;
            let left = first.courtesy.saturating_sub(self.since(seq).elapsed());
            if !left.is_zero() {
                return Some((&line.next_back().unwrap_or(first).entry, left));
            }
            self.passed_over = seq;
        }
    }

    /// Since when this entry has been the first. If another step, which has looked later, has seen a later entry as the first,
    /// the time of that one counts.
    fn since(&mut self, seq: u64) -> Instant {
        match self.first {
            Some((first, since)) if first >= seq => since,
            _ => self.first.insert((seq, Instant::now())).1,
        }
    }
}

/// The entries of those that go first, in order.
pub(super) fn ahead(listing: &Listing) -> Vec<First> {
    listing.entries.iter().filter_map(First::new).collect()
}

/// The data of an entry that asks for so long.
fn mark(courtesy: Duration) -> String {
    format!("{MARK}{}", courtesy.as_millis())
}

impl<'a> Precedence<'a> {
    pub(super) fn new(engine: &'a Engine, manner: Manner) -> Self {
        let delays = DecorrelatedJitter::new(Duration::from_millis(1), Duration::from_millis(50));
        Self {
            engine,
            manner,
            tries: 0,
            delays,
            begun: Instant::now(),
            longest: Duration::ZERO,
            own: None,
            least: LEAST_COURTESY,
            in_vain: 0,
            asking: Asking::No,
            said_gone: None,
        }
    }

    /// The last of those that go before this step, and how long it waits for that now; `None`: it is its turn.
    pub(super) fn before<'b>(&mut self, look: &'b Look) -> Option<(&'b Blocker, Duration)> {
        (self.begun, self.longest) = (look.asked, self.longest.max(look.asked.elapsed()));
        if self.manner == Manner::Reads && self.own.is_none() {
            return None;
        }
        let own = self.own.as_ref().and_then(|own| own.grant.own_entry().seq());
        let before = self.engine.line().before(&look.ahead, own);
        let before = before.map(|(last, left)| (last, left.min(self.time_left())));
        let before = before.filter(|(_, left)| !left.is_zero());
        if let (None, Some(own)) = (before, &mut self.own) {
            own.first_since.get_or_insert_with(Instant::now);
        }
        before
    }

    /// Whether this step only reads, and takes longer than others can be kept waiting.
    pub(super) fn is_too_long(&self) -> bool {
        self.manner == Manner::Reads && self.in_vain >= IN_VAIN
    }

    /// How long it lets others go first yet.
    fn time_left(&self) -> Duration {
        match self.manner {
            Manner::InTime(until) => until.saturating_duration_since(Instant::now()),
            Manner::Writes | Manner::Reads => Duration::MAX,
        }
    }

    /// Lets one go first that has asked for it before, and all before that, for so long at the most.
    pub(super) async fn let_go_first(&mut self, last: &Blocker, limit: Duration) {
        self.until_gone(last, limit).await;
        // A step that has to be in time waits for a limited time anyway, and so need not ask because it has waited.
        if !matches!(self.manner, Manner::InTime(_)) {
            self.ask_if_due().await;
        }
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

    /// To be called when the step has to begin anew, since others have written.
    pub(super) async fn lost(&mut self) {
        self.longest = self.longest.max(self.begun.elapsed());
        if !self.ask_if_due().await {
            tokio::time::sleep(self.delays.next_delay()).await;
        }
    }

    /// Counts a try, and asks to go first if it was one too many; answers whether this goes first.
    async fn ask_if_due(&mut self) -> bool {
        self.tries += 1;
        if let Some(own) = self.own.take_if(|own| !own.counts())
            && own.grant.is_held()
        {
            // It has had its turn.
            self.in_vain += u32::from(own.courtesy == COURTESY);
            self.least = (2 * own.courtesy).min(COURTESY);
        }
        let is_wanted = self.tries >= TRIES && self.own.is_none() && !self.is_too_long();
        if is_wanted && self.may_ask().await {
            let queue = &self.engine.queue;
            // A shared entry: behind an exclusive one, processes would have to wait for the entries with which they hold
            // claims.
            let courtesy = (ASKED_TRIES * self.longest).clamp(self.least, COURTESY);
            let contents = Contents {
                mode: Mode::Shared,
                data: mark(courtesy).into(),
                purpose: Purpose::Step,
                ..queue.contents()
            };
            let request = Request { contents, policy: None };
            match queue.acquire_within(&request, Some(COURTESY)).await {
                Ok(grant) => self.own = Some(Own { grant, courtesy, first_since: None }),
                Err(error) => tracing::debug!(%error, "a step goes on without going first"),
            }
        }
        self.own.is_some()
    }

    /// Whether it may ask to go first; for that, one that only reads waits a while.
    async fn may_ask(&mut self) -> bool {
        if self.manner != Manner::Reads {
            return true;
        }
        if matches!(self.asking, Asking::No) {
            let turn = Arc::clone(&self.engine.asking).lock_owned();
            self.asking = Asking::Waits(Box::pin(turn));
        }
        if let Asking::Waits(turn) = &mut self.asking
            && let Ok(turn) = tokio::time::timeout(self.delays.next_delay(), turn).await
        {
            self.asking = Asking::Yes { _turn: turn };
        }
        matches!(self.asking, Asking::Yes { .. })
    }
}

#[cfg(all(test, feature = "memory"))]
mod tests;
