//! The open sessions of this process. Each is a session at ZooKeeper, and has a node for its member id, to which heartbeats write.

use std::collections::HashMap;
use std::future::pending;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use zookeeper_client::{Client, CreateMode, Error as ZooKeeperError};

use super::client::{Connection, Connector};
use super::error::from_zookeeper;
use super::rights;
use super::thread::ClientThread;
use super::tree::Tree;
use super::unwatched;
use super::write_fence::{WriteFence, revoked};
use crate::backend::{NewSession, SessionId};
use crate::canary::{Canary, sings};
use crate::error::{Effect, Error, ErrorKind, LossReason, Result};
use crate::time::BootInstant;

/// The sessions of this process that are opening, open or closing, and the one that was opened last.
pub(super) struct OpenSessions {
    connector: Arc<Connector>,
    /// The thread on which the client crate runs; `None`: the crate runs on the session's own runtime.
    thread: Option<ClientThread>,
    state: Mutex<State>,
    /// The tasks that open sessions. If `open` is called again for the same session, it waits for the task that the earlier call
    /// has started.
    opening: tokio::sync::Mutex<HashMap<SessionId, Opening>>,
    /// Whether a session of this process has found that the user has all rights. If so, sessions that are opened later do not check
    /// the rights again.
    is_permitted: AtomicBool,
}

type Opening = JoinHandle<Result<Connection, ZooKeeperError>>;

#[derive(Default)]
struct State {
    by_id: HashMap<SessionId, Arc<Connection>>,
    newest: Option<Arc<Connection>>,
}

impl OpenSessions {
    pub(super) fn new(connector: Connector, thread: Option<ClientThread>) -> Self {
        Self {
            connector: Arc::new(connector),
            thread,
            state: Mutex::default(),
            opening: tokio::sync::Mutex::default(),
            is_permitted: AtomicBool::new(false),
        }
    }

    /// Opens a session at ZooKeeper and makes its two nodes. The lease of the session counts from the moment that
    /// [`asked`](Self::asked) returns.
    pub(super) async fn open(&self, session: &NewSession, tree: &Tree) -> Result<Duration> {
        let begun = BootInstant::now();
        let known = self.state().by_id.get(&session.id).cloned();
        let connection = match known.filter(|known| !known.is_over()) {
            Some(connection) => connection,
            None => {
                let connection = Arc::new(self.connection(session, tree).await?);
                connection.follow();
                connection.follow_grants(&self.connector);
                unwatched::follow(&connection);
                self.state().by_id.insert(session.id, Arc::clone(&connection));
                connection
            }
        };
        if let Err(error) = self.begin(&connection, session, tree).await {
            if !error.is_transient() {
                // No retry can succeed, so the session is closed again.
                let _ = self.close(session.id).await;
            }
            return Err(error);
        }
        {
            let mut state = self.state();
            state.newest = Some(Arc::clone(&connection));
            // This also forgets earlier sessions that are over and were never closed.
            state.by_id.retain(|_, connection| !connection.is_over());
        }
        // An earlier call may have sent the request that opened the session, and then have been given up. The lease counts from
        // that request, so too little of the lease may be left.
        if connection.lease_at(begun) < connection.ttl / 2 {
            let _ = self.close(session.id).await;
            let message = "opening took too long for the lease that was granted";
            return Err(Error::new(ErrorKind::Unavailable, "open", message));
        }
        Ok(connection.ttl)
    }

    /// The moment just before the servers were `asked` for the session, by the request that opened it at ZooKeeper.
    pub(super) fn asked(&self, session: SessionId) -> Option<BootInstant> {
        self.state().by_id.get(&session).map(|connection| connection.asked)
    }

