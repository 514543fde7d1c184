//! ML1: several locks at once: all or none, under one timeout, and never in a deadlock.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use coordination::{
    BootInstant, Coordinator, Effect, ErrorKind, LossReason, MultiGuard, MultiLock, Result,
};
use serde_json::json;
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{sleep, timeout};

use super::TestStore;
use super::interruption::{Pair, at_every_poll};
use super::tools::{ANSWERED, MOMENT, PATIENCE, Probe, Room, assert_out_of_time};
use crate::bounds;
use crate::harness::{Mode, eventually_async};
use crate::must_hold;

fn locks(coordinator: &Coordinator, names: &[&str]) -> MultiLock {
    coordinator.locks(names).expect("valid names")
}

fn acquire_in_background(
    coordinator: &Coordinator,
    names: &[&str],
) -> JoinHandle<Result<MultiGuard>> {
    let locks = locks(coordinator, names);
    tokio::spawn(async move { locks.acquire(Some(PATIENCE)).await })
}

/// Waits until this many clients hold the lock of this name or wait for it.
async fn until(coordinator: &Coordinator, name: &str, count: usize) {
    let lock = coordinator.lock(name).expect("a valid name");
    let come = async || lock.holders().await.is_ok_and(|holders| holders.len() == count);
    eventually_async(PATIENCE, come).await;
}

async fn all_are_free(coordinator: &Coordinator, names: &[&str]) -> Result<()> {
    for name in names {
        until(coordinator, name, 0).await;
    }
    locks(coordinator, names).acquire(Some(PATIENCE)).await?.release().await
}

/// ML1: names are sorted byte by byte, and duplicates are removed; a list that is empty or has an invalid name is
/// refused.
pub async fn ml1_names_are_sorted_and_taken_once(store: &TestStore) -> Result<()> {
    let settings = store.settings().member_id("one").prefix("p-");
    let one = settings.connect(store.url()).await?;
    let locks = one.locks(["b", "a", "B", "é", "b", "aa"])?;
    let sorted = ["p-B", "p-a", "p-aa", "p-b", "p-é"];
    assert!(locks.names().eq(sorted), "{locks:?}");
    let guard =
        timeout(PATIENCE, locks.acquire(None)).await.expect("it does not wait for itself")?;
    assert!(guard.guards().iter().map(|guard| guard.name()).eq(sorted));
    assert!(guard.is_held());
    guard.release().await?;
    for names in [vec![], vec!["a", ""]] {
        let refused = one.locks(&names).expect_err("no name, or an empty one");
        assert_eq!((refused.kind(), refused.effect()), (ErrorKind::Name, Effect::None));
    }
    Ok(())
}

/// ML1: callers that name overlapping sets of locks, in any order, do not deadlock.
///
/// Tooz: corresponds to the test `test_get_multiple_locks_with_same_coord` of the Python library Tooz.
pub async fn ml1_opposite_orders_do_not_deadlock(store: &TestStore) -> Result<()> {
    const ORDERS: [&[&str]; 8] = [
        &["a", "b", "c"],
        &["c", "b", "a"],
        &["b", "a"],
        &["a", "b"],
        &["c", "a"],
        &["b", "c"],
        &["c"],
        &["b", "c", "a", "b"],
    ];
    let rooms: Arc<BTreeMap<&str, Room>> =
        Arc::new(["a", "b", "c"].map(|name| (name, Room::default())).into());
    let mut tasks = JoinSet::new();
    let rounds = store.rounds(40, 4);
    for client in 0..3 {
        let coordinator = store.connect(&format!("client-{client}")).await?;
        for names in ORDERS {
            let (locks, rooms) = (locks(&coordinator, names), Arc::clone(&rooms));
            tasks.spawn(async move {
                for round in 0..rounds {
                    let guard = locks.acquire(Some(2 * PATIENCE)).await?;
                    let inside: Vec<_> = names
                        .iter()
                        .collect::<std::collections::BTreeSet<_>>()
                        .into_iter()
                        .map(|name| rooms[*name].enter())
                        .collect();
                    assert!(guard.is_held());
                    tokio::task::yield_now().await;
                    drop(inside);
                    match round % 2 {
                        0 => guard.release().await?,
                        _ => drop(guard),
                    }
                }
                Ok::<_, coordination::Error>(())
            });
        }
    }
    while let Some(outcome) = tasks.join_next().await {
        outcome.expect("nobody else is in the room")?;
    }
    Ok(())
}

