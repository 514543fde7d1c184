//! S1–S4: never two holders, larger tokens for later holders, and a loss is final.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use coordination::{
    BootInstant, Coordinator, ErrorKind, Fence, FencingToken, LossReason, Result, State, blocking,
};
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::TestStore;
use super::tools::{
    MOMENT, NAME, PATIENCE, Probe, Room, acquire, acquire_in_background, lock, take_turn,
    until_contenders, until_state,
};
use crate::harness::{Direction, Mode};
use crate::must_hold;

/// What the contenders of one lock share: a critical section that detects a second visitor, and a log.
#[derive(Debug, Default)]
struct Contest {
    room: Room,
    /// The tokens of all that were in the room, in the order of their visits.
    tokens: Mutex<Vec<FencingToken>>,
}

/// S1, S2: of many tasks of several clients, some of which give up or drop their guards, never two hold the lock, and
/// later holders have larger tokens.
///
/// Tooz: corresponds to these tests of the Python library Tooz: `test_get_lock`, `test_get_lock_multiple_coords`.
pub async fn s1_timed_exclusion(store: &TestStore) -> Result<()> {
    let contest = Arc::new(Contest::default());
    let mut tasks = JoinSet::new();
    let rounds = store.rounds(150, 12);
    for client in 0..3 {
        let coordinator = store.connect(&format!("client-{client}")).await?;
        for task in 0..4 {
            tasks.spawn(contend(coordinator.clone(), Arc::clone(&contest), rounds, task));
        }
    }
    let mut visits = 0;
    while let Some(outcome) = tasks.join_next().await {
        visits += outcome.expect("no panic in the critical section")?;
    }
    let tokens = contest.tokens.lock().expect("nobody panicked");
    assert_eq!(tokens.len(), visits);
    assert!(visits >= 3 * 3 * rounds, "only the impatient may fail: {visits}");
    must_hold!(tokens.is_sorted_by(|one, next| one < next), "{tokens:?}");
    Ok(())
}

/// Enters the room under the lock, `rounds` times. Each client has four tasks, the last of which gives up quickly.
/// Returns how often the task got in.
async fn contend(
    coordinator: Coordinator,
    contest: Arc<Contest>,
    rounds: usize,
    task: usize,
) -> Result<usize> {
    let mut visits = 0;
    for round in 0..rounds {
        let patience = if task == 3 { Duration::from_millis(1) } else { PATIENCE };
        let guard = match lock(&coordinator).acquire(Some(patience)).await {
            Ok(guard) => guard,
            Err(error) if task == 3 => {
                let kinds = [ErrorKind::Timeout, ErrorKind::Unavailable];
                assert!(kinds.contains(&error.kind()), "{error}");
                continue;
            }
            Err(error) => return Err(error),
        };
        {
            let _inside = contest.room.enter();
            assert!(guard.is_held());
            contest.tokens.lock().expect("nobody panicked").push(guard.token());
            tokio::task::yield_now().await;
        }
        visits += 1;
        match round % 2 {
            0 => guard.release().await?,
            _ => drop(guard),
        }
    }
    Ok(visits)
}

/// S1: of threads that use the blocking calls, never two hold the lock: two threads with one handle, one with another
/// handle of the same client, and one of another client.
///
/// Tooz: corresponds to these tests of the Python library Tooz: `test_get_lock_concurrency_locking_same_lock`,
/// `test_get_lock_concurrency_locking_two_lock_thread1`, `test_get_lock_concurrency_locking_two_lock_thread2`.
pub async fn s1_exclusion_of_threads(store: &TestStore) -> Result<()> {
    let contest = Arc::new(Contest::default());
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let shared = blocking::Lock::from(lock(&one));
    let handles = [shared.clone(), shared, lock(&one).into(), lock(&other).into()];
    let rounds = store.rounds(50, 5);
    let threads = handles.map(|lock| {
        let contest = Arc::clone(&contest);
        std::thread::spawn(move || -> Result<()> {
            for _ in 0..rounds {
                let guard = lock.acquire(Some(PATIENCE))?;
                let inside = contest.room.enter();
                assert!(guard.is_held());
                contest.tokens.lock().expect("nobody panicked").push(guard.token());
                drop(inside);
                blocking::release(guard)?;
            }
            Ok(())
        })
    });
    let joining = tokio::task::spawn_blocking(|| threads.map(std::thread::JoinHandle::join));
    for outcome in joining.await.expect("no panic") {
        outcome.expect("no panic in the critical section")?;
    }
    let tokens = contest.tokens.lock().expect("nobody panicked");
    must_hold!(
        tokens.len() == 4 * rounds && tokens.is_sorted_by(|one, next| one < next),
        "{tokens:?}"
    );
    Ok(())
}

