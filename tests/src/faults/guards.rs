//! F-39, F-42, F-43: what becomes of guards, tested in one process.

use std::{
    fs,
    panic::{AssertUnwindSafe, catch_unwind},
    process::Command,
    thread,
    time::{Duration, Instant},
};

use coordination::{Coordinator, ErrorKind, Lock, LockGuard};
use tokio::runtime::Runtime;

use super::Site;
use crate::must_hold;

const LOCK: &str = "guards";
/// L2: how soon another client can have a lock that was released.
const SOON: Duration = Duration::from_secs(2);

/// F-39: child processes are started while the lock is held, and live on; after the release the lock is free.
///
/// # Panics
///
/// If an assertion of the row fails.
pub fn f39_children_spawned_while_held(site: &Site) {
    Runtime::new().expect("a runtime").block_on(spawned_children(site, 1_000));
}

async fn spawned_children(site: &Site, count: usize) {
    let ours = site.client("parent").await.lock(LOCK).expect("a good name");
    let theirs = site.client("other").await.lock(LOCK).expect("a good name");
    for round in 0..count {
        let guard = ours.acquire(Some(SOON)).await.expect("it is free");
        let mut child = Command::new("sleep").arg("0.1").spawn().expect("`sleep` is there");
        guard.release().await.expect("the store confirms");
        let taken = theirs.try_acquire().await.expect("the store answers");
        let taken = taken.unwrap_or_else(|| panic!("taken after release, round {round}"));
        if round == 0 {
            assert_eq!(shared_descriptors(child.id()), [""; 0]);
        }
        taken.release().await.expect("the store confirms");
        // A thread waits for the child's end. After every hundred children there is a pause, so that not too many
        // children run at the same time.
        if round % 100 == 99 {
            thread::sleep(Duration::from_millis(100));
        }
        thread::spawn(move || child.wait());
    }
}

/// The sockets and files of the store that a child has open, which it could only have inherited.
fn shared_descriptors(child: u32) -> Vec<String> {
    let open = fs::read_dir(format!("/proc/{child}/fd")).expect("the child is alive");
    open.flatten()
        .filter_map(|descriptor| fs::read_link(descriptor.path()).ok())
        .map(|target| target.to_string_lossy().into_owned())
        .filter(|target| {
            ["socket:", "inotify", "/queues/", "/sessions/", "/members/"]
                .iter()
                .any(|sign| target.contains(sign))
        })
        .collect()
}

/// F-42: an operator breaks the lock. Releasing the guard reports the loss, and does not release the next grant.
///
/// # Panics
///
/// If an assertion of the row fails.
pub fn f42_release_after_loss(site: &Site) {
    Runtime::new().expect("a runtime").block_on(release_after_loss(site));
}

async fn release_after_loss(site: &Site) {
    let ours = site.client("ours").await.lock(LOCK).expect("a good name");
    let theirs = site.client("other").await.lock(LOCK).expect("a good name");
    for is_dropped in [false, true] {
        let guard = ours.acquire(Some(SOON)).await.expect("it is free");
        // This is long enough for the library to begin to watch the holder's own entry.
        tokio::time::sleep(Duration::from_millis(100)).await;
        let broken = theirs.break_lock().await.expect("the store answers");
        assert_eq!(broken.expect("somebody holds it").member, "ours");
        let next = theirs.acquire(Some(SOON)).await.expect("it was broken");
        tokio::time::timeout(SOON, guard.lost()).await.expect("the loss is told");
        must_hold!(!guard.is_held());
        if is_dropped {
            drop(guard);
        } else {
            let error = guard.release().await.expect_err("it was lost");
            assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
            assert!(error.loss_reason().is_some());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(next.is_held());
        assert_eq!(theirs.holders().await.expect("the store answers").len(), 1);
        next.release().await.expect("the store confirms");
    }
}

/// F-43: the program's runtime ends while a guard lives on; heartbeats do not depend on that runtime. Dropping the
/// guard outside any runtime releases the lock, and so does dropping it in a panic.
///
/// # Panics
///
/// If an assertion of the row fails.
pub fn f43_runtime_dropped(site: &Site) {
    let other = Runtime::new().expect("a runtime");
    let theirs = other.block_on(site.client("other"));
    let theirs = theirs.lock(LOCK).expect("a good name");
    let is_free =
        |theirs: &Lock| other.block_on(theirs.try_acquire()).expect("the store answers").is_some();
    let (coordinator, guard) = holder(site, false);
    thread::sleep(Duration::from_secs(1));
    assert!(guard.is_held() && !is_free(&theirs));
    assert!(took(|| drop(guard)) <= Duration::from_millis(50), "drop blocks");
    assert!(free_within(SOON, || is_free(&theirs)), "dropping outside a runtime releases");
    let guard = other.block_on(coordinator.lock(LOCK).expect("a good name").acquire(Some(SOON)));
    let guard = guard.expect("it is free");
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let _guard = guard;
        panic!("in the critical section");
    }));
    assert!(panicked.is_err());
    assert!(free_within(SOON, || is_free(&theirs)), "unwinding releases");
    assert!(took(|| drop(coordinator)) <= Duration::from_millis(500), "drop blocks");
}

/// F-43: the heartbeats run on a runtime of the program. When this runtime ends, the guards are lost.
///
/// # Panics
///
/// If an assertion of the row fails.
pub fn f43_tied_runtime_dropped(site: &Site) {
    let (coordinator, guard) = holder(site, true);
    must_hold!(!guard.is_held(), "its heartbeats have ended");
    let error = pollster_block(guard.release()).expect_err("it was lost");
    assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
    let other = Runtime::new().expect("a runtime");
    other.block_on(async {
        let theirs = site.client("other").await.lock(LOCK).expect("a good name");
        let free = theirs.acquire(Some(site.crash_release())).await;
        drop(free.expect("free within the bound"));
    });
    assert!(took(|| drop(coordinator)) <= Duration::from_millis(500), "drop blocks");
}

/// A coordinator and a guard from a runtime that has ended. If `is_tied`, their heartbeats ran on that runtime, and
/// have ended with it.
fn holder(site: &Site, is_tied: bool) -> (Coordinator, LockGuard) {
    let runtime = Runtime::new().expect("a runtime");
    let held = runtime.block_on(async {
        let builder = site.builder("ours").heartbeat_on_current_runtime(is_tied);
        let coordinator = builder.connect(&site.url).await.expect("the store is there");
        let lock = coordinator.lock(LOCK).expect("a good name");
        let guard = lock.acquire(Some(SOON)).await.expect("it is free");
        (coordinator, guard)
    });
    drop(runtime);
    held
}

fn pollster_block<F: Future>(future: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(future)
}

fn took(work: impl FnOnce()) -> Duration {
    let begun = Instant::now();
    work();
    begun.elapsed()
}

fn free_within(limit: Duration, is_free: impl FnMut() -> bool) -> bool {
    crate::harness::wait_until(limit, is_free)
}
