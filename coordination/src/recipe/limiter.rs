//! The limiter with standby: at most N work, at most M more stand by, and all others are refused at once.

mod gate;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tokio::time::Instant;

use self::gate::{Gate, Limits};
use super::engine::data::from_data;
use super::engine::grant::{Grant, guard};
use super::engine::label::labelled;
use super::engine::own_entry::Contents;
use super::engine::policy::Policy;
use super::engine::queue::Queue;
use super::engine::slots::{self, Claim, MAX_SLOTS, Occupant};
use super::engine::turn::Request;
use super::engine::waiting::Waiting;
use crate::backend::Listing;
use crate::coordinator::Coordinator;
use crate::error::{Effect, Error, ErrorKind, Result};
use crate::serialize;
use crate::token::FencingToken;

/// How long a contender without patience waits until the entries before it have decided.
const ARRIVING: Duration = Duration::from_secs(5);

/// Lets at most N contenders work at a time and M more stand by; made by [`Coordinator::limiter`].
///
/// For jobs that are started again and again, by cron on many hosts. With one slot and one place on standby, one
/// job runs, another stands by to take over the moment the first ends or dies, and the rest are refused at once.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
/// use coordination::{Admission, Refusal};
///
/// let coordinator = coordination::Coordinator::connect("memory://").await?;
/// let nightly = coordinator.singleton("nightly")?;
/// let Admission::Working(slot) = nightly.enter().await? else { panic!("nobody else is there") };
/// assert!(matches!(nightly.enter().await?, Admission::Refused(Refusal::AllBusy)));
/// slot.release().await?;
/// assert!(matches!(nightly.enter().await?, Admission::Working(_)));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Limiter {
    queue: Queue,
    limits: Limits,
    patience: Patience,
}

/// How long a contender on standby waits for a slot.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// use coordination::{Admission, Patience, Refusal};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
/// # let coordinator = coordination::Coordinator::connect("memory://").await?;
/// let nightly = coordinator.limiter("nightly")?.standby(1);
/// let _working = nightly.enter().await?;
///
/// let hasty = nightly.clone().patience(Patience::Never);
/// assert!(matches!(hasty.enter().await?, Admission::Refused(Refusal::AllBusy)));
/// let patient = nightly.patience(Patience::Timeout(Duration::from_millis(10)));
/// assert!(matches!(patient.enter().await?, Admission::Refused(Refusal::GaveUp { .. })));
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Patience {
    /// Not at all: the contender is refused if all slots are taken.
    Never,
    /// At most this long in total. Zero is a try: the contender does not stand by, and replaces nobody.
    Timeout(Duration),
    /// Until it gets a slot.
    Forever,
}

impl Patience {
    /// As long as `count` attempts at this interval would take. There are no attempts: the contender waits,
    /// and takes a slot as soon as one is free.
    pub fn retries(count: u32, interval: Duration) -> Self {
        Self::Timeout(interval.saturating_mul(count))
    }
}

impl Default for Patience {
    /// As long as ten attempts at an interval of one second.
    fn default() -> Self {
        Self::retries(10, Duration::from_secs(1))
    }
}

/// The outcome of [`Limiter::enter`].
///
/// # Examples
///
/// ```
/// use coordination::Admission;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
/// # let coordinator = coordination::Coordinator::connect("memory://").await?;
/// match coordinator.singleton("nightly")?.enter().await? {
///     Admission::Working(slot) => {
///         // … the job …
///         slot.release().await?;
///     }
///     Admission::Refused(refusal) => println!("not this time: {refusal:?}"),
/// }
/// # Ok(()) }
/// ```
#[derive(Debug)]
#[must_use = "the slot is given back when it is dropped"]
pub enum Admission {
    /// The caller has a slot.
    Working(WorkSlot),
    /// The caller has no slot, and has left nothing at the store.
    Refused(Refusal),
}

