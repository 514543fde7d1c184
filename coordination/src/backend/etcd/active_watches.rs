//! Notifications: one watch stream for everything that is waited for.
//!
//! A stream per waiter would work and cost the server a goroutine and the connection a stream each. On
//! one stream a waiter is two small messages, and none at all where the key is watched already: see
//! [`hub`](crate::backend::server::shared_watches).

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{
    Error as EtcdError, KeyValue, WatchFilterType, WatchOptions, WatchRequestSender, WatchResponse,
    WatchResponseStream,
};
use tokio::sync::{OnceCell, mpsc, watch};
use tokio::time::{Instant, timeout};

use super::client::{Connections, LONGEST_ANSWER};
use super::txn::revision_in;
use crate::backend::server::in_time;
use crate::backend::server::shared_watches::{SWEEP, SharedWatches};
use crate::panics::{caught, on_purpose};
use crate::retry::DecorrelatedJitter;

/// How long a stream that failed is left alone.
pub(super) const PAUSE: Duration = Duration::from_millis(50);
/// The same of one that is refused again and again, at most.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// The first id that we give to a watch: no server that numbers watches by itself comes so far.
const FIRST_ID: i64 = 1 << 40;

/// What a watch tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Scope {
    /// Deletions of a key: no message for a put, which is most that happens to a key.
    Deletion,
    /// Whatever happens to a key.
    Key,
    /// Whatever happens to the keys that begin with it.
    Prefix,
}

/// All watches of this backend.
pub(super) struct Watches {
    connections: Arc<Connections>,
    hub: Arc<SharedWatches<Subject, Seen>>,
    // Started with the first watch, on the session's runtime.
    asked: OnceCell<mpsc::UnboundedSender<Subject>>,
}

/// What is watched.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Subject {
    key: String,
    scope: Scope,
}

/// What a watch has told so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Seen {
    /// The revision from which on it tells everything; `None`: the server has not answered yet.
    since: Option<i64>,
    /// The revision of the last change told.
    changed: i64,
}

/// One waiter's view of a key.
pub(super) struct Watch(watch::Receiver<Seen>);

impl Watches {
    pub(super) fn new(connections: Arc<Connections>) -> Self {
        Self { connections, hub: Arc::default(), asked: OnceCell::new() }
    }

    /// Subscribes to `key`. A key that is watched already is not watched again: the older watch is shared.
    ///
    /// `None`: there is no stream any more.
    pub(super) async fn watch(&self, key: &str, scope: Scope) -> Option<Watch> {
        let subject = Subject { key: key.to_owned(), scope };
        let asked = self.asked.get_or_init(async || {
            let (ask, asked) = mpsc::unbounded_channel();
            let (connections, hub) = (Arc::clone(&self.connections), Arc::clone(&self.hub));
            tokio::spawn(Stream::new(connections, hub, asked).run());
            ask
        });
        let asked = asked.await;
        let (seen, is_new) = self.hub.join(&subject);
        if is_new && let Err(mpsc::error::SendError(subject)) = asked.send(subject) {
            self.hub.end(&subject);
            return None;
        }
        Some(Watch(seen))
    }

    /// Notes that what is watched was watched before this revision, where the server has not said since when it was.
    pub(super) fn note(&self, key: &str, scope: Scope, revision: i64) {
        let subject = Subject { key: key.to_owned(), scope };
        self.hub.tell(&subject, |seen| {
            let is_news = seen.since == Some(0);
            if is_news {
                seen.since = Some(revision);
            }
            is_news
        });
    }
}

impl Watch {
    /// The revision from which on the watch tells everything, 0 where the server did not say; `None`: it broke.
    pub(super) async fn since(&mut self) -> Option<i64> {
        self.0.wait_for(|seen| seen.since.is_some()).await.ok()?.since
    }

    /// The revision of the last change told; 0: of none yet.
    pub(super) fn changed(&self) -> i64 {
        self.0.borrow().changed
    }

    /// Resolves when something was told that happened after this revision; `None`: the watch broke, and whoever wants to
    /// know looks at the key itself.
    pub(super) async fn changed_after(&mut self, revision: i64) -> Option<()> {
        self.0.wait_for(|seen| seen.changed > revision).await.ok().map(drop)
    }
}

