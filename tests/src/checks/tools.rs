//! What the checks of all recipes use.

use std::ops::Deref;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use coordination::{
    BootInstant, Builder, Coordinator, Error, ErrorKind, FencingToken, Grant, Lock, LockGuard,
    Result, State,
};
use tokio::time::{sleep, timeout};

use super::TestStore;
use crate::harness::SchedulerLag;
use crate::must_hold;

pub use crate::bounds::PATIENCE;

/// The lock that most checks use.
pub const NAME: &str = "vol-7";
/// A short pause.
pub const MOMENT: Duration = Duration::from_millis(50);
/// Long enough for a store to answer, even if its disk is busy.
pub const ANSWERED: Duration = Duration::from_millis(300);

/// The lock that most checks use, as this client's handle.
pub fn lock(coordinator: &Coordinator) -> Lock {
    coordinator.lock(NAME).expect("a valid name")
}

/// Acquires the lock, within the timeout of the checks.
pub async fn acquire(coordinator: &Coordinator) -> Result<LockGuard> {
    lock(coordinator).acquire(Some(PATIENCE)).await
}

/// Acquires the lock in a task of its own.
pub fn acquire_in_background(
    coordinator: &Coordinator,
) -> tokio::task::JoinHandle<Result<LockGuard>> {
    let lock = lock(coordinator);
    tokio::spawn(async move { lock.acquire(Some(PATIENCE)).await })
}

/// Waits until this is so.
pub async fn until(holds: impl AsyncFn() -> Result<bool>) {
    let come = async {
        while !holds().await.expect("the store is in reach") {
            sleep(MOMENT / 10).await;
        }
    };
    timeout(PATIENCE, come).await.expect("it comes");
}

/// Acquires the lock and releases it.
pub async fn take_turn(coordinator: &Coordinator) -> Result<FencingToken> {
    let guard = acquire(coordinator).await?;
    let token = guard.token();
    guard.release().await.map(|()| token)
}

/// Waits until this many clients hold the lock or wait for it.
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

/// Waits until the coordinator is in a state for which `wanted` is true.
///
/// # Panics
///
/// If the coordinator is not in such a state in time.
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

/// Asserts that an acquire ended by its timeout, because another client held the lock. The error is `Timeout`. It may
/// also be `Unavailable` if the machine withheld three quarters of the time, because a call learns only from the
/// store's answer that the lock is held.
#[track_caller]
pub fn assert_out_of_time(refused: &Error, given: Duration) {
    let is_right = match refused.kind() {
        ErrorKind::Timeout => true,
        ErrorKind::Unavailable => SchedulerLag::lately(given) >= given * 3 / 4,
        _ => false,
    };
    assert!(is_right, "it should run out of time after {given:?}: {refused}");
}

/// Polls a future up to `times` times, with a pause after each poll; returns its output, if it completed.
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

/// Polls a future once and drops it; returns its output, if it completed.
pub async fn poll_once<F: Future>(future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    let polled = std::future::poll_fn(|context| Poll::Ready(future.as_mut().poll(context)));
    match polled.await {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

/// Polls a future up to `times` times and drops it; returns whether it completed.
pub async fn drop_after_polls<F: Future>(future: F, times: usize) -> bool {
    poll_times(pin!(future), times).await.is_some()
}

/// A held lock and its client, which were created on a runtime that has ended since.
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
        // Its threads may wait for a processor before they end what runs on it. Before that, it has not ended.
        runtime.shutdown_timeout(PATIENCE);
        held
    });
    holding.await.expect("no panic")
}

/// A critical section that panics if two are inside.
#[derive(Debug, Default)]
pub struct Room(AtomicUsize);

impl Room {
    /// Enters the room; dropping the returned value leaves it.
    pub fn enter(&self) -> Inside<'_> {
        let others = self.0.fetch_add(1, Ordering::SeqCst);
        must_hold!(others == 0, "somebody is in the critical section already");
        Inside(self)
    }
}

