//! The transactions of [`txn_kv`](crate::backend::server::txn_kv), translated to etcd's.

use std::sync::Arc;

use etcd_client::{
    Client, Compare, CompareOp, GetOptions, GetResponse, KeyValue, PutOptions, ResponseHeader,
    TxnOp, TxnOpResponse, TxnResponse,
};

use super::client::{Connections, Endpoints, LONGEST_ANSWER};
use super::entry::{lease_of, number, revision_of};
use super::keys;
use crate::backend::server::connections::Ready;
use crate::backend::server::txn_kv::{
    Change, Condition, Kept, Keys, Outcome, Queue, Transact, Txn, WriteFence,
};
use crate::backend::{Cursor, PAGE, SessionId};
use crate::error::Result;

pub(super) struct Transactions(pub(super) Arc<Connections>);

/// The condition that no key exists in the range that begins with `from` and ends before `to`.
#[derive(Clone, Debug)]
pub(super) struct NoKey {
    from: String,
    to: String,
}

impl Transactions {
    pub(super) async fn make(
        &self,
        operation: &'static str,
        txn: etcd_client::Txn,
    ) -> Result<TxnResponse> {
        make_on(self.0.ready(operation).await?, txn).await
    }

    pub(super) async fn get(
        &self,
        operation: &'static str,
        key: &(impl AsRef<[u8]> + ?Sized + Sync),
        options: GetOptions,
    ) -> Result<GetResponse> {
        let key = key.as_ref();
        let read = |client: Client| {
            let mut kv = client.kv_client().max_decoding_message_size(LONGEST_ANSWER);
            let options = options.clone();
            async move { kv.get(key, Some(options)).await }
        };
        let answer = self.0.call(operation, async |connected| connected.call(read).await).await?;
        self.0.link.saw(revision_in(answer.header()));
        Ok(answer)
    }
}

/// Sends a transaction in the slot `ready`, which the caller has got before: only a limited number of calls may be in flight.
pub(super) async fn make_on(
    ready: Ready<'_, Endpoints>,
    txn: etcd_client::Txn,
) -> Result<TxnResponse> {
    let make = |client: Client| {
        let mut kv = client.kv_client().max_decoding_message_size(LONGEST_ANSWER);
        let txn = txn.clone();
        async move { kv.txn(txn).await }
    };
    let endpoints = &ready.connections.link;
    let answer = ready.make(async |connected| connected.call(make).await).await?;
    endpoints.saw(revision_in(answer.header()));
    Ok(answer)
}

impl Transact for Transactions {
    const LOOKS_AT_ONCE: bool = true;
    const ALL_COUNT: bool = true;
    const VALUE: &'static str = keys::VALUE;
    const REMOVED: &'static str = keys::REMOVED;
    const IS_ENTRY: fn(&str) -> bool = keys::is_entry;
    type Check = NoKey;

    async fn commit(&self, operation: &'static str, txn: Txn<NoKey>) -> Result<Outcome> {
        let Txn { conditions, changes, looks } = txn;
        let count = looks.len();
        let read = |key| TxnOp::get(key, None);
        let txn = etcd_client::Txn::new()
            .when(conditions.into_iter().map(compare).collect::<Vec<_>>())
            .and_then(changes.into_iter().map(change).collect::<Vec<_>>())
            .or_else(looks.into_iter().map(read).collect::<Vec<_>>());
        let answer = self.make(operation, txn).await?;
        if answer.succeeded() {
            return Ok(Outcome::Done(number(revision_in(answer.header()))));
        }
        let look = |nth| found(&answer, nth).first().map(kept);
        Ok(Outcome::Refused((0..count).map(look).collect()))
    }

    async fn delete(&self, key: &str, only: Option<u64>) -> Result<()> {
        let delete = async |client: Client| {
            let Some(seq) = only else {
                let deleted = client.kv_client().delete(key, None).await?;
                return Ok(revision_in(deleted.header()));
            };
            let same = Compare::create_revision(key, CompareOp::Equal, revision_of(seq));
            let delete = [TxnOp::delete(key, None)];
            let delete = etcd_client::Txn::new().when([same]).and_then(delete);
            Ok(revision_in(client.kv_client().txn(delete).await?.header()))
        };
        let deleted = self.0.call("leave", async |connected| connected.call(delete).await);
        self.0.link.saw(deleted.await?);
        Ok(())
    }

    /// In etcd, one condition can say that a whole range of keys is empty. So nothing has to be put before the value is written,
    /// or removed afterwards.
    async fn alone(&self, keys: &Keys, _write_fence: &WriteFence) -> Result<Queue<NoKey>> {
        let entries = keys::entries(keys);
        let conditions = vec![Condition::Own(NoKey { from: entries.from, to: entries.to })];
        Ok(Queue::Empty(Txn { conditions, ..Txn::default() }))
    }