/// The task that owns the stream.
struct Stream {
    connections: Arc<Connections>,
    hub: Arc<SharedWatches<Subject, Seen>>,
    asked: mpsc::UnboundedReceiver<Subject>,
    /// By its id on the stream.
    watched: HashMap<i64, Subject>,
    last_id: i64,
    /// Whether the server takes the ids that we give. A `grpc-proxy` numbers watches itself: there the next one is asked for
    /// when the last one was answered, as etcd's own client does.
    takes_ids: bool,
    /// The id that we gave to the watch that was asked for and not answered, where the server may give it another.
    asking: Option<i64>,
    /// Pauses after refusals.
    refused: DecorrelatedJitter,
}

/// How long a stream is left alone that is refused again and again.
fn pauses() -> DecorrelatedJitter {
    DecorrelatedJitter::new(PAUSE, LONGEST_PAUSE)
}

/// Why a stream has ended.
enum Ended {
    Broken,
    Refused,
}

/// What to send on the stream.
enum Request {
    Nothing,
    Watch(String, WatchOptions),
    /// The watches of these ids.
    Cancel(Vec<i64>),
}

impl Request {
    async fn send(self, sender: &mut WatchRequestSender) -> Result<(), EtcdError> {
        match self {
            Self::Nothing => {}
            Self::Watch(key, options) => sender.watch(key, Some(options)).await?,
            Self::Cancel(ids) => {
                for id in ids {
                    sender.cancel(id).await?;
                }
            }
        }
        Ok(())
    }
}

/// What is to be done about an answer.
enum Told {
    Nothing,
    /// Nobody waits any longer for the watch of this id.
    Cancel(i64),
    /// The server does not let us watch. Whether it still reads the stream depends on its version.
    Refused,
}

impl Stream {
    fn new(
        connections: Arc<Connections>,
        hub: Arc<SharedWatches<Subject, Seen>>,
        asked: mpsc::UnboundedReceiver<Subject>,
    ) -> Self {
        Self {
            connections,
            hub,
            asked,
            watched: HashMap::new(),
            last_id: FIRST_ID,
            takes_ids: false,
            asking: None,
            refused: pauses(),
        }
    }

    async fn run(mut self) {
        while let Some(subject) = self.asked.recv().await {
            (self.takes_ids, self.asking) = (false, None);
            let Some((key, options)) = self.add(subject) else { continue };
            let serving = async {
                on_purpose("watching");
                self.serve(key, options).await
            };
            let ended = caught("watch", serving).await.unwrap_or(Ended::Broken);
            // Whoever was watching is told, and looks again by itself (`R2`).
            self.watched.clear();
            self.hub.end_all();
            let pause = match ended {
                Ended::Refused => self.refused.next_delay(),
                Ended::Broken => PAUSE,
            };
            tokio::time::sleep(pause).await;
        }
    }

