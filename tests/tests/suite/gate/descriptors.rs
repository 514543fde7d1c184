//! `file://` in a program that may have only few file descriptors, or has none left.

use std::time::{Duration, Instant};

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
/// Longer than a waiter relies on notifications: within this time it has looked for itself.
const LOOKED: Duration = Duration::from_secs(6);
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

/// A client whose session runs on the thread of the check. So nothing opens or closes a file while [`take_all`] runs, which
/// would get a descriptor that the store has given up only to use it for another file.
async fn connect(url: &str) -> Result<Coordinator> {
    Coordinator::builder().heartbeat_on_current_runtime(true).connect(url).await
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
        let coordinator = connect(url).await?;
        let (other, fresh) = (connect(url).await?, connect(url).await?);
        let mut held = Vec::new();
        for number in 0..100 {
            held.push(coordinator.lock(format!("vol-{number}"))?.acquire(None).await?);
        }
        let (lock, waits) = (coordinator.lock("vol-99")?, other.lock("vol-99")?);
        let waiting = tokio::spawn(async move { waits.acquire(PATIENCE).await });
        while lock.holders().await?.len() < 2 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        // By now the waiter has looked for the first time: its task was ready before this timer.
        tokio::time::sleep(Duration::from_millis(1)).await;
        let mut taken = take_all();
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
        // What the store has given up of its reserve.
        taken.extend(take_all());
        let refused = connect(url).await.expect_err("none is left");
        assert_eq!(refused.kind(), ErrorKind::Storage, "{refused}");
        tokio::time::sleep(WHILE).await;
        assert!(held.iter().all(|guard| guard.is_held()));
        drop(taken);
        // With descriptors available again, everything works again, in the same process.
        held.pop().expect("a hundred").release().await?;
        waiting.await.expect("no panic")?.release().await?;
        assert!(fresh.lock("vol-0")?.try_acquire().await?.is_none());
        connect(url).await?.stop().await?;
        for guard in held {
            guard.release().await?;
        }
        fresh.lock("vol-0")?.acquire(PATIENCE).await?.release().await?;
        coordinator.stop().await
    })
}

/// The same for permits: the second of those who wait looks at the first one again and again.
#[test]
fn who_waits_for_a_permit_keeps_its_place_while_none_is_left() -> Result<()> {
    with_few(async |url| {
        let holder = connect(url).await?;
        let permits = holder.semaphore("uploads", 1)?;
        let permit = permits.acquire(None).await?;
        let (mut others, mut waiting) = (Vec::new(), Vec::new());
        for number in 2..=3 {
            let other = connect(url).await?;
            let waits = other.semaphore("uploads", 1)?;
            waiting.push(tokio::spawn(async move { waits.acquire(PATIENCE).await }));
            others.push(other);
            while permits.holders().await?.len() < number {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
        let (begun, mut taken) = (Instant::now(), Vec::new());
        while begun.elapsed() < LOOKED {
            tokio::time::sleep(Duration::from_millis(10)).await;
            taken.extend(take_all());
        }
        assert!(permit.is_held() && waiting.iter().all(|waiting| !waiting.is_finished()));
        drop(taken);
        permit.release().await?;
        for waiting in waiting {
            waiting.await.expect("no panic")?.release().await?;
        }
        for other in others {
            other.stop().await?;
        }
        holder.stop().await
    })
}

/// Whoever waits goes on waiting, although it cannot look whether it has its turn.
#[test]
fn who_waits_keeps_its_place_while_none_is_left() -> Result<()> {
    with_few(async |url| {
        let (holder, other) = (connect(url).await?, connect(url).await?);
        let held = holder.lock("vol-0")?.acquire(None).await?;
        let waits = other.lock("vol-0")?;
        let waiting = tokio::spawn(async move { waits.acquire(PATIENCE).await });
        let (begun, mut taken) = (Instant::now(), Vec::new());
        while begun.elapsed() < LOOKED {
            tokio::time::sleep(Duration::from_millis(10)).await;
            taken.extend(take_all());
        }
        assert!(held.is_held() && !waiting.is_finished());
        drop(taken);
        held.release().await?;
        waiting.await.expect("no panic")?.release().await?;
        other.stop().await?;
        holder.stop().await
    })
}