/// S1: of several processes, never two hold the lock.
///
/// Tooz: corresponds to these tests of the Python library Tooz: `test_get_lock_concurrency_locking_two_lock_process`,
/// `test_get_lock_serial_locking_two_lock_process`.
pub async fn s1_exclusion_of_processes(store: &TestStore) -> Result<()> {
    let coordinator = store.connect("here").await?;
    let workers = [store.worker("worker-0"), store.worker("worker-1")];
    let mut tokens = Vec::new();
    for _ in 0..store.rounds(20, 5) {
        tokens.push(take_turn(&coordinator).await?.value());
        for (worker, other) in [(0, 1), (1, 0)] {
            let taken = workers[worker].call(json!({ "command": "acquire", "lock": NAME }));
            tokens.push(taken["token"].as_u64().expect("a grant has a token"));
            let refused = workers[other].call(json!({ "command": "try_acquire", "lock": NAME }));
            assert!(refused.is_null(), "{refused}");
            assert!(lock(&coordinator).try_acquire().await?.is_none());
            workers[worker].call(json!({ "command": "release", "handle": NAME }));
        }
    }
    must_hold!(tokens.is_sorted_by(|one, next| one < next), "{tokens:?}");
    Ok(())
}

/// S2: however a holder ends, the next one has a larger token, and a fence then refuses the old holder's token.
pub async fn s2_tokens_rise_however_a_holder_ends(store: &TestStore) -> Result<()> {
    let fence = Fence::new();
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let mut last = take_turn(&one).await?;
    for round in 0..store.rounds(20, 4) {
        let old = acquire(&one).await?;
        must_hold!(old.token() > last);
        must_hold!(fence.check(old.token()).is_ok());
        last = old.token();
        match round % 4 {
            0 => old.release().await?,
            1 => drop(old),
            2 => {
                lock(&other).break_lock().await?;
            }
            _ => {
                let dying = store.connect("dying").await?;
                drop(old);
                let guard = acquire(&dying).await?;
                dying.stop().await?;
                assert_eq!(guard.lost().await, LossReason::Closed);
            }
        }
        let new = acquire(&other).await?;
        must_hold!(new.token() > last);
        must_hold!(fence.check(new.token()).is_ok());
        must_hold!(fence.check(last).is_err(), "an old holder must not write any more");
        last = new.token();
        new.release().await?;
    }
    Ok(())
}

/// S2: tokens also rise if all clients go and come back, and if the server restarts.
pub async fn s2_tokens_survive(store: &TestStore) -> Result<()> {
    let mut last = None;
    for client in ["first", "second", "third"] {
        let coordinator = store.connect(client).await?;
        let token = take_turn(&coordinator).await?;
        must_hold!(Some(token) > last, "{token} after {last:?}");
        last = Some(token);
        coordinator.stop().await?;
        store.restart();
    }
    Ok(())
}

/// S1, S3: a holder that is cut off knows that it has lost the lock before anybody else gets it.
pub async fn s3_loss_before_grant(store: &TestStore) -> Result<()> {
    let (holder, waiter) =
        (store.connect_by_proxy("holder").await?, store.connect("waiter").await?);
    let guard = Arc::new(acquire(&holder).await?);
    let waiting = acquire_in_background(&waiter);
    until_contenders(store, &lock(&waiter), 2).await;
    let probe = Probe::start(&guard);
    store.proxy().set_both(Mode::Blackhole);
    let next = waiting.await.expect("no panic")?;
    let granted = BootInstant::now();
    must_hold!(!guard.is_held());
    // Not whether the probe has seen that by now: its thread may wait for a processor before it looks again.
    must_hold!(probe.last_held().await < granted);
    assert!(next.is_held());
    must_hold!(next.token() > guard.token());
    Ok(())
}

