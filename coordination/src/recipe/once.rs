//! At most once per period: a job that many processes could do, and one does.
//!
//! The queue's value says when the last claim was made and until when there is no other. The value belongs to no session, so
//! a crash of the claimant does not end the period early. A claim under a guard is different: until the claim is done, the
//! value names the guard's entry, and a process that finds this entry gone takes the claim over.

mod last;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use serde::ser::{Serialize, SerializeStruct, Serializer};

use self::last::{Decision, Last, Now, Rule, Under, decide, micros};
use super::engine::data::{MAX_VALUE_BYTES, to_data};
use super::engine::grant::Grant;
use super::engine::queue::{Change, Queue};
use crate::backend::{Data, Listing};
use crate::coordinator::Coordinator;
use crate::error::{Effect, ErrorKind, Result};
use crate::key;
use crate::serialize;
use crate::time::BootInstant;
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
        let rule = Rule { period, at_least: 0, is_aligned: false };
        Ok(OncePer { queue, rule, warned: Arc::default() })
    }

    /// The names of all jobs that somebody has ever claimed and whose name begins with the coordinator's prefix, without the prefix, in
    /// order.
    ///
    /// # Errors
    ///
    /// The [kinds of error](crate::ErrorKind) of a store that refuses or does not answer.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect: it only reads.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let hour = std::time::Duration::from_secs(60 * 60);
    /// coordinator.once_per("report", hour)?.try_claim().await?;
    /// assert_eq!(coordinator.once_jobs().await?, ["report"]);
    /// # Ok(()) }
    /// ```
    pub async fn once_jobs(&self) -> Result<Vec<String>> {
        self.names("once_jobs", "once").await
    }
}

/// A job that at most one process claims in every period. Made by [`Coordinator::once_per`], without
/// I/O; cheap to clone.
///
/// # What it promises
///
/// After a claim, nobody gets another claim until the period of the first is over by the wall clock of the process that asks.
/// A crash does not change that: the period is used up, unless the claim was [given back](Claim::give_back).
/// It is not a lock: a job that takes longer than the period may run at the same time as the next one. Where
/// that does harm, take a lock as well, or check the claim's [token](Claim::token).
///
/// A process that holds a lock can also claim [under](Self::try_claim_under) the lock. Such a claim counts as spent only when
/// it is [done](Claim::done). If its holder dies before that, the next holder of the lock takes the claim over.
///
/// # Clocks
///
/// Periods are counted by the **wall clocks of the clients**, because a period may be longer than the uptime
/// of a host. The clocks have to be synchronised to within a small part of the period: two claims may be
/// closer than a period by as much as two clocks differ. A host whose clock is behind claims late; one whose
/// clock was set back a little claims nothing until the clock has caught up.
///
/// A clock that is wrong by more than a tenth of the period, or by more than a second if that is longer, is not believed, and a
/// warning is logged. If the store has a clock that all its clients can read (memory, `file://`, Redis), the store's clock
/// decides. On other stores, a claim that is dated later than now holds for one period more, counted from the moment when a process
/// on this host first asked; a process on this host that asks after that gets the next claim. But a host whose own clock is far ahead
/// takes each period for over. On systems other than Linux, where the library does not know which boot of the host it is, such a
/// claim holds until its date, and `file://` has no clock. [`reset`](Self::reset) ends the wait. If you cannot rely on wall clocks,
/// use the [`RateLimiter`](crate::RateLimiter).
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
    /// The number of the last claim for which a warning was logged, because its time is not believed.
    warned: Arc<AtomicU64>,
}

impl OncePer {
    /// Makes periods begin at multiples of their length since 1970 UTC, like the hours of a crontab, rather
    /// than with each claim.
    #[must_use]
    pub fn aligned(mut self) -> Self {
        self.rule.is_aligned = true;
        self
    }

    /// Keeps claims at least this far apart, even if the period ends sooner or a claim was given back.
    ///
    /// For jobs that take less time than two hosts' clocks differ, like `lockAtLeastFor` in ShedLock. A claim
    /// that is taken over from a [dead holder](Self::try_claim_under) does not wait for this time.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let hour = Duration::from_secs(60 * 60);
    /// let hourly = coordinator.once_per("report", hour)?.at_least(hour / 6);
    /// let claim = hourly.try_claim().await?.expect("nobody has claimed it");
    /// // Given back, and still not to be had for ten minutes, however the clocks of two hosts differ.
    /// claim.give_back().await?;
    /// assert!(hourly.try_claim().await?.is_none());
    /// # Ok(()) }
    /// ```
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

