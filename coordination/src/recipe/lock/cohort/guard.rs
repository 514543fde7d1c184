//! The guard of a turn of a cohort.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use super::serving::Reply;
use crate::env::Unforked;
use crate::error::{Effect, Error, LossReason, Result};
use crate::recipe::engine::any_guard::AnyGuard;
use crate::recipe::engine::grant::Grant;
use crate::recipe::lock::requests::Requests;
use crate::session::Purpose;
use crate::time::BootInstant;
use crate::token::TurnToken;

/// What the turns of a batch have in common.
pub(super) struct Batch {
    pub(super) grant: Grant,
    requests: Requests,
}

impl Batch {
    pub(super) fn new(grant: Grant) -> Arc<Self> {
        Arc::new(Self { grant, requests: Requests::default() })
    }

    /// From now on this process knows when somebody asks the cohort to let go.
    pub(super) fn listen(&self) {
        self.requests.begin(&self.grant);
    }

    /// Whether somebody has asked the cohort to let go, as far as anybody of it listens.
    pub(super) fn is_asked(&self) -> bool {
        self.requests.is_known()
    }
}

/// Has a turn of a [`Cohort`](crate::Cohort); passes the lock on, or releases it, when dropped.
///
/// It can be lost as a [`LockGuard`](crate::LockGuard) can, and then all turns of the batch are over. Its deadline is that of the
/// session, which heartbeats move on whoever has the turn.
///
/// Dropping it never blocks. In a forked child it is dead: dropping it does nothing.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
/// # let coordinator = coordination::Coordinator::connect("memory://").await?;
/// let cohort = coordinator.lock("vol-7")?.cohort();
/// let guard = cohort.acquire(None).await?;
///
/// // Both parts of the token go with each write.
/// let write = async { format!("written with token {}", guard.token()) };
/// assert!(guard.protect(write).await?.ends_with(".0"));
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[must_use = "the lock is passed on when the guard is dropped"]
pub struct CohortGuard {
    pub(super) batch: Arc<Batch>,
    pub(super) turn: u32,
    /// Its drop ends the turn. `None`: the grant is this turn's alone.
    pub(super) over: Option<Unforked<oneshot::Sender<Reply>>>,
}

impl CohortGuard {
    /// The guard of a batch of one turn, behind which nobody of the cohort waits.
    pub(super) fn alone(grant: Grant) -> Self {
        Self { batch: Batch::new(grant), turn: 0, over: None }
    }

    /// Fails if the lock was lost, or the coordinator stopped, while the turn was on its way.
    pub(super) fn checked(self) -> Result<Self> {
        let own = self.batch.grant.own_entry();
        let admitted = match own.loss_reason() {
            Some(reason) => Err(Error::lost("acquire", reason)),
            None => own.session().admit("acquire", Purpose::Work),
        };
        match admitted {
            Ok(()) => Ok(self),
            Err(error) => Err(error.with_effect(Effect::Unknown)),
        }
    }

    /// The lock's name, with the coordinator's prefix.
    pub fn name(&self) -> &str {
        self.batch.grant.name()
    }

    /// The fencing token of this turn: larger than that of every earlier grant of the lock, if both parts are compared.
    pub fn token(&self) -> TurnToken {
        TurnToken::new(self.batch.grant.token(), self.turn)
    }

    /// Whether the lock is held at this moment, by this machine's clock: as [`Grant::is_held`](crate::Grant::is_held).
    pub fn is_held(&self) -> bool {
        self.batch.grant.is_held()
    }

    /// As [`Grant::deadline`](crate::Grant::deadline).
    pub fn deadline(&self) -> Option<BootInstant> {
        self.batch.grant.deadline()
    }

    /// As [`Grant::remaining`](crate::Grant::remaining).
    pub fn remaining(&self) -> Option<Duration> {
        self.batch.grant.remaining()
    }

    /// Waits until the lock is lost, and returns the reason: as [`Grant::lost`](crate::Grant::lost).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect: it only listens.
    pub async fn lost(&self) -> LossReason {
        self.batch.grant.lost().await
    }