/// Why the caller got no slot.
///
/// # Examples
///
/// ```
/// use coordination::{Admission, Refusal};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
/// # let coordinator = coordination::Coordinator::connect("memory://").await?;
/// let nightly = coordinator.singleton("nightly")?;
/// let _working = nightly.enter().await?;
/// let Admission::Refused(refusal) = nightly.enter().await? else { panic!("there is one slot") };
/// match refusal {
///     Refusal::AllBusy | Refusal::StandbyFull => println!("enough of us are there"),
///     Refusal::GaveUp { waited } => println!("it took longer than {waited:?}"),
///     Refusal::Replaced => println!("somebody newer stands by"),
///     _ => {}
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
#[serde(rename_all = "snake_case")]
pub enum Refusal {
    /// All slots are taken, and the limiter has no standby or the caller no patience.
    AllBusy,
    /// All slots are taken, and so are all places on standby.
    StandbyFull,
    /// The caller's patience was over.
    GaveUp {
        /// How long it waited.
        #[serde(serialize_with = "serialize::seconds::serialize")]
        waited: Duration,
    },
    /// A newcomer has replaced the caller, because of [`latest_wins`](Limiter::latest_wins).
    Replaced,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AllBusy => f.write_str("all slots are taken"),
            Self::StandbyFull => f.write_str("all slots and all places on standby are taken"),
            Self::GaveUp { waited } => write!(f, "no slot was free within {waited:?}"),
            Self::Replaced => f.write_str("a newcomer has taken the place on standby"),
        }
    }
}

/// How far an entering contender is, as reported to the callback of [`Limiter::enter_telling`].
///
/// # Examples
///
/// ```
/// use coordination::Standing;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
/// # let coordinator = coordination::Coordinator::connect("memory://").await?;
/// let nightly = coordinator.singleton("nightly")?;
/// let admission = nightly.enter_telling(|standing| match standing {
///     Standing::Arriving => println!("waiting for those before to decide"),
///     Standing::Standby => println!("standing by"),
///     Standing::Working(slot) => println!("at work in slot {slot}"),
/// });
/// let _working = admission.await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    /// It has entered, and waits for the contenders before it to decide.
    Arriving,
    /// It waits for a slot.
    Standby,
    /// It has this slot.
    Working(u32),
}

impl fmt::Display for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Arriving => f.write_str("arriving"),
            Self::Standby => f.write_str("on standby"),
            Self::Working(slot) => write!(f, "working in slot {slot}"),
        }
    }
}

/// Who works, stands by or waits, and how many slots there are, as this listing of the limiter has it.
pub(super) fn listed(queue: &Queue, listing: &Listing) -> Result<(Vec<Occupant>, Option<u32>)> {
    let limits = slots::limits_in::<Limits>(queue, listing)?;
    Ok((slots::occupants_in(queue, listing, 1)?, limits.map(|limits| limits.slots)))
}

impl Coordinator {
    /// The limiter of this name, with one slot and no standby unless set otherwise. No I/O.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Name`](crate::ErrorKind::Name): empty or too long.
    pub fn limiter(&self, name: impl AsRef<str>) -> Result<Limiter> {
        let limits = Limits { slots: 1, standby: 0, latest_wins: false };
        let queue = self.queue_of("limiter", name.as_ref())?;
        Ok(Limiter { queue, limits, patience: Patience::default() })
    }

    /// A limiter with one slot and no standby: a second contender is refused at once. No I/O.
    ///
    /// # Errors
    ///
    /// Those of [`limiter`](Self::limiter).
    ///
    /// # Examples
    ///
    /// ```
    /// use coordination::Admission;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// // What cron starts on every host, and one of them does.
    /// let nightly = coordinator.singleton("nightly")?;
    /// let Admission::Working(slot) = nightly.enter().await? else { return Ok(()) };
    /// // … the job …
    /// slot.release().await?;
    /// # Ok(()) }
    /// ```
    pub fn singleton(&self, name: impl AsRef<str>) -> Result<Limiter> {
        self.limiter(name)
    }
}

impl Limiter {
    /// Sets how many may work at a time: 1 to 10,000.
    pub fn slots(mut self, slots: u32) -> Self {
        self.limits.slots = slots;
        self
    }