/// A visitor of a [`Room`], who leaves it when this value is dropped.
#[derive(Debug)]
pub struct Inside<'a>(&'a Room);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A thread that calls `is_held` of a guard all the time, even while the executor is blocked, and counts how often it was
/// held.
#[derive(Debug)]
pub struct Probe(JoinHandle<Seen>);

/// What a [`Probe`] has seen.
#[derive(Debug)]
struct Seen {
    /// How many looks saw the guard held.
    looks: usize,
    /// When the last of these looks began.
    last: BootInstant,
}

impl Probe {
    /// Calls [`is_held`](Grant::is_held) of this guard's grant until it returns false.
    pub fn start<G>(guard: &Arc<G>) -> Self
    where
        G: Deref<Target = Grant> + Send + Sync + 'static,
    {
        let guard = Arc::clone(guard);
        Self::over(move || guard.is_held())
    }

    /// Calls this `is_held` until it returns false. A guard of several locks is no [`Grant`], but has one, too.
    pub fn over(is_held: impl Fn() -> bool + Send + 'static) -> Self {
        Self(thread::spawn(move || {
            let mut seen = Seen { looks: 0, last: BootInstant::now() };
            loop {
                let before = BootInstant::now();
                if !is_held() {
                    // Without the present moment: the thread may have waited for a processor before this look.
                    return seen;
                }
                seen = Seen { looks: seen.looks + 1, last: before };
                // Pauses, because the checks share two cores with servers.
                thread::sleep(Duration::from_micros(200));
            }
        }))
    }

    /// Whether `is_held` has always returned true so far.
    pub fn is_held(&self) -> bool {
        !self.0.is_finished()
    }

    /// The last moment at which `is_held` returned true.
    ///
    /// # Panics
    ///
    /// If `is_held` never returned true: then the check has seen nothing.
    pub async fn last_held(self) -> BootInstant {
        let joining = tokio::task::spawn_blocking(|| self.0.join().expect("the probe"));
        let seen = timeout(PATIENCE, joining).await.expect("the guard is lost");
        let seen = seen.expect("not aborted");
        assert!(seen.looks > 0, "it was never seen to be held");
        seen.last
    }
}

/// The seed in the variable `COORDINATION_TEST_SEED`, if it is set.
pub fn given_seed() -> Option<u64> {
    let given = std::env::var("COORDINATION_TEST_SEED").ok()?;
    given.parse().ok()
}

/// The [given](given_seed) seed, or a random one; it is printed, so that the run can be repeated.
pub fn seed(check: &str) -> u64 {
    use std::hash::{BuildHasher, RandomState};
    let seed = given_seed().unwrap_or_else(|| RandomState::new().hash_one(check));
    eprintln!("{check}: COORDINATION_TEST_SEED={seed}");
    seed
}

/// Random numbers from a seed, so that a run can be repeated.
#[derive(Debug)]
pub struct Chance(u64);

impl Chance {
    /// A sequence from a [`seed`].
    pub fn new(check: &str) -> Self {
        Self(seed(check))
    }

    /// A sequence from this seed.
    pub fn of(seed: u64) -> Self {
        Self(seed)
    }

    /// Another, independent sequence.
    pub fn fork(&mut self) -> Self {
        Self(self.next())
    }

    /// A number below `limit`.
    pub fn below(&mut self, limit: u64) -> usize {
        usize::try_from(self.next() % limit).unwrap_or_default()
    }

    fn next(&mut self) -> u64 {
        // This is the algorithm SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

/// Runs this on a thread that belongs to no async runtime.
pub async fn without_a_runtime(run: impl FnOnce() -> Result<()> + Send + 'static) -> Result<()> {
    let (done, outcome) = tokio::sync::oneshot::channel();
    thread::spawn(move || done.send(run()));
    outcome.await.expect("no panic")
}
