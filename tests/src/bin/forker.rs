//! A client that forks while it holds a lock. A test uses it to check that the child cannot harm its parent's session.
//!
//! * `forker <url> <name>` prints what parent and child find, one line each. `checks::closing` reads these lines.
//! * `forker <url> <name> <session> <drops> <busy> <rounds>` forks `rounds` times, while other threads take and release
//!   locks. Each child drops its copy of one thing; see [`Case`]. If a child's drop makes the parent lose anything, the
//!   program fails.
//!
//! In both cases the program has installed a recorder of metrics, whose mutex is locked half of the time.
//!
//! If the environment variable `FORKER_APART` is set, each child is the first process of a pid namespace of its own.
//!
//! The child of a process with several threads may do little except read and write: a mutex that another thread held at
//! the fork, even the allocator's, may stay locked in the child for ever. But glibc makes sure that its allocator can
//! be used in the child. If the child hangs for any other reason, the parent kills it after thirty seconds.

use std::fs::File;
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Waker};
use std::thread;
use std::time::{Duration, Instant};

use coordination::blocking::{self, Coordinator};
use coordination::{
    ClaimId, ClaimOptions, ErrorKind, LockGuard, LossReason, NewItem, Presence, RateLimiter,
    RejoiningMembership, Result, State, WorkClaim, WorkQueue,
};
use coordination_tests::bounds::LONG;
use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};
use tokio::runtime::{Builder, Runtime};

/// A recorder of metrics that has a mutex, as all exporters of metrics have. When a child is forked, a thread of the
/// parent may have locked it.
struct Locked(Arc<Mutex<()>>);

impl Locked {
    fn install() {
        let mutex = Arc::new(Mutex::new(()));
        metrics::set_global_recorder(Self(Arc::clone(&mutex))).expect("the only recorder");
        thread::spawn(move || {
            loop {
                let locked = mutex.lock();
                thread::sleep(Duration::from_micros(200));
                drop(locked);
                thread::sleep(Duration::from_micros(200));
            }
        });
    }

    fn wait(&self) -> Arc<Waits> {
        drop(self.0.lock().unwrap_or_else(PoisonError::into_inner));
        Arc::new(Waits(Arc::clone(&self.0)))
    }
}

/// A handle of a metric. It locks the mutex too, even when it is dropped.
struct Waits(Arc<Mutex<()>>);

impl Drop for Waits {
    fn drop(&mut self) {
        drop(self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

impl metrics::CounterFn for Waits {
    fn increment(&self, _: u64) {}
    fn absolute(&self, _: u64) {}
}

impl metrics::GaugeFn for Waits {
    fn increment(&self, _: f64) {}
    fn decrement(&self, _: f64) {
        drop(self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }
    fn set(&self, _: f64) {}
}

impl metrics::HistogramFn for Waits {
    fn record(&self, _: f64) {}
}

impl Recorder for Locked {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.wait())
    }
    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.wait())
    }
    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(self.wait())
    }
}

fn main() -> ExitCode {
    Locked::install();
    let arguments: Vec<_> = std::env::args().collect();
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    let outcome = match arguments[..] {
        [_, url, name] => {
            // The runtime has one worker thread, which runs tasks while another thread forks.
            let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build();
            let runtime = runtime.expect("a runtime");
            let (url, name) = (url.to_owned(), name.to_owned());
            let forking = runtime.spawn_blocking(move || fork_while_holding(&url, &name));
            runtime.block_on(forking).expect("no panic")
        }
        [_, url, name, session, drops, busy, rounds] => Case {
            url,
            name,
            is_on_current_runtime: session == "current",
            drops,
            busy,
            rounds: rounds.parse().expect("a number"),
        }
        .run(),
        _ => panic!("forker <url> <name> [<session> <drops> <busy> <rounds>]"),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:?}");
            ExitCode::FAILURE
        }
    }
}

