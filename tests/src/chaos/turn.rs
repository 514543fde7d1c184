//! One turn of a task: it acquires, holds and releases an object, and records each event in the history.

use std::time::Duration;

use coordination::{
    Admission, BootInstant, Coordinator, Election, Error, Grant, Leadership, Limiter, Lock,
    LockGuard, Patience, Permit, Result, Semaphore, TimedRelease, WorkSlot,
};
use coordination_history::{Event, NEVER, NO_SLOT, Why, now};
use rand::{Rng, RngExt, rngs::StdRng};
use tokio::time::{Instant, sleep, timeout};

use super::{
    client::Pen,
    effects::{Effects, Hand},
    nanos,
    things::{NAMED, Pace, Thing, What},
};

/// The time between two calls of `is_held` by a holder.
const ASKS: Duration = Duration::from_millis(3);
/// How long a [`Limiter`] may take to refuse a caller that does not want to wait.
const ARRIVING: Duration = Duration::from_secs(5);

/// A handle of an object.
pub(super) enum Recipe {
    Lock(Lock),
    Semaphore(Semaphore),
    Limiter(Limiter),
    Election(Election),
}

/// The guard that an acquire returned.
enum Held {
    Lock(LockGuard),
    Permit(Permit),
    Slot(WorkSlot),
    Leadership(Leadership),
}

/// How the holder ends its guard.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Release,
    Drop,
    ByItself,
}

/// The random choices for one turn.
#[derive(Clone, Copy, Debug)]
struct Plan {
    shared: bool,
    patience: Patience,
    /// If the acquire has not returned after this time, the caller drops it.
    cancel: Option<Duration>,
    hold: Duration,
    end: End,
}

impl Plan {
    fn random(rng: &mut StdRng, thing: &Thing, pace: Pace) -> Self {
        let shared = match thing.what {
            What::Lock { shared } => rng.random_range(0..100) < shared,
            _ => false,
        };
        let patience = match rng.random_range(0..100) {
            0..15 => Patience::Never,
            15..35 => Patience::Timeout(Duration::from_micros(rng.random_range(500..60_000))),
            35..65 => Patience::Timeout(Duration::from_millis(rng.random_range(500..6_000))),
            _ => Patience::Forever,
        };
        let cancel = rng.random_bool(0.1).then(|| around(rng, 8_000));
        let hold = match rng.random_range(0..100) {
            0..2 => pace.longest.mul_f64(rng.random_range(0.2..1.0)),
            _ => around(rng, pace.hold),
        };
        let end = match rng.random_range(0..100) {
            0..60 => End::Release,
            60..85 => End::Drop,
            _ => End::ByItself,
        };
        Self { shared, patience, cancel, hold, end }
    }
}

/// A random duration between zero and twice `micros`.
fn around(rng: &mut impl Rng, micros: u64) -> Duration {
    Duration::from_micros(rng.random_range(0..=2 * micros))
}

impl Recipe {
    pub(super) fn new(coordinator: &Coordinator, thing: &Thing) -> Option<Self> {
        let name = thing.name;
        Some(match thing.what {
            What::Lock { .. } => Self::Lock(coordinator.lock(name).expect(NAMED)),
            What::Semaphore { permits } => {
                Self::Semaphore(coordinator.semaphore(name, permits).expect(NAMED))
            }
            What::Limiter { slots, standby } => {
                let limiter = coordinator.limiter(name).expect(NAMED);
                Self::Limiter(limiter.slots(slots).standby(standby))
            }
            What::Election => Self::Election(coordinator.election(name).expect(NAMED)),
            What::Value | What::Counter | What::Queue => return None,
        })
    }

    /// How many entries the store has for this object.
    pub(super) async fn entries(&self) -> Result<usize> {
        Ok(match self {
            Self::Lock(lock) => lock.holders().await?.len(),
            Self::Semaphore(semaphore) => semaphore.holders().await?.len(),
            Self::Limiter(limiter) => limiter.inspect().await?.len(),
            Self::Election(election) => election.candidates().await?.len(),
        })
    }

