//! What observers see of a queue. All observers of a queue in this process share one task that reads it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::failures::Failures;
use super::{Phase, Session};
use crate::backend::Listing;
use crate::env::Process;
use crate::error::{Error, ErrorKind, LossReason, Result};
use crate::key::QueueKey;
use crate::panics::{caught, on_purpose};
use crate::time::BootInstant;

/// The shortest time between two reads of a queue.
const MOST_OFTEN: Duration = Duration::from_millis(1);
/// The same while nobody who follows the queue is in a hurry.
const SELDOM: Duration = Duration::from_millis(500);

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

/// How many of those who follow a queue are in a hurry.
#[derive(Default)]
struct Hurry {
    count: AtomicUsize,
    has_come: Notify,
}

impl Hurry {
    /// Waits until the queue may be read again that was read at that time.
    async fn pause_after(&self, read: Instant) {
        tokio::time::sleep_until(read + MOST_OFTEN).await;
        let somebody = async {
            while self.count.load(Ordering::Acquire) == 0 {
                self.has_come.notified().await;
            }
        };
        tokio::select! {
            biased;
            () = somebody => {}
            () = tokio::time::sleep_until(read + SELDOM) => {}
        }
    }
}

/// One who follows a queue in a hurry.
struct InHurry(Arc<Hurry>);

impl InHurry {
    fn new(hurry: &Arc<Hurry>) -> Self {
        if hurry.count.fetch_add(1, Ordering::AcqRel) == 0 {
            hurry.has_come.notify_one();
        }
        Self(Arc::clone(hurry))
    }
}

impl Drop for InHurry {
    fn drop(&mut self) {
        self.0.count.fetch_sub(1, Ordering::AcqRel);
    }
}

/// What tells the observers of a queue.
#[derive(Clone)]
struct Sender {
    views: watch::Sender<Option<Arc<View>>>,
    /// Why what is stored cannot be read; `None` if the queue was read since.
    unreadable: watch::Sender<Option<Error>>,
    hurry: Arc<Hurry>,
}

impl Sender {
    fn new() -> Self {
        let hurry = Arc::default();
        Self { views: watch::Sender::new(None), unreadable: watch::Sender::new(None), hurry }
    }

    /// Views that begin with the present one.
    fn subscribe(&self) -> Views {
        let (mut views, mut unreadable) = (self.views.subscribe(), self.unreadable.subscribe());
        views.mark_changed();
        unreadable.mark_changed();
        Views {
            views,
            unreadable,
            hurry: Arc::clone(&self.hurry),
            in_hurry: Some(InHurry::new(&self.hurry)),
            tells_unreadable: false,
            process: Process::this(),
        }
    }

    /// Notes that the queue could not be read.
    fn failed(&self, error: &Error, queue: &QueueKey) {
        if error.kind() == ErrorKind::Corrupt {
            self.unreadable.send_if_modified(|unreadable| {
                let is_first = unreadable.is_none();
                unreadable.get_or_insert_with(|| error.clone().on_key(queue.name()));
                is_first
            });
        }
    }

    /// Publishes a view. If it is the same as the last one, nobody is told; who comes later gets the fresher one.
    fn publish(&self, view: View) {
        self.unreadable.send_if_modified(|unreadable| {
            *unreadable = None;
            false
        });
        self.views.send_if_modified(|current| {
            let is_new = current.as_ref().is_none_or(|last| {
                (last.listing.revision, last.gaps) != (view.listing.revision, view.gaps)
            });
            *current = Some(Arc::new(view));
            is_new
        });
    }
}

/// The queues that are observed in this process.
#[derive(Default)]
pub(crate) struct Observers(Mutex<BTreeMap<Observed, Sender>>);

impl Observers {
    fn by_queue(&self) -> MutexGuard<'_, BTreeMap<Observed, Sender>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// Follows a queue. Every view differs from the one before; some may be left out.
pub(crate) struct Views {
    views: watch::Receiver<Option<Arc<View>>>,
    unreadable: watch::Receiver<Option<Error>>,
    hurry: Arc<Hurry>,
    in_hurry: Option<InHurry>,
    tells_unreadable: bool,
    process: Process,
}

impl Clone for Views {
    fn clone(&self) -> Self {
        Self {
            views: self.views.clone(),
            unreadable: self.unreadable.clone(),
            hurry: Arc::clone(&self.hurry),
            in_hurry: self.in_hurry.is_some().then(|| InHurry::new(&self.hurry)),
            tells_unreadable: self.tells_unreadable,
            process: self.process,
        }
    }
}

impl Views {
    /// Whether each change is to be read at once, as it is at first. While nobody who follows the queue wants that, what changes
    /// within half a second is read together.
    pub(crate) fn hurry(&mut self, wanted: bool) {
        if wanted != self.in_hurry.is_some() {
            self.in_hurry = wanted.then(|| InHurry::new(&self.hurry));
        }
    }

