//! What a caller gets.

use std::time::Duration;

use crate::time::BootInstant;

/// What [`RateLimiter::try_acquire`](crate::RateLimiter::try_acquire) answers.
#[derive(Clone, Copy, Debug)]
#[must_use = "a denial has to be obeyed"]
pub enum Attempt {
    /// Here they are.
    Granted(RatePermit),
    /// Not now.
    Denied {
        /// How long to wait before they can be had, if nobody else takes them meanwhile.
        ///
        /// Never too short: who waits for this long is not denied for being early. It is exact where the store
        /// has a clock.
        retry_after: Duration,
    },
}

impl Attempt {
    /// The permit, if there is one.
    pub fn granted(self) -> Option<RatePermit> {
        match self {
            Self::Granted(permit) => Some(permit),
            Self::Denied { .. } => None,
        }
    }
}

/// The permits that one call has got. There is nothing to give back.
#[derive(Clone, Copy, Debug)]
pub struct RatePermit {
    pub(super) slot: Duration,
    /// Until when; `None`: for ever.
    pub(super) usable: Option<BootInstant>,
}

impl RatePermit {
    /// From when on they count, by the limiter's clock, to a microsecond.
    ///
    /// Only the distance of two slots of one limiter means something, and that not over a reboot of the host.
    pub fn slot(&self) -> Duration {
        self.slot
    }

    /// Whether the [margin](crate::RateLimiter::margin) has not passed yet; always, if there is none.
    ///
    /// Who finds it false does without, and asks for another permit.
    pub fn usable(&self) -> bool {
        self.usable.is_none_or(|end| !end.remaining().is_zero())
    }
}
