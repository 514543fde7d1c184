//! A task for callers that [found no room](super::watch_room) for a watch. The task reads their nodes again and again, many of them
//! in one request. When a node has changed, the task wakes its caller.

use std::sync::{Arc, Weak};

use rand::RngExt;
use tokio::runtime::Handle;

use super::client::Connection;
use super::watch_room::{PAUSE, WatchRoom};
use crate::env::{self, spawn};

/// How many nodes are read in one request.
const BATCH: usize = 512;

/// Starts the task that reads the nodes of callers without a watch. The task ends together with the session.
pub(super) fn follow(connection: &Arc<Connection>) {
    let ending = Arc::clone(&connection.ending);
    let looking = look(Arc::downgrade(connection), Arc::clone(&connection.watch_room));
    spawn(&Handle::current(), async move {
        tokio::select! {
            _ = ending.ended() => {}
            () = looking => {}
        }
    });
}

async fn look(connection: Weak<Connection>, room: Arc<WatchRoom>) {
    loop {
        room.wanted().await;
        // The pause is random, so that the processes do not all read at the same moments.
        let pause = env::rng().random_range(PAUSE / 2..=PAUSE);
        tokio::time::sleep(pause).await;
        for batch in room.unwatched().chunks(BATCH) {
            let Some(connection) = connection.upgrade() else { return };
            let paths: Vec<_> = batch.iter().map(|(_, path)| path.clone()).collect();
            // If there is no answer, no change is missed for long: each waiter reads its node itself after its `recheck`, and on
            // each new connection.
            if let Ok((_, found)) = connection.read("watch", false, None, &paths).await {
                let written = found.iter().map(|found| found.as_ref().map(|it| it.stat.mzxid));
                room.compare(batch, &written.collect::<Vec<_>>());
            }
        }
    }
}