    async fn take(&self, plan: Plan) -> Result<Option<Held>> {
        let limit = match plan.patience {
            Patience::Timeout(limit) => Some(limit),
            _ => None,
        };
        let tries = plan.patience == Patience::Never;
        match self {
            Self::Lock(lock) => Ok(match (tries, plan.shared) {
                (true, true) => lock.try_acquire_shared().await?,
                (true, false) => lock.try_acquire().await?,
                (false, true) => Some(lock.acquire_shared(limit).await?),
                (false, false) => Some(lock.acquire(limit).await?),
            }
            .map(Held::Lock)),
            Self::Semaphore(semaphore) if tries => {
                Ok(semaphore.try_acquire().await?.map(Held::Permit))
            }
            Self::Semaphore(semaphore) => {
                semaphore.acquire(limit).await.map(Held::Permit).map(Some)
            }
            Self::Election(election) if tries => {
                Ok(election.try_campaign("").await?.map(Held::Leadership))
            }
            Self::Election(election) => {
                election.campaign("", limit).await.map(Held::Leadership).map(Some)
            }
            Self::Limiter(limiter) => {
                match limiter.clone().patience(plan.patience).enter().await? {
                    Admission::Working(slot) => Ok(Some(Held::Slot(slot))),
                    Admission::Refused(_) => Ok(None),
                }
            }
        }
    }

    /// The time within which the acquire has to return (L4), in nanoseconds.
    fn limit(&self, patience: Patience, attempt: Duration) -> u64 {
        match (self, patience) {
            (_, Patience::Forever) => NEVER,
            (_, Patience::Timeout(limit)) => nanos(limit),
            (Self::Limiter(_), Patience::Never) => nanos(ARRIVING),
            (_, Patience::Never) => nanos(attempt),
            (_, other) => unreachable!("no plan has {other:?}"),
        }
    }
}

impl Held {
    fn grant(&self) -> &Grant {
        match self {
            Self::Lock(guard) => guard,
            Self::Permit(permit) => permit,
            Self::Slot(slot) => slot,
            Self::Leadership(leadership) => leadership,
        }
    }

    fn slot(&self) -> Option<u32> {
        match self {
            Self::Permit(permit) => Some(permit.slot()),
            Self::Slot(slot) => Some(slot.slot()),
            Self::Lock(_) | Self::Leadership(_) => None,
        }
    }

    async fn release(self) -> Result<()> {
        match self {
            Self::Lock(guard) => guard.release().await,
            Self::Permit(permit) => permit.release().await,
            Self::Slot(slot) => slot.release().await,
            Self::Leadership(leadership) => leadership.release().await,
        }
    }

    fn release_after(self, held_for: Duration) -> TimedRelease {
        match self {
            Self::Lock(guard) => guard.release_after(held_for),
            Self::Permit(permit) => permit.release_after(held_for),
            Self::Slot(slot) => slot.release_after(held_for),
            Self::Leadership(leadership) => leadership.release_after(held_for),
        }
    }
}

/// A task that acquires, holds and releases one object, over and over.
pub(super) struct Contender {
    pub(super) thing: &'static Thing,
    pub(super) recipe: Recipe,
    pub(super) effects: Effects,
    pub(super) rng: StdRng,
    pub(super) pace: Pace,
    /// How long a call of `try_acquire` may take.
    pub(super) attempt: Duration,
}

impl Contender {
    pub(super) async fn turn(&mut self, pen: &Pen) {
        let plan = Plan::random(&mut self.rng, self.thing, self.pace);
        let timeout_ns = self.recipe.limit(plan.patience, self.attempt);
        pen.write(Event::Call { shared: plan.shared, timeout: timeout_ns });
        let taking = self.recipe.take(plan);
        let outcome = match plan.cancel {
            Some(patience) => timeout(patience, taking).await.ok(),
            None => Some(taking.await),
        };
        match outcome {
            None => pen.write(Event::Cancelled),
            Some(Ok(None)) => pen.write(Event::Refused { why: Why::NotFree }),
            Some(Err(error)) => pen.write(Event::Refused { why: why(&error) }),
            Some(Ok(Some(held))) => self.hold(held, plan, pen).await,
        }
    }

