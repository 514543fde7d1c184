//! At most once per period: a job that many processes could do, and one does.
//!
//! The queue's value says when the last claim was made and until when there is no other. It belongs to no session, so
//! a crash of the claimant does not end the period early, unless the claim was made under something that ends with its
//! holder: a claim that is not done names the entry that it was made under, and who finds that gone takes the claim over.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::engine::data::{MAX_VALUE_BYTES, from_data, to_data};
use super::engine::grant::Grant;
use super::engine::queue::{Change, Queue};
use crate::backend::Listing;
use crate::coordinator::Coordinator;
use crate::env::unix_micros;
use crate::error::{Effect, Error, ErrorKind, Result};
use crate::key::{self, QueueKey};
use crate::token::FencingToken;

const SHORTEST: Duration = Duration::from_millis(1);
const LONGEST: Duration = Duration::from_secs(366 * 24 * 60 * 60);

impl Coordinator {
    /// The job of this name, which at most one process may claim in every `period`, 1 ms to 366 days. No I/O.
    ///
    /// # Errors
    ///
    /// * [`ErrorKind::Name`]: empty or too long.
    /// * [`ErrorKind::Input`]: the period is not 1 ms to 366 days long.
    pub fn once_per(&self, name: impl AsRef<str>, period: Duration) -> Result<OncePer> {
        let queue = self.queue_of("once", name.as_ref())?;
        if !(SHORTEST..=LONGEST).contains(&period) {
            let message = format!("the period is {period:?}, and has to be of 1 ms to 366 days");
            return Err(queue.error(ErrorKind::Input, "once_per", message));
        }
        let period = micros(period);
        Ok(OncePer { queue, rule: Rule { period, at_least: 0, is_aligned: false } })
    }
}

/// A job that at most one process claims in every period. Made by [`Coordinator::once_per`], without
/// I/O; cheap to clone.
///
/// # What it promises
///
/// After a claim nobody gets another one until its period is over by the wall clock of the process that asks.
/// A crash does not change that: the period is used up, unless the claim was [given back](Claim::give_back).
/// It is not a lock: a job that takes longer than the period may run at the same time as the next one. Where
/// that does harm, take a lock as well, or check the claim's [token](Claim::token).
///
/// With a lock there is a second way to claim: [under](Self::try_claim_under) it. Such a claim counts as spent only when it
/// is [done](Claim::done); of a holder who died before that, the next holder takes it over.
///
/// # Clocks
///
/// Periods are counted by the **wall clocks of the clients**, because a period may be longer than the uptime
/// of a host. The clocks have to be synchronised to within a small part of the period: two claims may be
/// closer than a period by as much as two clocks differ. A host whose clock is behind claims late; one whose
/// clock was set back claims nothing until the clock has caught up. A host whose clock is far ahead makes all
/// others wait, unless it gives its claim back. If you cannot rely on wall clocks, use the
/// [`RateLimiter`](crate::RateLimiter).
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
/// use std::time::Duration;
///
/// let coordinator = coordination::Coordinator::connect("memory://").await?;
/// let nightly = coordinator.once_per("backup", Duration::from_secs(24 * 60 * 60))?.aligned();
/// if let Some(claim) = nightly.try_claim().await? {
///     println!("run {}, the next one after {:?}", claim.token(), claim.next());
/// }
/// assert!(nightly.try_claim().await?.is_none());
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct OncePer {
    queue: Queue,
    rule: Rule,
}

/// How far claims are apart, in microseconds.
#[derive(Clone, Copy, Debug)]
struct Rule {
    period: u64,
    /// Also after a claim that was given back.
    at_least: u64,
    is_aligned: bool,
}

/// The last claim, as stored. Times are microseconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Last {
    number: FencingToken,
    at: u64,
    next: u64,
    /// The entry that it was made under; there until it is done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    under: Option<Under>,
}

/// An entry that ends with its holder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Under {
    kind: String,
    /// Encoded, so that it is short.
    name: String,
    entry: u64,
}

impl OncePer {
    /// Makes periods begin at multiples of their length since 1970 UTC, like the hours of a crontab, rather
    /// than with each claim.
    #[must_use]
    pub fn aligned(mut self) -> Self {
        self.rule.is_aligned = true;
        self
    }

