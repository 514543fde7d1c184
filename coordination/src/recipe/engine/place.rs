//! The place of a call that acquires, as others see it while the call waits.

use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::backend::Listing;
use crate::env::Process;
use crate::error::{Effect, Error, Result};
use crate::key::QueueKey;
use crate::session::{Session, Sight};
use crate::token::FencingToken;

tokio::task_local! {
    /// Where acquires of this task tell their place.
    static PLACE: Place;
}

/// The place in the queue of a call that waits for a lock or something else, for whoever wants to show how long that may take.
///
/// [`of`](Self::of) polls the call, and everything else may be asked meanwhile, from any task that has a clone. It does for every call
/// that waits in a queue: for locks, permits, slots and leaderships. Of several locks it is the place in the queue of the one that is
/// waited for now. Of a call that waits for a turn of a [`Cohort`](crate::Cohort) it tells nothing, as that call has no entry of its own.
///
/// Cheap to clone; clones are the same place. One place is for one call at a time.
///
/// # Examples
///
/// ```
/// use coordination::Place;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
/// # let coordinator = coordination::Coordinator::connect("memory://").await?;
/// let lock = coordinator.lock("vol-7")?;
/// let held = lock.acquire(None).await?;
///
/// let place = Place::new();
/// let tells = async {
///     while place.token().is_none() {
///         tokio::task::yield_now().await;
///     }
///     assert_eq!(place.look().await?, Some(1));
///     held.release().await
/// };
/// let (guard, told) = tokio::join!(place.of(lock.acquire(None)), tells);
/// told?;
/// assert!(guard?.is_held());
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Place(Arc<Inner>);

struct Inner {
    /// The call that has begun to wait last.
    call: Mutex<Option<Arc<Call>>>,
    process: Process,
}

impl Place {
    /// A place at which no call waits yet.
    pub fn new() -> Self {
        Self(Arc::new(Inner { call: Mutex::default(), process: Process::this() }))
    }

    /// Makes this call, and tells its place meanwhile. It changes nothing of the call.
    ///
    /// # Cancel safety
    ///
    /// That of the call.
    pub async fn of<F: Future>(&self, call: F) -> F::Output {
        self.follow(None);
        PLACE.scope(self.clone(), call).await
    }

    /// The token of the entry with which the call waits, as [`Lock::holders`](crate::Lock::holders) and the like list it: what is
    /// granted to that entry has this token.
    ///
    /// `None`: the call has no entry. It has not begun, was granted at once, waits for the store, or is over. After the loss of a
    /// session the call waits with another entry, at the end of the queue.
    pub fn token(&self) -> Option<FencingToken> {
        self.waiting()?.own().and_then(FencingToken::new)
    }

    /// Whether the call is known to wait for others, and not for the store; when it is over, whether that was so in the end.
    pub fn is_blocked(&self) -> bool {
        self.call().is_some_and(|call| call.is_blocked())
    }

    /// How many entries were before that of the call when the queue was last read on its behalf, those that hold included.
    ///
    /// As of the last look, which may be long ago: whoever waits for a lock watches the entry before its own and does not read the queue, except
    /// by [`look`](Self::look), once when the wait is a [long one](crate::Config::long_wait), and shortly before its timeout if that is at
    /// least half a second. Whoever waits for a permit or a slot reads the queue whenever it may be its turn. It stays when the call is
    /// over. `None`: nobody has looked yet.
    pub fn ahead(&self) -> Option<usize> {
        self.call()?.ahead()
    }

    /// Reads the queue, and returns how many entries are before that of the call now, those that hold included; `None`: the call has
    /// no entry in the queue.
    ///
    /// This is one request, whose cost grows with the number of entries. It says how many were there first, not how many
    /// have to go: shared holders go together, a semaphore has many permits, and in a limiter where the latest wins those who came
    /// before give way.
    ///
    /// # Errors
    ///
    /// The [kinds of error](crate::ErrorKind) of a store that refuses or does not answer. The call that waits is not
    /// concerned.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect: it only reads.
    pub async fn look(&self) -> Result<Option<usize>> {
        let Some(call) = self.waiting().filter(|call| call.own().is_some()) else {
            return Ok(None);
        };
        let Some(session) = call.session.upgrade() else { return Ok(None) };
        session.check_open("list")?;
        let (reader, queue) = (Arc::clone(&session), call.queue.clone());
        let reading = async move {
            reader.retry_briefly("list", || reader.read(&queue, Sight::Standing)).await
        };
        let named = |error: Error| {
            error
                .with_effect(Effect::None)
                .on_key(call.queue.name())
                .on_backend(session.backend.scheme())
        };
        let (listing, _) = session.run_for_caller("list", reading).await.map_err(named)?;
        Ok(call.note(&listing))
    }

