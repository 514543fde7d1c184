//! The settings of a rate limiter, for people who look.

use std::fmt;
use std::time::Duration;

use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};

use super::schedule::Rules;

/// What a rate limiter allows, as the store has it: see
/// [`RateLimiter::stored_settings`](crate::RateLimiter::stored_settings).
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
/// # let coordinator = coordination::Coordinator::connect("memory://").await?;
/// let second = Duration::from_secs(1);
/// coordinator.rate_limiter("api", 5, second)?.try_acquire(1).await?;
///
/// // Whoever looks need not know them.
/// let looks = coordinator.rate_limiter("api", 1, second)?;
/// let settings = looks.stored_settings().await?.expect("a permit was given");
/// assert_eq!(settings.limits(), [(5, second)]);
/// assert_eq!(settings.to_string(), "5 per 1s, strict");
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RateSettings(pub(super) Rules);

impl RateSettings {
    /// At most so many permits in every window of this length, for each limit.
    pub fn limits(&self) -> Vec<(u32, Duration)> {
        self.0.limits().collect()
    }

    /// How long holders have to use a permit; zero: there is no [margin](crate::RateLimiter::margin).
    pub fn margin(&self) -> Duration {
        self.0.margin().unwrap_or_default()
    }

    /// Whether permits are given [one at a time](crate::RateLimiter::paced).
    pub fn is_paced(&self) -> bool {
        self.0.is_paced()
    }
}

impl fmt::Display for RateSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Lengths of time are numbers of seconds.
impl Serialize for RateSettings {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let limits: Vec<_> =
            self.0.limits().map(|(permits, per)| (permits, per.as_secs_f64())).collect();
        let mut fields = to.serialize_struct("RateSettings", 3)?;
        fields.serialize_field("limits", &limits)?;
        fields.serialize_field("margin", &self.margin().as_secs_f64())?;
        fields.serialize_field("paced", &self.is_paced())?;
        fields.end()
    }
}
