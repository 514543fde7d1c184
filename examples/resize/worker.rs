//! A small storage service: one process of several that share volumes.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use coordination::{Builder, Coordinator};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};

use crate::journal::{Journal, Step};
use crate::storage::{Result, StorageError, Volume, resize, resize_unlocked};

/// How long a dead worker keeps its locks, on stores that cannot see it die.
pub(crate) const LEASE: Duration = Duration::from_secs(2);

/// Before it tries again what failed.
const PAUSE: Duration = Duration::from_millis(100);

/// How long a worker may take to finish what it does.
const GRACE: Duration = Duration::from_secs(3);

/// What a worker is told when it is started.
pub(crate) struct Task {
    pub(crate) number: usize,
    pub(crate) directory: PathBuf,
    pub(crate) unlocked: bool,
}

/// The settings of this service; for most, `Coordinator::connect(url)` is enough.
pub(crate) fn settings() -> Builder {
    Coordinator::builder()
        .ttl(LEASE)
        .heartbeat(LEASE / 6)
        // Workers are processes: a store that does not reach across them must not be used.
        .require("processes")
}

/// The process, from boot to stop.
#[tokio::main]
pub(crate) async fn run(task: Task) -> Result<()> {
    let stopped = when_told_to_stop();

    // Before anything is counted: all metrics of the process, those of the library among them.
    let metrics = recorder();

    // At boot: the global coordinator, which `#[synchronized]` uses.
    let coordinator = connect(&task, &stopped).await?;
    coordinator.install()?;

    serve(&task, &stopped).await?;

    // A service answers `GET /metrics` with this.
    let scraped = metrics.render();
    std::fs::write(scrape(&task.directory, task.number), scraped).map_err(StorageError::Disk)?;

    // At shutdown. A store that is down frees our locks when the lease ends.
    if let Err(error) = coordinator.stop().await {
        eprintln!("w{}: {error}", task.number);
    }
    Ok(())
}

/// Installs what Prometheus scrapes. The bounds are those of this service: of a resize, and of the waits for one.
fn recorder() -> PrometheusHandle {
    let bounds = [0.001, 0.01, 0.1, 1.0, 10.0];
    let builder = PrometheusBuilder::new().set_buckets(&bounds).expect("there are bounds");
    builder.install_recorder().expect("this is the only recorder")
}

/// Where a worker leaves what was scraped from it at its end.
pub(crate) fn scrape(directory: &Path, number: usize) -> PathBuf {
    directory.join(format!("metrics-{number}"))
}

/// Connects, also to a store that comes up later than this process.
async fn connect(task: &Task, stopped: &AtomicBool) -> coordination::Result<Coordinator> {
    let url = std::env::var("COORDINATION_URL").expect("the demo names the store");
    let settings = settings().member_id(format!("w{}-{}", task.number, std::process::id()));
    loop {
        match settings.clone().connect(&url).await {
            Err(error) if error.is_transient() && !stopped.load(Ordering::Relaxed) => {
                eprintln!("w{}: {error}; once more", task.number);
                tokio::time::sleep(PAUSE).await;
            }
            connected => return connected,
        }
    }
}

/// Resizes one volume after the other, until told to stop.
async fn serve(task: &Task, stopped: &AtomicBool) -> Result<()> {
    let journal = Journal::new(task.number);
    let volumes = Volume::all(&task.directory);
    for volume in volumes.iter().cycle().skip(task.number) {
        if stopped.load(Ordering::Relaxed) {
            break;
        }
        journal.tell(volume.id, Step::Waits);
        let gib = task.number as u64;
        let resized = match task.unlocked {
            false => resize(volume, gib, &journal).await,
            true => resize_unlocked(volume, gib, &journal).await,
        };
        after(resized, volume, &journal).await?;
    }
    Ok(())
}

/// Goes on after a failure that will pass, such as a lock lost in an outage of the store.
///
/// It does not just try the same again: after a loss the volume may have been resized or not. The next
/// turn reads what is there.
async fn after(
    resized: Result<()>,
    volume: &Volume,
    journal: &Journal,
) -> Result<(), StorageError> {
    match resized {
        Err(error) if error.is_transient() => {
            journal.tell(volume.id, Step::Failed { error: error.to_string() });
            tokio::time::sleep(PAUSE).await;
            Ok(())
        }
        other => other,
    }
}

/// Standard input ends when the demo wants us to stop, and also when it is dead.
fn when_told_to_stop() -> Arc<AtomicBool> {
    let stopped = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&stopped);
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        flag.store(true, Ordering::Relaxed);
        // A worker that waits for a store which is gone would never look at the flag.
        std::thread::sleep(GRACE);
        std::process::exit(1);
    });
    stopped
}