    /// Claims the job for this period while `held` lasts: a lock, a permit, a slot, a leadership. `None`: the job is done for
    /// this period, or another process is doing it.
    ///
    /// Such a claim is open until it is [done](Claim::done) or [given back](Claim::give_back). While the claim is open nobody
    /// else gets one, as after any claim. But once the store no longer has the entry of `held`, because its holder died, lost
    /// it or released it, the next process that asks under the same name takes the claim over, even within the period. So
    /// release `held` only after the claim is done. In this way only a success uses up the period, and not a crash.
    ///
    /// # Errors
    ///
    /// Those of [`try_claim`](Self::try_claim), and [`ErrorKind::Lost`]: `held` was lost before; [`ErrorKind::Input`]: it was
    /// released before, as by [`release_after`](crate::LockGuard::release_after), or is of another coordinator. The error has
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
        if !Arc::ptr_eq(held.own_entry().session(), &self.queue.session) {
            // Its entry is looked for in the store of the job.
            let message = "what the job is claimed under has to be of the same coordinator";
            return Err(self.queue.error(ErrorKind::Input, "claim", message));
        }
        if let Some(reason) = held.own_entry().loss_reason() {
            return Err(held.loss_error("claim", reason, Effect::None));
        }
        if held.own_entry().is_given_up() {
            // Whoever asks next would find the entry gone, and take the claim over at once.
            let message = "what the job was to be claimed under is released";
            return Err(self.queue.error(ErrorKind::Input, "claim", message));
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
                let read = self.queue.call("claim", reading).await;
                // A read has no effect, whether its answer came or not.
                let there = read.map_err(|error| error.with_effect(Effect::None))?.entries;
                let is_there = |seq| there.iter().any(|entry| entry.seq == seq);
                // A caller that has lost its own entry, and does not know it yet, must not take a claim over.
                is_there(entry) && !is_there(under.entry)
            }
        };
        let abandoned = last.filter(|_| is_abandoned);
        let name = key::encode(key.name());
        self.claim(Some(Under { kind: key.kind().to_owned(), name, entry }), abandoned).await
    }

    /// Claims the job. `abandoned`: the last claim, if it may be taken over because the entry of its guard is gone.
    async fn claim(&self, under: Option<Under>, abandoned: Option<Last>) -> Result<Option<Claim>> {
        let (rule, warned) = (self.rule, Arc::clone(&self.warned));
        let mut asked = BootInstant::now();
        let step = move |listing: &Listing| {
            let last = Last::of(listing, "claim")?.map(|last| match &abandoned {
                // The claim counts as done only if it is still the abandoned one: its owner may have recorded in between that the
                // job is done.
                Some(abandoned) if last.is(abandoned) => last.settled(0),
                _ => last,
            });
            let now = Now::of(listing, asked);
            // If this step is repeated, the next listing is requested after this moment.
            asked = BootInstant::now();
            Ok(match decide(last.as_ref(), now, rule) {
                Decision::Claim(new) => {
                    let new = Last { under: under.clone(), ..new };
                    Change::Write(Some(data("claim", &new)?), Some(new))
                }
                Decision::Wait => Change::Keep(None),
                Decision::Doubt(doubted) => {
                    last.iter().for_each(|last| warn(last, now, &warned));
                    match doubted {
                        Some(doubted) => Change::Write(Some(data("claim", &doubted)?), None),
                        None => Change::Keep(None),
                    }
                }
            })
        };
        let claimed = self.queue.modify("claim", step).await?;
        let claim = |stored| Claim { queue: self.queue.clone(), stored, at_least: rule.at_least };
        Ok(claimed.map(claim))
    }

    /// How long it is until the job can be claimed, as far as is known; zero: now.
    ///
    /// # Errors
    ///
    /// Those of [`try_claim`](Self::try_claim).
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
    /// let hour = Duration::from_secs(60 * 60);
    /// let hourly = coordinator.once_per("report", hour)?;
    /// assert!(hourly.due().await?.is_zero());
    /// hourly.try_claim().await?;
    /// let left = hourly.due().await?;
    /// assert!(!left.is_zero() && left <= hour);
    /// # Ok(()) }
    /// ```
    pub async fn due(&self) -> Result<Duration> {
        let asked = BootInstant::now();
        let listing = self.queue.read("due").await?;
        let last = self.queue.named(Last::of(&listing, "due"))?;
        let left = last.map_or(0, |last| last.left(Now::of(&listing, asked)));
        Ok(Duration::from_micros(left))
    }

    /// The last claim, whoever made it, and whatever period this handle was made with; `None`: nobody has claimed the job, or the
    /// claim was [forgotten](Self::reset).
    ///
    /// For operators. The period is not stored: whoever asks brings its own.
    ///
    /// # Errors
    ///
    /// Those of [`try_claim`](Self::try_claim).
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
    /// let hour = Duration::from_secs(60 * 60);
    /// let claim = coordinator.once_per("report", hour)?.try_claim().await?.expect("it is free");
    /// // Whoever looks need not know the period.
    /// let looks = coordinator.once_per("report", Duration::from_secs(1))?;
    /// let last = looks.last_claim().await?.expect("it was claimed");
    /// assert_eq!((last.token, last.next), (claim.token(), claim.next()));
    /// # Ok(()) }
    /// ```
    pub async fn last_claim(&self) -> Result<Option<LastClaim>> {
        let asked = BootInstant::now();
        let listing = self.queue.read("list").await?;
        let last = self.queue.named(Last::of(&listing, "list"))?;
        let told = |last: Last| LastClaim {
            token: last.number,
            at: last.at(),
            next: last.next(),
            due: Duration::from_micros(last.left(Now::of(&listing, asked))),
            is_open: last.under.is_some(),
        };
        // After a reset only the number is there.
        Ok(last.filter(|last| last.at > 0).map(told))
    }

    /// Forgets the last claim, so that the job can be claimed at once: for operators. False: there was none.
    ///
    /// A process that is doing the job is not stopped; its call of [`done`](Claim::done) says that the claim is no longer its
    /// own. The numbers of claims go on rising.
    ///
    /// # Errors
    ///
    /// Those of [`try_claim`](Self::try_claim).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the call goes on in the background.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let hourly = coordinator.once_per("report", Duration::from_secs(60 * 60))?;
    /// hourly.try_claim().await?;
    /// // An operator wants it to be made again.
    /// assert!(hourly.reset().await?);
    /// assert!(hourly.try_claim().await?.is_some());
    /// # Ok(()) }
    /// ```
    pub async fn reset(&self) -> Result<bool> {
        let step = |listing: &Listing| {
            Ok(match Last::of(listing, "reset")? {
                Some(last) => Change::Write(Some(data("reset", &last.forgotten())?), true),
                None => Change::Keep(false),
            })
        };
        self.queue.modify("reset", step).await
    }
}

