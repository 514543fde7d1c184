//! How a hold ends, and whom it keeps out until then.

use coordination::LossReason;

/// Whom a hold keeps out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Covered {
    /// Everybody: the store's own lease is longer.
    All,
    /// Whoever asks through the service: a promise is longer.
    Http,
    /// Nobody, once the instance is dead.
    Nobody,
}

impl Covered {
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Http => "http",
            Self::Nobody => "none",
        }
    }
}

/// How a hold ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Its lease was over.
    Expired,
    /// Its client released it.
    Released,
    /// The instance lost it at the store.
    Lost(LossReason),
    /// An administrator took it away.
    Broken,
    /// Nobody received the answer.
    Undelivered,
}

impl End {
    /// Whether nobody has to wait for what was promised. A client whose instance has lost its session was told that it holds
    /// until its lease is over, and may not ask before; only who is taken the lock away by an operator is to lose it at once.
    pub(crate) fn frees(self) -> bool {
        !matches!(self, Self::Lost(reason) if reason != LossReason::EntryDeleted)
    }

    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::Released => "released",
            Self::Lost(_) => "lost",
            Self::Broken => "broken",
            Self::Undelivered => "undelivered",
        }
    }
}
