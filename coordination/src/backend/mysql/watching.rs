//! Waiting for the end of an entry. See [`polls`](super::polls).

use std::time::{Duration, Instant};

use super::client::Mysql;
use super::polls::Wait;
use crate::backend::Mode;
use crate::backend::server::in_time;
use crate::backend::server::sql::SqlStore;
use crate::error::Result;

/// Resolves when the entry with this number is gone, or no longer blocks a waiter of this mode.
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
        // The poll asks the server for all waiters. If it has had no answer since this round began, the waiter makes a request of
        // its own, so that it gets the error, which the poll does not pass on.
        if polls.asked().is_none_or(|asked| asked < since) {
            let asking = super::client::ask(&store.connections, "DO 0");
            return in_time(store.patience, asking).await.map(drop);
        }
    }
}
