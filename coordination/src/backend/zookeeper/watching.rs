//! Waiting until an entry is gone, and until a queue has changed.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use zookeeper_client::{Client, Error as ZooKeeperError, EventType};

use super::Zookeeper;
use super::client::Connection;
use super::error::from_zookeeper;
use super::open_sessions::no_loss;
use super::watch_room::Whose;
use crate::backend::server::in_time;
use crate::backend::{EntryRef, Mode, Watching};
use crate::error::Result;
use crate::key::QueueKey;

#[async_trait]
impl Watching for Zookeeper {
    async fn gone(
        &self,
        entry: &EntryRef,
        _seq: u64,
        waiter: Mode,
        recheck: Duration,
    ) -> Result<()> {
        let queue = self.tree.queue(&entry.queue);
        if let Some(own) = self.own.own(&entry.id) {
            let Some(made) = own.known.made else { return Ok(()) };
            let connection = self.sessions.of("watch", own.session)?;
            let path = format!("{queue}/{}", made.name);
            return self.watch_node(&connection, Whose::Own, &path, waiter, recheck).await;
        }
        let path = format!("{queue}/{}", self.style.name(&entry.id));
        let connection = self.sessions.newest("watch")?;
        let watching = self.watch_node(&connection, Whose::Others, &path, waiter, recheck);
        watching.await.map_err(no_loss)
    }

    async fn changed(&self, queue: &QueueKey, revision: u64, recheck: Duration) -> Result<()> {
        let paths = [self.tree.queue(queue), self.tree.value(queue)];
        let connection = self.sessions.newest("watch")?;
        let moved = self.watches.moved(&connection, queue, paths, revision);
        tokio::time::timeout(recheck, moved).await.unwrap_or(Ok(())).map_err(no_loss)
    }
}

impl Zookeeper {
    async fn watch_node(
        &self,
        connection: &Connection,
        whose: Whose,
        path: &str,
        waiter: Mode,
        recheck: Duration,
    ) -> Result<()> {
        let place = connection.watch_room.place(whose, &[path]);
        // The old watch must be dropped only after the next one was set. Otherwise the crate would send a request that removes the
        // watch.
        let mut _watch;
        loop {
            let is_watched = place.is_watched();
            let look = connection.raw_call("watch", |client: Arc<Client>| async move {
                if !is_watched {
                    let (data, stat) = client.get_data(path).await?;
                    return Ok((data, stat, None));
                }
                let (data, stat, watch) = client.get_and_watch_data(path).await?;
                Ok((data, stat, Some(watch)))
            });
            let watch = match in_time(self.patience, look).await? {
                Ok((data, stat, watch)) if self.blocks(path, &data, waiter) => {
                    place.saw(stat.mzxid);
                    watch
                }
                Ok(_) | Err(ZooKeeperError::NoNode) => return Ok(()),
                Err(error) => return Err(from_zookeeper("watch", &error)),
            };
            _watch = Box::pin(async move {
                match watch {
                    Some(watch) => watch.changed().await,
                    None => pending().await,
                }
            });
            tokio::select! {
                biased;
                event = _watch.as_mut() => {
                    if event.event_type == EventType::NodeDeleted {
                        return Ok(());
                    }
                    // The node was updated, or the session is over. The next read shows which of the two it is.
                }
                // While there was no connection, a change may have been missed (`R2`). So the node is read again.
                () = connection.reconnected() => {}
                () = place.stirred() => {}
                () = tokio::time::sleep(recheck) => {}
            }
        }
    }
}
