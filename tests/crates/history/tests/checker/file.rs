//! Tests of the file format, and of the checker on arbitrary records.

use std::fs;
use std::process::Command;
use std::thread;

use coordination_history::{
    Answer, Damage, Event, Kind, Malformed, Operation, Record, Rules, SIZE, Why, Writer, check,
    decode, encode, now, read,
};
use proptest::prelude::*;

use crate::story::{of, rules};

/// A strategy for times, tokens and versions.
type Numbers = BoxedStrategy<u64>;

fn any_operation(number: Numbers) -> impl Strategy<Value = Operation> {
    let (expected, value) = (number, any::<u32>());
    prop_oneof![
        Just(Operation::Read),
        Just(Operation::Delete),
        Just(Operation::Count),
        Just(Operation::Leader),
        value.prop_map(|value| Operation::Set { value }),
        (expected.clone(), value)
            .prop_map(|(expected, value)| Operation::CompareAndSet { expected, value }),
        expected.prop_map(|expected| Operation::CompareAndDelete { expected }),
        any::<i64>().prop_map(|by| Operation::Add { by }),
    ]
}

fn any_answer(number: Numbers) -> impl Strategy<Value = Answer> {
    let version = number;
    prop_oneof![
        Just(Answer::Unknown),
        Just(Answer::NotDone),
        Just(Answer::Absent),
        Just(Answer::Mismatch),
        Just(Answer::Deleted),
        Just(Answer::Nobody),
        (version.clone(), any::<u32>())
            .prop_map(|(version, value)| Answer::Value { version, value }),
        version.clone().prop_map(|version| Answer::Written { version }),
        version.prop_map(|token| Answer::Leader { token }),
        any::<i64>().prop_map(Answer::Number),
    ]
}

fn any_event(number: Numbers) -> impl Strategy<Value = Event> {
    let short = any::<u32>();
    let why = [Why::NotFree, Why::Unavailable, Why::Lost, Why::Closed, Why::Other];
    let plain = [
        Event::Cancelled,
        Event::Downgraded,
        Event::ReleaseCall,
        Event::Crash,
        Event::Paused,
        Event::Resumed,
        Event::Healed,
    ];
    let operation = (number.clone(), any_operation(number.clone()), any_answer(number.clone()));
    let number = || number.clone();
    prop_oneof![
        proptest::sample::select(plain.to_vec()),
        (any::<bool>(), number()).prop_map(|(shared, timeout)| Event::Call { shared, timeout }),
        (number(), short).prop_map(|(token, slot)| Event::Granted { token, slot }),
        proptest::sample::select(why.to_vec()).prop_map(|why| Event::Refused { why }),
        (number(), any::<bool>()).prop_map(|(before, held)| Event::Probe { before, held }),
        number().prop_map(|deadline| Event::Lost { deadline }),
        any::<u8>().prop_map(|outcome| Event::ReleaseReturn { outcome }),
        (number(), number(), any::<bool>()).prop_map(|(token, value, accepted)| Event::Write {
            token,
            value,
            accepted
        }),
        number().prop_map(|values| Event::Final { values }),
        number().prop_map(|value| Event::Kept { value }),
        short.prop_map(|kind| Event::Fault { kind }),
        short.prop_map(|kind| Event::FaultEnd { kind }),
        number().prop_map(|entries| Event::Remains { entries }),
        operation.prop_map(|(call, what, answer)| Event::Operation { call, what, answer }),
    ]
}

fn any_record() -> impl Strategy<Value = Record> {
    let event = any_event(any::<u64>().boxed());
    (any::<u64>(), any::<u32>(), any::<u64>(), any::<u32>(), event).prop_map(
        |(at, client, attempt, object, event)| Record { at, client, attempt, object, event },
    )
}

/// A strategy for a record with any event. There are only few different clients, objects and times, so that some
/// records belong to the same attempt.
fn near_record() -> impl Strategy<Value = Record> {
    let event = any_event(prop_oneof![9 => 0..40_u64, 1 => any::<u64>()].boxed());
    (0..40_u64, 0..3_u32, 0..3_u64, 0..4_u32, event).prop_map(
        |(at, client, attempt, object, event)| Record { at, client, attempt, object, event },
    )
}

