//! Notifications: one watch stream for everything that is waited for.
//!
//! A stream per waiter would work and cost the server a goroutine and the connection a stream each. On
//! one stream a waiter is two small messages, and none at all where the key is watched already: see
//! [`hub`](crate::backend::server::hub).

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{
    Error as EtcdError, KeyValue, WatchFilterType, WatchOptions, WatchRequestSender, WatchResponse,
    WatchResponseStream,
};
use tokio::sync::{OnceCell, mpsc, watch};
use tokio::time::Instant;

use super::client::{Connections, LONGEST_ANSWER};
use super::txn::revision_in;
use crate::backend::server::hub::{Hub, SWEEP};
use crate::backend::server::in_time;

/// How long a stream that failed is left alone.
pub(super) const PAUSE: Duration = Duration::from_millis(50);
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
    hub: Arc<Hub<Subject, Seen>>,
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

    /// Watches `key`: from now on, or earlier if it is watched already.
    ///
    /// `None`: there is no stream any more.
    pub(super) async fn watch(&self, key: &str, scope: Scope) -> Option<Watch> {
        let subject = Subject { key: key.to_owned(), scope };
        let asked = self.asked.get_or_init(async || {
            let (ask, asked) = mpsc::unbounded_channel();
            let (connections, hub) = (Arc::clone(&self.connections), Arc::clone(&self.hub));
            let stream = Stream { connections, hub, asked, watched: HashMap::new(), last_id: 0 };
            tokio::spawn(stream.run());
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
}

impl Watch {
    /// The revision from which on the watch tells everything; `None`: it broke.
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
    hub: Arc<Hub<Subject, Seen>>,
    asked: mpsc::UnboundedReceiver<Subject>,
    /// By its id on the stream.
    watched: HashMap<i64, Subject>,
    last_id: i64,
}

impl Stream {
    async fn run(mut self) {
        while let Some(subject) = self.asked.recv().await {
            let Some((key, options)) = self.add(subject) else { continue };
            self.serve(key, options).await;
            // Whoever was watching is told, and looks again by itself (`R2`).
            self.watched.clear();
            self.hub.end_all();
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Opens a stream with its first watch and serves it while it works.
    async fn serve(&mut self, key: String, options: WatchOptions) {
        let opening = async {
            let (client, epoch) = self.connections.reach_for("watch").await?;
            // Several changes of a large value may come in one message.
            let mut watch = client.watch_client().max_decoding_message_size(LONGEST_ANSWER);
            let opening = watch.watch(key, Some(options));
            Ok((self.connections.on_epoch("watch", epoch, opening).await?, epoch))
        };
        let longest = 2 * self.connections.patience;
        let (stream, epoch) = match in_time(longest, opening).await {
            Ok(opened) => opened,
            Err(error) => return tracing::debug!(%error, "no watch stream"),
        };
        let (mut sender, mut answers) = stream.split();
        let mut epochs = self.connections.epochs();
        let mut sweep = tokio::time::interval_at(Instant::now() + SWEEP, SWEEP);
        while *epochs.borrow_and_update() == epoch {
            let sent = tokio::select! {
                answer = next_answer(&mut answers) => match answer {
                    Some(answer) => {
                        self.tell(&answer);
                        Ok(())
                    }
                    None => return self.connections.rotation.give_up(epoch),
                },
                subject = self.asked.recv() => match subject.map(|subject| self.add(subject)) {
                    Some(Some((key, options))) => sender.watch(key, Some(options)).await,
                    Some(None) => Ok(()),
                    // Nobody will watch any more.
                    None => return,
                },
                _ = sweep.tick() => self.sweep(&mut sender).await,
                _ = epochs.changed() => Ok(()),
            };
            if sent.is_err() {
                break;
            }
        }
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
        Some((key, options))
    }

    async fn sweep(&mut self, sender: &mut WatchRequestSender) -> Result<(), EtcdError> {
        let swept = self.hub.sweep();
        let over: Vec<_> = self.watched.extract_if(|_, subject| swept.contains(subject)).collect();
        for (id, _) in over {
            sender.cancel(id).await?;
        }
        Ok(())
    }

    fn tell(&mut self, answer: &WatchResponse) {
        let id = answer.watch_id();
        let Some(subject) = self.watched.get(&id) else { return };
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
            // Its revision was compacted, or the server would not have it: look at the key itself.
            self.hub.end(subject);
            self.watched.remove(&id);
        }
    }
}

async fn next_answer(answers: &mut WatchResponseStream) -> Option<WatchResponse> {
    let answer = answers.message().await;
    answer.inspect_err(|error| tracing::debug!(%error, "the watch stream broke")).ok()?
}
