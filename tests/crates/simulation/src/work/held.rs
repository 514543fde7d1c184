//! [`Held`], a guard of any recipe, so that the same code can hold and release all kinds of guards.

use std::sync::Arc;
use std::time::Duration;

use coordination::{
    CohortGuard, FencingToken, Grant, Leadership, LockGuard, LossReason, Permit, Result,
    TimedRelease, TurnToken, WorkSlot,
};
use coordination_history::NO_SLOT;

use super::several::Bundle;

/// A guard of any recipe.
pub(crate) enum Held {
    Lock(LockGuard),
    /// A lock that tasks of one process pass on.
    Turn(CohortGuard),
    Permit(Permit),
    Work(WorkSlot),
    Leader(Leadership),
    /// One of several objects that a common guard holds; the number is the object's index.
    Part(Arc<Bundle>, usize),
}

/// A token as the history has it, with a cohort's turn in its last bits. All tokens have such bits, so that those of a cohort
/// are compared with those of all other holders.
pub(crate) fn recorded(token: impl Into<TurnToken>) -> u64 {
    let token = token.into();
    // The largest numbers are microseconds of UNIX time, which leave 13 bits.
    (token.number().value() << 8) | u64::from(token.turn())
}

/// What a guard is asked: all but that of a cohort are a [`Grant`].
enum Asked<'a> {
    Grant(&'a Grant),
    Turn(&'a CohortGuard),
}

impl Held {
    fn asked(&self) -> Asked<'_> {
        let grant: &Grant = match self {
            Self::Lock(guard) => guard,
            Self::Turn(guard) => return Asked::Turn(guard),
            Self::Permit(permit) => permit,
            Self::Work(slot) => slot,
            Self::Leader(leadership) => leadership,
            Self::Part(bundle, index) => bundle.grant(*index),
        };
        Asked::Grant(grant)
    }

    /// The number that the store gave.
    pub(crate) fn token(&self) -> FencingToken {
        match self.asked() {
            Asked::Grant(grant) => grant.token(),
            Asked::Turn(guard) => guard.token().number(),
        }
    }

    /// The token as the history has it.
    pub(crate) fn recorded(&self) -> u64 {
        match self {
            Self::Turn(guard) => recorded(guard.token()),
            _ => recorded(self.token()),
        }
    }

    pub(crate) fn is_held(&self) -> bool {
        match self.asked() {
            Asked::Grant(grant) => grant.is_held(),
            Asked::Turn(guard) => guard.is_held(),
        }
    }

    pub(crate) async fn lost(&self) -> LossReason {
        match self.asked() {
            Asked::Grant(grant) => grant.lost().await,
            Asked::Turn(guard) => guard.lost().await,
        }
    }

    /// The slot, or [`NO_SLOT`] if the recipe has no slots.
    pub(crate) fn slot(&self) -> u32 {
        match self {
            Self::Permit(permit) => permit.slot(),
            Self::Work(slot) => slot.slot(),
            Self::Lock(_) | Self::Turn(_) | Self::Leader(_) => NO_SLOT,
            Self::Part(bundle, index) => bundle.slot(*index),
        }
    }

    /// Whether the guard holds a lock exclusively.
    pub(crate) fn excludes(&self) -> bool {
        match self {
            Self::Lock(guard) => !guard.is_shared(),
            Self::Turn(_) => true,
            Self::Part(bundle, index) => bundle.excludes(*index),
            Self::Permit(_) | Self::Work(_) | Self::Leader(_) => false,
        }
    }

    pub(crate) async fn release(self) -> Result<()> {
        match self {
            Self::Lock(guard) => guard.release().await,
            Self::Turn(guard) => guard.release().await,
            Self::Permit(permit) => permit.release().await,
            Self::Work(slot) => slot.release().await,
            Self::Leader(leadership) => leadership.resign().await,
            // The common guard releases all of its objects together, so nothing is done for a single one.
            Self::Part(..) => Ok(()),
        }
    }

    /// Converts the guard into a timed release. Returns `None` for one of several objects, because they have a common
    /// guard, and for a cohort's, which has none.
    pub(crate) fn release_after(self, held_for: Duration) -> Option<TimedRelease> {
        Some(match self {
            Self::Lock(guard) => guard.release_after(held_for),
            Self::Permit(permit) => permit.release_after(held_for),
            Self::Work(slot) => slot.release_after(held_for),
            Self::Leader(leadership) => leadership.release_after(held_for),
            Self::Turn(_) | Self::Part(..) => return None,
        })
    }
}
