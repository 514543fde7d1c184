//! What the calls of one process in an outage tell each other.
//!
//! Calls wait in a line, and each tries for some seconds once it is its turn. So that the last of many is not told of an outage after
//! minutes, and is not carried out long after its caller has gone, those that were in the line before a try began fail with it.

use std::sync::{Mutex, MutexGuard};

use tokio::time::Instant;

use crate::error::{Effect, Error, Result};
use crate::session::may_pass;

/// The last try that has failed since the store last answered: when it began, and how it failed.
#[derive(Default)]
pub(super) struct Outage(Mutex<Option<(Instant, Error)>>);

impl Outage {
    /// Notes how a try has ended that began then.
    pub(super) fn note<T>(&self, begun: Instant, outcome: &Result<T>) {
        match outcome {
            Ok(_) => *self.last() = None,
            Err(error) if may_pass(error) => *self.last() = Some((begun, error.clone())),
            Err(_) => {}
        }
    }

    /// Fails as the last try, if that began after a call had come into the line: it has been tried for as long as that call would try.
    pub(super) fn check(&self, came: Instant) -> Result<()> {
        match &*self.last() {
            Some((begun, error)) if came < *begun => Err(error.clone().with_effect(Effect::None)),
            _ => Ok(()),
        }
    }

    fn last(&self) -> MutexGuard<'_, Option<(Instant, Error)>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