/// S3: a holder knows that it has lost the lock before anybody else gets it, also if only its requests, or only the
/// replies to it, are lost.
pub async fn s3_loss_before_grant_one_way(store: &TestStore) -> Result<()> {
    for direction in [Direction::ToClient, Direction::ToServer] {
        let holder = store.connect_by_proxy("holder").await?;
        let waiter = store.connect("waiter").await?;
        let guard = Arc::new(acquire(&holder).await?);
        let waiting = acquire_in_background(&waiter);
        until_contenders(store, &lock(&waiter), 2).await;
        let probe = Probe::start(&guard);
        store.proxy().set(direction, Mode::Stall);
        assert_eq!(guard.lost().await, LossReason::DeadlinePassed, "{direction:?}");
        // If only the replies are lost, the server receives heartbeats, or the opening of a new session. So the server
        // may keep the old session until the client closes it. For that, the client is reconnected here.
        store.proxy().heal();
        let next = waiting.await.expect("no panic")?;
        let granted = BootInstant::now();
        must_hold!(!guard.is_held());
        assert!(probe.last_held().await < granted);
        next.release().await?;
        // The next attempt to connect may come only after a lease, and `stop` does not wait that long.
        until_state(&mut holder.state(), |state| state == State::Connected).await;
        holder.stop().await?;
        waiter.stop().await?;
    }
    Ok(())
}

/// S4, R5: heartbeats that arrive after the deadline do not bring the guard back, although the store has not ended the
/// session yet.
pub async fn s4_a_late_heartbeat_revives_nothing(store: &TestStore) -> Result<()> {
    let holder = store.connect_by_proxy("holder").await?;
    let guard = acquire(&holder).await?;
    let mut state = holder.state();
    store.proxy().set_both(Mode::Stall);
    assert_eq!(guard.lost().await, LossReason::DeadlinePassed);
    // After the deadline and before the end of the lease, all delayed heartbeats arrive.
    store.proxy().heal();
    until_state(&mut state, |state| matches!(state, State::Lost(_))).await;
    until_state(&mut state, |state| state == State::Connected).await;
    for _ in 0..20 {
        must_hold!(!guard.is_held());
        assert_eq!(guard.lost().await, LossReason::DeadlinePassed);
        sleep(MOMENT).await;
    }
    assert!(guard.remaining().is_none_or(|left| left.is_zero()));
    let refused = guard.release().await.expect_err("it was lost");
    assert_eq!(refused.kind(), ErrorKind::Lost);
    assert_eq!(refused.loss_reason(), Some(LossReason::DeadlinePassed));
    // The old session's entry is removed, and nothing is carried over.
    until_contenders(store, &lock(&holder), 0).await;
    take_turn(&holder).await.map(drop)
}

/// S4: a lock that was broken stays lost, whatever its client does afterwards with the session and the name.
pub async fn s4_a_broken_lock_stays_lost(store: &TestStore) -> Result<()> {
    let (holder, other) = (store.connect("holder").await?, store.connect("other").await?);
    let broken = acquire(&holder).await?;
    lock(&other).break_lock().await?;
    assert_eq!(broken.lost().await, LossReason::EntryDeleted);
    let again = acquire(&holder).await?;
    for _ in 0..5 {
        must_hold!(!broken.is_held());
        assert!(again.is_held());
        sleep(store.heartbeat()).await;
    }
    assert_eq!(broken.lost().await, LossReason::EntryDeleted);
    let refused = broken.release().await.expect_err("it was lost");
    assert_eq!(refused.loss_reason(), Some(LossReason::EntryDeleted));
    assert!(again.is_held());
    again.release().await
}