fn data(operation: &'static str, last: &Last) -> Result<Data> {
    to_data(operation, last, MAX_VALUE_BYTES)
}

/// Logs, once for each claim, that a clock is wrong.
fn warn(last: &Last, now: Now, warned: &AtomicU64) {
    let number = last.number.value();
    if warned.swap(number, Ordering::Relaxed) != number {
        let (claimed, left) = (last.at(), Duration::from_micros(last.left(now)));
        tracing::warn!(
            ?claimed,
            ?left,
            "a clock is wrong: ours, or that of who made the last claim"
        );
    }
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

/// The last claim of a job, as [`OncePer::last_claim`] tells it.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
/// # let coordinator = coordination::Coordinator::connect("memory://").await?;
/// let report = coordinator.once_per("report", Duration::from_secs(60 * 60))?;
/// let _claim = report.try_claim().await?.expect("it is free");
///
/// let last = report.last_claim().await?.expect("it was claimed");
/// println!("claimed as number {}, and again in {:?}", last.token, last.due);
/// assert!(!last.is_open && last.due > Duration::ZERO);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LastClaim {
    /// Its number.
    pub token: FencingToken,
    /// When it was made, by the wall clock of who made it.
    pub at: SystemTime,
    /// When the next claim can be made, by the same clock; if it was [given back](Claim::give_back) this is `at`, or as much later as
    /// [`at_least`](OncePer::at_least) says.
    pub next: SystemTime,
    /// How long it is until the next claim can be made, as [`OncePer::due`] tells.
    pub due: Duration,
    /// Whether it was made [under](OncePer::try_claim_under) a guard and is not done yet, so that it can be taken over when the guard's
    /// holder is gone.
    pub is_open: bool,
}

