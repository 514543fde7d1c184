//! TR1: `release_after` releases a guard by itself when a given time has passed since the grant, never earlier and soon
//! after.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use coordination::{ErrorKind, LossReason, Result, State, TimedRelease};
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::tools::{
    MOMENT, NAME, PATIENCE, acquire, acquire_in_background, drop_after_polls, lock, take_turn,
    until_contenders, until_state,
};
use super::{SCHEDULING, TestStore};
use crate::harness::Mode;
use crate::must_hold;

/// How late the release may be; over a network a request and its answer are added.
fn lateness(store: &TestStore) -> Duration {
    let network = if store.has_server() { SCHEDULING } else { Duration::ZERO };
    Duration::from_millis(20) + network + store.poll() + store.scheduling()
}

/// Longer than a check takes, so that the release cannot happen within it.
const LONG: Duration = Duration::from_secs(60);

/// TR1: the next waiter gets the lock when the time has passed since the grant, not before and soon after. That also
/// holds if the `TimedRelease` is dropped, and if `release_after` was called some time after the grant.
pub async fn tr1_never_early_and_soon_after(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    for (held_for, kept, ordered_after) in
        [(30, true, 0), (100, false, 0), (250, true, 100), (250, false, 100), (600, true, 0)]
    {
        let held_for = Duration::from_millis(held_for);
        let before = Instant::now();
        let guard = acquire(&one).await?;
        let after = Instant::now();
        let waiting = acquire_in_background(&other);
        sleep(Duration::from_millis(ordered_after)).await;
        let timed = guard.release_after(held_for);
        assert!(timed.is_held() || after.elapsed() >= held_for);
        let timed = kept.then_some(timed);
        let next = waiting.await.expect("no panic")?;
        let served = Instant::now();
        assert!(served - before >= held_for, "{:?} early", held_for - (served - before));
        let late = (served - after).saturating_sub(held_for);
        eprintln!("TR1: {late:?} late after {held_for:?}");
        assert!(late <= lateness(store), "{late:?} late");
        assert!(timed.is_none_or(|timed| !timed.is_held()));
        next.release().await?;
    }
    Ok(())
}

/// TR1: if the time has already passed when `release_after` is called, the lock is released at once.
pub async fn tr1_a_time_that_has_passed(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    for held_for in [Duration::ZERO, MOMENT] {
        let guard = acquire(&one).await?;
        sleep(2 * MOMENT).await;
        let ordered = Instant::now();
        let timed = guard.release_after(held_for);
        take_turn(&other).await?;
        assert!(ordered.elapsed() <= lateness(store), "{:?}", ordered.elapsed());
        assert!(!timed.is_held());
    }
    Ok(())
}

/// TR1: `release_after` accepts even `Duration::MAX`. When the session ends, so does the hold, although that time is
/// not over.
pub async fn tr1_a_time_without_end(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let timed = acquire(&one).await?.release_after(Duration::MAX);
    sleep(2 * MOMENT).await;
    assert!(timed.is_held());
    assert!(lock(&other).try_acquire().await?.is_none());
    one.stop().await?;
    assert_eq!(timed.lost().await, LossReason::Closed);
    take_turn(&other).await.map(drop)
}

