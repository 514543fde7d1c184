//! The recipes of which clients hold something, by the words that stand for them.

/// A recipe of the library whose grants are holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Kind {
    Lock,
    Semaphore,
    Limiter,
    Election,
    Group,
}

impl Kind {
    const ALL: [Self; 5] =
        [Self::Lock, Self::Semaphore, Self::Limiter, Self::Election, Self::Group];

    /// The one for which this word stands.
    pub(crate) fn of(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.text() == word)
    }

    /// The word for one: in answers, in the log, in metrics.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Lock => "lock",
            Self::Semaphore => "semaphore",
            Self::Limiter => "limiter",
            Self::Election => "election",
            Self::Group => "group",
        }
    }
}
