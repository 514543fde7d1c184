//! C1, C2, C4, C5, C6, C8: what a caller that gives up, drops a guard or panics leaves behind.

use std::cell::RefCell;
use std::thread;
use std::time::{Duration, Instant};

use coordination::{Coordinator, Effect, ErrorKind, LockGuard, LossReason, Result, blocking};
use tokio::time::{sleep, timeout};

use super::interruption::{Pair, at_every_poll};
use super::tools::{
    ANSWERED, MOMENT, PATIENCE, acquire, acquire_in_background, assert_out_of_time,
    drop_after_polls, held_by_an_ended_runtime, lock, take_turn, until_contenders,
};
use super::{Backend, SCHEDULING, TestStore};
use crate::bounds;
use crate::harness::{Direction, Mode};
use crate::must_hold;

/// Ten times as long as a drop may take, because the machine may be busy.
const AT_ONCE: Duration = Duration::from_millis(100);

/// Asserts that `other` gets the lock at once, and that then no entry is left at the store.
pub(super) async fn nothing_is_left(
    store: &TestStore,
    other: &Coordinator,
    what: &str,
) -> Result<()> {
    let start = Instant::now();
    take_turn(other).await?;
    let took = start.elapsed();
    assert!(
        took <= bounds::cleared() + SCHEDULING + store.poll() + store.scheduling(),
        "{what}: taken after {took:?}"
    );
    until_contenders(store, &lock(other), 0).await;
    let took = start.elapsed();
    assert!(took <= 10 * bounds::cleared() + store.scheduling(), "{what}: empty after {took:?}");
    Ok(())
}

/// C1, C2: an acquire that is dropped at any poll leaves no entry.
pub async fn c1_dropped_acquire_leaves_nothing(store: &TestStore) -> Result<()> {
    let least = store.rounds(1, 2);
    at_every_poll(store, "acquire", least, interrupted_acquire).await?;
    at_every_poll(store, "try_acquire", least, interrupted_try).await
}

/// C1, C2: an acquire that waits, while another client holds the lock and then releases it, leaves no entry if it is
/// dropped at any poll.
pub async fn c1_dropped_waiting_acquire_leaves_nothing(store: &TestStore) -> Result<()> {
    at_every_poll(store, "acquire of a held lock", 2, interrupted_wait).await
}

/// Case: a client acquires a free lock.
pub async fn interrupted_acquire(pair: &Pair<'_>) -> Result<()> {
    let lock = lock(&pair.one);
    drop(pair.interrupt(lock.acquire(pair.patience())).await?);
    nothing_is_left(pair.store, &pair.other, &format!("{pair:?}")).await
}

/// Case: a client tries to acquire a free lock.
pub async fn interrupted_try(pair: &Pair<'_>) -> Result<()> {
    let lock = lock(&pair.one);
    drop(pair.interrupt(lock.try_acquire()).await?);
    nothing_is_left(pair.store, &pair.other, &format!("{pair:?}")).await
}

/// Case: a client waits for a lock that another client releases meanwhile.
pub async fn interrupted_wait(pair: &Pair<'_>) -> Result<()> {
    let lock = lock(&pair.one);
    let releasing = pair.drop_later(acquire(&pair.other).await?);
    let granted = pair.interrupt(lock.acquire(pair.patience())).await?;
    assert!(granted.as_ref().is_none_or(|guard| guard.is_held()), "{pair:?}");
    drop(granted);
    releasing.await.expect("no panic");
    nothing_is_left(pair.store, &pair.other, &format!("{pair:?}")).await
}

/// Case: a client acquires a lock, holds it for a little while, and releases it.
pub async fn interrupted_hold(pair: &Pair<'_>) -> Result<()> {
    let lock = lock(&pair.one);
    let holding = async {
        let guard = lock.acquire(pair.patience()).await?;
        // The pause is longer than it takes until the library watches the holder's own entry.
        sleep(MOMENT).await;
        assert!(guard.is_held(), "{pair:?}");
        guard.release().await
    };
    pair.interrupt(holding).await?;
    nothing_is_left(pair.store, &pair.other, &format!("{pair:?}")).await
}

