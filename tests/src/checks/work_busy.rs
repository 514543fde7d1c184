//! WK7: a work queue while many clients write at the same time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use coordination::{Coordinator, ErrorKind, ListOptions, Result, WorkQueue};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::TestStore;
use super::tools::{MOMENT, PATIENCE};
use super::work::{claimed, jobs, limit, posted};
use crate::bounds;
use crate::harness::Mode;

/// How many clients write at the same time.
const WRITERS: usize = 12;
/// How many rounds each writer makes, on average.
const ROUNDS: usize = 8;
/// How long a call waits for an item.
const WAIT: Duration = Duration::from_secs(1);
/// How many writes others may make before a call ends: ten times as many as are usual. So a call that never ends is
/// found by the number of writes, however fast the machine is.
const OVERTAKEN: usize = 300;
/// The latency of each message of a client that is far away: others write several times while one message is on its
/// way.
const FAR: Duration = Duration::from_millis(20);

/// Tasks that write until they are stopped.
struct Busy {
    is_over: Arc<AtomicBool>,
    rounds: Vec<Arc<AtomicUsize>>,
    /// How many writes these tasks have made together.
    writes: Arc<AtomicUsize>,
    tasks: JoinSet<Result<()>>,
    // The coordinators are kept so that their sessions stay open.
    _coordinators: Vec<Coordinator>,
}

impl Busy {
    /// Starts the writers. Each has a handle of its own, because tasks with one handle take turns before they ask the
    /// store.
    async fn start(store: &TestStore) -> Result<Self> {
        let (is_over, writes) = (Arc::new(AtomicBool::new(false)), Arc::<AtomicUsize>::default());
        let (mut coordinators, mut rounds, mut tasks) = (Vec::new(), Vec::new(), JoinSet::new());
        for name in ["busy", "busier", "busiest"] {
            coordinators.push(store.connect(name).await?);
        }
        for number in 0..WRITERS {
            let queue = jobs(&coordinators[number % coordinators.len()]);
            let (done, is_over) = (Arc::<AtomicUsize>::default(), Arc::clone(&is_over));
            let writes = Arc::clone(&writes);
            rounds.push(Arc::clone(&done));
            tasks.spawn(async move {
                while !is_over.load(Ordering::Acquire) {
                    match work(&queue, &writes).await {
                        Ok(()) => drop(done.fetch_add(1, Ordering::AcqRel)),
                        // There are many writers, so a slow store may not answer all in time.
                        Err(error) if may_pass(error.kind()) => {}
                        Err(error) => return Err(error),
                    }
                }
                Ok(())
            });
        }
        Ok(Self { is_over, rounds, writes, tasks, _coordinators: coordinators })
    }

    fn rounds(&self) -> Vec<usize> {
        self.rounds.iter().map(|rounds| rounds.load(Ordering::Acquire)).collect()
    }

    async fn stop(mut self) -> Result<()> {
        self.is_over.store(true, Ordering::Release);
        while let Some(ended) = self.tasks.join_next().await {
            ended.expect("no panic")?;
        }
        Ok(())
    }
}

fn may_pass(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::Unavailable | ErrorKind::Timeout | ErrorKind::Lost)
}

/// Posts an item, claims one and acknowledges it: three writes, and the removal of the claim.
async fn work(queue: &WorkQueue, writes: &AtomicUsize) -> Result<()> {
    posted(queue, 1).await?;
    writes.fetch_add(1, Ordering::AcqRel);
    if let Some(claim) = queue.claim(limit(1)).await? {
        writes.fetch_add(1, Ordering::AcqRel);
        claim.ack_all().await?;
        writes.fetch_add(1, Ordering::AcqRel);
    }
    Ok(())
}

/// WK7: while twelve clients write, a reader gets answers, and a call that waits for an item returns when its time is
/// over.
pub async fn wk7_a_reader_beside_many_writers(store: &TestStore) -> Result<()> {
    let coordinator = store.connect("reader").await?;
    beside_many_writers(store, &jobs(&coordinator)).await
}

/// WK7: a reader gets answers, and its waits end in time, also if it is so far away that others write several times
/// while one of its messages is on its way.
pub async fn wk7_a_far_client_beside_many_writers(store: &TestStore) -> Result<()> {
    let coordinator = store.connect_by_proxy("far").await?;
    store.proxy().set_both(Mode::Delay(FAR));
    beside_many_writers(store, &jobs(&coordinator)).await
}

async fn beside_many_writers(store: &TestStore, queue: &WorkQueue) -> Result<()> {
    posted(queue, 3).await?;
    let claim = claimed(queue, 1).await?;
    let busy = Busy::start(store).await?;
    for _ in 0..store.rounds(4, 2) {
        let counted = busy.answered("stats", queue.stats()).await?;
        assert!(counted.claimed > 0, "{counted:?}");
        assert_eq!(busy.answered("get", queue.get(claim.id())).await?.items.len(), 1);
        busy.answered("list", queue.list(ListOptions::default())).await?;
        busy.answered("renew", claim.renew(None, None)).await?;
        busy.answered("post", posted(queue, 1)).await?;
        let waiting = queue.claim_wait(limit(1), Some(WAIT));
        let waited = store.within(bounds::returned(WAIT), waiting).await?;
        if let Some(claim) = waited {
            busy.answered("ack", claim.ack_all()).await?;
        }
    }
    eprintln!("WK7: rounds of the writers meanwhile: {:?}", busy.rounds());
    busy.stop().await?;
    assert_eq!(claim.ack_all().await?, 1);
    Ok(())
}

impl Busy {
    /// The result of a call. Panics if the others have made more than [`OVERTAKEN`] writes before the call ends.
    async fn answered<T>(&self, call: &str, answer: impl Future<Output = Result<T>>) -> Result<T> {
        let (begun, before) = (Instant::now(), self.writes.load(Ordering::Acquire));
        let overtaken = || self.writes.load(Ordering::Acquire) - before;
        let starved = async {
            while overtaken() <= OVERTAKEN {
                sleep(MOMENT).await;
            }
        };
        let answer = tokio::select! {
            biased;
            answer = answer => answer,
            () = starved => panic!("{call} was overtaken by {} writes", overtaken()),
        };
        eprintln!("WK7: {call} took {:?}, beside {} writes", begun.elapsed(), overtaken());
        answer
    }
}

/// WK7: none of twelve writers is starved.
pub async fn wk7_writers_have_their_turn(store: &TestStore) -> Result<()> {
    let busy = Busy::start(store).await?;
    let begun = Instant::now();
    while begun.elapsed() < 2 * PATIENCE && busy.rounds().iter().sum::<usize>() < ROUNDS * WRITERS {
        sleep(Duration::from_millis(20)).await;
    }
    let (took, rounds) = (begun.elapsed(), busy.rounds());
    eprintln!("WK7: rounds of the writers within {took:?}: {rounds:?}");
    busy.stop().await?;
    // A writer is starved if it has made no round while another one has made several. If all writers are slow, none
    // of them is starved.
    let most = rounds.iter().max().copied().unwrap_or_default();
    let is_starved = |rounds: &usize| *rounds == 0 && most > 3;
    assert!(!rounds.iter().any(is_starved), "somebody is starved: {rounds:?}");
    Ok(())
}