    /// Keeps claims at least this far apart, also where the period ends sooner and where a claim was given back.
    ///
    /// For jobs that are shorter than the difference between two hosts' clocks, as `lockAtLeastFor` in ShedLock. A claim
    /// that is taken over from a [dead holder](Self::try_claim_under) does not wait for it.
    #[must_use]
    pub fn at_least(mut self, time: Duration) -> Self {
        self.rule.at_least = micros(time);
        self
    }

    /// The job's name, with the coordinator's prefix.
    pub fn name(&self) -> &str {
        self.queue.name()
    }

    /// Claims the job for this period; `None` if it is claimed already.
    ///
    /// # Errors
    ///
    /// * [`ErrorKind::Unavailable`] and the other kinds of a store that refuses or does not answer: do not
    ///   run the job. With [`Effect::Unknown`](crate::Effect::Unknown) the period may be used up.
    /// * [`ErrorKind::Closed`]: the coordinator was stopped, or this is a forked child.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the period may be used up.
    ///
    /// # Fairness
    ///
    /// None: whoever asks first after the end of a period gets the next one.
    pub async fn try_claim(&self) -> Result<Option<Claim>> {
        self.claim(None, None).await
    }

    /// Claims the job for this period while `held` lasts: a lock, a permit, a slot, a leadership. `None`: it is done for
    /// this period, or somebody is at it.
    ///
    /// Such a claim is open until it is [done](Claim::done) or [given back](Claim::give_back). While it is open nobody else
    /// gets one, as after any claim. But once the store no longer has what it was made under, because its holder died, lost
    /// it or let go of it, the next one who asks under the same name takes it over, though the period is not over. So let go
    /// of `held` only after the claim is done: the period is spent by who succeeds, and not by who dies.
    ///
    /// # Errors
    ///
    /// Those of [`try_claim`](Self::try_claim), and [`ErrorKind::Lost`]: `held` was lost before. The error has
    /// [`Effect::None`](crate::Effect::None), as nothing was claimed.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the job may be claimed, until `held` is gone.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # use std::time::Duration;
    /// let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let nightly = coordinator.once_per("backup", Duration::from_secs(24 * 60 * 60))?.aligned();
    ///
    /// let guard = coordinator.lock("backup")?.acquire(None).await?;
    /// if let Some(claim) = nightly.try_claim_under(&guard).await? {
    ///     // … the backup …
    ///     claim.done().await?;
    /// }
    /// guard.release().await?;
    /// # Ok(()) }
    /// ```
    pub async fn try_claim_under(&self, held: &Grant) -> Result<Option<Claim>> {
        if let Some(reason) = held.own_entry().loss_reason() {
            return Err(held.loss_error("claim", reason, Effect::None));
        }
        let key = held.key();
        let entry = held.own_entry().seq().unwrap_or_default();
        let last = self.queue.named(Last::of(&self.queue.read("claim").await?, "claim"))?;
        let under = last.as_ref().and_then(|last| last.under.as_ref()).filter(|it| it.is_in(key));
        let is_abandoned = match under {
            None => false,
            Some(under) => {
                let (session, key) = (Arc::clone(&self.queue.session), key.clone());
                let reading = async move { session.backend.read(&key).await };
                let there = self.queue.call("claim", reading).await?.entries;
                let is_there = |seq| there.iter().any(|entry| entry.seq == seq);
                // Who has lost his own entry, and was not told yet, takes over nothing.
                is_there(entry) && !is_there(under.entry)
            }
        };
        let abandoned = last.filter(|_| is_abandoned);
        let name = key::encode(key.name());
        self.claim(Some(Under { kind: key.kind().to_owned(), name, entry }), abandoned).await
    }

    /// Claims it, also where this is the last claim.
    async fn claim(&self, under: Option<Under>, abandoned: Option<Last>) -> Result<Option<Claim>> {
        let rule = self.rule;
        let step = move |listing: &Listing| {
            let mut last = Last::of(listing, "claim")?;
            // It may be done by now, by who let go after that.
            if let Some(last) = last.as_mut().filter(|last| Some(&**last) == abandoned.as_ref()) {
                last.next = last.at;
            }
            let Some(new) = claim(last.as_ref(), unix_micros(), rule) else {
                return Ok(Change::Keep(None));
            };
            let new = Last { under: under.clone(), ..new };
            Ok(Change::Write(Some(to_data("claim", &new, MAX_VALUE_BYTES)?), Some(new)))
        };
        let claimed = self.queue.modify("claim", step).await?;
        let claim = |stored| Claim { queue: self.queue.clone(), stored, at_least: rule.at_least };
        Ok(claimed.map(claim))
    }