/// TR1: many holders that each call `release_after` never overlap, and are served in the order in which they asked.
pub async fn tr1_holds_do_not_overlap(store: &TestStore) -> Result<()> {
    const HELD_FOR: Duration = Duration::from_millis(5);
    let mut clients = Vec::new();
    for client in ["one", "other", "third"] {
        clients.push(store.connect(client).await?);
    }
    let inside = Arc::new(AtomicUsize::new(0));
    let mut tasks = JoinSet::new();
    for task in 0..store.rounds(30, 12) {
        let (lock, inside) = (lock(&clients[task % 3]), Arc::clone(&inside));
        tasks.spawn(async move {
            let guard = lock.acquire(Some(PATIENCE)).await?;
            let granted = Instant::now();
            must_hold!(inside.fetch_add(1, Ordering::SeqCst) == 0, "two at once");
            let token = guard.token();
            // The holder leaves well before the time is over, because the time counts from the grant, which was a
            // little before `granted`.
            sleep(HELD_FOR / 5).await;
            inside.fetch_sub(1, Ordering::SeqCst);
            drop(guard.release_after(HELD_FOR));
            Ok::<_, coordination::Error>((token, granted))
        });
    }
    let mut grants = Vec::new();
    while let Some(grant) = tasks.join_next().await {
        grants.push(grant.expect("no panic")?);
    }
    grants.sort_unstable_by_key(|(token, _)| *token);
    for pair in grants.windows(2) {
        let (before, after) = (pair[0].1, pair[1].1);
        must_hold!(before < after, "in the order of their tokens");
        // If the machine withholds processor time, the call returns the guard later than the store granted it.
        let apart = (after - before) + store.scheduling() + Duration::from_millis(2);
        assert!(apart >= HELD_FOR, "{:?} apart", after - before);
    }
    Ok(())
}

/// TR1: the release still happens if the task ends that called `release_after`, and if a future of the `TimedRelease`
/// is polled and dropped.
pub async fn tr1_the_task_may_end(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    for polls in 0..4 {
        let lock_one = lock(&one);
        let before = Instant::now();
        let task = tokio::spawn(async move {
            let guard = lock_one.acquire(Some(PATIENCE)).await?;
            let timed = guard.release_after(4 * MOMENT);
            drop_after_polls(timed.lost(), polls).await;
            drop_after_polls(timed.protect(std::future::pending::<()>()), polls).await;
            Ok::<_, coordination::Error>(())
        });
        task.await.expect("no panic")?;
        assert!(lock(&other).try_acquire().await?.is_none() || before.elapsed() >= 4 * MOMENT);
        take_turn(&other).await?;
        assert!(before.elapsed() >= 4 * MOMENT, "{:?}", before.elapsed());
    }
    Ok(())
}

/// TR1: the release still happens if the runtime ends on which `release_after` was called, provided the session has a
/// thread of its own.
pub async fn tr1_the_runtime_may_end(store: &TestStore) -> Result<()> {
    let other = store.connect("other").await?;
    let (settings, url) = (store.settings().member_id("one"), store.url().to_owned());
    let ordering = tokio::task::spawn_blocking(move || {
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        let ordered: Result<_> = runtime.block_on(async {
            let coordinator = settings.connect(&url).await?;
            let before = Instant::now();
            let timed = acquire(&coordinator).await?.release_after(10 * MOMENT);
            Ok((coordinator, before, timed))
        });
        runtime.shutdown_timeout(Duration::from_secs(1));
        ordered
    });
    let (_coordinator, before, timed) = ordering.await.expect("no panic")?;
    assert!(timed.is_held() || before.elapsed() >= 10 * MOMENT);
    take_turn(&other).await?;
    let took = before.elapsed();
    assert!(took >= 10 * MOMENT, "{took:?}");
    assert!(!timed.is_held());
    Ok(())
}

/// TR1, S5: a lock that was lost before the time was over is not released again, and a later grant stays.
pub async fn tr1_lost_before_its_time(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let timed = acquire(&one).await?.release_after(6 * MOMENT);
    lock(&other).break_lock().await?;
    let next = acquire(&other).await?;
    assert_eq!(timeout(PATIENCE, timed.lost()).await, Ok(LossReason::EntryDeleted));
    assert!(!timed.is_held());
    sleep(8 * MOMENT).await;
    assert!(next.is_held());
    let holders = lock(&one).holders().await?;
    assert!(holders.len() == 1 && holders[0].token == next.token(), "{holders:?}");
    let protected = timed.protect(async {}).await.expect_err("it was lost");
    assert_eq!(protected.kind(), ErrorKind::Lost);
    next.release().await
}

