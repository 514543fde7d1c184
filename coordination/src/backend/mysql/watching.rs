//! Waits for the end of an entry, by means of the poll in [`polls`](super::polls).

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::client::{Mysql, probe};
use super::polls::Wait;
use crate::backend::Mode;
use crate::backend::server::in_time;
use crate::backend::server::sql::{Sending, SqlStore, let_finish};
use crate::error::Result;

/// Resolves when the entry with the number `seq` is gone, or may no longer block an entry of the mode `waiter`. `recheck`: how long
/// to wait before checking that the poll still gets answers.
pub(super) async fn gone(
    store: &SqlStore<Mysql>,
    path: &str,
    seq: u64,
    waiter: Mode,
    recheck: Duration,
) -> Result<()> {
    let polls = &store.dialect().polls;
    let wait = Wait { path: path.to_owned(), seq, mode: waiter };
    let mut waiting = polls.wait(wait, &store.connections);
    loop {
        let since = Instant::now();
        tokio::select! {
            biased;
            () = waiting.over() => return Ok(()),
            () = tokio::time::sleep(recheck) => {}
        }
        // The poll asks the server for all waiters, but does not pass its errors on to them. If none of the polls that were sent
        // within the last `recheck` has been answered, this waiter sends a query of its own (`DO 0`), which changes nothing. If
        // that query fails, this waiter gets the error. If it succeeds, this resolves, and the caller asks the server for its
        // position.
        if polls.asked().is_none_or(|asked| asked < since) {
            let connections = Arc::clone(&store.connections);
            let asking = |sending: Sending| async move { probe(&connections, &sending).await };
            return in_time(store.patience, let_finish("watch", store.patience, asking)).await;
        }
    }
}
