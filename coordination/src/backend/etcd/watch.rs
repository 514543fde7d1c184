//! Notifications: one watch stream for everything that is waited for.
//!
//! A stream per waiter would work and cost the server a goroutine and the connection a stream each. On
//! one stream a waiter is two small messages, and none at all where the key is watched already: a watch
//! stays for a moment after its last waiter has gone, since processes that take turns wait for the same
//! keys again and again.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use etcd_client::{
    Error as EtcdError, EventType, GetOptions, KeyValue, ResponseHeader, WatchFilterType,
    WatchOptions, WatchRequestSender, WatchResponse, WatchResponseStream,
};
use tokio::sync::{OnceCell, mpsc, oneshot, watch};
use tokio::time::Instant;

use super::client::Connections;
use super::entry::{blocker_of, revision_of, seq_of};
use super::{Etcd, LONGEST_ANSWER, revision_in};
use crate::backend::{EntryRef, Mode, Watching};
use crate::error::{Error, ErrorKind, Result};
use crate::key::QueueKey;

/// How long a stream that failed is left alone.
pub(super) const PAUSE: Duration = Duration::from_millis(50);
/// How long a watch stays without a waiter, at least; twice that at most.
const LINGER: Duration = Duration::from_secs(1);

/// What a watch tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    // Started with the first watch, on the session's runtime.
    requests: OnceCell<mpsc::UnboundedSender<Request>>,
}

/// Somebody wants to watch a key.
struct Request {
    key: String,
    scope: Scope,
    /// A revision to replay from; such a watch is shared with nobody.
    from: Option<i64>,
    answer: oneshot::Sender<watch::Receiver<Seen>>,
}

/// What a watch has told so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Seen {
    /// The revision from which on it tells everything; `None`: the server has not answered yet.
    since: Option<i64>,
    /// The revision of the last deletion told.
    deleted: i64,
    /// The revision of the last change told, whatever it was.
    changed: i64,
}

/// One waiter's view of a key.
pub(super) struct Watch(watch::Receiver<Seen>);

impl Watches {
    pub(super) fn new(connections: Arc<Connections>) -> Self {
        Self { connections, requests: OnceCell::new() }
    }

    /// Watches `key`: from now on, or earlier if it is watched already.
    ///
    /// `None`: there is no stream any more.
    pub(super) async fn watch(&self, key: &str, scope: Scope) -> Option<Watch> {
        self.ask(key, scope, None).await
    }

    /// Tells what happened from a revision of the past on.
    ///
    /// That costs the server a scan, which it does every 100 ms only: so it is for re-checks, and a
    /// waiter in a hurry watches from now on, and then reads.
    pub(super) async fn replay(&self, key: &str, scope: Scope, from: i64) -> Option<Watch> {
        self.ask(key, scope, Some(from)).await
    }

    async fn ask(&self, key: &str, scope: Scope, from: Option<i64>) -> Option<Watch> {
        let requests = self.requests.get_or_init(async || {
            let (requests, asked) = mpsc::unbounded_channel();
            let connections = Arc::clone(&self.connections);
            tokio::spawn(Hub { connections, asked, watches: HashMap::new(), last_id: 0 }.run());
            requests
        });
        let (answer, answered) = oneshot::channel();
        requests.await.send(Request { key: key.to_owned(), scope, from, answer }).ok()?;
        answered.await.ok().map(Watch)
    }
}

impl Watch {
    /// The revision from which on the watch tells everything; `None`: it broke.
    pub(super) async fn since(&mut self) -> Option<i64> {
        self.0.wait_for(|seen| seen.since.is_some()).await.ok()?.since
    }

    /// Resolves when the key was deleted after this revision; `None`: the watch broke, and whoever
    /// wants to know looks at the key itself.
    pub(super) async fn deleted_after(&mut self, revision: i64) -> Option<()> {
        self.0.wait_for(|seen| seen.deleted > revision).await.ok().map(drop)
    }

    /// The revision of the last change told; 0: of none yet.
    pub(super) fn changed(&self) -> i64 {
        self.0.borrow().changed
    }

    /// Resolves when something was told that happened after this revision; `None`: the watch broke.
    pub(super) async fn changed_after(&mut self, revision: i64) -> Option<()> {
        self.0.wait_for(|seen| seen.changed > revision).await.ok().map(drop)
    }
}

