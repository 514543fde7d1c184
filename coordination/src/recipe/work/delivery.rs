//! How dead letters come to the queues where they are to go.

use std::sync::Arc;
use std::time::Duration;

use rand::RngExt;
use tokio::time::timeout;

use super::WorkQueue;
use super::draft::Draft;
use super::engine::Engine;
use super::letters::{self, Pending};
use crate::env;
use crate::error::Result;

/// The longest that a claim waits for dead letters to be delivered.
pub(super) const DELIVERY: Duration = Duration::from_secs(1);

impl WorkQueue {
    /// Brings letters to the queues where they are to go: for so long at the most, and then in the background. The time of a claim
    /// is running, or an item may come for which this caller waits. What fails is tried again by the next claim, and by those who
    /// [wait](Self::until_ready) for an item.
    pub(super) async fn deliver_briefly(&self, limit: Duration) {
        if !self.engine.has_letters() {
            return;
        }
        let queue = self.clone();
        let delivering = self.session().spawn(async move {
            // Nothing is to be done if that is under way.
            if let Ok(mut to) = queue.engine.delivering.try_lock() {
                queue.deliver_here(&mut to).await;
            }
        });
        drop(timeout(limit.min(DELIVERY), delivering).await);
    }

    async fn deliver_here(&self, to: &mut Option<Arc<Engine>>) {
        if let Err(error) = self.try_to_deliver(to).await {
            tracing::warn!(%error, queue = self.name(), "dead letters are not delivered yet");
        }
    }

    async fn try_to_deliver(&self, to: &mut Option<Arc<Engine>>) -> Result<()> {
        while self.engine.has_letters() {
            let pending = |draft: &mut Draft<'_>, _: &[u64]| {
                let id = draft.head.id;
                letters::pending(draft).map(|letters| letters.map(|letters| (id, letters)))
            };
            let (id, Pending { letters, upto }) = self.engine.run_here("deliver", pending).await?;
            let Some((_, first)) = letters.first() else {
                let Some(missing) = upto else { return Ok(()) };
                tracing::warn!(queue = self.name(), upto = missing, "dead letters are missing");
                let step = |draft: &mut Draft<'_>, _: &[u64]| letters::delivered(draft, missing);
                self.engine.run_here("deliver", step).await?;
                continue;
            };
            let last = letters.last().map_or(0, |(number, _)| *number);
            let before = to.take().filter(|before| before.queue.name() == first.queue);
            let other = match before {
                Some(before) => before,
                None => Arc::new(Engine::new(self.engine.queue.of_name(&first.queue)?)),
            };
            let other = to.insert(other);
            let from = format!("{} {id:x}", self.name());
            let marks: Vec<u64> = letters.iter().map(|_| env::rng().random()).collect();
            let step =
                |draft: &mut Draft<'_>, _: &[u64]| letters::receive(draft, &from, &letters, &marks);
            let left = other.run_here("deliver", step).await?;
            other.follow();
            other.tidy_later(left);
            let step = |draft: &mut Draft<'_>, _: &[u64]| letters::delivered(draft, last);
            self.engine.run_here("deliver", step).await?;
        }
        Ok(())
    }
}
