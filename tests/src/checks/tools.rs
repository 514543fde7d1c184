//! What checks have in common.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use coordination::{
    BootInstant, Builder, Coordinator, Error, ErrorKind, FencingToken, Lock, LockGuard, Result,
    State,
};
use tokio::time::{sleep, timeout};

use super::TestStore;
use crate::harness::SchedulerLag;
use crate::must_hold;

pub use crate::bounds::PATIENCE;

/// The lock that most checks are about.
pub const NAME: &str = "vol-7";
/// A little while.
pub const MOMENT: Duration = Duration::from_millis(50);
/// Long enough for a store to answer, whatever else its disk has to do.
pub const ANSWERED: Duration = Duration::from_millis(300);

/// The lock that most checks are about, at this client.
pub fn lock(coordinator: &Coordinator) -> Lock {
    coordinator.lock(NAME).expect("a valid name")
}

/// Takes it, in good time.
pub async fn acquire(coordinator: &Coordinator) -> Result<LockGuard> {
    lock(coordinator).acquire(Some(PATIENCE)).await
}

/// Waits for it in a task of its own.
pub fn acquire_in_background(
    coordinator: &Coordinator,
) -> tokio::task::JoinHandle<Result<LockGuard>> {
    let lock = lock(coordinator);
    tokio::spawn(async move { lock.acquire(Some(PATIENCE)).await })
}

/// Takes it and gives it back.
pub async fn take_turn(coordinator: &Coordinator) -> Result<FencingToken> {
    let guard = acquire(coordinator).await?;
    let token = guard.token();
    guard.release().await.map(|()| token)
}

/// Waits until this many hold it or wait for it; they may be a thousand.
pub async fn until_contenders(store: &TestStore, lock: &Lock, count: usize) {
    let mut seen = Vec::new();
    let come = async {
        loop {
            seen = store.contenders(lock).await;
            if seen.len() == count {
                return;
            }
            sleep(Duration::from_millis(5)).await;
        }
    };
    let outcome = timeout(3 * PATIENCE, come).await;
    assert!(outcome.is_ok(), "{count} contenders expected, and there are {seen:?}");
}

/// Waits for this state of the coordinator.
///
/// # Panics
///
/// When it does not come.
pub async fn until_state(
    watch: &mut coordination::StateWatch,
    wanted: impl Fn(State) -> bool,
) -> State {
    let come = async {
        while !wanted(watch.current()) {
            watch.changed().await.expect("not the last state");
        }
        watch.current()
    };
    timeout(PATIENCE, come).await.expect("the state comes")
}

/// Asserts that a call ran out of the time that it was given behind somebody else: `Timeout`. It cannot know that before
/// the store has answered, so that `Unavailable` is right where the machine withheld three quarters of that time.
#[track_caller]
pub fn assert_out_of_time(refused: &Error, given: Duration) {
    let is_right = match refused.kind() {
        ErrorKind::Timeout => true,
        ErrorKind::Unavailable => SchedulerLag::lately(given) >= given * 3 / 4,
        _ => false,
    };
    assert!(is_right, "it should run out of time after {given:?}: {refused}");
}

/// Polls a future up to so many times, with a pause for others after each; its output, if it came.
pub async fn poll_times<F: Future>(mut future: Pin<&mut F>, times: usize) -> Option<F::Output> {
    for _ in 0..times {
        let polled = std::future::poll_fn(|context| Poll::Ready(future.as_mut().poll(context)));
        if let Poll::Ready(output) = polled.await {
            return Some(output);
        }
        sleep(Duration::from_millis(1)).await;
    }
    None
}

