//! The sessions that are open. Each is a session of Consul's: Consul chooses its id, and our id is its name.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::client::Connections;
use super::error::garbled;
use super::keys;
use super::kv::{Operation, Outcome, read_all, transact, transact_urgently};
use super::request::{Request, parsed};
use super::rights::{keys_under, lacking};
use crate::backend::{NewSession, SessionId};
use crate::error::{Effect, Error, ErrorKind, LossReason, Result};

/// How many keys `close` deletes in one transaction. Consul allows 64 operations, and each key takes two of them: a condition and
/// the deletion.
const GIVEN_BACK: usize = 32;

/// How many sessions are remembered: one is open, and earlier ones may still be closing. If there are more, the oldest is
/// forgotten, although Consul has not confirmed that it is closed. The forgotten session ends when its lease runs out.
const REMEMBERED: usize = 8;

/// The sessions that were opened and not closed.
pub(super) struct OpenSessions {
    pub(super) connections: Arc<Connections>,
    /// The prefix of all keys of the namespace.
    prefix: String,
    lock_delay: Duration,
    /// The sessions, the newest last, and no more than [`REMEMBERED`].
    known: Mutex<VecDeque<(SessionId, Known)>>,
}

#[derive(Clone)]
struct Known {
    /// Consul's id; `None`: the answer with the id was lost, or has not come yet.
    id: Option<Arc<str>>,
    /// How many requests to create the session were sent. Each of them may have created a session of this name at Consul, because
    /// answers may have been lost: so after more than one request, `close` searches for all of them.
    creates: u32,
}

