//! `with` and `with_value` of guards, whichever way they were acquired.

use std::convert::identity;
use std::future::Future;

use super::{all, taken, under};
use crate::error::{Error, Result};
use crate::recipe::body::only;
use crate::recipe::election::Leadership;
use crate::recipe::group::Membership;
use crate::recipe::limiter::WorkSlot;
use crate::recipe::lock::{CohortGuard, LockGuard};
use crate::recipe::multi::MultiGuard;
use crate::recipe::semaphore::Permit;

/// Implements `with` and `with_value` for a guard. `$acquired` are lines of an example that acquire a `guard`.
macro_rules! with {
    ($guard:ident as $seen:ty, $what:literal, $acquired:literal, $guards:expr, $pick:expr) => {
        impl $guard {
            #[doc = concat!("Runs `body` under ", $what, " and releases it then, as [`Lock::with`](crate::Lock::with) does.")]
            ///
            /// For guards that were acquired in another way than by a `with`: by a try, say, or in a certain number.
            ///
            /// # Errors
            ///
            /// That of the body, or [`ErrorKind::Lost`](crate::ErrorKind::Lost) or [`ErrorKind::Closed`](crate::ErrorKind::Closed)
            /// turned into `E`, with the effects that [`Lock::with`](crate::Lock::with) lists:
            /// [`Effect::None`](crate::Effect::None) if it had been lost before the body began.
            ///
            /// # Cancel safety
            ///
            /// Dropping the future, also before it was polled, drops the body and then releases in the background. The same
            /// happens when the body panics. If the body has ended already, only its result is dropped, and the release goes on.
            ///
            /// # Examples
            ///
            /// ```
            /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
            /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
            #[doc = $acquired]
            /// guard.with(async |_| -> coordination::Result<()> {
            ///     println!("nobody takes it away unnoticed");
            ///     Ok(())
            /// })
            /// .await?;
            /// # Ok(()) }
            /// ```
            pub fn with<T, E, B>(self, body: B) -> impl Future<Output = Result<T, E>>
            where
                E: From<Error>,
                B: AsyncFnOnce(&$seen) -> Result<T, E>,
            {
                under(taken($guards(self)), $pick, identity, body)
            }

            /// [`with`](Self::with), for a body that returns no `Result`: the call returns what the body returned, or the library's
            /// error.
            ///
            /// # Errors
            ///
            /// Those of [`with`](Self::with) that are not the body's.
            ///
            /// # Cancel safety
            ///
            /// As for [`with`](Self::with).
            ///
            /// # Examples
            ///
            /// ```
            /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
            /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
            #[doc = $acquired]
            /// assert_eq!(guard.with_value(async |_| 1 + 1).await?, 2);
            /// # Ok(()) }
            /// ```
            pub fn with_value<T, B>(self, body: B) -> impl Future<Output = Result<T>>
            where
                B: AsyncFnOnce(&$seen) -> T,
            {
                under(taken($guards(self)), $pick, Ok, body)
            }
        }
    };
    ($guard:ident, $what:literal, $acquired:literal) => {
        with!($guard as $guard, $what, $acquired, |guard| vec![guard], only);
    };
}

with!(
    LockGuard,
    "the lock",
    r#"let guard = coordinator.lock("vol-7")?.try_acquire().await?.expect("it is free");"#
);
with!(
    CohortGuard,
    "the turn",
    r#"let guard = coordinator.lock("vol-7")?.cohort().acquire(None).await?;"#
);
with!(
    MultiGuard as [LockGuard],
    "the locks",
    r#"let guard = coordinator.locks(["a", "b"])?.acquire(None).await?;"#,
    |several: MultiGuard| several.guards,
    all
);
with!(
    Permit,
    "the permits",
    r#"let guard = coordinator.semaphore("uploads", 3)?.acquire_many(2, None).await?;"#
);
with!(
    WorkSlot,
    "the slot",
    r#"let entered = coordinator.singleton("nightly")?.enter().await?;
let coordination::Admission::Working(guard) = entered else { panic!("nobody else is there") };"#
);
with!(
    Leadership,
    "the leadership",
    r#"let guard = coordinator.election("scheduler")?.campaign("host-1", None).await?;"#
);
with!(
    Membership,
    "the membership",
    r#"let guard = coordinator.group("pollers")?.join_or_create(&()).await?;"#
);
