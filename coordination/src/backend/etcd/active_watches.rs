//! The watches at the server: all of them on one stream.
//!
//! If each waiter had a stream of its own, each would cost the server a goroutine, and the connection an HTTP/2 stream. On a shared
//! stream a waiter costs two small messages, or none if the key is watched already: see
//! [`shared_watches`](crate::backend::server::shared_watches).

use std::collections::HashMap;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{
    Error as EtcdError, KeyValue, WatchFilterType, WatchOptions, WatchRequestSender, WatchResponse,
    WatchResponseStream,
};
use tokio::sync::{OnceCell, mpsc, watch};
use tokio::time::{Instant, sleep_until, timeout};

use super::client::{Connections, LONGEST_ANSWER};
use super::txn::revision_in;
use crate::backend::server::in_time;
use crate::backend::server::shared_watches::{SWEEP, SharedWatches};
use crate::panics::{caught, on_purpose};
use crate::retry::DecorrelatedJitter;

/// The pause after a stream broke, before the next one is opened.
pub(super) const PAUSE: Duration = Duration::from_millis(50);
/// The longest pause before the next stream is opened, if the server has refused several streams one after the other.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// The ids that we give to watches begin above this number. A server that numbers watches itself never reaches so high a number. So
/// if an answer has the id that we gave to the watch, the server keeps our ids.
const FIRST_ID: i64 = 1 << 40;

/// Which changes a watch reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Scope {
    /// Only deletions of a key. Most changes of a key are puts, for which the server then sends no message.
    Deletion,
    /// Whatever happens to a key.
    Key,
    /// Whatever happens to the keys that begin with `key`.
    Prefix,
}

/// All watches of this backend, and the task that owns the stream for them.
pub(super) struct Watches {
    connections: Arc<Connections>,
    hub: Arc<SharedWatches<Subject, Seen>>,
    // Sends the subjects that are to be watched to the task that owns the stream. The task is started with the first watch, on
    // the session's runtime.
    asked: OnceCell<mpsc::UnboundedSender<Subject>>,
}

/// What a waiter wants to be watched.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Subject {
    key: String,
    scope: Scope,
}

/// What a watch has reported so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Seen {
    /// The watch reports all changes from this revision on; 0: the server did not say from which. `None`: the server has not
    /// answered yet.
    since: Option<i64>,
    /// The revision of the last change that the watch reported.
    changed: i64,
}

/// One waiter's subscription to a watch.
pub(super) struct Watch(watch::Receiver<Seen>);

impl Watches {
    pub(super) fn new(connections: Arc<Connections>) -> Self {
        Self { connections, hub: Arc::default(), asked: OnceCell::new() }
    }

    /// Subscribes to `key`. A key that is watched already is not watched again: the older watch is shared.
    ///
    /// `None`: the task that owns the stream has ended.
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

    /// For a watch that the server has confirmed without naming a revision: notes that the watch reports all changes from
    /// `revision` on. Does nothing for any other watch.
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
    /// The revision from which on the watch reports all changes; 0: the server did not say. `None`: the watch broke.
    pub(super) async fn since(&mut self) -> Option<i64> {
        self.0.wait_for(|seen| seen.since.is_some()).await.ok()?.since
    }

    /// The revision of the last change that the watch reported; 0: there was none yet.
    pub(super) fn changed(&self) -> i64 {
        self.0.borrow().changed
    }

    /// Resolves when the watch has reported a change after this revision. `None`: the watch broke, and the caller has to read the
    /// key itself.
    pub(super) async fn changed_after(&mut self, revision: i64) -> Option<()> {
        self.0.wait_for(|seen| seen.changed > revision).await.ok().map(drop)
    }
}

