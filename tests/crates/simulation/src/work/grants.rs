//! Acquires, holds and releases a lock, a permit, a work slot or a leadership, and records all of it.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use coordination::simulation::{moment, nanos};
use coordination::{Admission, Coordinator, Error, LossReason, Patience, Result};
use coordination_history::{Event, NEVER, Why};
use rand::RngExt;

use super::held::Held;
use super::{cohort, downgrade};
use crate::stage::{OBJECTS, Process, Stage};

/// What a task wants to acquire, and how long it waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wish {
    pub(super) object: u32,
    name: &'static str,
    kind: Kind,
    timeout: Option<Duration>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Exclusive,
    /// With the other tasks of the process that want the lock in this way.
    Cohort,
    Shared,
    Permit,
    Work,
    /// Like `Work`, but with `latest_wins`: of all waiting contenders, the one that came last is granted next.
    Latest,
    Leader,
}

/// Whether a caller drops the future of its acquire, and when.
#[derive(Clone, Copy, Debug)]
pub(super) enum Drops {
    Never,
    /// The future is dropped after it was polled this often.
    Polled(u32),
    After(Duration),
}

/// One attempt to acquire something. If it is granted, the guard is held for a while.
pub(crate) async fn attempt(stage: &Arc<Stage>, process: &Arc<Process>) {
    let wish = wish(stage);
    let attempt = stage.number();
    let record = |event| stage.record(process.number, wish.object, attempt, event);
    record(wish.call());
    let acquired = acquire(process, &process.coordinator, wish);
    let called = nanos();
    match dropped(drops(stage), acquired).await {
        None => record(Event::Cancelled),
        Some(Ok(Some(Held::Lock(guard))))
            if !guard.is_shared() && stage.draw(|random| random.random_ratio(1, 16)) =>
        {
            downgrade::hold(stage, process, wish.object, (attempt, called), guard).await;
        }
        Some(Ok(Some(held))) => {
            cohort::judge(stage, &held);
            hold(stage, process, wish.object, (attempt, called), Arc::new(held)).await;
        }
        Some(Ok(None)) => record(Event::Refused { why: Why::NotFree }),
        Some(Err(error)) => {
            wish.failed(stage, &error);
            record(Event::Refused { why: error.kind().into() });
        }
    }
}

impl Wish {
    pub(super) fn call(&self) -> Event {
        let timeout = self.timeout.map_or(NEVER, |timeout| timeout.as_nanos() as u64);
        Event::Call { shared: self.kind == Kind::Shared, timeout }
    }

    pub(super) fn failed(&self, stage: &Stage, error: &Error) {
        match self.timeout {
            None => stage.failed_without_limit("acquire", error),
            Some(_) => stage.failed("acquire", error),
        }
    }
}

pub(super) fn wish(stage: &Stage) -> Wish {
    stage.draw(|random| {
        let (object, name, kind) = match random.random_range(0..20) {
            0..3 => (1, "a", Kind::Exclusive),
            3..7 => (1, "a", Kind::Cohort),
            7..9 => (1, "a", Kind::Shared),
            9..11 => (2, "ab", Kind::Exclusive),
            11..15 => (3, "pool", Kind::Permit),
            15..17 => (4, "gate", Kind::Work),
            17 => (9, "latest", Kind::Latest),
            _ => (5, "lead", Kind::Leader),
        };
        let timeout = match random.random_range(0..4) {
            0 => Some(Duration::ZERO),
            1 => Some(Duration::from_millis(random.random_range(1..300))),
            _ => None,
        };
        Wish { object, name, kind, timeout }
    })
}

pub(super) fn drops(stage: &Stage) -> Drops {
    stage.draw(|random| {
        if random.random_range(0..100) >= stage.plan.cancelled {
            Drops::Never
        } else if random.random() {
            Drops::Polled(random.random_range(1..6))
        } else {
            Drops::After(Duration::from_millis(random.random_range(0..100)))
        }
    })
}

