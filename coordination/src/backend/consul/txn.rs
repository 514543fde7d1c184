//! The transactions of [`txn_kv`](crate::backend::server::txn_kv), translated to Consul's.
//!
//! If Consul refuses a transaction, its answer does not contain the keys that [`Txn::looks`] names. One more request reads these
//! keys, so they may have changed since the refusal.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::client::Agents;
use super::entry::{counts, name_of};
use super::keys;
use super::kv::{self, Operation, Pair, delete, listed, read_all, read_together, transact_on};
use super::open_sessions::OpenSessions;
use super::request::Request;
use crate::backend::server::connections::Ready;
use crate::backend::server::txn_kv::{
    Change, Condition, Kept, Keys, Outcome, Queue, Transact, Txn, WriteFence,
};
use crate::backend::{Cursor, Left, SessionId};
use crate::error::{Error, ErrorKind, LossReason, Result};

pub(super) struct Transactions {
    sessions: Arc<OpenSessions>,
    /// A counter from which each `lock` for [`Change::Hold`] takes a new number for the key's flags. Without a new number, a
    /// `lock` that leaves the key's value and session as they are would not raise the key's index, and so would not end a write
    /// fence.
    puts: AtomicU64,
}

impl Transactions {
    pub(super) fn new(sessions: Arc<OpenSessions>) -> Self {
        Self { sessions, puts: AtomicU64::new(0) }
    }

