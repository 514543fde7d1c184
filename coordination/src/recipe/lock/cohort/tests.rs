//! Cohorts in virtual time, where each step of the session can be placed between two polls of a caller.

use std::future::{Future, pending, poll_fn};
use std::task::Poll;

use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use super::guard::Batch;
use super::*;
use crate::env::Unforked;
use crate::{Coordinator, Effect, Error, ErrorKind, LossReason, TurnToken};

const MS: Duration = Duration::from_millis(1);
/// Longer than anything takes.
const LONG: Duration = Duration::from_secs(600);

/// Two clients of a store of its own.
async fn two(store: &str) -> Result<(Lock, Lock)> {
    let url = format!("memory://{store}");
    let (one, other) = (Coordinator::connect(&url).await?, Coordinator::connect(&url).await?);
    Ok((one.lock("a")?, other.lock("a")?))
}

type Begun<T> = std::pin::Pin<Box<dyn Future<Output = T> + Send>>;
type Wait = Begun<Result<CohortGuard>>;

/// An acquire that has been polled once, so that it waits.
async fn waits(cohort: &Cohort, timeout: Option<Duration>) -> Wait {
    let cohort = cohort.clone();
    begun(async move { cohort.acquire(timeout).await }).await
}

/// A call that has been polled once, and waits.
async fn begun<T>(call: impl Future<Output = T> + Send + 'static) -> Begun<T> {
    let mut call: Begun<T> = Box::pin(call);
    let polled = poll_fn(|context| Poll::Ready(call.as_mut().poll(context))).await;
    assert!(polled.is_pending());
    call
}

/// Has its turn once it comes, and returns its token.
async fn turn(wait: Wait) -> Result<TurnToken> {
    let guard = timeout(LONG, wait).await.expect("its turn comes")?;
    assert!(guard.is_held());
    let token = guard.token();
    guard.release().await.map(|()| token)
}

/// Another client's turn, which queues at the store at once.
async fn of_another(lock: &Lock) -> tokio::task::JoinHandle<Result<TurnToken>> {
    let lock = lock.clone();
    let task = tokio::spawn(async move {
        let guard = lock.acquire(None).await?;
        let token = TurnToken::from(guard.token());
        guard.release().await.map(|()| token)
    });
    sleep(MS).await;
    task
}

/// The release of a turn that ended when its lock was taken away.
fn assert_taken_away(released: Result<()>) {
    let lost = released.expect_err("it was lost");
    assert_eq!(lost.loss_reason(), Some(LossReason::EntryDeleted));
    assert_eq!((lost.effect(), lost.body_ran()), (Effect::Applied, true));
}

/// A coordinator that is to be stopped, its cohort, one who has the turn, and one who waits for it.
async fn two_tasks(store: &str) -> Result<(Coordinator, Cohort, CohortGuard, Wait)> {
    let coordinator = Coordinator::connect(&format!("memory://{store}")).await?;
    let cohort = coordinator.lock("a")?.cohort();
    let guard = cohort.acquire(None).await?;
    let waits = waits(&cohort, None).await;
    Ok((coordinator, cohort, guard, waits))
}