/// Polls a future once and drops it where it stands; its output, if it came.
pub async fn poll_once<F: Future>(future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    let polled = std::future::poll_fn(|context| Poll::Ready(future.as_mut().poll(context)));
    match polled.await {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

/// Polls a future so many times and drops it where it stands; whether it had completed.
pub async fn drop_after_polls<F: Future>(future: F, times: usize) -> bool {
    poll_times(pin!(future), times).await.is_some()
}

/// A lock, and the client it belongs to, of a runtime that has ended since.
pub async fn held_by_an_ended_runtime(
    settings: Builder,
    url: String,
) -> Result<(LockGuard, Coordinator)> {
    let holding = tokio::task::spawn_blocking(move || {
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        let held: Result<_> = runtime.block_on(async {
            let coordinator = settings.connect(&url).await?;
            Ok((acquire(&coordinator).await?, coordinator))
        });
        runtime.shutdown_timeout(Duration::from_secs(1));
        held
    });
    holding.await.expect("no panic")
}

/// A room for one: panics when two are inside.
#[derive(Debug, Default)]
pub struct Room(AtomicUsize);

impl Room {
    /// Goes in and comes out when the answer is dropped.
    pub fn enter(&self) -> Inside<'_> {
        let others = self.0.fetch_add(1, Ordering::SeqCst);
        must_hold!(others == 0, "somebody is in the critical section already");
        Inside(self)
    }
}

/// Somebody in a [`Room`].
#[derive(Debug)]
pub struct Inside<'a>(&'a Room);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A thread that asks a guard [`is_held`](coordination::Grant::is_held) all the time, whatever the executor does.
#[derive(Debug)]
pub struct Probe(JoinHandle<BootInstant>);

impl Probe {
    /// Asks until the answer is no.
    pub fn start(guard: &Arc<LockGuard>) -> Self {
        let guard = Arc::clone(guard);
        Self(thread::spawn(move || {
            let mut last = BootInstant::now();
            loop {
                let before = BootInstant::now();
                if !guard.is_held() {
                    return last;
                }
                last = before;
                // The checks share two cores with servers.
                thread::sleep(Duration::from_micros(200));
            }
        }))
    }

    /// Whether the answer was yes all the time so far.
    pub fn is_held(&self) -> bool {
        !self.0.is_finished()
    }

    /// The last moment of which the answer was yes.
    pub async fn last_held(self) -> BootInstant {
        let joining = tokio::task::spawn_blocking(|| self.0.join().expect("the probe"));
        timeout(PATIENCE, joining).await.expect("the guard is lost").expect("not aborted")
    }
}

/// The seed that `COORDINATION_TEST_SEED` gives, if it does.
pub fn given_seed() -> Option<u64> {
    let given = std::env::var("COORDINATION_TEST_SEED").ok()?;
    given.parse().ok()
}

/// The [given](given_seed) seed, or one that differs each time; printed to be had again.
pub fn seed(check: &str) -> u64 {
    use std::hash::{BuildHasher, RandomState};
    let seed = given_seed().unwrap_or_else(|| RandomState::new().hash_one(check));
    eprintln!("{check}: COORDINATION_TEST_SEED={seed}");
    seed
}

/// Numbers that look random, and are printed to be had again.
#[derive(Debug)]
pub struct Chance(u64);

impl Chance {
    /// Of a [`seed`].
    pub fn new(check: &str) -> Self {
        Self(seed(check))
    }

    /// Of this seed.
    pub fn of(seed: u64) -> Self {
        Self(seed)
    }

    /// Another sequence.
    pub fn fork(&mut self) -> Self {
        Self(self.next())
    }

    /// A number below `limit`.
    pub fn below(&mut self, limit: u64) -> usize {
        usize::try_from(self.next() % limit).unwrap_or_default()
    }

    fn next(&mut self) -> u64 {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

/// Runs this on a thread of which no runtime knows.
pub async fn without_a_runtime(run: impl FnOnce() -> Result<()> + Send + 'static) -> Result<()> {
    let (done, outcome) = tokio::sync::oneshot::channel();
    thread::spawn(move || done.send(run()));
    outcome.await.expect("no panic")
}
