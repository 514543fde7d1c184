//! Whatever guard there is, held and given back in one way.

use std::ops::Deref;

use coordination::{Grant, Leadership, LockGuard, Permit, Result, WorkSlot};
use coordination_history::NO_SLOT;

/// A guard of some recipe.
pub(crate) enum Held {
    Lock(LockGuard),
    Permit(Permit),
    Work(WorkSlot),
    Leader(Leadership),
}

impl Deref for Held {
    type Target = Grant;

    fn deref(&self) -> &Grant {
        match self {
            Self::Lock(guard) => guard,
            Self::Permit(permit) => permit,
            Self::Work(slot) => slot,
            Self::Leader(leadership) => leadership,
        }
    }
}

impl Held {
    /// The slot, where there are some.
    pub(crate) fn slot(&self) -> u32 {
        match self {
            Self::Permit(permit) => permit.slot(),
            Self::Work(slot) => slot.slot(),
            Self::Lock(_) | Self::Leader(_) => NO_SLOT,
        }
    }

    pub(crate) async fn release(self) -> Result<()> {
        match self {
            Self::Lock(guard) => guard.release().await,
            Self::Permit(permit) => permit.release().await,
            Self::Work(slot) => slot.release().await,
            Self::Leader(leadership) => leadership.resign().await,
        }
    }
}
