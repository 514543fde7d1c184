//! Fuzzes the reading of histories. A history file may be cut short because its writer was killed, and a file that is
//! given to the reader need not be a history at all. The reader has to return records or an error, and must not panic.

use coordination_fuzzing::{Bytes, Mutants, run};
use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;

use crate::codec::{FORMAT, SIZE, checksum, encode};
use crate::file::parse;
use crate::{Answer, Event, Operation, Record, Why, Work};

fn samples() -> Vec<[u8; SIZE]> {
    let what = Operation::CompareAndSet { expected: 7, value: 8 };
    let events = [
        Event::Call { shared: true, timeout: 5 },
        Event::Granted { token: 9, slot: 1 },
        Event::Refused { why: Why::Unavailable },
        Event::Probe { before: 3, held: false },
        Event::ReleaseReturn { outcome: 2 },
        Event::Write { token: 9, value: 4, accepted: true },
        Event::Operation { call: 1, what, answer: Answer::Value { version: 7, value: 8 } },
        Event::Remains { entries: 1 },
        Event::Work { call: 5, item: 8, token: 9, what: Work::Acked },
    ];
    let record = |event| Record { at: 6, client: 1, attempt: 2, object: 3, event };
    events.map(|event| encode(&record(event))).to_vec()
}

/// Gives each record the right format byte and checksum. Without this, the reader would refuse nearly all mutated bytes
/// because of their format byte or checksum, and its other checks would not be tested.
fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
    for bytes in bytes.as_chunks_mut::<SIZE>().0 {
        bytes[0] = FORMAT;
        let sum = checksum(bytes).to_le_bytes();
        bytes[4..8].copy_from_slice(&sum);
    }
    bytes
}

#[test]
fn fuzz_history() {
    let whole = proptest::collection::vec(proptest::sample::select(samples()), 0..6);
    let spoiled = Mutants::from(whole.prop_map(|records| records.concat())).bytes();
    let inputs = (spoiled, any::<bool>());
    run("fuzz_history", &inputs, |(Bytes(bytes), seal)| {
        is_read_or_refused(&if seal { sealed(bytes) } else { bytes })
    });
}

fn is_read_or_refused(bytes: &[u8]) -> TestCaseResult {
    let (whole, _) = bytes.as_chunks::<SIZE>();
    match parse(bytes) {
        Ok(records) => {
            let again: Vec<_> = records.iter().map(encode).collect();
            prop_assert_eq!(again, whole);
        }
        Err(crate::Damage::Record { offset, .. }) => {
            prop_assert!(offset % SIZE == 0 && offset < whole.len() * SIZE);
        }
        Err(error) => return Err(TestCaseError::fail(error.to_string())),
    }
    Ok(())
}