    /// Sets how many may be on standby at a time: 0 to 10,000.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use coordination::{Admission, Patience};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let forever = coordinator.limiter("nightly")?.standby(1).patience(Patience::Forever);
    /// let Admission::Working(first) = forever.enter().await? else { panic!("nobody is there") };
    /// let second = forever.clone();
    /// let second = tokio::spawn(async move { second.enter().await });
    /// while forever.inspect().await?.len() < 2 {}
    ///
    /// // The place on standby is taken.
    /// assert!(matches!(forever.enter().await?, Admission::Refused(_)));
    /// first.release().await?;
    /// assert!(matches!(second.await.expect("no panic")?, Admission::Working(_)));
    /// # Ok(()) }
    /// ```
    pub fn standby(mut self, standby: u32) -> Self {
        self.limits.standby = standby;
        self
    }

    /// Sets how long this caller waits on standby.
    pub fn patience(mut self, patience: Patience) -> Self {
        self.patience = patience;
        self
    }

    /// Sets one slot and one place on standby, which belongs to the contender that came last: a newcomer replaces
    /// the contender that stands by.
    ///
    /// # Examples
    ///
    /// ```
    /// use coordination::{Admission, Patience, Refusal};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// // Builds of one branch: one runs, and of those that wait only the newest is of interest.
    /// let builds = coordinator.limiter("build-main")?.latest_wins().patience(Patience::Forever);
    /// let Admission::Working(running) = builds.enter().await? else { panic!("nobody is there") };
    /// let older = builds.clone();
    /// let older = tokio::spawn(async move { older.enter().await });
    /// while builds.inspect().await?.len() < 2 {}
    ///
    /// let newest = builds.clone();
    /// let newest = tokio::spawn(async move { newest.enter().await });
    /// let replaced = older.await.expect("no panic")?;
    /// assert!(matches!(replaced, Admission::Refused(Refusal::Replaced)));
    /// running.release().await?;
    /// assert!(matches!(newest.await.expect("no panic")?, Admission::Working(_)));
    /// # Ok(()) }
    /// ```
    pub fn latest_wins(mut self) -> Self {
        self.limits = Limits { slots: 1, standby: 1, latest_wins: true };
        self
    }

    /// The name, with the coordinator's prefix.
    pub fn name(&self) -> &str {
        self.queue.name()
    }

    /// Takes a slot, or waits for one on standby, or is refused.
    ///
    /// # Errors
    ///
    /// * [`ErrorKind::Input`](crate::ErrorKind::Input): a number is out of range, or is not one with
    ///   [`latest_wins`](Self::latest_wins).
    /// * [`ErrorKind::Mismatch`](crate::ErrorKind::Mismatch): the limiter is stored with other numbers.
    /// * Those of [`Lock::acquire`](crate::Lock::acquire) but `Timeout`.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future at any point leaves neither a slot nor a place on standby behind.
    ///
    /// # Fairness
    ///
    /// The contender that has waited longest gets the next slot; newcomers do not overtake. With
    /// [`latest_wins`](Self::latest_wins) the contender that came last gets it.
    pub async fn enter(&self) -> Result<Admission> {
        self.enter_with(|_| {}, None).await
    }

    /// Like [`enter`](Self::enter), but `keep_waiting` decides about patience. From the call on, also before the caller
    /// is on standby, `keep_waiting` is called at every `interval`, with the number of the call, from 1, and the time
    /// waited so far. If it returns false, the caller gives up.
    ///
    /// # Errors
    ///
    /// Those of [`enter`](Self::enter). A caller who gives up before he was on standby, while the store does not answer, is told
    /// [`ErrorKind::Unavailable`]: his entry may be at the store until it is removed, or its session ends. A caller who gives up
    /// while the store refuses to keep his slot is told the store's refusal.
    ///
    /// # Cancel safety
    ///
    /// That of [`enter`](Self::enter).
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use coordination::{Admission, Refusal};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let nightly = coordinator.limiter("nightly")?.standby(1);
    /// let Admission::Working(slot) = nightly.enter().await? else { panic!("nobody else is there") };
    ///
    /// // Goes on waiting when it is asked for the first time, and not for the second.
    /// let interval = Duration::from_millis(5);
    /// let second = nightly.enter_while(interval, |count, _waited| count < 2).await?;
    /// assert!(matches!(second, Admission::Refused(Refusal::GaveUp { .. })));
    /// # drop(slot);
    /// # Ok(()) }
    /// ```
    pub async fn enter_while(
        &self,
        interval: Duration,
        mut keep_waiting: impl FnMut(u32, Duration) -> bool + Send,
    ) -> Result<Admission> {
        self.enter_with(|_| {}, Some((interval, &mut keep_waiting))).await
    }

