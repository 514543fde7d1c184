//! Notifications: one watch stream for everything that is waited for.
//!
//! A stream per waiter would work and cost the server a goroutine and the connection a stream each. On
//! one stream a waiter is two small messages.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use etcd_client::{
    EventType, WatchFilterType, WatchOptions, WatchRequestSender, WatchResponse,
    WatchResponseStream,
};
use tokio::sync::{OnceCell, mpsc};

use super::client::Connections;

/// How long a stream that failed is left alone.
const PAUSE: Duration = Duration::from_millis(50);

/// What a watch tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// The server watches from now on: what happens after this is told.
    Watching,
    /// The key was deleted.
    Deleted,
}

/// All watches of this backend.
pub(super) struct Watches {
    connections: Arc<Connections>,
    // Started with the first watch, on the session's runtime.
    requests: OnceCell<mpsc::UnboundedSender<Request>>,
    last_id: AtomicI64,
}

enum Request {
    Add { id: i64, key: Vec<u8>, from: Option<i64>, seen: mpsc::UnboundedSender<Seen> },
    Remove { id: i64 },
}

/// One watch on one key; dropping it ends it.
pub(super) struct Watch {
    id: i64,
    requests: mpsc::UnboundedSender<Request>,
    seen: mpsc::UnboundedReceiver<Seen>,
}

impl Watches {
    pub(super) fn new(connections: Arc<Connections>) -> Self {
        Self { connections, requests: OnceCell::new(), last_id: AtomicI64::new(0) }
    }

    /// Watches `key` for its deletion: from now on, or from a revision of the past.
    ///
    /// From the past costs the server a scan that it does every 100 ms only, so it is for
    /// re-checks; a waiter in a hurry watches from now on, and then reads.
    pub(super) async fn watch(&self, key: &str, from: Option<i64>) -> Watch {
        let requests = self.requests.get_or_init(async || {
            let (requests, asked) = mpsc::unbounded_channel();
            let connections = Arc::clone(&self.connections);
            tokio::spawn(Hub { connections, asked, watches: HashMap::new() }.run());
            requests
        });
        let requests = requests.await.clone();
        let id = self.last_id.fetch_add(1, Ordering::Relaxed) + 1;
        let (sender, seen) = mpsc::unbounded_channel();
        // If the hub is gone the sender is dropped with the request, and the watch is over at once.
        let _ = requests.send(Request::Add { id, key: key.into(), from, seen: sender });
        Watch { id, requests, seen }
    }
}

impl Watch {
    /// The next thing seen; `None`: the watch is over without having seen the end of the key, and
    /// whoever wants to know looks at the key itself.
    pub(super) async fn next(&mut self) -> Option<Seen> {
        self.seen.recv().await
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = self.requests.send(Request::Remove { id: self.id });
    }
}

/// The task that owns the stream.
struct Hub {
    connections: Arc<Connections>,
    asked: mpsc::UnboundedReceiver<Request>,
    watches: HashMap<i64, mpsc::UnboundedSender<Seen>>,
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
            let Request::Add { id, key, from, seen } = request else { continue };
            self.watches.insert(id, seen);
            let end = self.stream(options(id, from), key).await;
            // Contract R2: whoever was watching looks again by itself.
            self.watches.clear();
            match end {
                End::Broken => tokio::time::sleep(PAUSE).await,
                End::Unused => return,
            }
        }
    }

    /// Opens a stream with its first watch and serves it while it works.
    async fn stream(&mut self, options: WatchOptions, key: Vec<u8>) -> End {
        let mut epochs = self.connections.epochs();
        let epoch = *epochs.borrow_and_update();
        let opening = async {
            let (mut client, _) = self.connections.client().await?;
            client.watch(key, Some(options)).await
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
        loop {
            tokio::select! {
                answer = answers_or_end(&mut answers) => match answer {
                    Some(answer) => self.tell(&answer),
                    None => {
                        self.connections.give_up(epoch);
                        return End::Broken;
                    }
                },
                request = self.asked.recv() => match request {
                    Some(request) => if self.ask(&mut sender, request).await.is_err() {
                        return End::Broken;
                    },
                    None => return End::Unused,
                },
                _ = epochs.changed() => return End::Broken,
            }
        }
    }

    async fn ask(
        &mut self,
        sender: &mut WatchRequestSender,
        request: Request,
    ) -> Result<(), etcd_client::Error> {
        match request {
            Request::Add { id, key, from, seen } => {
                self.watches.insert(id, seen);
                sender.watch(key, Some(options(id, from))).await
            }
            // A watch that was cancelled by the server needs no cancelling.
            Request::Remove { id } => match self.watches.remove(&id) {
                Some(_) => sender.cancel(id).await,
                None => Ok(()),
            },
        }
    }

    fn tell(&mut self, answer: &WatchResponse) {
        let id = answer.watch_id();
        let Some(seen) = self.watches.get(&id) else { return };
        // A receiver that is gone has asked for its removal.
        if answer.created() {
            let _ = seen.send(Seen::Watching);
        }
        if answer.events().iter().any(|event| event.event_type() == EventType::Delete) {
            let _ = seen.send(Seen::Deleted);
        }
        if answer.canceled() {
            // Its revision was compacted, or the server would not have it: look at the key itself.
            self.watches.remove(&id);
        }
    }
}

async fn answers_or_end(answers: &mut WatchResponseStream) -> Option<WatchResponse> {
    answers
        .message()
        .await
        .inspect_err(|error| tracing::debug!(%error, "the watch stream broke"))
        .ok()?
}

fn options(id: i64, from: Option<i64>) -> WatchOptions {
    let options = WatchOptions::new().with_watch_id(id).with_filters([WatchFilterType::NoPut]);
    match from {
        Some(revision) => options.with_start_revision(revision),
        None => options,
    }
}
