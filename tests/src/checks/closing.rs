//! C7, C9, L5, L6: the end of a client, of its runtime, of its process' other half, and of an outage.

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

/// C2, L6: a connect or a stop that is dropped at any point leaves no session for longer than its lease.
pub async fn c2_dropped_connects_and_stops(store: &TestStore) -> Result<()> {
    let least = store.rounds(1, 2);
    at_every_poll(store, "connect", least, interrupted_connect).await?;
    at_every_poll(store, "stop", least, interrupted_stop).await?;
    until_no_session(store).await;
    Ok(())
}

/// The settings of a client that is interrupted when it comes or goes.
fn visitor(store: &TestStore) -> Builder {
    let settings = store.settings().member_id("visitor");
    settings.initial_reconnect_backoff(Duration::from_millis(10))
}

/// A client connects.
pub async fn interrupted_connect(pair: &Pair<'_>) -> Result<()> {
    let url = pair.url();
    if let Some(visitor) = pair.interrupt(visitor(pair.store).connect(&url)).await? {
        take_turn(&visitor).await?;
        visitor.stop().await?;
    } else if pair.store.has_server() {
        // It may be on its way in (C2), and has the member id until it is out again.
        sleep(2 * MOMENT).await;
    }
    take_turn(&pair.other).await.map(drop)
}

/// A client stops that holds a lock; that is free at once, or when its lease is over at the latest.
pub async fn interrupted_stop(pair: &Pair<'_>) -> Result<()> {
    let visitor = visitor(pair.store).connect(&pair.url()).await?;
    let guard = acquire(&visitor).await?;
    let start = Instant::now();
    pair.interrupt(visitor.stop()).await?;
    // Dropped before its first poll it has not begun.
    visitor.stop().await.or_else(|error| if error.is_transient() { Ok(()) } else { Err(error) })?;
    must_hold!(!guard.is_held(), "{pair:?}");
    take_turn(&pair.other).await?;
    let took = start.elapsed();
    assert!(took <= pair.store.crash_bound(), "{pair:?}: free after {took:?}");
    Ok(())
}

/// The visitors are gone from the store too.
pub async fn until_no_session(store: &TestStore) {
    eventually(store.crash_bound(), || store.sessions("visitor") == 0).await;
}

/// C7: a clone shares the session, a guard keeps it, and the last handle that goes ends it.
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

/// C7: the last handle of a client goes.
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

/// C7: and its session is not kept alive when the store cannot be told.
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

/// C7: the runtime on which the client's heartbeats run ends.
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

/// C7: a session on its own thread outlives the runtime that made it; its guards stay good.
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

/// C9: a child forked from a holder holds nothing, and what it does with its copies changes nothing.
pub async fn c9_forked_child_holds_nothing(store: &TestStore) -> Result<()> {
    let coordinator = store.connect("watcher").await?;
    let mut command = Command::new(store.forker());
    // The memory store is within the forking process itself.
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

/// C9: the same whatever the child drops, wherever its parent's session lives, and whatever other threads do meanwhile.
pub async fn c9_whatever_a_forked_child_drops(store: &TestStore) -> Result<()> {
    let rounds = store.rounds(40, 3).to_string();
    for session in ["own", "current"] {
        for drops in ["guard", "coordinator", "runtime", "nothing"] {
            // A runtime of tokio's is ended under mutexes of its own, which threads that start tasks on it may have locked.
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

/// L5: after an outage longer than the lease everything works again, by itself.
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

/// L5: the same when the directory was moved away for a while.
pub async fn l5_recovers_after_the_directory_was_away(store: &TestStore) -> Result<()> {
    let one = store.connect("one").await?;
    let guard = acquire(&one).await?;
    let (directory, away) = (store.directory(), store.directory().with_extension("away"));
    fs::rename(&directory, &away).expect("it is ours");
    assert_eq!(timeout(PATIENCE, guard.lost()).await, Ok(LossReason::Revoked));
    // A new one is made meanwhile, and goes as well.
    sleep(2 * store.heartbeat()).await;
    let _ = fs::remove_dir_all(&directory);
    fs::rename(&away, &directory).expect("it is ours");
    let works = async || take_turn(&one).await.is_ok();
    let took = eventually_async(bounds::recovered(store.ttl()) + store.scheduling(), works).await;
    eprintln!("L5: works {took:?} after the directory is back");
    let other = store.connect("other").await?;
    take_turn(&other).await.map(drop)
}

/// L6: a stop is confirmed, ends everything, and may be repeated.
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
    // The member id is free again.
    let again = store.connect("one").await?;
    take_turn(&again).await.map(drop)
}

/// L6: a stop is bounded, and says when the store has not confirmed; in the first moment of an outage and
/// after the session was lost in it.
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
        // What was not confirmed ends with the lease.
        sleep(store.crash_bound()).await;
    }
    Ok(())
}
