//! A fuzz target for the parsers of what a server sends: any program may have written to the server, so no input may make a parser
//! panic.

use std::time::UNIX_EPOCH;

use coordination_fuzzing::{Bytes, Mutants, run};
use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;

use super::entry::entry_in;
use super::server::Server;
use super::topology::{Topology, moved};
use super::values::parts;
use crate::backend::Mode;
use crate::backend::server::notifications::{Passed, happened};
use crate::backend::server::stored::StoredValue;
use crate::error::ErrorKind;
use crate::url::Host;

const INFOS: [&str; 3] = [
    "# Server\r\nrun_id:6f1ed002ab5595859014ebf0951522d9\r\nmaster_replid:b\r\nrole:master\r\naof_enabled:1\r\n",
    "run_id:a\nmaster_replid:18446744073709551615\nmaxmemory:1\nmaxmemory_policy:allkeys-lru\n",
    "role:slave\r\n",
];

const MESSAGES: [&str; 5] = [
    "lock/a%2Fb 1795171200000000 exclusive 1795171200000001 free",
    "lock/a 7 shared 9 blocked",
    "gone 1795171200000000",
    "shared 7",
    "entered",
];

const TEXTS: [&str; 5] = [
    r#"{"member":"host-1","since_ms":1795171200000}"#,
    r#"1795171200000000 {"id":12345678901234567890,"data":"null"}"#,
    r#"7 {"id":7,"data":"\"é\"","name":"long"}"#,
    "7",
    "",
];

const PLACES: [&str; 5] = ["127.0.0.1:6379", ":7000", "[::1]:7000", "?:1", "host:0"];

const TOKENS: [&str; 8] = [" ", ":", "\r\n", "0", "-", "free", "run_id:", "gone "];

#[derive(Clone, Debug)]
enum Input {
    Info(String, Option<bool>),
    Message(String),
    Text(Bytes),
    Place(String),
}

fn inputs() -> impl Strategy<Value = Input> {
    let info = (Mutants::of(INFOS).with_tokens(&TOKENS).text(), any::<Option<bool>>());
    prop_oneof![
        2 => info.prop_map(|(info, syncs)| Input::Info(info, syncs)),
        3 => Mutants::of(MESSAGES).with_tokens(&TOKENS).text().prop_map(Input::Message),
        3 => Mutants::of(TEXTS).with_tokens(&TOKENS).bytes().prop_map(Input::Text),
        1 => Mutants::of(PLACES).with_tokens(&TOKENS).text().prop_map(Input::Place),
    ]
}

#[test]
fn fuzz_redis() {
    run("fuzz_redis", &inputs(), |input| match input {
        Input::Info(info, syncs) => {
            if Server::read(&info, syncs).is_ok() {
                Topology::read(&info, None)
                    .partition_overlap(true, std::time::Duration::from_secs(1));
            }
            Ok(())
        }
        Input::Message(message) => any_message(&message),
        Input::Text(text) => any_text(&text.0),
        Input::Place(place) => {
            let before = Host { name: "h".to_owned(), port: Some(1) };
            let port = moved(&before, &place).and_then(|host| host.port);
            prop_assert_ne!(port, Some(0));
            Ok(())
        }
    });
}

fn any_message(message: &str) -> TestCaseResult {
    if let Some(passed) = Passed::read(message) {
        prop_assert!(!passed.wait.queue.contains(' '), "{passed:?}");
    }
    let told = happened(message);
    prop_assert!(told.is_none() || message.contains(' '), "{told:?}");
    Ok(())
}

fn any_text(text: &[u8]) -> TestCaseResult {
    let entry = entry_in("694d".to_owned(), 7, Mode::Exclusive, text);
    prop_assert_eq!((entry.id.as_str(), entry.seq, entry.mode), ("694d", 7, Mode::Exclusive));
    prop_assert!(entry.since.is_none_or(|since| since >= UNIX_EPOCH));
    let stored = parts(text).map(|(_, text)| StoredValue::read(text));
    if let Some(Err(error)) = stored {
        prop_assert_eq!(error.kind(), ErrorKind::Corrupt);
    }
    Ok(())
}
