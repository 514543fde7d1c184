//! A named queue, as a recipe uses it: its entries, its value, and the observers that follow it.

use std::borrow::Cow;
use std::future::{Future, pending};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::acquire::run_acquire;
use super::grant::Grant;
use super::label;
use super::own_entry::Contents;
use super::turn::Request;
use super::waiting::Waiting;
use crate::backend::{Data, Entry, EntryRef, Listing, Room, Write};
use crate::env::Process;
use crate::error::{Effect, Error, ErrorKind, Result};
use crate::key::QueueKey;
use crate::retry::DecorrelatedJitter;
use crate::session::{Purpose, Session, Sight, View, Views, Written, may_pass};

/// Keeps the coordinator, and with it the session, open as long as somebody has a clone.
pub(crate) type KeepsOpen = Arc<dyn Send + Sync>;

/// The queue of one name and kind. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Queue {
    pub(crate) session: Arc<Session>,
    pub(crate) key: QueueKey,
    /// The label of the entries that are entered by this.
    label: Option<Arc<str>>,
    /// Keeps the session open as long as this queue can be used.
    coordinator: KeepsOpen,
}

/// The decision of a step of [`Queue::modify`].
pub(crate) enum Change<T> {
    /// Write this value, or remove it, and return the answer.
    Write(Option<Data>, T),
    /// Leave the value as it is, and return the answer.
    Keep(T),
}

/// Where a listing comes from that [`Queue::until`] looks through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// The call has read it itself: it is as of a moment during the call, and not older than what the call has read before.
    Read,
    /// It is what all observers in this process share, and may be older than the call. What is found there is looked for in a
    /// [read](Self::Read).
    View,
}

impl Queue {
    pub(crate) fn new(session: Arc<Session>, key: QueueKey, coordinator: KeepsOpen) -> Self {
        Self { session, key, label: None, coordinator }
    }

    /// The queue of the same name, but of another kind, in which a recipe can store more about the same thing.
    pub(crate) fn of_kind(&self, kind: &'static str) -> Result<Self> {
        let key = QueueKey::new(kind, self.key.name(), self.session.settings.max_name_bytes)?;
        Ok(Self { key, ..self.clone() })
    }

    /// The queue of another name, prefix included, and the same kind.
    pub(crate) fn of_name(&self, name: &str) -> Result<Self> {
        let key = QueueKey::new(self.key.kind(), name, self.session.settings.max_name_bytes)?;
        Ok(Self { key, ..self.clone() })
    }

    /// Notes the template that the queue's name was made of, for the log.
    pub(crate) fn of_template(self, template: Cow<'static, str>) -> Self {
        Self { key: self.key.of_template(template), ..self }
    }

    /// The same queue, in which entries are entered with this label.
    pub(crate) fn labelled(self, label: &str) -> Result<Self> {
        let label = self.named(label::checked(label))?;
        Ok(Self { label, ..self })
    }

    pub(crate) fn name(&self) -> &str {
        self.key.name()
    }

    /// The contents of an entry of this process, for recipes that keep no data of their own with it.
    pub(crate) fn contents(&self) -> Contents {
        Contents {
            member: Arc::clone(&self.session.settings.member),
            label: self.label.clone(),
            mode: Default::default(),
            data: Data::default(),
            room: Room::default(),
            purpose: Purpose::default(),
        }
    }

    /// Waits for the turn; `None` only for [`Waiting::Never`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future at any point leaves nothing behind.
    pub(crate) async fn acquire(
        &self,
        request: &Request,
        waiting: Waiting,
    ) -> Result<Option<Grant>> {
        // Of a step of something else nothing is told.
        let is_told = request.contents.purpose != Purpose::Step;
        let acquiring = is_told.then(|| self.session.about(&self.key).begin());
        let own = run_acquire(&self.session, &self.key, request, waiting).await;
        if let Some(acquiring) = acquiring {
            match &own {
                Ok(Some(own)) => acquiring.acquired(own.seq()),
                Ok(None) => acquiring.not_free(),
                Err(error) => acquiring.failed(error),
            }
        }
        let grant = |own| Grant::new(own, self.key.clone(), Arc::clone(&self.coordinator));
        Ok(self.named(own)?.map(grant))
    }

    /// [`acquire`](Self::acquire), which fails when the time is over.
    pub(crate) async fn acquire_within(
        &self,
        request: &Request,
        timeout: Option<Duration>,
    ) -> Result<Grant> {
        let grant = self.acquire(request, Waiting::within(timeout)).await?;
        grant.ok_or_else(|| self.error(ErrorKind::Timeout, "acquire", "somebody else holds it"))
    }

