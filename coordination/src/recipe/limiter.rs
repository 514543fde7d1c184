//! The limiter with standby: so many work, so many more wait close by, all others are refused at once.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::data::from_data;
use super::gate::{Gate, Limits};
use super::grant::{Grant, guard};
use super::judge::Judge;
use super::place::Contents;
use super::queue::Queue;
use super::slots::{self, Claim, MAX_SLOTS, Occupant};
use super::turn::{self, Request};
use crate::coordinator::Coordinator;
use crate::error::{ErrorKind, Result};

/// How long somebody who would rather not wait waits for those before him to make up their minds.
const ARRIVING: Duration = Duration::from_secs(5);

/// Lets so many work at a time, and so many more wait for that; made by [`Coordinator::limiter`].
///
/// For jobs that are started again and again, by cron on many hosts: one runs, one may stand by to take over
/// the moment it ends or dies, and the rest go home at once.
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

/// How long somebody on standby waits for a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Patience {
    /// Not at all: refused if all slots are taken.
    Never,
    /// At most this long in all.
    Timeout(Duration),
    /// Until there is one.
    Forever,
}

impl Patience {
    /// As long as so many tries at this interval take. Slots are waited for, not polled: nothing is tried
    /// again, and a slot is taken as soon as it is free.
    pub fn retries(count: u32, interval: Duration) -> Self {
        Self::Timeout(interval.saturating_mul(count))
    }
}

impl Default for Patience {
    /// Ten tries at one second.
    fn default() -> Self {
        Self::retries(10, Duration::from_secs(1))
    }
}

/// What became of [`Limiter::enter`].
#[derive(Debug)]
#[must_use = "the slot is given back when it is dropped"]
pub enum Admission {
    /// A slot is ours.
    Working(WorkSlot),
    /// There is none for us; nothing is left at the store.
    Refused(Refusal),
}

/// Why there was no slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// All slots are taken, and nobody may wait, or this one did not want to.
    AllBusy,
    /// All slots are taken, and so many wait already as may.
    StandbyFull,
    /// Patience ran out.
    GaveUp {
        /// How long it waited.
        waited: Duration,
    },
    /// Somebody came later, and the latest wins.
    Replaced,
}

/// Where somebody who enters stands, as told to the callback of [`Limiter::enter_telling`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// On its way in.
    Arriving,
    /// Waits for a slot.
    Standby,
    /// Has this slot.
    Working(u32),
}

impl Coordinator {
    /// The limiter of this name: one slot and nobody on standby, until told otherwise. No I/O.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Name`](crate::ErrorKind::Name): empty or too long.
    pub fn limiter(&self, name: impl AsRef<str>) -> Result<Limiter> {
        let limits = Limits { slots: 1, standby: 0, latest_wins: false };
        let queue = self.queue("limiter", name.as_ref())?;
        Ok(Limiter { queue, limits, patience: Patience::default() })
    }

    /// A limiter with one slot: there can be only one. Who comes second goes home at once.
    ///
    /// # Errors
    ///
    /// Those of [`limiter`](Self::limiter).
    pub fn singleton(&self, name: impl AsRef<str>) -> Result<Limiter> {
        self.limiter(name)
    }
}

impl Limiter {
    /// How many work at a time: 1 to 10,000.
    pub fn slots(mut self, slots: u32) -> Self {
        self.limits.slots = slots;
        self
    }

    /// How many wait for a slot at a time: 0 to 10,000.
    pub fn standby(mut self, standby: u32) -> Self {
        self.limits.standby = standby;
        self
    }

    /// How long to wait on standby.
    pub fn patience(mut self, patience: Patience) -> Self {
        self.patience = patience;
        self
    }

    /// One slot, and one who waits for it: whoever came last. He replaces the one who waited before.
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
    /// * [`ErrorKind::Input`](crate::ErrorKind::Input): no slots, too many, or with the latest winning other numbers than one.
    /// * [`ErrorKind::Mismatch`](crate::ErrorKind::Mismatch): the limiter was made with other numbers.
    /// * Those of [`Lock::acquire`](crate::Lock::acquire) but `Timeout`.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future at any point leaves nothing behind, neither a slot nor a place on standby.
    ///
    /// # Fairness
    ///
    /// Who has waited longest gets the next slot; newcomers do not overtake. With
    /// [`latest_wins`](Self::latest_wins) it is who came last.
    pub async fn enter(&self) -> Result<Admission> {
        self.enter_with(|_| {}, None).await
    }

