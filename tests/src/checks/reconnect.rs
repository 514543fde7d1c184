//! R1–R5: a connection is not a session, and a new session is not the old one.

use std::sync::Arc;
use std::time::{Duration, Instant};

use coordination::{LossReason, Result, State};
use tokio::time::sleep;

use super::tools::{
    MOMENT, NAME, PATIENCE, Probe, acquire, acquire_in_background, lock, take_turn,
    until_contenders, until_state,
};
use super::{SCHEDULING, TestStore};
use crate::bounds;
use crate::harness::{Direction, Mode};
use crate::must_hold;

/// R1: connections break again and again; the session, its lease and its locks stay.
pub async fn r1_a_reset_keeps_the_session(store: &TestStore) -> Result<()> {
    let one = store.connect_by_proxy("one").await?;
    let guard = Arc::new(acquire(&one).await?);
    let keys = store.contenders(&lock(&one)).await;
    let (probe, mut state) = (Probe::start(&guard), one.state());
    let ttl = store.ttl().expect("the check is for leases");
    let start = Instant::now();
    let mut resets = 0;
    while start.elapsed() < 2 * ttl {
        match resets % 2 {
            0 => store.proxy().reset_all(),
            _ => store.proxy().close_all(),
        }
        resets += 1;
        sleep(store.heartbeat() * 2).await;
    }
    assert!(probe.is_held() && guard.is_held());
    assert_eq!(store.contenders(&lock(&one)).await, keys, "the same lease");
    assert!(guard.remaining().is_some_and(|left| left > ttl / 4), "{:?}", guard.remaining());
    until_state(&mut state, |state| state == State::Connected).await;
    one.stop().await?;
    while let Some(state) = state.changed().await {
        assert!(!matches!(state, State::Lost(_)), "{state:?}");
    }
    Ok(())
}

/// R1: one short interruption is at most one `Suspended`.
pub async fn r1_one_reset_suspends_at_most_once(store: &TestStore) -> Result<()> {
    let one = store.connect_by_proxy("one").await?;
    let mut state = one.state();
    sleep(2 * store.heartbeat()).await;
    store.proxy().reset_all();
    sleep(store.ttl().expect("the check is for leases")).await;
    one.stop().await?;
    let mut suspended = 0;
    while let Some(state) = state.changed().await {
        assert!(!matches!(state, State::Lost(_)), "{state:?}");
        suspended += usize::from(state == State::Suspended);
    }
    assert!(suspended <= 1, "{suspended} times");
    Ok(())
}

/// R2: what a waiter waits for happens while its watch is broken, in whatever way that shows.
pub async fn r2_watches_stand_again(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect_by_proxy("other").await?);
    let breaks: [fn(&TestStore); 4] = [
        |store| store.proxy().reset_all(),
        |store| store.proxy().close_all(),
        |store| store.proxy().set(Direction::ToClient, Mode::Stall),
        |store| store.proxy().set(Direction::ToClient, Mode::Blackhole),
    ];
    for (case, broken) in breaks.iter().enumerate() {
        let held = acquire(&one).await?;
        let waiting = acquire_in_background(&other);
        until_contenders(store, &lock(&one), 2).await;
        sleep(MOMENT).await;
        broken(store);
        held.release().await?;
        sleep(2 * MOMENT).await;
        store.proxy().heal();
        let healed = Instant::now();
        let guard = store.within(bounds::served(), waiting).await.expect("no panic")?;
        eprintln!("R2: case {case}: woken {:?} after healing", healed.elapsed());
        guard.release().await?;
    }
    Ok(())
}

/// R2: the watch is re-established before the release.
pub async fn r2_a_later_release_is_seen(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect_by_proxy("other").await?);
    let held = acquire(&one).await?;
    let waiting = acquire_in_background(&other);
    until_contenders(store, &lock(&one), 2).await;
    for _ in 0..3 {
        store.proxy().reset_all();
        sleep(store.heartbeat()).await;
    }
    assert!(!waiting.is_finished());
    held.release().await?;
    store.within(bounds::served(), waiting).await.expect("no panic")?.release().await
}

/// R2: history is compacted while a waiter waits, and while it is away.
pub async fn r2_compaction_is_survived(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect_by_proxy("other").await?);
    for away in [false, true] {
        let held = acquire(&one).await?;
        let waiting = acquire_in_background(&other);
        until_contenders(store, &lock(&one), 2).await;
        store.server().forget_history();
        if away {
            store.proxy().set_both(Mode::Stall);
        } else {
            // Past a re-check, which looks back to a revision that is gone.
            sleep(store.ttl().expect("the check is for leases") + SCHEDULING).await;
            store.server().forget_history();
        }
        held.release().await?;
        if away {
            for _ in 0..3 {
                // Others come and go behind it.
                drop(lock(&one).acquire(Some(MOMENT)).await);
            }
            store.server().forget_history();
            store.proxy().reset_all();
            store.proxy().heal();
        }
        let guard = store.within(bounds::served(), waiting).await.expect("no panic")?;
        assert!(guard.is_held());
        guard.release().await?;
        until_contenders(store, &lock(&one), 0).await;
    }
    Ok(())
}