    /// Like [`enter`](Self::enter), but calls `on_standing` at every step. If `on_standing` panics, nothing is left
    /// behind at the store.
    ///
    /// # Errors
    ///
    /// Those of [`enter`](Self::enter).
    ///
    /// # Cancel safety
    ///
    /// That of [`enter`](Self::enter).
    ///
    /// # Examples
    ///
    /// ```
    /// use coordination::{Admission, Standing};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let nightly = coordinator.singleton("nightly")?;
    /// let mut told = Vec::new();
    /// let admission = nightly.enter_telling(|standing| told.push(standing)).await?;
    /// assert!(matches!(admission, Admission::Working(_)));
    /// assert_eq!(told.last(), Some(&Standing::Working(1)));
    /// # Ok(()) }
    /// ```
    pub async fn enter_telling(
        &self,
        on_standing: impl FnMut(Standing) + Send,
    ) -> Result<Admission> {
        self.enter_with(on_standing, None).await
    }

    async fn enter_with(
        &self,
        mut on_standing: impl FnMut(Standing) + Send,
        keep_waiting: Option<KeepWaiting<'_>>,
    ) -> Result<Admission> {
        self.check()?;
        let start = Instant::now();
        let never_waits =
            matches!(self.patience, Patience::Never | Patience::Timeout(Duration::ZERO));
        let is_patient = !never_waits || keep_waiting.is_some();
        let (gate, mut told) = Gate::new(self.limits, is_patient);
        // There is room for two updates, because the contender may be put on standby before it gets a slot.
        let claim = Claim::wants(1);
        let (data, room) = (claim.data()?, claim.room(2)?);
        let request = Request {
            contents: Contents { data, room, ..self.queue.contents() },
            policy: Some(Arc::clone(&gate) as Arc<dyn Policy>),
        };
        let entering = self.queue.acquire(&request, self.limit_of_waiting(keep_waiting.is_some()));
        let tired = self.tired(start, keep_waiting);
        tokio::pin!(entering, tired);
        let outcome = loop {
            tokio::select! {
                biased;
                outcome = &mut entering => break outcome,
                Ok(()) = told.changed() => on_standing(*told.borrow_and_update()),
                () = &mut tired => {
                    let has_arrived = *told.borrow() != Standing::Arriving;
                    let has_answered = has_arrived || gate.was_asked() && self.queue.session.is_connected();
                    let silence = || (!has_answered).then(|| self.silence());
                    return match gate.refusal_by_store().or_else(silence) {
                        Some(error) => self.queue.named(Err(error)),
                        None => Ok(Admission::Refused(Refusal::GaveUp { waited: start.elapsed() })),
                    };
                }
            }
        };
        match (outcome, gate.refusal()) {
            (_, Some(refusal)) => Ok(Admission::Refused(refusal)),
            (Ok(Some(grant)), None) => {
                let claim: Claim =
                    self.queue.named(from_data("enter", grant.own_entry().data()))?;
                let slot = claim.slots.first().copied().unwrap_or_default() + 1;
                on_standing(Standing::Working(slot));
                Ok(Admission::Working(WorkSlot { grant, slot }))
            }
            (Err(error), None) if error.kind() != ErrorKind::Timeout => Err(error),
            _ if !is_patient => Ok(Admission::Refused(Refusal::AllBusy)),
            _ => Ok(Admission::Refused(Refusal::GaveUp { waited: start.elapsed() })),
        }
    }

    /// The error of a caller who gives up before he was on standby while the store does not answer. His entry may be there.
    fn silence(&self) -> Error {
        let message = "the store did not answer within the time given";
        self.queue.session.late("enter", message, None).with_effect(Effect::Unknown)
    }

