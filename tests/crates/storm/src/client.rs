//! One client of the storm: a coordinator, and tasks that acquire, drop their calls, hold and release.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use coordination::{Coordinator, Error, ErrorKind, Grant, Lock, LockGuard, Permit, Semaphore};
use coordination_history::{Event, NEVER, NO_SLOT, Why, now};
use tokio::task::JoinSet;

use crate::cancel::within_polls;
use crate::diary::{Attempt, Diary};
use crate::options::Load;
use crate::plan::{Dice, Ending, Patience, Round, Target};
use crate::work;

/// The parameters and counters that all tasks of a client share.
pub(crate) struct Client {
    pub(crate) id: u32,
    pub(crate) seed: u64,
    pub(crate) load: Load,
    pub(crate) diary: Diary,
    pub(crate) targets: Arc<[Target]>,
    /// The number of grants, or of claims with items, of all clients that share this counter.
    pub(crate) granted: Arc<AtomicU64>,
    /// Set to true when the storm is to end.
    pub(crate) over: Arc<AtomicBool>,
}

enum Door {
    Lock(Lock),
    Semaphore(Semaphore),
}

enum Held {
    Lock(LockGuard),
    Permit(Permit),
}

impl Client {
    /// Runs this many tasks, and returns when the storm has ended and all tasks have ended.
    pub(crate) async fn run(self, url: &str, tasks: u32) -> coordination::Result<()> {
        let coordinator = Coordinator::connect(url).await?;
        match self.load {
            Load::Locks => self.storm_locks(&coordinator, tasks).await?,
            Load::Work => work::storm(self, &coordinator, tasks).await?,
        }
        coordinator.stop().await
    }

    async fn storm_locks(self, coordinator: &Coordinator, tasks: u32) -> coordination::Result<()> {
        let doors: Result<Vec<_>, _> =
            self.targets.iter().map(|target| Door::open(coordinator, target)).collect();
        let (client, doors) = (Arc::new(self), Arc::new(doors?));
        let mut storming = JoinSet::new();
        for task in 0..tasks {
            let dice = Dice::new(client.seed, client.id, task);
            storming.spawn(storm(Arc::clone(&client), Arc::clone(&doors), dice));
        }
        while let Some(ended) = storming.join_next().await {
            ended.expect("a task does not panic");
        }
        Ok(())
    }
}

async fn storm(client: Arc<Client>, doors: Arc<Vec<Door>>, mut dice: Dice) {
    while !client.over.load(Ordering::Relaxed) {
        let round = dice.round(&client.targets);
        let attempt = client.diary.attempt(round.target);
        if let Some(held) = acquire(&doors[round.target], attempt, round).await {
            client.granted.fetch_add(1, Ordering::Relaxed);
            hold(held, attempt, round).await;
        }
        // If all calls of a task succeed at once, the task never waits. So it yields here, so that other tasks can run.
        tokio::task::yield_now().await;
    }
}

async fn acquire(door: &Door, attempt: Attempt<'_>, round: Round) -> Option<Held> {
    let limit = match round.patience {
        Patience::Timeout(limit) => limit,
        Patience::Polls(_) | Patience::Dropped(_) => None,
    };
    let timeout = limit.map_or(NEVER, nanoseconds);
    attempt.note(Event::Call { shared: round.shared, timeout });
    let acquiring = door.acquire(round.shared, limit);
    let outcome = match round.patience {
        Patience::Timeout(_) => Some(acquiring.await),
        Patience::Polls(polls) => within_polls(polls, acquiring).await,
        Patience::Dropped(after) => tokio::time::timeout(after, acquiring).await.ok(),
    };
    match outcome {
        None => {
            attempt.note(Event::Cancelled);
            None
        }
        Some(Err(error)) => {
            let is_expected = is_expected(&error, limit);
            // If this call must not fail with this error, the error is recorded as `Other`, which the verdict reports as
            // a violation.
            let why = if is_expected { error.kind().into() } else { Why::Other };
            attempt.note(Event::Refused { why });
            if !is_expected {
                eprintln!("an acquire failed: {error}");
            }
            None
        }
        Some(Ok(held)) => {
            attempt.note(Event::Granted { token: held.grant().token().value(), slot: held.slot() });
            Some(held)
        }
    }
}

async fn hold(held: Held, attempt: Attempt<'_>, round: Round) {
    for _ in 0..round.yields {
        tokio::task::yield_now().await;
    }
    if let Some(pause) = round.pause {
        tokio::time::sleep(pause).await;
    }
    let before = now();
    let is_held = held.grant().is_held();
    attempt.note(Event::Probe { before, held: is_held });
    attempt.note(Event::ReleaseCall);
    let returned = match round.ending {
        Ending::Released => Some(held.release().await),
        Ending::ReleaseDropped(polls) => within_polls(polls, held.release()).await,
        Ending::Dropped => return drop(held),
    };
    // If the release's future was dropped, the library releases in the background, and no result is recorded.
    if let Some(returned) = returned {
        attempt.note(Event::released(&returned));
    }
}

/// The duration as a number of nanoseconds, the unit of histories.
pub(crate) fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(NEVER)
}

/// Whether an acquire with this timeout may fail with this error in a storm, in which the store never fails.
fn is_expected(error: &Error, limit: Option<Duration>) -> bool {
    // If the timeout is short, it may pass before the store has replied.
    limit.is_some() && matches!(error.kind(), ErrorKind::Timeout | ErrorKind::Unavailable)
}

impl Door {
    fn open(coordinator: &Coordinator, target: &Target) -> coordination::Result<Self> {
        Ok(match target.permits {
            None => Self::Lock(coordinator.lock(&target.name)?),
            Some(permits) => Self::Semaphore(coordinator.semaphore(&target.name, permits)?),
        })
    }

    async fn acquire(&self, shared: bool, limit: Option<Duration>) -> coordination::Result<Held> {
        match self {
            Self::Lock(lock) if shared => lock.acquire_shared(limit).await.map(Held::Lock),
            Self::Lock(lock) => lock.acquire(limit).await.map(Held::Lock),
            Self::Semaphore(semaphore) => semaphore.acquire(limit).await.map(Held::Permit),
        }
    }
}

impl Held {
    fn grant(&self) -> &Grant {
        match self {
            Self::Lock(guard) => guard,
            Self::Permit(permit) => permit,
        }
    }

    fn slot(&self) -> u32 {
        match self {
            Self::Lock(_) => NO_SLOT,
            Self::Permit(permit) => permit.slot(),
        }
    }

    async fn release(self) -> coordination::Result<()> {
        match self {
            Self::Lock(guard) => guard.release().await,
            Self::Permit(permit) => permit.release().await,
        }
    }
}