/// ML1: callers that want the same locks get them in the order in which they asked.
pub async fn ml1_the_same_locks_in_the_order_of_asking(store: &TestStore) -> Result<()> {
    let clients = [store.connect("one").await?, store.connect("other").await?];
    let held = locks(&clients[0], &["a", "b"]).acquire(Some(PATIENCE)).await?;
    let (served, mut order) = mpsc::unbounded_channel();
    let mut waiting = JoinSet::new();
    for place in 0..8 {
        let names: &[&str] = if place % 2 == 0 { &["a", "b"] } else { &["b", "a"] };
        let (locks, served) = (locks(&clients[place / 2 % 2], names), served.clone());
        waiting.spawn(async move {
            let guard = locks.acquire(Some(PATIENCE)).await?;
            let _ = served.send(place);
            guard.release().await
        });
        // All callers wait for `a`, the first lock in the order of names, and so none of them holds a lock yet.
        until(&clients[0], "a", place + 2).await;
    }
    until(&clients[0], "b", 1).await;
    held.release().await?;
    while let Some(outcome) = waiting.join_next().await {
        outcome.expect("no panic")?;
    }
    drop(served);
    let mut seen = Vec::new();
    while let Some(place) = order.recv().await {
        seen.push(place);
    }
    assert!(seen.is_sorted() && seen.len() == 8, "{seen:?}");
    Ok(())
}

/// ML1: if one of the locks is not free, the call keeps no lock: it releases those that it has already acquired.
pub async fn ml1_all_or_nothing(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    for taken in ["a", "b", "c"] {
        let held = other.lock(taken)?.acquire(Some(PATIENCE)).await?;
        let wanted = locks(&one, &["c", "a", "b"]);
        // Locks that were acquired are released in the background, so this waits.
        let nothing_is_kept = async || {
            for name in ["a", "b", "c"] {
                until(&one, name, usize::from(name == taken)).await;
            }
        };
        assert!(wanted.try_acquire().await?.is_none());
        nothing_is_kept().await;
        assert!(wanted.try_acquire_shared().await?.is_none());
        nothing_is_kept().await;
        for timeout in [Duration::ZERO, ANSWERED] {
            let refused = wanted.acquire(Some(timeout)).await.expect_err("one is taken");
            assert_out_of_time(&refused, timeout.max(store.attempt_timeout()));
            assert_eq!(refused.key(), Some(taken));
            // If the store did not answer in time, it may have an entry of this call, which the library then removes.
            let is_known = refused.kind() == ErrorKind::Timeout;
            assert!(refused.effect() == Effect::None || !is_known, "{refused}");
            nothing_is_kept().await;
        }
        held.release().await?;
        let all = wanted.try_acquire().await?.expect("all are free");
        assert!(other.lock(taken)?.try_acquire().await?.is_none());
        all.release().await?;
        all_are_free(&other, &["a", "b", "c"]).await?;
    }
    Ok(())
}

/// ML1, L4: the timeout is for all locks together.
pub async fn ml1_one_deadline(store: &TestStore) -> Result<()> {
    const LIMIT: Duration = Duration::from_millis(600);
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let first = other.lock("a")?.acquire(Some(PATIENCE)).await?;
    let second = other.lock("b")?.acquire(Some(PATIENCE)).await?;
    let wanted = locks(&one, &["a", "b"]);
    let start = Instant::now();
    let waiting = tokio::spawn(async move { wanted.acquire(Some(LIMIT)).await });
    sleep(LIMIT / 2).await;
    first.release().await?;
    let refused = waiting.await.expect("no panic").expect_err("the second is taken");
    let took = start.elapsed();
    assert!(took >= LIMIT && took <= bounds::returned(LIMIT) + store.scheduling(), "{took:?}");
    assert_out_of_time(&refused, LIMIT / 2);
    assert_eq!(refused.key(), Some("b"));
    second.release().await?;
    all_are_free(&other, &["a", "b"]).await
}

/// ML1: if the first lock takes almost all of the time, so that the store cannot answer about the second one, the error
/// is `Timeout` and not one of the store.
pub async fn ml1_late_behind_the_first(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let second = other.lock("b")?.acquire(Some(PATIENCE)).await?;
    let mut refusals = 0;
    for round in 0..store.rounds(60, 30) {
        let first = other.lock("a")?.acquire(Some(PATIENCE)).await?;
        let wanted = locks(&one, &["a", "b"]);
        let waiting = tokio::spawn(async move { wanted.acquire(Some(ANSWERED)).await });
        // In the first round the first lock is released 14 ms before the timeout. In each further round, it is released
        // half a millisecond later. After 28 rounds, these moments begin again.
        let before_end =
            Duration::from_micros(500) * (28 - u32::try_from(round % 28).expect("few"));
        sleep(ANSWERED - before_end).await;
        first.release().await?;
        let refused = waiting.await.expect("no panic").expect_err("the second is taken");
        assert_out_of_time(&refused, ANSWERED);
        refusals += u32::from(refused.kind() == ErrorKind::Timeout);
        until(&other, "a", 0).await;
    }
    assert!(refusals > 0, "none was judged");
    second.release().await?;
    all_are_free(&other, &["a", "b"]).await
}

