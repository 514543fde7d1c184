//! The sessions that are open: one at ZooKeeper each, with a node for the member id that heartbeats write to.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::task::JoinHandle;
use zookeeper_client::{CreateMode, Error as ZooKeeperError};

use super::client::{Connection, Connector};
use super::error::from_zookeeper;
use super::tree::Tree;
use crate::backend::{NewSession, SessionId};
use crate::canary::{Canary, sings};
use crate::error::{Effect, Error, ErrorKind, LossReason, Result};

/// The sessions that are opening, open or closing, and which of them was opened last.
pub(super) struct OpenSessions {
    connector: Arc<Connector>,
    state: Mutex<State>,
    /// Sessions that are being opened: a call that is repeated goes on where the one before was given up.
    opening: tokio::sync::Mutex<HashMap<SessionId, Opening>>,
}

type Opening = JoinHandle<Result<Connection, ZooKeeperError>>;

#[derive(Default)]
struct State {
    by_id: HashMap<SessionId, Open>,
    newest: Option<Arc<Connection>>,
}

#[derive(Clone)]
struct Open {
    connection: Arc<Connection>,
    /// The path of the member's node.
    member: Arc<str>,
}

impl OpenSessions {
    pub(super) fn new(connector: Connector) -> Self {
        Self {
            connector: Arc::new(connector),
            state: Mutex::default(),
            opening: tokio::sync::Mutex::default(),
        }
    }

    /// Opens a session at ZooKeeper and makes the member's node in it.
    pub(super) async fn open(&self, session: &NewSession, tree: &Tree) -> Result<Duration> {
        let known = self.state().by_id.get(&session.id).cloned();
        let known = known.filter(|open| !open.connection.is_over());
        let (open, is_new) = match known {
            Some(open) => (open, false),
            None => {
                let (connection, is_new) = self.connection(session).await?;
                let connection = Arc::new(connection);
                let member = tree.member(&session.member).into();
                let open = Open { connection, member };
                self.state().by_id.insert(session.id, open.clone());
                (open, is_new)
            }
        };
        if let Err(error) = make_member(&open, session, tree).await {
            if !error.is_transient() {
                // Refused for good: the session would be of no use.
                let _ = self.close(session.id).await;
            }
            return Err(error);
        }
        {
            let mut state = self.state();
            state.newest = Some(Arc::clone(&open.connection));
            // Those before are over, whoever has said so.
            state.by_id.retain(|_, open| !open.connection.is_over());
        }
        if is_new {
            return Ok(open.connection.ttl());
        }
        // It began before this call did, and from its beginning counts what the server has granted.
        let left = open.connection.lease_left();
        if left < open.connection.ttl() / 2 {
            let _ = self.close(session.id).await;
            let message = "opening took too long for the lease that was granted";
            return Err(Error::new(ErrorKind::Unavailable, "open", message));
        }
        Ok(left)
    }

    /// A session at ZooKeeper, and whether it was asked for by this very call.
    async fn connection(&self, session: &NewSession) -> Result<(Connection, bool)> {
        let mut opening = self.opening.lock().await;
        let is_new = !opening.contains_key(&session.id);
        let task = opening.entry(session.id).or_insert_with(|| {
            let (connector, ttl) = (Arc::clone(&self.connector), session.ttl);
            tokio::spawn(async move { connector.connect(ttl).await })
        });
        let connected = task.await;
        opening.remove(&session.id);
        let ended = |_| Error::new(ErrorKind::Unavailable, "open", "the client's task has ended");
        let connection =
            connected.map_err(ended)?.map_err(|error| from_zookeeper("open", &error))?;
        Ok((connection, is_new))
    }

    /// Writes to the member's node and waits for the answer to just that.
    pub(super) async fn renew(&self, session: SessionId) -> Result<()> {
        let open = self.known("renew", session)?;
        let member = Arc::clone(&open.member);
        let written = open.connection.raw_call("renew", |client| async move {
            if sings(Canary::DeadlineFromReads) {
                return client.get_data(&member).await.map(|(_, stat)| stat);
            }
            client.set_data(&member, session.to_string().as_bytes(), None).await
        });
        match written.await? {
            Ok(stat) if stat.ephemeral_owner == open.connection.owner() => Ok(()),
            // Somebody removed it, and another session may have the member id by now.
            Ok(_) | Err(ZooKeeperError::NoNode) => Err(Error::lost("renew", LossReason::Revoked)),
            Err(error) => Err(from_zookeeper("renew", &error)),
        }
    }

    /// Ends the session; all nodes that it owns go with it.
    pub(super) async fn close(&self, session: SessionId) -> Result<()> {
        if let Some(opening) = self.opening.lock().await.remove(&session) {
            opening.abort();
        }
        let open = self.state().by_id.get(&session).cloned();
        if let Some(open) = open {
            // Kept until it is confirmed: who asks again waits for the same word.
            if !open.connection.close().await {
                let message = "the client has given up before a server confirmed";
                let error = Error::new(ErrorKind::Unavailable, "close", message);
                return Err(error.with_effect(Effect::Unknown));
            }
            self.state().by_id.remove(&session);
        }
        Ok(())
    }

    /// The connection of a session; an error says that it is over.
    pub(super) fn of(
        &self,
        operation: &'static str,
        session: SessionId,
    ) -> Result<Arc<Connection>> {
        self.known(operation, session).map(|open| open.connection)
    }

    fn known(&self, operation: &'static str, session: SessionId) -> Result<Open> {
        let open = self.state().by_id.get(&session).cloned();
        open.ok_or_else(|| Error::lost(operation, LossReason::ConnectionLost))
    }

    /// Does what is in no session by the connection of the newest one. That its session is over is no loss then.
    pub(super) async fn outside<T, F>(
        &self,
        operation: &'static str,
        work: impl FnOnce(Arc<Connection>) -> F,
    ) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        let unavailable = || Error::new(ErrorKind::Unavailable, operation, "there is no session");
        let newest = self.state().newest.clone();
        let newest = newest.ok_or_else(unavailable)?;
        work(newest).await.map_err(|error| match error.loss_reason() {
            Some(_) => unavailable().with_effect(Effect::Unknown).with_source(error),
            None => error,
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

async fn make_member(open: &Open, session: &NewSession, tree: &Tree) -> Result<()> {
    let (connection, path) = (&open.connection, &*open.member);
    let options = CreateMode::Ephemeral.with_acls(tree.acls());
    let data = session.id.to_string();
    let create = || {
        let (options, data) = (&options, &data);
        connection.raw_call("open", move |client| async move {
            client.create(path, data.as_bytes(), options).await
        })
    };
    let mut made = create().await?;
    if made == Err(ZooKeeperError::NoNode) {
        tree.make_parents(connection, "open", path).await?;
        made = create().await?;
    }
    match made {
        Ok(_) => Ok(()),
        Err(ZooKeeperError::NodeExists) => {
            let look = |client: Arc<_>| async move {
                zookeeper_client::Client::check_stat(&client, path).await
            };
            match connection.call("open", look).await? {
                // A repeated call finds its own.
                Some(stat) if stat.ephemeral_owner == connection.owner() => Ok(()),
                Some(_) => {
                    let message =
                        format!("another live session has the member id {:?}", session.member);
                    Err(Error::new(ErrorKind::MemberExists, "open", message))
                }
                None => {
                    let message = "the member's node was removed this moment";
                    Err(Error::new(ErrorKind::Unavailable, "open", message))
                }
            }
        }
        Err(error) => Err(from_zookeeper("open", &error)),
    }
}
