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

#[cfg(all(test, coordination_internals, feature = "memory"))]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::Config;
    use crate::simulation::{Clocks, Run, Traits, World};

    const TTL: Duration = Duration::from_secs(1);

    /// The deadline has passed while the process stood still, and the guards are given up before any task of the session goes on.
    #[tokio::test(start_paused = true)]
    async fn t2_what_was_lost_before_it_was_given_up_is_told_as_lost() {
        let _run = Run::begin(1);
        // No notification tells of the loss, so that nobody but the session's task and the clock can know of it.
        let traits =
            Traits { is_remote: true, has_clock: true, watches: false, renews_on_restart: false };
        let client = World::new(1, traits).client(Clocks::default());
        let config = Config { ttl: Some(TTL), ..Config::default() };
        let coordinator = client.connect(config).await.expect("the store is there");
        let acquire = async |name: &str| {
            let lock = coordinator.lock(name).expect("a good name");
            lock.acquire(None).await.expect("free")
        };
        let (dropped, released) = (acquire("a").await, acquire("b").await);
        let watches = [dropped.loss_watch(), released.loss_watch()];
        client.pause();
        tokio::time::sleep(2 * TTL).await;
        assert!(!dropped.is_held());
        drop(dropped);
        let refused = released.release().await.expect_err("it was lost before");
        assert_eq!(refused.loss_reason(), Some(LossReason::DeadlinePassed));
        for watch in watches {
            assert_eq!(watch.lost().await, Some(LossReason::DeadlinePassed));
        }
        client.resume();
        let held = acquire("a").await;
        let watch = held.loss_watch();
        drop(held);
        assert_eq!(watch.lost().await, None, "it was held");
    }
}
