//! How long a caller waits.

use std::time::Duration;

/// How long a caller waits for its turn or for what it looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waiting {
    /// Without a limit.
    Forever,
    /// At most this long.
    For(Duration),
    /// Not at all: the store is asked once.
    Never,
}

impl Waiting {
    /// The meaning of a caller's `timeout`: `None` waits for ever, and zero is a try.
    pub(crate) fn within(timeout: Option<Duration>) -> Self {
        match timeout {
            None => Self::Forever,
            Some(Duration::ZERO) => Self::Never,
            Some(limit) => Self::For(limit),
        }
    }

    /// The parameter `timeout` of a call that waits in this way.
    pub(crate) fn timeout(self) -> Option<Duration> {
        match self {
            Self::Forever => None,
            Self::For(limit) => Some(limit),
            Self::Never => Some(Duration::ZERO),
        }
    }

    /// How long to wait for the store in all: for a try, `a_try`, within which the store's answer must come. `None`: there is no
    /// limit.
    pub(crate) fn limit(self, a_try: Duration) -> Option<Duration> {
        match self {
            Self::Forever => None,
            Self::For(limit) => Some(limit),
            Self::Never => Some(a_try),
        }
    }

    /// What is left of the waiting time after `elapsed`; `None`: nothing. A try stays a try.
    pub(crate) fn after(self, elapsed: Duration) -> Option<Self> {
        match self {
            Self::For(limit) => {
                Some(limit.saturating_sub(elapsed)).filter(|left| !left.is_zero()).map(Self::For)
            }
            waiting => Some(waiting),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_of_a_timeout_is_never_a_try() {
        let second = Duration::from_secs(1);
        assert_eq!(Waiting::within(Some(second)).after(second), None);
        assert_eq!(Waiting::For(second).after(second / 4), Some(Waiting::For(second * 3 / 4)));
        assert_eq!(Waiting::within(Some(Duration::ZERO)).after(second), Some(Waiting::Never));
        assert_eq!(Waiting::within(None).after(second), Some(Waiting::Forever));
    }
}
