//! What observers see of a queue. All observers of a process share what is read of the store.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::{Phase, Session};
use crate::backend::Listing;
use crate::env::Process;
use crate::error::{Error, LossReason, Result};
use crate::key::QueueKey;
use crate::panics::{caught, on_purpose};

/// The shortest time between two reads.
const MOST_OFTEN: Duration = Duration::from_millis(1);

/// A queue as it was at some moment.
#[derive(Debug)]
pub(crate) struct View {
    pub(crate) listing: Listing,
    /// How often the store was out of reach so far. An observer that sees this number rise may have missed changes.
    pub(crate) gaps: u64,
}

/// What is seen of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Sight {
    /// The queue as it was at one moment: [`read`](crate::backend::Entries::read).
    Moment,
    /// [`read_standing`](crate::backend::Entries::read_standing).
    Standing,
}

/// What is observed, and how.
type Observed = (QueueKey, Sight);
type Sender = watch::Sender<Option<Arc<View>>>;
type Receiver = watch::Receiver<Option<Arc<View>>>;

/// The queues that are observed in this process.
#[derive(Default)]
pub(crate) struct Observers(Mutex<BTreeMap<Observed, Sender>>);

impl Observers {
    fn by_queue(&self) -> MutexGuard<'_, BTreeMap<Observed, Sender>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// Follows a queue. Every view differs from the one before; some may be left out.
#[derive(Clone)]
pub(crate) struct Views {
    receiver: Receiver,
    process: Process,
}

impl Views {
    fn new(receiver: Receiver) -> Self {
        Self { receiver, process: Process::this() }
    }

    /// The next view; at first the present one.
    ///
    /// # Cancel safety
    ///
    /// No view is lost when the future is dropped.
    pub(crate) async fn next(&mut self) -> Result<Arc<View>> {
        loop {
            let ended = !self.process.is_this() || self.receiver.changed().await.is_err();
            if ended {
                return Err(Error::lost("observe", LossReason::Closed));
            }
            if let Some(view) = &*self.receiver.borrow_and_update() {
                return Ok(Arc::clone(view));
            }
        }
    }

    /// What [`next`](Self::next) would answer at once; `None`: it would wait.
    pub(crate) fn newest(&mut self) -> Result<Option<Arc<View>>> {
        match self.receiver.has_changed() {
            _ if !self.process.is_this() => Err(Error::lost("observe", LossReason::Closed)),
            Ok(true) => Ok(self.receiver.borrow_and_update().clone()),
            Ok(false) => Ok(None),
            Err(_) => Err(Error::lost("observe", LossReason::Closed)),
        }
    }
}

impl Drop for Views {
    fn drop(&mut self) {
        if !self.process.is_this() {
            // The last receiver tells the sender that it goes, and the sender's mutex may be locked for ever.
            std::mem::forget(self.receiver.clone());
        }
    }
}

impl Session {
    /// Reads a queue.
    pub(crate) async fn read(&self, queue: &QueueKey, sight: Sight) -> Result<Listing> {
        match sight {
            Sight::Moment => self.backend.read(queue).await,
            Sight::Standing => self.backend.read_standing(queue).await,
        }
    }

    /// Tells all observers that there will be no more views. Called once the phase is `Closed`.
    pub(super) fn end_observers(&self) {
        // Not left to the tasks: they may end with their runtime before they can do it.
        self.observers.by_queue().clear();
    }

    /// Follows a queue. All who follow the same queue share one task, which reads it.
    pub(crate) fn observe(self: &Arc<Self>, queue: &QueueKey, sight: Sight) -> Views {
        // A channel without a sender says at once that there are no more views.
        let ended = || Views::new(watch::channel(None).1);
        if !self.is_own_process() {
            return ended();
        }
        let mut observed = self.observers.by_queue();
        if self.closed().is_some() {
            return ended();
        }
        let what = (queue.clone(), sight);
        if let Some(sender) = observed.get(&what) {
            let mut views = sender.subscribe();
            views.mark_changed();
            return Views::new(views);
        }
        let (sender, views) = watch::channel(None);
        observed.insert(what.clone(), sender.clone());
        drop(observed);
        let session = Arc::clone(self);
        self.spawn(async move { session.look_after(what, sender).await });
        Views::new(views)
    }

    /// Reads the queue whenever it has changed, as long as somebody follows it.
    async fn look_after(self: Arc<Self>, what: Observed, sender: Sender) {
        let mut phase = self.phase.subscribe();
        loop {
            tokio::select! {
                biased;
                () = self.follow(&what, &sender) => {}
                () = sender.closed() => {}
                _ = phase.wait_for(|phase| matches!(phase, Phase::Closed(_))) => {
                    // Dropping the sender tells the observers.
                    self.observers.by_queue().remove(&what);
                    return;
                }
            }
            let mut observed = self.observers.by_queue();
            // Checked under the mutex, so that nobody can start to follow in between.
            if sender.receiver_count() == 0 {
                observed.remove(&what);
                return;
            }
        }
    }

    async fn follow(&self, (queue, sight): &Observed, sender: &Sender) {
        let mut delays = self.retry_delays(Some(self.ttl()));
        let mut gaps = sender.borrow().as_ref().map_or(0, |view| view.gaps);
        let mut failed = false;
        loop {
            let ttl = self.ttl();
            let looked = async {
                let listing = self.attempt(Some(ttl), "observe", self.read(queue, *sight)).await?;
                let revision = listing.revision;
                if failed {
                    gaps += 1;
                    failed = false;
                }
                publish(sender, View { listing, gaps });
                on_purpose("changed");
                self.backend.changed(queue, revision, ttl.min(super::LONGEST_RECHECK)).await
            };
            let looked = async { caught("observe", looked).await.flatten() };
            let begun = Instant::now();
            match looked.await {
                Ok(()) => {
                    delays = self.retry_delays(Some(ttl));
                    // A queue that changes all the time is read now and then only; views may be left out.
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

/// Publishes a view, unless it is the same as the last one.
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
