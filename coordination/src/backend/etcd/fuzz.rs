//! A fuzz target: keys and values under our prefix, which any program may have written.

use std::time::UNIX_EPOCH;

use coordination_fuzzing::{Bytes, Mutants, run};
use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;

use super::client::early_expiry;
use super::entry::{entry_in, number, revision_of};
use super::keys::{SHARED, VALUE, is_entry};
use crate::backend::server::stored::{StoredEntry, StoredValue, name_in, queue_name};
use crate::backend::server::txn_kv::Keys;
use crate::backend::server::txn_kv::keys::queue_of;
use crate::backend::{EntryId, EntryRef, Mode, NewEntry, Room, SessionId};
use crate::error::ErrorKind;
use crate::key::QueueKey;

const PREFIX: &str = "ns/lock/";

const KEYS: [&str; 8] = [
    "ns/lock/a%2Fb/694d8b1c2ffee76b",
    "ns/lock/a%2Fb/r694d8b1c2ffee76b-1",
    "ns/lock/a%2Fb/!",
    "ns/lock/h~qsqgpdeqsn7v3t4zstkymzti3jvzsuijzcwyivaqkwnurjhmv7wq/!",
    "ns/lock/",
    "ns/lock/a%2Fb/",
    "ns/lock/a%2Fb/a/b",
    "ns/lockx",
];

const VALUES: [&str; 8] = [
    r#"{"member":"host-1","since_ms":1795171200000}"#,
    r#"{"member":"host-1","since_ms":1795171200000,"name":"a/b","shared":true,"data":"{\"wants\":1}"}"#,
    r#"{"id":12345678901234567890,"data":"null"}"#,
    r#"{"id":7,"data":"\"é\"","name":"long"}"#,
    r#"{"name":7}"#,
    "[]",
    "held by python",
    "",
];

const TOKENS: [&str; 12] =
    ["/", "!", "r", "\0", "{", "[", "\"", "null", ":", ",", "\\ud800", "\"name\":\"x\","];

const VERSIONS: [&str; 4] = ["3.4.30", "3.5.13", "3.6.0-rc.1+git", ""];

#[derive(Clone, Debug)]
enum Input {
    Pair { key: Bytes, value: Bytes, revision: i64 },
    Ours { member: String, data: String, shared: bool, since_ms: u64, name: String },
    Version(String),
}

fn inputs() -> impl Strategy<Value = Input> {
    let bytes = |seeds: &[&str]| Mutants::of(seeds.iter().copied()).with_tokens(&TOKENS).bytes();
    let pair = (bytes(&KEYS), bytes(&VALUES), any::<i64>());
    let ours = (any::<String>(), any::<String>(), any::<bool>(), any::<u64>(), ".{1,200}");
    prop_oneof![
        6 => pair.prop_map(|(key, value, revision)| Input::Pair { key, value, revision }),
        2 => ours.prop_map(|(member, data, shared, since_ms, name)| {
            Input::Ours { member, data, shared, since_ms, name }
        }),
        1 => Mutants::of(VERSIONS).text().prop_map(Input::Version),
    ]
}

#[test]
fn fuzz_etcd() {
    run("fuzz_etcd", &inputs(), |input| match input {
        Input::Pair { key, value, revision } => any_pair(&key.0, &value.0, revision),
        Input::Ours { member, data, shared, since_ms, name } => {
            let mode = if shared { Mode::Shared } else { Mode::Exclusive };
            ours(&member, &data, mode, since_ms, &name)
        }
        Input::Version(version) => {
            early_expiry(&version);
            Ok(())
        }
    });
}

fn any_pair(key: &[u8], value: &[u8], revision: i64) -> TestCaseResult {
    // A key that is not valid UTF-8 was not written by us, so the backend ignores it. Here an empty key takes its place.
    let key = std::str::from_utf8(key).unwrap_or_default();
    let keys = Keys::new(format!("{PREFIX}a%2Fb/"));
    if let Some(name) = keys.name(key) {
        prop_assert!(keys.key(name) == key, "{name:?}");
        let entry = entry_in(name, value, number(revision));
        prop_assert_eq!(entry.id.as_str(), name);
        prop_assert!(entry.mode == Mode::Shared || !name.starts_with(SHARED));
        prop_assert!(entry.since.is_none_or(|since| since >= UNIX_EPOCH));
    }
    if let Some(queue) = queue_of(key, PREFIX, |name| name == VALUE) {
        prop_assert!(!queue.contains('/'));
        let whole = Keys::new(format!("{PREFIX}{queue}/")).key(VALUE);
        prop_assert!(whole == key, "{queue:?}");
    }
    if let Some(queue) = queue_of(key, PREFIX, is_entry) {
        let keys = Keys::new(format!("{PREFIX}{queue}/"));
        prop_assert!(!queue.contains('/') && keys.name(key).is_some_and(is_entry), "{queue:?}");
        let name = queue_name(queue, value);
        prop_assert!(name.is_none_or(|name| crate::key::encode(&name) == queue), "{queue:?}");
    }
    let _ = name_in(value);
    if let Err(error) = StoredValue::read(value) {
        prop_assert_eq!(error.kind(), ErrorKind::Corrupt);
    }
    prop_assert!(revision < 0 || revision_of(number(revision)) == revision);
    Ok(())
}

/// What we have written is read back unchanged.
fn ours(member: &str, data: &str, mode: Mode, since_ms: u64, name: &str) -> TestCaseResult {
    let queue = QueueKey::new("lock", name, usize::MAX).expect("it has a character");
    let hashed = queue.is_hashed().then(|| name.to_owned());
    let session = SessionId::random();
    let entry_ref = EntryRef { queue: queue.clone(), id: EntryId::random(session) };
    let new = NewEntry {
        entry_ref,
        session,
        member: member.into(),
        label: Some(data.into()),
        mode,
        data: data.into(),
        room: Room::default(),
    };
    let written = StoredEntry::new(&new, since_ms).to_bytes().expect("plain data");
    let read = entry_in("694d", &written, 7);
    prop_assert_eq!((&*read.member, &*read.data, read.mode, read.seq), (member, data, mode, 7));
    prop_assert_eq!(read.label.as_deref(), Some(data));
    prop_assert_eq!(name_in(&written), hashed.clone());
    let written = StoredValue::new(&queue, since_ms, data).to_bytes().expect("plain data");
    let read = StoredValue::read(&written).expect("it was written so");
    prop_assert_eq!((read.id, &*read.data), (since_ms, data));
    prop_assert_eq!(name_in(&written), hashed);
    Ok(())
}
