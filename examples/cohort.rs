//! A thousand tasks of one process want one lock all the time, and now and then another process wants it, too.
//!
//! First each task queues at the store. Then they are a cohort: they pass the lock on among themselves, but not for so
//! long that the other process waits for long. The resource compares the number of a token and its turn, so that the
//! tokens of all of them are in one order.
//!
//! `cargo run --release --example cohort`, or with `COORDINATION_URL` naming another store.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use coordination::{Cohort, Coordinator, Fence, Lock, TurnToken};
use tokio::task::JoinSet;

const TASKS: usize = 1_000;
const LASTS: Duration = Duration::from_secs(2);

/// What the lock is for.
#[derive(Default)]
struct Volume {
    fence: Fence<TurnToken>,
    writes: AtomicU64,
}

impl Volume {
    fn write(&self, token: impl Into<TurnToken>) {
        match self.fence.check(token.into()) {
            Ok(()) => {
                self.writes.fetch_add(1, Ordering::Relaxed);
            }
            Err(stale) => println!("refused: {stale}"),
        }
    }
}

#[tokio::main]
async fn main() -> coordination::Result<()> {
    let url = std::env::var("COORDINATION_URL").unwrap_or_else(|_| "memory://cohort".into());
    // Two services. In real life they are two processes.
    let first = Coordinator::builder().member_id("first").connect(&url).await?;
    let second = Coordinator::builder().member_id("second").connect(&url).await?;
    let (lock, other) = (first.lock("vol-7")?, second.lock("vol-7")?);
    let volume = Arc::new(Volume::default());

    let mut tasks = JoinSet::new();
    for _ in 0..TASKS {
        tasks.spawn(each_at_the_store(lock.clone(), Arc::clone(&volume)));
    }
    watch("each at the store", tasks, &volume, &other).await?;

    let cohort = lock.cohort();
    let mut tasks = JoinSet::new();
    for _ in 0..TASKS {
        tasks.spawn(one_of_a_cohort(cohort.clone(), Arc::clone(&volume)));
    }
    watch("one cohort", tasks, &volume, &other).await?;

    first.stop().await?;
    second.stop().await
}

async fn each_at_the_store(lock: Lock, volume: Arc<Volume>) -> coordination::Result<()> {
    loop {
        let guard = lock.acquire(None).await?;
        volume.write(guard.token());
        guard.release().await?;
    }
}

async fn one_of_a_cohort(cohort: Cohort, volume: Arc<Volume>) -> coordination::Result<()> {
    loop {
        let guard = cohort.acquire(None).await?;
        volume.write(guard.token());
        guard.release().await?;
    }
}

/// Tells how many turns the tasks have, and how long the other process has to wait for its own.
async fn watch(
    what: &str,
    mut tasks: JoinSet<coordination::Result<()>>,
    volume: &Volume,
    other: &Lock,
) -> coordination::Result<()> {
    let (begun, before) = (Instant::now(), volume.writes.load(Ordering::Relaxed));
    let mut longest = Duration::ZERO;
    while begun.elapsed() < LASTS {
        tokio::time::sleep(Duration::from_millis(50)).await;
        let asked = Instant::now();
        let guard = other.acquire(None).await?;
        longest = longest.max(asked.elapsed());
        volume.write(guard.token());
        guard.release().await?;
    }
    let writes = volume.writes.load(Ordering::Relaxed) - before;
    let rate = writes as f64 / begun.elapsed().as_secs_f64();
    println!("{what}: {rate:.0} turns a second; the other process waited for {longest:?} at most");
    tasks.shutdown().await;
    Ok(())
}
