//! The rate limiter: at most N permits in every window of time, for all processes together.
//!
//! The queue's value is the history: the slots of the last permits. A caller that wants permits reads the history,
//! finds the first slot that the rules allow, and writes the history back with that slot in it; if another caller has
//! written in between, it starts again. Permits belong to no session, so none has to be given back, and a crash
//! changes nothing.

mod clock;
mod permit;
mod schedule;
mod settings;
#[cfg(test)]
mod tests;

use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use tokio::sync::OwnedMutexGuard;
use tokio::task::unconstrained;
use tokio::time::{Instant, timeout_at};

use self::clock::{Clock, Newest, Shared, Time, longer, shorter};
pub use self::permit::{Attempt, RatePermit};
use self::schedule::{History, Micros, Rules, to_micros, to_micros_floor};
pub use self::settings::RateSettings;
use super::engine::data::{MAX_VALUE_BYTES, to_data};
use super::engine::queue::{Change, Queue};
use super::engine::waiting::Waiting;
use crate::backend::Listing;
use crate::coordinator::Coordinator;
use crate::error::{Effect, Error, ErrorKind, Result};
use crate::time::BootInstant;

/// The kind of its queue keys.
const KIND: &str = "rate";
/// How long after its deadline a call still waits for the store's answer.
const LATENESS: Duration = Duration::from_millis(100);
/// The longest that a try waits for the store.
const LONGEST_TRY: Duration = Duration::from_secs(5);

impl Coordinator {
    /// The rate limiter of this name: at most `permits` in every window of the length `per`. No I/O.
    ///
    /// These settings are stored on first use; see [`RateLimiter`].
    ///
    /// # Errors
    ///
    /// * [`ErrorKind::Name`]: empty or too long.
    /// * [`ErrorKind::Input`]: `permits` is zero, or `per` is not 1 ms to 24 h.
    pub fn rate_limiter(
        &self,
        name: impl AsRef<str>,
        permits: u32,
        per: Duration,
    ) -> Result<RateLimiter> {
        let queue = self.queue_of(KIND, name.as_ref())?;
        let rules = Rules::default();
        RateLimiter { queue, rules, shared: Arc::default() }.and(permits, per)
    }

    /// The names of all rate limiters that have ever given a permit and whose name begins with the coordinator's prefix, without
    /// the prefix, in order.
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
    /// let second = std::time::Duration::from_secs(1);
    /// coordinator.rate_limiter("api", 5, second)?.try_acquire(1).await?;
    /// assert_eq!(coordinator.rate_limiters().await?, ["api"]);
    /// # Ok(()) }
    /// ```
    pub async fn rate_limiters(&self) -> Result<Vec<String>> {
        self.names("rate_limiters", KIND).await
    }
}

/// Gives at most `permits` permits in every window of time, to all processes together. Made by
/// [`Coordinator::rate_limiter`], without I/O; cheap to clone.
///
/// # What it promises
///
/// Each permit has a [slot](RatePermit::slot), a time on the limiter's clock, and is not returned before its
/// slot. The permit that comes `permits` after another one has a slot later by at least `per`. So **no
/// interval `[t, t + per)` contains more than `permits` of them**, wherever it begins, whoever asked, across
/// crashes and restarts. It is not a token bucket, which may let twice as many through within a window.
///
/// When a permit is *used* is up to its holder: a slow holder may use its permit together with later ones. If
/// the limiter has a [`margin`](Self::margin), and holders discard permits that are no longer
/// [`usable`](RatePermit::usable), the promise also holds for the resource.
///
/// # Settings
///
/// The first call stores the settings under the limiter's name. From then on, a limiter with other settings
/// gets [`ErrorKind::Mismatch`], until [`reconfigure`](Self::reconfigure) replaces the stored ones.
///
/// # Clocks
///
/// No synchronised clocks are needed, and wall clocks are not used. If the store has a clock that all its
/// clients can read (memory, `file://`, Redis), slots are times on that clock. On `file://` the clock starts again
/// after a reboot of the host; then the limiter behaves as if all permits had been taken at the moment when the
/// reboot was first noticed.
///
/// On other stores each process measures by its own clock how much time has passed since it saw that a permit was
/// given. So permits may come later, by the time that this news takes from process to process and by half a
/// percent for clocks that run at different rates, but never earlier. If all permits had been taken, however long
/// ago, a process that has just started may have to wait for up to a window, unless a permit has been given on its host
/// since, or somebody was refused there. From its first call on, a limiter follows the changes at the
/// store as long as it or a clone of it lives. Keep it, rather than making one for each call, because a first call that
/// is refused writes to the store.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
/// use std::time::Duration;
///
/// use coordination::Attempt;
///
/// let coordinator = coordination::Coordinator::connect("memory://").await?;
/// // 5 in every minute, and no more than 100 in an hour.
/// let minute = Duration::from_secs(60);
/// let limiter = coordinator.rate_limiter("api", 5, minute)?.and(100, 60 * minute)?;
///
/// for _ in 0..5 {
///     limiter.acquire(1, None).await?;
/// }
/// match limiter.try_acquire(1).await? {
///     Attempt::Granted(permit) => panic!("the sixth: {permit:?}"),
///     Attempt::Denied { retry_after } => assert!(retry_after <= minute),
/// }
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct RateLimiter {
    queue: Queue,
    rules: Rules,
    shared: Arc<Shared>,
}

