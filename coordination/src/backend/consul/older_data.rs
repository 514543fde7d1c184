//! Notices that Consul was given back older data.
//!
//! If an operator restores a snapshot while our sessions live, Consul has again each entry that was released since the snapshot was
//! made: locked by a session that lives, and forgotten by the client that renews that session. Such an entry would block its queue for
//! as long as the client runs. Consul does not tell that it was restored, and its index is no sign of it: that goes on after a restore,
//! and goes back also when tombstones are removed.
//!
//! So each client [ends its write fence](crate::backend::server::txn_kv) from time to time: the member's key gets a new version then, on
//! condition that it still has the last one. If it has an older one, the store has older data, and the session counts as lost. What a
//! client has released before its fence was ended is sure to be noticed. A snapshot that is restored before that is not noticed: it would
//! have to be restored within four times the lease after it was made.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rand::RngExt;

use super::txn::Transactions;
use crate::backend::SessionId;
use crate::backend::server::txn_kv::TxnKv;
use crate::env;
use crate::error::Result;
use crate::panics::caught;

/// When to look next.
pub(super) struct OlderData {
    ttl: Duration,
    next: Mutex<Instant>,
}

impl OlderData {
    pub(super) fn new(ttl: Duration) -> Self {
        Self { ttl, next: Mutex::new(Instant::now() + pause(ttl)) }
    }

    /// Fails if the session was found to be lost. If the last look was long enough ago, begins another one, whose outcome a later
    /// call returns: a heartbeat need not wait for it.
    pub(super) fn look(&self, txn_kv: &Arc<TxnKv<Transactions>>, session: SessionId) -> Result<()> {
        let write_fence = txn_kv.write_fences.of(session)?;
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        if *next <= Instant::now() {
            *next = Instant::now() + pause(self.ttl);
            let txn_kv = Arc::clone(txn_kv);
            tokio::spawn(async move {
                let ended = caught("renew", txn_kv.end("renew", &write_fence, Vec::new())).await;
                if let Err(error) = ended.flatten() {
                    tracing::debug!(%error, "the write fence was not ended");
                }
            });
        }
        Ok(())
    }
}

fn pause(ttl: Duration) -> Duration {
    env::rng().random_range(2 * ttl..=4 * ttl)
}
