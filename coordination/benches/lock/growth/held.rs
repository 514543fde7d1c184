//! Names that one session holds.

use std::time::{Duration, Instant};

use coordination::{Coordinator, LockGuard};

use super::cycles::{make, repeated};
use super::idle::Idle;
use super::{Curve, Figure, Subject};
use crate::Outcome;
use crate::server::{Locking, Ours, cycle};

const LIMIT: Option<Duration> = Some(Duration::from_secs(30));
/// Shorter than the default, so that a second and a half has several.
const HEARTBEAT: Duration = Duration::from_millis(250);

pub(super) struct Held {
    idle: Idle,
    coordinator: Coordinator,
    held: Vec<LockGuard>,
}

impl Curve for Held {
    const NAME: &'static str = "held";
    const SIZES: &'static [usize] = &[1, 10, 100, 1_000, 10_000, 100_000];

    async fn start(subject: &Subject) -> Outcome<Self> {
        let builder = Coordinator::builder().heartbeat_on_current_runtime(true);
        let coordinator = builder.heartbeat(HEARTBEAT).connect(&subject.url).await?;
        Ours::new(&coordinator, "first")?.acquire().await?;
        Ok(Self { idle: Idle::begin(subject)?, coordinator, held: Vec::new() })
    }

    fn size(&self) -> usize {
        self.held.len()
    }

    async fn grow(&mut self, size: usize, until: Instant) -> Outcome {
        let numbers = self.held.len()..size;
        let coordinator = &self.coordinator;
        make(&mut self.held, numbers, until, |number| {
            let lock = coordinator.lock(format!("held-{number}"));
            async move { lock?.acquire(LIMIT).await }
        })
        .await
    }

    async fn measure(&mut self) -> Outcome<Vec<Figure>> {
        let mut one_more = Ours::new(&self.coordinator, "one-more")?;
        let cycles = repeated(async || cycle(&mut one_more).await).await?;
        let mut figures = self.idle.figures(self.held.len()).await?;
        figures.push(Figure::new("acquire + release of another", "µs", cycles));
        Ok(figures)
    }
}