    fn call(&self) -> Option<Arc<Call>> {
        // In a forked child a thread of the parent may have locked it for ever.
        if !self.0.process.is_this() {
            return None;
        }
        self.0.call.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The call, if it waits at this moment.
    fn waiting(&self) -> Option<Arc<Call>> {
        self.call().filter(|call| !call.is_over.load(Ordering::SeqCst))
    }

    fn follow(&self, call: Option<Arc<Call>>) {
        if self.0.process.is_this() {
            *self.0.call.lock().unwrap_or_else(PoisonError::into_inner) = call;
        }
    }
}

impl Default for Place {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Place")
            .field("token", &self.token())
            .field("is_blocked", &self.is_blocked())
            .field("ahead", &self.ahead())
            .finish()
    }
}

/// A call that waits, as the task that waits on its behalf tells it.
pub(in crate::recipe) struct Call {
    /// Not a strong reference: whoever keeps a place keeps no session.
    session: Weak<Session>,
    queue: QueueKey,
    /// Whether the entry is known to wait for another entry, and not for the store.
    is_blocked: AtomicBool,
    /// The number of our own entry; zero as long as there is none.
    own: AtomicU64,
    /// One more than the number of entries that were before ours; zero: nobody has looked.
    ahead: AtomicUsize,
    is_over: AtomicBool,
}

impl Call {
    /// A call of the task that runs this, told to the task's place if it has one.
    pub(in crate::recipe) fn begin(
        session: &Arc<Session>,
        queue: &QueueKey,
        is_blocked: bool,
    ) -> Arc<Self> {
        let call = Arc::new(Self {
            session: Arc::downgrade(session),
            queue: queue.clone(),
            is_blocked: AtomicBool::new(is_blocked),
            own: AtomicU64::new(0),
            ahead: AtomicUsize::new(0),
            is_over: AtomicBool::new(false),
        });
        if let Ok(place) = PLACE.try_with(Place::clone) {
            place.follow(Some(Arc::clone(&call)));
        }
        call
    }

    pub(in crate::recipe) fn is_blocked(&self) -> bool {
        self.is_blocked.load(Ordering::SeqCst)
    }

    pub(in crate::recipe) fn note_blocked(&self, is_blocked: bool) {
        self.is_blocked.store(is_blocked, Ordering::SeqCst);
    }

    /// The number of our own entry, if there is one.
    pub(in crate::recipe) fn own(&self) -> Option<u64> {
        Some(self.own.load(Ordering::SeqCst)).filter(|own| *own != 0)
    }

    /// Notes the number of our own entry, of whose place nothing is known so far; `None`: there is none.
    pub(in crate::recipe) fn note_own(&self, own: Option<u64>) {
        self.own.store(own.unwrap_or_default(), Ordering::SeqCst);
        self.ahead.store(0, Ordering::SeqCst);
    }

    fn ahead(&self) -> Option<usize> {
        self.ahead.load(Ordering::SeqCst).checked_sub(1)
    }

    /// Notes how many entries are before ours, and returns that; `None`: ours is not there.
    pub(in crate::recipe) fn note(&self, listing: &Listing) -> Option<usize> {
        let own = listing.entry(self.own()?)?.seq;
        let ahead = listing.entries.partition_point(|entry| entry.seq < own);
        self.ahead.store(ahead + 1, Ordering::SeqCst);
        Some(ahead)
    }
}

/// Ends the call for whoever looks at its place, when its caller has its answer or goes away.
pub(in crate::recipe) struct EndsWithIt(pub(in crate::recipe) Arc<Call>);

impl Drop for EndsWithIt {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::SeqCst);
    }
}
