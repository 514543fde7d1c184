//! A semaphore whose number of permits changes while some are held.

use std::sync::Arc;
use std::time::Duration;

use coordination::simulation::nanos;
use coordination::{Effect, ErrorKind, Semaphore};
use coordination_history::{Event, NEVER};
use rand::RngExt;

use super::grants::hold;
use super::held::Held;
use crate::stage::{Process, Stage, lock};

/// The semaphore's id in the history.
pub(crate) const SIZED: u32 = 10;
/// The largest number of permits that any call gives the semaphore.
pub(crate) const MOST: u32 = 3;
/// The number of permits that the semaphore has at first.
const FIRST: u32 = 2;

/// The numbers of permits that calls have given the semaphore, in the order in which the calls began.
#[derive(Default)]
pub(crate) struct Ledger(Vec<Size>);

struct Size {
    permits: u32,
    called: u64,
    /// When the store had confirmed the number. `None`: the number was never confirmed, so it may come into force at
    /// any time.
    confirmed: Option<u64>,
}

impl Ledger {
    /// The number whose confirmation is the latest.
    fn last(&self) -> u32 {
        let confirmed = self.0.iter().filter(|size| size.confirmed.is_some());
        confirmed.max_by_key(|size| size.confirmed).map_or(FIRST, |size| size.permits)
    }

    /// The largest number of permits that may have been in force at any moment since `since`.
    fn most_since(&self, since: u64) -> u32 {
        let confirmed = |size: &Size| size.confirmed.unwrap_or(u64::MAX);
        // A number is not in force any more at `since` if a later call has replaced it: that call began after the
        // number was confirmed, and was itself confirmed before `since`.
        let ruling = self.0.iter().filter(|size| confirmed(size) < since);
        let ruled_since = ruling.map(|size| size.called).max();
        let may_rule = |size: &&Size| ruled_since.is_none_or(|moment| confirmed(size) >= moment);
        let most = self.0.iter().filter(may_rule).map(|size| size.permits).max().unwrap_or(0);
        if ruled_since.is_none() { most.max(FIRST) } else { most }
    }
}

/// Acquires a permit, and resizes the semaphore while it holds the permit.
pub(crate) async fn act(stage: &Arc<Stage>, process: &Arc<Process>) {
    let size = lock(&stage.ledgers.resize).last();
    let semaphore = process.coordinator.semaphore("sized", size).expect("the name is one");
    let timeout = match stage.draw(|random| random.random_range(0..4)) {
        0 => None,
        _ => Some(stage.up_to(Duration::from_millis(300)) + Duration::from_millis(1)),
    };
    let (attempt, called) = (stage.number(), nanos());
    let record = |event| stage.record(process.number, SIZED, attempt, event);
    let limit = timeout.map_or(NEVER, |limit| limit.as_nanos() as u64);
    record(Event::Call { shared: false, timeout: limit });
    match semaphore.acquire(timeout).await {
        Ok(permit) => {
            let held = Arc::new(Held::Permit(permit));
            judge(stage, process, &held, called);
            let holding = hold(stage, process, SIZED, (attempt, called), held);
            tokio::join!(holding, resize(stage, semaphore));
        }
        Err(error) => {
            record(Event::Refused { why: error.kind().into() });
            match (error.kind(), timeout) {
                // Another client has resized the semaphore after this client read its size, so this client's number
                // does not match any more.
                (ErrorKind::Mismatch, _) => resize(stage, semaphore).await,
                (_, None) => stage.failed_without_limit("acquire", &error),
                _ => stage.failed("acquire", &error),
            }
        }
    }
}

/// P1: checks that a grant does not exceed the number of permits. Entries are decided in the order of their tokens. So
/// when the holder with the largest token was granted its permit, all other holders had theirs already, and were
/// counted.
fn judge(stage: &Stage, process: &Process, held: &Held, called: u64) {
    let others = stage.who_holds(SIZED);
    let is_last = others.iter().all(|other| *other < held.token());
    let is_held = process.client.enter(|| held.is_held());
    if !is_last || !is_held || !stage.is_sound(called) || !stage.has_all_data() {
        return;
    }
    let most = lock(&stage.ledgers.resize).most_since(called);
    stage.judges("P1 resized");
    if others.len() >= most as usize {
        let holding = others.len() + 1;
        let token = held.token();
        stage
            .broken(format!("P1: {token} is the last of {holding} who hold one of {most} permits"));
    }
}

async fn resize(stage: &Stage, mut semaphore: Semaphore) {
    if stage.draw(|random| random.random_ratio(1, 2)) {
        return;
    }
    let permits = stage.draw(|random| random.random_range(1..=MOST));
    let index = {
        let Ledger(sizes) = &mut *lock(&stage.ledgers.resize);
        sizes.push(Size { permits, called: nanos(), confirmed: None });
        sizes.len() - 1
    };
    match semaphore.resize(permits).await {
        Ok(()) => lock(&stage.ledgers.resize).0[index].confirmed = Some(nanos()),
        Err(error) => {
            stage.failed("resize", &error);
            if error.effect() == Effect::None {
                // The resize did not happen, so its number must not count. Only the largest numbers are used, so a
                // number of zero has no effect.
                lock(&stage.ledgers.resize).0[index].permits = 0;
            }
        }
    }
}
