//! The double barrier: a number of parties begin together and end together.
//!
//! Each party has an entry in the queue. The queue's value lists, for each round that was let in, the round's last entry. When
//! enough entries have come after the last round, whichever party sees that first adds the next round to the value. An entry is let
//! in when it is in one of these rounds. A round has the entries after the last one of the round before, up to its own last one. It
//! has ended when none of them is left.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::engine::data::{MAX_ENTRY_BYTES, MAX_VALUE_BYTES, from_data, to_data};
use super::engine::grant::{Grant, guard};
use super::engine::own_entry::Contents;
use super::engine::policy::{Decision, Policy};
use super::engine::queue::Queue;
use super::engine::turn::Request;
use super::engine::waiting::Waiting;
use crate::backend::{Entry, Listing};
use crate::coordinator::Coordinator;
use crate::error::{Effect, Error, ErrorKind, Result};

impl Coordinator {
    /// The double barrier of this name, for this number of `parties`. No I/O.
    ///
    /// The number is stored on first use; see [`DoubleBarrier`].
    ///
    /// # Errors
    ///
    /// * [`ErrorKind::Name`]: empty or too long.
    /// * [`ErrorKind::Input`]: `parties` is zero.
    pub fn double_barrier(&self, name: impl AsRef<str>, parties: u32) -> Result<DoubleBarrier> {
        let queue = self.queue_of("double-barrier", name.as_ref())?;
        if parties == 0 {
            let message = "a double barrier is for one party at least";
            return Err(queue.error(ErrorKind::Input, "double_barrier", message));
        }
        Ok(DoubleBarrier { queue, parties })
    }
}

/// Lets parties in when enough have come, and out when all parties of the round have left or died. Made by
/// [`Coordinator::double_barrier`], without I/O; cheap to clone.
///
/// # What it promises
///
/// No party is let in before the full number of `parties` waits at one moment. These parties make up a round.
/// Parties that come later wait for the next round, which may begin while parties of this round are still inside.
/// [`leave`](Inside::leave) returns when all parties of the round have left or lost their session. It does not
/// wait for parties of other rounds, and those of an earlier round may still be inside: a party that leaves without
/// waiting can be in the next round before they have left.
///
/// A party that comes, and then dies or gives up, counts as present until its entry is gone from the store:
/// for the round trip that giving up takes, or until the lease of a dead process has ended. A round that it
/// completes is let in with one party fewer. A party that is in has a guard, a [`Grant`], which says whether
/// it still counts as in.
///
/// A handle with another number of parties gets [`ErrorKind::Mismatch`].
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
/// # let coordinator = coordination::Coordinator::connect("memory://").await?;
/// let barrier = coordinator.double_barrier("phase", 2)?;
/// let (one, other) = tokio::try_join!(barrier.enter(None), barrier.enter(None))?;
/// // Both parties work.
/// tokio::try_join!(one.leave(None), other.leave(None))?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct DoubleBarrier {
    queue: Queue,
    parties: u32,
}

impl DoubleBarrier {
    /// The barrier's name, with the coordinator's prefix.
    pub fn name(&self) -> &str {
        self.queue.name()
    }

    /// Comes to the barrier, and waits until enough parties have come.
    ///
    /// `timeout` bounds the whole call. `None` waits for ever, also through an outage of the store; with zero
    /// the caller is let in only if all others have come already. If the session is lost while the call
    /// waits, it comes again under the next session.
    ///
    /// # Errors
    ///
    /// * [`ErrorKind::Timeout`]: too few parties came in time.
    /// * [`ErrorKind::Mismatch`]: the barrier is stored with another number of parties.
    /// * The other kinds of [`Lock::acquire`](crate::Lock::acquire), with the same meaning.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the caller no longer waits at the barrier; if it had been let in already, it
    /// leaves.
    ///
    /// # Fairness
    ///
    /// The first parties that come make up the round, in the order of arrival at the store.
    pub async fn enter(&self, timeout: Option<Duration>) -> Result<Inside> {
        let gate = Arc::new(Gate::new(self.parties));
        let policy = Some(Arc::clone(&gate) as Arc<dyn Policy>);
        // The number is kept with the entry, so that an entry for another number of parties, which is about to be refused, is not
        // counted.
        let data = to_data("enter", &self.parties, MAX_ENTRY_BYTES)?;
        let request = Request { contents: Contents { data, ..self.queue.contents() }, policy };
        let entering = self.queue.acquire_within(&request, timeout).await;
        let grant = entering.map_err(|error| match error.kind() {
            ErrorKind::Timeout => {
                let message = "too few have come within the time given";
                self.queue.error(ErrorKind::Timeout, "enter", message)
            }
            _ => error,
        })?;
        let after = gate.after.load(Ordering::SeqCst);
        let through = gate.through.load(Ordering::SeqCst);
        let has_left = AtomicBool::new(false);
        Ok(Inside { grant, queue: self.queue.clone(), after, through, has_left })
    }

