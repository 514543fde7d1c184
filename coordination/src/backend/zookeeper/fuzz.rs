//! A fuzz target: names and data of nodes, which any other program may have made, and a server's answer to the first request of a
//! connecting client (`probe.rs`).

use std::time::UNIX_EPOCH;

use coordination_fuzzing::{Bytes, Mutants, run};
use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;
use zookeeper_client::Stat;

use super::config::Style;
use super::entry::{entry_of, number};
use super::probe::granted_lease;
use super::values::value_of;
use crate::backend::server::stored::StoredEntry;
use crate::backend::{EntryId, EntryRef, Mode, NewEntry, Room, SessionId};
use crate::error::ErrorKind;
use crate::key::QueueKey;

const NAMES: [&str; 8] = [
    "694d8b1c2ffee76b-00112233445566778899aabbccddeeff__lock__0000000012",
    "694d8b1c2ffee76b-00112233445566778899aabbccddeeff__rlock__2147483647",
    "8a1f0e6c3b7d4c21a0f9e8d7c6b5a493__lock__-2147483648",
    "_c_694d8b1c2ffee76b-00112233445566778899aabbccddeeff-lock-0000000012",
    "_c_2a0b8c1e-0000-4000-8000-1234567890ab-__READ__0000000001",
    "_c_2a0b8c1e-0000-4000-8000-1234567890ab-__WRIT__-000000001",
    "latch-0000000001",
    "",
];

const DATA: [&str; 6] = [
    r#"{"member":"host-1","since_ms":1795171200000}"#,
    r#"{"member":"h","since_ms":1,"name":"a/b","shared":true,"data":"{\"wants\":1}"}"#,
    r#"{"id":12345678901234567890,"data":"null"}"#,
    r#"{"id":7,"data":"\"é\"","name":"long"}"#,
    "held by python",
    "",
];

const TOKENS: [&str; 10] =
    ["__lock__", "__rlock__", "-lock-", "_c_", "-", "0000000000", "{", "\"", "null", "\\ud800"];

/// A server's answer to a request for a session: protocol 0, a lease of nearly 4 s, the session's id and its password.
const ANSWER: &str = "\0\0\0\0\0\0\u{f}\u{20}\0\0\0\0\0\0\0\u{1}\0\0\0\u{10}0123456789abcdef\0";

#[derive(Clone, Debug)]
enum Input {
    Node { name: String, data: Bytes, transaction: i64 },
    Ours { member: String, data: String, shared: bool, since_ms: u64, name: String, order: i32 },
    Answer(Bytes),
}

fn inputs() -> impl Strategy<Value = Input> {
    let name = Mutants::of(NAMES).with_tokens(&TOKENS).text();
    let data = Mutants::of(DATA).with_tokens(&TOKENS).bytes();
    let ours =
        (any::<String>(), any::<String>(), any::<bool>(), any::<u64>(), ".{1,200}", any::<i32>());
    prop_oneof![
        6 => (name, data, any::<i64>())
            .prop_map(|(name, data, transaction)| Input::Node { name, data, transaction }),
        2 => ours.prop_map(|(member, data, shared, since_ms, name, order)| {
            Input::Ours { member, data, shared, since_ms, name, order }
        }),
        1 => Mutants::of([ANSWER]).bytes().prop_map(Input::Answer),
    ]
}

#[test]
fn fuzz_zookeeper() {
    run("fuzz_zookeeper", &inputs(), |input| match input {
        Input::Node { name, data, transaction } => any_node(&name, &data.0, transaction),
        Input::Ours { member, data, shared, since_ms, name, order } => {
            let mode = if shared { Mode::Shared } else { Mode::Exclusive };
            ours(&member, &data, mode, since_ms, &name, order)
        }
        Input::Answer(answer) => {
            let lease = granted_lease(&answer.0);
            prop_assert!(lease.is_none_or(|lease| !lease.is_zero()));
            Ok(())
        }
    });
}

fn any_node(name: &str, data: &[u8], transaction: i64) -> TestCaseResult {
    let stat = stat(transaction);
    for style in [Style::Kazoo, Style::Curator] {
        let Some(node) = style.read(name) else { continue };
        prop_assert_eq!(node.name, name);
        let id = style.id(node);
        prop_assert_eq!(style.name(&id), name);
        let entry = entry_of(id, node, data, &stat);
        prop_assert_eq!(entry.seq, number(transaction));
        prop_assert!(entry.mode == Mode::Shared || node.mode == Mode::Exclusive);
        prop_assert!(entry.since.is_none_or(|since| since >= UNIX_EPOCH));
        for other in [node.number.wrapping_add(1), node.number.wrapping_sub(1)] {
            prop_assert!(node.is_before(other) == (other == node.number.wrapping_add(1)));
        }
    }
    if let Err(error) = value_of(data, &stat) {
        prop_assert_eq!(error.kind(), ErrorKind::Corrupt);
    }
    Ok(())
}

/// An entry that this library writes must be read back unchanged.
fn ours(
    member: &str,
    data: &str,
    mode: Mode,
    since_ms: u64,
    name: &str,
    order: i32,
) -> TestCaseResult {
    let queue = QueueKey::new("lock", name, usize::MAX).expect("it has a character");
    let session = SessionId::random();
    let entry_ref = EntryRef { queue, id: EntryId::random(session) };
    let id = entry_ref.id.clone();
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
    for style in [Style::Kazoo, Style::Curator] {
        let name = format!("{}{order:010}", style.prefix(&id, mode));
        let node = style.read(&name).expect("a contender");
        prop_assert_eq!((node.mode, node.number), (mode, order));
        let read = entry_of(style.id(node), node, &written, &stat(7));
        prop_assert!(read.id.is_of(session));
        prop_assert_eq!((&*read.member, &*read.data, read.mode), (member, data, mode));
        prop_assert_eq!(read.label.as_deref(), Some(data));
    }
    Ok(())
}

fn stat(transaction: i64) -> Stat {
    Stat {
        czxid: transaction,
        mzxid: transaction,
        pzxid: 0,
        ctime: 0,
        mtime: 0,
        version: 0,
        cversion: 0,
        aversion: 0,
        ephemeral_owner: 0,
        data_length: 0,
        num_children: 0,
    }
}