/// C1, C2: an acquire that is cancelled by a timeout, by `select!` or by aborting its task leaves no entry.
pub async fn c1_however_it_is_cancelled(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let lock = lock(&one);
    for round in 0..store.rounds(20, 6) {
        let patience = Duration::from_micros(300) * u32::try_from(round).unwrap_or_default();
        let held = if round % 2 == 0 { Some(acquire(&other).await?) } else { None };
        drop(timeout(patience, lock.acquire(None)).await);
        tokio::select! {
            guard = lock.acquire(None) => drop(guard),
            () = sleep(patience) => {}
        }
        let task = acquire_in_background(&one);
        sleep(patience).await;
        task.abort();
        // If the lock was granted before the abort, the guard is in the task's result.
        drop(task.await);
        drop(held);
        nothing_is_left(store, &other, &format!("cancelled after {patience:?}")).await?;
    }
    // The session still works.
    take_turn(&one).await.map(drop)
}

/// C2: a waiter that timed out leaves the queue, so it delays nobody, and its session stays usable.
pub async fn c2_timed_out_waiters_leave_the_queue(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let held = acquire(&one).await?;
    for _ in 0..5 {
        let refused = lock(&other).acquire(Some(ANSWERED)).await.expect_err("it is held");
        assert_out_of_time(&refused, ANSWERED);
    }
    let refused_at = Instant::now();
    until_contenders(store, &lock(&one), 1).await;
    let took = refused_at.elapsed();
    assert!(took <= 10 * bounds::cleared() + store.scheduling(), "{took:?}");
    assert!(lock(&other).try_acquire().await?.is_none());
    held.release().await?;
    nothing_is_left(store, &other, "timed out").await?;
    take_turn(&other).await.map(drop)
}

/// C2: the entry of an acquire that was cancelled during an outage is removed when the store is back.
pub async fn c2_cancelled_during_an_outage(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect_by_proxy("one").await?, store.connect("other").await?);
    for polls in [1, 20] {
        store.proxy().set_both(Mode::Stall);
        let lock = lock(&one);
        assert!(!drop_after_polls(lock.acquire(None), polls).await);
        let refused = lock.try_acquire().await.expect_err("out of reach");
        assert_eq!(refused.kind(), ErrorKind::Unavailable);
        store.proxy().heal();
        // The library repeats the removal of the entry at the latest after its longest delay between two attempts.
        sleep(bounds::between_tries(store.heartbeat()) + bounds::cleared() + SCHEDULING).await;
        nothing_is_left(store, &other, &format!("stalled, {polls} polls")).await?;
    }
    take_turn(&one).await.map(drop)
}

/// C4: a guard can be dropped on a thread without a runtime.
pub async fn c4_drop_outside_of_a_runtime(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let guard = acquire(&one).await?;
    dropped_on_a_thread(move || drop(guard)).await;
    nothing_is_left(store, &other, "dropped outside").await
}

/// Runs `work` on a plain thread, and waits for its end without blocking the runtime.
async fn dropped_on_a_thread(work: impl FnOnce() + Send + 'static) {
    let ended = tokio::task::spawn_blocking(move || thread::spawn(work).join());
    ended.await.expect("not aborted").expect("no panic");
}

/// C4: a guard can be dropped by a thread-local destructor, when other thread-local values of the thread are gone
/// already.
pub async fn c4_drop_at_the_end_of_a_thread(store: &TestStore) -> Result<()> {
    thread_local! {
        static KEPT: RefCell<Option<LockGuard>> = const { RefCell::new(None) };
    }
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let handle = tokio::runtime::Handle::current();
    for knows_tokio in [false, true] {
        let (guard, handle) = (acquire(&one).await?, handle.clone());
        dropped_on_a_thread(move || {
            KEPT.set(Some(guard));
            if knows_tokio {
                // This creates tokio's thread-local state after ours, so it is destroyed before ours.
                handle.block_on(tokio::task::yield_now());
            }
        })
        .await;
        nothing_is_left(store, &other, "dropped by a thread-local").await?;
    }
    Ok(())
}

