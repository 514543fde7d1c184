//! A fuzz target: queue files with any contents. A real file may have such contents after somebody has edited it, or after a disk
//! has lost a part of it.
//!
//! Every line has a checksum, so nearly all random contents would be refused at the first line, and the code behind that check
//! would not be tested. So most inputs here are lines and headers with right checksums that this library would not write.

use std::fs;
use std::path::Path;
use std::time::Duration;

use coordination_fuzzing::{Bytes, Mutants, run};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::TestCaseResult;
use tempfile::TempDir;

use super::header::{self, HEADER, Header, LARGEST, sealed};
use super::log::Log;
use super::store::Store;
use super::tests::{file, key, new_entry, store};
use crate::backend::{Data, EntryRef, Listing, Mode, NewEntry, NewSession, SessionId, Write};
use crate::error::{Error, ErrorKind, Result};
use crate::key::QueueKey;

/// The id of the session that is open in each run.
const OWN: &str = "00000000000000aa";
const NAME: &str = "a b";
/// The name of a file that belongs to no queue. Some of the ids in the inputs are paths that lead to this file. No run may remove
/// it.
const VICTIM: &str = "victim";
/// The largest number of bytes by which one run may lengthen a queue's file. The few lines that a run appends are shorter than this
/// in total.
const ADDED: usize = 8 * 1024;

const LINES: [&str; 9] = [
    "+ 1795171200000417 00000000000000ff-51d2 1795171200000 host-1",
    "+ 1795171200000418 00000000000000aa-51d3 1795171200000 host-1",
    "+ 1795171200000522 0000000000000001-03fe 1795171200001 host-2 s eyJuIjoxfQ",
    "+ 1795171200000523 0000000000000002-03ff 1795171200001 host-2 x eyJuIjoxfQ",
    "~ 1795171200000522 x eyJuIjoyfQ",
    "= 1795171200000618 b09e8d7c6a5f4e3d eyJsaW1pdCI6M30",
    "= 7 b09e8d7c6a5f4e3d ",
    "/ 1795171200000777 0c1d2e3f4a5b6c7d 1795171200000618",
    "- 1795171200000417",
];

const TOKENS: [&str; 12] =
    ["\n", " ", "\0", "+ 9 ", "- ", "~ ", "= ", "../../victim", " s ", " x ", "%2F", OWN];

/// Ids of entries. Some of them would lead out of the directory if they were used as the name of a session's file.
const IDS: [&str; 14] = [
    "00000000000000ff-1",
    "00000000000000aa-1",
    "00000000000000AA-1",
    "../../victim-1",
    "../../../victim",
    "../members/x-1",
    "/etc/hostname-1",
    ".-1",
    "..",
    "-1",
    "",
    "+1-1",
    "aa-1",
    "é",
];

fn number() -> BoxedStrategy<u64> {
    let extreme =
        select(&[0, 1, u64::MAX, u64::MAX - 1, i64::MAX as u64, LARGEST, LARGEST - 1][..]);
    prop_oneof![4 => 0..5_000_u64, 1 => extreme, 1 => any::<u64>()].boxed()
}

/// One line of a log, without its checksum.
fn line() -> BoxedStrategy<String> {
    let words = (select(&["+", "~", "-", "=", "/"][..]), number(), select(&IDS[..]), number())
        .prop_map(|(verb, seq, id, number)| match verb {
            "+" => format!("+ {seq} {id} {number} m x YQ"),
            "~" => format!("~ {seq} s YQ"),
            "=" => format!("= {seq} {number:016x} YQ"),
            "/" => format!("/ {seq} {number:016x} {number}"),
            _ => format!("- {seq}"),
        });
    prop_oneof![
        2 => words,
        2 => select(&LINES[..]).prop_map(str::to_owned),
        1 => Mutants::of(LINES).with_tokens(&TOKENS).text(),
    ]
    .boxed()
}

/// Lines of a log, with right checksums. Most generated logs have rising numbers, because a reader stops at a line whose number
/// does not rise: such a line is damage.
fn lines() -> BoxedStrategy<String> {
    let seal = |(mut lines, rising): (Vec<String>, bool)| {
        if rising {
            lines.sort_by_key(|line| line.split(' ').nth(1).and_then(header::number));
        }
        let mut text = String::new();
        lines.iter().for_each(|line| sealed(&mut text, |text| text.push_str(line)));
        text
    };
    (vec(line(), 0..12), proptest::bool::weighted(0.8)).prop_map(seal).boxed()
}

/// A header with a right checksum. The header says at which offset the log begins: mostly right after the queue's name, sometimes
/// at any other offset.
fn any_header() -> BoxedStrategy<String> {
    let first = (HEADER + header::name_line(NAME).len()) as u64;
    let start = prop_oneof![4 => Just(first), 1 => 0..2_000_u64, 1 => number()];
    let header = (number(), start, number());
    let header =
        header.prop_map(|(generation, start, last)| Header { generation, start, last }.format());
    let other =
        Mutants::of(["coordination-queue 1 gen=00001795171200000311 start=00000000000000000119 last=00001795171200000000"])
            .text()
            .prop_map(|line| {
                let mut text = String::new();
                sealed(&mut text, |text| text.push_str(&line));
                text
            });
    prop_oneof![4 => header, 1 => other].boxed()
}