/// The result of one read of the history.
struct Look {
    /// The slot of the permits; an error: how long the wait would be, which is too long.
    slot: Result<Micros, Micros>,
    now: Micros,
    has_clock: bool,
    /// The moment by this machine's clocks at which `now` was the time, or a later one.
    at: (BootInstant, Instant),
    /// A moment before the limiter's clock showed `now`.
    before: BootInstant,
    /// What was written, on a store without a clock.
    written: Option<History>,
}

impl Look {
    /// How long to wait by this machine's clock.
    fn wait(&self, wait: Micros) -> Duration {
        Duration::from_micros(if self.has_clock { wait } else { longer(wait) })
    }
}

impl RateLimiter {
    /// Adds another limit: also at most `permits` in every window of the length `per`.
    ///
    /// A permit is given only if all limits allow it, and it counts for all of them, in one step.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Input`]: `permits` is zero, or `per` is not of 1 ms to 24 h.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let minute = Duration::from_secs(60);
    /// let api = coordinator.rate_limiter("api", 2, minute)?.and(3, 60 * minute)?;
    /// assert!(api.try_acquire(2).await?.granted().is_some());
    /// assert!(api.try_acquire(1).await?.granted().is_none(), "two in this minute");
    /// # Ok(()) }
    /// ```
    pub fn and(mut self, permits: u32, per: Duration) -> Result<Self> {
        self.checked(|rules| rules.add(permits, per))?;
        Ok(self)
    }

    /// Gives holders this long to use a permit: every window becomes longer by this time. At most 24 h.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Input`]: it is longer than 24 h.
    pub fn margin(mut self, margin: Duration) -> Result<Self> {
        self.checked(|rules| rules.set_margin(margin))?;
        Ok(self)
    }

    /// Gives one permit at a time, at even distances: at least `per / permits` between two of them.
    ///
    /// A paced limiter stores only one slot. Other limiters store a slot for each permit of a window, and their limits
    /// have at most 10,000 permits.
    #[must_use]
    pub fn paced(mut self) -> Self {
        self.rules.pace();
        self
    }

    /// The limiter's name, with the coordinator's prefix.
    pub fn name(&self) -> &str {
        self.queue.name()
    }

    /// Takes this many permits now, all or none, or says when to ask again.
    ///
    /// It does not overtake permits that others have reserved for later by [`acquire`](Self::acquire), and does not wait for
    /// permits. It takes at most the shorter of the lease and 5 s.
    ///
    /// Calls of a limiter and its clones go to the store one after the other, so that they do not make each other start again. A
    /// try waits for those before it, for at most half of its time, which is 2.5 s with a lease of 5 s or more, and not while the
    /// store does not answer them; then it asks the store beside them.
    ///
    /// # Errors
    ///
    /// * [`ErrorKind::Input`]: the limits never allow this many at once; the message says how many they do.
    /// * [`ErrorKind::Mismatch`]: the limiter is stored with other settings.
    /// * [`ErrorKind::Unavailable`] and the other kinds of a store that refuses or does not answer: no
    ///   permit. With [`Effect::Unknown`] the permits may be used up.
    /// * [`ErrorKind::Closed`]: the coordinator was stopped, or this is a forked child.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the permits may be used up.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use coordination::Attempt;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let minute = Duration::from_secs(60);
    /// let api = coordinator.rate_limiter("api", 2, minute)?;
    /// assert!(matches!(api.try_acquire(2).await?, Attempt::Granted(_)));
    /// let Attempt::Denied { retry_after } = api.try_acquire(1).await? else { panic!("none is left") };
    /// assert!(retry_after <= minute);
    /// # Ok(()) }
    /// ```
    pub async fn try_acquire(&self, permits: u32) -> Result<Attempt> {
        let look = self.look(permits, Some(Duration::ZERO)).await?;
        Ok(match look.slot {
            Ok(slot) => Attempt::Granted(self.permit(slot, &look)),
            Err(wait) => Attempt::Denied { retry_after: look.wait(wait) },
        })
    }

