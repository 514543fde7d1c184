//! Follows a grant from outside: whether it is held, and when it ends.

use std::fmt;
use std::future::pending;
use std::sync::Arc;

use crate::canary::{Canary, sings};
use crate::env::Process;
use crate::error::{Effect, Error, LossReason};
use crate::key::QueueKey;
use crate::session::{Hold, Lease};

/// Follows a grant without holding it. Made by [`Grant::loss_watch`](crate::Grant::loss_watch); cheap to clone.
///
/// It keeps neither what was granted nor the session: a task may wait with it for the loss, while the guard is released
/// or dropped elsewhere.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
/// # let coordinator = coordination::Coordinator::connect("memory://").await?;
/// let guard = coordinator.lock("vol-7")?.acquire(None).await?;
/// let watch = guard.loss_watch();
/// let alarm = tokio::spawn(async move {
///     match watch.lost().await {
///         Some(reason) => eprintln!("stop everything: {reason}"),
///         None => println!("released"),
///     }
/// });
/// guard.release().await?;
/// # alarm.await.expect("it does not panic");
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct LossWatch {
    pub(in crate::recipe) queue: QueueKey,
    pub(in crate::recipe) scheme: &'static str,
    pub(in crate::recipe) lease: Arc<Lease>,
    pub(in crate::recipe) hold: Arc<Hold>,
    pub(in crate::recipe) process: Process,
}

impl LossWatch {
    /// The name of what was granted, with the coordinator's prefix.
    pub fn name(&self) -> &str {
        self.queue.name()
    }

    /// Whether the grant is held at this moment; see [`Grant::is_held`](crate::Grant::is_held).
    pub fn is_held(&self) -> bool {
        !self.hold.is_released() && self.loss_reason().is_none()
    }

    /// Waits until the grant is over, and returns why it was lost; `None` if it was released while it was held.
    ///
    /// It reports a loss as soon as [`Grant::lost`](crate::Grant::lost) does.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect: it only listens.
    pub async fn lost(&self) -> Option<LossReason> {
        if self.hold.is_released() {
            return self.hold.loss_reason();
        }
        match self.loss_reason() {
            Some(reason) => Some(reason),
            None => self.hold.wait_over().await,
        }
    }

    /// Why the grant is lost, judged at this moment; `None` while it is not.
    pub(in crate::recipe) fn loss_reason(&self) -> Option<LossReason> {
        loss_reason(&self.lease, &self.hold, self.process)
    }

    /// Waits until the grant is lost; for ever, if it is released before.
    pub(in crate::recipe) async fn into_loss(self) -> (Self, LossReason) {
        match self.lost().await {
            Some(reason) => (self, reason),
            None => pending().await,
        }
    }

    /// The loss as an error. `stood`: how far the work under the grant had come.
    pub(crate) fn error(
        &self,
        operation: &'static str,
        reason: LossReason,
        stood: Effect,
    ) -> Error {
        Error::lost(operation, reason).with_body(stood).on_key(self.name()).on_backend(self.scheme)
    }
}

impl fmt::Debug for LossWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LossWatch")
            .field("name", &self.name())
            .field("is_held", &self.is_held())
            .finish()
    }
}

/// Why what is held under this lease is lost, judged at this moment; `None` while it is not.
pub(in crate::recipe) fn loss_reason(
    lease: &Lease,
    hold: &Hold,
    process: Process,
) -> Option<LossReason> {
    if !process.is_this() {
        return Some(LossReason::Closed);
    }
    hold.loss_reason().or_else(|| match sings(Canary::LossSetByTaskOnly) {
        true => None,
        false => lease.loss_reason(),
    })
}
