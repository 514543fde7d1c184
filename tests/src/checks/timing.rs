//! T1–T5: when a loss happens, and how clients learn of it.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use coordination::{
    BootInstant, Coordinator, ErrorKind, LockGuard, LossReason, Result, State, StateWatch,
};
use serde_json::json;
use tokio::time::{sleep, timeout};

use super::TestStore;
use super::tools::{MOMENT, NAME, PATIENCE, Probe, acquire, lock, take_turn, until_state};
use crate::harness::log::now_ns;
use crate::harness::{Mode, eventually};
use crate::must_hold;

/// How soon a guard reports its loss (T2, T3).
const NOTICE: Duration = Duration::from_millis(50);
/// Long enough for answers in transit to arrive, and for a holder's watch to start.
const SETTLED: Duration = Duration::from_millis(100);

/// A lock of a client that was cut off a moment ago, and its deadline, which no heartbeat moves any more.
async fn cut_off(store: &TestStore) -> Result<(Coordinator, Arc<LockGuard>, BootInstant)> {
    let holder = store.connect_by_proxy("holder").await?;
    let guard = Arc::new(acquire(&holder).await?);
    store.proxy().set_both(Mode::Blackhole);
    sleep(SETTLED).await;
    let deadline = guard.deadline().expect("a lease has a deadline");
    Ok((holder, guard, deadline))
}

/// T1: asked continuously around the deadline, `is_held` is true before the deadline, and false from then on.
pub async fn t1_not_held_from_the_deadline_on(store: &TestStore) -> Result<()> {
    let (_holder, guard, deadline) = cut_off(store).await?;
    let asking = tokio::task::spawn_blocking(move || {
        thread::sleep(deadline.remaining().saturating_sub(4 * NOTICE));
        let mut held_before = false;
        loop {
            let before = BootInstant::now();
            let held = guard.is_held();
            let after = BootInstant::now();
            assert!(!held || before < deadline, "held {:?} late", late(before, deadline));
            assert!(held || after >= deadline, "lost {:?} early", late(deadline, after));
            held_before |= held;
            if late(before, deadline) > NOTICE {
                return held_before;
            }
        }
    });
    assert!(asking.await.expect("no panic"), "the thread has slept too long");
    Ok(())
}

/// T1: the executor that runs the heartbeats is blocked, so no task can notice the loss. `is_held` is right
/// nevertheless.
pub async fn t1_needs_no_executor(store: &TestStore) -> Result<()> {
    let settings = store.settings().heartbeat_on_current_runtime(true);
    let url = store.url().to_owned();
    let blocking = tokio::task::spawn_blocking(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(async {
            let coordinator = settings.connect(&url).await?;
            let guard = acquire(&coordinator).await?;
            let deadline = guard.deadline().expect("a lease has a deadline");
            // This blocks the thread, and with it every task of the runtime.
            thread::sleep(deadline.remaining());
            must_hold!(!guard.is_held());
            assert_eq!(guard.remaining(), Some(Duration::ZERO));
            let refused = guard.release().await.expect_err("it was lost");
            assert_eq!(refused.loss_reason(), Some(LossReason::DeadlinePassed));
            Ok(())
        })
    });
    blocking.await.expect("no panic")
}

/// T1: with a session on its own thread, a user's blocked executor loses no lock.
pub async fn t1_a_blocked_executor_loses_nothing(store: &TestStore) -> Result<()> {
    let (settings, url) = (store.settings().member_id("blocked"), store.url().to_owned());
    let ttl = store.ttl().expect("the check is for leases");
    let blocking = tokio::task::spawn_blocking(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(async {
            let coordinator = settings.connect(&url).await?;
            let guard = acquire(&coordinator).await?;
            thread::sleep(2 * ttl);
            assert!(guard.is_held());
            guard.release().await
        })
    });
    blocking.await.expect("no panic")
}

