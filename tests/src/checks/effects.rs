//! X2b: the effect in the error of a function with `#[synchronized]` says how far the function's body came.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use coordination::{Coordinator, Effect, Error, ErrorKind, Result, synchronized};
use tokio::sync::Notify;
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};

use super::TestStore;
use super::tools::{NAME, PATIENCE, acquire, lock, take_turn};
use crate::harness::Mode;

/// What the body of a synchronized function does.
#[derive(Clone, Copy, Debug)]
enum Body {
    /// Waits for ever.
    Waits,
    /// Blocks its thread until the lock is lost, and then succeeds.
    Ends,
    /// Blocks its thread until the lock is lost, and then fails with an error of its own.
    Fails,
}

const OWN: &str = "the body's own";

/// The result of the synchronized functions below. Its error type is a user's own, and not the library's.
type Outcome = Result<(), Failure>;

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

#[synchronized("vol-7", guard = guard, coordinator = c)]
async fn runs(c: Coordinator, body: Body, began: Arc<Notify>) -> Outcome {
    began.notify_one();
    if let Body::Waits = body {
        return pending().await;
    }
    while guard.is_held() {
        std::thread::sleep(Duration::from_millis(5));
    }
    if let Body::Fails = body { Err(Failure::Own(OWN)) } else { Ok(()) }
}

#[synchronized("vol-7", guard = guard, coordinator = c)]
fn runs_in_a_thread(c: Coordinator, body: Body, began: Arc<Notify>) -> Outcome {
    began.notify_one();
    while guard.is_held() {
        std::thread::sleep(Duration::from_millis(5));
    }
    if let Body::Fails = body { Err(Failure::Own(OWN)) } else { Ok(()) }
}

/// A function whose body never begins, because another client holds `vol-8`.
#[synchronized("vol-7", "vol-8", coordinator = c, timeout = limit)]
async fn never_runs(c: Coordinator, limit: Duration) -> Outcome {
    unreachable!("`vol-8` is taken")
}

/// The kind of an error, its effect, whether the body ran, and whether the error is transient.
type Told = (ErrorKind, Effect, bool, bool);

fn told(outcome: Outcome) -> Told {
    match outcome {
        Err(Failure::Lock(error)) => {
            (error.kind(), error.effect(), error.body_ran(), error.is_transient())
        }
        other => panic!("{other:?}"),
    }
}

/// How the holder loses the lock.
#[derive(Clone, Copy, Debug)]
enum End {
    Break,
    Stop,
}

impl End {
    const BOTH: [Self; 2] = [Self::Break, Self::Stop];

    async fn make(self, own: &Coordinator, other: &Coordinator) -> Result<()> {
        match self {
            Self::Break => lock(other).break_lock().await.map(|broken| assert!(broken.is_some())),
            Self::Stop => own.stop().await,
        }
    }

    fn is_told(self, effect: Effect) -> Told {
        let ran = effect != Effect::None;
        match self {
            Self::Break => (ErrorKind::Lost, effect, ran, !ran),
            Self::Stop => (ErrorKind::Closed, effect, ran, false),
        }
    }
}

/// X2b: the effect tells whether the body had not begun, had begun or had ended when the lock was broken or the
/// coordinator was stopped.
pub async fn x2b_the_effect_says_where_the_body_stood(store: &TestStore) -> Result<()> {
    let other = store.connect("other").await?;
    for end in End::BOTH {
        for (body, effect) in [(Body::Waits, Effect::Unknown), (Body::Ends, Effect::Applied)] {
            let outcome = ended(store, &other, end, body, false).await?;
            assert_eq!(told(outcome), end.is_told(effect), "{end:?}, {body:?}");
        }
        let outcome = ended(store, &other, end, Body::Ends, true).await?;
        assert_eq!(told(outcome), end.is_told(Effect::Applied), "{end:?}, a thread");
        for in_a_thread in [false, true] {
            let outcome = ended(store, &other, end, Body::Fails, in_a_thread).await?;
            assert!(matches!(outcome, Err(Failure::Own(OWN))), "{end:?}: {outcome:?}");
        }
    }
    take_turn(&other).await.map(drop)
}

/// Runs the body, and takes its lock away once the body has begun.
async fn ended(
    store: &TestStore,
    other: &Coordinator,
    end: End,
    body: Body,
    in_a_thread: bool,
) -> Result<Outcome> {
    let (one, began) = (store.connect("one").await?, Arc::<Notify>::default());
    let (own, tell) = (one.clone(), Arc::clone(&began));
    let running = match in_a_thread {
        true => spawn_blocking(move || runs_in_a_thread(own, body, tell)),
        false => tokio::spawn(runs(own, body, tell)),
    };
    began.notified().await;
    end.make(&one, other).await?;
    let outcome = timeout(PATIENCE, running).await.expect("the loss is noticed");
    // Frees the member id for the next client.
    one.stop().await?;
    Ok(outcome.expect("no panic"))
}

