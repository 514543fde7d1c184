//! Notifications of whole queues: one watch for all of a queue's nodes and one for its value.
//!
//! The watches stay for a moment after their last observer has gone, since observers ask again and again. ZooKeeper's persistent
//! watches report every change while there is a connection. Here they end with the connection, and an observer then reads the
//! queue and sets them anew. If there is no room for the watches (`watch_room.rs`), an observer reads the queue again and again.

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
    /// For each queue a number that changes with each event.
    hub: SharedWatches<Watched, u64>,
    /// The number that each queue had in `hub` before the queue was read last.
    reads: Reads<u64>,
}

/// The key of a watch: the id at ZooKeeper of the session in which the queue is watched, and the queue.
type Watched = (i64, QueueKey);

impl Watches {
    /// The number of the queue's last event; `None`: the queue is not watched in this session.
    pub(super) fn told(&self, connection: &Connection, queue: &QueueKey) -> Option<u64> {
        let told = self.hub.find(&(connection.owner, queue.clone()))?;
        Some(*told.borrow())
    }

    /// Notes that the queue was read, with this revision as the result. `told`: the number of the queue's last event before the
    /// read.
    pub(super) fn read(&self, queue: &QueueKey, revision: u64, told: Option<u64>) {
        if let Some(told) = told {
            self.reads.note(queue, revision, told);
        }
    }

    /// Resolves when the queue may have changed since this revision. If the queue was not watched before, resolves as soon as it is
    /// watched, because a change may have been missed.
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
        // If this is not the revision of the last read, a change may have been missed: the caller reads again.
        if let Some(before) = self.reads.at(queue, revision) {
            // An error says that the watch has ended: the caller reads again.
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
            // The drop of `place` gives the room of the watches to other callers. So it is dropped after the watches, which are in
            // `following`.
            let _place = place;
            let following = async {
                on_purpose("watching");
                watches.follow(&watched, nodes, &paths[0], value).await;
            };
            if caught("watch", following).await.is_err() {
                // `follow` has panicked: those who wait read again, and the queue is watched anew.
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

    /// Reports the events of a queue, until the connection breaks or nobody has waited for them for a while.
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
                // The connection broke. Events may be missed, and the crate does not set these watches anew on the next
                // connection (`resend_watches` in 0.11.2 sends those of the first three kinds only).
                return self.hub.end(watched);
            }
            // An update of an entry also writes the queue's node (`write_entry`). The event of the entry's own node is enough.
            let is_echo = event.event_type == EventType::NodeDataChanged && event.path == queue;
            if !is_echo {
                self.tell(watched);
            }
        }
    }
}