    /// Calls `keep_waiting` at its interval until it returns false; without a `keep_waiting`, waits for ever.
    async fn tired(&self, start: Instant, keep_waiting: Option<KeepWaiting<'_>>) {
        let Some((interval, keep_waiting)) = keep_waiting else {
            return std::future::pending().await;
        };
        let interval = interval.max(Duration::from_millis(1));
        for attempt in 1.. {
            let Some(next) = Instant::now().checked_add(interval) else {
                // Later than the clock can show, so never.
                return std::future::pending().await;
            };
            if self.queue.sleep_until("acquire", next).await.is_err() {
                // The session's runtime has ended, and the caller did not give up: the acquire ends as well, and tells of that.
                return std::future::pending().await;
            }
            if !keep_waiting(attempt, start.elapsed()) {
                return;
            }
        }
    }

    fn check(&self) -> Result<()> {
        let slots = slots::check("the number of slots", self.limits.slots, MAX_SLOTS);
        self.queue.named(slots)?;
        let latest = Limits { slots: 1, standby: 1, latest_wins: true };
        if self.limits.standby > MAX_SLOTS || self.limits.latest_wins && self.limits != latest {
            let message =
                "0 to 10,000 may be on standby; with the latest winning, one, for one slot";
            return Err(self.queue.error(ErrorKind::Input, "enter", message));
        }
        Ok(())
    }

    fn limit_of_waiting(&self, is_asked: bool) -> Waiting {
        match self.patience {
            _ if is_asked => Waiting::Forever,
            Patience::Never => Waiting::For(ARRIVING),
            Patience::Timeout(limit) => Waiting::within(Some(limit)),
            Patience::Forever => Waiting::Forever,
        }
    }

    /// Changes the number of slots for all: for this handle, for contenders on standby, and for callers that ask
    /// for the new number from now on. When the number shrinks, nobody loses a slot: newcomers are admitted only
    /// when fewer contenders work than the new number.
    ///
    /// The number of places on standby, and whether the [latest wins](Self::latest_wins), are replaced as well, by those of this
    /// handle: with a handle that differs in these, all other callers get [`ErrorKind::Mismatch`] from then on.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Input`](crate::ErrorKind::Input): the number is out of range. And those of a store that
    /// refuses or does not answer.
    ///
    /// # Cancel safety
    ///
    /// A dropped call may or may not take effect.
    ///
    /// # Examples
    ///
    /// ```
    /// use coordination::Admission;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let mut thumbnails = coordinator.limiter("thumbnails")?.slots(1);
    /// let Admission::Working(first) = thumbnails.enter().await? else { panic!("it is free") };
    /// thumbnails.resize(2).await?;
    /// let Admission::Working(second) = thumbnails.enter().await? else { panic!("there are two") };
    /// assert_eq!((first.slot(), second.slot()), (1, 2));
    /// # Ok(()) }
    /// ```
    pub async fn resize(&mut self, slots: u32) -> Result<()> {
        let resized = Self { limits: Limits { slots, ..self.limits }, ..self.clone() };
        resized.check()?;
        slots::set_limits(&self.queue, resized.limits).await?;
        *self = resized;
        Ok(())
    }

    /// How many slots there are for all, as the store has it, whatever this handle was made with; `None` if nobody has
    /// entered yet.
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
    /// let thumbnails = coordinator.limiter("thumbnails")?.slots(4);
    /// let _admission = thumbnails.enter().await?;
    /// assert_eq!(coordinator.limiter("thumbnails")?.stored_slots().await?, Some(4));
    /// # Ok(()) }
    /// ```
    pub async fn stored_slots(&self) -> Result<Option<u32>> {
        let limits = slots::limits::<Limits>(&self.queue).await?;
        Ok(limits.map(|limits| limits.slots))
    }

    /// The contenders that work and those on standby, in order of arrival.
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
    /// use coordination::Admission;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let nightly = coordinator.singleton("nightly")?;
    /// assert!(nightly.inspect().await?.is_empty());
    /// let Admission::Working(slot) = nightly.enter().await? else { panic!("nobody else is there") };
    ///
    /// let there = nightly.inspect().await?;
    /// assert_eq!(there[0].slots, [slot.slot()]);
    /// assert!(!there[0].standby);
    /// # Ok(()) }
    /// ```
    pub async fn inspect(&self) -> Result<Vec<Occupant>> {
        slots::occupants(&self.queue, 1).await
    }

