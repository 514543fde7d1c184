//! The work queue: items that are claimed, renewed and acknowledged, and can be claimed again when a worker dies.
//!
//! The queue's value is its head, and all else is in records beside it, see [`layout`]. Each of the [`calls`], and of those with
//! claims ([`claiming`]), is a step of [`draft`]: a function of what was read, whose result is written in one compare-and-set. A
//! process that claims has an entry in the queue; when that is gone, so is the process, and the next one that claims takes back
//! what it had.

mod ahead;
mod buckets;
mod calls;
mod claim;
mod claimants;
mod claiming;
mod clear;
mod clock;
mod delivery;
mod draft;
mod engine;
mod guard;
mod ids;
mod items;
mod layout;
mod letters;
mod look;
mod outage;
mod post;
mod precedence;
mod refused;
mod select;
mod taking;
#[cfg(test)]
mod tests;
mod types;
mod waiting;

use std::fmt;
use std::sync::Arc;

pub use self::claimants::Claimant;
use self::draft::{Draft, Outcome, Step};
use self::engine::Engine;
pub use self::guard::WorkClaim;
pub use self::ids::{ClaimId, ItemId};
pub use self::types::{
    Ack, ClaimOptions, ClaimView, Collected, ListOptions, NewItem, WorkItem, WorkLimits, WorkStats,
};
use super::engine::grant::Grant;
use crate::coordinator::Coordinator;
use crate::error::Result;
use crate::session::Session;

/// The kind of its queue keys.
const KIND: &str = "work";

/// A work queue, which all processes share. Made by [`Coordinator::queue`], without I/O; cheap to clone. Keep it,
/// rather than making one for each call, because it caches what it has read.
///
/// [Items](NewItem) are posted, and handed out in the order of posting to whoever [claims](Self::claim) them. An item
/// that is not [acknowledged](WorkClaim::ack) can be claimed again: when its [`WorkClaim`] is dropped, when the claim's ttl is over, or
/// when the worker's session ends. So each item is worked on at least once, and never by two live claims at a time. If a
/// worker dies between its work and its acknowledgement, the work is done a second time: a resource that must not see it
/// twice keeps the [token](WorkClaim::token) under which an item's work was done, and refuses every other one.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
/// use std::time::Duration;
///
/// use coordination::{Ack, ClaimOptions, Coordinator, NewItem};
///
/// let coordinator = Coordinator::connect("memory://").await?;
/// let jobs = coordinator.queue("resize-jobs")?;
/// jobs.post(&[NewItem::new("vol-7"), NewItem::json(&("vol-8", 20))?]).await?;
///
/// let claim = jobs.claim(ClaimOptions::default().ttl(Duration::from_secs(60))).await?;
/// let claim = claim.expect("two items are ready");
/// for item in claim.items() {
///     assert_eq!(claim.ack(item.id()).await?, Ack::Done);
/// }
/// assert_eq!(jobs.stats().await?.total(), 0);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct WorkQueue {
    engine: Arc<Engine>,
    /// The entry of this process, with which its claims end.
    holder: Arc<tokio::sync::Mutex<Option<Arc<Grant>>>>,
    limits: Arc<WorkLimits>,
}

impl Coordinator {
    /// The queue of work of this name. No I/O.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Name`](crate::ErrorKind::Name): empty or too long.
    pub fn queue(&self, name: impl AsRef<str>) -> Result<WorkQueue> {
        let queue = self.queue_of(KIND, name.as_ref())?;
        Ok(WorkQueue {
            engine: Arc::new(Engine::new(queue)),
            holder: Arc::default(),
            limits: Arc::default(),
        })
    }

    /// The names of all work queues that were ever posted to and whose name begins with the coordinator's prefix, without the
    /// prefix, in order. Empty and deleted queues are included.
    ///
    /// # Errors
    ///
    /// The [kinds of error](crate::ErrorKind) of a store that refuses or does not answer.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect: it only reads.
    pub async fn queues(&self) -> Result<Vec<String>> {
        self.names("queues", KIND).await
    }
}

impl WorkQueue {
    /// The name, with the coordinator's prefix.
    pub fn name(&self) -> &str {
        self.engine.queue.name()
    }

    /// The same queue with other limits for the calls of this handle. The limits can be narrower than the
    /// [default](WorkLimits::default) ones, but not wider.
    #[must_use]
    pub fn with_limits(&self, limits: WorkLimits) -> Self {
        Self { limits: Arc::new(limits.within_default()), ..self.clone() }
    }

    /// How many bytes of what was read are kept in memory for the next call: up to 4 MiB. For whoever keeps many queues.
    ///
    /// # Examples
    ///
    /// ```
    /// use coordination::{ListOptions, NewItem};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let jobs = coordinator.queue("resize-jobs")?;
    /// jobs.post(&[NewItem::new(vec![0_u8; 100_000])]).await?;
    /// assert!(jobs.cached_bytes() >= 100_000);
    /// jobs.forget_cached();
    /// assert_eq!(jobs.cached_bytes(), 0);
    /// assert_eq!(jobs.list(ListOptions::default()).await?.len(), 1);
    /// # Ok(()) }
    /// ```
    pub fn cached_bytes(&self) -> usize {
        self.engine.cached_bytes()
    }

    /// Frees [those bytes](Self::cached_bytes). The next call reads from the store what it needs. The queue is followed as before.
    pub fn forget_cached(&self) {
        self.engine.forget_cached();
    }

    async fn run<T: Send + 'static>(
        &self,
        operation: &'static str,
        mut step: impl FnMut(&mut Draft<'_>) -> Step<Outcome<T>> + Send + 'static,
    ) -> Result<T> {
        self.engine.run(operation, move |draft, _| step(draft)).await
    }

    /// [`run`](Self::run) for what only reads.
    async fn look<T: Send + 'static>(
        &self,
        operation: &'static str,
        mut step: impl FnMut(&mut Draft<'_>) -> Step<T> + Send + 'static,
    ) -> Result<T> {
        let step = move |draft: &mut Draft<'_>, _: &[u64]| step(draft).map(Outcome::Done);
        self.engine.run_reading(operation, step).await
    }

    fn session(&self) -> &Arc<Session> {
        &self.engine.queue.session
    }
}

impl fmt::Debug for WorkQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkQueue").field("name", &self.name()).finish_non_exhaustive()
    }
}
