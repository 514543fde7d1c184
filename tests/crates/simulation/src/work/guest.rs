//! A second coordinator in a process. It is stopped or dropped while a guard of it is held.

use std::sync::Arc;
use std::time::Duration;

use coordination::Coordinator;
use coordination::simulation::{moment, nanos};
use coordination_history::{Event, NEVER, Why};
use rand::RngExt;

use super::grants::{acquire, hold, wish};
use super::held::Held;
use crate::stage::{Process, Stage};

/// How long after a stop a guard may take to report its loss. The bound is generous, because only a missing report is
/// to be found.
const TOLD: Duration = Duration::from_secs(60);

/// Connects a second coordinator and acquires something. Then it stops or drops the coordinator while the guard is
/// held.
pub(crate) async fn visit(stage: &Arc<Stage>, process: &Arc<Process>) {
    let attempt = stage.number();
    let config = stage.config(format!("guest-{attempt}"));
    let Ok(coordinator) = process.client.connect(config).await else { return };
    let wish = wish(stage);
    let record = |event| stage.record(process.number, wish.object, attempt, event);
    record(wish.call());
    let called = nanos();
    match acquire(process, &coordinator, wish).await {
        Ok(Some(held)) if stage.draw(|random| random.random()) => {
            stop(stage, process, wish.object, attempt, coordinator, Arc::new(held)).await;
        }
        Ok(Some(held)) => {
            // C7: the coordinator is dropped, but the guard has to keep the session alive.
            drop(coordinator);
            hold(stage, process, wish.object, (attempt, called), Arc::new(held)).await;
        }
        Ok(None) => record(Event::Refused { why: Why::NotFree }),
        Err(error) => {
            wish.failed(stage, &error);
            record(Event::Refused { why: error.kind().into() });
        }
    }
}

/// C7: checks that a stop makes all guards report their loss. That they report it before anybody else is granted the
/// lock is checked by the history checker.
async fn stop(
    stage: &Arc<Stage>,
    process: &Arc<Process>,
    object: u32,
    attempt: u64,
    coordinator: Coordinator,
    held: Arc<Held>,
) {
    let record = |event| stage.record(process.number, object, attempt, event);
    stage.granted(process, object, attempt, &held);
    let delay = stage.up_to(stage.plan.hold);
    let stopping = process.client.spawn(async move {
        tokio::time::sleep(delay).await;
        // The result of the stop is ignored: the guards have to be lost whether or not the store has confirmed the
        // stop.
        drop(coordinator.stop().await);
    });
    stage.judges("C7");
    if tokio::time::timeout(TOLD, held.lost()).await.is_err() {
        stage.broken(format!("C7: attempt {attempt} was not told of its loss by a stop"));
    }
    record(Event::Lost { deadline: NEVER });
    let before = moment();
    record(Event::Probe { before, held: held.is_held() });
    drop(stopping.await);
    stage.forget(object, attempt);
    let Some(held) = Arc::into_inner(held) else {
        return stage.broken(format!("attempt {attempt} has its guard twice"));
    };
    record(Event::ReleaseCall);
    let returned = held.release().await;
    if returned.is_ok() {
        return stage.broken(format!("C5: attempt {attempt} was lost, and released"));
    }
    record(Event::released(&returned));
}