fn fork_while_holding(url: &str, name: &str) -> Result<()> {
    let coordinator = Coordinator::connect(url)?;
    let lock = coordinator.lock(name)?;
    let (kept, dropped) = (lock.acquire(None)?, coordinator.lock("another")?.acquire(None)?);
    let released = coordinator.lock("a third")?.acquire(None)?;
    let limiter = coordinator.as_async().rate_limiter("limiter", 5, LONG)?;
    let group = coordinator.as_async().group("members")?;
    let member = blocking::wait(group.join_or_create("ssd"))?.rejoining();
    let jobs = coordinator.as_async().queue("jobs")?;
    blocking::wait(jobs.post(&[NewItem::new("vol-7")]))?;
    let claim = blocking::wait(jobs.claim(ClaimOptions::default()))?;
    let mut claim = claim.expect("an item is ready");
    // Calls that are at the store when the child is forked, and have locked something until the store has answered.
    let _asking = begun(|| limiter.try_acquire(1));
    let _updating = begun(|| member.update("hdd"));
    match fork() {
        0 => {
            is_over(&limiter, &member);
            is_parents(&jobs, &mut claim);
            drop(claim);
            child(kept, dropped, released, coordinator)
        }
        child => {
            wait_for(child, || thread::sleep(Duration::from_millis(5)));
            // After this pause, everything that the child may have sent has arrived at the store.
            thread::sleep(Duration::from_millis(500));
            let locks = kept.is_held() && dropped.is_held() && released.is_held();
            let all = locks && claim.is_held() && blocking::wait(claim.ack_all())? > 0;
            let refused = lock.try_acquire()?.is_none()
                && coordinator.lock("another")?.try_acquire()?.is_none()
                && coordinator.lock("a third")?.try_acquire()?.is_none();
            println!("parent: held {}", all && refused);
            blocking::release(kept)?;
            blocking::release(dropped)?;
            blocking::release(released)?;
            coordinator.stop()
        }
    }
}

/// The call, which waits for the store.
fn begun<F: Future>(call: impl Fn() -> F) -> Pin<Box<F>> {
    loop {
        let mut begun = Box::pin(call());
        if begun.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
            return begun;
        }
    }
}

/// In the child, everything is over at once, whatever the parent was doing.
fn is_over(limiter: &RateLimiter, member: &RejoiningMembership) {
    let asked = blocking::wait(limiter.try_acquire(1));
    assert!(is_closed(asked.map(drop)), "permits are the parent's");
    assert!(is_closed(blocking::wait(limiter.reset())), "as is the limiter");
    assert_eq!(member.presence(), Presence::Ended(ErrorKind::Closed));
    assert!(is_closed(blocking::wait(member.update("nvme"))), "the member is the parent's");
}

/// In the child, no items are claimed, and nobody is there who could renew the claim or take one back.
fn is_parents(jobs: &WorkQueue, claim: &mut WorkClaim) {
    assert!(!claim.is_held(), "the items are the parent's");
    claim.keep_alive();
    assert_eq!(blocking::wait(claim.lost()), LossReason::Closed);
    blocking::wait(jobs.undo_claim(ClaimId::random()));
    let posted = blocking::wait(jobs.post(&[NewItem::new("vol-8")]));
    assert!(is_closed(posted.map(drop)), "the queue is the parent's");
}

/// What the child does with its copies of the guards and of the coordinator. It ends the process, so it never returns.
fn child(kept: LockGuard, dropped: LockGuard, released: LockGuard, coordinator: Coordinator) -> ! {
    println!("child: held {}", kept.is_held() || dropped.is_held() || released.is_held());
    drop(dropped);
    let refused = blocking::release(released);
    let again = coordinator.lock("a fourth").and_then(|lock| lock.try_acquire());
    if is_closed(refused) && is_closed(again.map(drop)) && is_closed(coordinator.stop()) {
        println!("child: release refused");
    }
    drop(coordinator);
    drop(kept);
    exit(0)
}