/// A claim: the job is this process' for this period. Dropping it does not give it back.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
/// # let coordinator = coordination::Coordinator::connect("memory://").await?;
/// let hourly = coordinator.once_per("report", Duration::from_secs(60 * 60))?;
/// if let Some(claim) = hourly.try_claim().await? {
///     println!("run {}, the next one not before {:?}", claim.token(), claim.next());
///     claim.done().await?;
/// }
/// # Ok(()) }
/// ```
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

    /// When it was claimed; not earlier than the claims before it, unless a clock was far off.
    pub fn at(&self) -> SystemTime {
        self.stored.at()
    }

    /// When the next claim can be made.
    pub fn next(&self) -> SystemTime {
        self.stored.next()
    }

    /// Records that the job was done, so that nobody takes over a claim that was made [under](OncePer::try_claim_under)
    /// a guard. Any other claim counts as done from the beginning.
    ///
    /// False: somebody else has made the next claim, because the period was over or the guard's entry was gone. Or the claim was
    /// [given back](Self::give_back), or an operator has [reset](OncePer::reset) it, so that anybody may make the next one.
    ///
    /// # Errors
    ///
    /// Those of [`OncePer::try_claim`].
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the call goes on in the background.
    pub async fn done(&self) -> Result<bool> {
        let next = self.stored.next;
        let done = move |last: Last| (last.next >= next).then_some(Last { under: None, ..last });
        self.settle("done", done).await
    }

    /// Gives the claim back, because the job was not done. The job can be claimed again at once, or when the time of
    /// [`at_least`](OncePer::at_least) is over.
    ///
    /// False: the period was over and somebody else has made the next claim, which stays valid.
    ///
    /// # Errors
    ///
    /// Those of [`OncePer::try_claim`]. It can be called again then; twice has the effect of once.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the call goes on in the background.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let hourly = coordinator.once_per("report", Duration::from_secs(60 * 60))?;
    /// let claim = hourly.try_claim().await?.expect("nobody has claimed it");
    /// assert!(hourly.try_claim().await?.is_none());
    ///
    /// // The report could not be made: somebody else may try.
    /// assert!(claim.give_back().await?);
    /// assert!(hourly.try_claim().await?.is_some());
    /// # Ok(()) }
    /// ```
    pub async fn give_back(&self) -> Result<bool> {
        let at_least = self.at_least;
        self.settle("give_back", move |last| Some(last.settled(at_least))).await
    }

    /// Stores what `settled` makes of the claim, which is then no longer open. False: the stored claim is another one.
    async fn settle(
        &self,
        operation: &'static str,
        settled: impl Fn(Last) -> Option<Last> + Send + 'static,
    ) -> Result<bool> {
        let mine = self.stored.clone();
        let step = move |listing: &Listing| {
            let is_mine = |last: &Last| (last.number, last.at) == (mine.number, mine.at);
            Ok(match Last::of(listing, operation)?.filter(is_mine).and_then(&settled) {
                Some(last) => Change::Write(Some(data(operation, &last)?), true),
                None => Change::Keep(false),
            })
        };
        self.queue.modify(operation, step).await
    }
}

/// Its name and its token, when it was made, and when the next claim can be made, in seconds since 1970.
impl Serialize for Claim {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut fields = to.serialize_struct("Claim", 4)?;
        fields.serialize_field("name", self.queue.name())?;
        fields.serialize_field("token", &self.token())?;
        fields.serialize_field("at", &serialize::since::Written(self.at()))?;
        fields.serialize_field("next", &serialize::since::Written(self.next()))?;
        fields.end()
    }
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
