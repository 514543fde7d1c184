//! X2c: `with` and `with_value` do for their body what `#[synchronized]` does for the body of a function.

use std::future::{Future, pending};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use coordination::{
    Admission, Coordinator, Effect, Error, ErrorKind, Grant, LossReason, Result, blocking,
};
use tokio::sync::Notify;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{sleep, timeout};

use super::TestStore;
use super::tools::{
    ANSWERED, NAME, PATIENCE, acquire, assert_out_of_time, lock, take_turn, until_contenders,
};

/// The error type of a user.
#[derive(Debug)]
enum Failure {
    Lock(Error),
    Own(&'static str),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Lock(error)
    }
}

const OWN: &str = "the body's own";

/// What the bodies below report to the checks.
#[derive(Debug, Default)]
struct Told {
    entered: Notify,
    dropped: AtomicBool,
}

impl Told {
    /// A body that tells that it has begun and that it was dropped, and never ends.
    async fn waits_for_ever<T>(&self) -> T {
        let _dropped = Dropped(self);
        self.entered.notify_one();
        pending().await
    }

    /// A body that blocks its thread until the grant is lost, so that it cannot be stopped.
    fn outlives(&self, grant: &Grant) {
        self.entered.notify_one();
        while grant.is_held() {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

struct Dropped<'a>(&'a Told);

impl Drop for Dropped<'_> {
    fn drop(&mut self) {
        self.0.dropped.store(true, Ordering::SeqCst);
    }
}

async fn break_once_entered(breaker: &Coordinator, told: &Told) -> Result<()> {
    told.entered.notified().await;
    lock(breaker).break_lock().await.map(|broken| assert!(broken.is_some()))
}

/// Asserts that this is the error of a lock that was broken, with this effect on the body.
#[track_caller]
fn assert_broken(error: &Error, effect: Effect) {
    let told = (error.kind(), error.loss_reason(), error.effect(), error.body_ran());
    let expected = (ErrorKind::Lost, Some(LossReason::EntryDeleted), effect, true);
    assert_eq!(told, expected, "{error}");
    assert_eq!(error.key(), Some(NAME));
}

/// X2c: the caller gets the body's value or the body's error, and calls of one name take turns.
pub async fn x2c_the_result_is_the_bodys(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let answers = |coordinator: &Coordinator| {
        lock(coordinator).with(Some(PATIENCE), async |guard| {
            assert!(guard.is_held() && guard.name() == NAME);
            tokio::task::yield_now().await;
            Ok::<_, Error>(guard.token())
        })
    };
    let mut last = None;
    for _ in 0..store.rounds(20, 5) {
        let (first, second) = tokio::join!(answers(&one), answers(&other));
        let (first, second) = (first?, second?);
        assert!(Some(first.min(second)) > last && first != second);
        last = Some(first.max(second));
    }
    let own = lock(&one).with(Some(PATIENCE), async |_| Err::<(), _>(Failure::Own(OWN))).await;
    assert!(matches!(own, Err(Failure::Own(OWN))), "{own:?}");
    let value = lock(&other).with_value(Some(PATIENCE), async |guard| guard.token()).await?;
    assert!(Some(value) > last);
    take_turn(&one).await.map(drop)
}

/// X2c: when the lock is lost, the body is dropped at its await, and the caller gets `Lost`.
pub async fn x2c_a_loss_cancels_the_body(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let (told, lock) = (Told::default(), lock(&one));
    let body = lock.with(Some(PATIENCE), async |_| told.waits_for_ever::<Result<()>>().await);
    let (outcome, broken) =
        tokio::join!(timeout(PATIENCE, body), break_once_entered(&other, &told));
    broken?;
    let error = outcome.expect("the loss is noticed").expect_err("the lock was broken");
    assert_broken(&error, Effect::Unknown);
    assert!(told.dropped.load(Ordering::SeqCst));
    let told = Told::default();
    let body = lock.with_value_shared(Some(PATIENCE), async |_| told.waits_for_ever::<()>().await);
    let (outcome, broken) =
        tokio::join!(timeout(PATIENCE, body), break_once_entered(&other, &told));
    broken?;
    let error = outcome.expect("the loss is noticed").expect_err("the lock was broken");
    assert_broken(&error, Effect::Unknown);
    assert!(told.dropped.load(Ordering::SeqCst));
    take_turn(&other).await.map(drop)
}

/// X2c: a body without awaits ends after its lock was lost. If the body succeeded, the caller gets `Lost`. If it
/// failed, the caller gets the body's error. Both also hold for a body that blocks a thread.
pub async fn x2c_a_success_after_a_loss_is_replaced(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    for in_a_thread in [false, true] {
        let succeeds = outlived(&one, &other, in_a_thread, || Result::<_, Failure>::Ok(())).await?;
        match succeeds {
            Err(Failure::Lock(error)) => assert_broken(&error, Effect::Applied),
            replaced => panic!("in a thread: {in_a_thread}, but {replaced:?}"),
        }
        let fails = outlived(&one, &other, in_a_thread, || Err(Failure::Own(OWN))).await?;
        assert!(matches!(fails, Err(Failure::Own(OWN))), "{fails:?}");
    }
    let told = Arc::new(Told::default());
    let (lock, tell) = (lock(&one), Arc::clone(&told));
    let running = tokio::spawn(lock.with_value(Some(PATIENCE), async move |guard| {
        tell.outlives(guard);
        7
    }));
    break_once_entered(&other, &told).await?;
    let outcome = timeout(PATIENCE, running).await.expect("the loss is noticed").expect("no panic");
    assert_broken(&outcome.expect_err("it was broken"), Effect::Applied);
    take_turn(&other).await.map(drop)
}

/// Runs a body that ends, with this result, only after its lock was broken.
async fn outlived(
    own: &Coordinator,
    breaker: &Coordinator,
    in_a_thread: bool,
    result: fn() -> Result<(), Failure>,
) -> Result<Result<(), Failure>> {
    let told = Arc::new(Told::default());
    let (lock, tell) = (lock(own), Arc::clone(&told));
    let running = match in_a_thread {
        false => tokio::spawn(lock.with(Some(PATIENCE), async move |guard| {
            tell.outlives(guard);
            result()
        })),
        true => spawn_blocking(move || {
            blocking::Lock::from(lock).with(Some(PATIENCE), |guard| {
                tell.outlives(guard);
                result()
            })
        }),
    };
    break_once_entered(breaker, &told).await?;
    let outcome = timeout(PATIENCE, running).await.expect("the loss is noticed");
    Ok(outcome.expect("no panic"))
}

/// X2c: if the lock is not free in time, the body never begins.
pub async fn x2c_out_of_time_the_body_never_begins(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let held = acquire(&other).await?;
    let one_lock = lock(&one);
    let late =
        one_lock.with(Some(ANSWERED), async |_| -> Result<()> { unreachable!("it is held") });
    let late = late.await.expect_err("it is held");
    assert_out_of_time(&late, ANSWERED);
    assert_eq!((late.effect(), late.body_ran()), (Effect::None, false));
    let late = one_lock.with_value_shared(Some(ANSWERED), async |_| unreachable!("it is held"));
    let late: Error = late.await.expect_err("it is held");
    assert_out_of_time(&late, ANSWERED);
    let thread = blocking::Lock::from(one_lock.clone());
    let late = spawn_blocking(move || thread.with_value(Some(ANSWERED), |_| unreachable!("held")));
    let late: Result<()> = late.await.expect("no panic");
    assert_out_of_time(&late.expect_err("it is held"), ANSWERED);
    held.release().await?;
    one_lock.with_value(Some(PATIENCE), async |_| ()).await
}

/// X2c: a panic in the body releases the lock.
pub async fn x2c_a_panic_releases(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let panics = lock(&one).with(Some(PATIENCE), async |_| -> Result<()> {
        tokio::task::yield_now().await;
        std::panic::resume_unwind(Box::new("a bug in the body"))
    });
    assert!(tokio::spawn(panics).await.expect_err("it panicked").is_panic());
    until_contenders(store, &lock(&other), 0).await;
    let thread = blocking::Lock::from(lock(&one));
    let panics = spawn_blocking(move || {
        thread.with_value(Some(PATIENCE), |_| {
            std::panic::resume_unwind(Box::new("a bug in the body"))
        })
    });
    let panicked: Result<Result<()>, _> = panics.await;
    assert!(panicked.expect_err("it panicked").is_panic());
    until_contenders(store, &lock(&other), 0).await;
    take_turn(&one).await.map(drop)
}

/// X2c: a future that is dropped gives up the lock, or its place in the queue, and drops its body.
pub async fn x2c_a_dropped_future_releases(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let told = Told::default();
    tokio::select! {
        never = lock(&one).with(Some(PATIENCE), async |_| told.waits_for_ever::<Result<()>>().await) => {
            panic!("the body never ends, but {never:?}")
        }
        () = told.entered.notified() => {}
    }
    assert!(told.dropped.load(Ordering::SeqCst));
    until_contenders(store, &lock(&other), 0).await;
    // This future waits for the lock.
    let held = acquire(&other).await?;
    let waiting = lock(&one).with_value(None, async |_| unreachable!("it is held"));
    let waiting: JoinHandle<Result<()>> = tokio::spawn(waiting);
    until_contenders(store, &lock(&other), 2).await;
    waiting.abort();
    until_contenders(store, &lock(&other), 1).await;
    // This future has a guard, and is never polled.
    drop(held.with_value(async |_| unreachable!("nobody polls it")));
    until_contenders(store, &lock(&other), 0).await;
    take_turn(&one).await.map(drop)
}

/// X2c: if a guard was lost before the body begins, the body never runs.
pub async fn x2c_a_guard_that_was_lost_runs_nothing(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let guard = acquire(&one).await?;
    let watch = guard.loss_watch();
    // The library begins to watch a holder's entry a little after the grant. This waits until then.
    sleep(Duration::from_millis(100)).await;
    assert!(lock(&other).break_lock().await?.is_some());
    timeout(PATIENCE, watch.lost()).await.expect("the loss is noticed");
    let never = guard.with(async |_| -> Result<()> { unreachable!("it was lost") }).await;
    let never = never.expect_err("it was lost");
    assert_eq!(
        (never.kind(), never.effect(), never.body_ran()),
        (ErrorKind::Lost, Effect::None, false)
    );
    take_turn(&other).await.map(drop)
}

/// X2c: `with` and `with_value` work for every kind of object that can be held. The body runs, and the object is free
/// again when the call returns. If the session ends, the body is stopped.
pub async fn x2c_whatever_is_held(store: &TestStore) -> Result<()> {
    let one = store.connect("one").await?;
    let other = store.connect("other").await?;
    runs_under_each(&one, &other).await?;
    one.stop().await?;
    for held in 0.. {
        let one = store.connect("one").await?;
        let told = Arc::new(Told::default());
        let Some(running) = under_each(&one, held, Arc::clone(&told)) else {
            return one.stop().await;
        };
        let running = tokio::spawn(running);
        told.entered.notified().await;
        one.stop().await?;
        let outcome = timeout(PATIENCE, running).await.expect("it is told").expect("no panic");
        let error = outcome.expect_err("its coordinator was stopped");
        assert_eq!((error.kind(), error.effect()), (ErrorKind::Closed, Effect::Unknown), "{held}");
        assert!(told.dropped.load(Ordering::SeqCst), "{held}");
    }
    Ok(())
}

/// The objects that can be held are numbered. This is the call under the object with this number, with a body that
/// never ends; `None`: no object has this number.
fn under_each(
    one: &Coordinator,
    held: usize,
    told: Arc<Told>,
) -> Option<std::pin::Pin<Box<dyn Future<Output = Result<()>> + Send>>> {
    let (one, limit) = (one.clone(), Some(PATIENCE));
    Some(match held {
        0 => Box::pin(async move {
            lock(&one).with_shared(limit, async |_| told.waits_for_ever().await).await
        }),
        1 => Box::pin(async move {
            one.locks(["b", "a"])?.with(limit, async |_| told.waits_for_ever().await).await
        }),
        2 => Box::pin(async move {
            one.locks(["b", "a"])?.with_shared(limit, async |_| told.waits_for_ever().await).await
        }),
        3 => Box::pin(async move {
            one.semaphore("s", 2)?.with(limit, async |_| told.waits_for_ever().await).await
        }),
        4 => Box::pin(async move {
            one.election("e")?.with("me", limit, async |_| told.waits_for_ever().await).await
        }),
        5 => Box::pin(async move {
            let Admission::Working(slot) = one.singleton("n")?.enter().await? else {
                panic!("nobody else is there")
            };
            slot.with(async |_| told.waits_for_ever().await).await
        }),
        6 => Box::pin(async move {
            let member = one.group("g")?.join_or_create(&()).await?;
            member.with_value(async |_| told.waits_for_ever().await).await
        }),
        7 => Box::pin(async move {
            let several = one.locks(["b", "a"])?.acquire(limit).await?;
            several.with_value(async |_| told.waits_for_ever().await).await
        }),
        8 => Box::pin(async move {
            lock(&one).cohort().with(limit, async |_| told.waits_for_ever().await).await
        }),
        9 => Box::pin(async move {
            let turn = lock(&one).cohort().acquire(limit).await?;
            turn.with_value(async |_| told.waits_for_ever().await).await
        }),
        _ => return None,
    })
}

/// Runs a body under each kind of object that can be held, and asserts that the object is free afterwards.
async fn runs_under_each(one: &Coordinator, other: &Coordinator) -> Result<()> {
    let limit = Some(PATIENCE);
    let both = one.locks(["b", "a"])?;
    let names = both.with_value(limit, async |guards| {
        guards.iter().map(|guard| guard.name().to_owned()).collect::<Vec<_>>()
    });
    assert_eq!(names.await?, ["a", "b"]);
    let shared = both.with_value_shared(limit, async |guards| guards[0].is_shared()).await?;
    let several = other.locks(["b", "a"])?.acquire(limit).await?;
    assert!(shared && several.with_value(async |guards| guards[1].is_held()).await?);
    let cohort = lock(one).cohort();
    let first = cohort.with(limit, async |guard| Ok::<_, Error>(guard.token())).await?;
    let second = cohort.with_value(limit, async |guard| guard.token()).await?;
    let turn = lock(other).cohort().acquire(limit).await?;
    assert!(first < second && second < turn.with_value(async |guard| guard.token()).await?);
    let (uploads, others) = (one.semaphore("s", 2)?, other.semaphore("s", 2)?);
    let slot = uploads.with(limit, async |permit| Ok::<_, Error>(permit.slot())).await?;
    let permits = others.acquire_many(2, limit).await?;
    assert_eq!(slot, 0);
    assert_eq!(permits.with_value(async |permits| permits.slots().len()).await?, 2);
    let (election, standing) = (one.election("e")?, other.election("e")?);
    let first = election
        .with("one", limit, async |leadership| {
            let seen = standing.leader().await?.expect("somebody leads");
            assert_eq!(seen.value::<String>()?, "one");
            Ok::<_, Error>(leadership.term())
        })
        .await?;
    let leads = standing.campaign("other", limit).await?;
    assert!(leads.with_value(async |leadership| leadership.term()).await? > first);
    for coordinator in [one, other] {
        let Admission::Working(slot) = coordinator.singleton("n")?.enter().await? else {
            panic!("it is free")
        };
        assert_eq!(slot.with_value(async |slot| slot.slot()).await?, 1);
    }
    let group = other.group("g")?;
    let member = one.group("g")?.join_or_create(&()).await?;
    let listed = member.with(async |_| Ok::<_, Error>(group.members().await?.len())).await?;
    assert_eq!((listed, group.members().await?.len()), (1, 0));
    Ok(())
}