/// The state of the task that owns the stream, on which all watches are.
struct Stream {
    connections: Arc<Connections>,
    hub: Arc<SharedWatches<Subject, Seen>>,
    asked: mpsc::UnboundedReceiver<Subject>,
    /// The watches on the stream, by their ids.
    watched: HashMap<i64, Subject>,
    last_id: i64,
    /// Whether the server keeps the ids that we give to watches. A `grpc-proxy` numbers watches itself, and its answer does not say
    /// to which request it belongs. So as long as this is false, the request for a watch is sent only after the request before it
    /// was answered, as in etcd's own client.
    takes_ids: bool,
    /// The watch that was asked for and not answered yet.
    asking: Option<Asking>,
    /// The pauses before the next stream, after the server has refused a watch.
    refused: DecorrelatedJitter,
}

/// A watch that was asked for.
#[derive(Clone, Copy, Debug)]
struct Asking {
    /// Our id of the watch. Its answer may come under another id.
    id: i64,
    since: Instant,
}

/// The pauses before the next stream after a refusal. They grow with each refusal.
fn pauses() -> DecorrelatedJitter {
    DecorrelatedJitter::new(PAUSE, LONGEST_PAUSE)
}

/// Why a stream has ended: the connection broke, or the server refused a watch. After refusals the pause before the next stream
/// grows.
enum Ended {
    Broken,
    Refused,
}

