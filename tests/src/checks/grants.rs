//! S5–S9: a guard affects only its own grant, a grant has exactly one entry, and different names are different locks.

use std::fs;
use std::time::Duration;

use coordination::{Coordinator, Effect, ErrorKind, Lock, LockGuard, LossReason, Result};
use tokio::time::{sleep, timeout};

use super::TestStore;
use super::interruption::least_cuts;
use super::tools::{
    ANSWERED, MOMENT, NAME, PATIENCE, acquire, acquire_in_background, assert_out_of_time, lock,
    until_contenders,
};
use crate::faults::identity::odd_names;
use crate::harness::{Direction, Unit, eventually_async};
use crate::must_hold;

/// S5: nothing that is done with the guard of an ended grant affects a later grant.
///
/// Tooz: corresponds to the test `test_get_lock_release_broken` of the Python library Tooz.
pub async fn s5_an_old_guard_frees_nothing(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    for (told, of_same_session) in [(true, true), (true, false), (false, true), (false, false)] {
        let old = [acquire(&one).await?, {
            lock(&other).break_lock().await?;
            acquire(&one).await?
        }];
        lock(&other).break_lock().await?;
        let new = acquire(if of_same_session { &one } else { &other }).await?;
        if told {
            assert_eq!(old[0].lost().await, LossReason::EntryDeleted);
            assert_eq!(old[1].lost().await, LossReason::EntryDeleted);
        }
        let [dropped, released] = old;
        drop(dropped);
        let outcome = released.release().await;
        assert!(!told || outcome.is_err_and(|error| error.kind() == ErrorKind::Lost));
        sleep(2 * store.heartbeat()).await;
        assert!(new.is_held());
        let holders = lock(&other).holders().await?;
        assert_eq!(holders.len(), 1, "{holders:?}");
        assert_eq!(holders[0].token, new.token());
        new.release().await?;
    }
    Ok(())
}

/// S5: a release that was dropped on its way goes on, and releases only its own grant.
pub async fn s5_a_cancelled_release_frees_its_own_grant_only(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    for polls in 0..store.rounds(3, 6) {
        let old = acquire(&one).await?;
        super::tools::drop_after_polls(old.release(), polls).await;
        let new = acquire(&other).await?;
        sleep(MOMENT).await;
        assert!(new.is_held());
        assert_eq!(lock(&one).holders().await?[0].token, new.token());
        assert!(lock(&one).try_acquire().await?.is_none());
        new.release().await?;
    }
    Ok(())
}

/// S5: releasing or losing one lock does not affect another lock of the same session.
///
/// Tooz: corresponds to these tests of the Python library Tooz: `test_get_lock_concurrency_locking2`,
/// `test_get_multiple_locks_with_same_coord`.
pub async fn s5_releasing_one_lock_keeps_another(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let kept = acquire(&one).await?;
    for round in 0..3 {
        let second = one.lock("another")?.acquire(Some(PATIENCE)).await?;
        match round {
            0 => second.release().await?,
            1 => drop(second),
            _ => {
                other.lock("another")?.break_lock().await?;
                assert_eq!(second.lost().await, LossReason::EntryDeleted);
            }
        }
        assert!(kept.is_held());
        assert!(lock(&other).try_acquire().await?.is_none());
    }
    sleep(2 * store.heartbeat()).await;
    assert!(kept.is_held());
    kept.release().await?;
    super::tools::take_turn(&other).await.map(drop)
}

/// S6: when an operator breaks the lock while it passes to the next holder, the next holder either still has an entry,
/// or learns at once that it has none.
pub async fn s6_broken_while_it_changes_hands(store: &TestStore) -> Result<()> {
    let (holder, waiter) = (store.connect("holder").await?, store.connect("waiter").await?);
    let operator = store.connect("operator").await?;
    for round in 0..store.rounds(40, 8) {
        let held = acquire(&holder).await?;
        let waiting = acquire_in_background(&waiter);
        until_contenders(store, &lock(&operator), 2).await;
        let waiter_token = lock(&operator).holders().await?[1].token;
        held.release().await?;
        if round % 2 == 0 {
            tokio::task::yield_now().await;
        }
        let broken = lock(&operator).break_lock().await?.expect("somebody waits");
        assert_eq!(broken.token, waiter_token);
        let next = waiting.await.expect("no panic")?;
        if next.token() == broken.token {
            let told = timeout(store.notice_bound(), next.lost()).await;
            assert_eq!(told, Ok(LossReason::EntryDeleted));
            continue;
        }
        // The broken entry had not been granted yet, so its waiter has queued again.
        assert!(next.is_held());
        assert_eq!(lock(&operator).holders().await?[0].token, next.token());
        next.release().await?;
    }
    Ok(())
}

