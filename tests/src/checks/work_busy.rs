//! WK7: what a queue of work is to those who use it beside many who write.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use coordination::{Coordinator, ListOptions, Result, WorkQueue};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::Stage;
use super::tools::PATIENCE;
use super::work::{claimed, jobs, limit, posted};
use crate::bounds;
use crate::harness::Mode;

/// How many write at the same time, each as a process of its own would.
const WRITERS: usize = 12;
/// How many rounds each of them makes, on average.
const ROUNDS: usize = 8;
/// How long one call waits for an item.
const WAIT: Duration = Duration::from_secs(1);
/// How often each call is made beside them.
const CALLS: usize = 4;
/// How long each message from and to a client takes that is far away: there are several writes of others in that time.
const FAR: Duration = Duration::from_millis(20);

/// Writers that work until they are stopped.
struct Busy {
    is_over: Arc<AtomicBool>,
    rounds: Vec<Arc<AtomicUsize>>,
    tasks: JoinSet<Result<()>>,
    // Their sessions.
    _coordinators: Vec<Coordinator>,
}

impl Busy {
    /// Each has a handle of its own, so that no two of them take turns before they ask the store.
    async fn start(stage: &Stage) -> Result<Self> {
        let is_over = Arc::new(AtomicBool::new(false));
        let (mut coordinators, mut rounds, mut tasks) = (Vec::new(), Vec::new(), JoinSet::new());
        for name in ["busy", "busier", "busiest"] {
            coordinators.push(stage.connect(name).await?);
        }
        for number in 0..WRITERS {
            let queue = jobs(&coordinators[number % coordinators.len()]);
            let (done, is_over) = (Arc::<AtomicUsize>::default(), Arc::clone(&is_over));
            rounds.push(Arc::clone(&done));
            tasks.spawn(async move {
                while !is_over.load(Ordering::Acquire) {
                    work(&queue).await?;
                    done.fetch_add(1, Ordering::AcqRel);
                }
                Ok(())
            });
        }
        Ok(Self { is_over, rounds, tasks, _coordinators: coordinators })
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

/// An item is posted, and one is claimed and done: three writes.
async fn work(queue: &WorkQueue) -> Result<()> {
    posted(queue, 1).await?;
    if let Some(claim) = queue.claim(limit(1)).await? {
        claim.ack_all().await?;
    }
    Ok(())
}

/// WK7: who reads beside twelve who write is answered, and who waits has an answer when the time is over.
pub async fn wk7_a_reader_beside_many_writers(stage: &Stage) -> Result<()> {
    let coordinator = stage.connect("reader").await?;
    beside_many_writers(stage, &jobs(&coordinator)).await
}

/// WK7: the same from so far away that others write several times while a message is on its way.
pub async fn wk7_a_far_client_beside_many_writers(stage: &Stage) -> Result<()> {
    let coordinator = stage.connect_by_proxy("far").await?;
    stage.proxy().set_both(Mode::Delay(FAR));
    beside_many_writers(stage, &jobs(&coordinator)).await
}

async fn beside_many_writers(stage: &Stage, queue: &WorkQueue) -> Result<()> {
    posted(queue, 3).await?;
    let claim = claimed(queue, 1).await?;
    let busy = Busy::start(stage).await?;
    for _ in 0..CALLS {
        let counted = answered(stage, "stats", queue.stats()).await?;
        assert!(counted.claimed > 0, "{counted:?}");
        assert_eq!(answered(stage, "get", queue.get(claim.id())).await?.items.len(), 1);
        answered(stage, "list", queue.list(ListOptions::default())).await?;
        answered(stage, "renew", claim.renew(None, None)).await?;
        answered(stage, "post and claim", work(queue)).await?;
        let waiting = queue.claim_wait(limit(1), Some(WAIT));
        let waited = stage.within(bounds::returned(WAIT), waiting).await?;
        if let Some(claim) = waited {
            answered(stage, "ack", claim.ack_all()).await?;
        }
    }
    eprintln!("WK7: rounds of the writers meanwhile: {:?}", busy.rounds());
    busy.stop().await?;
    assert_eq!(claim.ack_all().await?, 1);
    Ok(())
}

/// What a call answers, in ten times the time that it should take.
async fn answered<T>(
    stage: &Stage,
    call: &str,
    answer: impl Future<Output = Result<T>>,
) -> Result<T> {
    let begun = Instant::now();
    let answer = tokio::time::timeout(PATIENCE, answer).await;
    let took = begun.elapsed();
    eprintln!("WK7: {call} took {took:?}");
    let bound = 5 * bounds::served() + stage.scheduling();
    assert!(took <= bound, "{call} took {took:?}");
    answer.expect("it took less than that")
}

/// WK7: of twelve who write, nobody is starved.
pub async fn wk7_writers_have_their_turn(stage: &Stage) -> Result<()> {
    let busy = Busy::start(stage).await?;
    let begun = Instant::now();
    while begun.elapsed() < 2 * PATIENCE && busy.rounds().iter().sum::<usize>() < ROUNDS * WRITERS {
        sleep(Duration::from_millis(20)).await;
    }
    let (took, rounds) = (begun.elapsed(), busy.rounds());
    eprintln!("WK7: rounds of the writers within {took:?}: {rounds:?}");
    busy.stop().await?;
    assert!(rounds.iter().all(|rounds| *rounds > 0), "somebody is starved: {rounds:?}");
    Ok(())
}