    /// The number of parties that wait to be let in.
    ///
    /// # Errors
    ///
    /// The [kinds of error](crate::ErrorKind) of a store that does not answer, and [`ErrorKind::Mismatch`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect: it only reads.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let phase = coordinator.double_barrier("phase", 2)?;
    /// let entering = phase.enter(Some(Duration::from_secs(5)));
    /// let other = async {
    ///     while phase.waiting().await? == 0 {}
    ///     phase.enter(None).await
    /// };
    /// let (one, other) = tokio::try_join!(entering, other)?;
    /// assert_eq!(phase.waiting().await?, 0, "both are in");
    /// # drop((one, other));
    /// # Ok(()) }
    /// ```
    pub async fn waiting(&self) -> Result<usize> {
        let listing = self.queue.read("waiting").await?;
        let rounds = self.queue.named(Rounds::of(&listing, self.parties))?;
        Ok(rounds.waiting(&listing).count())
    }
}

impl fmt::Debug for DoubleBarrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DoubleBarrier")
            .field("name", &self.name())
            .field("parties", &self.parties)
            .finish_non_exhaustive()
    }
}

/// The queue's value: which rounds were let in.
#[derive(Serialize, Deserialize)]
struct Rounds {
    parties: u32,
    /// The number of each round's last entry, in order. A round is kept as long as one of its entries is left, whatever became of
    /// the rounds before and after it.
    through: Vec<u64>,
}

impl Rounds {
    fn new(parties: u32) -> Self {
        Self { parties, through: Vec::new() }
    }

    fn of(listing: &Listing, parties: u32) -> Result<Self> {
        let stored = match (&listing.value, listing.entries.first()) {
            (Some(value), _) => from_data("enter", &value.data)?,
            // As long as no number is stored, the first entry's number applies. Our own number must not apply instead, because
            // another party could store its own in between.
            (None, Some(first)) => Self::new(from_data("enter", &first.data)?),
            (None, None) => Self::new(parties),
        };
        if stored.parties == parties {
            return Ok(stored);
        }
        let message =
            format!("the barrier is for {}, and {parties} were asked for", stored.parties);
        Err(Error::new(ErrorKind::Mismatch, "enter", message))
    }

    /// The round that this entry is in, as the last entry of the round before that is kept, and the round's own last entry; `None`:
    /// it waits.
    ///
    /// Rounds in between that are not kept any more have no entries left, and get none: an entry that comes is numbered after all others.
    fn round_of(&self, seq: u64) -> Option<(u64, u64)> {
        let mut after = 0;
        for through in self.through.iter().copied() {
            if seq <= through {
                return Some((after, through));
            }
            after = through;
        }
        None
    }

    fn waiting<'a>(&self, listing: &'a Listing) -> impl Iterator<Item = &'a Entry> + use<'a> {
        let last = self.through.last().copied().unwrap_or_default();
        let parties = self.parties.to_string();
        listing.entries.iter().filter(move |entry| entry.seq > last && *entry.data == *parties)
    }

    /// Adds the next round, which ends with the entry `through`.
    fn and(mut self, through: u64, listing: &Listing) -> Self {
        let mut before = 0;
        self.through.retain(|round| {
            let is_in = |entry: &Entry| entry.seq > before && entry.seq <= *round;
            let is_kept = listing.entries.iter().any(is_in);
            before = *round;
            is_kept
        });
        self.through.push(through);
        self
    }
}