    /// Reserves the first slot at which this many permits are available, and waits for it.
    ///
    /// `timeout` bounds the whole call; zero means now or not at all, `None` waits as long as it takes. If
    /// the wait would be longer, the call fails at once and takes nothing. Permits count from their slot on,
    /// whether they are used or not: they cannot be returned.
    ///
    /// # Errors
    ///
    /// * [`ErrorKind::Timeout`]: the wait would be longer; [`retry_after`](Error::retry_after) says how long.
    /// * Those of [`try_acquire`](Self::try_acquire). If the store does not answer within `timeout`, or
    ///   within 100 ms if that is longer, it is [`ErrorKind::Unavailable`]. It does not wait for the end of
    ///   an outage. With [`Effect::Applied`] the permits are used up: the runtime of the session ended before their slot.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the permits are used up. They cannot be returned, because older slots, which
    /// were forgotten when they were reserved, would be needed again.
    ///
    /// # Fairness
    ///
    /// First come, first served, in the order in which slots are stored: a call that has its slot is not
    /// overtaken. Calls at the same moment get their slots in any order; those of one limiter and its clones
    /// get them in turn, but a call waits for others for at most half of its time, and not while the store does not answer them.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let second = Duration::from_secs(1);
    /// let api = coordinator.rate_limiter("api", 10, second)?;
    /// for request in 0..10 {
    ///     let permit = api.acquire(1, Some(5 * second)).await?;
    ///     println!("request {request} at {:?}", permit.slot());
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn acquire(&self, permits: u32, timeout: Option<Duration>) -> Result<RatePermit> {
        let look = self.look(permits, timeout).await?;
        match look.slot {
            Ok(slot) => {
                let waited =
                    self.queue.sleep_until("acquire", look.at.1 + look.wait(slot - look.now)).await;
                // They are used up, whoever waits for their slot.
                waited.map_err(|error| error.with_effect(Effect::Applied))?;
                Ok(self.permit(slot, &look))
            }
            Err(wait) => {
                let wait = look.wait(wait);
                let message =
                    format!("the next permits can be had in {wait:?}, later than the time given");
                let error = self.queue.error(ErrorKind::Timeout, "acquire", message);
                Err(error.with_retry_after(wait))
            }
        }
    }

    /// The settings that the store has, for all, whatever this handle was made with; `None` if nobody has asked for a permit
    /// yet.
    ///
    /// # Errors
    ///
    /// The [kinds of error](crate::ErrorKind) of a store that refuses or does not answer.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect: it only reads.
    pub async fn stored_settings(&self) -> Result<Option<RateSettings>> {
        let stored = self.queue.read("list").await?.value;
        let history = stored.map(|value| clock::history(&value)).transpose();
        Ok(self.queue.named(history)?.map(|history| RateSettings(history.rules)))
    }

    /// Replaces the stored settings by those of this limiter.
    ///
    /// Permits that were given before still count. If the new limits need more past permits than are
    /// remembered, the forgotten ones count as if they were as recent as the old limits allowed. So for one
    /// window there may be fewer permits than allowed, never more. [`reset`](Self::reset) forgets them.
    ///
    /// # Errors
    ///
    /// Those of [`try_acquire`](Self::try_acquire) but `Mismatch`.
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
    /// use coordination::ErrorKind;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let second = Duration::from_secs(1);
    /// coordinator.rate_limiter("api", 1, second)?.try_acquire(1).await?;
    ///
    /// let faster = coordinator.rate_limiter("api", 5, second)?;
    /// assert_eq!(faster.try_acquire(1).await.unwrap_err().kind(), ErrorKind::Mismatch);
    /// faster.reconfigure().await?;
    /// assert!(faster.try_acquire(1).await.is_ok());
    /// # Ok(()) }
    /// ```
    pub async fn reconfigure(&self) -> Result<()> {
        let rules = self.rules.clone();
        let make = move |time: Time| {
            let (epoch, now) = (time.epoch, time.now);
            let mut history =
                time.history.unwrap_or_else(|| History::new(rules.clone(), epoch, now));
            history.begin(epoch, now);
            history.reconfigure(rules.clone());
            history
        };
        self.store("reconfigure", make).await
    }

