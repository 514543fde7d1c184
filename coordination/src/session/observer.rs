//! What observers see of a queue. All observers of a queue in this process share one task that reads it.

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
use crate::time::BootInstant;

/// The shortest time between two reads of a queue.
const MOST_OFTEN: Duration = Duration::from_millis(1);

/// When an answer came, by the clock that goes on while the machine is suspended, and by that of the runtime, which stands still in a
/// test that has paused time, as the clock of `memory://` does then.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Came(BootInstant, Instant);

impl Came {
    pub(crate) fn now() -> Self {
        Self(BootInstant::now(), Instant::now())
    }

    /// How long ago that was.
    pub(crate) fn elapsed(self) -> Duration {
        BootInstant::now().saturating_duration_since(self.0).max(self.1.elapsed())
    }
}

/// A queue as it was at some moment.
#[derive(Debug)]
pub(crate) struct View {
    pub(crate) listing: Listing,
    /// When the listing had come. Who follows the queue may get it much later.
    pub(crate) came: Came,
    /// How often the store could not be reached so far. If this number rises, the observer may have missed changes.
    pub(crate) gaps: u64,
}

/// How a queue is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Sight {
    /// The queue as it was at one moment: [`read`](crate::backend::Entries::read).
    Moment,
    /// The queue by [`read_standing`](crate::backend::Entries::read_standing), which may leave out entries that come or go.
    Standing,
}

/// A queue that is observed, and how it is read.
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

    /// Waits for the next view; the first call returns the current one as soon as there is one.
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

    /// Whether [`next`](Self::next) would wait.
    pub(crate) fn would_wait(&self) -> bool {
        // After the last view, which the channel tells as an error, `next` does not wait. Nor does it in a forked child.
        let is_open = self.process.is_this().then(|| self.receiver.has_changed());
        matches!(is_open, Some(Ok(is_new)) if !is_new || self.receiver.borrow().is_none())
    }

    /// What [`next`](Self::next) would return at once; `None`: it would wait.
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
            // The last receiver would notify the sender when it is dropped, and the sender's mutex may be locked for ever by a
            // thread of the parent. A forgotten clone keeps it from being the last.
            std::mem::forget(self.receiver.clone());
        }
    }
}

impl Session {
    pub(crate) async fn read(&self, queue: &QueueKey, sight: Sight) -> Result<Listing> {
        match sight {
            Sight::Moment => self.backend.read(queue).await,
            Sight::Standing => self.backend.read_standing(queue).await,
        }
    }

    /// Tells all observers that there will be no more views. Called when the phase is `Closed`.
    pub(super) fn end_observers(&self) {
        // The observers are told here, and not by the tasks that read the queues: these tasks may end with their runtime first.
        self.observers.by_queue().clear();
    }

    /// Follows a queue. All who follow the same queue share one task, which reads it.
    pub(crate) fn observe(self: &Arc<Self>, queue: &QueueKey, sight: Sight) -> Views {
        // A receiver without a sender reports at once that there are no more views.
        let ended = || Views::new(watch::channel(None).1);
        if !self.is_own_process() {
            return ended();
        }
        let mut observed = self.observers.by_queue();
        // The phase is checked under the mutex: `end_observers` is called after the phase has become `Closed`, so it either finds
        // the sender that is inserted below, or this check sees the phase. Otherwise an observer could wait for ever.
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
                    // Dropping the sender tells the observers that there are no more views.
                    self.observers.by_queue().remove(&what);
                    return;
                }
            }
            let mut observed = self.observers.by_queue();
            // The receivers are counted under the mutex: `observe` either has subscribed before and is counted here, or it comes
            // later and starts another task.
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
                publish(sender, View { listing, came: Came::now(), gaps });
                on_purpose("changed");
                let recheck = ttl.min(super::LONGEST_RECHECK);
                let changed = self.backend.changed(queue, revision, recheck).await;
                self.count("watch", &changed);
                changed
            };
            let looked = async { caught("observe", looked).await.flatten() };
            let begun = Instant::now();
            match looked.await {
                Ok(()) => {
                    delays = self.retry_delays(Some(ttl));
                    // A queue that changes all the time is read only once in a while; observers skip views then.
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

/// Publishes a view. If it is the same as the last one, nobody is told; who comes later gets the fresher one.
fn publish(sender: &Sender, view: View) {
    sender.send_if_modified(|current| {
        let is_new = current.as_ref().is_none_or(|last| {
            (last.listing.revision, last.gaps) != (view.listing.revision, view.gaps)
        });
        *current = Some(Arc::new(view));
        is_new
    });
}