    /// Makes the session's nodes. For the first session of this process, also checks whether the user has all rights; both requests
    /// are sent together.
    async fn begin(
        &self,
        connection: &Connection,
        session: &NewSession,
        tree: &Tree,
    ) -> Result<()> {
        let making = make_member(connection, session, tree);
        if self.is_permitted.load(Ordering::Relaxed) {
            return making.await;
        }
        let (made, permitted) = tokio::join!(making, rights::check(connection, tree));
        // If both calls are refused, the error of the check of the rights is returned, because it names the right that is missing.
        permitted?;
        made?;
        self.is_permitted.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Starts a task that opens the session at ZooKeeper, and waits for it. If an earlier call has already started this task, waits
    /// for the task that is running.
    async fn connection(&self, session: &NewSession, tree: &Tree) -> Result<Connection> {
        let mut opening = self.opening.lock().await;
        let task = opening.entry(session.id).or_insert_with(|| {
            let (connector, ttl) = (Arc::clone(&self.connector), session.ttl);
            let member = tree.member(&session.member);
            let write_fence = WriteFence::new(tree.session(session.id));
            let runtime = self.thread.as_ref().map_or_else(Handle::current, ClientThread::runtime);
            runtime.spawn(async move { connector.connect(ttl, member, write_fence).await })
        });
        let connected = task.await;
        opening.remove(&session.id);
        let ended = |_| Error::new(ErrorKind::Unavailable, "open", "the client's task has ended");
        connected.map_err(ended)?.map_err(|error| from_zookeeper("open", &error))
    }

    /// Sends a heartbeat: writes to the member's node, and waits for the answer.
    pub(super) async fn renew(&self, session: SessionId) -> Result<()> {
        let connection = self.of("renew", session)?;
        let member = &connection.member;
        let written = connection.urgent_call("renew", |client| async move {
            if sings(Canary::DeadlineFromReads) {
                return client.get_data(member).await.map(|(_, stat)| stat);
            }
            client.set_data(member, session.to_string().as_bytes(), None).await
        });
        match written.await? {
            Ok(stat) if stat.ephemeral_owner == connection.owner => Ok(()),
            // Somebody has removed the member's node. Another session may have taken the member id by now.
            Ok(_) | Err(ZooKeeperError::NoNode) => Err(revoked("renew")),
            Err(error) => Err(from_zookeeper("renew", &error)),
        }
    }

    /// Resolves when a server has said that the session is over, or that it grants a shorter lease now. If only the client crate has
    /// given the session up, and no server has said anything, this never resolves.
    pub(super) async fn ended(&self, session: SessionId) -> LossReason {
        let connection = self.state().by_id.get(&session).cloned();
        let loss = match connection {
            Some(connection) => tokio::select! {
                biased;
                () = connection.grants.shortened() => Some(LossReason::Revoked),
                end = connection.ending.ended() => end.loss(),
            },
            None => None,
        };
        match loss {
            Some(reason) => reason,
            None => pending().await,
        }
    }

    /// Ends the session. ZooKeeper then deletes all nodes that the session owns.
    pub(super) async fn close(&self, session: SessionId) -> Result<()> {
        if let Some(opening) = self.opening.lock().await.remove(&session) {
            opening.abort();
        }
        let connection = self.state().by_id.get(&session).cloned();
        if let Some(connection) = connection {
            // The connection stays in the map until a server has confirmed the end. So if `close` is called again, it waits for
            // this confirmation too.
            if !connection.close().await {
                let message = "the client has given up before a server confirmed";
                let error = Error::new(ErrorKind::Unavailable, "close", message);
                return Err(error.with_effect(Effect::Unknown));
            }
            self.state().by_id.remove(&session);
        }
        Ok(())
    }

    /// Begins to end the session, and does not wait for the end. If the client crate has a thread of its own, that thread completes
    /// the end.
    pub(super) fn close_now(&self, session: SessionId) {
        if let Some(connection) = self.state().by_id.get(&session) {
            connection.begin_close();
        }
    }

    /// The connection of a session. An error means that the session is over.
    pub(super) fn of(
        &self,
        operation: &'static str,
        session: SessionId,
    ) -> Result<Arc<Connection>> {
        let connection = self.state().by_id.get(&session).cloned();
        connection.ok_or_else(|| Error::lost(operation, LossReason::ConnectionLost))
    }

    /// The connection of the newest session, for calls that concern no session in particular. The caller applies [`no_loss`] to
    /// their errors.
    pub(super) fn newest(&self, operation: &'static str) -> Result<Arc<Connection>> {
        let none = || Error::new(ErrorKind::Unavailable, operation, "there is no session");
        self.state().newest.clone().ok_or_else(none)
    }

    #[cfg(all(coordination_internals, feature = "memory"))]
    pub(super) fn count(&self) -> usize {
        self.state().by_id.len()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// To be applied to the error of a call that concerns no session in particular. The call was sent in some session of this process.
/// If the error says that this session is over, the caller itself has lost nothing. So this function replaces the error by another
/// one, which says that the store could not be reached: the caller can repeat the call in the next session.
pub(super) fn no_loss(error: Error) -> Error {
    if error.loss_reason().is_none() {
        return error;
    }
    let lost = Error::new(ErrorKind::Unavailable, error.operation(), "there is no session");
    lost.with_effect(Effect::Unknown).with_source(error)
}

/// Makes the member's node and the session's node. The server deletes both when the session ends.
async fn make_member(connection: &Connection, session: &NewSession, tree: &Tree) -> Result<()> {
    let (path, write_fence) = (&connection.member, &connection.write_fence.path);
    let options = CreateMode::Ephemeral.with_acls(tree.acls());
    let data = session.id.to_string();
    let create = || {
        let (options, data) = (&options, &data);
        connection.raw_call("open", move |client| async move {
            let mut writer = client.new_multi_writer();
            writer.add_create(path, data.as_bytes(), options)?;
            writer.add_create(write_fence, b"", options)?;
            Ok(writer.commit().await?)
        })
    };
    let mut made = create().await?;
    if made == Err(ZooKeeperError::NoNode) {
        tree.make_parents(connection, "open", path).await?;
        tree.make_parents(connection, "open", write_fence).await?;
        made = create().await?;
    }
    match made {
        Ok(_) => Ok(()),
        Err(error @ ZooKeeperError::NodeExists) => {
            // The node may belong to another user, and then we may not read its data. But everybody may ask for a node's owner.
            let look = |client: Arc<Client>| async move { client.check_stat(path).await };
            let found = connection.call("open", look).await?;
            match found.map(|stat| stat.ephemeral_owner) {
                // An earlier call of this session has made the node.
                Some(owner) if owner == connection.owner => Ok(()),
                Some(_) => {
                    let message =
                        format!("another live session has the member id {:?}", session.member);
                    Err(Error::new(ErrorKind::MemberExists, "open", message))
                }
                // The node was removed after the `create` was refused. A retry may succeed.
                None => Err(from_zookeeper("open", &error)),
            }
        }
        Err(error) => Err(from_zookeeper("open", &error)),
    }
}