/// ML1, C1: a call that is dropped at any poll leaves no entry for any of the locks.
pub async fn ml1_dropped_it_leaves_nothing(store: &TestStore) -> Result<()> {
    at_every_poll(store, "several locks", store.rounds(1, 2), interrupted_acquire).await?;
    at_every_poll(store, "several locks, the last held", 2, interrupted_wait).await
}

/// ML1, C5: a release that is dropped at any poll goes on and releases all locks.
pub async fn ml1_a_dropped_release_goes_on(store: &TestStore) -> Result<()> {
    at_every_poll(store, "several locks, released", store.rounds(1, 2), interrupted_release).await
}

/// Case: a client acquires several free locks.
pub async fn interrupted_acquire(pair: &Pair<'_>) -> Result<()> {
    let wanted = locks(&pair.one, &["a", "b", "c"]);
    drop(pair.interrupt(wanted.acquire(pair.patience())).await?);
    nothing_is_left(pair).await
}

/// Case: a client acquires several locks, and waits for the last one, which is released meanwhile.
pub async fn interrupted_wait(pair: &Pair<'_>) -> Result<()> {
    let releasing = pair.drop_later(pair.other.lock("c")?.acquire(Some(PATIENCE)).await?);
    let wanted = locks(&pair.one, &["a", "b", "c"]);
    drop(pair.interrupt(wanted.acquire(pair.patience())).await?);
    releasing.await.expect("no panic");
    nothing_is_left(pair).await
}

/// Case: a client releases several locks.
pub async fn interrupted_release(pair: &Pair<'_>) -> Result<()> {
    let guard = locks(&pair.one, &["a", "b", "c"]).acquire(Some(PATIENCE)).await?;
    pair.interrupt(guard.release()).await?;
    nothing_is_left(pair).await
}

/// Asserts that another client gets all locks soon, and that after its release no entry is left for any of them.
async fn nothing_is_left(pair: &Pair<'_>) -> Result<()> {
    let start = Instant::now();
    let names = ["a", "b", "c"];
    locks(&pair.other, &names).acquire(Some(PATIENCE)).await?.release().await?;
    for name in names {
        until(&pair.other, name, 0).await;
    }
    let took = start.elapsed();
    assert!(took <= 10 * bounds::cleared() + pair.store.scheduling(), "{pair:?}: {took:?}");
    Ok(())
}

/// ML1: if one of the locks is broken, the guard reports it; the other locks stay held until they are released.
pub async fn ml1_one_that_is_lost_is_told(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let guard = locks(&one, &["a", "b", "c"]).acquire(Some(PATIENCE)).await?;
    // The library begins to watch a holder's entry a little after the grant. This waits until then.
    sleep(2 * MOMENT).await;
    other.lock("b")?.break_lock().await?;
    let broken = Instant::now();
    let body = guard.protect(std::future::pending::<()>());
    let refused = timeout(PATIENCE, body).await.expect("it is told").expect_err("one was broken");
    let took = broken.elapsed();
    assert!(took <= store.notice_bound(), "{took:?}");
    assert_eq!((refused.kind(), refused.key()), (ErrorKind::Lost, Some("b")));
    assert_eq!((refused.effect(), refused.body_ran()), (Effect::Unknown, true));
    assert_eq!(guard.lost().await, LossReason::EntryDeleted);
    must_hold!(!guard.is_held());
    assert!(guard.guards()[0].is_held() && guard.guards()[2].is_held());
    assert!(other.lock("a")?.try_acquire().await?.is_none());
    let refused = guard.release().await.expect_err("one was lost");
    assert_eq!((refused.kind(), refused.key()), (ErrorKind::Lost, Some("b")));
    all_are_free(&other, &["a", "b", "c"]).await
}

/// ML1: if a lock is lost while the call waits for the next one, the call fails, and no lock is kept.
pub async fn ml1_lost_while_waiting_for_the_next(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let held = other.lock("b")?.acquire(Some(PATIENCE)).await?;
    let waiting = acquire_in_background(&one, &["a", "b"]);
    until(&other, "b", 2).await;
    // The library begins to watch a holder's entry a little after the grant. This waits until then.
    sleep(2 * MOMENT).await;
    other.lock("a")?.break_lock().await?;
    let refused = timeout(PATIENCE, waiting).await.expect("it is told").expect("no panic");
    let refused = refused.expect_err("the first was broken");
    assert_eq!((refused.kind(), refused.key()), (ErrorKind::Lost, Some("a")));
    assert_eq!(refused.effect(), Effect::None, "nothing ran");
    until(&other, "b", 1).await;
    held.release().await?;
    all_are_free(&one, &["a", "b"]).await
}

