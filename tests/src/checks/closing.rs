//! C7, C9, L5, L6: the end of a coordinator, the end of its runtime, forks of its process, and the end of an outage.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use coordination::{Builder, Effect, ErrorKind, LossReason, Result, State};
use tokio::time::{sleep, timeout};

use super::interruption::{Pair, at_every_poll};
use super::tools::{
    MOMENT, NAME, PATIENCE, acquire, acquire_in_background, held_by_an_ended_runtime, lock,
    take_turn, until_contenders, until_state,
};
use super::{SCHEDULING, TestStore};
use crate::bounds;
use crate::harness::{Mode, eventually, eventually_async};
use crate::must_hold;

/// C2, L6: a connect or stop that is dropped at any poll leaves no session for longer than its lease.
pub async fn c2_dropped_connects_and_stops(store: &TestStore) -> Result<()> {
    let least = store.rounds(1, 2);
    at_every_poll(store, "connect", least, interrupted_connect).await?;
    at_every_poll(store, "stop", least, interrupted_stop).await?;
    until_no_session(store).await;
    Ok(())
}

/// The settings of a client whose connect or stop is interrupted.
fn visitor(store: &TestStore) -> Builder {
    let settings = store.settings().member_id("visitor");
    settings.initial_reconnect_backoff(Duration::from_millis(10))
}

/// Case: a client connects.
pub async fn interrupted_connect(pair: &Pair<'_>) -> Result<()> {
    let url = pair.url();
    if let Some(visitor) = pair.interrupt(visitor(pair.store).connect(&url)).await? {
        take_turn(&visitor).await?;
        visitor.stop().await?;
    } else if pair.store.has_server() {
        // The dropped connect may still be in progress, and its member id is taken until it has been undone (C2).
        sleep(2 * MOMENT).await;
    }
    take_turn(&pair.other).await.map(drop)
}

/// Case: a client that holds a lock stops. The lock is free at once, or when the client's lease ends at the latest.
pub async fn interrupted_stop(pair: &Pair<'_>) -> Result<()> {
    let visitor = visitor(pair.store).connect(&pair.url()).await?;
    let guard = acquire(&visitor).await?;
    let start = Instant::now();
    pair.interrupt(visitor.stop()).await?;
    // A stop that was dropped before its first poll has not begun, so the client is stopped again.
    visitor.stop().await.or_else(|error| if error.is_transient() { Ok(()) } else { Err(error) })?;
    must_hold!(!guard.is_held(), "{pair:?}");
    take_turn(&pair.other).await?;
    let took = start.elapsed();
    assert!(took <= pair.store.crash_bound(), "{pair:?}: free after {took:?}");
    Ok(())
}

/// Waits until the store has no session of a visitor.
pub async fn until_no_session(store: &TestStore) {
    eventually(store.crash_bound(), || store.sessions("visitor") == 0).await;
}

/// C7: a clone of a coordinator shares the session, and a guard keeps it alive. The session ends when the last clone
/// and the last guard are dropped.
pub async fn c7_a_guard_keeps_its_session(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let (copy, mut state) = (one.clone(), one.state());
    drop(one);
    sleep(2 * store.heartbeat()).await;
    let guard = acquire(&copy).await?;
    drop(copy);
    sleep(store.ttl().unwrap_or_default() + 2 * store.heartbeat()).await;
    assert!(guard.is_held());
    assert!(lock(&other).try_acquire().await?.is_none());
    assert_eq!(state.current(), State::Connected);
    guard.release().await?;
    until_state(&mut state, |state| state == State::Closed).await;
    take_turn(&other).await?;
    if store.has_server() {
        assert_eq!(store.sessions(""), 1, "only the other one is a member");
    }
    Ok(())
}

/// C7: if the coordinator was dropped before its last guard, the session ends when that guard is dropped.
pub async fn c7_the_last_guard_is_dropped(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let (guard, mut state) = (acquire(&one).await?, one.state());
    drop(one);
    let start = Instant::now();
    drop(guard);
    until_contenders(store, &lock(&other), 0).await;
    let took = start.elapsed();
    assert!(took <= bounds::last_try() + SCHEDULING + store.scheduling(), "{took:?}");
    until_state(&mut state, |state| state == State::Closed).await;
    take_turn(&other).await.map(drop)
}

