//! The sessions that are open: an etcd lease each, renewed over one keep-alive stream.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{
    Client, Compare, CompareOp, Error as EtcdError, LeaseGrantOptions, LeaseKeepAliveStream,
    LeaseKeeper, PutOptions, Txn, TxnOp,
};
use tokio::sync::Mutex;

use super::client::Connections;
use super::error::{is_lease_exists, is_lease_missing};
use super::txn::{found, revision_in};
use crate::backend::{NewSession, SessionId};
use crate::error::{Error, ErrorKind, LossReason, Result};

/// The keep-alive streams of open sessions.
#[derive(Default)]
pub(super) struct OpenSessions {
    // One session is open at a time; the one before may still be closing.
    streams: Mutex<HashMap<SessionId, KeepAlive>>,
}

struct KeepAlive {
    keeper: LeaseKeeper,
    answers: LeaseKeepAliveStream,
    epoch: u64,
}

/// The lease that is the session at etcd. Session ids are 63 bits wide so that they fit.
pub(super) fn lease_of(session: SessionId) -> i64 {
    session.value() as i64
}

impl OpenSessions {
    /// Grants a lease of the session's id and puts the member's key under it; answers the lease, and the
    /// revision in which the key was put.
    pub(super) async fn open(
        &self,
        connections: &Arc<Connections>,
        session: &NewSession,
        member_key: &str,
    ) -> Result<(Duration, i64)> {
        let granted = grant(connections, session).await?;
        let lease = lease_of(session.id);
        let put = PutOptions::new().with_lease(lease);
        let enter = Txn::new()
            .when([Compare::create_revision(member_key, CompareOp::Equal, 0)])
            .and_then([TxnOp::put(member_key, session.id.to_string(), Some(put))])
            .or_else([TxnOp::get(member_key, None)]);
        let answer =
            connections.call("open", |client| async move { client.kv_client().txn(enter).await });
        let answer = match answer.await {
            Ok(answer) => answer,
            Err(error) if error.is_transient() => return Err(error),
            Err(error) => {
                // Refused for good: the lease would be of no use.
                let _ = self.close(connections, session.id).await;
                return Err(error);
            }
        };
        if answer.succeeded() {
            return Ok((granted, revision_in(answer.header())));
        }
        match found(&answer, 0).first() {
            // A repeated call finds its own key.
            Some(own) if own.lease() == lease => Ok((granted, own.mod_revision())),
            _ => {
                self.close(connections, session.id).await?;
                let message =
                    format!("another live session has the member id {:?}", session.member);
                Err(Error::new(ErrorKind::MemberExists, "open", message))
            }
        }
    }

    /// Sends one heartbeat and waits for its own answer.
    ///
    /// The stream is taken out while that goes on: if the future is dropped, an answer that comes
    /// late finds nobody, and can't be taken for the answer to a later heartbeat.
    pub(super) async fn renew(
        &self,
        connections: &Arc<Connections>,
        session: SessionId,
    ) -> Result<()> {
        let kept = self.streams.lock().await.remove(&session);
        let (client, epoch) = connections.reach_for("renew").await?;
        let beating = async {
            match kept.filter(|kept| kept.epoch == epoch) {
                Some(kept) => kept.beat().await,
                None => KeepAlive::begin(client, epoch, session).await,
            }
        };
        let kept = connections.on_epoch("renew", epoch, beating).await?;
        self.streams.lock().await.insert(session, kept);
        Ok(())
    }

    /// Revokes the lease; all keys under it go with it.
    pub(super) async fn close(
        &self,
        connections: &Arc<Connections>,
        session: SessionId,
    ) -> Result<()> {
        self.streams.lock().await.remove(&session);
        let revoking = connections.call("close", |client| async move {
            match client.lease_client().revoke(lease_of(session)).await {
                Err(error) if !is_lease_missing(&error) => Err(error),
                _ => Ok(()),
            }
        });
        revoking.await
    }
}

impl KeepAlive {
    /// Opens a stream, which begins with a heartbeat and its answer.
    async fn begin(client: Arc<Client>, epoch: u64, session: SessionId) -> Result<Self, EtcdError> {
        let (keeper, answers) = client.lease_client().keep_alive(lease_of(session)).await?;
        Ok(Self { keeper, answers, epoch })
    }

    async fn beat(mut self) -> Result<Self, EtcdError> {
        self.keeper.keep_alive().await?;
        match self.answers.message().await? {
            Some(answer) if answer.ttl() > 0 => Ok(self),
            // A lease that is over is answered, with no time left.
            Some(_) => Err(EtcdError::LeaseKeepAliveError("lease not found".into())),
            None => Err(EtcdError::WatchError("the keep-alive stream ended".into())),
        }
    }
}

/// Grants the lease, or extends the one that an earlier call with a lost answer has granted.
async fn grant(connections: &Arc<Connections>, session: &NewSession) -> Result<Duration> {
    let lease = lease_of(session.id);
    // Whole seconds, rounded up: etcd grants no fractions.
    let seconds = i64::try_from(session.ttl.as_millis().div_ceil(1000)).unwrap_or(i64::MAX);
    let options = LeaseGrantOptions::new().with_id(lease);
    let granting = connections.call("open", |client| async move {
        match client.lease_client().grant(seconds, Some(options)).await {
            Err(error) if is_lease_exists(&error) => {
                // Its first answer is awaited within: the lease counts from here on.
                client.lease_client().keep_alive(lease).await?;
                let extended = client.lease_client().time_to_live(lease, None).await?;
                Ok(extended.granted_ttl())
            }
            granted => granted.map(|granted| granted.ttl()),
        }
    });
    let ttl = granting.await?;
    u64::try_from(ttl)
        .ok()
        .filter(|ttl| *ttl > 0)
        .map(Duration::from_secs)
        .ok_or_else(|| Error::lost("open", LossReason::ExpiredByServer))
}