fn contents() -> BoxedStrategy<Bytes> {
    let whole = (any_header(), lines(), prop_oneof![Just(0), 0..3_000_usize]).prop_map(
        |(header, lines, zeros)| {
            let mut text = [header, header::name_line(NAME), lines].concat().into_bytes();
            text.resize(text.len() + zeros, 0);
            text
        },
    );
    let spoiled = Mutants::from(whole.clone()).with_tokens(&TOKENS).bytes();
    prop_oneof![2 => whole.prop_map(Bytes), 1 => spoiled].boxed()
}

#[test]
fn fuzz_file() {
    let directory = TempDir::new().expect("a directory");
    let (store, other) = (store(directory.path()), store(directory.path()));
    let session = NewSession { id: own(), member: "m".into(), ttl: Duration::ZERO };
    store.sessions.open(&session).expect("a new session");
    let queue = key(NAME);
    let file = file(&directory, &queue);
    let victim = directory.path().join(VICTIM);
    fs::write(&victim, "").expect("a file");
    run("fuzz_file", &contents(), |Bytes(text)| {
        text_is_read_or_refused(&text)?;
        fs::write(&file, &text).expect("a file");
        [&store, &other].into_iter().for_each(|store| store.open_files.clear());
        let outcome = visit(&store, &other, &queue);
        check_outcome(outcome, &file, &text)?;
        prop_assert!(victim.exists(), "a file elsewhere was removed");
        Ok(())
    });
}

fn own() -> SessionId {
    SessionId::parse(OWN).expect("a session's id")
}

/// If the text can be read as a log, then the state that was read is written as a log, and reading this log must give the same
/// state.
fn text_is_read_or_refused(text: &[u8]) -> TestCaseResult {
    let _ = header::parse_name_line(text);
    let head = text.get(..HEADER).and_then(|head| std::str::from_utf8(head).ok());
    if let Some(header) = head.and_then(Header::parse) {
        prop_assert_eq!(Header::parse(&header.format()), Some(header));
    }
    let log = text.get(HEADER + header::name_line(NAME).len()..).unwrap_or(text);
    let mut read = Log::default();
    match read.replay(log) {
        Ok(good) => {
            let mut again = Log::default();
            prop_assert_eq!(again.replay(&log[..good]), Ok(good));
            prop_assert_eq!(&again, &read);
            let written = read.format();
            let mut again = Log::default();
            prop_assert_eq!(again.replay(written.as_bytes()), Ok(written.len()));
            prop_assert_eq!((again.live(), again.value()), (read.live(), read.value()));
        }
        Err(damaged) => prop_assert!(damaged.at < log.len()),
    }
    Ok(())
}

/// What one run has found: the queue as it was first read, the number of the entry that was then entered, and the queue as it was
/// read after the changes by both processes (`seen`).
struct Visit {
    before: Listing,
    seq: u64,
    seen: [Listing; 2],
}

/// Does what a holder of a lock with a value does: enters an entry, writes the value, updates the entry and removes it.
fn visit(store: &Store, other: &Store, queue: &QueueKey) -> Result<Visit> {
    let before = done(|| store.read(queue))?;
    let entry = new_entry(own(), queue);
    let seq = done(|| store.with_queue(queue, |queue| store.enter(queue, &entry)))?.seq;
    let expected = before.value.as_ref().map(|value| value.version);
    let write = Write::new(queue, expected, Some("value".into()));
    done(|| store.with_queue(queue, |queue| store.write(queue, &write)))?;
    let shared = NewEntry { mode: Mode::Shared, data: Data::from("é"), ..entry.clone() };
    done(|| store.with_queue(queue, |queue| store.update(queue, &shared, seq)))?;
    let seen = [done(|| store.read(queue))?, done(|| other.read(queue))?];
    for entry in &before.entries {
        let entry = EntryRef { queue: queue.clone(), id: entry.id.clone() };
        done(|| store.is_present(&entry))?;
    }
    done(|| store.leave(&entry.entry_ref, Some(seq)))?;
    Ok(Visit { before, seq, seen })
}

fn check_outcome(outcome: Result<Visit>, file: &Path, text: &[u8]) -> TestCaseResult {
    let after = fs::read(file).map_err(|error| TestCaseError::fail(error.to_string()))?;
    prop_assert!(after.len() <= text.len() + ADDED, "{} bytes", after.len());
    match outcome {
        Ok(Visit { before, seq, seen: [ours, others] }) => {
            let version = before.value.as_ref().map_or(0, |value| value.version);
            let newest = before.entries.last().map_or(0, |entry| entry.seq);
            prop_assert!(seq > newest.max(version), "{seq} is not new");
            prop_assert_eq!(&ours.entries, &others.entries);
            prop_assert_eq!(&ours.value, &others.value);
            prop_assert!(ours.entry(seq).is_some_and(|entry| &*entry.data == "é"));
            prop_assert!(ours.value.is_some_and(|value| value.version > seq));
        }
        Err(error) => prop_assert!(is_told(&error), "{error:?}"),
    }
    Ok(())
}

/// Whether the error tells the user that the file is damaged, or that it belongs to another queue.
fn is_told(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Collision)
}

/// Calls `step` again and again until `step` has got the queue's short lock and returns an outcome.
fn done<T>(mut step: impl FnMut() -> Option<Result<T>>) -> Result<T> {
    loop {
        if let Some(outcome) = step() {
            return outcome;
        }
    }
}
