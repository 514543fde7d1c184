//! Lists the names of a queue's nodes, for callers that need the blocker of an entry.
//!
//! A list has the names of all entries that wait. If each of many waiters asked for a list of its own, the number of names sent
//! would grow with the square of the number of waiters, and other answers would have to wait. So a session has only one listing of
//! a queue in flight at a time. All callers that ask while it is in flight share the listing after it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use tokio::sync::{Mutex, MutexGuard};
use zookeeper_client::Error as ZooKeeperError;

use crate::backend::server::bounded_cache::BoundedCache;
use crate::key::QueueKey;

/// The queues that are being listed. The key is the session that lists the queue, and the queue.
#[derive(Default)]
pub(super) struct Siblings(BoundedCache<(i64, QueueKey), Weak<Listings>>);

/// The names of all nodes of a queue, those of contenders and others.
pub(super) type Names = Arc<Vec<String>>;

/// The listings of one queue in one session.
#[derive(Default)]
pub(super) struct Listings {
    /// How many listings were sent so far. This gives each listing its number, from 1.
    begun: AtomicU64,
    /// The number of the last listing, and its answer. While a listing is in flight, the caller that has sent it keeps this mutex
    /// locked.
    last: Mutex<Option<(u64, Names)>>,
}

/// How many listings had been sent at the moment when a caller asked. The caller needs the answer to a listing with a higher
/// number.
#[derive(Clone, Copy)]
pub(super) struct Asked(u64);

/// The right to send a listing. Only one caller has it at a time.
pub(super) struct Turn<'a> {
    number: u64,
    last: MutexGuard<'a, Option<(u64, Names)>>,
}

impl Siblings {
    pub(super) fn of(&self, owner: i64, queue: &QueueKey) -> Arc<Listings> {
        self.0.update((owner, queue.clone()), |known| {
            let listings = known.as_ref().and_then(Weak::upgrade).unwrap_or_default();
            *known = Some(Arc::downgrade(&listings));
            listings
        })
    }
}

impl Listings {
    /// To be called only after all requests were sent whose effects the listing must show; otherwise the listing may lack these
    /// effects. The result is to be passed to [`after`](Self::after).
    pub(super) fn asked(&self) -> Asked {
        Asked(self.begun.load(Ordering::SeqCst))
    }

    /// The right to send a listing at once; `None`: another listing is in flight.
    pub(super) fn begin(&self) -> Option<Turn<'_>> {
        Some(self.turn(self.last.try_lock().ok()?))
    }

    fn turn<'a>(&self, last: MutexGuard<'a, Option<(u64, Names)>>) -> Turn<'a> {
        Turn { number: 1 + self.begun.fetch_add(1, Ordering::SeqCst), last }
    }

    /// The answer to a listing that was sent after the call that returned `asked`. If another caller has already sent such a
    /// listing, returns the answer to it. Otherwise sends a listing by `list`.
    pub(super) async fn after<F>(
        &self,
        asked: Asked,
        list: impl FnOnce() -> F,
    ) -> Result<Names, ZooKeeperError>
    where
        F: Future<Output = Result<Vec<String>, ZooKeeperError>>,
    {
        let last = self.last.lock().await;
        match &*last {
            Some((number, names)) if *number > asked.0 => Ok(Arc::clone(names)),
            _ => self.turn(last).answered(list()).await,
        }
    }
}

impl Turn<'_> {
    /// Waits for the answer to the listing, and stores it for the callers that share it.
    pub(super) async fn answered(
        mut self,
        listing: impl Future<Output = Result<Vec<String>, ZooKeeperError>>,
    ) -> Result<Names, ZooKeeperError> {
        let listed = match listing.await {
            Err(ZooKeeperError::NoNode) => Vec::new(),
            listed => listed?,
        };
        let names = Arc::new(listed);
        *self.last = Some((self.number, Arc::clone(&names)));
        Ok(names)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn who_asks_during_a_listing_shares_the_next() {
        let siblings = Siblings::default();
        let queue = QueueKey::new("lock", "a", 10).expect("a valid name");
        let listings = siblings.of(7, &queue);
        assert!(Arc::ptr_eq(&listings, &siblings.of(7, &queue)));
        assert!(!Arc::ptr_eq(&listings, &siblings.of(8, &queue)), "another session");

        let lists = Cell::new(0);
        let list = || {
            lists.set(lists.get() + 1);
            std::future::ready(Ok(vec![lists.get().to_string()]))
        };
        let (answer, first) = oneshot::channel();
        let turn = listings.begin().expect("nobody lists");
        assert!(listings.begin().is_none());
        let asked = listings.asked();
        let answered = async {
            let _ = answer.send(vec!["0".to_owned()]);
            turn.answered(async { first.await.map_err(|_| ZooKeeperError::ClientClosed) }).await
        };
        let (one, other, first) =
            tokio::join!(listings.after(asked, list), listings.after(asked, list), answered,);
        let names = |listed: Result<Names, _>| listed.expect("it is answered").concat();
        assert_eq!((names(one), names(other), names(first)), ("1".into(), "1".into(), "0".into()));
        assert_eq!(names(listings.after(asked, list).await), "1", "sent after it was asked for");
        assert_eq!(names(listings.after(listings.asked(), list).await), "2");
        let failed = std::future::ready(Err(ZooKeeperError::ConnectionLoss));
        assert!(listings.after(listings.asked(), || failed).await.is_err());
        assert_eq!(names(listings.after(listings.asked(), list).await), "3");
    }
}