/// Awaits a future, or drops it before it completes; `None` if it was dropped.
pub(super) async fn dropped<F: Future>(drops: Drops, future: F) -> Option<F::Output> {
    match drops {
        Drops::Never => Some(future.await),
        Drops::Polled(times) => Polled { future: Box::pin(future), times }.await,
        Drops::After(time) => tokio::time::timeout(time, future).await.ok(),
    }
}

pub(super) async fn acquire(
    process: &Process,
    coordinator: &Coordinator,
    wish: Wish,
) -> Result<Option<Held>> {
    let is_try = wish.timeout == Some(Duration::ZERO);
    let held = match wish.kind {
        Kind::Exclusive if is_try => {
            return Ok(coordinator.lock(wish.name)?.try_acquire().await?.map(Held::Lock));
        }
        Kind::Exclusive => Held::Lock(coordinator.lock(wish.name)?.acquire(wish.timeout).await?),
        Kind::Cohort => {
            // A second coordinator in the process has a cohort of its own, of one task.
            let cohort = match coordinator.member_id() == process.coordinator.member_id() {
                true => process.cohort.clone(),
                false => cohort::of(coordinator),
            };
            match is_try {
                true => return Ok(cohort.try_acquire().await?.map(Held::Turn)),
                false => Held::Turn(cohort.acquire(wish.timeout).await?),
            }
        }
        Kind::Shared if is_try => {
            return Ok(coordinator.lock(wish.name)?.try_acquire_shared().await?.map(Held::Lock));
        }
        Kind::Shared => {
            Held::Lock(coordinator.lock(wish.name)?.acquire_shared(wish.timeout).await?)
        }
        Kind::Permit if is_try => {
            return Ok(coordinator.semaphore(wish.name, 2)?.try_acquire().await?.map(Held::Permit));
        }
        Kind::Permit => {
            Held::Permit(coordinator.semaphore(wish.name, 2)?.acquire(wish.timeout).await?)
        }
        Kind::Work | Kind::Latest => {
            let patience = match wish.timeout {
                None => Patience::Forever,
                Some(Duration::ZERO) => Patience::Never,
                Some(timeout) => Patience::Timeout(timeout),
            };
            let limiter = coordinator.limiter(wish.name)?;
            let limiter = match wish.kind {
                Kind::Latest => limiter.latest_wins(),
                _ => limiter.standby(2),
            };
            match limiter.patience(patience).enter().await? {
                Admission::Working(slot) => Held::Work(slot),
                _ => return Ok(None),
            }
        }
        Kind::Leader => {
            let election = coordinator.election(wish.name)?;
            match is_try {
                true => return Ok(election.try_campaign(&process.number).await?.map(Held::Leader)),
                false => Held::Leader(election.campaign(&process.number, wish.timeout).await?),
            }
        }
    };
    Ok(Some(held))
}

/// How the holder ends its guard.
enum Ends {
    Released,
    Dropped,
    /// The caller calls the release, and drops its future after it was polled this often.
    ReleaseDropped(u32),
    /// The caller gives the guard to a timed release, which releases it this long after the grant.
    Timed(Duration),
}

