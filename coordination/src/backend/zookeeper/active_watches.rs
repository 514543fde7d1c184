//! Notifications that a queue has changed. A watched queue has two watches: one for all of its nodes, and one for its value.
//!
//! When the last observer of a queue has gone, the watches stay for a moment, because observers come back again and again.
//! ZooKeeper's persistent watches report every change while there is a connection. When the connection ends, the watches end here
//! too: an observer then reads the queue and sets new watches. If the session has no room for a queue's watches (`watch_room.rs`),
//! an observer reads the queue again and again.

use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::time::{Instant, timeout};
use zookeeper_client::{AddWatchMode, Client, EventType, PersistentWatcher};

use super::client::Connection;
use super::watch_room::Whose;
use crate::backend::server::reads::Reads;
use crate::backend::server::shared_watches::{SWEEP, SharedWatches};
use crate::env::spawn;
use crate::error::Result;
use crate::key::QueueKey;
use crate::panics::{caught, on_purpose};

/// The queues that are watched.
#[derive(Default)]
pub(super) struct Watches {
    /// For each watched queue, a number that changes with each event of the queue.
    hub: SharedWatches<Watched, u64>,
    /// For each queue, the number that it had in `hub` before it was last read. As long as `hub` still has this number, nothing has
    /// changed since that read.
    reads: Reads<u64>,
}

/// What identifies the watches of a queue: the queue, and the id at ZooKeeper of the session that watches it.
type Watched = (i64, QueueKey);

impl Watches {
    /// The present number of the queue in `hub`. Each event of the queue changes it. `None`: the queue is not watched in this
    /// session.
    pub(super) fn told(&self, connection: &Connection, queue: &QueueKey) -> Option<u64> {
        let told = self.hub.find(&(connection.owner, queue.clone()))?;
        Some(*told.borrow())
    }

    /// Notes that a read of the queue had the result with this revision. `told`: the number that the queue had in `hub` before the
    /// read.
    pub(super) fn read(&self, queue: &QueueKey, revision: u64, told: Option<u64>) {
        if let Some(told) = told {
            self.reads.note(queue, revision, told);
        }
    }

    /// Resolves when the queue may have changed since the read with this revision. If the queue was not watched before, this sets
    /// the watches and then resolves at once, because a change before the watches were set may have been missed.
    pub(super) async fn moved(
        self: &Arc<Self>,
        connection: &Connection,
        queue: &QueueKey,
        paths: [String; 2],
        revision: u64,
    ) -> Result<()> {
        let watched = (connection.owner, queue.clone());
        let Some(mut told) = self.hub.find(&watched) else {
            return self.watch(connection, watched, paths).await;
        };
        // If the last read had another revision, a change may have been missed. Then this returns, and the caller reads again.
        if let Some(before) = self.reads.at(queue, revision) {
            // An error means that the watches have ended. Then the caller reads again.
            let _ = told.wait_for(|told| *told != before).await;
        }
        Ok(())
    }

    async fn watch(
        self: &Arc<Self>,
        connection: &Connection,
        watched: Watched,
        paths: [String; 2],
    ) -> Result<()> {
        let [path, value] = &paths;
        let place = connection.watch_room.place(Whose::Others, &[path, value]);
        if !place.is_watched() {
            let _ = timeout(place.pause(), place.stirred()).await;
            if !place.is_watched() {
                return Ok(());
            }
        }
        let watching = connection.call("watch", |client: Arc<Client>| async move {
            let (nodes, value) = (
                client.watch(path, AddWatchMode::PersistentRecursive),
                client.watch(value, AddWatchMode::Persistent),
            );
            tokio::try_join!(nodes, value)
        });
        let (nodes, value) = watching.await?;
        self.hub.join(&watched);
        self.tell(&watched);
        let watches = Arc::clone(self);
        spawn(&Handle::current(), async move {
            // When `place` is dropped, other callers may set watches in its room. So it must be dropped after these watches, which
            // `following` owns.
            let _place = place;
            let following = async {
                on_purpose("watching");
                watches.follow(&watched, nodes, &paths[0], value).await;
            };
            if caught("watch", following).await.is_err() {
                // `follow` has panicked. This wakes the waiting observers; they read again, and set the queue's watches again.
                watches.hub.end(&watched);
            }
        });
        Ok(())
    }

    fn tell(&self, watched: &Watched) {
        self.hub.tell(watched, |told| {
            *told = self.hub.next_number();
            true
        });
    }

    /// Passes the events of a queue on to its observers, until the connection breaks, or until no observer has waited for them for
    /// a while.
    async fn follow(
        &self,
        watched: &Watched,
        mut nodes: PersistentWatcher,
        queue: &str,
        mut value: PersistentWatcher,
    ) {
        let mut sweep = tokio::time::interval_at(Instant::now() + SWEEP, SWEEP);
        loop {
            let event = tokio::select! {
                biased;
                event = nodes.changed() => event,
                event = value.changed() => event,
                _ = sweep.tick() => match self.hub.sweep_one(watched) {
                    true => return,
                    false => continue,
                },
            };
            if event.event_type == EventType::Session {
                // The connection broke, so events may be missed. On the next connection, the crate does not set these watches
                // again: `resend_watches` in 0.11.2 sends only watches of the first three kinds.
                return self.hub.end(watched);
            }
            // An update of an entry also writes the queue's own node (`write_entry`). The event of the queue's own node is ignored,
            // because the event of the entry's node comes too.
            let is_echo = event.event_type == EventType::NodeDataChanged && event.path == queue;
            if !is_echo {
                self.tell(watched);
            }
        }
    }
}
