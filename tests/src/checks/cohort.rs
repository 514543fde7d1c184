//! LC1, LC2: tasks of one process pass a lock on among themselves, and others have it in between. RR1: sooner, if they ask.

use std::future::pending;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use coordination::{Cohort, CohortGuard, Effect, Fence, LossReason, Result, TurnToken};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::TestStore;
use super::tools::{
    ANSWERED, MOMENT, PATIENCE, Room, acquire, lock, poll_times, take_turn, until, until_contenders,
};
use crate::must_hold;

type Wait = Pin<Box<dyn Future<Output = Result<CohortGuard>> + Send>>;

/// An acquire that waits behind all those that were made before.
async fn waits(cohort: &Cohort) -> Wait {
    let cohort = cohort.clone();
    let mut wait: Wait = Box::pin(async move { cohort.acquire(Some(PATIENCE)).await });
    assert!(poll_times(Pin::new(&mut wait), 1).await.is_none(), "it waits");
    wait
}

/// What is written under the lock: who is inside, and the tokens in the order of writing.
#[derive(Default)]
struct Volume {
    room: Room,
    fence: Fence<TurnToken>,
    tokens: Mutex<Vec<TurnToken>>,
}

impl Volume {
    async fn write(&self, token: TurnToken) {
        let _inside = self.room.enter();
        must_hold!(self.fence.check(token).is_ok(), "{token}");
        self.tokens.lock().expect("nobody panicked").push(token);
        tokio::task::yield_now().await;
    }
}