/// Decides whether an entry is let in.
struct Gate {
    parties: u32,
    /// The last entry of the round before our own that is kept, once we are in; zero if none is.
    after: AtomicU64,
    /// The last entry of our own round, once we are in.
    through: AtomicU64,
}

impl Gate {
    fn new(parties: u32) -> Self {
        Self { parties, after: AtomicU64::new(0), through: AtomicU64::new(0) }
    }
}

impl Policy for Gate {
    fn decide(&self, listing: &Listing, own: &Entry) -> Result<Decision> {
        let rounds = Rounds::of(listing, self.parties)?;
        if let Some((after, through)) = rounds.round_of(own.seq) {
            self.after.store(after, Ordering::SeqCst);
            self.through.store(through, Ordering::SeqCst);
            return Ok(Decision::Grant);
        }
        let others = usize::try_from(self.parties - 1).unwrap_or(usize::MAX);
        let rounds = match rounds.waiting(listing).nth(others) {
            Some(last) => rounds.and(last.seq, listing),
            // The first entry stores the number of parties.
            None if listing.value.is_none() => rounds,
            None => return Ok(Decision::Wait),
        };
        Ok(Decision::Initialize(to_data("enter", &rounds, MAX_VALUE_BYTES)?))
    }
}

/// A party that was let in. Dropping it leaves without waiting for the others.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
/// # let coordinator = coordination::Coordinator::connect("memory://").await?;
/// let phase = coordinator.double_barrier("phase", 2)?;
/// let (one, other) = tokio::try_join!(phase.enter(None), phase.enter(None))?;
/// // Each works while it is inside, and is told if its session is lost.
/// assert!(one.protect(async { 1 + 1 }).await? == 2 && other.is_held());
/// tokio::try_join!(one.leave(None), other.leave(None))?;
/// # Ok(()) }
/// ```
#[must_use = "it leaves when the guard is dropped"]
pub struct Inside {
    grant: Grant,
    queue: Queue,
    /// The last entry of the round before ours that was kept when we were let in.
    after: u64,
    /// The last entry of our round.
    through: u64,
    /// Whether [`leave`](Self::leave) was called before.
    has_left: AtomicBool,
}

guard!(Inside, "the place inside");

impl Inside {
    /// Leaves, and waits until all other parties of the round have left or died. Parties of other rounds, earlier or
    /// later, are not waited for.
    ///
    /// `timeout` bounds the wait. `None` waits for ever, also through an outage of the store. After an error `leave` can
    /// be called again: a party that has left stays out, and only waits.
    ///
    /// # Errors
    ///
    /// Whatever it returns, this party has left as far as this process is concerned.
    ///
    /// * [`ErrorKind::Timeout`]: another party of the round is still in. The effect is [`Effect::Applied`] if it was this call
    ///   that left, and [`Effect::None`] if that was an earlier one.
    /// * Those of [`release`](Self::release): the session, and with it the place, may have been lost before.
    /// * [`ErrorKind::Unavailable`]: the store did not answer in time. The party's entry is removed in the background.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the party leaves without waiting for the others.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use coordination::ErrorKind;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let phase = coordinator.double_barrier("phase", 2)?;
    /// let (one, other) = tokio::try_join!(phase.enter(None), phase.enter(None))?;
    ///
    /// // The other party still works. This one has left, and only waits.
    /// let error = one.leave(Some(Duration::from_millis(10))).await.unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::Timeout);
    /// assert!(!one.is_held());
    ///
    /// other.leave(None).await?;
    /// one.leave(None).await?;
    /// # Ok(()) }
    /// ```
    pub async fn leave(&self, timeout: Option<Duration>) -> Result<()> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut left_by_this = Effect::None;
        // A party that has left before only waits, also if its place was lost then, or its session since.
        if !self.has_left.swap(true, Ordering::SeqCst) {
            left_by_this = match self.released(timeout).await {
                // The release goes on in the background, and a caller without a timeout waits for it, too.
                Err(error) if timeout.is_none() && error.kind() == ErrorKind::Unavailable => {
                    Effect::Unknown
                }
                released => released.map(|()| Effect::Applied)?,
            };
        }
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let is_empty = |listing: &Listing, _| {
            // A party of an earlier round may still be in, and is not waited for.
            let is_in = |entry: &Entry| entry.seq > self.after && entry.seq <= self.through;
            Ok((!listing.entries.iter().any(is_in)).then_some(()))
        };
        let waited = self.queue.until("leave", left, is_empty).await;
        waited.map_err(|error| error.with_effect(left_by_this))
    }

    /// Releases the place. When the time is over, the release goes on in the background.
    async fn released(&self, timeout: Option<Duration>) -> Result<()> {
        let session = &self.queue.session;
        let limit = Waiting::within(timeout).limit(session.call_timeout());
        tokio::select! {
            biased;
            released = self.grant.release() => released,
            () = self.queue.out_of_time(limit) => {
                let message = "the store did not answer within the time given";
                let late = session.late("leave", message, None).with_effect(Effect::Unknown);
                self.queue.named(Err(late))
            }
        }
    }
}