/// T1: heartbeats keep a lock held for a multiple of its lease.
///
/// The tests of the library Tooz do not check that heartbeats keep a lock beyond its TTL.
pub async fn t1_heartbeats_keep_a_lock_past_its_lease(store: &TestStore) -> Result<()> {
    let ttl = store.ttl().expect("the check is for leases");
    let (holder, other) = (store.connect("holder").await?, store.connect("other").await?);
    let guard = Arc::new(acquire(&holder).await?);
    let token = guard.token();
    let probe = Probe::start(&guard);
    let start = Instant::now();
    while start.elapsed() < 2 * ttl + ttl / 2 {
        sleep(ttl / 4).await;
        assert!(probe.is_held());
        assert!(lock(&other).try_acquire().await?.is_none());
        let left = guard.remaining().expect("it has a lease");
        assert!(left <= ttl && !left.is_zero(), "{left:?}");
    }
    assert_eq!(lock(&other).holders().await?[0].token, token);
    holder.stop().await
}

/// T2: `lost` completes within 50 ms after the deadline, and not before it.
pub async fn t2_told_within_50_ms_of_the_deadline(store: &TestStore) -> Result<()> {
    let (_holder, guard, deadline) = cut_off(store).await?;
    let reason = guard.lost().await;
    let told = BootInstant::now();
    assert_eq!(reason, LossReason::DeadlinePassed);
    assert!(told >= deadline, "told {:?} early", late(deadline, told));
    assert!(
        late(told, deadline) <= NOTICE + store.scheduling(),
        "told {:?} late",
        late(told, deadline)
    );
    eprintln!("T2: told {:?} after the deadline", late(told, deadline));
    Ok(())
}

/// T1, T2: in a process that was stopped beyond its deadline, `is_held` is never true after SIGCONT, and the guard
/// reports the loss within 50 ms.
pub async fn t2_told_within_50_ms_of_waking(store: &TestStore) -> Result<()> {
    let worker = store.worker("sleeper");
    worker.call(json!({ "command": "acquire", "lock": NAME }));
    worker.call(json!({ "command": "watch_lost", "handle": NAME }));
    worker.call(json!({ "command": "probe_held", "handle": NAME, "every_us": 200 }));
    worker.pause();
    sleep(store.ttl().expect("the check is for leases") + SETTLED).await;
    let woken = now_ns();
    worker.resume();
    for _ in 0..2 {
        let event = worker.event(PATIENCE).expect("the loss is told");
        // The event contains the time at which the worker learned of the loss. This process may have read the event's
        // line later.
        let told = event["t_ns"].as_u64().or(event["after_ns"].as_u64()).expect("a time");
        let delay = Duration::from_nanos(told.saturating_sub(woken));
        eprintln!("T2: {} told {delay:?} after SIGCONT", event["event"]);
        assert!(delay <= NOTICE + store.scheduling(), "{event} came {delay:?} after SIGCONT");
        // The last call of `is_held` that returned `true` must have begun before the pause. It may have returned
        // later, because the pause may have stopped its thread within the call.
        let last = event["last_true_before_ns"].as_u64().unwrap_or_default();
        assert!(last < woken, "held {:?} after SIGCONT", Duration::from_nanos(last - woken));
    }
    Ok(())
}

/// T3: takes the lock away by `take_away`. Returns how long it then took until the guard reported the loss, and the
/// reason that the guard gave.
async fn told_after(guard: &Arc<LockGuard>, take_away: impl Future) -> (Duration, LossReason) {
    // The library begins to watch a holder's entry a little after the grant. This waits until then.
    sleep(SETTLED).await;
    assert!(guard.is_held());
    let listener = Arc::clone(guard);
    let listening = tokio::spawn(async move { (listener.lost().await, BootInstant::now()) });
    take_away.await;
    let taken = BootInstant::now();
    let told = timeout(PATIENCE, listening).await.expect("the loss is told");
    let (reason, told) = told.expect("no panic");
    must_hold!(!guard.is_held());
    (late(told, taken), reason)
}