    /// Runs `future` until it is done, or until the lock is lost: as [`Grant::protect`](crate::Grant::protect).
    ///
    /// # Errors
    ///
    /// Those of [`Grant::protect`](crate::Grant::protect).
    ///
    /// # Cancel safety
    ///
    /// Dropping it drops `future`. What is held is still held.
    pub fn protect<F: Future>(&self, future: F) -> impl Future<Output = Result<F::Output>> {
        self.batch.grant.protect(future)
    }

    /// Waits until somebody [asks](crate::Lock::request_release) the cohort to let go of the lock.
    ///
    /// A request asks the cohort, as the holder of the lock, and so whoever has the turn, as
    /// [`LockGuard::release_requested`](crate::LockGuard::release_requested) says of a holder. The turn goes on for as long as its
    /// task likes. It is the last one of the batch: after it the lock is released, and the cohort queues again, at the end.
    ///
    /// From the first call in a batch on, requests are followed until its end, whoever has the turn. In a batch in which no task
    /// calls this, they are followed from 200 ms after the grant on, if turns may [begin](crate::Cohort::batch) later than that.
    /// Until then the batch goes on within its bounds.
    ///
    /// # Errors
    ///
    /// Those of [`LockGuard::release_requested`](crate::LockGuard::release_requested).
    ///
    /// # Cancel safety
    ///
    /// No request is forgotten when the future is dropped: the next call returns at once.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let lock = coordinator.lock("vol-7")?;
    /// let cohort = lock.cohort();
    /// let guard = cohort.acquire(None).await?;
    ///
    /// let asked = lock.request_release().await?;
    /// assert_eq!(asked[0].token, guard.token().number());
    /// guard.release_requested().await?;
    /// guard.release().await?;
    /// # Ok(()) }
    /// ```
    pub async fn release_requested(&self) -> Result<()> {
        self.batch.requests.wait(&self.batch.grant).await
    }

    /// Whether this process knows that somebody has [asked](crate::Lock::request_release) the cohort to let go of the lock.
    ///
    /// It does not wait for the store. The first call in a batch begins to follow requests, as
    /// [`release_requested`](Self::release_requested) does, so it returns false.
    pub fn is_release_requested(&self) -> bool {
        self.batch.requests.is_made(&self.batch.grant)
    }

    /// Ends the turn. If it was the last of its batch, waits for the store to confirm the release; otherwise the next task has the
    /// lock when it returns.
    ///
    /// Whatever it returns, this task no longer holds it afterwards.
    ///
    /// # Errors
    ///
    /// Those of [`LockGuard::release`](crate::LockGuard::release).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the turn ends all the same.
    pub async fn release(self) -> Result<()> {
        let Self { batch, over, .. } = self;
        let grant = &batch.grant;
        // Before `over` is touched, which a forked child must not do: there every guard is lost.
        if grant.own_entry().loss_reason().is_some() {
            return grant.release().await;
        }
        let Some(over) = over.and_then(Unforked::into_inner) else { return grant.release().await };
        // The task that acts for the cohort could not answer. It sees the end of the turn, by the drop of `over`, once this thread is free.
        if let Err(error) = grant.own_entry().session().check_thread("release") {
            return grant.named(Err(error.with_effect(Effect::Unknown)));
        }
        let (reply, answered) = oneshot::channel();
        if over.send(reply).is_err() {
            // The task that acts for the cohort has seen a loss, or has ended.
            return grant.release().await;
        }
        match answered.await {
            Ok(released) => released,
            // The task that acts for the cohort has seen a loss, or has ended, before it could see the end of the turn.
            Err(_) if !grant.own_entry().is_given_up() => grant.release().await,
            Err(_) => {
                let ended = grant.own_entry().session().ended("release");
                grant.named(Err(ended.with_effect(Effect::Unknown)))
            }
        }
    }
}

impl AnyGuard for CohortGuard {
    fn grant(&self) -> &Grant {
        &self.batch.grant
    }

    async fn give_back(self) -> Result<()> {
        self.release().await
    }
}

impl fmt::Debug for CohortGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CohortGuard")
            .field("name", &self.name())
            .field("token", &self.token())
            .field("is_held", &self.is_held())
            .finish()
    }
}
