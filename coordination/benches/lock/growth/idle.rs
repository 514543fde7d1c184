//! What it costs while nothing happens.

use std::time::{Duration, Instant};

use super::{Figure, Served, Subject, heard};
use crate::Outcome;
use crate::machine::{memory_of_all, resident, threads, time_of_all};

/// For how long nothing happens, if nothing else is said.
pub(super) const WINDOW: Duration = Duration::from_millis(1_500);

/// The memory that there was before anything was made.
pub(super) struct Idle {
    server: Option<u32>,
    served: Served,
    address: String,
    own_memory: u64,
    server_memory: Option<u64>,
}

impl Idle {
    pub(super) fn begin(subject: &Subject) -> Outcome<Self> {
        let server = subject.server;
        let server_memory = server.map(memory_of_all).transpose()?;
        Ok(Self {
            server,
            served: subject.served,
            address: subject.address.clone(),
            own_memory: resident(std::process::id())?,
            server_memory,
        })
    }

    /// Waits for a while; `count` is how many there are of what memory is told of.
    pub(super) async fn figures(&self, count: usize) -> Outcome<Vec<Figure>> {
        self.figures_within(WINDOW, count).await
    }

    /// Waits for so long.
    pub(super) async fn figures_within(
        &self,
        window: Duration,
        count: usize,
    ) -> Outcome<Vec<Figure>> {
        heard::take();
        // Outside of what is timed, as it is work for both.
        let served = self.served();
        let (begun, before) = (Instant::now(), self.times()?);
        tokio::time::sleep(window).await;
        let (after, seconds) = (self.times()?, begun.elapsed().as_secs_f64());
        let served_after = self.served();
        let heartbeats = heard::take();
        // Milliseconds of a processor in a second.
        let busy = |before: Duration, after: Duration| {
            vec![after.saturating_sub(before).as_secs_f64() * 1e3 / seconds]
        };
        let each = |before: u64, after: u64| {
            vec![after.saturating_sub(before) as f64 / count.max(1) as f64 / 1024.0]
        };
        let this = std::process::id();
        let mut figures = vec![
            Figure::new("heartbeat", "µs", heartbeats),
            Figure::new("own processor", "ms/s", busy(before.0, after.0)),
            Figure::new("own memory, each", "KiB", each(self.own_memory, resident(this)?)),
            Figure::new("own threads", "", vec![threads(this)? as f64]),
        ];
        if let (Some(before), Some(after)) = (served, served_after) {
            let rate = after.saturating_sub(before) as f64 / seconds;
            figures.push(Figure::new("requests at the server", "1/s", vec![rate]));
        }
        if let (Some(before), Some(after)) = (before.1, after.1) {
            figures.push(Figure::new("server's processor", "ms/s", busy(before, after)));
        }
        if let (Some(server), Some(memory)) = (self.server, self.server_memory) {
            let memory = each(memory, memory_of_all(server)?);
            figures.push(Figure::new("server's memory, each", "KiB", memory));
        }
        Ok(figures)
    }

    /// `None` also if the server lets nobody in any more.
    fn served(&self) -> Option<u64> {
        (self.served)(&self.address).ok().flatten()
    }

    /// Of this process and of the server.
    fn times(&self) -> Outcome<(Duration, Option<Duration>)> {
        let own = time_of_all(std::process::id())?;
        Ok((own, self.server.map(time_of_all).transpose()?))
    }
}