    /// How long it is until the job can be claimed, by this machine's clock; zero: now.
    ///
    /// # Errors
    ///
    /// Those of [`try_claim`](Self::try_claim).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect: it only reads.
    pub async fn due(&self) -> Result<Duration> {
        let last = self.queue.named(Last::of(&self.queue.read("due").await?, "due"))?;
        let next = last.map_or(0, |last| last.next);
        Ok(Duration::from_micros(next.saturating_sub(unix_micros())))
    }
}

impl Last {
    fn of(listing: &Listing, operation: &'static str) -> Result<Option<Self>> {
        let Some(value) = &listing.value else { return Ok(None) };
        let last: Self = from_data(operation, &value.data)?;
        // Nothing is larger than these numbers, so after them every claim would succeed.
        if last.at.max(last.number.value()) > i64::MAX as u64 {
            let message = "the store has a claim that no clock of this time can have made";
            return Err(Error::new(ErrorKind::Corrupt, operation, message));
        }
        Ok(Some(last))
    }
}

impl Under {
    fn is_in(&self, key: &QueueKey) -> bool {
        self.kind == key.kind() && self.name == key::encode(key.name())
    }
}

/// The claim that can be made at this time of the wall clock, if one can be made.
fn claim(last: Option<&Last>, wall: u64, rule: Rule) -> Option<Last> {
    // If the clock was set back, the last claim's time counts instead, so that claims' times never fall.
    let at = last.map_or(wall, |last| wall.max(last.at));
    if last.is_some_and(|last| last.next > at) {
        return None;
    }
    let next = match rule.is_aligned {
        true => (at / rule.period).saturating_add(1).saturating_mul(rule.period),
        false => at.saturating_add(rule.period),
    };
    let next = next.max(at.saturating_add(rule.at_least));
    let number = last.map_or(0, |last| last.number.value()).saturating_add(1);
    Some(Last { number: FencingToken::new(number)?, at, next, under: None })
}

/// Rounded up, so that a period is never too short.
fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1_000)).unwrap_or(u64::MAX)
}

impl fmt::Debug for OncePer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OncePer")
            .field("name", &self.name())
            .field("period", &Duration::from_micros(self.rule.period))
            .field("at_least", &Duration::from_micros(self.rule.at_least))
            .field("is_aligned", &self.rule.is_aligned)
            .finish_non_exhaustive()
    }
}

/// A claim: the job is this process' for this period. Dropping it does not give it back.
#[must_use = "whoever claims a job has to do it, or to give it back"]
pub struct Claim {
    queue: Queue,
    stored: Last,
    at_least: u64,
}

impl Claim {
    /// The number of the claim, larger than that of every earlier claim: a fencing token.
    pub fn token(&self) -> FencingToken {
        self.stored.number
    }

    /// When it was claimed; never earlier than the claims before it.
    pub fn at(&self) -> SystemTime {
        to_time(self.stored.at)
    }

    /// When the next claim can be made.
    pub fn next(&self) -> SystemTime {
        to_time(self.stored.next)
    }

    /// Says that the job was done, so that nobody takes over a claim that was made [under](OncePer::try_claim_under)
    /// something. Any other claim counts as done from the beginning.
    ///
    /// False: somebody else has made the next claim, as the period was over or what the claim was made under had gone.
    ///
    /// # Errors
    ///
    /// Those of [`OncePer::try_claim`].
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the call goes on in the background.
    pub async fn done(&self) -> Result<bool> {
        self.settle("done", self.stored.next).await
    }

    /// Gives the claim back, because the job was not done: it can be claimed again from now on, or from the end of
    /// [`at_least`](OncePer::at_least) on.
    ///
    /// False: the period was over and somebody else has made the next claim, which stays valid.
    ///
    /// # Errors
    ///
    /// Those of [`OncePer::try_claim`].
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the call goes on in the background.
    pub async fn give_back(self) -> Result<bool> {
        self.settle("give_back", self.stored.at.saturating_add(self.at_least)).await
    }

    /// The claim is open no longer, and there is none until then.
    async fn settle(&self, operation: &'static str, next: u64) -> Result<bool> {
        let mine = self.stored.clone();
        let step = move |listing: &Listing| {
            let is_mine = |last: Last| (last.number, last.at) == (mine.number, mine.at);
            if !Last::of(listing, operation)?.is_some_and(is_mine) {
                return Ok(Change::Keep(false));
            }
            let settled = Last { next, under: None, ..mine.clone() };
            Ok(Change::Write(Some(to_data(operation, &settled, MAX_VALUE_BYTES)?), true))
        };
        self.queue.modify(operation, step).await
    }
}