impl fmt::Debug for Inside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inside").field("grant", &self.grant).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Mode;
    use crate::recipe::engine::data::stored;

    fn listing(seqs: &[u64], value: Option<&str>) -> Listing {
        let entry =
            |seq: &u64| stored::entry(*seq, Mode::Exclusive, if *seq == 10 { "3" } else { "2" });
        stored::listing(seqs.iter().map(entry).collect(), value)
    }

    fn verdict(parties: u32, listing: &Listing, own: usize) -> (String, u64) {
        let gate = Gate::new(parties);
        let told = match gate.decide(listing, &listing.entries[own]) {
            Ok(Decision::Wait) => "wait".to_owned(),
            Ok(Decision::Grant) => "in".to_owned(),
            Ok(Decision::Initialize(data)) => data.to_string(),
            Ok(_) => "other".to_owned(),
            Err(error) => format!("{:?}", error.kind()),
        };
        (told, gate.through.into_inner())
    }

    #[test]
    fn a_round_begins_when_enough_have_come() {
        let first = verdict(2, &listing(&[7], None), 0);
        assert_eq!(first, (r#"{"parties":2,"through":[]}"#.to_owned(), 0));
        let alone = listing(&[7], Some(&first.0));
        assert_eq!(verdict(2, &alone, 0).0, "wait");
        // Entry 10 belongs to a handle with three parties, while the barrier is stored with two.
        let refused = listing(&[7, 10], Some(&first.0));
        assert_eq!(verdict(2, &refused, 0).0, "wait");
        assert_eq!(verdict(3, &refused, 1).0, "Mismatch");
        // The first entry has not stored its number yet.
        assert_eq!(verdict(3, &listing(&[7, 10], None), 1).0, "Mismatch");
        assert_eq!(verdict(2, &listing(&[7, 10], None), 0), first);
        let both = verdict(2, &listing(&[7, 9, 11], Some(&first.0)), 2).0;
        assert_eq!(both, r#"{"parties":2,"through":[9]}"#);
        let in_and_waiting = listing(&[7, 9, 11], Some(&both));
        assert_eq!(verdict(2, &in_and_waiting, 0), ("in".to_owned(), 9));
        assert_eq!(verdict(2, &in_and_waiting, 1), ("in".to_owned(), 9));
        assert_eq!(verdict(2, &in_and_waiting, 2).0, "wait");
    }

    #[test]
    fn a_round_is_kept_while_somebody_of_it_is_in() {
        let value = r#"{"parties":2,"through":[3,9]}"#;
        let next = verdict(2, &listing(&[7, 11, 12, 13], Some(value)), 1).0;
        assert_eq!(next, r#"{"parties":2,"through":[9,12]}"#);
        assert_eq!(verdict(2, &listing(&[7, 11, 12, 13], Some(&next)), 0).1, 9);
        assert_eq!(verdict(2, &listing(&[7, 11, 12, 13], Some(&next)), 2).1, 12);
        let next = verdict(2, &listing(&[11, 12], Some(value)), 1).0;
        assert_eq!(next, r#"{"parties":2,"through":[12]}"#);
        // Of the first round one party stays inside, and the rounds after it have ended: they are not kept for its sake.
        let value = r#"{"parties":2,"through":[9,12,14]}"#;
        let next = verdict(2, &listing(&[7, 20, 21], Some(value)), 1).0;
        assert_eq!(next, r#"{"parties":2,"through":[9,21]}"#);
        assert_eq!(verdict(2, &listing(&[7, 20, 21], Some(&next)), 0).1, 9);
    }

    #[test]
    fn a_round_begins_after_the_round_before() {
        let rounds = Rounds { parties: 2, through: vec![9, 21] };
        let seqs = [7, 9, 20, 21, 22].map(|seq| rounds.round_of(seq));
        assert_eq!(seqs, [Some((0, 9)), Some((0, 9)), Some((9, 21)), Some((9, 21)), None]);
    }

    /// Four rounds of two, one after the other. Whoever has left when a round begins, and whichever rounds are forgotten by that: what a
    /// party takes for its round are the entries of its round that are left, and no others.
    #[test]
    fn a_round_has_its_own_entries_whichever_rounds_are_forgotten() {
        let round_of = |seq: &u64| seq.div_ceil(2);
        for case in 0..4 * 4 * 3 * 3 * 2 * 2 {
            // For each party of the first three rounds: when which round begins, it has left. The fifth does not begin.
            let mut rest = case;
            let mut gone = Vec::new();
            for seq in 1..=6 {
                let later = 5 - round_of(&seq);
                gone.push(round_of(&seq) + 1 + rest % later);
                rest /= later;
            }
            let mut rounds = Rounds::new(2);
            for round in 1..=4 {
                let parties = (1..=2 * round).zip(gone.iter().copied().chain([5, 5]));
                let left = parties.filter(|(_, gone)| *gone > round);
                let left: Vec<u64> = left.map(|(seq, _)| seq).collect();
                rounds = rounds.and(2 * round, &listing(&left, None));
                for own in &left {
                    let (after, through) = rounds.round_of(*own).expect("it is in");
                    let taken = left.iter().filter(|seq| **seq > after && **seq <= through);
                    let of_it = left.iter().filter(|seq| round_of(seq) == round_of(own));
                    assert!(taken.eq(of_it), "{own} of {left:?} with {:?}", rounds.through);
                }
            }
        }
    }

    /// One party of a round has gone, and is in the next round. The other party of the first round stays inside.
    #[cfg(feature = "memory")]
    #[tokio::test]
    async fn br2_a_party_does_not_wait_for_an_earlier_round() -> Result<()> {
        let coordinator = Coordinator::connect("memory://earlier-round").await?;
        let phase = coordinator.double_barrier("phase", 2)?;
        let (stays, goes) = tokio::try_join!(phase.enter(None), phase.enter(None))?;
        goes.release().await?;
        let (one, other) = tokio::try_join!(phase.enter(None), phase.enter(None))?;
        let limit = Some(Duration::from_secs(10));
        tokio::try_join!(one.leave(limit), other.leave(limit))?;
        assert!(stays.is_held(), "it is still at work");
        stays.leave(limit).await
    }

    /// A party that has left, and waits for the other one in vain, is told once that it has left.
    #[cfg(feature = "memory")]
    #[tokio::test]
    async fn x1_a_party_that_leaves_before_the_other_has_left() -> Result<()> {
        let coordinator = Coordinator::connect("memory://left-before").await?;
        let phase = coordinator.double_barrier("phase", 2)?;
        let (one, other) = tokio::try_join!(phase.enter(None), phase.enter(None))?;
        for effect in [Effect::Applied, Effect::None] {
            let late = one.leave(Some(Duration::ZERO)).await.expect_err("the other one is in");
            assert_eq!((late.kind(), late.effect()), (ErrorKind::Timeout, effect));
        }
        other.leave(None).await
    }

    #[test]
    fn another_number_and_damage_are_told() {
        let value = r#"{"parties":3,"through":[]}"#;
        assert_eq!(verdict(2, &listing(&[7], Some(value)), 0).0, "Mismatch");
        for damaged in ["", "7", r#"{"parties":-1,"through":[]}"#, r#"{"parties":2}"#] {
            assert_eq!(verdict(2, &listing(&[7], Some(damaged)), 0).0, "Corrupt");
        }
    }
}
