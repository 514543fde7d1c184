//! How dead letters come to the queues where they are to go.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use rand::RngExt;
use tokio::time::timeout;

use super::WorkQueue;
use super::draft::Draft;
use super::engine::Engine;
use super::layout::Letter;
use super::letters::{self, Pending};
use super::refused::Refused;
use crate::env;
use crate::error::Result;

/// The longest that a claim waits for dead letters to be delivered.
pub(super) const DELIVERY: Duration = Duration::from_secs(1);

impl WorkQueue {
    /// Brings letters to the queues where they are to go: for so long at the most, and then in the background. The time of a claim
    /// is running, or an item may come for which this caller waits. What fails is tried again by later claims, and by those who
    /// [wait](Self::until_ready) for an item.
    pub(super) async fn deliver_briefly(&self, limit: Duration) {
        let is_due = match self.engine.delivering.try_lock() {
            Ok(mut delivering) => delivering.1.is_due(self.name(), &self.engine.letters_to()),
            // Nothing is to be done if that is under way.
            Err(_) => false,
        };
        if !is_due {
            return;
        }
        let queue = self.clone();
        let delivering = self.session().spawn(async move {
            // Another caller may have been first.
            if let Ok(mut delivering) = queue.engine.delivering.try_lock() {
                let (to, refused) = &mut *delivering;
                queue.deliver_here(to, refused).await;
            }
        });
        drop(timeout(limit.min(DELIVERY), delivering).await);
    }

    async fn deliver_here(&self, to: &mut Option<Arc<Engine>>, refused: &mut Refused) {
        if let Err(error) = self.try_to_deliver(to, refused).await {
            refused.note(self.name(), self.name(), &error);
        }
    }

    /// Brings letters to each queue that takes them. Fails if our own queue cannot be read or changed.
    async fn try_to_deliver(
        &self,
        to: &mut Option<Arc<Engine>>,
        refused: &mut Refused,
    ) -> Result<()> {
        let mut failed = BTreeSet::new();
        while self.engine.has_letters() {
            let is_left_out = |queue: &str| failed.contains(queue) || refused.is_put_off(queue);
            let step = |draft: &mut Draft<'_>, _: &[u64]| {
                let id = draft.head.id;
                letters::pending(draft, is_left_out).map(|pending| pending.map(|next| (id, next)))
            };
            let (id, pending) = self.engine.run_here("deliver", step).await?;
            let Some(pending) = pending else { return Ok(()) };
            let Pending { queue, letters, unreadable, upto } = pending;
            if letters.is_empty() {
                tracing::warn!(queue = self.name(), upto, "dead letters are missing");
            } else if let Err(error) = self.hand_over(to, &queue, (id, &letters)).await {
                refused.note(&queue, self.name(), &error);
                failed.insert(queue);
                continue;
            } else if !unreadable.is_empty() {
                tracing::warn!(
                    queue = self.name(),
                    to = queue,
                    ?unreadable,
                    "dead letters that cannot be read are now items that cannot be read"
                );
            }
            let step =
                |draft: &mut Draft<'_>, _: &[u64]| letters::delivered(draft, id, &queue, upto);
            self.engine.run_here("deliver", step).await?;
            refused.clear(&queue);
            refused.clear(self.name());
        }
        Ok(())
    }

    /// Posts letters in the queue to which they go; `id` is that of the queue that they come from.
    async fn hand_over(
        &self,
        to: &mut Option<Arc<Engine>>,
        queue: &str,
        (id, letters): (u64, &[(u64, Letter)]),
    ) -> Result<()> {
        let other = match to {
            Some(last) if last.queue.name() == queue => Arc::clone(last),
            _ => Arc::new(Engine::new(self.engine.queue.of_name(queue)?)),
        };
        let from = format!("{} {id:x}", self.name());
        let marks: Vec<u64> = letters.iter().map(|_| env::rng().random()).collect();
        let step =
            |draft: &mut Draft<'_>, _: &[u64]| letters::receive(draft, &from, letters, &marks);
        let left = other.run_here("deliver", step).await?;
        other.follow();
        other.tidy_later(left);
        *to = Some(other);
        Ok(())
    }
}
