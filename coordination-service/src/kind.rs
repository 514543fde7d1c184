//! The recipes of which clients hold something, by the words that stand for them.

use coordination::Recipe;

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
    pub(crate) const ALL: [Self; 5] =
        [Self::Lock, Self::Semaphore, Self::Limiter, Self::Election, Self::Group];

    /// The one for which this word stands.
    pub(crate) fn of(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.text() == word)
    }

    /// The one whose names begin with this segment, in paths.
    pub(crate) fn of_segment(segment: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.segment() == segment)
    }

    /// What its names begin with, in paths.
    pub(crate) fn segment(self) -> &'static str {
        match self {
            Self::Lock => "locks",
            Self::Semaphore => "semaphores",
            Self::Limiter => "limiters",
            Self::Election => "elections",
            Self::Group => "groups",
        }
    }

    /// The recipe of the library.
    pub(crate) fn recipe(self) -> Recipe {
        match self {
            Self::Lock => Recipe::Lock,
            Self::Semaphore => Recipe::Semaphore,
            Self::Limiter => Recipe::Limiter,
            Self::Election => Recipe::Election,
            Self::Group => Recipe::Group,
        }
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
