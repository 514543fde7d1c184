//! Notifications of whole queues: one watch for all of a queue's nodes and one for its value.
//!
//! They stay for a moment, since who observes a queue asks again and again. ZooKeeper's persistent watches tell of every
//! change while there is a connection, and end with it here; who observes then reads anew, and watches anew.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::watch;
use tokio::time::Instant;
use zookeeper_client::{
    AddWatchMode, Client, Error as ZooKeeperError, EventType, PersistentWatcher,
};

use super::Zookeeper;
use super::client::Connection;
use super::error::from_zookeeper;
use crate::backend::{EntryRef, Mode, Watching};
use crate::error::{Error, ErrorKind, Result};
use crate::key::QueueKey;

/// How long a watch stays when nobody waits for it, at least; twice that at most.
const LINGER: Duration = Duration::from_secs(1);

/// The queues that are watched.
#[derive(Clone, Default)]
pub(super) struct Watches(Arc<Mutex<HashMap<QueueKey, Watched>>>);

struct Watched {
    /// How much was told so far.
    told: Arc<watch::Sender<u64>>,
    /// The session in which it is watched.
    owner: i64,
    /// The queue as it was read last, and how much had been told before.
    read: Option<(u64, u64)>,
}

impl Watches {
    /// How much was told of the queue so far; `None`: it is not watched.
    pub(super) fn told(&self, queue: &QueueKey) -> Option<u64> {
        self.queues().get(queue).map(|watched| *watched.told.borrow())
    }

    /// The queue was read after so much had been told, and was as this revision says.
    pub(super) fn read(&self, queue: &QueueKey, revision: u64, told: Option<u64>) {
        if let (Some(watched), Some(told)) = (self.queues().get_mut(queue), told) {
            watched.read = Some((revision, told));
        }
    }

    /// Resolves when the queue may be other than at this revision, and when it was not watched before.
    pub(super) async fn moved(
        &self,
        connection: &Connection,
        queue: &QueueKey,
        paths: [String; 2],
        revision: u64,
    ) -> Result<()> {
        let known = {
            let queues = self.queues();
            let watched = queues.get(queue).filter(|watched| watched.owner == connection.owner());
            watched.map(|watched| (watched.told.subscribe(), watched.read))
        };
        match known {
            Some((mut told, Some((read, before)))) if read == revision => {
                // An error says that the watch is over, and who wants to know looks.
                let _ = told.wait_for(|told| *told != before).await;
                Ok(())
            }
            // Something was missed, or may have been: the caller reads again.
            Some(_) => Ok(()),
            None => self.watch(connection, queue, paths).await,
        }
    }

    async fn watch(
        &self,
        connection: &Connection,
        queue: &QueueKey,
        paths: [String; 2],
    ) -> Result<()> {
        let [path, value] = &paths;
        let watching = connection.call("watch", |client: Arc<Client>| async move {
            let (nodes, value) = (
                client.watch(path, AddWatchMode::PersistentRecursive),
                client.watch(value, AddWatchMode::Persistent),
            );
            tokio::try_join!(nodes, value)
        });
        let (nodes, value) = watching.await?;
        let told = Arc::new(watch::Sender::new(0));
        let watched = Watched { told: Arc::clone(&told), owner: connection.owner(), read: None };
        self.queues().insert(queue.clone(), watched);
        let (watches, queue) = (self.clone(), queue.clone());
        tokio::spawn(async move {
            follow(nodes, &paths[0], value, &told).await;
            let mut queues = watches.queues();
            if queues.get(&queue).is_some_and(|watched| Arc::ptr_eq(&watched.told, &told)) {
                queues.remove(&queue);
            }
        });
        Ok(())
    }

    fn queues(&self) -> MutexGuard<'_, HashMap<QueueKey, Watched>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// Counts what is told, until the connection breaks or nobody wants to know for a while.
async fn follow(
    mut nodes: PersistentWatcher,
    queue: &str,
    mut value: PersistentWatcher,
    told: &watch::Sender<u64>,
) {
    let mut sweep = tokio::time::interval_at(Instant::now() + LINGER, LINGER);
    let mut is_idle = false;
    loop {
        let event = tokio::select! {
            biased;
            event = nodes.changed() => event,
            event = value.changed() => event,
            _ = sweep.tick() => {
                let was_idle = std::mem::replace(&mut is_idle, told.receiver_count() == 0);
                if is_idle && was_idle {
                    return;
                }
                continue;
            }
        };
        if event.event_type == EventType::Session {
            // The connection broke. Something may be missed, and the crate does not renew these watches on the next
            // one (`resend_watches` in 0.11.2 sends those of the first three kinds only).
            return;
        }
        // What was updated is told by itself.
        let is_echo = event.event_type == EventType::NodeDataChanged && event.path == queue;
        if !is_echo {
            told.send_modify(|told| *told += 1);
        }
    }
}

#[async_trait]
impl Watching for Zookeeper {
    async fn gone(
        &self,
        entry: &EntryRef,
        _seq: u64,
        waiter: Mode,
        recheck: Duration,
    ) -> Result<()> {
        if let Some(place) = self.places.find(&entry.id) {
            let Some(made) = place.node else { return Ok(()) };
            let connection = self.sessions.of("watch", place.session)?;
            return self.watch_node(&connection, &made.path, waiter, recheck).await;
        }
        let path = format!("{}/{}", self.tree.queue(&entry.queue), self.style.name(&entry.id));
        let watch = |connection: Arc<Connection>| async move {
            self.watch_node(&connection, &path, waiter, recheck).await
        };
        self.sessions.outside("watch", watch).await
    }

    async fn changed(&self, queue: &QueueKey, revision: u64, recheck: Duration) -> Result<()> {
        let paths = [self.tree.queue(queue), self.tree.value(queue)];
        let watch = |connection: Arc<Connection>| async move {
            self.watches.moved(&connection, queue, paths, revision).await
        };
        let moved = self.sessions.outside("watch", watch);
        tokio::time::timeout(recheck, moved).await.unwrap_or(Ok(()))
    }
}

impl Zookeeper {
    async fn watch_node(
        &self,
        connection: &Connection,
        path: &str,
        waiter: Mode,
        recheck: Duration,
    ) -> Result<()> {
        // Replaced only when the next one is there: the crate then tells the server nothing.
        let mut _watch;
        loop {
            let look = connection.raw_call("watch", |client: Arc<Client>| async move {
                let (data, _, watch) = client.get_and_watch_data(path).await?;
                Ok((data, watch))
            });
            let looked = tokio::time::timeout(self.patience, look).await.unwrap_or_else(|_| {
                Err(Error::new(ErrorKind::Unavailable, "watch", "no answer in time"))
            });
            let watch = match looked? {
                Ok((data, watch)) if self.blocks(path, &data, waiter) => watch,
                Ok(_) | Err(ZooKeeperError::NoNode) => return Ok(()),
                Err(error) => return Err(from_zookeeper("watch", &error)),
            };
            _watch = Box::pin(watch.changed());
            tokio::select! {
                biased;
                event = _watch.as_mut() => {
                    if event.event_type == EventType::NodeDeleted {
                        return Ok(());
                    }
                    // Updated, or the session is over: the next look tells.
                }
                // What happened meanwhile may have gone by unseen (`R2`).
                () = connection.reconnected() => {}
                () = tokio::time::sleep(recheck) => {}
            }
        }
    }
}