    async fn hold(&mut self, held: Held, plan: Plan, pen: &Pen) {
        let granted = now();
        let token = held.grant().token().value();
        let slot = held.slot();
        let event = Event::Granted { token, slot: slot.unwrap_or(NO_SLOT) };
        pen.write_at(granted, event);
        let register = self.thing.register(slot);
        let hand = Hand { register, attempt: pen.attempt(), token };
        let pause = plan.hold.mul_f64(self.rng.random_range(0.3..0.9));
        let effects = async {
            if !plan.shared {
                self.effects.add_one(hand, pause).await;
            }
        };
        if plan.end == End::ByItself {
            // A holder with a timed release does not write to the resource. A program that sets the time of its release
            // in advance may write after this time on a slow machine, even without any fault.
            return watch_timed(&held.release_after(plan.hold), pen).await;
        }
        let is_lost = tokio::join!(watch(held.grant(), plan.hold, pen), effects).0;
        ask(held.grant(), pen);
        pen.write(Event::ReleaseCall);
        let event = match plan.end {
            End::Release => Event::released(&held.release().await),
            End::Drop | End::ByItself => {
                drop(held);
                Event::ReleaseReturn { outcome: if is_lost { LOST } else { UNKNOWN } }
            }
        };
        pen.write(event);
    }
}

const LOST: u8 = 1;
const UNKNOWN: u8 = 2;

fn why(error: &Error) -> Why {
    let why = error.kind().into();
    if why == Why::Other {
        // Prints the error to the client's log, because no fault of a schedule explains an error of this kind.
        eprintln!("{:?}: {error}", error.kind());
    }
    why
}

/// Calls `is_held` on the guard, and records the result.
fn ask(grant: &Grant, pen: &Pen) -> bool {
    let before = now();
    let held = grant.is_held();
    pen.write(Event::Probe { before, held });
    held
}

/// Holds the guard for `length`, or until it reports its loss. Calls `is_held` again and again meanwhile. Returns
/// whether the guard was lost.
async fn watch(grant: &Grant, length: Duration, pen: &Pen) -> bool {
    let until = Instant::now() + length;
    let lost = grant.lost();
    tokio::pin!(lost);
    let mut last = NEVER;
    loop {
        // The deadline is read before `is_held` is called, because a guard whose deadline has passed returns no
        // deadline any more.
        let present = deadline(grant);
        let held = ask(grant, pen);
        if held {
            last = present;
        }
        let left = until.saturating_duration_since(Instant::now());
        if held && left.is_zero() {
            return false;
        }
        tokio::select! {
            _ = &mut lost => {
                pen.write(Event::Lost { deadline: last });
                ask(grant, pen);
                return true;
            }
            () = sleep(ASKS.min(left.max(Duration::from_millis(1)))) => {}
        }
    }
}

/// Calls `is_held` until it returns false: either the timed release has released the guard, or the guard was lost. This
/// function cannot tell the two apart.
async fn watch_timed(timed: &TimedRelease, pen: &Pen) {
    loop {
        let before = now();
        if !timed.is_held() {
            break;
        }
        pen.write(Event::Probe { before, held: true });
        sleep(ASKS).await;
    }
    pen.write(Event::ReleaseCall);
    pen.write(Event::ReleaseReturn { outcome: UNKNOWN });
}

/// The guard's deadline, converted to the clock of the history.
fn deadline(grant: &Grant) -> u64 {
    let Some(deadline) = grant.deadline() else { return NEVER };
    loop {
        let (before, there, after) = (now(), BootInstant::now(), now());
        // If the process is paused between the readings of the two clocks, the converted deadline is too late. So this
        // tries again until the readings are close together.
        if after - before < 1_000_000 {
            return after + nanos(deadline.saturating_duration_since(there));
        }
    }
}
