//! L8: a coordinator stops in two steps. First it grants nothing new, and waits until all that is held has been
//! released. When the limit of the stop is over, it ends what is still held, and reports this as cut off.

use std::time::{Duration, Instant};

use coordination::{Coordinator, CutOff, Error, ErrorKind, Result, State, Stopped};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::TestStore;
use super::tools::{
    ANSWERED, MOMENT, PATIENCE, acquire, acquire_in_background, lock, take_turn, until_contenders,
    until_state,
};
use super::work::{claimed, jobs, kind, limit, posted};
use crate::bounds;
use crate::must_hold;

/// A limit for stops that return before the limit, because everything is released.
const LONG: Duration = Duration::from_secs(100);
/// The limit of stops that cut something off. The check has to wait until this limit is over. It is long enough for a
/// few calls.
const SHORT: Duration = Duration::from_millis(1_500);

/// Stops a client within this time, in a task of its own.
fn stop_within(coordinator: &Coordinator, limit: Duration) -> JoinHandle<Stopped> {
    let coordinator = coordinator.clone();
    tokio::spawn(async move { coordinator.stop_within(limit).await })
}

/// Waits until the client, which is being stopped, refuses to acquire locks.
async fn until_refused(coordinator: &Coordinator) {
    let probe = coordinator.lock("probe").expect("a good name");
    let refused = async {
        while !matches!(probe.try_acquire().await, Err(error) if error.kind() == ErrorKind::Closed)
        {
            sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(PATIENCE, refused).await.expect("it stops");
}

fn assert_refused<T>(outcome: Result<T>) {
    let error = outcome.map(drop).expect_err("nothing new is given out");
    assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
    assert!(error.to_string().contains("being stopped"), "{error}");
}

fn told(cut_off: &[CutOff]) -> Vec<(&str, &str)> {
    cut_off.iter().map(|cut_off| (cut_off.recipe, &*cut_off.name)).collect()
}

/// L8: during a stop, holders go on until they release, and the store confirms their releases; waiters and new callers
/// are refused. The stop returns after the last release.
pub async fn l8_holders_finish_and_all_others_are_refused(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let (first, second) = (acquire(&one).await?, one.semaphore("several", 2)?.acquire(None).await?);
    let waiting = acquire_in_background(&one);
    until_contenders(store, &lock(&other), 2).await;
    let ours = one.semaphore("few", 1)?;
    let theirs = other.semaphore("few", 1)?.acquire(Some(PATIENCE)).await?;
    let wants_permit = tokio::spawn(async move { ours.acquire(Some(PATIENCE)).await });
    let queue = jobs(&one);
    let wants_work = tokio::spawn(async move { queue.claim_wait(limit(1), Some(PATIENCE)).await });
    let hears = one.clone();
    let hears = tokio::spawn(async move { hears.stopping().await });
    sleep(ANSWERED).await;
    assert_eq!((one.held(), other.held()), (2, 1));
    assert!(!hears.is_finished());

    let stopping = stop_within(&one, LONG);
    let begun = Instant::now();
    assert_refused(waiting.await.expect("no panic"));
    assert_refused(wants_permit.await.expect("no panic"));
    assert_refused(wants_work.await.expect("no panic"));
    hears.await.expect("no panic");
    one.stopping().await;
    until_contenders(store, &lock(&other), 1).await;
    assert_refused(lock(&one).try_acquire().await);
    assert_refused(one.locks(["a", "b"])?.acquire(None).await);
    assert_refused(one.election("e")?.campaign("x", None).await);
    assert_refused(one.group("g")?.join_or_create("x").await.map_err(not_missing));
    assert_refused(jobs(&one).claim(limit(1)).await);
    assert!(first.is_held() && second.is_held());
    assert_eq!(one.counter("still")?.add(1).await?, 1, "what gives out nothing goes on");
    first.release().await?;
    // Heartbeats go on during the stop, so this guard stays held, even for longer than a lease.
    sleep(store.ttl().unwrap_or_default().min(PATIENCE / 4)).await;
    assert!(second.is_held() && !stopping.is_finished());
    second.release().await?;
    let stopped = stopping.await.expect("no panic");
    assert!(begun.elapsed() < LONG, "{:?}", begun.elapsed());
    assert!(stopped.cut_off.is_empty(), "{:?}", stopped.cut_off);
    stopped.confirmed?;
    assert_eq!((one.state().current(), one.held()), (State::Closed, 0));
    theirs.release().await?;
    take_turn(&other).await.map(drop)
}

/// Asserts that the stop has refused the call. `GroupMissing` would mean that the call was carried out, and found no
/// group.
fn not_missing(error: Error) -> Error {
    assert_ne!(error.kind(), ErrorKind::GroupMissing);
    error
}

/// L8: what is still held at the end of the limit is lost, the stop reports it, and other clients can acquire it. The
/// stop does not wait for memberships.
pub async fn l8_who_does_not_finish_is_told(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let member = one.group("g")?.join_or_create("x").await?;
    let guard = acquire(&one).await?;
    let shared = one.lock("read")?.acquire_shared(None).await?;
    let permit = one.semaphore("few", 2)?.acquire(None).await?;
    let leads = one.election("chief")?.campaign("x", None).await?;
    posted(&jobs(&one), 3).await?;
    let (claim, done) = (claimed(&jobs(&one), 1).await?, claimed(&jobs(&one), 1).await?);
    assert_eq!(one.held(), 6, "not the membership, and not what the claims hang on");
    done.ack_all().await?;
    assert_eq!(one.held(), 5);

    let begun = Instant::now();
    let stopping = stop_within(&one, SHORT);
    until_refused(&one).await;
    // A second stop, with a longer limit, ends with the same result as the first one.
    let second = stop_within(&one, PATIENCE);
    // A claim that is held can still be renewed.
    claim.renew(None, None).await?;
    let stopped = stopping.await.expect("no panic");
    let took = begun.elapsed();
    assert!(took >= SHORT, "{took:?}");
    if let Some(ttl) = store.ttl() {
        assert!(took <= SHORT + bounds::stopped(ttl) + store.scheduling(), "{took:?}");
    }
    must_hold!(!guard.is_held() && !permit.is_held() && !leads.is_held() && !shared.is_held());
    must_hold!(!member.is_held() && !claim.is_held());
    let mut seen = told(&stopped.cut_off);
    seen.sort_unstable();
    let wanted = [
        ("election", "chief"),
        ("lock", "read"),
        ("lock", super::tools::NAME),
        ("semaphore", "few"),
        ("work", "resize-jobs"),
    ];
    assert_eq!(seen, wanted);
    let of_lock = stopped.cut_off.iter().find(|cut_off| cut_off.name == super::tools::NAME);
    assert_eq!(of_lock.map(|cut_off| cut_off.token), Some(guard.token()));
    stopped.confirmed?;
    assert_eq!(second.await.expect("no panic").cut_off, stopped.cut_off);
    assert_eq!(kind(one.stop().await), None);
    let again = one.stop_within(PATIENCE).await;
    assert_eq!(again.cut_off, stopped.cut_off, "and it is told to whoever asks later");
    take_turn(&other).await?;
    other.lock("read")?.acquire(Some(PATIENCE)).await?.release().await
}

/// L8: a stop with a limit goes on when its future is dropped. A later stop without a limit ends the stop with the
/// limit, too.
pub async fn l8_however_often_it_is_stopped(store: &TestStore) -> Result<()> {
    let other = store.connect("other").await?;
    let one = store.connect("one").await?;
    let (guard, mut state) = (acquire(&one).await?, one.state());
    let dropped = timeout(MOMENT, one.stop_within(SHORT)).await;
    assert!(dropped.is_err() && guard.is_held(), "it waits for who holds");
    assert_refused(one.lock("a")?.try_acquire().await);
    until_state(&mut state, |state| state == State::Closed).await;
    must_hold!(!guard.is_held());
    take_turn(&other).await?;

    let one = store.connect("one").await?;
    let guard = acquire(&one).await?;
    let stopping = stop_within(&one, Duration::MAX);
    until_refused(&one).await;
    one.stop().await?;
    one.stopping().await;
    let stopped = timeout(PATIENCE, stopping).await.expect("it ends").expect("no panic");
    assert_eq!(told(&stopped.cut_off), [("lock", guard.name())]);
    stopped.confirmed?;

    let one = store.connect("one").await?;
    let guard = acquire(&one).await?;
    let stopped = one.stop_within(Duration::ZERO).await;
    assert_eq!(stopped.cut_off.len(), 1);
    must_hold!(!guard.is_held());
    stopped.confirmed?;
    let one = store.connect("one").await?;
    let heard = {
        let one = one.clone();
        tokio::spawn(async move { one.stopping().await })
    };
    one.stop().await?;
    timeout(PATIENCE, heard).await.expect("a stop in one step is heard too").expect("no panic");
    let one = store.connect("one").await?;
    let begun = Instant::now();
    one.stop_within(LONG).await.confirmed?;
    assert!(begun.elapsed() < LONG / 10, "nothing was held: {:?}", begun.elapsed());
    take_turn(&other).await.map(drop)
}

/// L8: tasks acquire and release locks all the time while the stop begins. No grant is cut off, in whatever step of
/// its task the stop begins.
pub async fn l8_nothing_is_cut_off_between_two_steps(store: &TestStore) -> Result<()> {
    for round in 0..10 {
        let one = store.connect("one").await?;
        let busy: Vec<_> = (0..4)
            .map(|task| one.lock(format!("busy-{task}")).expect("a good name"))
            .map(|lock| {
                tokio::spawn(async move {
                    loop {
                        match lock.acquire(None).await {
                            Ok(guard) => guard.release().await.expect("it was held"),
                            Err(error) => return error,
                        }
                    }
                })
            })
            .collect();
        sleep(Duration::from_millis(round)).await;
        let stopped = one.stop_within(LONG).await;
        assert!(stopped.cut_off.is_empty(), "{:?}", stopped.cut_off);
        stopped.confirmed?;
        for busy in busy {
            // The stop has refused this task, or the task was let in just before the stop and then found the session
            // closed.
            let refused = busy.await.expect("each release is confirmed");
            assert_eq!(refused.kind(), ErrorKind::Closed, "{refused}");
        }
    }
    Ok(())
}

/// L8: the stop returns in time although the store does not answer. Its result then has the error `Unavailable`.
pub async fn l8_bounded_while_the_store_hangs(store: &TestStore) -> Result<()> {
    let (one, ttl) = (store.connect_by_proxy("one").await?, store.ttl().expect("it has a lease"));
    let guard = acquire(&one).await?;
    store.proxy().set_both(crate::harness::Mode::Blackhole);
    let begun = Instant::now();
    let waiting = one.lock("vol-8")?;
    let waiting = tokio::spawn(async move { waiting.acquire(None).await });
    sleep(MOMENT).await;
    let stopping = stop_within(&one, 2 * MOMENT);
    assert_eq!(waiting.await.expect("no panic").expect_err("it fails").kind(), ErrorKind::Closed);
    assert!(!stopping.is_finished(), "refused at once, and the store is still asked to end it");
    let stopped = stopping.await.expect("no panic");
    let took = begun.elapsed();
    assert!(took <= 3 * MOMENT + bounds::stopped(ttl) + store.scheduling(), "{took:?}");
    assert_eq!(kind(stopped.confirmed), Some(ErrorKind::Unavailable));
    must_hold!(!guard.is_held());
    assert_eq!(stopped.cut_off.len(), 1);
    Ok(())
}