/// C7: while the store does not answer, the coordinator and then its last guard are dropped. The client does not keep
/// the session alive.
pub async fn c7_dropped_while_the_store_hangs(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect_by_proxy("one").await?, store.connect("other").await?);
    let (guard, mut state) = (acquire(&one).await?, one.state());
    store.proxy().set_both(Mode::Blackhole);
    drop(one);
    let start = Instant::now();
    drop(guard);
    until_state(&mut state, |state| state == State::Closed).await;
    let took = start.elapsed();
    assert!(took <= bounds::last_try() + SCHEDULING + store.scheduling(), "{took:?}");
    take_turn(&other).await?;
    assert!(start.elapsed() <= store.crash_bound(), "{:?}", start.elapsed());
    Ok(())
}

/// C7: when the runtime ends on which the client's heartbeats run, its guards are lost.
pub async fn c7_ended_runtime_loses_its_guards(store: &TestStore) -> Result<()> {
    let other = store.connect("other").await?;
    let settings = store.settings().heartbeat_on_current_runtime(true).member_id("one");
    let url = store.url().to_owned();
    let (guard, coordinator) = held_by_an_ended_runtime(settings, url).await?;
    let ended = Instant::now();
    must_hold!(!guard.is_held());
    assert_eq!(guard.lost().await, LossReason::RuntimeEnded);
    assert_eq!(coordinator.state().current(), State::Closed);
    let refused = lock(&coordinator).try_acquire().await.expect_err("it is closed");
    assert_eq!(refused.kind(), ErrorKind::Closed);
    assert_eq!(refused.loss_reason(), Some(LossReason::RuntimeEnded), "{refused}");
    assert_eq!(coordinator.stop().await.map_err(|error| error.kind()), Ok(()));
    take_turn(&other).await?;
    assert!(ended.elapsed() <= store.crash_bound(), "{:?}", ended.elapsed());
    Ok(())
}

/// C7: a session on a thread of its own outlives the runtime on which it was opened; its guards stay held.
pub async fn c7_own_thread_outlives_the_runtime(store: &TestStore) -> Result<()> {
    let other = store.connect("other").await?;
    let (settings, url) = (store.settings().member_id("one"), store.url().to_owned());
    let (guard, coordinator) = held_by_an_ended_runtime(settings, url).await?;
    sleep(store.ttl().unwrap_or_default() + SCHEDULING).await;
    assert!(guard.is_held());
    assert!(lock(&other).try_acquire().await?.is_none());
    guard.release().await?;
    coordinator.stop().await?;
    take_turn(&other).await.map(drop)
}

/// C9: a child that was forked from a holder holds nothing, and nothing that it does with its copies affects the
/// parent.
pub async fn c9_forked_child_holds_nothing(store: &TestStore) -> Result<()> {
    let coordinator = store.connect("watcher").await?;
    let mut command = Command::new(store.forker());
    // The forking program opens the store itself: a store in memory exists only within one process.
    command.args([store.url(), NAME]);
    let report = tokio::task::spawn_blocking(move || command.output()).await.expect("no panic");
    let report = report.expect("it starts");
    let text = String::from_utf8_lossy(&report.stdout).into_owned();
    let errors = String::from_utf8_lossy(&report.stderr);
    assert!(report.status.success(), "{}\n{text}\n{errors}", report.status);
    for expected in ["child: held false", "child: release refused", "parent: held true"] {
        assert!(text.contains(expected), "{expected:?} is not in:\n{text}\n{errors}");
    }
    take_turn(&coordinator).await.map(drop)
}

/// C9: a forked child does not affect its parent, whatever the child drops, wherever the parent's session runs, and
/// while other threads use locks.
pub async fn c9_whatever_a_forked_child_drops(store: &TestStore) -> Result<()> {
    let rounds = store.rounds(40, 3).to_string();
    for session in ["own", "current"] {
        for drops in ["guard", "coordinator", "runtime", "nothing"] {
            // When tokio ends a runtime, it locks mutexes. At the fork, a thread that is starting a task on the runtime
            // may hold one of these mutexes, and in the child this mutex then stays locked for ever. So the busy
            // threads of this case use another coordinator.
            let is_on_it = session == "current" && drops == "runtime";
            let busy = if is_on_it && store.has_server() { "apart" } else { "same" };
            let mut command = Command::new(store.forker());
            command.args([store.url(), NAME, session, drops, busy, &rounds]);
            let report = tokio::task::spawn_blocking(move || command.output()).await;
            let report = report.expect("no panic").expect("it starts");
            let errors = String::from_utf8_lossy(&report.stderr);
            assert!(report.status.success(), "{session}, {drops}: {}\n{errors}", report.status);
        }
    }
    Ok(())
}

