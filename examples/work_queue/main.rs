//! Three workers at one queue, one of which is killed between its work and its acknowledgement: every job is done once, and
//! whatever comes a second time is refused by its token.
//!
//! `cargo run --example work_queue`. It starts itself once for each worker, on `file://` in a directory of its own.

mod storage;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use coordination::{Ack, ClaimOptions, Coordinator, FencingToken, NewItem, Result};

use storage::{Request, Storage, append, read};

/// How many jobs are posted at least, and how many at once.
const JOBS: u32 = 60;
const AT_ONCE: u32 = 6;
/// The worker that is killed, and how many jobs it does before, at least.
const VICTIM: u32 = 1;
const BEFORE: u32 = 5;
/// A worker to which nothing comes for so long ends.
const PATIENCE: Duration = Duration::from_secs(1);

#[tokio::main]
async fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    match (arguments.next(), arguments.next().and_then(|number| number.parse().ok())) {
        (Some(directory), Some(number)) => Worker::new(directory.into(), number).work().await,
        _ => supervise().await,
    }
}

async fn supervise() -> Result<()> {
    let directory = std::env::temp_dir().join(format!("work-queue-{}", std::process::id()));
    fs::create_dir_all(&directory).expect("a directory for temporary files");
    let coordinator = connect(&directory).await?;
    let jobs = coordinator.queue("resize-jobs")?;
    let mut workers: Vec<_> = (1..=3).map(|number| start(&directory, number)).collect();
    let mut posted = 0;
    while posted < JOBS || read(&late(&directory)).is_empty() {
        let ended = workers[VICTIM as usize - 1].try_wait().expect("it was started here");
        assert!(ended.is_none(), "worker {VICTIM} has ended by itself");
        let next = posted..posted + AT_ONCE;
        let items: Vec<_> = next.map(|job| NewItem::json(&job)).collect::<Result<_>>()?;
        jobs.post(&items).await?;
        posted += AT_ONCE;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    println!("worker {VICTIM} is killed between its work and its acknowledgement");
    workers[VICTIM as usize - 1].kill().expect("it runs");
    for worker in &mut workers {
        worker.wait().expect("it was started here");
    }
    let is_right = jobs.stats().await?.total() == 0 && judge(&directory, posted);
    coordinator.stop().await?;
    fs::remove_dir_all(&directory).expect("it was made here");
    if !is_right {
        std::process::exit(1);
    }
    println!("PASSED");
    Ok(())
}

async fn connect(directory: &Path) -> Result<Coordinator> {
    Coordinator::connect(&format!("file://{}", directory.join("locks").display())).await
}

fn start(directory: &Path, number: u32) -> Child {
    let program = std::env::current_exe().expect("the system tells");
    let mut worker = Command::new(program);
    worker.arg(directory).arg(number.to_string()).spawn().expect("it can be started")
}

/// What the killed worker had sent to the storage, and what has not arrived there yet.
fn late(directory: &Path) -> PathBuf {
    directory.join("late")
}

/// The acknowledgements that were confirmed.
fn acknowledged(directory: &Path) -> PathBuf {
    directory.join("acknowledged")
}

struct Worker {
    directory: PathBuf,
    number: u32,
    storage: Storage,
    done: u32,
}

impl Worker {
    fn new(directory: PathBuf, number: u32) -> Self {
        let storage = Storage::new(&directory);
        Self { directory, number, storage, done: 0 }
    }

    /// Works until nothing comes any more.
    async fn work(mut self) -> Result<()> {
        let coordinator = connect(&self.directory).await?;
        let jobs = coordinator.queue("resize-jobs")?;
        let options = ClaimOptions::default().limit(3);
        while let Some(mut claim) = jobs.claim_wait(options.clone(), Some(PATIENCE)).await? {
            claim.keep_alive();
            for (nth, item) in claim.items().iter().enumerate() {
                let job: u32 = item.json()?;
                tokio::time::sleep(Duration::from_millis(10)).await;
                let request = self.request(job, claim.token());
                if let Err(refused) = self.storage.resize(request) {
                    println!("worker {}: {refused}", self.number);
                }
                self.done += 1;
                let next = claim.items().get(nth + 1).map(coordination::WorkItem::json);
                if let (VICTIM, BEFORE.., Some(next)) = (self.number, self.done, next) {
                    self.stand_still(self.request(next?, claim.token())).await;
                }
                // What was refused has been done by somebody else: the queue can forget it all the same.
                assert_eq!(claim.ack(item.id()).await?, Ack::Done);
                append(&acknowledged(&self.directory), request);
            }
        }
        coordinator.stop().await
    }

    fn request(&self, job: u32, token: FencingToken) -> Request {
        Request { job, token: token.value(), worker: self.number }
    }

    /// Waits to be killed. The last job is done, and not acknowledged. The next one is on its way to the storage: it arrives
    /// long after the worker's death, as a packet that a network has held up.
    async fn stand_still(&self, next: Request) {
        append(&late(&self.directory), next);
        std::future::pending().await
    }
}

/// Every job was done once. What came a second time was refused, and came only because a worker was killed between its work and its
/// acknowledgement.
fn judge(directory: &Path, posted: u32) -> bool {
    let storage = Storage::new(directory);
    for request in read(&late(directory)) {
        match storage.resize(request) {
            Ok(()) => println!("what was late was done a second time"),
            Err(refused) => println!("what was late: {refused}"),
        }
    }
    let (done, refused) = (storage.done(), storage.refused());
    let mut jobs: Vec<_> = done.iter().map(|request| request.job).collect();
    jobs.sort_unstable();
    let is_complete = jobs.iter().copied().eq(0..posted);
    println!("{} jobs were done, every one of them once: {is_complete}", done.len());

    let acknowledged = read(&acknowledged(directory));
    let left_it_open = |first: &Request| first.worker == VICTIM && !acknowledged.contains(first);
    let repeats =
        |second: &Request| done.iter().any(|first| first.job == second.job && left_it_open(first));
    let is_explained = |second: &&Request| second.worker == VICTIM || repeats(second);
    let explained = refused.iter().filter(is_explained).count();
    println!("{} were refused, {explained} of them due to worker {VICTIM}", refused.len());
    // What the worker had done, and another one did again; and what arrived late.
    is_complete && explained == 2 && refused.len() == 2
}
