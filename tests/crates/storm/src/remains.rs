//! Checks, after all clients have gone, that nothing is left at the store.

use std::fs;
use std::time::{Duration, Instant};

use coordination::Coordinator;
use coordination_history::Event;
use tokio::time::sleep;

use crate::Complaint;
use crate::diary::Diary;
use crate::options::{Load, Options};
use crate::work;

/// How long a lock may stay taken after a crash. The promise is 50 ms; the rest is allowed because the machine may be
/// busy.
pub(crate) const BOUND: Duration = Duration::from_millis(250);

/// Empties work queues. For each other object, waits until it has no entry or [`BOUND`] is over, and records the number of entries that are left.
/// Then acquires the whole object, which must succeed without waiting.
pub(crate) async fn look(
    coordinator: &Coordinator,
    options: &Options,
    diary: &Diary,
) -> Result<(), Complaint> {
    if options.load == Load::Work {
        return work::empty(coordinator, options, diary).await;
    }
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

/// Acquires a lock, or all permits of a semaphore, without waiting; then releases it.
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

/// Checks the directory of `file://`: it may contain only the session of the client that makes this check.
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

/// Whether the condition becomes true within `limit`.
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
