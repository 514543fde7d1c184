//! The library's own lock, in this process.

use std::time::{Duration, Instant};

use coordination::{Coordinator, Lock};
use tokio::runtime::{Builder, Runtime};

use crate::Outcome;
use crate::figures::micros;
use crate::one::SETTLED;

const PATIENCE: Option<Duration> = Some(Duration::from_secs(30));

pub(crate) struct Library {
    runtime: Runtime,
    coordinator: Coordinator,
    lock: Lock,
}

impl Library {
    pub(crate) fn connect(url: &str) -> Outcome<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let coordinator = runtime.block_on(Coordinator::connect(url))?;
        let lock = coordinator.lock("library")?;
        Ok(Self { runtime, coordinator, lock })
    }

    /// Microseconds of one acquire and release.
    pub(crate) fn cycles(&self, count: u32) -> Outcome<f64> {
        self.runtime.block_on(async {
            let begun = Instant::now();
            for _ in 0..count {
                self.lock.acquire(PATIENCE).await?.release().await?;
            }
            Outcome::Ok(micros(begun.elapsed()) / f64::from(count))
        })
    }

    /// From a release until another task of this session has the lock.
    pub(crate) fn hand_over(&self) -> Outcome<Duration> {
        self.runtime.block_on(async {
            let held = self.lock.acquire(PATIENCE).await?;
            let next = async {
                let guard = self.lock.acquire(PATIENCE).await?;
                let granted = Instant::now();
                guard.release().await?;
                Outcome::Ok(granted)
            };
            let release = async {
                tokio::time::sleep(SETTLED).await;
                let begun = Instant::now();
                held.release().await?;
                Outcome::Ok(begun)
            };
            let (granted, begun) = tokio::try_join!(next, release)?;
            Outcome::Ok(granted.saturating_duration_since(begun))
        })
    }

    pub(crate) fn stop(self) -> Outcome {
        Ok(self.runtime.block_on(self.coordinator.stop())?)
    }
}
