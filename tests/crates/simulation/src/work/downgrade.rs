//! A lock that is held exclusively first, and is then downgraded to a shared lock.
//!
//! In the history the attempt's hold ends with the downgrade, and only the release is recorded after it: a shared lock
//! with the same token would look like a second grant. So this module itself checks the shared hold.

use std::sync::Arc;

use coordination::LockGuard;
use coordination::simulation::moment;
use coordination_history::Event;

use super::held::Held;
use crate::stage::{Process, Stage};

/// Holds the lock exclusively for a while, downgrades it, and holds it shared for a while.
pub(super) async fn hold(
    stage: &Arc<Stage>,
    process: &Arc<Process>,
    object: u32,
    (attempt, called): (u64, u64),
    guard: LockGuard,
) {
    let record = |event| stage.record(process.number, object, attempt, event);
    let held = Arc::new(Held::Lock(guard));
    stage.granted(process, object, attempt, &held);
    tokio::time::sleep(stage.up_to(stage.plan.hold)).await;
    record(Event::Probe { before: moment(), held: held.is_held() });
    stage.forget(object, attempt);
    let Some(Held::Lock(guard)) = Arc::into_inner(held) else {
        return stage.broken(format!("attempt {attempt} has its guard twice"));
    };
    let token = guard.token();
    record(Event::Downgraded);
    let share = match guard.downgrade().await {
        Ok(share) => share,
        Err(error) => return stage.failed("downgrade", &error),
    };
    if share.token() != token || !share.is_shared() {
        stage.broken(format!("W1: {token} became {share:?}"));
    }
    for _ in 0..3 {
        tokio::time::sleep(stage.up_to(stage.plan.hold / 3)).await;
        let other = stage.who_excludes(object);
        if share.is_held() && stage.is_sound(called) {
            stage.judges("W1");
            if let Some(other) = other {
                stage.broken(format!("W1: attempt {other} has {object} for itself, and {share:?}"));
            }
        }
    }
    record(Event::ReleaseCall);
    match share.release().await {
        Ok(()) => record(Event::ReleaseReturn { outcome: 0 }),
        Err(error) => stage.failed("release of a share", &error),
    }
}