    /// The same views, of which [`next`](Self::next) also says if what is stored cannot be read: [`ErrorKind::Corrupt`], once until
    /// it can be read again.
    pub(crate) fn telling_unreadable(mut self) -> Self {
        self.tells_unreadable = true;
        self
    }

    /// Waits for the next view; the first call returns the current one as soon as there is one.
    ///
    /// # Cancel safety
    ///
    /// No view is lost when the future is dropped.
    pub(crate) async fn next(&mut self) -> Result<Arc<View>> {
        if !self.process.is_this() {
            return Err(over());
        }
        tokio::select! {
            biased;
            view = newest(&mut self.views) => view.ok_or_else(over),
            Some(error) = newest(&mut self.unreadable), if self.tells_unreadable => Err(error),
        }
    }

    /// Whether [`next`](Self::next) would wait.
    pub(crate) fn would_wait(&self) -> bool {
        // When there are no more views, and in a forked child, `next` fails at once.
        let is_open = self.process.is_this() && self.views.has_changed().is_ok();
        let is_unreadable = self.tells_unreadable && is_new(&self.unreadable);
        is_open && !is_unreadable && !is_new(&self.views)
    }

    /// What [`next`](Self::next) would return at once; `None`: it would wait.
    pub(crate) fn newest(&mut self) -> Result<Option<Arc<View>>> {
        match self.views.has_changed() {
            _ if !self.process.is_this() => Err(over()),
            Ok(true) => Ok(self.views.borrow_and_update().clone()),
            Ok(false) => Ok(None),
            Err(_) => Err(over()),
        }
    }
}

impl Drop for Views {
    fn drop(&mut self) {
        if !self.process.is_this() {
            // The last receiver would notify the sender when it is dropped, and the sender's mutex may be locked for ever by a
            // thread of the parent. A forgotten clone keeps it from being the last.
            std::mem::forget((self.views.clone(), self.unreadable.clone()));
        }
    }
}

/// The error if there are no more views.
fn over() -> Error {
    Error::lost("observe", LossReason::Closed)
}

fn is_new<T>(values: &watch::Receiver<Option<T>>) -> bool {
    matches!(values.has_changed(), Ok(true)) && values.borrow().is_some()
}

/// Waits for the next value that is not `None`; `None`: there will be none.
async fn newest<T: Clone>(values: &mut watch::Receiver<Option<T>>) -> Option<T> {
    loop {
        values.changed().await.ok()?;
        if let Some(value) = &*values.borrow_and_update() {
            return Some(value.clone());
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
        let ended = || Sender::new().subscribe();
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
            return sender.subscribe();
        }
        let sender = Sender::new();
        let views = sender.subscribe();
        observed.insert(what.clone(), sender.clone());
        drop(observed);
        let session = Arc::clone(self);
        self.spawn(async move { session.look_after(what, sender).await });
        views
    }

    /// Whether somebody who follows the queue has each change read at once.
    #[cfg(all(test, coordination_internals, feature = "memory"))]
    pub(crate) fn is_in_hurry(&self, queue: &QueueKey, sight: Sight) -> bool {
        let observed = self.observers.by_queue();
        let sender = observed.get(&(queue.clone(), sight));
        sender.is_some_and(|sender| sender.hurry.count.load(Ordering::Acquire) > 0)
    }

    /// Reads the queue whenever it has changed, as long as somebody follows it.
    async fn look_after(self: Arc<Self>, what: Observed, sender: Sender) {
        let mut phase = self.phase.subscribe();
        loop {
            tokio::select! {
                biased;
                () = self.follow(&what, &sender) => {}
                () = sender.views.closed() => {}
                _ = phase.wait_for(|phase| matches!(phase, Phase::Closed(_))) => {
                    // Dropping the sender tells the observers that there are no more views.
                    self.observers.by_queue().remove(&what);
                    return;
                }
            }
            let mut observed = self.observers.by_queue();
            // The receivers are counted under the mutex: `observe` either has subscribed before and is counted here, or it comes
            // later and starts another task.
            if sender.views.receiver_count() == 0 {
                observed.remove(&what);
                return;
            }
        }
    }

    async fn follow(&self, (queue, sight): &Observed, sender: &Sender) {
        let mut delays = self.retry_delays(Some(self.ttl()));
        let mut gaps = sender.views.borrow().as_ref().map_or(0, |view| view.gaps);
        let mut failed = false;
        let failures = Failures::default();
        loop {
            let ttl = self.ttl();
            let looked = async {
                let listing = self.attempt(Some(ttl), "observe", self.read(queue, *sight)).await;
                let listing = listing.inspect_err(|error| sender.failed(error, queue))?;
                let revision = listing.revision;
                if failed {
                    gaps += 1;
                    failed = false;
                }
                sender.publish(View { listing, came: Came::now(), gaps });
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
                    failures.clear();
                    delays = self.retry_delays(Some(ttl));
                    // A queue that changes all the time is read only once in a while; observers skip views then.
                    sender.hurry.pause_after(begun).await;
                }
                Err(error) => {
                    let error = error.on_key(queue.name());
                    tracing::debug!(%error, ?queue, "cannot observe");
                    failures.note(&error);
                    failed = true;
                    tokio::time::sleep(delays.next_delay()).await;
                }
            }
        }
    }
}

