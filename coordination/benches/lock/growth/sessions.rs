//! Sessions on one server, all of this process.

use std::time::Instant;

use coordination::Coordinator;

use super::cycles::{make, repeated};
use super::idle::Idle;
use super::{Curve, Figure, Subject};
use crate::Outcome;
use crate::server::{Ours, cycle};

pub(super) struct Sessions {
    idle: Idle,
    url: String,
    sessions: Vec<Coordinator>,
}

impl Curve for Sessions {
    const NAME: &'static str = "sessions";
    const SIZES: &'static [usize] = &[1, 10, 100, 1_000, 10_000];

    async fn start(subject: &Subject) -> Outcome<Self> {
        // What the first one of all brings is not counted.
        connect(&subject.url).await?.stop().await?;
        let idle = Idle::begin(subject)?;
        Ok(Self { idle, url: subject.url.clone(), sessions: Vec::new() })
    }

    fn size(&self) -> usize {
        self.sessions.len()
    }

    async fn grow(&mut self, size: usize, until: Instant) -> Outcome {
        let numbers = self.sessions.len()..size;
        let url = &self.url;
        make(&mut self.sessions, numbers, until, |_| {
            let url = url.clone();
            async move { connect(&url).await }
        })
        .await
    }

    async fn measure(&mut self) -> Outcome<Vec<Figure>> {
        let url = &self.url;
        let starts = repeated(async || Ok(connect(url).await?.stop().await?)).await?;
        let last = self.sessions.last().ok_or("no session")?;
        let mut lock = Ours::new(last, "vol-7")?;
        let cycles = repeated(async || cycle(&mut lock).await).await?;
        let mut figures = self.idle.figures(self.sessions.len()).await?;
        figures.push(Figure::new("connect + stop of another", "µs", starts));
        figures.push(Figure::new("acquire + release of one", "µs", cycles));
        Ok(figures)
    }
}

async fn connect(url: &str) -> coordination::Result<Coordinator> {
    Coordinator::builder().heartbeat_on_current_runtime(true).connect(url).await
}
