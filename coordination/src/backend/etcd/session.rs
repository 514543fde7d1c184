//! Sessions: an etcd lease each, renewed over one keep-alive stream.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use etcd_client::{
    Client, Error as EtcdError, LeaseGrantOptions, LeaseKeepAliveStream, LeaseKeeper,
};

use super::Etcd;
use super::entry::lease_of;
use super::error::{is_lease_exists, is_lease_missing};
use crate::backend::server::keyed::{Change, Condition, Outcome, Transact, Txn};
use crate::backend::{EntryId, EntryRef, NewSession, SessionId, Sessions};
use crate::error::{Error, ErrorKind, LossReason, Result};

#[async_trait]
impl Sessions for Etcd {
    /// Grants a lease of the session's id and puts the member's key under it.
    async fn open(&self, session: &NewSession) -> Result<Option<Duration>> {
        let granted = self.grant(session).await?;
        match self.enroll(session).await {
            Ok(()) => Ok(Some(granted)),
            Err(error) if error.is_transient() => Err(error),
            Err(error) => {
                // Refused for good: the lease would be of no use.
                self.close(session.id).await?;
                Err(error)
            }
        }
    }

    /// Sends one heartbeat and waits for its own answer.
    ///
    /// The stream is taken out while that goes on: if the future is dropped, an answer that comes
    /// late finds nobody, and can't be taken for the answer to a later heartbeat.
    async fn renew(&self, session: SessionId, _held: &[EntryRef]) -> Result<Vec<EntryId>> {
        let kept = self.streams.lock().await.remove(&session);
        let (client, epoch) = self.connections.reach_for("renew").await?;
        let beating = async {
            match kept.filter(|kept| kept.epoch == epoch) {
                Some(kept) => kept.beat().await,
                None => KeepAlive::begin(client, epoch, session).await,
            }
        };
        let kept = self.connections.on_epoch("renew", epoch, beating).await?;
        self.streams.lock().await.insert(session, kept);
        Ok(Vec::new())
    }

    /// Revokes the lease; all keys under it go with it.
    async fn close(&self, session: SessionId) -> Result<()> {
        // Whatever becomes of this call: what belongs to no session goes by the next one's from now on.
        self.keyed.admissions.forget(session);
        self.streams.lock().await.remove(&session);
        let revoking = self.connections.call("close", |client| async move {
            match client.lease_client().revoke(lease_of(session)).await {
                Err(error) if !is_lease_missing(&error) => Err(error),
                _ => Ok(()),
            }
        });
        revoking.await?;
        self.keyed.forget(session);
        Ok(())
    }
}

impl Etcd {
    /// Grants the lease, or extends the one that an earlier call with a lost answer has granted.
    async fn grant(&self, session: &NewSession) -> Result<Duration> {
        let lease = lease_of(session.id);
        // Whole seconds, rounded up: etcd grants no fractions.
        let seconds = i64::try_from(session.ttl.as_millis().div_ceil(1000)).unwrap_or(i64::MAX);
        let options = LeaseGrantOptions::new().with_id(lease);
        let granting = self.connections.call("open", |client| async move {
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

    /// Puts the member's key, which is the session's first admission.
    async fn enroll(&self, session: &NewSession) -> Result<()> {
        let key = self.keyed.member_key(&session.member);
        let name = session.id.to_string().into_bytes();
        let enroll = Txn {
            conditions: vec![Condition::Version(key.clone(), 0)],
            changes: vec![Change::Hold(key.clone(), name, session.id)],
            looks: vec![key.clone()],
        };
        let version = match self.keyed.store.commit("open", enroll).await? {
            Outcome::Done(version) => version,
            Outcome::Refused(found) => {
                // A repeated call finds its own key.
                let mut found = found.into_iter().flatten();
                let own = found.find(|kept| self.keyed.is_of(kept, session.id));
                let member = &session.member;
                let message = || format!("another live session has the member id {member:?}");
                own.ok_or_else(|| Error::new(ErrorKind::MemberExists, "open", message()))?.version
            }
        };
        self.keyed.admissions.note(session.id, &key, version);
        Ok(())
    }
}

/// A stream of heartbeats, on the connection of this epoch.
pub(super) struct KeepAlive {
    keeper: LeaseKeeper,
    answers: LeaseKeepAliveStream,
    epoch: u64,
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