/// ML1: the end of the session loses all locks, and removes the entries that wait.
pub async fn ml1_the_end_of_the_session_takes_all(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let guard = locks(&one, &["a", "b"]).acquire(Some(PATIENCE)).await?;
    let waiting = acquire_in_background(&one, &["b", "c"]);
    until(&other, "b", 2).await;
    one.stop().await?;
    assert_eq!(guard.lost().await, LossReason::Closed);
    must_hold!(!guard.is_held());
    let refused = waiting.await.expect("no panic").expect_err("it is closed");
    assert_eq!(refused.kind(), ErrorKind::Closed);
    let refused = guard.release().await.expect_err("it was lost");
    assert_eq!(refused.kind(), ErrorKind::Closed);
    all_are_free(&other, &["a", "b", "c"]).await
}

/// ML1: a client that holds several locks in shared mode keeps writers out of each of these locks, but no readers.
pub async fn ml1_shares_of_several(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let first = locks(&one, &["a", "b"]).acquire_shared(Some(PATIENCE)).await?;
    let second = locks(&other, &["b", "a"]).try_acquire_shared().await?.expect("readers share");
    assert!(first.guards().iter().chain(second.guards()).all(|guard| guard.is_shared()));
    assert!(locks(&other, &["b", "c"]).try_acquire().await?.is_none());
    assert!(other.lock("a")?.try_acquire().await?.is_none());
    first.release().await?;
    assert!(second.is_held());
    second.release().await?;
    all_are_free(&other, &["a", "b", "c"]).await
}

/// ML1, TR1: with `release_after` all locks are released together, when the time has passed since the last grant.
pub async fn ml1_all_let_go_by_themselves(store: &TestStore) -> Result<()> {
    const HELD_FOR: Duration = Duration::from_millis(300);
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let before = Instant::now();
    let timed = locks(&one, &["a", "b"]).acquire(Some(PATIENCE)).await?.release_after(HELD_FOR);
    assert!(timed.iter().map(|timed| timed.name()).eq(["a", "b"]));
    drop(timed);
    locks(&other, &["a"]).acquire(Some(PATIENCE)).await?.release().await?;
    assert!(before.elapsed() >= HELD_FOR, "{:?}", before.elapsed());
    all_are_free(&other, &["a", "b"]).await
}

/// ML1, L1: when a process is killed that holds all locks, or holds one and waits for the next, other clients get the
/// locks in time.
pub async fn ml1_a_killed_process_is_followed(store: &TestStore) -> Result<()> {
    let coordinator = store.connect("survivor").await?;
    for waits in [false, true] {
        let held = match waits {
            true => Some(coordinator.lock("b")?.acquire(Some(PATIENCE)).await?),
            false => None,
        };
        let worker = store.worker(&format!("dying-{waits}"));
        worker.send(json!({ "command": "acquire_all", "locks": ["c", "b", "a"] }));
        until(&coordinator, "a", 1).await;
        until(&coordinator, "b", if waits { 2 } else { 1 }).await;
        until(&coordinator, "c", if waits { 0 } else { 1 }).await;
        let waiting = acquire_in_background(&coordinator, &["a", "c"]);
        until(&coordinator, "a", 2).await;
        let killed = Instant::now();
        worker.kill();
        let guard = waiting.await.expect("no panic")?;
        let took = killed.elapsed();
        eprintln!("ML1: followed after {took:?}");
        assert!(took <= store.crash_bound(), "{took:?}");
        guard.release().await?;
        drop(held);
        all_are_free(&coordinator, &["a", "b", "c"]).await?;
    }
    Ok(())
}

/// ML1, S3: a holder that is cut off knows that it has lost all locks before another client gets one of them.
pub async fn ml1_cut_off_all_are_lost_before_another_is_granted(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect_by_proxy("one").await?, store.connect("other").await?);
    let guard = Arc::new(locks(&one, &["a", "b"]).acquire(Some(PATIENCE)).await?);
    let waiting = acquire_in_background(&other, &["b", "c"]);
    until(&other, "b", 2).await;
    let probe = Probe::over({
        let guard = Arc::clone(&guard);
        move || guard.is_held()
    });
    store.proxy().set_both(Mode::Blackhole);
    let cut = Instant::now();
    let next = waiting.await.expect("no panic")?;
    let granted = BootInstant::now();
    must_hold!(!guard.is_held());
    must_hold!(probe.last_held().await < granted);
    assert!(cut.elapsed() <= store.crash_bound(), "{:?}", cut.elapsed());
    assert!(next.is_held());
    store.proxy().heal();
    next.release().await?;
    // The client works again, with its next session.
    store.within(bounds::recovered(store.ttl()), all_are_free(&one, &["a", "b", "c"])).await
}
