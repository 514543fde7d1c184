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
        // The poll asks for all who wait. Where it gets no answer, each has to hear of that, and looks himself.
        if polls.asked().is_none_or(|asked| asked < since) {
            let asking = super::client::ask(&store.connections, "DO 0");
            return in_time(store.patience, asking).await.map(drop);
        }
    }
}