/// R2: the own entry is deleted while its watch is broken.
pub async fn r2_a_missed_deletion_is_noticed(store: &TestStore) -> Result<()> {
    let one = store.connect_by_proxy("one").await?;
    let guard = acquire(&one).await?;
    sleep(2 * MOMENT).await;
    let keys = store.contenders(&lock(&one)).await;
    store.proxy().set_both(Mode::Stall);
    assert!(store.server().delete_entry(&keys[0]));
    store.proxy().reset_all();
    store.proxy().heal();
    // What is missed is made up for as soon as for a waiter.
    let told = store.within(bounds::served(), guard.lost()).await;
    assert_eq!(told, LossReason::EntryDeleted);
    Ok(())
}

/// R3: a waiter whose session ended queues again as somebody new; nothing of the old session counts.
pub async fn r3_no_entry_outlives_its_session(store: &TestStore) -> Result<()> {
    let (holder, waiter) = (store.connect("holder").await?, store.connect("waiter").await?);
    let held = acquire(&holder).await?;
    let waiting = acquire_in_background(&waiter);
    until_contenders(store, &lock(&holder), 2).await;
    let old = lock(&holder).holders().await?[1].token;
    let mut state = waiter.state();
    let session_of = |token| store.server().session_of(&store.entry("lock", token));
    let old_session = store.has_server().then(|| session_of(old));
    store.end_session("waiter");
    until_state(&mut state, |state| matches!(state, State::Lost(_))).await;
    until_state(&mut state, |state| state == State::Connected).await;
    held.release().await?;
    let guard = waiting.await.expect("no panic")?;
    must_hold!(guard.token() > old, "an entry of the old session was taken over");
    assert_eq!(store.contenders(&lock(&holder)).await.len(), 1);
    if let Some(old_session) = old_session {
        assert!(old_session.is_some());
        assert_ne!(session_of(guard.token()), old_session);
    }
    assert!(guard.is_held());
    guard.release().await
}

/// R4: while the server is away it is not stormed, whoever waits.
pub async fn r4_reconnects_back_off(store: &TestStore) -> Result<()> {
    let one = store.connect_by_proxy("one").await?;
    let _held = acquire(&one).await?;
    let waiting: Vec<_> = (0..100).map(|_| acquire_in_background(&one)).collect();
    until_contenders(store, &lock(&one), 101).await;
    store.server().node(0).kill();
    // 0.1 s and more lie between the tries of each of a few tasks; waiters are no such tasks. While the
    // session can still be saved, and when it has been lost.
    for (millis, limit) in [(1_500, 30), (4_500, 60)] {
        let before = store.proxy().connections();
        sleep(Duration::from_millis(millis)).await;
        let attempts = store.proxy().connections() - before;
        eprintln!("R4: {attempts} connections in {millis} ms");
        assert!((1..=limit).contains(&attempts), "{attempts} connections in {millis} ms");
    }
    waiting.iter().for_each(tokio::task::JoinHandle::abort);
    Ok(())
}

/// R5: after a loss there is a next session by itself, and nothing is carried over.
pub async fn r5_a_new_session_after_a_loss(store: &TestStore) -> Result<()> {
    let one = match store.has_server() {
        true => store.connect_by_proxy("one").await?,
        false => store.connect("one").await?,
    };
    let old = acquire(&one).await?;
    let also_old = one.lock("another")?.acquire(Some(PATIENCE)).await?;
    let before = store.contenders(&lock(&one)).await;
    let mut state = one.state();
    match store.has_server() {
        true => store.proxy().set_both(Mode::Blackhole),
        false => store.end_session("one"),
    }
    until_state(&mut state, |state| matches!(state, State::Lost(_))).await;
    if store.has_server() {
        store.proxy().heal();
    }
    until_state(&mut state, |state| state == State::Connected).await;
    let new = acquire(&one).await?;
    assert!(new.is_held());
    must_hold!(new.token() > old.token());
    must_hold!(!old.is_held() && !also_old.is_held());
    assert!(one.lock("another")?.try_acquire().await?.is_some(), "nothing is carried over");
    let after = store.contenders(&lock(&one)).await;
    assert!(after.iter().all(|entry| !before.contains(entry)), "{before:?} → {after:?}");
    drop(old);
    drop(also_old);
    sleep(2 * store.heartbeat()).await;
    assert!(new.is_held());
    assert_eq!(new.name(), NAME);
    new.release().await?;
    take_turn(&one).await.map(drop)
}