/// What to send on the stream.
enum Request {
    Nothing,
    Watch(String, WatchOptions),
    /// Ends the watches with these ids.
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

/// What the task has to do after an answer.
enum Told {
    Nothing,
    /// Nobody waits any longer for the watch with this id, so it is to be ended at the server.
    Cancel(i64),
    /// The server refuses a watch. The task ends the stream, because some versions of the server no longer read from it after a
    /// refusal.
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
            self.end_all();
            let pause = match ended {
                Ended::Refused => self.refused.next_delay(),
                Ended::Broken => PAUSE,
            };
            tokio::time::sleep(pause).await;
        }
    }

    /// Ends all watches, also those that were not asked for at the server yet. The receivers of all waiters fail, and the waiters read
    /// their keys themselves (`R2`).
    fn end_all(&mut self) {
        self.watched.clear();
        // Whoever still waits asks anew. If what was asked for before stayed here, it would pile up where streams break again and
        // again before a watch is answered. It is dropped before the waiters are woken: what they ask for then has to stay.
        while self.asked.try_recv().is_ok() {}
        self.hub.end_all();
    }

    /// Opens a stream whose first watch is that of `key`, and serves all watches on the stream until it ends.
    async fn serve(&mut self, key: String, options: WatchOptions) -> Ended {
        let opening = async {
            let (connected, epoch) = self.connections.reach_for("watch").await?;
            let token = connected.token();
            // The limit for an answer's size is raised, because one message may hold several changes of a large value.
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
        // The time until the first answer counts from now: before the first watch could be sent, a connection may have been made.
        self.asking.iter_mut().for_each(|asking| asking.since = Instant::now());
        let (mut sender, mut answers) = stream.split();
        let mut epochs = self.connections.epochs();
        let mut sweep = tokio::time::interval_at(Instant::now() + SWEEP, SWEEP);
        while *epochs.borrow_and_update() == epoch {
            let awaited = self.awaited();
            let request = tokio::select! {
                answer = next_answer(&mut answers) => match answer.map(|answer| self.tell(&answer)) {
                    Some(Told::Nothing) => Request::Nothing,
                    Some(Told::Cancel(id)) => Request::Cancel(vec![id]),
                    Some(Told::Refused) => {
                        // The server checks each watch with the token with which the stream was opened. The refusal may be due to
                        // an old token, so a new one is asked for before the next stream.
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
                subject = self.asked.recv(), if awaited.is_none() => {
                    match subject.map(|subject| self.add(subject)) {
                        Some(Some((key, options))) => Request::Watch(key, options),
                        Some(None) => Request::Nothing,
                        // The backend was dropped, so no watch will be asked for any more.
                        None => return Ended::Broken,
                    }
                }
                // Until the answer comes, no other watch is sent. So without this limit, a watch that the server never answers
                // would keep all later ones waiting for ever.
                () = unanswered(awaited, longest) => {
                    tracing::debug!("a watch is not answered");
                    return Ended::Broken;
                }
                _ = sweep.tick() => Request::Cancel(self.sweep()),
                _ = epochs.changed() => Request::Nothing,
            };
            // If the server has stopped reading, the connection's buffers fill up, and sending would wait for ever. So sending
            // has a time limit, and also ends when the connection is given up.
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

    /// The request to watch this subject; `None`: the subject is watched already, or nobody waits for it any longer.
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
        self.asking = Some(Asking { id: self.last_id, since: Instant::now() });
        Some((key, options))
    }

    /// The watch whose answer has to come before another one may be asked for.
    fn awaited(&self) -> Option<Asking> {
        self.asking.filter(|_| !self.takes_ids)
    }

    /// Ends the watches that have had no waiter for a while (`LINGER` in `shared_watches.rs`), and returns their ids on the
    /// stream.
    fn sweep(&mut self) -> Vec<i64> {
        let swept = self.hub.sweep();
        let over = self.watched.extract_if(|_, subject| swept.contains(subject));
        over.map(|(id, _)| id).collect()
    }

    fn tell(&mut self, answer: &WatchResponse) -> Told {
        let id = answer.watch_id();
        // If the server says that a watch is cancelled, it has refused the watch, with two exceptions. First, this may be the
        // answer to our own `cancel`: then the watch is not in `watched` any more. Second, the watch may have missed changes
        // because etcd has compacted its history: then the answer has a `compact_revision`.
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
            self.takes_ids = id == asked.id;
            match self.watched.remove(&asked.id) {
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
            // etcd has compacted its history, so the watch has missed changes. Now the receivers of its waiters fail, and the
            // waiters read the key.
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

/// Resolves when this watch was not answered for `longest`; never if there is none.
async fn unanswered(asking: Option<Asking>, longest: Duration) {
    match asking {
        Some(asking) => sleep_until(asking.since + longest).await,
        None => pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config as Options;
    use crate::backend::etcd::client::Endpoints;
    use crate::backend::etcd::config::Config;
    use crate::config::Settings;
    use crate::error::Result;
    use crate::url::Url;

    /// If streams end again and again before a watch is answered, each time all waiters ask anew.
    #[tokio::test]
    async fn what_was_asked_for_ends_with_the_stream() -> Result<()> {
        let mut url = Url::parse_by_scheme("etcd://127.0.0.1:1")?;
        let config = Config::parse(&mut url)?;
        let settings = Settings::resolve(Options::default(), &mut url, None)?;
        let endpoints = Endpoints::new(&config, &settings);
        let connections = Arc::new(Connections::new(endpoints, &settings, settings.heartbeat));
        let hub = Arc::<SharedWatches<Subject, Seen>>::default();
        let (ask, asked) = mpsc::unbounded_channel();
        let mut stream = Stream::new(connections, Arc::clone(&hub), asked);
        let wait = |number: usize| {
            let subject = Subject { key: format!("ns/lock/{number}"), scope: Scope::Deletion };
            let (seen, is_new) = hub.join(&subject);
            assert!(is_new, "it is not watched");
            ask.send(subject).expect("the stream is there");
            seen
        };
        let waiting: Vec<_> = (0..100).map(&wait).collect();
        let first = stream.asked.recv().await.expect("it was asked for");
        assert!(stream.add(first).is_some());
        stream.end_all();
        assert_eq!((stream.asked.len(), stream.watched.len()), (0, 0));
        assert!(waiting.iter().all(|seen| seen.has_changed().is_err()), "they read");
        let _again = wait(7);
        assert_eq!(stream.asked.len(), 1, "somebody waits for it");
        Ok(())
    }
}