    /// Makes a transaction in Consul's own operations; an error if the session is over, or a lock-delay keeps a key from being
    /// locked.
    pub(super) async fn make(
        &self,
        operation: &'static str,
        steps: &[Operation<'_>],
    ) -> Result<kv::Outcome> {
        self.make_on(self.sessions.connections.ready(operation).await?, steps).await
    }

    /// [`make`](Self::make), in the slot `ready`, which the caller has got before: only a limited number of calls may be in flight.
    pub(super) async fn make_on(
        &self,
        ready: Ready<'_, Agents>,
        steps: &[Operation<'_>],
    ) -> Result<kv::Outcome> {
        let operation = ready.operation;
        match transact_on(ready, steps).await? {
            kv::Outcome::Refused(refusal) if refusal.is_of_no_session() => Err(over(operation)),
            kv::Outcome::Refused(refusal) if refusal.is_of_delay() => {
                Err(Error::new(ErrorKind::Unavailable, operation, refusal.message))
            }
            outcome => Ok(outcome),
        }
    }

    /// Consul's id of a session.
    pub(super) fn id(&self, operation: &'static str, session: SessionId) -> Result<Arc<str>> {
        self.sessions.id(session).ok_or_else(|| over(operation))
    }

    fn steps(&self, operation: &'static str, change: Change) -> Result<Vec<Operation<'static>>> {
        let number = self.puts.fetch_add(1, Ordering::Relaxed) + 1;
        Ok(match change {
            Change::Put(key, value) => vec![Operation::set(key, &value)],
            Change::Delete(key) => vec![Operation::delete(key)],
            Change::Hold(key, value, session) => {
                let id = self.id(operation, session)?;
                vec![Operation::lock(key, &value, id.to_string()).numbered(number)]
            }
            Change::Seize(key, session) => {
                let id = self.id(operation, session)?;
                vec![Operation::delete(key.clone()), Operation::lock(key, b"", id.to_string())]
            }
        })
    }

    async fn look(&self, operation: &'static str, keys: Vec<String>) -> Result<Vec<Option<Kept>>> {
        let reads: Vec<_> = keys.iter().map(|key| Operation::read(key.as_str())).collect();
        let pairs = match reads.is_empty() {
            true => Vec::new(),
            false => read_together(&self.sessions.connections, operation, &reads).await?,
        };
        let find = |key: &String| pairs.iter().find(|pair| pair.key == *key).map(kept);
        Ok(keys.iter().map(find).collect())
    }
}

impl Transact for Transactions {
    const LOOKS_AT_ONCE: bool = false;
    const ALL_COUNT: bool = false;
    const VALUE: &'static str = keys::VALUE;
    const REMOVED: &'static str = keys::REMOVED;
    const IS_ENTRY: fn(&str) -> bool = keys::is_entry;
    type Check = Infallible;

    async fn commit(&self, operation: &'static str, txn: Txn<Infallible>) -> Result<Outcome> {
        let mut steps: Vec<_> = txn.conditions.into_iter().map(check).collect();
        for change in txn.changes {
            steps.extend(self.steps(operation, change)?);
        }
        match self.make(operation, &steps).await? {
            kv::Outcome::Done(pairs) => {
                let version = pairs.iter().map(|pair| pair.modify_index).max();
                Ok(Outcome::Done(version.unwrap_or_default()))
            }
            kv::Outcome::Refused(_) => self.look(operation, txn.looks).await.map(Outcome::Refused),
        }
    }

    async fn delete(&self, key: &str, only: Option<u64>) -> Result<()> {
        let Some(seq) = only else { return delete(&self.sessions.connections, "leave", key).await };
        let mut modified = seq;
        loop {
            let steps = [Operation::is_unchanged(key, modified), Operation::delete(key)];
            if let kv::Outcome::Done(_) = self.make("leave", &steps).await? {
                return Ok(());
            }
            // The delete was refused: the entry was updated, or is gone. If it was updated, try again with its new index.
            let (found, _) = read_all(&self.sessions.connections, "leave", key).await?;
            let is_it = |pair: &&Pair| pair.key == key && pair.create_index == seq;
            match found.iter().find(is_it) {
                Some(pair) => modified = pair.modify_index,
                None => return Ok(()),
            }
        }
    }

    /// Consul has no condition on a range of keys. So this puts the key `.closing`, and reads the queue in the same transaction.
    /// Whoever enters from now on removes `.closing`. The value is then written on condition that `.closing` is unchanged: so the
    /// write is refused if an entry was entered in between.
    async fn alone(&self, keys: &Keys, write_fence: &WriteFence) -> Result<Queue<Infallible>> {
        let (closing, id) = (keys.key(keys::CLOSING), self.id("write", write_fence.session)?);
        let look = [
            Operation::delete(closing.as_str()),
            Operation::lock(closing.as_str(), b"", &*id),
            Operation::read(keys.prefix()),
        ];
        let pairs = match self.make("write", &look).await? {
            kv::Outcome::Done(pairs) => pairs,
            kv::Outcome::Refused(refusal) => {
                return Err(Error::new(ErrorKind::Unavailable, "write", refusal.message));
            }
        };
        let find = |key: &str| pairs.iter().find(|pair| pair.key == key);
        let closed = find(&closing).map_or(0, |pair| pair.modify_index);
        let alone = Txn {
            conditions: vec![Condition::Version(closing.clone(), closed)],
            changes: vec![Change::Delete(closing.clone())],
            looks: Vec::new(),
        };
        if pairs.iter().any(|pair| name_of(pair, keys).is_some()) {
            let value = find(&keys.key(Self::VALUE)).map(kept);
            self.commit("write", alone).await?;
            return Ok(Queue::Taken(value));
        }
        Ok(Queue::Empty(alone))
    }

    /// For each key, reads all keys that begin with it, and then picks the key itself. An operation that reads a single key would
    /// make the whole transaction fail if that key is absent.
    async fn fetch(&self, keys: &[String]) -> Result<Vec<Option<Vec<u8>>>> {
        let reads: Vec<_> = keys.iter().map(|key| Operation::read(key.as_str())).collect();
        let pairs = read_together(&self.sessions.connections, "read", &reads).await?;
        let value = |key: &String| pairs.iter().find(|pair| pair.key == *key).map(Pair::value);
        Ok(keys.iter().map(value).collect())
    }

    /// Consul can only list all keys in one answer. So the first call reads all of them and keeps the rest of the list in the
    /// cursor, from which each further call takes a page.
    async fn list(
        &self,
        prefix: &str,
        from: Option<&Cursor>,
    ) -> Result<(Vec<String>, Option<Cursor>)> {
        let all = async {
            let request = Request::get(format!("kv/{}", keys::path(prefix)));
            let request = request.with("keys").with("consistent");
            listed("list", self.sessions.connections.send("list", request).await?)
        };
        let left = Left::from(from, all).await?;
        let (page, next) = left.page();
        Ok((page.to_vec(), next))
    }

    async fn read_each(&self, prefixes: Vec<String>) -> Result<Vec<(String, Vec<u8>)>> {
        let reads: Vec<_> = prefixes.into_iter().map(Operation::read).collect();
        let pairs = read_together(&self.sessions.connections, "list", &reads).await?;
        let read = pairs.into_iter().filter(|pair| counts(pair) || pair.key.ends_with(Self::VALUE));
        let text = |pair: Pair| {
            let text = pair.value();
            (pair.key, text)
        };
        Ok(read.map(text).collect())
    }

    fn owner(&self, session: SessionId) -> Option<Arc<str>> {
        self.sessions.id(session)
    }
}

pub(super) fn check(condition: Condition<Infallible>) -> Operation<'static> {
    match condition {
        Condition::Version(key, 0) => Operation::is_absent(key),
        Condition::Version(key, version) => Operation::is_unchanged(key, version),
        Condition::Own(never) => match never {},
    }
}

pub(super) fn kept(pair: &Pair) -> Kept {
    Kept {
        version: pair.modify_index,
        created: pair.create_index,
        value: pair.value(),
        owner: pair.session.as_deref().unwrap_or_default().into(),
    }
}

fn over(operation: &'static str) -> Error {
    Error::lost(operation, LossReason::ExpiredByServer)
}
