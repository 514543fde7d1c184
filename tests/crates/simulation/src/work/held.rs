//! [`Held`], a guard of any recipe, so that the same code can hold and release all kinds of guards.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use coordination::{Grant, Leadership, LockGuard, Permit, Result, TimedRelease, WorkSlot};
use coordination_history::NO_SLOT;

use super::several::Bundle;

/// A guard of any recipe.
pub(crate) enum Held {
    Lock(LockGuard),
    Permit(Permit),
    Work(WorkSlot),
    Leader(Leadership),
    /// One of several objects that a common guard holds; the number is the object's index.
    Part(Arc<Bundle>, usize),
}

impl Deref for Held {
    type Target = Grant;

    fn deref(&self) -> &Grant {
        match self {
            Self::Lock(guard) => guard,
            Self::Permit(permit) => permit,
            Self::Work(slot) => slot,
            Self::Leader(leadership) => leadership,
            Self::Part(bundle, index) => bundle.grant(*index),
        }
    }
}

impl Held {
    /// The slot, or [`NO_SLOT`] if the recipe has no slots.
    pub(crate) fn slot(&self) -> u32 {
        match self {
            Self::Permit(permit) => permit.slot(),
            Self::Work(slot) => slot.slot(),
            Self::Lock(_) | Self::Leader(_) => NO_SLOT,
            Self::Part(bundle, index) => bundle.slot(*index),
        }
    }

    /// Whether the guard holds a lock exclusively.
    pub(crate) fn excludes(&self) -> bool {
        match self {
            Self::Lock(guard) => !guard.is_shared(),
            Self::Part(bundle, index) => bundle.excludes(*index),
            Self::Permit(_) | Self::Work(_) | Self::Leader(_) => false,
        }
    }

    pub(crate) async fn release(self) -> Result<()> {
        match self {
            Self::Lock(guard) => guard.release().await,
            Self::Permit(permit) => permit.release().await,
            Self::Work(slot) => slot.release().await,
            Self::Leader(leadership) => leadership.resign().await,
            // The common guard releases all of its objects together, so nothing is done for a single one.
            Self::Part(..) => Ok(()),
        }
    }

    /// Converts the guard into a timed release. Returns `None` for one of several objects, because they have a common
    /// guard.
    pub(crate) fn release_after(self, held_for: Duration) -> Option<TimedRelease> {
        Some(match self {
            Self::Lock(guard) => guard.release_after(held_for),
            Self::Permit(permit) => permit.release_after(held_for),
            Self::Work(slot) => slot.release_after(held_for),
            Self::Leader(leadership) => leadership.release_after(held_for),
            Self::Part(..) => return None,
        })
    }
}
