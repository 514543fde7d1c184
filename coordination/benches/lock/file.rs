//! A directory, beside what `flock(1)` does.

use std::time::Duration;

use coordination::Coordinator;
use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use rustix::thread::sched_setaffinity;

use crate::Outcome;
use crate::compare::{compare, stay_in_one_place};

/// The floor: open, lock, unlock, close.
pub(crate) async fn uncontended() -> Outcome {
    let everywhere = stay_in_one_place()?;
    let directory = tempfile::tempdir()?;
    let url = format!("file://{}/locks", directory.path().display());
    let coordinator = Coordinator::connect(&url).await?;
    let lock = coordinator.lock("vol-7")?;
    let path = directory.path().join("floor");
    let ours = async || {
        lock.acquire(Some(Duration::from_secs(10))).await?.release().await?;
        Ok(())
    };
    let floor = async || {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
        let file = open(&path, flags, Mode::RUSR | Mode::WUSR)?;
        flock(&file, FlockOperation::LockExclusive)?;
        flock(&file, FlockOperation::Unlock)?;
        Ok(())
    };
    compare("file, acquire + release", 20_000, "at most 3 wanted", ours, floor).await?;
    coordinator.stop().await?;
    Ok(sched_setaffinity(None, &everywhere)?)
}