    /// Opens a stream with its first watch and serves it while it works.
    async fn serve(&mut self, key: String, options: WatchOptions) -> Ended {
        let opening = async {
            let (connected, epoch) = self.connections.reach_for("watch").await?;
            let token = connected.token();
            // Several changes of a large value may come in one message.
            let watch = connected.client().watch_client();
            let mut watch = watch.max_decoding_message_size(LONGEST_ANSWER);
            let opening = watch.watch(key, Some(options));
            let stream = self.connections.on_epoch("watch", epoch, opening).await?;
            Ok((stream, connected, epoch, token))
        };
        let longest = 2 * self.connections.patience;
        let (stream, connected, epoch, token) = match in_time(longest, opening).await {
            Ok(opened) => opened,
            Err(error) => {
                tracing::debug!(%error, "no watch stream");
                return Ended::Broken;
            }
        };
        let (mut sender, mut answers) = stream.split();
        let mut epochs = self.connections.epochs();
        let mut sweep = tokio::time::interval_at(Instant::now() + SWEEP, SWEEP);
        while *epochs.borrow_and_update() == epoch {
            let request = tokio::select! {
                answer = next_answer(&mut answers) => match answer.map(|answer| self.tell(&answer)) {
                    Some(Told::Nothing) => Request::Nothing,
                    Some(Told::Cancel(id)) => Request::Cancel(vec![id]),
                    Some(Told::Refused) => {
                        // A stream has the token with which it was opened.
                        let asking = connected.authenticate(token);
                        let asking = self.connections.on_epoch("watch", epoch, asking);
                        if let Err(error) = in_time(longest, asking).await {
                            tracing::debug!(%error, "no new token");
                        }
                        return Ended::Refused;
                    }
                    None => {
                        self.connections.rotation.give_up(epoch);
                        return Ended::Broken;
                    }
                },
                subject = self.asked.recv(), if self.takes_ids || self.asking.is_none() => {
                    match subject.map(|subject| self.add(subject)) {
                        Some(Some((key, options))) => Request::Watch(key, options),
                        Some(None) => Request::Nothing,
                        // Nobody will watch any more.
                        None => return Ended::Broken,
                    }
                }
                _ = sweep.tick() => Request::Cancel(self.sweep()),
                _ = epochs.changed() => Request::Nothing,
            };
            // A member that has fallen silent takes no more than fits on the way to it.
            let sent = tokio::select! {
                biased;
                sent = timeout(longest, request.send(&mut sender)) => sent,
                _ = epochs.changed() => break,
            };
            match sent {
                Ok(Ok(())) => {}
                Ok(Err(_)) => break,
                Err(_) => {
                    tracing::debug!("the watch stream takes nothing");
                    self.connections.rotation.give_up(epoch);
                    break;
                }
            }
        }
        Ended::Broken
    }

    /// What to ask of the server, if it is not watched yet and somebody still waits.
    fn add(&mut self, subject: Subject) -> Option<(String, WatchOptions)> {
        if self.hub.find(&subject).is_none() || self.watched.values().any(|one| *one == subject) {
            return None;
        }
        self.last_id += 1;
        let options = WatchOptions::new().with_watch_id(self.last_id);
        let options = match subject.scope {
            Scope::Deletion => options.with_filters([WatchFilterType::NoPut]),
            Scope::Key => options,
            Scope::Prefix => options.with_prefix(),
        };
        let key = subject.key.clone();
        self.watched.insert(self.last_id, subject);
        self.asking = Some(self.last_id);
        Some((key, options))
    }

    /// Ends the watches that nobody has waited for during a moment, and answers which ids those have on the stream.
    fn sweep(&mut self) -> Vec<i64> {
        let swept = self.hub.sweep();
        let over = self.watched.extract_if(|_, subject| swept.contains(subject));
        over.map(|(id, _)| id).collect()
    }

    fn tell(&mut self, answer: &WatchResponse) -> Told {
        let id = answer.watch_id();
        // One that we cancelled is not among them, and it may have fallen behind what is compacted.
        let is_ours = answer.created() || self.watched.contains_key(&id);
        if answer.canceled() && is_ours && answer.compact_revision() == 0 {
            tracing::debug!(reason = answer.cancel_reason(), "not allowed to watch");
            return Told::Refused;
        }
        if answer.created() {
            self.refused = pauses();
        }
        if answer.created()
            && !self.takes_ids
            && let Some(asked) = self.asking.take()
        {
            self.takes_ids = id == asked;
            match self.watched.remove(&asked) {
                Some(subject) => drop(self.watched.insert(id, subject)),
                None => return Told::Cancel(id),
            }
        }
        let Some(subject) = self.watched.get(&id) else { return Told::Nothing };
        let revisions = answer.events().iter().filter_map(|event| event.kv());
        let changed = revisions.map(KeyValue::mod_revision).max().unwrap_or_default();
        let now = revision_in(answer.header());
        self.hub.tell(subject, |seen| {
            let before = *seen;
            if answer.created() {
                seen.since = Some(now);
            }
            seen.changed = seen.changed.max(changed);
            *seen != before
        });
        if answer.canceled() {
            // Its revision was compacted: look at the key itself.
            self.hub.end(subject);
            self.watched.remove(&id);
        }
        Told::Nothing
    }
}

async fn next_answer(answers: &mut WatchResponseStream) -> Option<WatchResponse> {
    let answer = answers.message().await;
    answer.inspect_err(|error| tracing::debug!(%error, "the watch stream broke")).ok()?
}
