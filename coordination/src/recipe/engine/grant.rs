//! What every guard has: a token, a deadline, a signal when it is lost.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::loss::LossWatch;
use super::own_entry::OwnEntry;
use super::protect::Protected;
use super::queue::KeepsOpen;
use crate::canary::{Canary, sings};
use crate::env::OwnedFile;
use crate::error::{Effect, Error, LossReason, Result};
use crate::key::QueueKey;
use crate::time::BootInstant;
use crate::token::FencingToken;

/// A grant: what all guards have in common. They dereference to it.
///
/// Its methods only read local state. They are right even while the network, the store or the program's
/// executor hangs.
///
/// # Examples
///
/// ```
/// use coordination::Grant;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
/// # let coordinator = coordination::Coordinator::connect("memory://").await?;
/// /// Whatever it is that is held: a lock, a permit, a leadership.
/// fn note(held: &Grant) -> String {
///     format!("{} with token {}, held: {}", held.name(), held.token(), held.is_held())
/// }
///
/// let guard = coordinator.lock("vol-7")?.acquire(None).await?;
/// let permit = coordinator.semaphore("uploads", 3)?.acquire(None).await?;
/// assert_eq!(note(&guard), format!("vol-7 with token {}, held: true", guard.token()));
/// assert!(note(&permit).starts_with("uploads"));
/// # Ok(()) }
/// ```
pub struct Grant {
    own: Box<OwnEntry>,
    key: QueueKey,
    token: FencingToken,
    /// When this process learned of the grant.
    since: Instant,
    // Dropped after `own`, whose drop begins the removal of the entry: until then the session must stay open.
    _coordinator: KeepsOpen,
}

impl Grant {
    pub(crate) fn new(own: Box<OwnEntry>, key: QueueKey, coordinator: KeepsOpen) -> Self {
        // Invariant: a granted entry has been entered, and stores number their entries from 1 on.
        let seq = if sings(Canary::TokenIsQueueLength) { Some(1) } else { own.seq() };
        let token = seq.and_then(FencingToken::new).expect("a granted entry has a number");
        Self { own, key, token, since: Instant::now(), _coordinator: coordinator }
    }

    /// The name, with the coordinator's prefix.
    pub fn name(&self) -> &str {
        self.key.name()
    }

    /// The fencing token of this grant: larger than that of every earlier grant that excludes this one.
    pub fn token(&self) -> FencingToken {
        self.token
    }

    /// Whether the grant is held at this moment, by this machine's clock.
    ///
    /// While it returns true, nothing that this grant excludes has been granted to anybody else (S1 of
    /// `docs/guarantees.md`). That holds under the assumptions stated there: clocks that run at nearly the
    /// same rate, and a store that does not end a session too early.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let lock = coordinator.lock("vol-7")?;
    /// let guard = lock.acquire(None).await?;
    /// for step in 0..3 {
    ///     // Before each step that others must not see twice.
    ///     if !guard.is_held() {
    ///         eprintln!("lost before step {step}");
    ///         break;
    ///     }
    /// }
    /// lock.break_grant(guard.token()).await?;
    /// guard.lost().await;
    /// assert!(!guard.is_held());
    /// # Ok(()) }
    /// ```
    pub fn is_held(&self) -> bool {
        self.own.loss_reason().is_none() && !self.own.is_given_up()
    }

    /// The time until which the grant can be relied on if nothing more is heard from the store.
    ///
    /// Each confirmed heartbeat moves the deadline on. `None`: the store has no leases, and the grant is held as long as
    /// the process lives. It says nothing of a grant that was lost before, or released:
    /// [`remaining`](Self::remaining) does.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let guard = coordinator.lock("vol-7")?.acquire(None).await?;
    /// match guard.deadline() {
    ///     Some(deadline) => println!("relied on for {:?} more", deadline.remaining()),
    ///     None => println!("relied on as long as this process lives"),
    /// }
    /// # Ok(()) }
    /// ```
    pub fn deadline(&self) -> Option<BootInstant> {
        Some(self.own.lease().deadline()).filter(|deadline| *deadline != BootInstant::NEVER)
    }

    /// How long it is until the [`deadline`](Self::deadline): zero when that has passed, and when the grant is not held any more;
    /// `None` if there is no deadline.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let guard = coordinator.lock("vol-7")?.acquire(None).await?;
    /// // For a step of two seconds that cannot be stopped: is there time for it?
    /// let has_time = guard.remaining().is_none_or(|left| left > Duration::from_secs(2));
    /// assert!(has_time);
    /// // `memory://` has no lease.
    /// assert!(guard.deadline().is_none());
    /// # Ok(()) }
    /// ```
    pub fn remaining(&self) -> Option<Duration> {
        match self.is_held() {
            true => self.deadline().map(BootInstant::remaining),
            false => Some(Duration::ZERO),
        }
    }

