//! What a caller of a rate limiter gets.

use std::time::Duration;

use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};

use crate::serialize;
use crate::time::BootInstant;

/// What [`RateLimiter::try_acquire`](crate::RateLimiter::try_acquire) returns.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// use coordination::Attempt;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
/// # let coordinator = coordination::Coordinator::connect("memory://").await?;
/// let api = coordinator.rate_limiter("api", 1, Duration::from_secs(60))?;
/// match api.try_acquire(1).await? {
///     Attempt::Granted(_) => println!("call it"),
///     Attempt::Denied { retry_after } => println!("answer 429, Retry-After: {retry_after:?}"),
/// }
/// assert!(api.try_acquire(1).await?.granted().is_none());
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, Serialize)]
#[must_use = "a denial has to be obeyed"]
#[serde(rename_all = "snake_case")]
pub enum Attempt {
    /// The permits.
    Granted(RatePermit),
    /// The permits are not available now.
    Denied {
        /// How long to wait until they are available, if nobody else takes them before.
        ///
        /// It is never too short: a caller that waits this long is not denied for being early. It is exact if
        /// the store has a clock.
        #[serde(serialize_with = "serialize::seconds::serialize")]
        retry_after: Duration,
    },
}

impl Attempt {
    /// The permits, if they were granted.
    pub fn granted(self) -> Option<RatePermit> {
        match self {
            Self::Granted(permit) => Some(permit),
            Self::Denied { .. } => None,
        }
    }
}

/// The permits that one call got. They need not, and cannot, be returned.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
/// # let coordinator = coordination::Coordinator::connect("memory://").await?;
/// let api = coordinator.rate_limiter("api", 2, Duration::from_secs(1))?;
/// let (one, other) = (api.acquire(1, None).await?, api.acquire(1, None).await?);
/// assert!(one.usable() && other.usable());
/// assert!(one.slot() <= other.slot());
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct RatePermit {
    pub(super) slot: Duration,
    /// Until when the permits are usable; `None`: for ever.
    pub(super) usable: Option<BootInstant>,
}

impl RatePermit {
    /// The time from which the permits count, on the limiter's clock, in microseconds.
    ///
    /// Only the difference of two slots of one limiter has a meaning, and not across a reboot of the host.
    pub fn slot(&self) -> Duration {
        self.slot
    }

    /// Whether the [margin](crate::RateLimiter::margin) has not passed yet; always true if there is none.
    ///
    /// A holder that gets false discards the permit and asks for another.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let second = Duration::from_secs(1);
    /// let api = coordinator.rate_limiter("api", 5, second)?.margin(10 * second)?;
    /// let mut permit = api.acquire(1, None).await?;
    /// // Here the process may have been paused.
    /// while !permit.usable() {
    ///     permit = api.acquire(1, None).await?;
    /// }
    /// assert!(permit.usable());
    /// # Ok(()) }
    /// ```
    pub fn usable(&self) -> bool {
        self.usable_for().is_none_or(|left| !left.is_zero())
    }

    /// How much of the [margin](crate::RateLimiter::margin) is left; `None` if there is none, so that the permit can always be
    /// used.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let second = Duration::from_secs(1);
    /// let api = coordinator.rate_limiter("api", 5, second)?.margin(10 * second)?;
    /// let left = api.acquire(1, None).await?.usable_for();
    /// assert!(left.is_some_and(|left| left <= 10 * second));
    /// # Ok(()) }
    /// ```
    pub fn usable_for(&self) -> Option<Duration> {
        self.usable.map(|end| end.remaining())
    }
}

/// Its slot and how long it can be used, in seconds.
impl Serialize for RatePermit {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut fields = to.serialize_struct("RatePermit", 2)?;
        fields.serialize_field("slot", &self.slot.as_secs_f64())?;
        let usable_for = self.usable_for().map(|left| left.as_secs_f64());
        fields.serialize_field("usable_for", &usable_for)?;
        fields.end()
    }
}