fn is_closed(outcome: Result<()>) -> bool {
    outcome.is_err_and(|error| error.kind() == ErrorKind::Closed)
}

/// The parameters of the second form of the command: where the session runs, what the children drop, and which locks
/// the busy threads take.
struct Case<'a> {
    url: &'a str,
    name: &'a str,
    /// Whether the session runs on this program's runtime. Otherwise it runs on a thread of its own.
    is_on_current_runtime: bool,
    /// What each child drops: its copy of the `guard`, of the `coordinator` or of the `runtime`, or `nothing`.
    drops: &'a str,
    /// From which coordinator the busy threads take their locks: from the `same` one as the guard, or from another one,
    /// `apart`.
    busy: &'a str,
    /// How often the program forks a child.
    rounds: usize,
}

/// How many threads take and release locks while the program forks.
const BUSY: usize = 4;

/// What the parent has when it forks. Each child gets a copy of it.
struct Parent {
    coordinator: coordination::Coordinator,
    // Declared after the coordinator, and so dropped after it, because the session may run on this runtime.
    runtime: Runtime,
}

impl Case<'_> {
    fn run(&self) -> Result<()> {
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        let settings = coordination::Coordinator::builder()
            .heartbeat(Duration::from_millis(200))
            .heartbeat_on_current_runtime(self.is_on_current_runtime);
        let coordinator = runtime.block_on(settings.connect(self.url))?;
        let other = Coordinator::connect(self.url)?;
        let busy_ones = if self.busy == "same" { &coordinator } else { other.as_async() };
        let end = Arc::new(AtomicBool::new(false));
        let busy: Vec<_> = (0..BUSY).map(|index| keep_busy(busy_ones, index, &end)).collect();
        let mut parent = Parent { coordinator, runtime };
        for _ in 0..self.rounds {
            parent = self.round(parent, &other)?;
        }
        end.store(true, Ordering::SeqCst);
        // The last calls of the threads may need the runtime, so it has to run until all threads have ended.
        while !busy.iter().all(|thread| thread.is_finished()) {
            pause(&parent.runtime);
        }
        parent.runtime.block_on(parent.coordinator.stop())
    }

    /// Forks while this process holds a guard, and while a task of the runtime waits for the same lock. Then checks
    /// that the guard is still held, and that the task gets the lock when the guard is released.
    fn round(&self, parent: Parent, other: &Coordinator) -> Result<Parent> {
        let Parent { coordinator, runtime } = &parent;
        let (lock, mut states) = (coordinator.lock(self.name)?, coordinator.state());
        let guard = runtime.block_on(lock.acquire(None))?;
        let (waits, within) = (lock.clone(), coordinator.lock("within")?);
        let waiting = runtime.spawn(async move {
            let within = within.acquire(None).await?;
            waits.acquire(None).await?.release().await?;
            within.release().await
        });
        runtime.block_on(async {
            while lock.holders().await?.len() < 2 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            Ok::<_, coordination::Error>(())
        })?;
        let child = match fork() {
            0 => self.child(parent, guard),
            child => child,
        };
        wait_for(child, || pause(runtime));
        runtime.block_on(async {
            // Acquires another lock first. This succeeds only when the connection works. So if the child has broken the
            // connection, the library has repaired it by then.
            let beside = coordinator.lock("beside")?.acquire(Some(LONG)).await?;
            beside.release().await?;
            assert!(guard.is_held() && !waiting.is_finished(), "the lock is lost");
            assert!(
                other.as_async().lock(self.name)?.try_acquire().await?.is_none(),
                "two hold it"
            );
            guard.release().await?;
            let served = tokio::time::timeout(LONG, waiting).await;
            served.expect("the waiter is served").expect("no panic")
        })?;
        let told = std::iter::from_fn(|| {
            runtime.block_on(async {
                tokio::time::timeout(Duration::ZERO, states.changed()).await.ok().flatten()
            })
        });
        let lost: Vec<_> =
            told.filter(|state| !matches!(state, State::Connected | State::Suspended)).collect();
        assert!(lost.is_empty(), "{lost:?}");
        Ok(parent)
    }

    /// What the child does with its copies. It ends the process, so it never returns.
    fn child(&self, parent: Parent, guard: LockGuard) -> ! {
        let Parent { coordinator, runtime } = parent;
        let mut copies = (Some(guard), Some(coordinator), Some(runtime));
        let done = catch_unwind(AssertUnwindSafe(|| {
            assert!(!copies.0.as_ref().is_some_and(|guard| guard.is_held()));
            match self.drops {
                "guard" => drop(copies.0.take()),
                "coordinator" => drop(copies.1.take()),
                "runtime" => drop(copies.2.take()),
                _ => {}
            }
        }));
        exit(i32::from(done.is_err()))
    }
}