/// LC1: of the tasks of two cohorts and of tasks without one, never two have the lock, and each has a larger token than those
/// before.
pub async fn lc1_turns_exclude_each_other_and_their_tokens_rise(store: &TestStore) -> Result<()> {
    const TASKS: usize = 4;
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let volume = Arc::new(Volume::default());
    let rounds = store.rounds(50, 5);
    let mut tasks = JoinSet::new();
    for client in [&one, &other] {
        let cohort = lock(client).cohort().batch(3, PATIENCE);
        for task in 0..TASKS {
            let (cohort, volume) = (cohort.clone(), Arc::clone(&volume));
            tasks.spawn(async move {
                for round in 0..rounds {
                    let guard = cohort.acquire(Some(PATIENCE)).await?;
                    assert!(guard.is_held());
                    volume.write(guard.token()).await;
                    match (task + round) % 2 {
                        0 => guard.release().await?,
                        _ => drop(guard),
                    }
                }
                Ok::<_, coordination::Error>(())
            });
        }
        let (client, volume) = (client.clone(), Arc::clone(&volume));
        tasks.spawn(async move {
            for _ in 0..rounds {
                let guard = acquire(&client).await?;
                volume.write(guard.token().into()).await;
                guard.release().await?;
            }
            Ok(())
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.expect("no panic")?;
    }
    let tokens = volume.tokens.lock().expect("nobody panicked");
    must_hold!(
        tokens.len() == 2 * (TASKS + 1) * rounds && tokens.is_sorted_by(|one, next| one < next),
        "{tokens:?}"
    );
    Ok(())
}

/// LC1: when the lock is taken away from a cohort, its tasks go on with another grant, although the one that had the turn
/// keeps its guard.
pub async fn lc1_a_lock_that_is_taken_away_ends_the_batch(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let cohort = lock(&one).cohort();
    let hanging = cohort.acquire(Some(PATIENCE)).await?;
    let next = waits(&cohort).await;
    let broken = lock(&other).break_lock().await?.expect("it is held");
    assert_eq!(broken.token, hanging.token().number());
    let next = next.await?;
    must_hold!(!hanging.is_held());
    assert!(next.is_held());
    must_hold!(next.token() > hanging.token(), "{next:?}");
    assert_eq!(hanging.lost().await, LossReason::EntryDeleted);
    let refused = hanging.release().await.expect_err("it was lost");
    assert_eq!(refused.loss_reason(), Some(LossReason::EntryDeleted));
    assert!(next.is_held());
    next.release().await
}

/// X2c: when the lock is lost, the body that has the turn is dropped at its await. A body without awaits ends, and its success is
/// replaced by the error. Either way the next body runs under another grant.
pub async fn x2c_a_loss_ends_the_body_of_a_turn(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let cohort = lock(&one).cohort();
    for (is_stopped, effect) in [(true, Effect::Unknown), (false, Effect::Applied)] {
        let (begins, begun) = oneshot::channel();
        let running = tokio::spawn(cohort.with(Some(PATIENCE), async move |guard| -> Result<()> {
            begins.send(guard.token()).expect("it is waited for");
            while guard.is_held() {
                match is_stopped {
                    true => pending().await,
                    false => std::thread::sleep(Duration::from_millis(5)),
                }
            }
            Ok(())
        }));
        let token = begun.await.expect("it begins");
        let next = cohort.with_value(Some(PATIENCE), async |guard| guard.token());
        let next = tokio::spawn(next);
        let broken = lock(&other).break_lock().await?.expect("it is held");
        assert_eq!(broken.token, token.number());
        let ended = timeout(PATIENCE, running).await.expect("the loss is noticed");
        let lost = ended.expect("no panic").expect_err("the lock was broken");
        let told = (lost.loss_reason(), lost.effect(), lost.body_ran());
        assert_eq!(told, (Some(LossReason::EntryDeleted), effect, true), "{lost}");
        let next = next.await.expect("no panic")?;
        must_hold!(next.number() > token.number(), "{next} after {token}");
    }
    Ok(())
}

/// LC1: who goes away with the turn, or while it waits, leaves the turn to the next one, and at last nothing at the store.
pub async fn lc1_dropped_futures_pass_it_on(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let cohort = lock(&one).cohort().batch(64, PATIENCE);
    for round in 0..store.rounds(20, 4) {
        let first = cohort.acquire(Some(PATIENCE)).await?;
        let mut waiting = Vec::new();
        for _ in 0..3 {
            waiting.push(waits(&cohort).await);
        }
        // It goes away before, while or after the turn is passed on to it.
        let dropped = waiting.remove(0);
        if round % 2 == 0 {
            first.release().await?;
            drop(dropped);
        } else {
            let dropping = tokio::spawn(async move { drop(dropped) });
            first.release().await?;
            dropping.await.expect("no panic");
        }
        drop(waiting.remove(1));
        waiting.remove(0).await?.release().await?;
        until(async || Ok(lock(&other).holders().await?.is_empty())).await;
    }
    Ok(())
}

/// LC2: after so many turns it is the turn of a contender that came before the rest of the cohort, and then the cohort's again.
pub async fn lc2_others_have_their_turn_between_batches(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let cohort = lock(&one).cohort().batch(3, PATIENCE);
    let first = cohort.acquire(Some(PATIENCE)).await?;
    let other = {
        let other = other.clone();
        tokio::spawn(async move { take_turn(&other).await })
    };
    until_contenders(store, &lock(&one), 2).await;
    let mut waiting = Vec::new();
    for _ in 0..5 {
        waiting.push(waits(&cohort).await);
    }
    let mut tokens = vec![first.token()];
    first.release().await?;
    for wait in waiting {
        let guard = wait.await?;
        tokens.push(guard.token());
        guard.release().await?;
    }
    let other = TurnToken::from(other.await.expect("no panic")?);
    let turns: Vec<_> = tokens.iter().map(|token| token.turn()).collect();
    must_hold!(tokens.is_sorted_by(|one, next| one < next), "{tokens:?}");
    // Whoever loses the session on a starved machine begins another batch, or queues again.
    assert_eq!(turns, [0, 1, 2, 0, 1, 2]);
    assert!(tokens[2] < other && other < tokens[3], "{other} among {tokens:?}");
    Ok(())
}

/// LC2: with no time for more than one turn, the lock is released after each.
pub async fn lc2_no_turn_begins_after_the_time_of_its_batch(store: &TestStore) -> Result<()> {
    let one = store.connect("one").await?;
    let cohort = lock(&one).cohort().batch(100, Duration::ZERO);
    let first = cohort.acquire(Some(PATIENCE)).await?;
    let (second, third) = (waits(&cohort).await, waits(&cohort).await);
    let mut before = first.token();
    first.release().await?;
    for wait in [second, third] {
        let guard = wait.await?;
        must_hold!(guard.token().number() > before.number() && guard.token().turn() == 0);
        before = guard.token();
        guard.release().await?;
    }
    Ok(())
}

/// RR1: a request reaches the task that has the turn. After the turn the lock goes to a contender that came before the rest of the
/// cohort, whose next grant is not asked.
pub async fn rr1_a_cohort_that_is_asked_lets_go_after_the_turn(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let cohort = lock(&one).cohort().batch(64, 10 * PATIENCE);
    let first = cohort.acquire(Some(PATIENCE)).await?;
    must_hold!(!first.is_release_requested());
    let (second, third) = (waits(&cohort).await, waits(&cohort).await);
    first.release().await?;
    let second = second.await?;
    let between = {
        let other = other.clone();
        tokio::spawn(async move { take_turn(&other).await })
    };
    until_contenders(store, &lock(&one), 2).await;
    let asked = lock(&other).request_release().await?;
    let asked: Vec<_> = asked.into_iter().map(|holder| holder.token).collect();
    assert_eq!(asked, [second.token().number()]);
    timeout(PATIENCE, second.release_requested()).await.expect("it is told")?;
    must_hold!(second.is_release_requested());
    assert!(second.is_held());
    let token = second.token();
    second.release().await?;
    let third = third.await?;
    let between = TurnToken::from(between.await.expect("no panic")?);
    assert!(token < between && between < third.token(), "{token}, {between}, {third:?}");
    let asked = timeout(ANSWERED, third.release_requested()).await;
    must_hold!(!matches!(asked, Ok(Ok(_))), "it is not asked");
    assert!(asked.is_err(), "it is held");
    third.release().await
}

/// RR1: a batch that goes on and on lets go when it is asked, although none of its tasks listens.
pub async fn rr1_a_long_batch_lets_go_although_no_task_listens(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let cohort = lock(&one).cohort().batch(u32::MAX, 100 * PATIENCE);
    let mut guard = cohort.acquire(Some(PATIENCE)).await?;
    let number = guard.token().number();
    assert_eq!(lock(&other).request_release().await?.len(), 1);
    let lets_go = async {
        while guard.token().number() == number {
            // Somebody waits all the time, so that the batch does not end for want of tasks.
            let next = waits(&cohort).await;
            sleep(MOMENT / 10).await;
            guard.release().await?;
            guard = next.await?;
        }
        guard.release().await
    };
    timeout(2 * PATIENCE, lets_go).await.expect("the batch has an end")
}