/// C4: a guard can be dropped after the end of the runtime on which it was acquired.
pub async fn c4_drop_after_the_runtime(store: &TestStore) -> Result<()> {
    let other = store.connect("other").await?;
    let (settings, url) = (store.settings(), store.url().to_owned());
    let (guard, coordinator) = held_by_an_ended_runtime(settings, url).await?;
    drop(guard);
    nothing_is_left(store, &other, "dropped after the runtime").await?;
    drop(coordinator);
    Ok(())
}

/// C4: dropping a guard does not block while the store hangs.
pub async fn c4_drop_never_blocks(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect_by_proxy("one").await?, store.connect("other").await?);
    let guard = acquire(&one).await?;
    store.proxy().set_both(Mode::Stall);
    let start = Instant::now();
    drop(guard);
    let took = start.elapsed();
    assert!(took <= AT_ONCE + store.scheduling(), "{took:?}");
    sleep(2 * MOMENT).await;
    assert!(lock(&other).try_acquire().await?.is_none());
    store.proxy().heal();
    // This checks the entry long before the lease ends. So if the entry is gone, it was not removed by the end of the
    // lease.
    sleep(bounds::between_tries(store.heartbeat()) + SCHEDULING).await;
    nothing_is_left(store, &other, "dropped while stalled").await
}

/// C5: the results of a release: `Ok`, lost, or closed.
///
/// Tooz: corresponds to the test `test_ensure_acquire_release_return` of the Python library Tooz.
pub async fn c5_release_tells(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    acquire(&one).await?.release().await?;
    assert!(store.contenders(&lock(&one)).await.is_empty(), "confirmed, and still there");
    let broken = acquire(&one).await?;
    lock(&other).break_lock().await?;
    broken.lost().await;
    assert_eq!(broken.remaining(), Some(Duration::ZERO));
    let refused = broken.release().await.expect_err("it was lost");
    assert_eq!(
        (refused.kind(), refused.loss_reason(), refused.operation()),
        (ErrorKind::Lost, Some(LossReason::EntryDeleted), "release")
    );
    assert_eq!(refused.key(), Some(super::tools::NAME));
    let closed = acquire(&one).await?;
    one.stop().await?;
    let refused = closed.release().await.expect_err("it was lost");
    assert_eq!(
        (refused.kind(), refused.loss_reason()),
        (ErrorKind::Closed, Some(LossReason::Closed))
    );
    Ok(())
}

/// C5: while the store is out of reach, `release` reports an unknown outcome, and the library goes on releasing in the
/// background.
pub async fn c5_unknown_is_told_and_goes_on(store: &TestStore) -> Result<()> {
    // A lease that is much longer than the five seconds that a release may take.
    let settings = store.settings().ttl(Duration::from_secs(20)).member_id("one");
    let one = settings.connect(&store.url_by_proxy()).await?;
    let other = store.connect("other").await?;
    let guard = acquire(&one).await?;
    store.proxy().set_both(Mode::Blackhole);
    let start = Instant::now();
    let refused = guard.release().await.expect_err("out of reach");
    let took = start.elapsed();
    assert!(took <= Duration::from_secs(5) + SCHEDULING + store.scheduling(), "{took:?}");
    assert_eq!((refused.kind(), refused.effect()), (ErrorKind::Unavailable, Effect::Unknown));
    assert!(lock(&other).try_acquire().await?.is_none());
    store.proxy().heal();
    let start = Instant::now();
    take_turn(&other).await?;
    let took = start.elapsed();
    // The next attempt comes within two seconds, long before the lease ends.
    assert!(took <= Duration::from_secs(5), "{took:?}");
    until_contenders(store, &lock(&other), 0).await;
    Ok(())
}

/// C5, X1: if the session ends before the store has confirmed the release, the error's effect is `Unknown`: the lock
/// may have been released.
pub async fn c5_lost_while_releasing(store: &TestStore) -> Result<()> {
    let one = store.connect_by_proxy("one").await?;
    let guard = acquire(&one).await?;
    store.proxy().set_both(Mode::Blackhole);
    let refused = guard.release().await.expect_err("out of reach");
    assert!(matches!(refused.kind(), ErrorKind::Lost | ErrorKind::Unavailable), "{refused}");
    assert_eq!(refused.effect(), Effect::Unknown, "{refused:?}");
    Ok(())
}