pub(super) async fn hold(
    stage: &Arc<Stage>,
    process: &Arc<Process>,
    object: u32,
    (attempt, called): (u64, u64),
    held: Arc<Held>,
) {
    let record = |event| stage.record(process.number, object, attempt, event);
    stage.granted(process, object, attempt, &held);
    let is_lost = stay(stage, object, &held, &record).await;
    let probe = |before| Event::Probe { before, held: held.is_held() };
    record(probe(moment()));
    if is_lost && held.is_held() {
        stage.broken(format!("S4: attempt {attempt} was told of its loss, and is held again"));
    }
    stage.forget(object, attempt);
    let Some(held) = Arc::into_inner(held) else {
        return stage.broken(format!("attempt {attempt} has its guard twice"));
    };
    let ends = stage.draw(|random| match random.random_range(0..16) {
        0 => Ends::Timed(stage.plan.hold.mul_f64(random.random_range(0.5..2.0))),
        1..4 => Ends::Dropped,
        4..8 => Ends::ReleaseDropped(random.random_range(1..4)),
        _ => Ends::Released,
    });
    match ends {
        Ends::Timed(held_for) => {
            timed(stage, held, called, held_for).await;
            record(Event::ReleaseCall);
        }
        Ends::Dropped => {
            record(Event::ReleaseCall);
            drop(held);
        }
        Ends::ReleaseDropped(times) => {
            record(Event::ReleaseCall);
            drop(Polled { future: Box::pin(held.release()), times }.await)
        }
        Ends::Released => {
            record(Event::ReleaseCall);
            let returned = held.release().await;
            if is_lost && returned.is_ok() {
                return stage.broken(format!("C5: attempt {attempt} was lost, and released"));
            }
            if let Err(error) = &returned {
                stage.failed("release", error);
            }
            record(Event::released(&returned));
        }
    }
}

/// TR1: checks that a timed release does not release the guard before its time, unless the guard was lost.
async fn timed(stage: &Stage, held: Held, called: u64, held_for: Duration) {
    let before = held.is_held();
    let Some(timed) = held.release_after(held_for) else { return };
    if !before {
        return;
    }
    let earliest = called + held_for.as_nanos() as u64;
    while timed.is_held() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let is_early = nanos() < earliest;
    let is_lost = tokio::time::timeout(Duration::ZERO, timed.lost()).await.is_ok();
    stage.judges("TR1");
    if is_early && !is_lost {
        stage.broken(format!("TR1: {timed:?} was to be held for {held_for:?} from {called} ns on"));
    }
}

/// Holds the guard for a while. Returns true if the guard was lost during that time.
async fn stay(stage: &Stage, object: u32, held: &Held, record: &impl Fn(Event)) -> bool {
    let end = nanos() + stage.up_to(stage.plan.hold).as_nanos() as u64;
    let mut lost = pin!(held.lost());
    let mut seems_lost = false;
    // If `is_held` has returned false, the guard is lost, and `lost()` has to complete soon. So in this case the loop
    // goes on until `lost()` has completed, however long it takes.
    while nanos() < end || seems_lost {
        let step = stage.up_to(stage.plan.hold / 3) + Duration::from_millis(1);
        tokio::select! {
            biased;
            reason = &mut lost => {
                record(Event::Lost { deadline: NEVER });
                if reason == LossReason::EntryDeleted {
                    judge_removal(stage, object, held);
                }
                return true;
            }
            () = tokio::time::sleep(step) => {
                let before = moment();
                let is_held = held.is_held();
                record(Event::Probe { before, held: is_held });
                seems_lost |= !is_held;
            }
        }
    }
    false
}

/// T3: checks that an entry is gone whose holder was told so.
fn judge_removal(stage: &Stage, object: u32, held: &Held) {
    let name = OBJECTS.iter().find_map(|(id, name, _)| (*id == object).then_some(*name));
    let token = held.token().value();
    stage.judges("T3");
    if name.is_some_and(|name| stage.world.has_entry(name, token)) {
        stage.broken(format!(
            "T3: entry {token} of object {object} is there, and was told to be gone"
        ));
    }
}

/// A future that polls another future up to `times` times, and then returns `None`.
struct Polled<F: Future> {
    future: Pin<Box<F>>,
    times: u32,
}

impl<F: Future> Future for Polled<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.future.as_mut().poll(context) {
            Poll::Ready(output) => return Poll::Ready(Some(output)),
            Poll::Pending => self.times -= 1,
        }
        if self.times == 0 { Poll::Ready(None) } else { Poll::Pending }
    }
}