/// TR1: the end of the session ends the hold, and the `TimedRelease` reports it.
pub async fn tr1_the_session_ends_before(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let timed = acquire(&one).await?.release_after(LONG);
    one.stop().await?;
    assert_eq!(timeout(PATIENCE, timed.lost()).await, Ok(LossReason::Closed));
    assert!(!timed.is_held());
    take_turn(&other).await.map(drop)
}

/// TR1, C7: the `TimedRelease` keeps the session alive until the time is over, and no longer.
pub async fn tr1_it_keeps_the_session(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let (before, mut state) = (Instant::now(), one.state());
    drop(acquire(&one).await?.release_after(6 * MOMENT));
    drop(one);
    take_turn(&other).await?;
    assert!(before.elapsed() >= 6 * MOMENT, "{:?}", before.elapsed());
    until_state(&mut state, |state| state == State::Closed).await;
    Ok(())
}

/// TR1: shared guards and permits are released by themselves, too.
pub async fn tr1_shares_and_permits(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let before = Instant::now();
    let share: TimedRelease =
        lock(&one).acquire_shared(Some(PATIENCE)).await?.release_after(4 * MOMENT);
    take_turn(&other).await?;
    assert!(before.elapsed() >= 4 * MOMENT && !share.is_held());
    let before = Instant::now();
    let permit = one.semaphore(NAME, 1)?.acquire(Some(PATIENCE)).await?.release_after(4 * MOMENT);
    let next = other.semaphore(NAME, 1)?.acquire(Some(PATIENCE)).await?;
    assert!(before.elapsed() >= 4 * MOMENT && !permit.is_held());
    next.release().await
}

/// TR1, L1: when the process is killed before the time is over, the lock is free within the crash bound.
pub async fn tr1_a_killed_process_frees_it_before(store: &TestStore) -> Result<()> {
    let coordinator = store.connect("next").await?;
    let worker = store.worker("holder");
    worker.call(json!({ "command": "acquire", "lock": NAME }));
    worker
        .call(json!({ "command": "release_after", "handle": NAME, "ms": LONG.as_millis() as u64 }));
    let waiting = acquire_in_background(&coordinator);
    until_contenders(store, &lock(&coordinator), 2).await;
    let killed = Instant::now();
    worker.kill();
    waiting.await.expect("no panic")?.release().await?;
    let took = killed.elapsed();
    assert!(took <= store.crash_bound(), "followed after {took:?}");
    // In a process that lives on, the lock is held until the time is over.
    let worker = store.worker("living");
    let before = Instant::now();
    worker.call(json!({ "command": "acquire", "lock": NAME }));
    worker.call(json!({ "command": "release_after", "handle": NAME, "ms": 300 }));
    take_turn(&coordinator).await?;
    assert!(before.elapsed() >= Duration::from_millis(300), "{:?}", before.elapsed());
    Ok(())
}

/// TR1: if the time passes during an outage, `is_held` is false from then on. The lock is released as soon as the store
/// is back; if the outage lasts longer than the lease, the lock is free when the lease ends.
pub async fn tr1_the_time_passes_during_an_outage(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect_by_proxy("one").await?, store.connect("other").await?);
    let before = Instant::now();
    let timed = acquire(&one).await?.release_after(6 * MOMENT);
    store.proxy().set_both(Mode::Stall);
    sleep(7 * MOMENT).await;
    assert!(!timed.is_held(), "{:?}", before.elapsed());
    store.proxy().heal();
    let healed = Instant::now();
    take_turn(&other).await?;
    assert!(healed.elapsed() <= store.crash_bound(), "{:?}", healed.elapsed());
    let timed = acquire(&one).await?.release_after(6 * MOMENT);
    store.proxy().set_both(Mode::Blackhole);
    let cut = Instant::now();
    take_turn(&other).await?;
    assert!(cut.elapsed() <= store.crash_bound(), "{:?}", cut.elapsed());
    assert!(!timed.is_held());
    Ok(())
}