    /// [`enter`](Self::enter), asking `keep_waiting` at every `interval` on standby with the number of the
    /// try, from 1, and the time waited so far; false gives up.
    ///
    /// # Errors
    ///
    /// Those of [`enter`](Self::enter).
    ///
    /// # Cancel safety
    ///
    /// That of [`enter`](Self::enter).
    pub async fn enter_while(
        &self,
        interval: Duration,
        mut keep_waiting: impl FnMut(u32, Duration) -> bool + Send,
    ) -> Result<Admission> {
        self.enter_with(|_| {}, Some((interval, &mut keep_waiting))).await
    }

    /// [`enter`](Self::enter), telling `on_standing` of every step. If that panics nothing is left behind.
    ///
    /// # Errors
    ///
    /// Those of [`enter`](Self::enter).
    ///
    /// # Cancel safety
    ///
    /// That of [`enter`](Self::enter).
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
        let is_patient = self.patience != Patience::Never || keep_waiting.is_some();
        let (gate, mut told) = Gate::new(self.limits, is_patient);
        let data = Claim::wants(1).data()?;
        let request = Request {
            contents: Contents { data, ..self.queue.contents() },
            judge: Some(Arc::clone(&gate) as Arc<dyn Judge>),
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
                    return Ok(Admission::Refused(Refusal::GaveUp { waited: start.elapsed() }));
                }
            }
        };
        match (outcome, gate.refusal()) {
            (_, Some(refusal)) => Ok(Admission::Refused(refusal)),
            (Ok(Some(grant)), None) => {
                let claim: Claim = self.queue.named(from_data("enter", grant.place().data()))?;
                let slot = claim.slots.first().copied().unwrap_or_default() + 1;
                on_standing(Standing::Working(slot));
                Ok(Admission::Working(WorkSlot { grant, slot }))
            }
            (Err(error), None) if error.kind() != ErrorKind::Timeout => Err(error),
            _ if !is_patient => Ok(Admission::Refused(Refusal::AllBusy)),
            _ => Ok(Admission::Refused(Refusal::GaveUp { waited: start.elapsed() })),
        }
    }

    /// Asks `keep_waiting` at its interval until it says no; for ever if there is none.
    async fn tired(&self, start: Instant, keep_waiting: Option<KeepWaiting<'_>>) {
        let Some((interval, keep_waiting)) = keep_waiting else {
            return std::future::pending().await;
        };
        for attempt in 1.. {
            let next = Instant::now() + interval.max(Duration::from_millis(1));
            let is_over = self.queue.sleep_until(next).await.is_err();
            if is_over || !keep_waiting(attempt, start.elapsed()) {
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

    fn limit_of_waiting(&self, is_asked: bool) -> turn::Patience {
        match self.patience {
            _ if is_asked => turn::Patience::Forever,
            Patience::Never => turn::Patience::For(ARRIVING),
            Patience::Timeout(limit) => turn::Patience::within(Some(limit)),
            Patience::Forever => turn::Patience::Forever,
        }
    }

    /// Makes it have another number of slots, for all: this handle, those on standby, and whoever asks for
    /// that number from now on. With fewer, nobody has to go; new ones come in when fewer work.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Input`](crate::ErrorKind::Input), and those of a store that refuses or does not answer.
    ///
    /// # Cancel safety
    ///
    /// A dropped call may or may not take effect.
    pub async fn resize(&mut self, slots: u32) -> Result<()> {
        let resized = Self { limits: Limits { slots, ..self.limits }, ..self.clone() };
        resized.check()?;
        slots::set_limits(&self.queue, resized.limits).await?;
        *self = resized;
        Ok(())
    }

    /// Who works and who is on standby, in the order of coming.
    ///
    /// # Errors
    ///
    /// Those of a store that refuses or does not answer.
    ///
    /// # Cancel safety
    ///
    /// Only reads.
    pub async fn inspect(&self) -> Result<Vec<Occupant>> {
        slots::occupants(&self.queue, 1).await
    }
}

/// At which interval to ask whether to go on waiting, and whom.
type KeepWaiting<'a> = (Duration, &'a mut (dyn FnMut(u32, Duration) -> bool + Send));

/// Holds a slot of a limiter; gives it back when dropped.
///
/// The token is larger than every one before **of the same slot**.
#[derive(Debug)]
#[must_use = "the slot is given back when the guard is dropped"]
pub struct WorkSlot {
    grant: Grant,
    slot: u32,
}

guard!(WorkSlot, "the slot");

impl WorkSlot {
    /// The slot's number, from 1 to the number of slots; nobody else has it meanwhile.
    pub fn slot(&self) -> u32 {
        self.slot
    }
}