/// C5, S5: a dropped release goes on in the background, and does not release a later grant.
pub async fn c5_cancelled_release_goes_on(store: &TestStore) -> Result<()> {
    at_every_poll(store, "release", store.rounds(1, 2), interrupted_release).await
}

/// Case: a lock is released, and the same session acquires it again at once.
pub async fn interrupted_release(pair: &Pair<'_>) -> Result<()> {
    let old = acquire(&pair.one).await?;
    let token = old.token();
    pair.interrupt(old.release()).await?;
    let later = acquire(&pair.one).await?;
    must_hold!(later.token() > token, "{pair:?}");
    assert!(lock(&pair.other).try_acquire().await?.is_none(), "{pair:?}: granted to two");
    // Waits until a release that was dropped on its way has surely ended.
    sleep(pair.store.attempt_timeout() / 10).await;
    assert!(later.is_held(), "{pair:?}: lost by the release before it");
    let holders = lock(&pair.other).holders().await?;
    assert!(holders.iter().map(|holder| holder.token).eq([later.token()]), "{pair:?}: {holders:?}");
    drop(later);
    nothing_is_left(pair.store, &pair.other, &format!("{pair:?}")).await
}

/// C3: the late answer to a call that was given up is not taken for the answer to another call. On SQL stores, the
/// connection of the call that was given up is not used again.
pub async fn c3_a_late_answer_is_nobodys(store: &TestStore) -> Result<()> {
    let coordinator = store.connect_by_proxy("late").await?;
    take_turn(&coordinator).await?;
    let (proxy, attempt) = (store.proxy(), store.attempt_timeout());
    let before = proxy.connections();
    proxy.set(Direction::ToClient, Mode::Delay(2 * attempt));
    lock(&coordinator).acquire(Some(attempt)).await.expect_err("no answer comes in time");
    proxy.heal();
    let guard = acquire(&coordinator).await?;
    // This panics unless the entry with this token exists.
    store.entry("lock", guard.token());
    if matches!(store.backend(), Backend::Mysql | Backend::Postgres) {
        assert!(proxy.connections() > before, "it is asked on the same connection");
    }
    guard.release().await?;
    coordinator.stop().await
}

/// C6: no heartbeat brings a released entry back: heartbeats renew only sessions, never entries.
///
/// Tooz: corresponds to the test `test_heartbeat_lock_not_acquired` of the Python library Tooz.
pub async fn c6_nothing_is_renewed_after_release(store: &TestStore) -> Result<()> {
    let one = store.connect("one").await?;
    for round in 0..4 {
        let guard = acquire(&one).await?;
        // In each round, the release comes at another moment of the heartbeat interval.
        sleep(store.heartbeat() * round / 4).await;
        guard.release().await?;
        let until = Instant::now() + 2 * store.heartbeat();
        while Instant::now() < until {
            assert!(store.contenders(&lock(&one)).await.is_empty());
            sleep(Duration::from_millis(10)).await;
        }
    }
    Ok(())
}

/// C4, C8: a panic in the critical section, in a task or on a thread, releases the lock and poisons nothing.
pub async fn c8_panic_releases(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let asynchronous = lock(&one);
    let task = tokio::spawn(async move {
        let _guard = asynchronous.acquire(Some(PATIENCE)).await.expect("it is free");
        std::panic::resume_unwind(Box::new("a bug in the critical section"));
    });
    assert!(task.await.expect_err("it panicked").is_panic());
    nothing_is_left(store, &other, "a task panicked").await?;
    let synchronous = blocking::Lock::from(lock(&one));
    let thread = tokio::task::spawn_blocking(move || {
        let _guard = synchronous.acquire(Some(PATIENCE)).expect("it is free");
        std::panic::resume_unwind(Box::new("a bug in the critical section"));
    });
    assert!(thread.await.expect_err("it panicked").is_panic());
    nothing_is_left(store, &other, "a thread panicked").await?;
    take_turn(&one).await.map(drop)
}