    /// Forgets all permits given so far, and stores the settings of this limiter: for operators.
    ///
    /// From then on all permits are available at once, so that a window around this moment may have twice as many
    /// permits as allowed. Calls that wait for their slot keep it.
    ///
    /// # Errors
    ///
    /// Those of [`try_acquire`](Self::try_acquire) but `Mismatch`.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the call goes on in the background.
    pub async fn reset(&self) -> Result<()> {
        let rules = self.rules.clone();
        let make = move |time: Time| History::new(rules.clone(), time.epoch, time.now);
        self.store("reset", make).await
    }

    /// Stores the history that this makes of what is stored, if the settings of this limiter are allowed.
    async fn store(
        &self,
        operation: &'static str,
        make: impl Fn(Time) -> History + Send + 'static,
    ) -> Result<()> {
        self.input(operation, self.rules.check())?;
        self.check_open(operation)?;
        let clock = self.shared.clock.clone();
        let mut newest = clock.newest();
        let step = move |listing: &Listing| {
            let time = clock.read(listing, Some(newest), BootInstant::now())?;
            newest = clock.newest();
            let data = to_data(operation, &make(time), MAX_VALUE_BYTES)?;
            Ok(Change::Write(Some(data), ()))
        };
        self.queue.modify(operation, step).await
    }

    /// Finds the first slot and takes it, unless the wait is too long.
    async fn look(&self, permits: u32, timeout: Option<Duration>) -> Result<Look> {
        self.input("acquire", self.rules.check_permits(permits))?;
        self.check_open("acquire")?;
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let (rules, clock) = (self.rules.clone(), self.shared.clock.clone());
        let mut before = (BootInstant::now(), clock.newest());
        let is_first = !self.shared.follower.has_started();
        #[cfg(test)]
        let looks = Arc::clone(&self.shared.looks);
        let step = move |listing: &Listing| {
            #[cfg(test)]
            looks.fetch_add(1, Ordering::SeqCst);
            // Invariant: this is read after the listing has arrived, and the next listing is requested after this.
            let at = (BootInstant::now(), Instant::now());
            let look = look_at(listing, &rules, &clock, (permits, deadline), is_first, at, before);
            before = (at.0, clock.newest());
            look
        };
        let a_try = self.queue.session.ttl().min(LONGEST_TRY);
        let limit = Waiting::within(timeout).limit(a_try).map(|limit| limit.max(LATENESS));
        let asking = self.in_turn(limit, step);
        let look = tokio::select! {
            biased;
            look = asking => look?,
            () = self.queue.out_of_time(limit) => {
                let message = "the store did not answer within the time given";
                let late = self.queue.session.late("acquire", message, None);
                return self.queue.named(Err(late.with_effect(Effect::Unknown)));
            }
        };
        if let Some(history) = &look.written {
            self.shared.clock.wrote(history, look.at.0);
        }
        if !look.has_clock {
            self.shared.follower.start(&self.queue, &self.shared.clock);
        }
        Ok(look)
    }

    /// Changes the history when the calls before it in this process have done so.
    ///
    /// They take turns only to spare the store some retries. The compare-and-set is what makes concurrent calls correct.
    async fn in_turn(
        &self,
        limit: Option<Duration>,
        step: impl FnMut(&Listing) -> Result<Change<Look>> + Send + 'static,
    ) -> Result<Look> {
        let (queue, returned) = (self.queue.clone(), Arc::clone(&self.shared.returned));
        let stall = queue.session.call_timeout();
        let until = limit.and_then(|limit| Instant::now().checked_add(limit / 2));
        let mut turns = Box::pin(unconstrained(Arc::clone(&self.shared.turn).lock_owned()));
        // Asked for at once, as tasks may start in another order than they were spawned.
        let turn = poll_fn(|context| Poll::Ready(turns.as_mut().poll(context))).await;
        // A task has the turn: a caller that does something else, and does not poll its call, would keep it.
        let asking = self.queue.session.run_for_caller("acquire", async move {
            let _turn = match turn {
                Poll::Ready(turn) => Some(turn),
                Poll::Pending => turn_by(turns, &returned, stall, until).await,
            };
            let looked = queue.modify("acquire", step).await;
            returned.fetch_add(1, Ordering::SeqCst);
            looked
        });
        self.queue.named(asking.await)
    }