/// T3: the holder learns that its lock was broken.
pub async fn t3_told_of_a_broken_lock(store: &TestStore) -> Result<()> {
    let (holder, operator) = (store.connect("holder").await?, store.connect("operator").await?);
    let guard = Arc::new(acquire(&holder).await?);
    let lock = lock(&operator);
    let breaking = async { lock.break_lock().await.map(|broken| assert!(broken.is_some())) };
    let (delay, reason) = told_after(&guard, breaking).await;
    eprintln!("T3: told {delay:?} after the lock was broken");
    assert_eq!(reason, LossReason::EntryDeleted);
    assert!(delay <= store.notice_bound(), "told after {delay:?}");
    Ok(())
}

/// T3: the holder learns that its key was deleted in the store.
pub async fn t3_told_of_a_deleted_key(store: &TestStore) -> Result<()> {
    let holder = store.connect("holder").await?;
    let guard = Arc::new(acquire(&holder).await?);
    let keys = store.contenders(&lock(&holder)).await;
    let delete = async { assert!(store.server().delete_entry(&keys[0])) };
    let (delay, reason) = told_after(&guard, delete).await;
    eprintln!("T3: told {delay:?} after the key was deleted");
    assert_eq!(reason, LossReason::EntryDeleted);
    assert!(delay <= store.notice_bound(), "told after {delay:?}");
    Ok(())
}

/// T3: of many entries of one client one is deleted. Its holder learns of that, and the holders of the others lose nothing, however
/// often the client looks for all of its entries.
pub async fn t3_one_of_many_is_told(store: &TestStore) -> Result<()> {
    const MANY: usize = 20;
    let holder = store.connect("holder").await?;
    let mut held = Vec::new();
    for number in 0..MANY {
        let lock = holder.lock(format!("one-of-many-{number}"))?;
        held.push(lock.acquire(Some(PATIENCE)).await?);
    }
    let taken = Arc::new(held.swap_remove(MANY / 2));
    let entries = store.entries("lock");
    let token = taken.token().value();
    let entry = entries.iter().find(|entry| store.server().token_of(entry) == token);
    let entry = entry.expect("it is at the store");
    let delete = async { assert!(store.server().delete_entry(entry)) };
    let (delay, reason) = told_after(&taken, delete).await;
    eprintln!("T3: told {delay:?} after one of {MANY} entries was deleted");
    assert_eq!(reason, LossReason::EntryDeleted);
    assert!(delay <= store.notice_bound(), "told after {delay:?}");
    // In this time the client looks for all of its entries more than once.
    sleep(2 * store.ttl().expect("the check is for leases").min(PATIENCE)).await;
    for guard in held {
        assert!(guard.is_held());
        guard.release().await?;
    }
    Ok(())
}

/// T3: the holder learns that its session was ended, long before its deadline.
pub async fn t3_told_of_a_revoked_session(store: &TestStore) -> Result<()> {
    let holder = store.connect("holder").await?;
    let guard = Arc::new(acquire(&holder).await?);
    let (delay, reason) = told_after(&guard, async { store.end_session("holder") }).await;
    eprintln!("T3: told {delay:?} after the session was revoked");
    // The reason depends on what reports the loss first: the watch of the holder's entry, a heartbeat, or the reply to
    // a heartbeat.
    let reasons = [LossReason::EntryDeleted, LossReason::ExpiredByServer, LossReason::Revoked];
    assert!(reasons.contains(&reason), "{reason:?}");
    assert!(delay <= store.end_notice_bound(), "told after {delay:?}");
    drop(guard);
    take_turn(&holder).await.map(drop)
}

