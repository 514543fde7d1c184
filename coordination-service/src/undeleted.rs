//! Promises of holds that have ended, which the store has not let us delete yet.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use coordination::{BootInstant, ErrorKind};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use crate::promise::Promise;

/// How long it is tried: the longest that anything is promised for.
const TRIED: Duration = Duration::from_secs(86_400);
/// From one try to the next, at first; each is twice as long as the one before, up to the last.
const PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// How many are tried at once: a store that is away, or full, is not asked for thousands.
const AT_ONCE: usize = 16;
/// How long one may take before others are tried in its place.
const ONE: Duration = Duration::from_secs(10);

/// Promises that nobody relies on any more and that are still at the store: as long as they are, nobody is granted their locks.
#[derive(Debug)]
pub(crate) struct Undeleted {
    /// Their keys. Each has a task, so that none waits for the pauses of another one.
    keys: Mutex<HashSet<(String, String)>>,
    places: Semaphore,
}

impl Default for Undeleted {
    fn default() -> Self {
        Self { keys: Mutex::default(), places: Semaphore::new(AT_ONCE) }
    }
}

impl Undeleted {
    fn keys(&self) -> MutexGuard<'_, HashSet<(String, String)>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Deletes it in the background, as soon as the store lets us.
    pub(crate) fn add(self: &Arc<Self>, promise: Arc<Promise>) {
        if let Ok(runtime) = tokio::runtime::Handle::try_current()
            && self.keys().insert(promise.key())
        {
            runtime.spawn(delete(Arc::clone(self), promise));
        }
    }

    /// Whether there are any.
    pub(crate) fn is_empty(&self) -> bool {
        self.keys().is_empty()
    }

    /// One try; whether it was the last.
    async fn is_settled(&self, promise: &Promise, until: BootInstant) -> bool {
        // It is never closed.
        let _place = self.places.acquire().await;
        let error = match timeout(ONE, promise.delete()).await {
            Ok(Ok(())) => return true,
            Ok(Err(error)) => Some(error),
            Err(_) => None,
        };
        // Nothing changes that: the session was stopped, or what stands there was never written by us.
        let kind = error.as_ref().map(coordination::Error::kind);
        let is_final = matches!(kind, Some(ErrorKind::Closed | ErrorKind::Corrupt));
        if is_final || until.remaining().is_zero() {
            let error = error.map(tracing::field::display);
            tracing::warn!(
                error,
                "a promise stays, and is sat out by whoever is granted its lock next"
            );
            return true;
        }
        // With the place: where all are refused, the store is not asked more often than that.
        sleep(PAUSE).await;
        false
    }
}

async fn delete(undeleted: Arc<Undeleted>, promise: Arc<Promise>) {
    let until = BootInstant::now().saturating_add(TRIED);
    let mut pause = PAUSE;
    while !undeleted.is_settled(&promise, until).await {
        sleep(pause).await;
        pause = (2 * pause).min(LONGEST_PAUSE);
    }
    undeleted.keys().remove(&promise.key());
}

#[cfg(test)]
mod tests {
    use coordination::Coordinator;

    use super::*;
    use crate::acquire::tests::is_soon_gone;
    use crate::promise;

    /// A call that does not end, as to a part of the store that is away, keeps no other promise at the store.
    #[tokio::test]
    async fn a_promise_whose_deletion_hangs_keeps_no_other_one() {
        let coordinator =
            Coordinator::connect("memory://undeleted-1").await.expect("memory is there");
        let undeleted = Arc::<Undeleted>::default();
        let mut promises = Vec::new();
        for name in ["hangs", "goes"] {
            let value = promise::of(&coordinator, name).expect("a name");
            let promise = Arc::new(Promise::new(value.clone(), 1, name));
            let written = promise.write(None, Duration::from_secs(60)).await;
            assert!(written.expect("memory answers"), "nobody else writes");
            promises.push((promise, value));
        }
        let hanging = promises[0].0.hang().await;
        promises.iter().for_each(|(promise, _)| undeleted.add(Arc::clone(promise)));
        assert!(is_soon_gone(&promises[1].1).await);
        assert!(!undeleted.is_empty());
        drop(hanging);
        assert!(is_soon_gone(&promises[0].1).await);
    }
}
