//! What errors and warnings say of a wait that has timed out or takes long: who is in the way.

use std::convert::Infallible;
use std::future::pending;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::task;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::own_entry::OwnEntry;
use super::place::Call;
use super::waiting::Waiting;
use crate::backend::Blocker;
use crate::events::{self, Ahead};
use crate::key::QueueKey;
use crate::session::{Session, Sight};

/// How long before the end of its time a caller reads who is in the way, so that its error can say so.
const LOOK_BEFORE_END: Duration = Duration::from_millis(500);
/// A caller that waits for less than this does not learn who was in the way: reading that would be most of what the wait costs.
const SHORTEST_TOLD: Duration = Duration::from_millis(500);

/// A wait for a turn, of which log messages and errors tell who was in the way.
pub(in crate::recipe) struct Waits {
    session: Arc<Session>,
    queue: QueueKey,
    waiting: Waiting,
    begun: Instant,
    /// The caller's task, if it has one.
    task: Option<task::Id>,
    /// Who was in the way when the queue was last read.
    ahead: Mutex<Option<Ahead>>,
    /// What is told of the wait meanwhile.
    call: Arc<Call>,
    is_told_of_itself: AtomicBool,
}

impl Waits {
    pub(in crate::recipe) fn begin(
        session: &Arc<Session>,
        queue: &QueueKey,
        waiting: Waiting,
        task: Option<task::Id>,
        call: &Arc<Call>,
    ) -> Self {
        Self {
            session: Arc::clone(session),
            queue: queue.clone(),
            waiting,
            begun: Instant::now(),
            task,
            ahead: Mutex::default(),
            call: Arc::clone(call),
            is_told_of_itself: AtomicBool::new(false),
        }
    }

    /// Waits for at most this long, and reads shortly before the end who is in the way.
    pub(in crate::recipe) async fn wait_for_at_most(&self, limit: Duration) {
        let Some(end) = self.begun.checked_add(limit) else { return pending().await };
        if limit >= SHORTEST_TOLD && self.waiting != Waiting::Never {
            sleep_until(end - LOOK_BEFORE_END.min(limit / 4)).await;
            if self.call.is_blocked() {
                drop(timeout_at(end, self.look_ahead()).await);
            }
        }
        sleep_until(end).await;
    }

    /// Warns once if the wait is a long one; never returns.
    pub(in crate::recipe) async fn tell_that_it_is_long(&self) -> Infallible {
        let Some(moment) = self.begun.checked_add(self.session.settings.long_wait) else {
            return pending().await;
        };
        sleep_until(moment).await;
        if !events::hears_warnings() {
            return pending().await;
        }
        let looked = tokio::time::timeout(self.session.call_timeout(), self.look_ahead()).await;
        let contenders = looked.ok().flatten();
        let about = self.session.about(&self.queue);
        about.still_waits(self.begun.elapsed(), self.ahead().as_ref(), contenders);
        pending().await
    }

    /// Reads who is first in the queue, by a read that all such waits in this process share; returns how many entries the queue
    /// has.
    fn look_ahead(&self) -> Pin<Box<dyn Future<Output = Option<usize>> + Send + '_>> {
        // Boxed, because most waits never read this.
        Box::pin(async move {
            let view = self.session.observe(&self.queue, Sight::Standing).next().await.ok()?;
            self.call.note(&view.listing);
            let own = self.call.own().unwrap_or_default();
            let first = view.listing.entries.first().filter(|first| first.seq < own);
            let lease = self.session.lease_now()?;
            *self.ahead() = first.map(|first| Ahead::new(first, lease.id));
            Some(view.listing.entries.len())
        })
    }

    fn ahead(&self) -> MutexGuard<'_, Option<Ahead>> {
        self.ahead.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The error message for a caller whose time is over, and in whose way another entry was.
    pub(in crate::recipe) fn not_free(&self) -> String {
        let waited = match self.waiting {
            Waiting::For(limit) => limit,
            Waiting::Forever | Waiting::Never => self.begun.elapsed(),
        };
        let ahead = self.ahead();
        let Some(Ahead { member, label, token, .. }) = &*ahead else {
            return format!("it was not free within {waited:?}");
        };
        let who = match (&**member, label) {
            ("", _) => "a client of another library".to_owned(),
            (member, None) => format!("member {member:?}"),
            (member, Some(label)) => format!("member {member:?} ({label:?})"),
        };
        format!("it was not free within {waited:?}; {who} has it, with token {token}")
    }

    /// Notes the number of our own entry, which was entered: only entries before it can be in the way.
    pub(in crate::recipe) fn note_own(&self, own: &OwnEntry) {
        self.call.note_own(own.seq());
        *self.ahead() = None;
    }

    /// Warns if the entry before ours was granted to the task that waits now.
    pub(in crate::recipe) fn warn_of_itself(&self, own: &OwnEntry, blocker: &Blocker) {
        let Some(task) = self.task else { return };
        let is_told = || self.is_told_of_itself.swap(true, Ordering::SeqCst);
        if own.lease().is_of_task(&self.queue, blocker, task) && !is_told() {
            self.session.about(&self.queue).waits_for_itself(blocker.seq);
        }
    }
}
