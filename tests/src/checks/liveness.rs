//! L1–L4, L7: a waiter is served in time, keeps to its timeout, and costs little.

use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use coordination::{Coordinator, ErrorKind, Result};
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::tools::{
    ANSWERED, MOMENT, NAME, PATIENCE, acquire, acquire_in_background, assert_out_of_time, lock,
    take_turn, until_contenders,
};
use super::{TestStore, settings};
use crate::bounds;
use crate::harness::{Mode, SessionThreads};
use crate::must_hold;

/// L1: the next waiter gets the lock when the holder's process was killed.
pub async fn l1_a_killed_holder_is_followed(store: &TestStore) -> Result<()> {
    let coordinator = store.connect("next").await?;
    for round in 0..store.rounds(5, 1) {
        let worker = store.worker(&format!("holder-{round}"));
        worker.call(json!({ "command": "acquire", "lock": NAME }));
        let waiting = acquire_in_background(&coordinator);
        until_contenders(store, &lock(&coordinator), 2).await;
        let killed = Instant::now();
        worker.kill();
        let guard = waiting.await.expect("no panic")?;
        let took = killed.elapsed();
        eprintln!("L1: followed after {took:?}");
        assert!(took <= store.crash_bound(), "followed after {took:?}");
        guard.release().await?;
    }
    Ok(())
}

/// L2: a waiter notices each release, at whatever moment of its wait the release happens.
pub async fn l2_no_wake_up_is_lost(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    for round in 0..store.rounds(300, 60) {
        let held = acquire(&one).await?;
        let waiting = acquire_in_background(&other);
        // Over the rounds, the release comes at each moment while the waiter enters its entry, starts its watch, and
        // reads its entry again.
        sleep(Duration::from_micros(100) * u32::try_from(round % 60).unwrap_or_default()).await;
        let handing_over = async {
            match round % 2 {
                0 => drop(held),
                _ => held.release().await?,
            }
            waiting.await.expect("no panic")
        };
        drop(store.within(bounds::served(), handing_over).await?);
    }
    Ok(())
}

/// L2: tasks on one thread that do nothing but acquire and release the lock get it about equally often.
pub async fn l2_loops_share_alike(store: &TestStore) -> Result<()> {
    const LOOPS: u64 = 10;
    let each = if store.has_server() { 30 } else { 1_000 };
    let (settings, url) = (store.settings().member_id("loops"), store.url().to_owned());
    let looping = tokio::task::spawn_blocking(move || {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        runtime.enable_all().build().expect("a runtime").block_on(async {
            let coordinator = settings.connect(&url).await?;
            let left = Arc::new(AtomicU64::new(LOOPS * each));
            let mut loops = JoinSet::new();
            for _ in 0..LOOPS {
                let (lock, left) = (lock(&coordinator), Arc::clone(&left));
                loops.spawn(async move {
                    let mut grants = 0_u64;
                    while left.fetch_sub(1, Ordering::SeqCst).cast_signed() > 0 {
                        lock.acquire(None).await?.release().await?;
                        grants += 1;
                    }
                    Ok::<_, coordination::Error>(grants)
                });
            }
            let grants: Result<Vec<_>> = loops.join_all().await.into_iter().collect();
            coordinator.stop().await?;
            grants
        })
    });
    let grants = looping.await.expect("no panic")?;
    let (least, most) = (grants.iter().min(), grants.iter().max());
    assert!(most <= least.map(|least| 2 * least).as_ref(), "{grants:?}");
    Ok(())
}

