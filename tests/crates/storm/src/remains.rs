//! Checks that nothing is left at the store when all clients have gone.

use std::fs;
use std::time::{Duration, Instant};

use coordination::Coordinator;
use coordination_history::Event;
use tokio::time::sleep;

use crate::Complaint;
use crate::diary::Diary;
use crate::options::Options;

/// After a crash a lock is free within 50 ms; the rest is for a busy machine.
pub(crate) const BOUND: Duration = Duration::from_millis(250);

/// Counts the entries of each object, and then acquires each object completely.
pub(crate) async fn look(
    coordinator: &Coordinator,
    options: &Options,
    diary: &Diary,
) -> Result<(), Complaint> {
    let begun = Instant::now();
    for (index, target) in options.targets().iter().enumerate() {
        let looked = async {
            let mut entries = count(coordinator, &target.name, target.permits).await?;
            while entries > 0 && begun.elapsed() < BOUND {
                sleep(Duration::from_millis(5)).await;
                entries = count(coordinator, &target.name, target.permits).await?;
            }
            diary.note_of(index, Event::Remains { entries });
            take(coordinator, &target.name, target.permits).await
        };
        let looked: coordination::Result<()> = looked.await;
        looked.map_err(|error| format!("{} is not free after the storm: {error}", target.name))?;
    }
    Ok(())
}

async fn count(
    coordinator: &Coordinator,
    name: &str,
    permits: Option<u32>,
) -> coordination::Result<u64> {
    let entries = match permits {
        None => coordinator.lock(name)?.holders().await?.len(),
        Some(permits) => coordinator.semaphore(name, permits)?.holders().await?.len(),
    };
    Ok(entries as u64)
}

/// Acquires an object completely, and releases it.
async fn take(
    coordinator: &Coordinator,
    name: &str,
    permits: Option<u32>,
) -> coordination::Result<()> {
    let at_once = Some(Duration::ZERO);
    match permits {
        None => coordinator.lock(name)?.acquire(at_once).await?.release().await,
        Some(permits) => {
            let semaphore = coordinator.semaphore(name, permits)?;
            semaphore.acquire_many(permits, at_once).await?.release().await
        }
    }
}

/// Checks the directory of `file://`: only the session of the checking client may be left.
pub(crate) fn look_at_files(options: &Options) -> Result<(), Complaint> {
    let namespace = options.store().join("coordination");
    for directory in ["sessions", "members"] {
        let path = namespace.join(directory);
        let files = fs::read_dir(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let files = files.count();
        if files != 1 {
            return Err(format!("{files} files in {directory} while one process is connected"));
        }
    }
    Ok(())
}

/// Whether the condition becomes true within this time.
pub(crate) async fn is_soon(limit: Duration, is_so: impl Fn() -> bool) -> bool {
    let begun = Instant::now();
    while !is_so() {
        if begun.elapsed() > limit {
            return false;
        }
        sleep(Duration::from_millis(2)).await;
    }
    true
}
