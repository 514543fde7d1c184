//! Several objects at once: two locks held by one guard, or several permits of one semaphore.
//!
//! In the history, each lock and each permit has an attempt of its own, so that the checker can compare it with guards
//! of single objects.

use std::sync::Arc;
use std::time::Duration;

use coordination::simulation::moment;
use coordination::{Grant, MultiGuard, Permit, Result};
use coordination_history::{Event, NEVER, NO_SLOT, Why};
use rand::RngExt;

use super::grants::{dropped, drops};
use super::held::Held;
use crate::stage::{Process, Stage};

/// The number of permits of the semaphore "wide", whose object id in the history is 8.
pub(crate) const PERMITS: u32 = 3;

/// One guard that holds several objects.
pub(crate) enum Bundle {
    Locks(MultiGuard),
    Permits(Permit),
}

impl Bundle {
    pub(crate) fn grant(&self, index: usize) -> &Grant {
        match self {
            Self::Locks(guards) => &guards.guards()[index],
            Self::Permits(permits) => permits,
        }
    }

    pub(crate) fn slot(&self, index: usize) -> u32 {
        match self {
            Self::Locks(_) => NO_SLOT,
            Self::Permits(permits) => permits.slots()[index],
        }
    }

    pub(crate) fn excludes(&self, index: usize) -> bool {
        match self {
            Self::Locks(guards) => !guards.guards()[index].is_shared(),
            Self::Permits(_) => false,
        }
    }

    fn is_held(&self) -> bool {
        match self {
            Self::Locks(guards) => guards.is_held(),
            Self::Permits(permits) => permits.is_held(),
        }
    }

    async fn lost(&self) {
        match self {
            Self::Locks(guards) => guards.lost().await,
            Self::Permits(permits) => permits.lost().await,
        };
    }

    async fn release(self) -> Result<()> {
        match self {
            Self::Locks(guards) => guards.release().await,
            Self::Permits(permits) => permits.release().await,
        }
    }
}

#[derive(Clone, Copy)]
enum Wish {
    Locks { shared: bool },
    Permits(u32),
}

impl Wish {
    fn objects(self) -> Vec<u32> {
        match self {
            Self::Locks { .. } => vec![1, 2],
            Self::Permits(count) => vec![8; count as usize],
        }
    }
}

/// One attempt to acquire several objects. If it is granted, they are held for a while.
pub(crate) async fn attempt(stage: &Arc<Stage>, process: &Arc<Process>) {
    let (wish, timeout) = stage.draw(|random| {
        let wish = match random.random_range(0..4) {
            0 => Wish::Locks { shared: random.random_ratio(1, 3) },
            _ => Wish::Permits(random.random_range(1..=PERMITS)),
        };
        let timeout = match random.random_range(0..4) {
            0 => Some(Duration::ZERO),
            1 => Some(Duration::from_millis(random.random_range(1..300))),
            _ => None,
        };
        (wish, timeout)
    });
    let parts: Vec<_> = wish.objects().iter().map(|object| (*object, stage.number())).collect();
    let record = |event| record(stage, process, &parts, event);
    let shared = matches!(wish, Wish::Locks { shared: true });
    record(Event::Call { shared, timeout: timeout.map_or(NEVER, |limit| limit.as_nanos() as u64) });
    match dropped(drops(stage), acquire(process, wish, timeout)).await {
        None => record(Event::Cancelled),
        Some(Ok(bundle)) => hold(stage, process, &parts, Arc::new(bundle)).await,
        Some(Err(error)) => {
            match timeout {
                None => stage.failed_without_limit("several", &error),
                Some(_) => stage.failed("several", &error),
            }
            // The call failed because one of the objects was not free, and it is not known which. The other objects may
            // have been free, so a record that says `NotFree` would be wrong for them.
            let why = match error.kind().into() {
                Why::NotFree => Why::Other,
                why => why,
            };
            record(Event::Refused { why });
        }
    }
}

/// Records the same event for each of the objects.
fn record(stage: &Stage, process: &Process, parts: &[(u32, u64)], event: Event) {
    for (object, attempt) in parts {
        stage.record(process.number, *object, *attempt, event);
    }
}

async fn acquire(process: &Process, wish: Wish, timeout: Option<Duration>) -> Result<Bundle> {
    Ok(match wish {
        // The names are not sorted, and one name is there twice. The library has to sort them, and to lock each name
        // once.
        Wish::Locks { shared } => {
            let locks = process.coordinator.locks(["ab", "a", "ab"])?;
            Bundle::Locks(match shared {
                true => locks.acquire_shared(timeout).await?,
                false => locks.acquire(timeout).await?,
            })
        }
        Wish::Permits(count) => {
            let semaphore = process.coordinator.semaphore("wide", PERMITS)?;
            Bundle::Permits(semaphore.acquire_many(count, timeout).await?)
        }
    })
}

async fn hold(
    stage: &Arc<Stage>,
    process: &Arc<Process>,
    parts: &[(u32, u64)],
    bundle: Arc<Bundle>,
) {
    let record = |event| record(stage, process, parts, event);
    stage.judges(match &*bundle {
        Bundle::Locks(_) => "ML1",
        Bundle::Permits(_) => "P1",
    });
    for (index, (object, attempt)) in parts.iter().enumerate() {
        let part = Arc::new(Held::Part(Arc::clone(&bundle), index));
        stage.granted(process, *object, *attempt, &part);
    }
    let length = stage.up_to(stage.plan.hold);
    tokio::select! {
        biased;
        () = bundle.lost() => {
            if bundle.is_held() {
                stage.broken(format!("S4: {parts:?}: told of a loss, and all are held"));
            }
        }
        () = tokio::time::sleep(length) => {}
    }
    let before = moment();
    for (index, (object, attempt)) in parts.iter().enumerate() {
        let held = bundle.grant(index).is_held();
        stage.record(process.number, *object, *attempt, Event::Probe { before, held });
        stage.forget(*object, *attempt);
    }
    record(Event::ReleaseCall);
    let Some(bundle) = Arc::into_inner(bundle) else {
        return stage.broken(format!("{parts:?}: somebody else has the guard"));
    };
    if stage.draw(|random| random.random()) {
        return drop(bundle);
    }
    match bundle.release().await {
        Ok(()) => record(Event::ReleaseReturn { outcome: 0 }),
        Err(error) => stage.failed("release of several", &error),
    }
}