/// Lets the runtime run its tasks for a millisecond.
fn pause(runtime: &Runtime) {
    runtime.block_on(async { tokio::time::sleep(Duration::from_millis(1)).await });
}

/// Starts a thread that takes and releases a lock, over and over, until `end` is set. Each thread has a lock of its
/// own.
fn keep_busy(
    coordinator: &coordination::Coordinator,
    index: usize,
    end: &Arc<AtomicBool>,
) -> thread::JoinHandle<()> {
    let lock = coordinator.lock(format!("busy-{index}")).expect("a good name");
    let end = Arc::clone(end);
    thread::spawn(move || {
        while !end.load(Ordering::SeqCst) {
            let guard = blocking::wait(lock.acquire(None)).expect("the session lives");
            blocking::wait(guard.release()).expect("it was held");
        }
    })
}

/// Waits for the end of the child, and kills the child if it hangs.
///
/// # Panics
///
/// If the child hangs or fails.
fn wait_for(child: i32, meanwhile: impl Fn()) {
    let child = rustix::process::Pid::from_raw(child).expect("a child");
    let start = Instant::now();
    while start.elapsed() < LONG {
        let options = rustix::process::WaitOptions::NOHANG;
        if let Some((_, status)) =
            rustix::process::waitpid(Some(child), options).expect("our child")
        {
            assert_eq!(status.exit_status(), Some(0), "the child failed");
            return;
        }
        meanwhile();
    }
    let _ = rustix::process::kill_process(child, rustix::process::Signal::KILL);
    panic!("the child hangs");
}

#[allow(unsafe_code, reason = "there is no safe way to fork")]
fn fork() -> i32 {
    let apart = std::env::var_os("FORKER_APART").map(|_| Apart::begin());
    // SAFETY: the child does only what the documentation of this module allows, and ends by `_exit`.
    let process = unsafe { libc::fork() };
    assert!(process >= 0, "it cannot fork");
    if process != 0 {
        apart.into_iter().for_each(Apart::end);
    }
    process
}

/// While this value exists, each child of this process begins in a new pid namespace. The file is the process's own pid
/// namespace, to which [`end`](Self::end) returns.
struct Apart(File);

impl Apart {
    #[allow(
        unsafe_code,
        reason = "a thread that shares its file table may lose it: not with this flag"
    )]
    fn begin() -> Self {
        let own = File::open("/proc/self/ns/pid").expect("/proc is mounted");
        // SAFETY: this only changes in which namespace the next child of this process begins.
        unsafe { unshare_unsafe(UnshareFlags::NEWPID) }.expect("the test runs as root");
        Self(own)
    }

    /// Makes children begin in this process's own namespace again. Until this is called, the process cannot start
    /// threads.
    fn end(self) {
        let own = Some(LinkNameSpaceType::ProcessID);
        move_into_link_name_space(self.0.as_fd(), own).expect("it was there before");
    }
}

#[allow(unsafe_code, reason = "the child must not run what the parent has registered for its exit")]
fn exit(code: i32) -> ! {
    // SAFETY: `_exit` only ends the process.
    unsafe { libc::_exit(code) }
}
