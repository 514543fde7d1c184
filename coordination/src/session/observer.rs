//! What observers see of a queue: one look at the store for all of a process.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::{Phase, Session};
use crate::backend::Listing;
use crate::error::{Error, LossReason, Result};
use crate::key::QueueKey;

/// The least time between two looks.
const MOST_OFTEN: Duration = Duration::from_millis(1);

/// A queue as it was at some moment.
#[derive(Debug)]
pub(crate) struct View {
    pub(crate) listing: Listing,
    /// How often the store was out of reach before: whoever sees it rise may have missed changes.
    pub(crate) gaps: u64,
}

type Sender = watch::Sender<Option<Arc<View>>>;

/// The queues that somebody of this process observes.
#[derive(Default)]
pub(crate) struct Observers(Mutex<BTreeMap<QueueKey, Sender>>);

impl Observers {
    fn by_queue(&self) -> MutexGuard<'_, BTreeMap<QueueKey, Sender>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// Follows a queue: every view differs from the one before, and some may be left out.
#[derive(Clone)]
pub(crate) struct Views(watch::Receiver<Option<Arc<View>>>);

impl Views {
    /// The next view; at first the present one.
    ///
    /// # Cancel safety
    ///
    /// No view is lost when the future is dropped.
    pub(crate) async fn next(&mut self) -> Result<Arc<View>> {
        loop {
            let ended = self.0.changed().await.is_err();
            if ended {
                return Err(Error::lost("observe", LossReason::Closed));
            }
            if let Some(view) = &*self.0.borrow_and_update() {
                return Ok(Arc::clone(view));
            }
        }
    }

    /// What [`next`](Self::next) would answer at once; `None`: it would wait.
    pub(crate) fn newest(&mut self) -> Result<Option<Arc<View>>> {
        match self.0.has_changed() {
            Ok(true) => Ok(self.0.borrow_and_update().clone()),
            Ok(false) => Ok(None),
            Err(_) => Err(Error::lost("observe", LossReason::Closed)),
        }
    }
}

impl Session {
    /// Tells those who follow a queue that it is over; once the phase says so.
    pub(super) fn end_observers(&self) {
        // The tasks may end with their runtime before they can do this.
        self.observers.by_queue().clear();
    }

    /// Follows a queue. All who follow the same one share what is read of it.
    pub(crate) fn observe(self: &Arc<Self>, queue: &QueueKey) -> Views {
        let mut observed = self.observers.by_queue();
        if matches!(*self.phase.borrow(), Phase::Closed) {
            // Without a sender there is nothing but the end.
            return Views(watch::channel(None).1);
        }
        if let Some(sender) = observed.get(queue) {
            let mut views = sender.subscribe();
            views.mark_changed();
            return Views(views);
        }
        let (sender, views) = watch::channel(None);
        observed.insert(queue.clone(), sender.clone());
        drop(observed);
        let (session, queue) = (Arc::clone(self), queue.clone());
        self.spawn(async move { session.look_after(queue, sender).await });
        Views(views)
    }

    /// Reads the queue whenever it has changed, as long as somebody follows it.
    async fn look_after(self: Arc<Self>, queue: QueueKey, sender: Sender) {
        let mut phase = self.phase.subscribe();
        loop {
            tokio::select! {
                biased;
                () = self.follow(&queue, &sender) => {}
                () = sender.closed() => {}
                _ = phase.wait_for(|phase| matches!(phase, Phase::Closed)) => {
                    // Dropping the sender tells those who follow.
                    self.observers.by_queue().remove(&queue);
                    return;
                }
            }
            let mut observed = self.observers.by_queue();
            // Under the mutex: nobody starts to follow in between.
            if sender.receiver_count() == 0 {
                observed.remove(&queue);
                return;
            }
        }
    }

    async fn follow(&self, queue: &QueueKey, sender: &Sender) {
        let mut delays = self.retry_delays(Some(self.ttl()));
        let mut gaps = sender.borrow().as_ref().map_or(0, |view| view.gaps);
        let mut failed = false;
        loop {
            let ttl = self.ttl();
            let looked = async {
                let listing = self.attempt(Some(ttl), "observe", self.backend.read(queue)).await?;
                let revision = listing.revision;
                if failed {
                    gaps += 1;
                    failed = false;
                }
                publish(sender, View { listing, gaps });
                self.backend.changed(queue, revision, ttl.min(super::LONGEST_RECHECK)).await
            };
            let begun = Instant::now();
            match looked.await {
                Ok(()) => {
                    delays = self.retry_delays(Some(ttl));
                    // What changes all the time is looked at now and then: views may be left out.
                    tokio::time::sleep_until(begun + MOST_OFTEN).await;
                }
                Err(error) => {
                    tracing::debug!(%error, ?queue, "cannot observe");
                    failed = true;
                    tokio::time::sleep(delays.next_delay()).await;
                }
            }
        }
    }
}

/// Tells a view, unless it is what was told last.
fn publish(sender: &Sender, view: View) {
    sender.send_if_modified(|current| {
        let is_new = current.as_ref().is_none_or(|last| {
            (last.listing.revision, last.gaps) != (view.listing.revision, view.gaps)
        });
        if is_new {
            *current = Some(Arc::new(view));
        }
        is_new
    });
}