/// S6: an entry that is removed while it waits is never granted; the waiter queues again.
pub async fn s6_entry_removed_while_waiting(store: &TestStore) -> Result<()> {
    let (holder, waiter) = (store.connect("holder").await?, store.connect("waiter").await?);
    let held = acquire(&holder).await?;
    let waiting = acquire_in_background(&waiter);
    until_contenders(store, &lock(&holder), 2).await;
    let entries = lock(&holder).holders().await?;
    assert!(store.server().delete_entry(&store.entry("lock", entries[1].token)));
    held.release().await?;
    let guard = waiting.await.expect("no panic")?;
    must_hold!(guard.token() > entries[1].token);
    assert!(guard.is_held());
    assert_eq!(lock(&holder).holders().await?[0].token, guard.token());
    sleep(2 * store.heartbeat()).await;
    assert!(guard.is_held());
    guard.release().await
}

/// S6: when a session is removed while it waits for a lock, its entry is removed too; the waiter queues again under its
/// next session.
pub async fn s6_session_removed_while_waiting(store: &TestStore) -> Result<()> {
    let holder = store.connect("holder").await?;
    let before = store.session_files();
    let waiter = store.connect("waiter").await?;
    let held = acquire(&holder).await?;
    let waiting = acquire_in_background(&waiter);
    until_contenders(store, &lock(&holder), 2).await;
    let lost = lock(&holder).holders().await?[1].token;
    for file in store.session_files().iter().filter(|file| !before.contains(file)) {
        fs::remove_file(file).expect("it is there");
    }
    held.release().await?;
    let guard = waiting.await.expect("no panic")?;
    must_hold!(guard.token() > lost, "a dead entry was granted");
    assert!(lock(&holder).try_acquire().await?.is_none());
    sleep(3 * store.heartbeat()).await;
    assert!(guard.is_held());
    guard.release().await
}

/// S7: a client that asks for a lock that it holds waits like any other.
///
/// Tooz: corresponds to these tests of the Python library Tooz: `test_get_lock_locked_twice`,
/// `test_acquire_twice_no_deadlock_releasing`, `test_get_lock_twice_locked_twice`,
/// `test_get_lock_twice_locked_one_released_two`.
pub async fn s7_not_reentrant(store: &TestStore) -> Result<()> {
    let coordinator = store.connect("one").await?;
    let held = acquire(&coordinator).await?;
    assert!(lock(&coordinator).try_acquire().await?.is_none());
    let twice = lock(&coordinator).clone().acquire(Some(ANSWERED)).await;
    assert_out_of_time(&twice.expect_err("it is held"), ANSWERED);
    let waiting = acquire_in_background(&coordinator);
    until_contenders(store, &lock(&coordinator), 2).await;
    assert!(!waiting.is_finished());
    let token = held.token();
    held.release().await?;
    let again = waiting.await.expect("no panic")?;
    must_hold!(again.token() > token);
    again.release().await
}

/// Waits until this many clients hold this lock or wait for it. This is needed after an attempt that failed: its entry
/// may be removed only a little after the call has returned.
async fn until_contenders_of(lock: &Lock, count: usize) {
    let listed = async || lock.holders().await.is_ok_and(|holders| holders.len() == count);
    eventually_async(PATIENCE, listed).await;
}

async fn take(coordinator: &Coordinator, name: &str) -> Result<Option<LockGuard>> {
    coordinator.lock(name)?.try_acquire().await
}

/// S8: different names are different locks, and equal names are the same lock.
pub async fn s8_names_are_injective(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let mut held = Vec::new();
    for name in odd_names() {
        let guard = take(&one, &name).await?;
        held.push(guard.unwrap_or_else(|| panic!("{name:?} is another's name as well")));
    }
    for guard in &held {
        assert!(take(&other, guard.name()).await?.is_none(), "{:?} is held twice", guard.name());
        until_contenders_of(&other.lock(guard.name())?, 1).await;
    }
    sleep(2 * store.heartbeat()).await;
    assert!(held.iter().all(|guard| guard.is_held()));
    Ok(())
}

/// S8: URLs that differ in a part that matters lead to independent stores; equal URLs lead to the same store.
pub async fn s8_urls_are_apart(store: &TestStore) -> Result<()> {
    let mut urls = store.other_urls();
    urls.push(store.url().to_owned());
    let mut held = Vec::new();
    for url in &urls {
        let coordinator = store.settings().connect(url).await?;
        let guard = coordinator.lock("one of each")?.try_acquire().await?;
        held.push(guard.unwrap_or_else(|| panic!("{url}: the store of another URL")));
    }
    for url in &urls {
        let coordinator = store.settings().connect(url).await?;
        let guard = coordinator.lock("one of each")?.try_acquire().await?;
        assert!(guard.is_none(), "{url}: not the same store again");
        coordinator.stop().await?;
    }
    Ok(())
}

