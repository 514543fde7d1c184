//! `file://` in a program that may have only few file descriptors, or has none left.

use std::time::Duration;

use coordination::{Coordinator, ErrorKind, Result};
use coordination_tests::bounds::LONG;
use coordination_tests::harness::descriptors::{take_all, with_descriptors};
use coordination_tests::harness::{Scratch, rerun_if_starved};
use tokio::runtime::Builder;

/// The limit of file descriptors, as `ulimit -n` sets it.
const FEW: u64 = 64;
/// How long the program has no free descriptor while it holds its locks: ten heartbeats, so that a heartbeat that
/// needs a descriptor would fail.
const WHILE: Duration = Duration::from_secs(1);
const PATIENCE: Option<Duration> = Some(LONG);

/// Runs a check in a process with few descriptors, on a runtime of its own and with a new directory.
fn with_few(check: impl AsyncFn(&str) -> Result<()>) -> Result<()> {
    rerun_if_starved(|| {
        let scratch = Scratch::new("descriptors");
        let url = format!("file://{}?heartbeat=100ms", scratch.join("locks").display());
        let runtime = || Builder::new_current_thread().enable_all().build().expect("a runtime");
        with_descriptors(FEW, || runtime().block_on(check(&url))).unwrap_or(Ok(()))
    })
}

#[test]
fn names_that_nobody_holds_take_few() -> Result<()> {
    with_few(async |url| {
        let coordinator = Coordinator::connect(url).await?;
        for number in 0..300 {
            coordinator.lock(format!("vol-{number}"))?.acquire(None).await?.release().await?;
        }
        let left = take_all().len() as u64;
        assert!(left >= FEW / 2, "{left} of {FEW} are left to the program");
        coordinator.stop().await
    })
}

/// A hundred locks stay held, and heartbeats check them, while the program uses up all descriptors.
#[test]
fn held_locks_outlast_a_program_that_has_none_left() -> Result<()> {
    with_few(async |url| {
        let coordinator = Coordinator::connect(url).await?;
        let (other, fresh) = (Coordinator::connect(url).await?, Coordinator::connect(url).await?);
        let mut held = Vec::new();
        for number in 0..100 {
            held.push(coordinator.lock(format!("vol-{number}"))?.acquire(None).await?);
        }
        let (lock, waits) = (coordinator.lock("vol-99")?, other.lock("vol-99")?);
        let waiting = tokio::spawn(async move { waits.acquire(PATIENCE).await });
        while lock.holders().await?.len() < 2 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let taken = take_all();
        // No descriptor is free now. The store keeps some in reserve, and uses them for the files of these ten
        // queues.
        for number in 100..110 {
            coordinator.lock(format!("vol-{number}"))?.acquire(PATIENCE).await?.release().await?;
        }
        let soon = Some(Duration::from_secs(1));
        let refused = fresh.lock("vol-0")?.acquire(soon).await.expect_err("it is held");
        // To wait, the store needs a descriptor. The error is `Timeout` if the store could take one from another use
        // for this wait, and `Storage` if it could not.
        let is_told = matches!(refused.kind(), ErrorKind::Storage | ErrorKind::Timeout);
        assert!(is_told, "{refused}");
        let refused = Coordinator::connect(url).await.expect_err("none is left");
        assert_eq!(refused.kind(), ErrorKind::Storage, "{refused}");
        tokio::time::sleep(WHILE).await;
        assert!(held.iter().all(|guard| guard.is_held()));
        drop(taken);
        // With descriptors available again, everything works again, in the same process.
        held.pop().expect("a hundred").release().await?;
        waiting.await.expect("no panic")?.release().await?;
        assert!(fresh.lock("vol-0")?.try_acquire().await?.is_none());
        Coordinator::connect(url).await?.stop().await?;
        for guard in held {
            guard.release().await?;
        }
        fresh.lock("vol-0")?.acquire(PATIENCE).await?.release().await?;
        coordinator.stop().await
    })
}