    /// Reads the queue as it is now.
    pub(crate) async fn read(&self, operation: &'static str) -> Result<Listing> {
        let (session, key) = (Arc::clone(&self.session), self.key.clone());
        let read = async move { look(&session, operation, &key, Sight::Moment).await };
        self.run(operation, read).await.map_err(|error| error.with_effect(Effect::None))
    }

    /// Takes away what this entry, which was just listed, holds or waits for. No other entry is removed, whatever happens meanwhile.
    pub(crate) async fn take_away(&self, entry: &Entry) -> Result<()> {
        self.session.about(&self.key).breaks(&entry.member, entry.seq);
        let meant = EntryRef { queue: self.key.clone(), id: entry.id.clone() };
        let (session, seq) = (Arc::clone(&self.session), Some(entry.seq));
        self.call("break", async move { session.backend.leave(&meant, seq).await }).await
    }

    /// Changes the value by compare-and-set. If others change it in between, starts again with the value that it has then.
    ///
    /// # Errors
    ///
    /// Those of `step`, and those of the store. The effect is [`Effect::Unknown`] if the value may have been written.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the call goes on in the background.
    pub(crate) async fn modify<T: Send + 'static>(
        &self,
        operation: &'static str,
        step: impl FnMut(&Listing) -> Result<Change<T>> + Send + 'static,
    ) -> Result<T> {
        Ok(self.modify_versioned(operation, step).await?.0)
    }

    /// [`modify`](Self::modify), which also returns the version that was written; `None`: the value was left as it is.
    pub(crate) async fn modify_versioned<T: Send + 'static>(
        &self,
        operation: &'static str,
        mut step: impl FnMut(&Listing) -> Result<Change<T>> + Send + 'static,
    ) -> Result<(T, Option<u64>)> {
        let (session, key) = (Arc::clone(&self.session), self.key.clone());
        self.run(operation, async move {
            let mut delays =
                DecorrelatedJitter::new(Duration::from_millis(1), Duration::from_millis(50));
            loop {
                let listing = look(&session, operation, &key, Sight::Standing).await?;
                let expected = listing.value.as_ref().map(|value| value.version);
                let (data, answer) = match step(&listing)? {
                    Change::Write(data, answer) => (data, answer),
                    Change::Keep(answer) => return Ok((answer, None)),
                };
                match session.write(operation, &Write::new(&key, expected, data)).await? {
                    Written::Yes(version) => return Ok((answer, Some(version))),
                    Written::No => tokio::time::sleep(delays.next_delay()).await,
                    Written::Unknown => return Err(in_doubt(operation)),
                }
            }
        })
        .await
    }

    /// Writes the value if it is as expected.
    pub(crate) async fn write(&self, operation: &'static str, write: Write) -> Result<Written> {
        let session = Arc::clone(&self.session);
        self.run(operation, async move { session.write(operation, &write).await }).await
    }

    /// Follows the queue. All in this process who follow it share one task that reads it.
    pub(crate) fn observe(&self, sight: Sight) -> Views {
        self.session.observe(&self.key, sight)
    }

    /// Whether somebody in this process who follows the queue has each change read at once.
    #[cfg(all(test, coordination_internals, feature = "memory"))]
    pub(crate) fn is_in_hurry(&self, sight: Sight) -> bool {
        self.session.is_in_hurry(&self.key, sight)
    }

    /// The next of these views of the queue.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`]: this blocking call would wait for itself. [`ErrorKind::Closed`]: there are no more views.
    ///
    /// # Cancel safety
    ///
    /// No view is lost when the future is dropped.
    pub(crate) async fn next_view(&self, views: &mut Views) -> Result<Arc<View>> {
        if views.would_wait() {
            self.named(self.session.check_thread("observe"))?;
        }
        self.named(views.next().await)
    }

    /// Waits until `find` finds something in the queue, and returns what it found. That was there at some moment during the call.
    ///
    /// `timeout` bounds the whole call. `None` waits for ever, also through an outage of the store; zero
    /// reads once.
    ///
    /// # Errors
    ///
    /// Those of `find`; [`ErrorKind::Timeout`], or [`ErrorKind::Unavailable`] if the store did not answer.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect: it only reads.
    pub(crate) async fn until<T>(
        &self,
        operation: &'static str,
        timeout: Option<Duration>,
        mut find: impl FnMut(&Listing, Seen) -> Result<Option<T>>,
    ) -> Result<T> {
        let waiting = Waiting::within(timeout);
        let limit = waiting.limit(self.session.call_timeout());
        let (mut has_looked, mut failed) = (false, None);
        let search = async {
            let mut views = None;
            loop {
                // The call reads the queue itself, because the view that observers share may be older than the call.
                let listing = match self.read(operation).await {
                    Ok(listing) => listing,
                    Err(error) if may_pass(&error) => {
                        (has_looked, failed) = (false, Some(error));
                        continue;
                    }
                    Err(error) => return Err(error),
                };
                has_looked = true;
                match self.named(find(&listing, Seen::Read))? {
                    Some(found) => return Ok(Some(found)),
                    None if waiting == Waiting::Never => return Ok(None),
                    None => {}
                }
                let views = views.get_or_insert_with(|| self.observe(Sight::Moment));
                loop {
                    let view = self.named(views.next().await)?;
                    if !matches!(find(&view.listing, Seen::View), Ok(None)) {
                        break;
                    }
                }
            }
        };
        let found = tokio::select! {
            biased;
            found = search => found?,
            () = self.out_of_time(limit) => None,
        };
        match found {
            Some(found) => Ok(found),
            None if has_looked && self.session.is_connected() => Err(self.error(
                ErrorKind::Timeout,
                operation,
                "it did not come within the time given",
            )),
            None => {
                let message = "the store did not answer within the time given";
                self.named(Err(self.session.late(operation, message, failed)))
            }
        }
    }

    /// Waits until this moment, on the session's runtime, because the caller may have none.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Closed`]: the session's runtime ended before.
    pub(crate) async fn sleep_until(&self, operation: &'static str, moment: Instant) -> Result<()> {
        let sleeping = self.session.spawn(async move { tokio::time::sleep_until(moment).await });
        let mut timer = Timer(sleeping, Process::this());
        let ended = (&mut timer.0).await;
        self.named(ended.map_err(|_| self.session.ended(operation)))
    }

    /// Resolves when this much time has passed; never, if there is no limit, or if the session's runtime ends before: then what the caller
    /// waits for within this time ends as well, perhaps a moment later, and tells of that.
    pub(crate) async fn out_of_time(&self, limit: Option<Duration>) {
        let Some(end) = limit.and_then(|limit| Instant::now().checked_add(limit)) else {
            return pending().await;
        };
        if self.sleep_until("wait", end).await.is_err() {
            pending().await
        }
    }

    /// Makes one call to the store, bounded in time, on the session's runtime.
    pub(crate) async fn call<T: Send + 'static>(
        &self,
        operation: &'static str,
        call: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let session = Arc::clone(&self.session);
        let call = async move { session.attempt(Some(session.ttl()), operation, call).await };
        self.run(operation, call).await
    }

    /// Runs a task on the session's runtime, where it goes on if the caller drops its future.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        operation: &'static str,
        task: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        self.session.check_open(operation)?;
        let done = self.session.spawn(task).await;
        // What the task had sent may have been carried out.
        let ended =
            |ended| Err(self.session.unanswered(operation, ended).with_effect(Effect::Unknown));
        self.named(done.unwrap_or_else(ended))
    }

    pub(crate) fn error(
        &self,
        kind: ErrorKind,
        operation: &'static str,
        message: impl Into<String>,
    ) -> Error {
        Error::new(kind, operation, message)
            .on_key(self.name())
            .on_backend(self.session.backend.scheme())
    }

    pub(crate) fn named<T>(&self, outcome: Result<T>) -> Result<T> {
        outcome.map_err(|error| error.on_key(self.name()).on_backend(self.session.backend.scheme()))
    }
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Queue").field(&self.key).finish()
    }
}

/// Reads the queue, and tries again for as long as a caller may be kept waiting.
pub(in crate::recipe) async fn look(
    session: &Session,
    operation: &'static str,
    key: &QueueKey,
    sight: Sight,
) -> Result<Listing> {
    let read = session.retry_briefly(operation, || session.read(key, sight)).await;
    // A read has no effect, whether its answer came or not.
    read.map(|(listing, _)| listing).map_err(|error| error.with_effect(Effect::None))
}

/// The error if our write may have been carried out, and its value replaced by another write.
pub(crate) fn in_doubt(operation: &'static str) -> Error {
    let message = "the answer was lost, and the value was changed since";
    Error::new(ErrorKind::Unavailable, operation, message).with_effect(Effect::Unknown)
}

/// A timer that is stopped when it is dropped.
struct Timer(tokio::task::JoinHandle<()>, Process);

impl Drop for Timer {
    fn drop(&mut self) {
        if self.1.is_this() {
            self.0.abort();
        }
    }
}