    /// Waits until the grant is lost, and returns the reason.
    ///
    /// It completes within 50 ms of the deadline, or of the moment when the store said that the session has
    /// ended or that this entry is gone. A loss is final.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect: it only listens.
    ///
    /// # Examples
    ///
    /// ```
    /// use coordination::LossReason;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let guard = coordinator.lock("vol-7")?.acquire(None).await?;
    /// coordinator.stop().await?;
    /// assert_eq!(guard.lost().await, LossReason::Closed);
    /// assert!(!guard.is_held());
    /// # Ok(()) }
    /// ```
    pub async fn lost(&self) -> LossReason {
        self.own.wait_lost().await
    }

    /// Follows the grant without keeping it: for a task that waits for the loss while the guard stays where it is.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let guard = coordinator.lock("vol-7")?.acquire(None).await?;
    /// let watch = guard.loss_watch();
    /// drop(guard);
    /// assert!(!watch.is_held());
    /// assert!(watch.lost().await.is_none(), "it was given up, not lost");
    /// # Ok(()) }
    /// ```
    pub fn loss_watch(&self) -> LossWatch {
        self.own.loss_watch()
    }

    /// Runs `future` until it is done, or until this grant is lost.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`](crate::ErrorKind::Lost) or [`ErrorKind::Closed`](crate::ErrorKind::Closed):
    ///   it was lost. With [`Effect::None`], `future` never began; with [`Effect::Unknown`], it was dropped at its current
    ///   await, and what it had done before is done.
    ///
    /// # Cancel safety
    ///
    /// Dropping it drops `future`. What is held is still held.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let guard = coordinator.lock("vol-7")?.acquire(None).await?;
    /// let sum = guard.protect(async { 1 + 1 }).await?;
    /// assert_eq!(sum, 2);
    /// # Ok(()) }
    /// ```
    pub fn protect<F: Future>(&self, future: F) -> impl Future<Output = Result<F::Output>> {
        Protected::new(future, vec![self.loss_watch()])
    }

    /// A file that keeps the session of this grant alive when this process dies: as long as another process has the file open,
    /// nobody else is granted what the session holds. `None`: the store has a lease for that, or is this process' memory.
    ///
    /// On `file://` it is the session's locked file. It is closed on exec unless it is handed on, as by
    /// `Command::stdin` or over a Unix socket: to a process that ends what runs under the grant, say, and itself after that.
    /// A session that is stopped ends, whoever has its file open.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Storage`](crate::ErrorKind::Storage): there are too many open files.
    pub fn session_file(&self) -> Result<Option<OwnedFile>> {
        let session = self.own.session();
        // In a forked child every guard is lost.
        if !session.is_own_process() {
            return Ok(None);
        }
        self.named(session.backend.session_file(self.own.lease().id))
    }

    pub(crate) fn own_entry(&self) -> &OwnEntry {
        &self.own
    }

    pub(crate) fn key(&self) -> &QueueKey {
        &self.key
    }

    pub(crate) async fn release(&self) -> Result<()> {
        // A caller that releases has ended the work under the grant. If the grant was lost before the release, all of that work
        // was done, so its effect is `Applied`. If the grant is lost during the release, the effect is in doubt, as that of the
        // release is.
        let ended = |error: Error| match (error.loss_reason(), error.effect()) {
            (Some(_), Effect::None) => error.with_body(Effect::Applied),
            _ => error,
        };
        self.named(self.own.give_up().await.map_err(ended))
    }

    pub(crate) fn since(&self) -> Instant {
        self.since
    }

    /// Releases the grant when this much time has passed since it was granted, even if the returned value is dropped.
    pub(crate) fn release_after(self, held_for: Duration) -> TimedRelease {
        let end = self.since.checked_add(held_for);
        self.release_at(end)
    }

    /// Releases the grant at this moment; `None`: later than the clock will ever show.
    pub(crate) fn release_at(self, end: Option<Instant>) -> TimedRelease {
        let grant = Arc::new(self);
        let kept = Arc::clone(&grant);
        let session = grant.own.session();
        // A forked child holds nothing, so there is nothing to release.
        if session.is_own_process() {
            session.spawn(async move {
                let end = async {
                    match end {
                        Some(end) => tokio::time::sleep_until(end).await,
                        None => std::future::pending().await,
                    }
                };
                tokio::select! {
                    biased;
                    () = end => kept.own.let_go(),
                    // The grant is lost, so there is nothing to release.
                    _ = kept.lost() => {}
                }
            });
        }
        TimedRelease(grant)
    }

    /// The error of an operation before or during which the grant was lost. The effect is that of the operation, and says nothing of what
    /// runs under the grant.
    pub(crate) fn loss_error(
        &self,
        operation: &'static str,
        reason: LossReason,
        effect: Effect,
    ) -> Error {
        self.loss_watch().error(operation, reason, Effect::None).with_effect(effect)
    }

