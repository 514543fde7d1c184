//! R1–R5: a lost connection does not lose the session, and a new session takes over nothing from the old one.

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

/// R1: while connections break again and again, the session, its lease and its locks stay.
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

/// R1: after one short interruption, `Suspended` is reported at most once.
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

/// R2: a waiter notices a release that happens while its watch is broken, however the watch broke.
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

/// R2: a waiter notices a release that happens after its watch was re-established.
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

/// R2: the store's history is compacted while a waiter waits, connected or cut off.
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
            // The pause is long enough for the waiter to re-check. Its next watch then begins at a revision that is
            // compacted.
            sleep(store.ttl().expect("the check is for leases") + SCHEDULING).await;
            store.server().forget_history();
        }
        held.release().await?;
        if away {
            for _ in 0..3 {
                // Other clients enter behind the waiter and leave.
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

/// R2: a holder notices that its entry was deleted while its watch was broken.
pub async fn r2_a_missed_deletion_is_noticed(store: &TestStore) -> Result<()> {
    let one = store.connect_by_proxy("one").await?;
    let guard = acquire(&one).await?;
    sleep(2 * MOMENT).await;
    let keys = store.contenders(&lock(&one)).await;
    store.proxy().set_both(Mode::Stall);
    assert!(store.server().delete_entry(&keys[0]));
    store.proxy().reset_all();
    store.proxy().heal();
    // The bound of L2, which is for waiters, also holds for a holder that notices the deletion.
    let told = store.within(bounds::served(), guard.lost()).await;
    assert_eq!(told, LossReason::EntryDeleted);
    Ok(())
}

/// R3: a waiter whose session ended queues again with its next session; its old entry is not used.
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

/// R4: while the server is away, clients do not flood it with connections, however many waiters there are.
pub async fn r4_reconnects_back_off(store: &TestStore) -> Result<()> {
    let one = store.connect_by_proxy("one").await?;
    let (_held, waiting) = loop {
        let held = acquire(&one).await?;
        let waiting: Vec<_> = (0..100).map(|_| acquire_in_background(&one)).collect();
        let looked_at = lock(&one);
        tokio::select! {
            () = until_contenders(store, &looked_at, 101) => break (held, waiting),
            // A busy machine may let the session end, and then there never are so many.
            _ = held.lost() => waiting.iter().for_each(tokio::task::JoinHandle::abort),
        }
    };
    store.server().node(0).kill();
    // Only a few tasks connect, each with at least 0.1 s between attempts; waiters do not connect. The first count is
    // taken while the session can still be saved, the second after the session was lost.
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

/// R5: after a loss the client opens a new session by itself, and nothing is carried over.
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