/// X2b: a body has no effect if the first of two locks is lost, or the timeout passes, while the call waits for the
/// second lock.
pub async fn x2b_a_body_that_never_began_has_no_effect(store: &TestStore) -> Result<()> {
    let other = store.connect("other").await?;
    let second = other.lock("vol-8")?.acquire(Some(PATIENCE)).await?;
    for end in End::BOTH {
        let one = store.connect("one").await?;
        let waiting = tokio::spawn(never_runs(one.clone(), PATIENCE));
        // Waits until the call is in the queue behind the holder of the second lock.
        let second = other.lock("vol-8")?;
        while second.holders().await?.len() < 2 {
            sleep(Duration::from_millis(5)).await;
        }
        // The library begins to watch a holder's entry a little after the grant. This waits until then.
        sleep(Duration::from_millis(100)).await;
        end.make(&one, &other).await?;
        let outcome = timeout(PATIENCE, waiting).await.expect("it is told").expect("no panic");
        assert_eq!(told(outcome), end.is_told(Effect::None), "{end:?}");
        one.stop().await?;
    }
    let one = store.connect("one").await?;
    let late = never_runs(one.clone(), Duration::from_millis(100)).await;
    assert_eq!(told(late), (ErrorKind::Timeout, Effect::None, false, true));
    second.release().await?;
    take_turn(&one).await.map(drop)
}

/// X2b: `protect`, and the release of a guard that was lost, return errors with the same effects as a synchronized
/// function.
pub async fn x2b_by_hand(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let guard = acquire(&one).await?;
    // The library begins to watch a holder's entry a little after the grant. This waits until then.
    sleep(Duration::from_millis(100)).await;
    let (protected, broken) = tokio::join!(
        timeout(PATIENCE, guard.protect(pending::<()>())),
        End::Break.make(&one, &other)
    );
    broken?;
    let stopped = protected.expect("it is told").expect_err("it was broken");
    assert_eq!((stopped.effect(), stopped.body_ran()), (Effect::Unknown, true));
    let never = guard.protect(async {}).await.expect_err("it was broken");
    assert_eq!((never.effect(), never.body_ran()), (Effect::None, false));
    assert_eq!((never.kind(), never.key()), (ErrorKind::Lost, Some(NAME)));
    let ended = guard.release().await.expect_err("it was broken");
    assert_eq!((ended.effect(), ended.body_ran()), (Effect::Applied, true));
    take_turn(&other).await.map(drop)
}

/// A function whose store stops answering before its body ends.
#[synchronized("<name>", coordinator = c)]
async fn is_cut_off(c: Coordinator, name: String, began: Arc<Notify>, end: Arc<Notify>) -> Outcome {
    began.notify_one();
    end.notified().await;
    Ok(())
}

/// X2b: if the body ended while the lock was held, the call succeeds even if its release is not confirmed, with leases
/// of any length.
pub async fn x2b_a_release_that_is_not_confirmed_fails_nothing(store: &TestStore) -> Result<()> {
    let shortest = store.ttl().unwrap_or_default();
    let leases = [1, 3, 10].map(|seconds| shortest.max(Duration::from_secs(seconds)));
    let mut running = Vec::new();
    for (number, lease) in leases.into_iter().enumerate() {
        let settings = store.settings().ttl(lease).member_id(format!("one-{number}"));
        let one = settings.connect(&store.url_by_proxy()).await?;
        let (began, end) = (Arc::<Notify>::default(), Arc::<Notify>::default());
        let call = is_cut_off(one.clone(), format!("cut-{number}"), began.clone(), end.clone());
        running.push((one, end, tokio::spawn(call), lease));
        began.notified().await;
    }
    store.proxy().set_both(Mode::Stall);
    running.iter().for_each(|(_, end, ..)| end.notify_one());
    for (_one, _, call, lease) in running {
        let outcome = timeout(lease + PATIENCE, call).await.expect("it is told").expect("no panic");
        assert!(outcome.is_ok(), "{lease:?}: {outcome:?}");
    }
    store.proxy().heal();
    Ok(())
}

/// X2b: a `loss_watch` does not keep the lock held, and it reports a loss as well as a release.
pub async fn x2b_a_watch_of_a_loss_keeps_nothing(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let guard = acquire(&one).await?;
    let watch = guard.loss_watch();
    let waiting = tokio::spawn({
        let watch = watch.clone();
        async move { watch.lost().await }
    });
    assert!(watch.is_held() && watch.name() == NAME);
    drop(guard);
    assert_eq!(timeout(PATIENCE, waiting).await.expect("it is over").expect("no panic"), None);
    assert!(!watch.is_held() && watch.lost().await.is_none());
    let guard = timeout(PATIENCE, acquire(&other)).await.expect("nobody keeps it")?;
    let watch = guard.loss_watch();
    sleep(Duration::from_millis(100)).await;
    let (reason, broken) =
        tokio::join!(timeout(PATIENCE, watch.lost()), End::Break.make(&other, &one));
    broken?;
    let reason = reason.expect("it is told").expect("it was broken");
    assert_eq!(reason, guard.lost().await);
    // Dropping the guard does not change that it was lost.
    drop(guard);
    assert_eq!(watch.lost().await, Some(reason));
    Ok(())
}
