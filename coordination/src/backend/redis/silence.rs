//! How long nothing was answered on a connection that others do not speak for.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Since when something is waited for, if nothing was answered meanwhile.
#[derive(Default)]
pub(super) struct Silence(Mutex<Option<Instant>>);

impl Silence {
    /// Something is asked for.
    pub(super) fn asked(&self) {
        self.lock().get_or_insert_with(Instant::now);
    }

    /// Something was answered, be it with an error.
    pub(super) fn broken(&self) {
        *self.lock() = None;
    }

    /// Whether it has lasted for longer than this.
    pub(super) fn is_longer(&self, than: Duration) -> bool {
        self.lock().is_some_and(|since| since.elapsed() > than)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