/// S8: different namespaces and prefixes are independent.
pub async fn s8_namespaces_and_prefixes_are_apart(store: &TestStore) -> Result<()> {
    let mut held = Vec::new();
    for (namespace, prefix) in [("a", ""), ("a.b", ""), ("ab", ""), ("a", "b/"), ("a", "b")] {
        let settings = store.settings().namespace(namespace).prefix(prefix);
        let coordinator = settings.connect(&store.url_of_all()).await?;
        for name in ["lock", "b", "b/lock", "lock/lock"] {
            let lock = coordinator.lock(name)?;
            assert_eq!(lock.name(), format!("{prefix}{name}"));
            held.push((namespace, lock.try_acquire().await?, lock));
        }
    }
    let mut names: Vec<_> = held.iter().map(|(space, _, lock)| (*space, lock.name())).collect();
    names.sort_unstable();
    names.dedup();
    let taken = held.iter().filter(|(_, guard, _)| guard.is_some()).count();
    assert_eq!(taken, names.len(), "one holder for each name");
    Ok(())
}

/// S9: the connection is cut at each message of an acquire, so that the answer is lost. Exactly one entry is left.
pub async fn s9_a_lost_answer_leaves_one_entry(store: &TestStore) -> Result<()> {
    let proxy = store.proxy();
    // A long interval, so that no heartbeat is sent between the request and its reply.
    let settings = store.settings().ttl(Duration::from_secs(30)).heartbeat(Duration::from_secs(9));
    let settings = settings.initial_reconnect_backoff(Duration::from_millis(10));
    let coordinator = settings.connect(&store.url_by_proxy()).await?;
    let lock = coordinator.lock(NAME)?;
    let mut cuts = 0;
    for direction in [Direction::ToClient, Direction::ToServer] {
        for count in 1..=8_u64 {
            let cut = match count % 2 {
                0 => crate::harness::Proxy::cut_after,
                _ => crate::harness::Proxy::cut_before,
            };
            cut(proxy, direction, Unit::Frames, count.div_ceil(2));
            let guard = lock.acquire(Some(PATIENCE)).await?;
            cuts += usize::from(!proxy.is_cut_pending());
            proxy.heal();
            assert!(guard.is_held());
            let keys = store.contenders(&lock).await;
            assert_eq!(keys.len(), 1, "{direction:?} {count}: {keys:?}");
            assert_eq!(store.server().token_of(&keys[0]), guard.token().value());
            guard.release().await?;
            assert_eq!(store.contenders(&lock).await, [""; 0], "{direction:?} {count}");
        }
    }
    assert!(cuts >= least_cuts(store), "the cuts are to hit: {cuts}");
    Ok(())
}

/// Enough cuts for three of them to lose the reply to the acquire, whatever else is sent on the connection.
const MANY: usize = 60;

/// S9: if the caller has given up when the answer is lost, no entry is left at all.
pub async fn s9_a_lost_answer_nobody_waits_for(store: &TestStore) -> Result<()> {
    let proxy = store.proxy();
    let coordinator = store.connect_by_proxy("impatient").await?;
    let (mut cuts, mut refused) = (0, 0);
    for _ in 0..MANY {
        proxy.cut_before(Direction::ToClient, Unit::Messages, 1);
        let outcome = lock(&coordinator).acquire(Some(Duration::from_millis(20))).await;
        let is_cut = !proxy.is_cut_pending();
        proxy.heal();
        cuts += usize::from(is_cut);
        match outcome {
            // The cut lost the reply to another request, or the acquire's request was repeated in time.
            Ok(guard) => guard.release().await?,
            Err(error) => {
                let kinds = [ErrorKind::Unavailable, ErrorKind::Timeout];
                assert!(kinds.contains(&error.kind()), "{error}");
                assert_ne!(error.effect(), Effect::Applied);
                // The outcome is unknown only if the reply to the acquire itself was lost.
                refused += usize::from(is_cut && error.effect() == Effect::Unknown);
            }
        }
        until_contenders(store, &lock(&coordinator), 0).await;
        super::tools::take_turn(&coordinator).await?;
        if refused == 3 {
            break;
        }
    }
    println!("S9: {cuts} cuts, {refused} lost the answer");
    assert_eq!(refused, 3, "the cuts are to hit: {cuts} were made");
    Ok(())
}