/// The request to create a session. It replaces two defaults of Consul that would be wrong for us: a lock-delay of 15 s, and a
/// health check which ends sessions when the agent is thought to be down.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Wanted<'a> {
    name: &'a str,
    #[serde(rename = "TTL")]
    ttl: String,
    lock_delay: String,
    behavior: &'static str,
    node_checks: [&'static str; 0],
    checks: [&'static str; 0],
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Listed {
    #[serde(rename = "ID")]
    id: String,
    #[serde(default)]
    name: String,
}

impl OpenSessions {
    pub(super) fn new(connections: Arc<Connections>, prefix: String, lock_delay: Duration) -> Self {
        Self { connections, prefix, lock_delay, known: Mutex::default() }
    }

    /// Opens a session and locks the member's key for it; returns that key's modification index.
    pub(super) async fn open(&self, session: &NewSession, member_key: &str) -> Result<u64> {
        let id = self.find_or_create(session).await?;
        let name = session.id.to_string();
        let lock = Operation::lock(member_key, name.as_bytes(), &*id);
        // The key is locked over the connection that is kept open for heartbeats, so that opening a session needs no further
        // connection, which the agent might refuse.
        let locked = transact_urgently(&self.connections, "open", &[lock]).await;
        let error = match locked {
            Ok(Outcome::Done(pairs)) => {
                return Ok(pairs.first().map(|pair| pair.modify_index).unwrap_or_default());
            }
            Ok(Outcome::Refused(refusal)) if refusal.is_of_no_session() => {
                self.change(session.id, |known| known.id = None);
                let message = "the session ended while it was opened";
                return Err(Error::new(ErrorKind::Unavailable, "open", message));
            }
            Ok(Outcome::Refused(refusal)) if !refusal.is_of_another() => {
                return Err(Error::new(ErrorKind::Unavailable, "open", refusal.message));
            }
            Ok(Outcome::Refused(_)) => {
                let message =
                    format!("another live session has the member id {:?}", session.member);
                Error::new(ErrorKind::MemberExists, "open", message)
            }
            Err(error) if error.is_transient() => return Err(error),
            Err(error) if error.kind() == ErrorKind::Permission => {
                lacking("open", &keys_under(&self.prefix), error.message())
            }
            Err(error) => error,
        };
        // The member's key cannot be locked, and a repeated try would fail in the same way. So the session that was created for
        // it is closed.
        self.close(session.id).await?;
        Err(error)
    }

    /// Creates the session, or finds the one that an earlier call with a lost answer has created.
    async fn find_or_create(&self, session: &NewSession) -> Result<Arc<str>> {
        let known = self.find(session.id);
        if let Some(id) = known.as_ref().and_then(|known| known.id.clone()) {
            if self.is_renewed("open", &id).await? {
                return Ok(id);
            }
        } else if known.is_some() {
            let mut found = self.listed("open", session.id).await?.into_iter();
            if let Some(id) = found.next() {
                for other in found {
                    self.destroy("open", &other).await?;
                }
                if self.is_renewed("open", &id).await? {
                    self.change(session.id, |known| known.id = Some(id.clone()));
                    return Ok(id);
                }
            }
        }
        self.begin(session.id);
        let id = self.create(session).await?;
        self.change(session.id, |known| known.id = Some(id.clone()));
        Ok(id)
    }

    /// Renews the lease, so that the whole time of the lease is left again. If there is no further renewal, Consul ends the session
    /// after one to two times the time of the lease.
    pub(super) async fn renew(&self, session: SessionId) -> Result<()> {
        let over = || Error::lost("renew", LossReason::ExpiredByServer);
        let id = self.id(session).ok_or_else(over)?;
        if self.is_renewed("renew", &id).await? { Ok(()) } else { Err(over()) }
    }

    /// Destroys the session; Consul then deletes all keys that the session has locked. With a lock-delay Consul would keep the
    /// keys, so they are deleted here before the session is destroyed.
    pub(super) async fn close(&self, session: SessionId) -> Result<()> {
        let Some(known) = self.find(session) else { return Ok(()) };
        if let Some(id) = &known.id {
            if !self.lock_delay.is_zero() {
                // Keys that are deleted before the session ends are not subject to the lock-delay.
                self.give_back(id).await?;
            }
            self.destroy("close", id).await?;
        }
        // A call whose answer was lost may have created one more session after `find_or_create` had searched for it. So all
        // sessions with this name are destroyed.
        if known.id.is_none() || known.creates > 1 {
            for id in self.listed("close", session).await? {
                self.destroy("close", &id).await?;
            }
        }
        self.known().retain(|(id, _)| *id != session);
        Ok(())
    }

    async fn give_back(&self, id: &str) -> Result<()> {
        let (pairs, _) = read_all(&self.connections, "close", &self.prefix).await?;
        let own: Vec<_> = pairs.iter().filter(|pair| pair.is_of(id)).collect();
        for batch in own.chunks(GIVEN_BACK) {
            let steps: Vec<_> = batch
                .iter()
                .flat_map(|pair| {
                    [
                        Operation::is_unchanged(&*pair.key, pair.modify_index),
                        Operation::delete(&*pair.key),
                    ]
                })
                .collect();
            // If one of these keys has changed since it was read, Consul refuses the whole batch. In that case all keys of the
            // batch stay when the session ends, and other clients remove them once the lock-delay is over (`lock_delayed.rs`).
            transact(&self.connections, "close", &steps).await?;
        }
        Ok(())
    }

    async fn create(&self, session: &NewSession) -> Result<Arc<str>> {
        let wanted = Wanted {
            name: &session.id.to_string(),
            ttl: format!("{}ms", session.ttl.as_millis()),
            lock_delay: format!("{}ms", self.lock_delay.as_millis()),
            // With a lock-delay, keys must not be deleted with the session: Consul applies the delay only to keys that still
            // exist.
            behavior: if self.lock_delay.is_zero() { "delete" } else { "release" },
            node_checks: [],
            checks: [],
        };
        let body = serde_json::to_vec(&wanted)
            .map_err(|error| garbled("open", "cannot write a request").with_source(error))?;
        let answer =
            self.connections.send_urgently("open", Request::put("session/create", body)).await?;
        if answer.text().contains("Invalid Session TTL") {
            let message = format!(
                "`ttl` is shorter than the agent's `session_ttl_min` (10 s by default): {}",
                answer.text().trim().escape_debug()
            );
            return Err(Error::new(ErrorKind::Config, "open", message));
        }
        let refusal = answer.refusal("open");
        if refusal.kind() == ErrorKind::Permission {
            return Err(lacking("open", "session_prefix \"\"", refusal.message()));
        }
        let created: Listed = parsed("open", &answer.done("open")?)?;
        Ok(created.id.into())
    }

    /// Renews the session; false: there is no such session.
    async fn is_renewed(&self, operation: &'static str, id: &str) -> Result<bool> {
        let request = Request::put(format!("session/renew/{}", keys::path(id)), Vec::new());
        let answer = self.connections.send_urgently(operation, request).await?;
        if answer.status == 404 && answer.text().starts_with("Session id") {
            return Ok(false);
        }
        let renewed: Vec<Listed> = parsed(operation, &answer.done(operation)?)?;
        Ok(renewed.iter().any(|session| session.id == id))
    }

    /// Consul's ids of the sessions whose name is our id `session`.
    async fn listed(&self, operation: &'static str, session: SessionId) -> Result<Vec<Arc<str>>> {
        let request = Request::get("session/list").with("consistent");
        let answer = self.connections.send_urgently(operation, request).await?;
        let listed: Vec<Listed> = parsed(operation, &answer.done(operation)?)?;
        let name = session.to_string();
        let ours = listed.into_iter().filter(|listed| listed.name == name);
        Ok(ours.map(|listed| listed.id.into()).collect())
    }

    async fn destroy(&self, operation: &'static str, id: &str) -> Result<()> {
        let request = Request::put(format!("session/destroy/{}", keys::path(id)), Vec::new());
        let answer = self.connections.send_urgently(operation, request).await?;
        match parsed::<bool>(operation, &answer.done(operation)?)? {
            true => Ok(()),
            false => {
                Err(garbled(operation, "the session was not destroyed").with_effect(Effect::None))
            }
        }
    }

    /// Consul's id of a session.
    pub(super) fn id(&self, session: SessionId) -> Option<Arc<str>> {
        self.find(session)?.id
    }

    fn find(&self, session: SessionId) -> Option<Known> {
        let known = self.known();
        known.iter().find(|(id, _)| *id == session).map(|(_, known)| known.clone())
    }

    /// Notes that a request to create the session is about to be sent, and counts the requests.
    fn begin(&self, session: SessionId) {
        let mut known = self.known();
        let creates = known.iter().find(|(id, _)| *id == session).map_or(0, |(_, one)| one.creates);
        known.retain(|(id, _)| *id != session);
        known.push_back((session, Known { id: None, creates: creates + 1 }));
        if known.len() > REMEMBERED {
            known.pop_front();
        }
    }

    #[cfg(all(coordination_internals, feature = "memory"))]
    pub(super) fn count(&self) -> usize {
        self.known().len()
    }

    fn change(&self, session: SessionId, change: impl FnOnce(&mut Known)) {
        let mut known = self.known();
        if let Some((_, one)) = known.iter_mut().find(|(id, _)| *id == session) {
            change(one);
        }
    }

    fn known(&self) -> MutexGuard<'_, VecDeque<(SessionId, Known)>> {
        self.known.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