/// The task that owns the stream.
struct Hub {
    connections: Arc<Connections>,
    asked: mpsc::UnboundedReceiver<Request>,
    watches: HashMap<i64, Watched>,
    last_id: i64,
}

struct Watched {
    /// Empty where it is not to be shared.
    key: String,
    scope: Scope,
    seen: watch::Sender<Seen>,
    /// Had no waiter when it was last looked after.
    is_idle: bool,
}

/// Why a stream is not used any longer.
enum End {
    /// It failed, or its connection was given up.
    Broken,
    /// Nobody will watch any more.
    Unused,
}

impl Hub {
    async fn run(mut self) {
        while let Some(request) = self.asked.recv().await {
            let first = self.add(request);
            let end = match first {
                Some((key, options)) => self.stream(key, options).await,
                None => continue,
            };
            // `R2`: whoever was watching is told, and looks again by itself.
            self.watches.clear();
            match end {
                End::Broken => tokio::time::sleep(PAUSE).await,
                End::Unused => return,
            }
        }
    }

    /// Opens a stream with its first watch and serves it while it works.
    async fn stream(&mut self, key: String, options: WatchOptions) -> End {
        let mut epochs = self.connections.epochs();
        let epoch = *epochs.borrow_and_update();
        let opening = async {
            let (client, _) = self.connections.client().await?;
            // Several changes of a large value may come in one message.
            let mut watch = client.watch_client().max_decoding_message_size(LONGEST_ANSWER);
            watch.watch(key, Some(options)).await
        };
        let (mut sender, mut answers) = tokio::select! {
            opened = opening => match opened {
                Ok(stream) => stream.split(),
                Err(error) => {
                    tracing::debug!(%error, "no watch stream");
                    return End::Broken;
                }
            },
            _ = epochs.changed() => return End::Broken,
        };
        let mut sweep = tokio::time::interval_at(Instant::now() + LINGER, LINGER);
        loop {
            let sent = tokio::select! {
                answer = next_answer(&mut answers) => match answer {
                    Some(answer) => {
                        self.tell(&answer);
                        Ok(())
                    }
                    None => {
                        self.connections.give_up(epoch);
                        return End::Broken;
                    }
                },
                request = self.asked.recv() => match request.map(|request| self.add(request)) {
                    Some(Some((key, options))) => sender.watch(key, Some(options)).await,
                    Some(None) => Ok(()),
                    None => return End::Unused,
                },
                _ = sweep.tick(), if !self.watches.is_empty() => self.sweep(&mut sender).await,
                _ = epochs.changed() => return End::Broken,
            };
            if sent.is_err() {
                return End::Broken;
            }
        }
    }

    /// Takes a waiter in; answers what to ask of the server, if its key is not watched yet.
    fn add(&mut self, request: Request) -> Option<(String, WatchOptions)> {
        let Request { key, scope, from, answer } = request;
        let is_same = |watched: &&mut Watched| watched.key == key && watched.scope == scope;
        if let Some(watched) = self.watches.values_mut().find(is_same).filter(|_| from.is_none()) {
            watched.is_idle = false;
            // A waiter that is gone needs no answer.
            let _ = answer.send(watched.seen.subscribe());
            return None;
        }
        self.last_id += 1;
        let (seen, receiver) = watch::channel(Seen::default());
        let _ = answer.send(receiver);
        let name = if from.is_none() { key.clone() } else { String::new() };
        self.watches.insert(self.last_id, Watched { key: name, scope, seen, is_idle: false });
        let options = WatchOptions::new().with_watch_id(self.last_id);
        let options = match scope {
            Scope::Deletion => options.with_filters([WatchFilterType::NoPut]),
            Scope::Key => options,
            Scope::Prefix => options.with_prefix(),
        };
        Some((key, from.map_or(options.clone(), |from| options.with_start_revision(from))))
    }

    /// Ends the watches that had no waiter this time and the last.
    async fn sweep(&mut self, sender: &mut WatchRequestSender) -> Result<(), EtcdError> {
        let mut over = Vec::new();
        for (id, watched) in &mut self.watches {
            let is_idle = watched.seen.receiver_count() == 0;
            if is_idle && watched.is_idle {
                over.push(*id);
            }
            watched.is_idle = is_idle;
        }
        for id in over {
            self.watches.remove(&id);
            sender.cancel(id).await?;
        }
        Ok(())
    }