    fn permit(&self, slot: Micros, look: &Look) -> RatePermit {
        // The time is computed on the safe side, for all clocks that A1 in `docs/guarantees.md` allows: the slot came no earlier
        // than this assumes, and the margin ends no later.
        let usable = self.rules.margin().map(|margin| {
            let wait = Duration::from_micros(slot.saturating_sub(look.now));
            let margin = Duration::from_micros(shorter(to_micros_floor(margin)));
            look.before.saturating_add(wait).saturating_add(margin)
        });
        RatePermit { slot: Duration::from_micros(slot), usable }
    }

    /// Fails in a forked child before anything is locked that a thread of the parent may have locked, for ever as the child sees it.
    fn check_open(&self, operation: &'static str) -> Result<()> {
        self.queue.named(self.queue.session.check_open(operation))
    }

    fn checked(&mut self, change: impl FnOnce(&mut Rules) -> Result<(), String>) -> Result<()> {
        let outcome = change(&mut self.rules);
        self.input("rate_limiter", outcome)
    }

    fn input(&self, operation: &'static str, outcome: Result<(), String>) -> Result<()> {
        outcome.map_err(|message| self.queue.error(ErrorKind::Input, operation, message))
    }
}

/// Waits for the turn. `None`: it does not come until then, or none of those before it has `returned` for a while: the store does not
/// answer, and this call is to learn that by itself.
async fn turn_by(
    mut turns: impl Future<Output = OwnedMutexGuard<()>> + Unpin,
    returned: &AtomicU64,
    stall: Duration,
    until: Option<Instant>,
) -> Option<OwnedMutexGuard<()>> {
    loop {
        let before = returned.load(Ordering::SeqCst);
        let look = Instant::now() + stall;
        let end = until.map_or(look, |until| until.min(look));
        if let Ok(turn) = timeout_at(end, &mut turns).await {
            return Some(turn);
        }
        if until == Some(end) || returned.load(Ordering::SeqCst) == before {
            return None;
        }
    }
}

/// One step of the compare-and-set: finds the first slot, and takes it unless the wait is too long.
fn look_at(
    listing: &Listing,
    rules: &Rules,
    clock: &Clock,
    (permits, deadline): (u32, Option<Instant>),
    is_first: bool,
    at: (BootInstant, Instant),
    (before, newest): (BootInstant, Newest),
) -> Result<Change<Look>> {
    let Time { history, epoch, now } = clock.read(listing, Some(newest), at.0)?;
    let mut history = history.unwrap_or_else(|| History::new(rules.clone(), epoch, now));
    if history.rules != *rules {
        let message = format!(
            "the limiter has the settings [{}], and [{rules}] were asked for",
            history.rules
        );
        return Err(Error::new(ErrorKind::Mismatch, "acquire", message));
    }
    let is_cold = history.begin(epoch, now);
    let has_clock = listing.clock.is_some();
    let longest = deadline.map(|deadline| {
        let left = to_micros(deadline.saturating_duration_since(at.1));
        if has_clock { left } else { shorter(left) }
    });
    let slot = history.reserve(now, permits, longest);
    let mut look = Look { slot, now: now.max(history.now), has_clock, at, before, written: None };
    if !has_clock && look.slot.is_ok() {
        history.mark(permits);
    }
    // A process that asks for the first time and is refused may end before a window has passed. So its host remembers what it has
    // seen.
    let attests = !has_clock && (look.slot.is_ok() || is_first) && clock.attest(&mut history, at.0);
    if look.slot.is_err() && !is_cold && !attests {
        return Ok(Change::Keep(look));
    }
    let data = to_data("acquire", &history, MAX_VALUE_BYTES)?;
    look.written = (!has_clock).then_some(history);
    Ok(Change::Write(Some(data), look))
}

impl fmt::Debug for RateLimiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimiter")
            .field("name", &self.name())
            .field("rules", &format_args!("{}", self.rules))
            .finish_non_exhaustive()
    }
}
