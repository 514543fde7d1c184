//! A lock that becomes a share of it.
//!
//! In the history that is two attempts that were called at one time: one for the lock, which ends when it is
//! downgraded, and one for the share, under the same token.

use std::sync::Arc;

use coordination::LockGuard;
use coordination::simulation::nanos;
use coordination_history::{Event, NEVER, Record};

use super::grants;
use super::held::Held;
use crate::stage::{Process, Stage};

/// Holds the lock, then a share of it.
pub(super) async fn hold(
    stage: &Arc<Stage>,
    process: &Arc<Process>,
    object: u32,
    (attempt, called): (u64, u64),
    guard: LockGuard,
) {
    let held = Arc::new(Held::Lock(guard));
    stage.granted(process, object, attempt, &held);
    tokio::time::sleep(stage.up_to(stage.plan.hold)).await;
    let probe = Event::Probe { before: nanos(), held: held.is_held() };
    stage.record(process.number, object, attempt, probe);
    stage.forget(object, attempt);
    let Some(Held::Lock(guard)) = Arc::into_inner(held) else {
        return stage.broken(format!("attempt {attempt} has its guard twice"));
    };
    let token = guard.token();
    stage.record(process.number, object, attempt, Event::ReleaseCall);
    let shared = match guard.downgrade().await {
        Ok(shared) => shared,
        Err(error) => return stage.failed("downgrade", &error),
    };
    stage.judges("W1");
    if shared.token() != token || !shared.is_shared() {
        stage.broken(format!("W1: {token} became {shared:?}"));
    }
    let share = stage.number();
    let event = Event::Call { shared: true, timeout: NEVER };
    stage.put(Record { at: called, client: process.number, attempt: share, object, event });
    grants::hold(stage, process, object, (share, called), Arc::new(Held::Lock(shared))).await;
}
