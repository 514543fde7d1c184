//! Waiting: for the end of an entry, and for a change of a queue.

use std::sync::Arc;
use std::time::Duration;

use zookeeper_client::{Client, Error as ZooKeeperError, EventType};

use super::Zookeeper;
use super::client::Connection;
use super::error::from_zookeeper;
use crate::backend::{EntryRef, Mode};
use crate::error::{Error, ErrorKind, Result};
use crate::key::QueueKey;

impl Zookeeper {
    pub(super) async fn wait_gone(
        &self,
        entry: &EntryRef,
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
                // What happened meanwhile may have gone by unseen (contract R2).
                () = connection.reconnected() => {}
                () = tokio::time::sleep(recheck) => {}
            }
        }
    }

    pub(super) async fn wait_changed(
        &self,
        queue: &QueueKey,
        revision: u64,
        recheck: Duration,
    ) -> Result<()> {
        let paths = [self.tree.queue(queue), self.tree.value(queue)];
        let watch = |connection: Arc<Connection>| async move {
            self.watches.moved(&connection, queue, paths, revision).await
        };
        let moved = self.sessions.outside("watch", watch);
        tokio::time::timeout(recheck, moved).await.unwrap_or(Ok(()))
    }
}