/// L2: two clients that take turns notice each other's release at once, however much a third client writes to the
/// store.
pub async fn l2_turns_are_not_delayed_by_other_writes(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let writer = store.connect("writer").await?;
    let writing = tokio::spawn(async move {
        loop {
            // An error here only ends this task. Other checks exist to find such an error's cause.
            let _ = writer.lock("another")?.try_acquire().await.map(drop);
        }
        #[expect(unreachable_code, reason = "says what it returns")]
        Ok::<(), coordination::Error>(())
    });
    for turn in 0..store.rounds(200, 30) {
        let held = acquire(&one).await?;
        let waiting = acquire_in_background(&other);
        until_contenders(store, &lock(&one), 2).await;
        let released = Instant::now();
        held.release().await?;
        waiting.await.expect("no panic")?.release().await?;
        let took = released.elapsed();
        // Some stores use a few keys in rotation for the entries of a queue. After three more turns, such a store
        // uses the key of this turn again. Nobody is waited for in these, so they show what the store takes at this
        // moment for a call to enter and one to leave.
        let mut slowest = Duration::ZERO;
        for _ in 0..3 {
            let start = Instant::now();
            take_turn(&one).await?;
            slowest = slowest.max(start.elapsed());
        }
        let calls = super::SCHEDULING.max(2 * slowest);
        let bound = bounds::cleared() + calls + store.poll() + store.scheduling();
        assert!(
            took <= bound,
            "turn {turn}: taken after {took:?}, and {slowest:?} where it is free"
        );
    }
    writing.abort();
    Ok(())
}

/// L2: many waiters of many clients wait for one lock, and some of them give up. All others are served.
pub async fn l2_every_waiter_is_served(store: &TestStore) -> Result<()> {
    let mut waiters = JoinSet::new();
    let first = store.connect("first").await?;
    let held = acquire(&first).await?;
    for client in 0..4 {
        let coordinator = store.connect(&format!("client-{client}")).await?;
        for waiter in 0..10_u64 {
            let lock = lock(&coordinator);
            waiters.spawn(async move {
                let patience = if waiter % 3 == 0 { ANSWERED } else { PATIENCE };
                let guard = lock.acquire(Some(patience)).await;
                sleep(Duration::from_millis(waiter % 3)).await;
                guard.map(drop).map_err(|error| (waiter, error))
            });
        }
    }
    sleep(ANSWERED + MOMENT).await;
    held.release().await?;
    let mut served = 0;
    while let Some(outcome) = waiters.join_next().await {
        match outcome.expect("no panic") {
            Ok(()) => served += 1,
            Err((waiter, error)) => {
                assert_eq!(waiter % 3, 0, "{error}");
                assert_out_of_time(&error, ANSWERED);
            }
        }
    }
    assert!(served >= 4 * 6, "{served}");
    until_contenders(store, &lock(&first), 0).await;
    Ok(())
}

/// L3: waiters that gave up delay nobody.
pub async fn l3_cancelled_waiters_do_not_block(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let held = acquire(&one).await?;
    let mut waiting = Vec::new();
    for count in 0..5 {
        waiting.push(acquire_in_background(&other));
        until_contenders(store, &lock(&one), count + 2).await;
    }
    let last = waiting.remove(4);
    waiting.remove(2).abort();
    waiting.remove(0).abort();
    until_contenders(store, &lock(&one), 4).await;
    waiting.iter().for_each(tokio::task::JoinHandle::abort);
    let handing_over = async {
        held.release().await?;
        last.await.expect("no panic")
    };
    store.within(bounds::served(), handing_over).await?.release().await
}

/// L3: several waiters whose processes were killed delay the next waiter only once, all together.
pub async fn l3_killed_waiters_delay_once(store: &TestStore) -> Result<()> {
    let coordinator = store.connect("survivor").await?;
    let held = acquire(&coordinator).await?;
    let dead = [store.worker("dead-0"), store.worker("dead-1")];
    for (count, worker) in dead.iter().chain(&dead).enumerate() {
        let handle = format!("place-{count}");
        worker.send(json!({ "command": "acquire", "lock": NAME, "as": handle }));
        until_contenders(store, &lock(&coordinator), count + 2).await;
    }
    let waiting = acquire_in_background(&coordinator);
    until_contenders(store, &lock(&coordinator), 6).await;
    dead.iter().for_each(crate::harness::Worker::kill);
    let killed = Instant::now();
    held.release().await?;
    let guard = waiting.await.expect("no panic")?;
    let took = killed.elapsed();
    eprintln!("L3: served {took:?} after the killed ones");
    assert!(took <= store.crash_bound(), "served after {took:?}");
    guard.release().await
}