fn to_time(micros: u64) -> SystemTime {
    UNIX_EPOCH.checked_add(Duration::from_micros(micros)).unwrap_or(UNIX_EPOCH)
}

impl fmt::Debug for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Claim")
            .field("name", &self.queue.name())
            .field("token", &self.token())
            .field("at", &self.at())
            .field("next", &self.next())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::recipe::engine::data::stored;

    fn rule(period: u64, is_aligned: bool) -> Rule {
        Rule { period, at_least: 0, is_aligned }
    }

    fn claims(clock: &[u64], period: u64, is_aligned: bool) -> Vec<(u64, u64)> {
        let mut last = None;
        let mut claimed = Vec::new();
        for wall in clock {
            if let Some(new) = claim(last.as_ref(), *wall, rule(period, is_aligned)) {
                claimed.push((new.number.value(), new.at));
                last = Some(new);
            }
        }
        claimed
    }

    #[test]
    fn one_in_each_period() {
        assert_eq!(claims(&[3, 4, 12, 13, 22, 23], 10, false), [(1, 3), (2, 13), (3, 23)]);
        assert_eq!(
            claims(&[3, 9, 10, 11, 19, 35, 39, 40], 10, true),
            [(1, 3), (2, 10), (3, 35), (4, 40)]
        );
    }

    #[test]
    fn a_clock_set_back_claims_nothing() {
        assert_eq!(claims(&[100, 5, 50, 109, 110], 10, false), [(1, 100), (2, 110)]);
        assert_eq!(claims(&[105, 5, 55, 109, 110], 10, true), [(1, 105), (2, 110)]);
    }

    #[test]
    fn given_back_it_is_free_and_later_claims_are_not_earlier() {
        let first = claim(None, 100, rule(10, false)).expect("free");
        let free = Last { next: first.at, ..first };
        let second = claim(Some(&free), 90, rule(10, false)).expect("given back");
        assert_eq!((second.number.value(), second.at, second.next), (2, 100, 110));
    }

    #[test]
    fn claims_are_no_closer_than_is_asked_for() {
        let rule = Rule { at_least: 25, ..rule(10, true) };
        let first = claim(None, 19, rule).expect("free");
        assert_eq!(first.next, 44, "not 20");
        assert_eq!(claim(Some(&first), 43, rule), None);
        assert_eq!(claim(Some(&first), 44, rule).map(|second| second.next), Some(69));
    }

    #[test]
    fn a_claim_that_nobody_can_have_made_is_damage() {
        let kind = |data: &str| {
            let last = Last::of(&stored::value(data), "claim");
            last.err().map(|error| error.kind())
        };
        assert_eq!(kind(r#"{"number":3,"at":5,"next":18446744073709551615}"#), None);
        for damaged in [
            "",
            r#"{"number":0,"at":5,"next":7}"#,
            r#"{"number":18446744073709551615,"at":5,"next":7}"#,
            r#"{"number":3,"at":18446744073709551615,"next":7}"#,
        ] {
            assert_eq!(kind(damaged), Some(ErrorKind::Corrupt), "{damaged}");
        }
    }

    #[test]
    fn extremes_do_no_harm() {
        let number = FencingToken::new(u64::MAX).expect("not zero");
        let last = Last { number, at: u64::MAX, next: 0, under: None };
        for is_aligned in [false, true] {
            let new = claim(Some(&last), 0, rule(u64::MAX, is_aligned)).expect("it is over");
            assert_eq!(new.next, u64::MAX);
        }
        let _ = (to_time(u64::MAX), to_time(0));
    }

    proptest! {
        #[test]
        fn claims_are_a_period_apart(
            clock in prop::collection::vec(0_u64..1_000, 1..100),
            period in 1_u64..100,
            is_aligned: bool,
        ) {
            let claimed = claims(&clock, period, is_aligned);
            for pair in claimed.windows(2) {
                prop_assert_eq!(pair[0].0 + 1, pair[1].0);
                match is_aligned {
                    true => prop_assert!(pair[0].1 / period < pair[1].1 / period),
                    false => prop_assert!(pair[0].1 + period <= pair[1].1),
                }
            }
        }
    }
}
