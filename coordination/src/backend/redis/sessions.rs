//! The trait `Sessions` for Redis. The work is done in [`open_sessions`](super::open_sessions).

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::Redis;
use super::script::Call;
use crate::backend::server::in_time;
use crate::backend::{EntryRef, Gone, NewSession, SessionId, Sessions};
use crate::error::Result;

#[async_trait]
impl Sessions for Redis {
    async fn open(&self, session: &NewSession) -> Result<Option<Duration>> {
        self.sessions.open(session).await.map(Some)
    }

    async fn renew(&self, session: SessionId, held: &[EntryRef], gone: &Gone<'_>) -> Result<()> {
        let connections = Arc::clone(&self.connections);
        // With each heartbeat, channels that nobody listens to are unsubscribed. The unsubscribing runs in a task of its own,
        // because the heartbeat must not wait for it.
        tokio::spawn(async move { connections.sweep().await });
        self.sessions.renew(session, held, gone).await?;
        self.sessions.settle(session, || self.entries.of(session)).await?;
        self.update_again(session, held);
        Ok(())
    }

    async fn close(&self, session: SessionId) -> Result<()> {
        // What this process remembers of the session's entries is forgotten before the request is sent: so it is forgotten even if
        // the request fails or this future is dropped (the rule `forgets` of the trait).
        let left = self.entries.forget(session);
        self.updates.end(session);
        left.into_iter().filter_map(|own| own.known).for_each(|known| self.hub.forget(known));
        self.sessions.close(session).await
    }

    #[cfg(all(coordination_internals, feature = "memory"))]
    fn kept(&self) -> usize {
        self.entries.count() + self.updates.count() + self.sessions.count()
    }
}

impl Redis {
    /// Makes the last updates of these entries again, in the background, if the server may have forgotten them. An entry that is not
    /// held decides anew, so what it has decided before is not written again: others may have decided since without seeing it.
    fn update_again(&self, session: SessionId, held: &[EntryRef]) {
        let mut due = self.updates.due(session, &self.connections.record());
        if due.is_empty() {
            return;
        }
        let held: HashSet<_> = held.iter().map(|entry| &entry.id).collect();
        due.retain(|id| held.contains(id));
        let (connections, updates) = (Arc::clone(&self.connections), Arc::clone(&self.updates));
        let patience = self.patience;
        tokio::spawn(async move {
            let make = |_, call: Arc<Call>| {
                let connections = &connections;
                async move { in_time(patience, connections.run(&call)).await.map(drop) }
            };
            updates.make_again(&due, || connections.record(), make).await;
        });
    }
}