/// L4: a call returns within its timeout while another client holds the lock.
pub async fn l4_timeouts_are_kept(store: &TestStore) -> Result<()> {
    let threads = SessionThreads::begin();
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let held = acquire(&one).await?;
    for limit in [20, 100, 300].map(Duration::from_millis) {
        let (waited, start) = (threads.waited(), Instant::now());
        let refused = lock(&other).acquire(Some(limit)).await.expect_err("it is held");
        let took = start.elapsed();
        let withheld = store.scheduling().max(threads.longest_since(&waited));
        let bound = bounds::returned(limit) + withheld;
        let is_kept = took >= limit && took <= bound;
        assert!(is_kept, "{took:?} instead of {limit:?}, and {withheld:?} were withheld");
        assert_out_of_time(&refused, limit);
        assert!(refused.is_transient());
    }
    let start = Instant::now();
    assert!(lock(&other).try_acquire().await?.is_none());
    let refused = lock(&other).acquire(Some(Duration::ZERO)).await.expect_err("it is held");
    assert_out_of_time(&refused, store.attempt_timeout());
    let bound = 2 * bounds::returned(store.attempt_timeout()) + store.scheduling();
    assert!(start.elapsed() <= bound, "{:?}", start.elapsed());
    held.release().await
}

/// L4: a call returns within its timeout also while the store hangs: at the beginning of the outage, and after the
/// session was lost.
pub async fn l4_timeouts_are_kept_while_the_store_hangs(store: &TestStore) -> Result<()> {
    let coordinator = store.connect("one").await?;
    store.server().node(0).pause();
    for limit in [100, 500, 3_000, 200].map(Duration::from_millis) {
        let start = Instant::now();
        let refused = lock(&coordinator).acquire(Some(limit)).await.expect_err("it hangs");
        let took = start.elapsed();
        let bound = bounds::returned(limit) + store.scheduling();
        assert!(took >= limit && took <= bound, "{took:?} instead of {limit:?}");
        assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
        let start = Instant::now();
        let refused = lock(&coordinator).try_acquire().await.expect_err("it hangs");
        let took = start.elapsed();
        let bound = bounds::returned(store.attempt_timeout()) + store.scheduling();
        assert!(took <= bound, "{took:?}");
        assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
        for asked in [
            lock(&coordinator).holders().await.map(drop),
            lock(&coordinator).break_lock().await.map(drop),
        ] {
            assert_eq!(asked.expect_err("it hangs").kind(), ErrorKind::Unavailable);
        }
    }
    store.server().node(0).resume();
    store.within(bounds::recovered(store.ttl()), take_turn(&coordinator)).await?;
    until_contenders(store, &lock(&coordinator), 0).await;
    Ok(())
}

/// L4: a waiter returns within its timeout also if the store's replies to it are held back.
pub async fn l4_a_waiter_cut_off_returns_in_time(store: &TestStore) -> Result<()> {
    let threads = SessionThreads::begin();
    let (one, other) = (store.connect("one").await?, store.connect_by_proxy("other").await?);
    let _held = acquire(&one).await?;
    let limit = Duration::from_millis(600);
    let (waited, start) = (threads.waited(), Instant::now());
    let lock = lock(&other);
    let waiting = tokio::spawn(async move { lock.acquire(Some(limit)).await });
    sleep(3 * MOMENT).await;
    store.proxy().set_both(Mode::Blackhole);
    let refused = waiting.await.expect("no panic").expect_err("it is held");
    let took = start.elapsed();
    let withheld = store.scheduling().max(threads.longest_since(&waited));
    let bound = bounds::returned(limit) + withheld;
    assert!(took <= bound, "{took:?} instead of {limit:?}, and {withheld:?} were withheld");
    assert!(matches!(refused.kind(), ErrorKind::Timeout | ErrorKind::Unavailable), "{refused}");
    Ok(())
}

