//! Promises of holds that have ended, which the store has not let us delete yet.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use coordination::{BootInstant, ErrorKind};

use crate::promise::Promise;

/// How long it is tried: the longest that anything is promised for.
const TRIED: Duration = Duration::from_secs(86_400);
/// From one try to the next, at first; each is twice as long as the one before, up to the last.
const PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// Promises that nobody relies on any more and that are still at the store: as long as they are, nobody is granted their locks.
#[derive(Debug, Default)]
pub(crate) struct Undeleted(Mutex<Owed>);

#[derive(Debug, Default)]
struct Owed {
    /// Each with the moment at which it is given up.
    promises: VecDeque<(Arc<Promise>, BootInstant)>,
    /// A task deletes them, one after the other: a store that is away, or full, is not asked for thousands at once.
    is_worked_at: bool,
}

impl Undeleted {
    fn owed(&self) -> MutexGuard<'_, Owed> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Deletes it in the background, as soon as the store lets us.
    pub(crate) fn add(self: &Arc<Self>, promise: Arc<Promise>) {
        let mut owed = self.owed();
        if owed.promises.iter().any(|(other, _)| Arc::ptr_eq(other, &promise)) {
            return;
        }
        owed.promises.push_back((promise, BootInstant::now().saturating_add(TRIED)));
        if !owed.is_worked_at
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            owed.is_worked_at = true;
            runtime.spawn(delete_all(Arc::clone(self)));
        }
    }

    /// Whether there are any.
    pub(crate) fn is_empty(&self) -> bool {
        let owed = self.owed();
        !owed.is_worked_at && owed.promises.is_empty()
    }

    /// The next one, or the end of the task's work.
    fn next(&self) -> Option<(Arc<Promise>, BootInstant)> {
        let mut owed = self.owed();
        let next = owed.promises.pop_front();
        owed.is_worked_at = next.is_some();
        next
    }
}

async fn delete_all(undeleted: Arc<Undeleted>) {
    let mut pause = PAUSE;
    while let Some((promise, until)) = undeleted.next() {
        let Err(error) = promise.delete().await else {
            pause = PAUSE;
            continue;
        };
        // Nothing changes that: the session was stopped, or what stands there was never written by us.
        let is_final = matches!(error.kind(), ErrorKind::Closed | ErrorKind::Corrupt);
        if is_final || until.remaining().is_zero() {
            tracing::warn!(%error, "a promise stays, and is sat out by whoever is granted its lock next");
            continue;
        }
        undeleted.owed().promises.push_back((promise, until));
        tokio::time::sleep(pause).await;
        pause = (2 * pause).min(LONGEST_PAUSE);
    }
}