/// L5: after an outage that was longer than the lease, everything works again without any action.
pub async fn l5_recovers_after_an_outage(store: &TestStore) -> Result<()> {
    let ttl = store.ttl().expect("the check is for leases");
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let node = store.server().node(0);
    for kill in [true, false] {
        let guard = acquire(&one).await?;
        let waiting = acquire_in_background(&other);
        until_contenders(store, &lock(&one), 2).await;
        if kill {
            node.kill()
        } else {
            node.pause()
        }
        sleep(ttl + Duration::from_secs(1)).await;
        assert_eq!(guard.lost().await, LossReason::DeadlinePassed);
        if kill {
            node.restart()
        } else {
            node.resume()
        }
        store.server().wait_ready();
        let healed = Instant::now();
        let working = async {
            let next = waiting.await.expect("no panic")?;
            eprintln!("L5: a waiter is served {:?} after the outage", healed.elapsed());
            must_hold!(next.token() > guard.token());
            next.release().await?;
            take_turn(&one).await?;
            let fresh = store.connect("fresh").await?;
            take_turn(&fresh).await?;
            Ok::<_, coordination::Error>(fresh)
        };
        let fresh = store.within(bounds::recovered(Some(ttl)), working).await?;
        fresh.stop().await?;
    }
    Ok(())
}

/// L5: after the store's directory was moved away for a while, everything works again without any action.
pub async fn l5_recovers_after_the_directory_was_away(store: &TestStore) -> Result<()> {
    let one = store.connect("one").await?;
    let guard = acquire(&one).await?;
    let (directory, away) = (store.directory(), store.directory().with_extension("away"));
    fs::rename(&directory, &away).expect("it is ours");
    assert_eq!(timeout(PATIENCE, guard.lost()).await, Ok(LossReason::Revoked));
    // While the directory is away, a client may create it again; this new directory is removed before the old one is
    // moved back.
    sleep(2 * store.heartbeat()).await;
    let _ = fs::remove_dir_all(&directory);
    fs::rename(&away, &directory).expect("it is ours");
    let works = async || take_turn(&one).await.is_ok();
    let took = eventually_async(bounds::recovered(store.ttl()) + store.scheduling(), works).await;
    eprintln!("L5: works {took:?} after the directory is back");
    let other = store.connect("other").await?;
    take_turn(&other).await.map(drop)
}

/// L6: `stop` is confirmed by the store, ends all that is held or waited for, and can be repeated.
pub async fn l6_stop_is_confirmed(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let guard = acquire(&one).await?;
    let waiting = acquire_in_background(&one);
    until_contenders(store, &lock(&other), 2).await;
    one.stop().await?;
    must_hold!(!guard.is_held());
    assert!(store.contenders(&lock(&other)).await.is_empty(), "confirmed, and still there");
    let refused = waiting.await.expect("no panic").expect_err("it is closed");
    assert_eq!(refused.kind(), ErrorKind::Closed);
    one.stop().await?;
    assert_eq!(lock(&one).try_acquire().await.expect_err("closed").kind(), ErrorKind::Closed);
    // The member id can be used again.
    let again = store.connect("one").await?;
    take_turn(&again).await.map(drop)
}

/// L6: while the store does not answer, `stop` returns in time, with an error that says that the store has not
/// confirmed it. The check calls `stop` at the beginning of an outage, and after the outage has cost the session.
pub async fn l6_stop_is_bounded(store: &TestStore) -> Result<()> {
    let ttl = store.ttl().expect("the check is for leases");
    for wait in [Duration::ZERO, ttl + MOMENT] {
        let one = store.connect("one").await?;
        let guard = acquire(&one).await?;
        store.server().node(0).pause();
        sleep(wait).await;
        let start = Instant::now();
        let refused = one.stop().await.expect_err("nobody confirms");
        let took = start.elapsed();
        let bound = bounds::stopped(ttl) + store.scheduling();
        assert!(took <= bound, "{took:?}");
        assert_eq!((refused.kind(), refused.effect()), (ErrorKind::Unavailable, Effect::Unknown));
        must_hold!(!guard.is_held());
        store.server().node(0).resume();
        store.server().wait_ready();
        // A session whose end was not confirmed ends with its lease.
        sleep(store.crash_bound()).await;
    }
    Ok(())
}