#[tokio::test(start_paused = true)]
async fn a_batch_has_so_many_turns_and_then_others_have_theirs() -> Result<()> {
    let (lock, other) = two("cohort-turns").await?;
    let cohort = lock.cohort().batch(3, LONG);
    let first = cohort.acquire(None).await?;
    let other = of_another(&other).await;
    let mut tokens = vec![first.token()];
    let mut waiting = Vec::new();
    for _ in 0..5 {
        waiting.push(waits(&cohort, None).await);
    }
    first.release().await?;
    for wait in waiting {
        tokens.push(turn(wait).await?);
    }
    let other = other.await.expect("no panic")?;
    assert!(tokens.is_sorted_by(|one, next| one < next), "{tokens:?}");
    let turns: Vec<_> = tokens.iter().map(|token| token.turn()).collect();
    assert_eq!(turns, [0, 1, 2, 0, 1, 2]);
    assert_eq!(tokens[0].number(), tokens[2].number());
    assert!(tokens[2] < other && other < tokens[3], "{tokens:?}, {other}");
    assert!(lock.holders().await?.is_empty());
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn no_turn_begins_after_the_time_of_its_batch() -> Result<()> {
    let (lock, other) = two("cohort-time").await?;
    let cohort = lock.cohort().batch(100, 100 * MS);
    let first = cohort.acquire(None).await?;
    let other = of_another(&other).await;
    let (second, third) = (waits(&cohort, None).await, waits(&cohort, None).await);
    sleep(90 * MS).await;
    let token = first.token();
    first.release().await?;
    let second = second.await?;
    assert_eq!(second.token().number(), token.number());
    sleep(10 * MS).await;
    second.release().await?;
    let third = turn(third).await?;
    let other = other.await.expect("no panic")?;
    assert!(token < other && other < third, "{other}, {third}");
    assert_eq!(third.turn(), 0);
    Ok(())
}

/// A turn that was passed on to a future that is dropped goes to the next one, and to nobody if there is none.
#[tokio::test(start_paused = true)]
async fn c1_what_is_dropped_when_it_has_the_turn_passes_it_on() -> Result<()> {
    let (lock, other) = two("cohort-dropped").await?;
    let cohort = lock.cohort();
    let first = cohort.acquire(None).await?;
    let (dropped, second) = (waits(&cohort, None).await, waits(&cohort, None).await);
    first.release().await?;
    sleep(MS).await;
    drop(dropped);
    let second = second.await?;
    assert_eq!(second.token().turn(), 2, "one turn was passed on in vain");
    let dropped = waits(&cohort, None).await;
    second.release().await?;
    sleep(MS).await;
    drop(dropped);
    sleep(MS).await;
    assert!(other.try_acquire().await?.is_some());
    Ok(())
}

/// A cohort waits at the store as long as one of its tasks does, and in the place of the first.
#[tokio::test(start_paused = true)]
async fn a_place_is_kept_for_those_who_wait_on_and_given_up_after_the_last() -> Result<()> {
    let (lock, other) = two("cohort-place").await?;
    let cohort = lock.cohort();
    let held = other.acquire(None).await?;
    let (first, second) = (waits(&cohort, Some(5 * MS)).await, waits(&cohort, None).await);
    sleep(MS).await;
    let later = of_another(&other).await;
    let late = first.await.expect_err("it is taken");
    assert_eq!((late.kind(), late.effect()), (ErrorKind::Timeout, Effect::None));
    held.release().await?;
    let second = turn(second).await?;
    assert!(second < later.await.expect("no panic")?);

    let held = other.acquire(None).await?;
    let only = waits(&cohort, None).await;
    sleep(MS).await;
    assert_eq!(lock.holders().await?.len(), 2);
    drop(only);
    sleep(MS).await;
    assert_eq!(lock.holders().await?.len(), 1);
    held.release().await
}

#[tokio::test(start_paused = true)]
async fn l4_a_task_of_the_cohort_waits_no_longer_than_it_wants() -> Result<()> {
    let (lock, _other) = two("cohort-timeout").await?;
    let cohort = lock.cohort();
    let guard = cohort.acquire(None).await?;
    let late = cohort.acquire(Some(20 * MS)).await.expect_err("it is taken");
    assert_eq!(late.kind(), ErrorKind::Timeout);
    assert_eq!((late.key(), late.backend()), (Some("a"), Some("memory")));
    let late = cohort.acquire(Some(Duration::ZERO)).await.expect_err("it is taken");
    assert_eq!(late.kind(), ErrorKind::Timeout);
    assert!(cohort.try_acquire().await?.is_none());
    assert!(guard.is_held());
    guard.release().await?;
    // The grant of a try is its own.
    let tried = cohort.try_acquire().await?.expect("it is free");
    let next = waits(&cohort, None).await;
    let token = tried.token();
    tried.release().await?;
    assert!(turn(next).await?.number() > token.number());
    Ok(())
}

/// Who holds a lost guard and does not let go keeps nobody waiting.
#[tokio::test(start_paused = true)]
async fn l2_a_lost_turn_is_not_waited_for() -> Result<()> {
    let (lock, other) = two("cohort-lost").await?;
    let cohort = lock.cohort();
    let hanging = cohort.acquire(None).await?;
    let next = waits(&cohort, None).await;
    let broken = other.break_lock().await?.expect("it is held");
    assert_eq!(broken.token, hanging.token().number());
    let next = timeout(LONG, next).await.expect("its turn comes")?;
    assert!(!hanging.is_held() && next.is_held());
    assert!(next.token() > hanging.token());
    assert_eq!(hanging.lost().await, LossReason::EntryDeleted);
    assert_taken_away(hanging.release().await);
    assert!(next.is_held(), "it is another grant");
    next.release().await
}

/// The task that acts for the cohort has looked whether the turn is over, and sees the loss next, when the release begins.
#[tokio::test(start_paused = true)]
async fn c5_a_release_that_a_loss_overtakes_tells_of_the_loss() -> Result<()> {
    let (lock, other) = two("cohort-overtaken").await?;
    let batch = Batch::new(lock.acquire(None).await?.into_grant());
    let (over, ended) = oneshot::channel();
    let over = Some(Unforked::new(over));
    let guard = CohortGuard { batch: Arc::clone(&batch), turn: 0, over };
    let releasing = begun(guard.release()).await;
    other.break_lock().await?.expect("it is held");
    assert_eq!(batch.grant.lost().await, LossReason::EntryDeleted);
    drop(ended);
    assert_taken_away(releasing.await);
    Ok(())
}

/// Others have the lock after the turn that is asked, and the cohort's next grant is not asked.
#[tokio::test(start_paused = true)]
async fn rr1_whoever_has_the_turn_is_asked_and_it_is_the_last_of_its_batch() -> Result<()> {
    let (lock, other) = two("cohort-asked").await?;
    let cohort = lock.cohort().batch(100, LONG);
    let first = cohort.acquire(None).await?;
    assert!(!first.is_release_requested());
    let (second, third) = (waits(&cohort, None).await, waits(&cohort, None).await);
    first.release().await?;
    let second = second.await?;
    let later = of_another(&other).await;
    assert_eq!(other.request_release().await?[0].token, second.token().number());
    timeout(LONG, second.release_requested()).await.expect("it is told")?;
    assert!(second.is_held() && second.is_release_requested());
    let token = second.token();
    second.release().await?;
    let third = third.await?;
    let later = later.await.expect("no panic")?;
    assert!(token < later && later < third.token(), "{token}, {later}, {third:?}");
    assert_eq!((token.turn(), third.token().turn()), (1, 0));
    assert!(timeout(LONG, third.release_requested()).await.is_err(), "nobody has asked it");
    third.release().await
}

/// A long batch listens by itself, from a certain time on.
#[tokio::test(start_paused = true)]
async fn rr1_a_long_batch_lets_go_although_no_task_listens() -> Result<()> {
    let (lock, other) = two("cohort-deaf").await?;
    let cohort = lock.cohort().batch(100, LONG);
    let first = cohort.acquire(None).await?;
    let later = of_another(&other).await;
    let (second, third) = (waits(&cohort, None).await, waits(&cohort, None).await);
    assert_eq!(other.request_release().await?.len(), 1);
    let number = first.token().number();
    first.release().await?;
    let second = second.await?;
    assert_eq!(second.token().number(), number, "it does not listen yet");
    sleep(2 * LISTENS_AFTER).await;
    second.release().await?;
    let third = turn(third).await?;
    let later = later.await.expect("no panic")?;
    assert!(later.number() > number && later < third, "{number}, {later}, {third}");
    Ok(())
}

/// However a body ends, the next task has the next turn of the batch.
#[tokio::test(start_paused = true)]
async fn x2c_a_turn_ends_with_its_body() -> Result<()> {
    let (lock, _other) = two("cohort-bodies").await?;
    let cohort = lock.cohort();
    let first = cohort.acquire(None).await?;
    let fails = tokio::spawn(cohort.with(None, async |_| -> Result<()> {
        Err(Error::new(ErrorKind::Quota, "write", "the body's own"))
    }));
    let panics = tokio::spawn(cohort.with(None, async |_| -> Result<()> {
        std::panic::resume_unwind(Box::new("a bug in the body"))
    }));
    let hangs = tokio::spawn(cohort.with_value(None, async |_| pending::<()>().await));
    let last = tokio::spawn(cohort.with_value(None, async |guard| guard.token()));
    sleep(MS).await;
    let number = first.token().number();
    first.release().await?;
    let failed = fails.await.expect("no panic").expect_err("its own error is not replaced");
    assert_eq!((failed.kind(), failed.key()), (ErrorKind::Quota, None));
    assert!(panics.await.expect_err("it panics").is_panic());
    sleep(MS).await;
    assert!(!last.is_finished(), "one body after the other");
    hangs.abort();
    let last = last.await.expect("no panic")?;
    assert_eq!((last.number(), last.turn()), (number, 4));
    Ok(())
}

/// A body that waits, and one that has not begun, when the lock is lost or the time is over.
#[tokio::test(start_paused = true)]
async fn x2c_a_body_runs_only_while_its_turn_is_held() -> Result<()> {
    let (lock, other) = two("cohort-stopped").await?;
    let cohort = lock.cohort();
    let (begins, begun) = oneshot::channel();
    let hangs = tokio::spawn(cohort.with(None, async move |guard| -> Result<()> {
        begins.send(guard.token()).expect("it is waited for");
        pending().await
    }));
    let token = begun.await.expect("it begins");
    let late = cohort.with(Some(MS), async |_| -> Result<()> { unreachable!("it is taken") }).await;
    let late = late.expect_err("it is taken");
    assert_eq!((late.kind(), late.body_ran()), (ErrorKind::Timeout, false));
    let next = tokio::spawn(cohort.with_value(None, async |guard| guard.token()));
    sleep(MS).await;
    other.break_lock().await?.expect("it is held");
    let lost = timeout(LONG, hangs).await.expect("it is told").expect("no panic");
    let lost = lost.expect_err("it was lost");
    assert_eq!(lost.loss_reason(), Some(LossReason::EntryDeleted));
    assert_eq!((lost.effect(), lost.body_ran()), (Effect::Unknown, true));
    assert!(next.await.expect("no panic")?.number() > token.number());

    let guard = cohort.acquire(None).await?;
    other.break_lock().await?.expect("it is held");
    assert_eq!(guard.lost().await, LossReason::EntryDeleted);
    let never = guard.with(async |_| -> Result<()> { unreachable!("it was lost") }).await;
    let never = never.expect_err("it was lost");
    assert_eq!((never.effect(), never.body_ran()), (Effect::None, false));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn l8_a_stop_refuses_those_who_wait_and_lets_the_turn_end() -> Result<()> {
    let (coordinator, cohort, guard, waits) = two_tasks("cohort-stop").await?;
    let stopping = tokio::spawn(async move { coordinator.stop_within(LONG).await });
    let refused = timeout(MS, waits).await.expect("at once").expect_err("nothing is given out");
    assert_eq!(refused.kind(), ErrorKind::Closed);
    let refused = cohort.acquire(None).await.expect_err("nothing is given out");
    assert_eq!(refused.kind(), ErrorKind::Closed);
    assert!(guard.is_held() && !stopping.is_finished());
    guard.release().await?;
    assert!(stopping.await.expect("no panic").cut_off.is_empty());
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn c7_a_stop_at_once_loses_the_turn_and_tells_those_who_wait() -> Result<()> {
    let (coordinator, _cohort, guard, waits) = two_tasks("cohort-closed").await?;
    coordinator.stop().await?;
    assert_eq!(guard.lost().await, LossReason::Closed);
    assert_eq!(waits.await.expect_err("it is stopped").kind(), ErrorKind::Closed);
    assert_eq!(guard.release().await.expect_err("it was lost").kind(), ErrorKind::Closed);
    Ok(())
}

/// The runtime of the session ends while a task of another one waits.
#[test]
fn those_who_wait_are_told_that_the_runtime_has_ended() {
    let session = tokio::runtime::Runtime::new().expect("a runtime");
    let (cohort, guard) = session.block_on(async {
        let coordinator = Coordinator::connect("memory://cohort-runtime").await.expect("memory");
        let cohort = coordinator.lock("a").expect("a name").cohort();
        let guard = cohort.acquire(None).await.expect("it is free");
        (cohort, guard)
    });
    let elsewhere = tokio::runtime::Runtime::new().expect("a runtime");
    let wait = elsewhere.block_on(waits(&cohort, None));
    // The tasks of a runtime end in any order, so the timer may be the first, while others still count on the session.
    let mut late = Box::pin(cohort.shared.lock.queue.out_of_time(Some(LONG)));
    let mut is_late = || {
        elsewhere.block_on(poll_fn(|context| Poll::Ready(late.as_mut().poll(context).is_ready())))
    };
    assert!(!is_late());
    drop(session);
    assert!(!is_late(), "the time is not over");
    let told = elsewhere.block_on(wait).expect_err("nobody acts for it");
    assert_eq!(told.kind(), ErrorKind::Closed);
    assert!(!guard.is_held());
    let told = elsewhere.block_on(cohort.acquire(None)).expect_err("nobody acts for it");
    assert_eq!(told.kind(), ErrorKind::Closed);
}