/// L7: a thousand waiters of one process cost a thousand entries and almost nothing else. They are served in the order
/// in which they entered.
pub async fn l7_a_thousand_waiters(store: &TestStore) -> Result<()> {
    // With this setting a right changes each second, and each change breaks all watches. This machine cannot restart a
    // thousand watches within a second.
    let crowd = if store.setting() == settings::ETCD_JWT { 200 } else { 1_000 };
    // This check uses the default lease instead of the tests' short one: the check is about cost, and a busy machine
    // may be slow.
    let url = if store.has_server() { store.url_by_proxy() } else { store.url().to_owned() };
    let coordinator = Coordinator::connect(&url).await?;
    let held = acquire(&coordinator).await?;
    let before = (count("task"), count("fd"));
    let mut waiters = JoinSet::new();
    let tokens = Arc::new(Mutex::new(Vec::new()));
    let start = Instant::now();
    for _ in 0..crowd {
        let (lock, tokens) = (lock(&coordinator), Arc::clone(&tokens));
        waiters.spawn(async move {
            let guard = lock.acquire(Some(3 * PATIENCE)).await?;
            tokens.lock().expect("nobody panicked").push(guard.token());
            guard.release().await
        });
    }
    until_contenders(store, &lock(&coordinator), 1 + crowd).await;
    let after = (count("task"), count("fd"));
    eprintln!("L7: entered within {:?}", start.elapsed());
    // Other tests of this process have tasks and descriptors too.
    assert!(after.0 < before.0 + 100 && after.1 < before.1 + 100, "{before:?} → {after:?}");
    if store.has_server() {
        let connections = store.proxy().open_connections();
        assert!(connections <= store.server().most_connections(), "{connections} connections");
    }
    let start = Instant::now();
    held.release().await?;
    while let Some(outcome) = waiters.join_next().await {
        outcome.expect("no panic")?;
    }
    eprintln!("L7: served within {:?}", start.elapsed());
    let tokens = tokens.lock().expect("nobody panicked");
    // All waiters had entered before the first was served, and an entry's number is its token.
    must_hold!(tokens.len() == crowd && tokens.is_sorted(), "{tokens:?}");
    Ok(())
}

/// L7: waiters of several clients are served in the order in which they entered.
pub async fn l7_first_come_first_served(store: &TestStore) -> Result<()> {
    let clients = [store.connect("one").await?, store.connect("other").await?];
    let held = acquire(&clients[0]).await?;
    let (served, mut order) = tokio::sync::mpsc::unbounded_channel();
    let mut waiting = Vec::new();
    for place in 0..10 {
        let (lock, served) = (lock(&clients[place % 2]), served.clone());
        waiting.push(tokio::spawn(async move {
            let guard = lock.acquire(Some(PATIENCE)).await?;
            let _ = served.send(place);
            guard.release().await
        }));
        until_contenders(store, &lock_of(&clients), place + 2).await;
    }
    held.release().await?;
    for waiter in waiting {
        waiter.await.expect("no panic")?;
    }
    drop(served);
    let mut seen = Vec::new();
    while let Some(place) = order.recv().await {
        seen.push(place);
    }
    assert!(seen.is_sorted() && seen.len() == 10, "{seen:?}");
    Ok(())
}

fn lock_of(clients: &[Coordinator; 2]) -> coordination::Lock {
    lock(&clients[0])
}

/// How many threads (`task`) or file descriptors (`fd`) this process has.
fn count(what: &str) -> usize {
    fs::read_dir(format!("/proc/self/{what}")).expect("Linux").count()
}

/// L1: on stores without leases, a holder's process that is paused keeps the lock: the kernel keeps the locks of a
/// paused process.
pub async fn l1_a_paused_holder_keeps_a_lock_without_lease(store: &TestStore) -> Result<()> {
    let coordinator = store.connect("next").await?;
    let worker = store.worker("sleeper");
    worker.call(json!({ "command": "acquire", "lock": NAME }));
    worker.pause();
    sleep(3 * store.heartbeat()).await;
    assert!(lock(&coordinator).try_acquire().await?.is_none());
    worker.resume();
    assert_eq!(worker.call(json!({ "command": "is_held", "handle": NAME }))["held"], true);
    worker.call(json!({ "command": "release", "handle": NAME }));
    store.within(bounds::served(), take_turn(&coordinator)).await.map(drop)
}
