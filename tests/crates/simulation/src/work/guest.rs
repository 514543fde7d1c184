//! A second coordinator in a process, which stops or is dropped while it holds something.

use std::sync::Arc;
use std::time::Duration;

use coordination::Coordinator;
use coordination::simulation::{moment, nanos};
use coordination_history::{Event, NEVER, Why};
use rand::RngExt;

use super::grants::{acquire, hold, wish};
use super::held::Held;
use crate::stage::{Process, Stage};

/// How long after a stop the guards may take to report their loss.
const TOLD: Duration = Duration::from_secs(60);

/// Connects, acquires something, and stops or drops the coordinator while it holds that.
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
            // C7: the guard keeps the session alive.
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

/// C7: a stop loses what is held, before anybody else gets it.
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
        // The guards are lost whether the store has confirmed the stop or not.
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
