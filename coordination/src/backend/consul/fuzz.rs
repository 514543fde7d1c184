//! A fuzz target: a server's answers, and keys and values under our prefix, which any program may have written.

use std::time::UNIX_EPOCH;

use coordination_fuzzing::{Bytes, Mutants, run};
use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;

use super::agent::Agent;
use super::entry::{blocker_in, entry_of};
use super::error::from_status;
use super::keys::{VALUE, is_entry};
use super::kv::{Outcome, Pair, listed, outcome};
use super::request::Answer;
use super::values::value_of;
use crate::backend::Mode;
use crate::backend::server::txn_kv::Keys;
use crate::backend::server::txn_kv::keys::queue_of;
use crate::error::ErrorKind;
use crate::key::QueueKey;

const PREFIX: &str = "ns/lock/";

const ANSWERS: [&str; 10] = [
    r#"{"Results":[{"KV":{"LockIndex":1,"Key":"ns/lock/a%2Fb/2ffee76b64247a2d-000012","Flags":0,"Value":"eyJtZW1iZXIiOiJob3N0LTEiLCJzaW5jZV9tcyI6MTc5NTE3MTIwMDAwMH0=","Session":"7c5e2824-508f-2213-9654-580b9d42afa3","CreateIndex":9,"ModifyIndex":9}}],"Errors":null}"#,
    r#"{"Results":null,"Errors":[{"OpIndex":1,"What":"key \"ns/lock/a/1\" exists"}]}"#,
    r#"{"Results":null,"Errors":[{"OpIndex":0,"What":"invalid session \"8ac1b6ae\""}]}"#,
    r#"[{"LockIndex":0,"Key":"ns/lock/a%2Fb/.value","Flags":0,"Value":"eyJpZCI6NywiZGF0YSI6Im51bGwifQ==","CreateIndex":3,"ModifyIndex":7}]"#,
    r#"[{"LockIndex":1,"Key":"ns/lock/a%2Fb/2ffee76b64247a2d-000012","Flags":0,"Value":null,"Session":"7c","CreateIndex":9,"ModifyIndex":12}]"#,
    r#"["ns/lock/a%2Fb/.value","ns/lock/h~qsqgpdeqsn7v3t4zstkymzti3jvzsuijzcwyivaqkwnurjhmv7wq/.value"]"#,
    r#"{"DebugConfig":{"DevMode":false,"SessionTTLMin":"500ms"}}"#,
    "No cluster leader",
    "rpc error making call: Permission denied",
    "",
];

const TOKENS: [&str; 12] =
    ["/", ".value", "-", "\0", "{", "[", "\"", "null", ":", ",", "\\ud800", "18446744073709551616"];

fn inputs() -> impl Strategy<Value = (Bytes, u16)> {
    let status = prop_oneof![Just(200), Just(404), Just(409), Just(500), any::<u16>()];
    (Mutants::of(ANSWERS).with_tokens(&TOKENS).bytes(), status)
}

#[test]
fn fuzz_consul() {
    run("fuzz_consul", &inputs(), |(body, status)| any_answer(&body.0, status));
}

fn any_answer(body: &[u8], status: u16) -> TestCaseResult {
    let answer = || Answer { status, index: 0, body: body.to_vec() };
    Agent::read(body);
    let refusal = from_status("enter", status, &String::from_utf8_lossy(body)).to_string();
    prop_assert!(refusal.len() < 9_999 && !refusal.contains('\n'));
    if let Ok(names) = listed::<String>("watch", answer()) {
        for name in &names {
            if let Some(queue) = queue_of(name, PREFIX, is_entry) {
                let keys = Keys::new(format!("{PREFIX}{queue}/"));
                prop_assert!(
                    !queue.contains('/') && keys.name(name).is_some_and(is_entry),
                    "{queue:?}"
                );
            }
            let Some(queue) = queue_of(name, PREFIX, |name| name == VALUE) else { continue };
            let whole = Keys::new(format!("{PREFIX}{queue}/")).key(VALUE);
            prop_assert!(!queue.contains('/') && whole == *name, "{queue:?}");
        }
    }
    if let Ok(pairs) = listed::<Pair>("list", answer()) {
        any_pairs(&pairs)?;
    }
    match outcome("enter", answer()) {
        Ok(Outcome::Done(pairs)) => {
            prop_assert_eq!(status, 200);
            any_pairs(&pairs)
        }
        Ok(Outcome::Refused(refusal)) => {
            refusal.is_of_no_session();
            Ok(())
        }
        Err(_) => Ok(()),
    }
}

fn any_pairs(pairs: &[Pair]) -> TestCaseResult {
    let queue = QueueKey::new("lock", "a/b", 10).expect("a valid name");
    let keys = Keys::new(format!("{PREFIX}a%2Fb/"));
    for pair in pairs {
        if let Some(entry) = entry_of(pair, &keys) {
            prop_assert!(pair.is_locked() || pair.is_left());
            prop_assert!(keys.key(entry.id.as_str()) == pair.key);
            prop_assert!(entry.since.is_none_or(|since| since >= UNIX_EPOCH));
        }
        if let Err(error) = value_of(pair) {
            prop_assert_eq!(error.kind(), ErrorKind::Corrupt);
        }
    }
    for mode in [Mode::Exclusive, Mode::Shared] {
        if let Ok(Some(blocker)) = blocker_in(pairs, &keys, &queue, (10, mode)) {
            prop_assert!(blocker.seq < 10);
        }
    }
    Ok(())
}
