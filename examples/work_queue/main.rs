//! Three workers at one queue, one of which is killed: every job is done, and what was done twice was refused.
//!
//! `cargo run --example work_queue`. It starts itself once for each worker, on `file://` in a directory of its own.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command};
use std::time::Duration;

use coordination::{Ack, ClaimOptions, Coordinator, NewItem, Result};

const JOBS: u32 = 60;

#[tokio::main]
async fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    match (arguments.next(), arguments.next()) {
        (Some(directory), Some(number)) => work(Path::new(&directory), &number).await,
        _ => supervise().await,
    }
}

async fn supervise() -> Result<()> {
    let directory = std::env::temp_dir().join(format!("work-queue-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a directory for temporary files");
    let coordinator = connect(&directory).await?;
    let jobs = coordinator.queue("resize-jobs")?;
    let items: Vec<_> = (0..JOBS).map(|job| NewItem::json(&job)).collect::<Result<_>>()?;
    jobs.post(&items).await?;

    let mut workers: Vec<_> = (1..=3).map(|number| start(&directory, number)).collect();
    while jobs.stats().await?.total() > u64::from(JOBS * 2 / 3) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    println!("worker 1 is killed, with {} items in claims", jobs.stats().await?.claimed);
    workers[0].kill().expect("it runs");
    for worker in &mut workers {
        worker.wait().expect("it was started here");
    }
    let is_right = judge(&directory);
    coordinator.stop().await?;
    std::fs::remove_dir_all(&directory).expect("it was made here");
    if !is_right {
        std::process::exit(1);
    }
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

/// Works until nothing comes any more.
async fn work(directory: &Path, number: &str) -> Result<()> {
    let coordinator = connect(directory).await?;
    let jobs = coordinator.queue("resize-jobs")?;
    let options = ClaimOptions::default().limit(3);
    while let Some(mut claim) =
        jobs.claim_wait(options.clone(), Some(Duration::from_millis(500))).await?
    {
        claim.keep_alive();
        for item in claim.items() {
            let job: u32 = item.json()?;
            tokio::time::sleep(Duration::from_millis(10)).await;
            note(directory, &format!("{job} {} {number}", claim.token()));
            // Whoever is killed here has done the job, and somebody else will do it again.
            assert_eq!(claim.ack(item.id()).await?, Ack::Done);
        }
    }
    coordinator.stop().await
}

/// The resource: one line for each job that was done, with the token of the claim.
fn note(directory: &Path, line: &str) {
    let file = OpenOptions::new().create(true).append(true).open(directory.join("done"));
    let written = file.and_then(|mut file| file.write_all(format!("{line}\n").as_bytes()));
    written.expect("there is room");
}

/// Every job was done; one that was done twice had a larger token the second time, by which a resource refuses the first
/// worker from then on.
fn judge(directory: &Path) -> bool {
    let text = std::fs::read_to_string(directory.join("done")).expect("jobs were done");
    let mut tokens: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
    for line in text.lines() {
        let mut words = line.split(' ');
        let mut number = || words.next().and_then(|word| word.parse::<u64>().ok());
        let (job, token) = (number().expect("a job"), number().expect("a token"));
        tokens.entry(u32::try_from(job).expect("few")).or_default().push(token);
    }
    let repeated = tokens.values().filter(|tokens| tokens.len() > 1).count();
    let are_fenced = tokens.values().all(|tokens| tokens.is_sorted_by(|one, other| one < other));
    println!("{} of {JOBS} jobs were done, {repeated} of them twice", tokens.len());
    println!("every repetition had a larger token: {are_fenced}");
    tokens.len() == JOBS as usize && are_fenced
}
