//! Sessions, each of which is an etcd lease.

use std::time::Duration;

use async_trait::async_trait;
use etcd_client::{Client, LeaseGrantOptions};

use super::Etcd;
use super::entry::lease_of;
use super::error::{is_lease_exists, is_lease_missing};
use crate::backend::server::txn_kv::{Change, Condition, Outcome, Transact, Txn};
use crate::backend::{EntryRef, Gone, NewSession, SessionId, Sessions};
use crate::error::{Error, ErrorKind, LossReason, Result};

#[async_trait]
impl Sessions for Etcd {
    /// Grants a lease whose id is the session's, and puts the member's key under it.
    ///
    /// If the member's key is refused, the lease is not revoked: no key is under it, and it runs out by itself. A `revoke`
    /// without an answer could arrive late, and would then end the session that the next try opens, because that try uses the
    /// same lease.
    async fn open(&self, session: &NewSession) -> Result<Option<Duration>> {
        // If the store was restored from a snapshot, that ends older sessions and not this one.
        let endpoints = &self.connections.link;
        self.connections
            .call("open", async |connected| connected.is_restored(endpoints).await)
            .await?;
        let granted = self.grant(session).await?;
        self.enroll(session).await?;
        Ok(Some(granted))
    }

    /// Sends one heartbeat, and waits for the answer on a stream that was opened for this heartbeat. On a stream that stays open, a
    /// `grpc-proxy` would not answer our heartbeat before its own next renewal of the lease, which may be too late.
    async fn renew(&self, session: SessionId, _: &[EntryRef], _: &Gone<'_>) -> Result<()> {
        let renew = async |client: Client| {
            // `keep_alive` returns when the first answer has come.
            client.lease_client().keep_alive(lease_of(session)).await.map(drop)
        };
        let endpoints = &self.connections.link;
        let is_restored = self.connections.urgent_call("renew", async |connected| {
            connected.call(renew).await?;
            connected.is_restored(endpoints).await
        });
        match is_restored.await? {
            // The restored store may have an entry again that was removed after the snapshot was taken, and may lack a newer one.
            // So the session must not go on.
            true => Err(Error::lost("renew", LossReason::ExpiredByServer)),
            false => Ok(()),
        }
    }

    /// Revokes the lease; etcd deletes all keys under it.
    async fn close(&self, session: SessionId) -> Result<()> {
        // The entries are forgotten before the request is sent, so that they are forgotten even if the request fails or this call
        // is dropped (the rule `forgets`). Nobody needs this session's entries any more. The session's write fence is forgotten
        // too: writes of values, which belong to no session and may have used it, use that of another open session from now on.
        self.txn_kv.forget(session);
        let revoke =
            async |client: Client| match client.lease_client().revoke(lease_of(session)).await {
                Err(error) if !is_lease_missing(&error) => Err(error),
                _ => Ok(()),
            };
        self.connections.call("close", async |connected| connected.call(revoke).await).await
    }

    #[cfg(all(coordination_internals, feature = "memory"))]
    fn kept(&self) -> usize {
        self.txn_kv.kept()
    }
}

impl Etcd {
    /// Grants the lease, or extends the one that an earlier call with a lost answer has granted.
    async fn grant(&self, session: &NewSession) -> Result<Duration> {
        let lease = lease_of(session.id);
        // The lease is rounded up to whole seconds, because etcd grants no fractions of one.
        let seconds = i64::try_from(session.ttl.as_millis().div_ceil(1000)).unwrap_or(i64::MAX);
        let grant = async |client: Client| {
            let options = LeaseGrantOptions::new().with_id(lease);
            match client.lease_client().grant(seconds, Some(options)).await {
                Err(error) if is_lease_exists(&error) => {
                    // `keep_alive` returns when the first answer has come. From here on the lease has all of its time left.
                    client.lease_client().keep_alive(lease).await?;
                    let extended = client.lease_client().time_to_live(lease, None).await?;
                    Ok(extended.granted_ttl())
                }
                granted => granted.map(|granted| granted.ttl()),
            }
        };
        let granting = self.connections.call("open", async |connected| connected.call(grant).await);
        let ttl = granting.await?;
        u64::try_from(ttl)
            .ok()
            .filter(|ttl| *ttl > 0)
            .map(Duration::from_secs)
            .ok_or_else(|| Error::lost("open", LossReason::ExpiredByServer))
    }

    /// Puts the member's key. The key's revision is the session's first write fence.
    async fn enroll(&self, session: &NewSession) -> Result<()> {
        let key = self.txn_kv.member_key(&session.member);
        let name = session.id.to_string().into_bytes();
        let enroll = Txn {
            conditions: vec![Condition::Version(key.clone(), 0)],
            changes: vec![Change::Hold(key.clone(), name, session.id)],
            looks: vec![key.clone()],
        };
        let version = match self.txn_kv.store.commit("open", enroll).await? {
            Outcome::Done(version) => version,
            Outcome::Refused(found) => {
                // If an earlier call put the key and its answer was lost, the key is there, under our lease.
                let mut found = found.into_iter().flatten();
                let own = found.find(|kept| self.txn_kv.is_of(kept, session.id));
                let member = &session.member;
                let message = || format!("another live session has the member id {member:?}");
                own.ok_or_else(|| Error::new(ErrorKind::MemberExists, "open", message()))?.version
            }
        };
        self.txn_kv.write_fences.note(session.id, &key, version);
        Ok(())
    }
}
