//! What is held, given back by a thread.

use super::wait;
use crate::{
    CohortGuard, Inside, Leadership, LockGuard, Membership, MultiGuard, Permit,
    RejoiningMembership, Result, WorkClaim, WorkSlot,
};

mod sealed {
    pub trait Sealed {}
}

/// The guard of any recipe, for [`release`].
///
/// # Examples
///
/// ```
/// use coordination::blocking::{self, Guard};
///
/// /// Whatever it is that is held.
/// fn finish(held: impl Guard) {
///     if let Err(error) = blocking::release(held) {
///         eprintln!("others may have had it meanwhile: {error}");
///     }
/// }
///
/// fn main() -> coordination::Result<()> {
///     let coordinator = blocking::Coordinator::connect("memory://")?;
///     finish(coordinator.lock("vol-7")?.acquire(None)?);
///     finish(coordinator.semaphore("uploads", 3)?.acquire(None)?);
///     coordinator.stop()
/// }
/// ```
pub trait Guard: sealed::Sealed + Sized {
    /// Gives it back.
    #[doc(hidden)]
    fn give_back(self) -> impl Future<Output = Result<()>>;
}

macro_rules! guards {
    ($($guard:ident by $release:ident,)*) => {
        $(
            impl sealed::Sealed for $guard {}

            impl Guard for $guard {
                async fn give_back(self) -> Result<()> {
                    // Of a claim it is told how many items it had.
                    self.$release().await.map(drop)
                }
            }
        )*
    };
}

guards! {
    CohortGuard by release,
    Inside by release,
    Leadership by release,
    LockGuard by release,
    Membership by leave,
    MultiGuard by release,
    Permit by release,
    RejoiningMembership by leave,
    WorkClaim by release,
    WorkSlot by release,
}

/// Releases what is held, as the guard's own `release` or `leave` does, and blocks the thread until the store has confirmed.
///
/// # Errors
///
/// Those of [`LockGuard::release`], or of the guard that it is.
///
/// # Examples
///
/// ```
/// use coordination::blocking;
///
/// fn main() -> coordination::Result<()> {
///     let coordinator = blocking::Coordinator::connect("memory://")?;
///     let lock = coordinator.lock("vol-7")?;
///     blocking::release(lock.acquire(None)?)?;
///     assert!(lock.try_acquire()?.is_some());
///     coordinator.stop()
/// }
/// ```
pub fn release(guard: impl Guard) -> Result<()> {
    wait(guard.give_back())
}