    pub(crate) fn named<T>(&self, outcome: Result<T>) -> Result<T> {
        let scheme = self.own.session().backend.scheme();
        outcome.map_err(|error| error.on_key(self.name()).on_backend(scheme))
    }
}

impl fmt::Debug for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grant")
            .field("name", &self.name())
            .field("token", &self.token)
            .field("is_held", &self.is_held())
            .finish()
    }
}

/// A grant that will be released at a set time; returned by `release_after`.
///
/// Dropping it changes nothing: the release happens at its time, and until then the session is kept. It
/// dereferences to [`Grant`], so that one can ask whether it is still held.
///
/// [`lost`](Grant::lost) and [`protect`](Grant::protect) report a loss, but not the planned release: what
/// runs under `protect` may go on after it.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
/// # let coordinator = coordination::Coordinator::connect("memory://").await?;
/// let lock = coordinator.lock("vol-7")?;
/// let timed = lock.acquire(None).await?.release_after(Duration::from_millis(10));
/// assert!(timed.is_held());
/// drop(timed);
/// // Others have to wait for the end of its time all the same.
/// let next = lock.acquire(Some(Duration::from_secs(5))).await?;
/// assert!(next.is_held());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct TimedRelease(Arc<Grant>);

impl std::ops::Deref for TimedRelease {
    type Target = Grant;

    fn deref(&self) -> &Grant {
        &self.0
    }
}

/// Implements what is the same for all guards, for a guard that is a struct with a field `grant`.
macro_rules! guard {
    ($guard:ident, $what:literal) => {
        impl $guard {
            #[doc = concat!("Releases ", $what, " and waits for the store to confirm.")]
            ///
            /// Whatever it returns, this process no longer holds it afterwards.
            ///
            /// # Errors
            ///
            /// * [`ErrorKind::Lost`](crate::ErrorKind::Lost), [`ErrorKind::Closed`](crate::ErrorKind::Closed): it had
            ///   been lost before, for the [reason](crate::Error::loss_reason) given. What was done under it since
            ///   then may have overlapped with another holder's work.
            /// * Others, with [`Effect::Unknown`](crate::Effect::Unknown): the store has not confirmed. The
            ///   library goes on releasing it in the background until the session ends.
            ///
            /// # Cancel safety
            ///
            /// If the future is dropped, the release goes on in the background.
            pub async fn release(self) -> crate::Result<()> {
                self.grant.release().await
            }

            #[doc = concat!("Lets go of ", $what, " by itself, `held_for` after it was granted.")]
            ///
            /// Unless the session is lost or stopped it is never released earlier, even if the returned value is
            /// dropped. The release itself takes a moment more. The time counts from the grant as seen by
            /// this process; if it has passed already, the release begins at once.
            pub fn release_after(self, held_for: std::time::Duration) -> crate::TimedRelease {
                self.grant.release_after(held_for)
            }
        }

        impl std::ops::Deref for $guard {
            type Target = crate::Grant;

            fn deref(&self) -> &crate::Grant {
                &self.grant
            }
        }
    };
}

pub(crate) use guard;

#[cfg(all(test, feature = "memory"))]
mod tests {
    use super::*;
    use crate::Coordinator;

    #[tokio::test(start_paused = true)]
    async fn it_lets_go_when_the_time_since_the_grant_has_passed() -> Result<()> {
        let ms = Duration::from_millis;
        let coordinator = Coordinator::connect("memory://timed").await?;
        let lock = coordinator.lock("vol-7")?;
        let guard = lock.acquire(None).await?;
        tokio::time::sleep(ms(100)).await;
        // The time counts from the grant, not from the call of `release_after`.
        let timed = guard.release_after(ms(300));
        tokio::time::sleep(ms(199)).await;
        assert!(timed.is_held() && lock.try_acquire().await?.is_none());
        tokio::time::sleep(ms(3)).await;
        assert!(!timed.is_held());
        assert_eq!(timed.remaining(), Some(Duration::ZERO), "there is no time left");
        let guard = lock.try_acquire().await?.expect("it is free");
        // This release is at a time later than the clock can show, so within a day nothing happens.
        drop(guard.release_after(Duration::MAX));
        tokio::time::sleep(ms(86_400_000)).await;
        assert!(lock.try_acquire().await?.is_none());
        coordinator.stop().await
    }

    #[tokio::test]
    async fn x2b_a_call_that_ends_with_a_loss_had_no_body() -> Result<()> {
        let coordinator = Coordinator::connect("memory://call-lost").await?;
        let guard = coordinator.lock("vol-7")?.acquire(None).await?;
        for effect in [Effect::None, Effect::Unknown, Effect::Applied] {
            let error = guard.loss_error("claim", LossReason::EntryDeleted, effect);
            assert_eq!((error.effect(), error.body_ran()), (effect, false), "{error}");
            assert!(error.is_transient(), "the call may be made again");
        }
        Ok(())
    }
}