    async fn fetch(&self, keys: &[String]) -> Result<Vec<Option<Vec<u8>>>> {
        let gets: Vec<_> = keys.iter().map(|key| TxnOp::get(key.as_str(), None)).collect();
        let answer = self.make("read", etcd_client::Txn::new().and_then(gets)).await?;
        let value = |nth| found(&answer, nth).first().map(|kv| kv.value().to_vec());
        Ok((0..keys.len()).map(value).collect())
    }

    async fn list(
        &self,
        prefix: &str,
        from: Option<&Cursor>,
    ) -> Result<(Vec<String>, Option<Cursor>)> {
        // A page goes on after the last key of the page before: the next key in order is that key with a zero byte appended.
        let first = match Cursor::place(from) {
            [] => prefix.as_bytes().to_vec(),
            last => [last, b"\0"].concat(),
        };
        let page = GetOptions::new().with_range(end_of(prefix)).with_keys_only();
        let answer = self.get("list", &first, page.with_limit(PAGE as i64)).await?;
        let last = answer.kvs().last().filter(|_| answer.more());
        let next = last.map(|kv| Cursor::to(kv.key()));
        // A key that is not valid UTF-8 was not written by us.
        let keys = answer.kvs().iter().filter_map(|kv| Some(kv.key_str().ok()?.to_owned()));
        Ok((keys.collect(), next))
    }

    async fn read_each(&self, prefixes: Vec<String>) -> Result<Vec<(String, Vec<u8>)>> {
        let read = |prefix| TxnOp::get(prefix, Some(GetOptions::new().with_prefix()));
        let count = prefixes.len();
        let reads: Vec<_> = prefixes.into_iter().map(read).collect();
        let answer = self.make("list", etcd_client::Txn::new().and_then(reads)).await?;
        let found = (0..count).flat_map(|nth| found(&answer, nth));
        let text = |kv: KeyValue| Some((kv.key_str().ok()?.to_owned(), kv.value().to_vec()));
        Ok(found.filter_map(text).collect())
    }

    fn owner(&self, session: SessionId) -> Option<Arc<str>> {
        Some(session.to_string().into())
    }
}

/// The first key after all that begin with this prefix, which ends with a slash: `0` comes after `/`.
pub(super) fn end_of(prefix: &str) -> String {
    format!("{}0", prefix.strip_suffix('/').unwrap_or(prefix))
}

pub(super) fn compare(condition: Condition<NoKey>) -> Compare {
    match condition {
        // etcd compares a key that does not exist as if its revision were zero.
        Condition::Version(key, version) => {
            Compare::mod_revision(key, CompareOp::Equal, revision_of(version))
        }
        // The comparison must hold for every key of the range. No key that exists has the create revision zero: so the comparison
        // holds only if the range is empty.
        Condition::Own(NoKey { from, to }) => {
            Compare::create_revision(from, CompareOp::Equal, 0).with_range(to)
        }
    }
}

fn change(change: Change) -> TxnOp {
    let with = |session| Some(PutOptions::new().with_lease(lease_of(session)));
    match change {
        Change::Put(key, value) => TxnOp::put(key, value, None),
        Change::Hold(key, value, session) => TxnOp::put(key, value, with(session)),
        Change::Seize(key, session) => TxnOp::put(key, "", with(session)),
        Change::Delete(key) => TxnOp::delete(key, None),
    }
}

pub(super) fn kept(kv: &KeyValue) -> Kept {
    Kept {
        version: number(kv.mod_revision()),
        created: number(kv.create_revision()),
        value: kv.value().to_vec(),
        owner: format!("{:016x}", kv.lease()).into(),
    }
}

/// The revision of the store in an answer's header; if the request changed something, the revision of that change.
pub(super) fn revision_in(header: Option<&ResponseHeader>) -> i64 {
    header.map_or(0, ResponseHeader::revision)
}

/// The keys that the `nth` read of a transaction found.
pub(super) fn found(answer: &TxnResponse, nth: usize) -> Vec<KeyValue> {
    let mut reads = answer.op_responses().into_iter().filter_map(|response| match response {
        TxnOpResponse::Get(mut found) => Some(found.take_kvs()),
        _ => None,
    });
    reads.nth(nth).unwrap_or_default()
}

/// Reads a key without its value.
pub(super) fn keys_only(key: &str) -> TxnOp {
    TxnOp::get(key, Some(GetOptions::new().with_keys_only()))
}