fn all_kinds() -> Rules {
    let kinds = [Kind::Lock, Kind::Slots { count: 1 }, Kind::Leadership];
    let mut rules = rules(Kind::Other);
    let first = rules.objects[0].clone();
    rules.objects = kinds
        .into_iter()
        .zip(0..)
        .map(|(kind, id)| coordination_history::Object { id, kind, ..first.clone() })
        .collect();
    (rules.wait_bound, rules.entry_bound, rules.losses_told) = (5, 5, true);
    rules.untimed = vec![0];
    rules
}

proptest! {
    #[test]
    fn what_is_encoded_is_decoded(record in any_record()) {
        prop_assert_eq!(decode(&encode(&record)), Ok(record));
    }

    #[test]
    fn a_changed_byte_shows(record in any_record(), place in 0..SIZE, change in 1..=255_u8) {
        let mut bytes = encode(&record);
        bytes[place] ^= change;
        prop_assert!(decode(&bytes).is_err());
    }

    #[test]
    fn any_records_are_judged_without_a_panic(
        records in proptest::collection::vec(any_record(), 0..40)
    ) {
        let _ = check(&records, &all_kinds()).to_string();
    }

    #[test]
    fn any_records_of_few_attempts_are_judged_without_a_panic(
        records in proptest::collection::vec(near_record(), 0..60)
    ) {
        let _ = check(&records, &all_kinds()).to_string();
    }
}

#[test]
fn threads_and_files_of_one_history() {
    let directory = tempfile::tempdir().expect("a directory of its own");
    let path = directory.path().join("history");
    thread::scope(|scope| {
        for client in 0..4_u32 {
            let path = &path;
            scope.spawn(move || {
                let writer = Writer::open(path).expect("it can be opened");
                for attempt in 1..=500 {
                    let record = Record { attempt, ..of(client, now(), Event::ReleaseCall) };
                    writer.append(&record).expect("it can be written");
                }
            });
        }
    });
    let records = read(&path).expect("it is whole");
    assert_eq!(records.len(), 2000);
    for client in 0..4 {
        let of_one = records.iter().filter(|record| record.client == client);
        assert!(of_one.map(|record| record.attempt).eq(1..=500), "in the order of its writes");
    }
}

#[test]
fn damage_is_told_and_a_torn_end_left_out() {
    let records = [of(1, 10, Event::ReleaseCall), of(1, 11, Event::Cancelled)];
    let directory = tempfile::tempdir().expect("a directory of its own");
    let path = directory.path().join("history");
    let mut bytes: Vec<u8> = records.iter().flat_map(encode).collect();
    bytes.extend(&encode(&records[0])[..SIZE - 1]);
    fs::write(&path, &bytes).expect("it can be written");
    assert_eq!(read(&path).expect("only its end is torn"), records);
    bytes[SIZE + 9] ^= 1;
    fs::write(&path, &bytes).expect("it can be written");
    let damage = read(&path).expect_err("a byte is wrong");
    assert!(matches!(damage, Damage::Record { offset: SIZE, why: Malformed::Checksum }));
    assert_eq!(damage.to_string(), "the history is damaged at 64: the checksum does not fit");
    assert!(matches!(read(directory.path().join("none")), Err(Damage::Io(_))));
}

#[test]
fn a_history_is_shown() {
    let directory = tempfile::tempdir().expect("a directory of its own");
    let path = directory.path().join("history");
    let writer = Writer::open(&path).expect("it can be opened");
    for (client, at) in [(2, 11), (1, 10), (1, 1_500_000_000)] {
        writer.append(&of(client, at, Event::ReleaseCall)).expect("it can be written");
    }
    let show = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_history"));
        let output = command.arg(&path).args(arguments).output().expect("it runs");
        let text = if output.status.success() { output.stdout } else { output.stderr };
        (output.status.success(), String::from_utf8(text).expect("it is text"))
    };
    let line = |at, client| format!("{at:>20} client {client} attempt 1 object 1: release\n");
    let (first, last) = (line("0.000000010", 1), line("1.500000000", 1));
    assert_eq!(show(&[]), (true, [&*first, &line("0.000000011", 2), &last].concat()));
    assert_eq!(show(&["--client", "1", "--attempt", "1"]), (true, first + &last));
    assert_eq!(show(&["--object", "7"]), (true, String::new()));
    let (is_right, usage) = show(&["--object"]);
    assert!(!is_right && usage.starts_with("usage: "), "{usage}");
}