    fn tell(&mut self, answer: &WatchResponse) {
        let id = answer.watch_id();
        let Some(watched) = self.watches.get(&id) else { return };
        let (mut deleted, mut changed) = (0, 0);
        for event in answer.events() {
            let revision = event.kv().map_or(0, KeyValue::mod_revision);
            changed = changed.max(revision);
            if event.event_type() == EventType::Delete {
                deleted = deleted.max(revision);
            }
        }
        let now = answer.header().map_or(0, ResponseHeader::revision);
        watched.seen.send_if_modified(|seen| {
            let before = *seen;
            if answer.created() {
                seen.since = Some(now);
            }
            seen.deleted = seen.deleted.max(deleted);
            seen.changed = seen.changed.max(changed);
            *seen != before
        });
        if answer.canceled() {
            // Its revision was compacted, or the server would not have it: look at the key itself.
            self.watches.remove(&id);
        }
    }
}

async fn next_answer(answers: &mut WatchResponseStream) -> Option<WatchResponse> {
    let answer = answers.message().await;
    answer.inspect_err(|error| tracing::debug!(%error, "the watch stream broke")).ok()?
}

#[async_trait]
impl Watching for Etcd {
    async fn gone(
        &self,
        entry: &EntryRef,
        seq: u64,
        waiter: Mode,
        recheck: Duration,
    ) -> Result<()> {
        let key = self.key(entry);
        let created = revision_of(seq);
        // Puts tell of updates only, and those free nobody but shared waiters.
        let scope = if waiter == Mode::Shared { Scope::Key } else { Scope::Deletion };
        let mut broke = false;
        loop {
            let mut watch = self.watches.watch(&key, scope).await.ok_or_else(closing)?;
            // While there is no stream the hub paces the next try.
            let Some(since) = watch.since().await else { continue };
            // A watch that is older than the entry has missed nothing of it.
            let mut known = created;
            if broke || since >= created || scope == Scope::Key && watch.changed() > created {
                match self.look(entry, seq, waiter).await? {
                    Some(revision) => known = revision,
                    None => return Ok(()),
                }
            }
            broke = true;
            loop {
                let told = async {
                    match scope {
                        Scope::Deletion => watch.deleted_after(created).await,
                        _ => watch.changed_after(known).await,
                    }
                };
                match tokio::time::timeout(recheck, told).await {
                    Ok(Some(())) => return Ok(()),
                    Ok(None) => break,
                    // Tells what was missed since we knew, if anything was.
                    Err(_) => match self.watches.replay(&key, scope, known + 1).await {
                        Some(replay) => watch = replay,
                        None => break,
                    },
                }
            }
        }
    }

    async fn changed(&self, queue: &QueueKey, listing: u64, recheck: Duration) -> Result<()> {
        let keys = self.keys(queue);
        let moved = async {
            let (mut watch, since) = loop {
                let watch = self.watches.watch(keys.prefix(), Scope::Prefix).await;
                let mut watch = watch.ok_or_else(closing)?;
                match watch.since().await {
                    Some(since) => break (watch, since),
                    None => tokio::time::sleep(PAUSE).await,
                }
            };
            // Otherwise something was missed, or may have been: the caller reads again, and by
            // then the watch is there.
            if let Some(store) = self.reads.store_revision(queue, listing)
                && store >= since
                && watch.changed_after(store).await.is_none()
            {
                // A stream that breaks again and again must not make its users read as often.
                tokio::time::sleep(PAUSE).await;
            }
            Ok(())
        };
        tokio::time::timeout(recheck, moved).await.unwrap_or(Ok(()))
    }
}

impl Etcd {
    /// As of which revision the entry blocks the waiter; `None`: it does not.
    async fn look(&self, entry: &EntryRef, seq: u64, waiter: Mode) -> Result<Option<i64>> {
        let mut options = GetOptions::new();
        if waiter == Mode::Exclusive {
            options = options.with_keys_only();
        }
        let key = self.key(entry);
        let look = tokio::time::timeout(self.patience, self.get("watch", &key, options)).await;
        let found = look.unwrap_or_else(|_| {
            Err(Error::new(ErrorKind::Unavailable, "watch", "no answer in time"))
        })?;
        let kv = found.kvs().first().filter(|kv| seq_of(kv) == seq);
        let blocker = kv.map(|kv| blocker_of(kv, &self.keys(&entry.queue), waiter)).transpose()?;
        Ok(blocker.flatten().map(|_| revision_in(found.header())))
    }
}

fn closing() -> Error {
    Error::new(ErrorKind::Unavailable, "watch", "the backend is closing")
}