/// T4: a short outage suspends the session, and no lock is lost.
pub async fn t4_suspended_is_not_lost(store: &TestStore) -> Result<()> {
    let holder = store.connect_by_proxy("holder").await?;
    let guard = Arc::new(acquire(&holder).await?);
    let mut state = holder.state();
    let probe = Probe::start(&guard);
    store.proxy().set_both(Mode::Stall);
    let overdue = store.heartbeat() + store.attempt_timeout();
    let suspended = timeout(overdue + super::SCHEDULING + store.scheduling(), async {
        until_state(&mut state, |state| state == State::Suspended).await
    });
    suspended.await.expect("a heartbeat is overdue");
    let deadline = guard.deadline();
    store.proxy().heal();
    until_state(&mut state, |state| state == State::Connected).await;
    // The heartbeat that moves the deadline may be the second one; that depends on the store.
    eventually(2 * overdue, || guard.deadline() > deadline).await;
    sleep(store.ttl().expect("the check is for leases")).await;
    assert!(probe.is_held() && guard.is_held());
    assert!(lock(&holder).try_acquire().await?.is_none());
    holder.stop().await
}

/// All states that a watch reports until the end.
async fn story(mut state: StateWatch) -> Vec<State> {
    let mut story = vec![state.current()];
    while let Some(next) = timeout(PATIENCE, state.changed()).await.expect("told") {
        story.push(next);
    }
    story
}

/// T5: every watch sees every state, in order, whether the watch starts early or late; the last state is `Closed`.
pub async fn t5_closed_is_the_last_state(store: &TestStore) -> Result<()> {
    let coordinator = store.connect("one").await?;
    let guard = acquire(&coordinator).await?;
    let early = coordinator.state();
    coordinator.stop().await?;
    assert_eq!(guard.lost().await, LossReason::Closed);
    let late = coordinator.state();
    assert_eq!(story(late).await, [State::Closed]);
    let story = story(early).await;
    assert_eq!(story.last(), Some(&State::Closed));
    let refused = lock(&coordinator).acquire(Some(PATIENCE)).await.expect_err("it is closed");
    assert_eq!(refused.kind(), ErrorKind::Closed);
    Ok(())
}

/// T5: a watch reports the states of a client in order: an outage, a loss, a new session and its end.
pub async fn t5_every_state_in_order(store: &TestStore) -> Result<()> {
    let coordinator = store.connect_by_proxy("one").await?;
    let (never_polled, mut state) = (coordinator.state(), coordinator.state());
    store.proxy().set_both(Mode::Blackhole);
    until_state(&mut state, |state| matches!(state, State::Lost(_))).await;
    assert_eq!(coordinator.state().current(), State::Lost(LossReason::DeadlinePassed));
    store.proxy().heal();
    until_state(&mut state, |state| state == State::Connected).await;
    assert_eq!(coordinator.state().current(), State::Connected);
    coordinator.stop().await?;
    let story = story(never_polled).await;
    let lost = State::Lost(LossReason::DeadlinePassed);
    let at = story.iter().position(|state| *state == lost).expect("it was lost");
    assert_eq!(story[at - 1], State::Suspended, "{story:?}");
    assert_eq!(story[at + 1], State::Connected, "{story:?}");
    assert_eq!(story.last(), Some(&State::Closed), "{story:?}");
    assert!(story.windows(2).all(|pair| pair[0] != pair[1]), "{story:?}");
    Ok(())
}

/// T5: if the store ends the session, the reason in `Lost` says so, even if nothing is held.
pub async fn t5_the_reason_is_told(store: &TestStore) -> Result<()> {
    let coordinator = store.connect("one").await?;
    let mut state = coordinator.state();
    take_turn(&coordinator).await?;
    store.end_session("one");
    let expected = match store.has_server() {
        true => LossReason::ExpiredByServer,
        false => LossReason::Revoked,
    };
    let lost = until_state(&mut state, |state| matches!(state, State::Lost(_))).await;
    assert_eq!(lost, State::Lost(expected));
    until_state(&mut state, |state| state == State::Connected).await;
    let guard = acquire(&coordinator).await?;
    sleep(MOMENT).await;
    guard.release().await
}

fn late(moment: BootInstant, than: BootInstant) -> Duration {
    moment.saturating_duration_since(than)
}