#[cfg(all(test, coordination_internals, feature = "memory", feature = "testing"))]
mod tests {
    use tokio::time::timeout;

    use super::super::logged::Warnings;
    use super::*;
    use crate::ValueEvent;
    use crate::simulation::{Run, World};

    const TTL: Duration = Duration::from_secs(30);

    #[tokio::test(start_paused = true)]
    async fn changes_are_read_together_while_nobody_is_in_a_hurry() {
        let _run = Run::begin(1);
        let (_world, client, coordinator) = World::with_one_client(TTL).await.expect("it is there");
        let value = coordinator.counter("a").expect("a good name");
        let key = QueueKey::new("counter", "a", 512).expect("a good name");
        let adding = client.spawn(async move {
            loop {
                value.add(1).await.expect("the store is there");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        });
        let session = coordinator.session();
        let mut views = session.observe(&key, Sight::Moment);
        let count = async |views: &mut Views| {
            let mut count = 0;
            let counting = async {
                while views.next().await.is_ok() {
                    count += 1;
                }
            };
            let _ = timeout(Duration::from_secs(5), counting).await;
            count
        };
        assert!(count(&mut views).await > 100);
        views.hurry(false);
        assert!((8..15).contains(&count(&mut views).await));
        let mut others = session.observe(&key, Sight::Moment);
        assert!(count(&mut others).await > 100);
        drop(others);
        assert!((8..15).contains(&count(&mut views).await));
        views.hurry(true);
        assert!(count(&mut views).await > 100);
        adding.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn an_observer_that_is_refused_is_warned_of_once() {
        let warnings = Warnings::begin();
        let _run = Run::begin(1);
        let (world, _client, coordinator) =
            World::with_one_client(TTL).await.expect("the store is there");
        let limit = coordinator.value::<u32>("limit").expect("a good name");
        let mut watch = limit.watch();
        assert_eq!(watch.next().await.expect("the store is there"), ValueEvent::NoValue);
        for _ in 0..2 {
            world.set_failing(Some(ErrorKind::Permission));
            assert!(timeout(TTL / 2, watch.next()).await.is_err(), "it waits");
            world.set_failing(None);
            tokio::time::sleep(TTL / 2).await;
        }
        let told = warnings.told();
        let of_limit = told.iter().filter(|warning| warning.contains("limit"));
        assert_eq!(of_limit.count(), 2, "one for each time: {told:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_of_what_cannot_be_read_says_so() {
        let _run = Run::begin(1);
        let (world, _client, coordinator) =
            World::with_one_client(TTL).await.expect("the store is there");
        let limit = coordinator.value::<u32>("limit").expect("a good name");
        let mut watch = limit.watch();
        assert_eq!(watch.next().await.expect("the store is there"), ValueEvent::NoValue);
        world.set_failing(Some(ErrorKind::Corrupt));
        let told = timeout(TTL / 2, watch.next()).await.expect("it is told");
        assert_eq!(told.expect_err("it cannot be read").kind(), ErrorKind::Corrupt);
        assert!(timeout(TTL / 4, watch.next()).await.is_err(), "it is told once");
        world.set_failing(None);
        limit.set(&7).await.expect("the store is there");
        let told = timeout(TTL, watch.next()).await.expect("it is told");
        let told = told.expect("it can be read").into_value();
        assert_eq!(told.map(|told| told.value), Some(7));
    }
}