    /// Takes away exactly the slot with this token, or the place of one that still waits, and returns who it
    /// was; `None` if nobody has this token any more.
    ///
    /// For operators, when a holder hangs. Whoever stands by is given the slot at once. The former holder learns of the loss through its guard, at once or within a
    /// heartbeat; until then it may go on writing, and only fencing stops its writes. One that still waits
    /// queues again, at the end.
    ///
    /// # Errors
    ///
    /// The [kinds of error](crate::ErrorKind) of a store that refuses or does not answer;
    /// [`effect`](crate::Error::effect) says whether it may have been taken away.
    ///
    /// # Cancel safety
    ///
    /// A dropped call may or may not take it away. It never takes away a later grant.
    ///
    /// # Examples
    ///
    /// ```
    /// use coordination::Admission;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let nightly = coordinator.singleton("nightly")?;
    /// let Admission::Working(hanging) = nightly.enter().await? else { panic!("nobody is there") };
    ///
    /// assert!(nightly.break_grant(hanging.token()).await?.is_some());
    /// assert!(nightly.inspect().await?.is_empty());
    /// # Ok(()) }
    /// ```
    pub async fn break_grant(&self, token: FencingToken) -> Result<Option<Occupant>> {
        slots::break_grant(&self.queue, 1, token).await
    }
}

labelled!(Limiter, "the contenders that enter", "[`Limiter::inspect`]");

/// The interval at which to ask whether to go on waiting, and the function to ask.
type KeepWaiting<'a> = (Duration, &'a mut (dyn FnMut(u32, Duration) -> bool + Send));

/// Holds a slot of a limiter; releases it when dropped.
///
/// The token is larger than every earlier token **of the same slot**.
///
/// # Examples
///
/// ```
/// use coordination::Admission;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
/// # let coordinator = coordination::Coordinator::connect("memory://").await?;
/// let thumbnails = coordinator.limiter("thumbnails")?.slots(2);
/// let Admission::Working(slot) = thumbnails.enter().await? else { panic!("two are free") };
/// // Something that there is one of for each slot, as nobody else has this number now.
/// let scratch = format!("/scratch/thumbnails-{}", slot.slot());
/// assert_eq!(scratch, "/scratch/thumbnails-1");
/// slot.release().await?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
#[must_use = "the slot is given back when the guard is dropped"]
pub struct WorkSlot {
    grant: Grant,
    slot: u32,
}

guard!(WorkSlot, "the slot");

impl WorkSlot {
    /// The slot's number, from 1 to the number of slots, which nobody else has at the same time.
    pub fn slot(&self) -> u32 {
        self.slot
    }
}

#[cfg(all(test, feature = "memory"))]
mod tests {
    use super::*;

    /// If it took the place on standby for a moment, whoever has that place would give way to somebody who does not wait.
    #[tokio::test(start_paused = true)]
    async fn lm2_who_does_not_wait_replaces_nobody() -> Result<()> {
        let coordinator = Coordinator::connect("memory://no-patience").await?;
        let latest = coordinator.limiter("nightly")?.latest_wins();
        let Admission::Working(slot) = latest.enter().await? else { panic!("nobody is there") };
        let hasty = latest.clone().patience(Patience::retries(0, Duration::from_secs(1)));
        let passes = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            assert!(latest.inspect().await?.iter().any(|occupant| occupant.standby));
            let refused = hasty.enter().await?;
            assert!(matches!(refused, Admission::Refused(Refusal::AllBusy)), "{refused:?}");
            slot.release().await
        };
        let (entered, passed) = tokio::join!(latest.enter(), passes);
        passed?;
        assert!(matches!(entered?, Admission::Working(_)));
        coordinator.stop().await
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_never_asked_waits() -> Result<()> {
        let coordinator = Coordinator::connect("memory://never-asked").await?;
        let nightly = coordinator.limiter("nightly")?.standby(1);
        let Admission::Working(first) = nightly.enter().await? else { panic!("nobody is there") };
        let second = nightly.enter_while(Duration::MAX, |_, _| panic!("it is never asked"));
        let releases = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            first.release().await
        };
        let (entered, released) = tokio::join!(second, releases);
        released?;
        assert!(matches!(entered?, Admission::Working(_)));
        coordinator.stop().await
    }
}
