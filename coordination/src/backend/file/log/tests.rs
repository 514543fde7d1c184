use proptest::prelude::*;

use super::*;
use crate::backend::file::header::LARGEST;

const ID: &str = "0000000000000001-0a";

fn record(member: &str, mode: Mode, data: &str) -> Record {
    let member = key::escape(member).into();
    Record { id: ID.into(), since_ms: 5, member, label: None, mode, data: data.into() }
}

fn plain(member: &str) -> Record {
    record(member, Mode::Exclusive, "")
}

fn text(write: impl FnOnce(&mut String)) -> String {
    let mut text = String::new();
    write(&mut text);
    text
}

fn enters(seq: u64, record: &Record) -> String {
    text(|line| format_enter(line, seq, record))
}

fn leaves(seq: u64) -> String {
    text(|line| format_leave(line, seq))
}

fn value(version: u64, data: &str) -> Written {
    Written { version, by: u64::MAX, data: data.into() }
}

fn writes(value: &Written) -> String {
    text(|line| format_value(line, value, &[]))
}

fn read(text: &str) -> Log {
    let mut log = Log::default();
    assert_eq!(log.replay(text.as_bytes()), Ok(text.len()));
    log
}

#[test]
fn entries_come_and_go() {
    let log = read(&[enters(7, &plain("a b\n")), enters(9, &plain("c")), leaves(7)].concat());
    assert_eq!((log.last, log.live().len()), (9, 1));
    assert_eq!(log.find(ID), Some(9));
    assert_eq!((log.get(9, ID), log.get(9, "x"), log.get(7, ID)), (Some(&plain("c")), None, None));
}

#[test]
fn a_plain_entry_has_no_more_than_it_needs() {
    assert!(enters(7, &plain("a")).starts_with("+ 7 0000000000000001-0a 5 a "));
    assert_eq!(enters(7, &plain("a")).split(' ').count(), 6);
}

#[test]
fn only_an_entry_with_a_label_has_one_in_its_line() {
    let labelled = Record { label: Some("a b".into()), ..plain("m") };
    let line = enters(7, &labelled);
    assert!(line.starts_with("+ 7 0000000000000001-0a 5 m x  a%20b "), "{line}");
    let update = text(|line| format_update(line, 7, Mode::Shared, "{}"));
    let log = read(&[line, update].concat());
    let updated = Record { label: labelled.label, ..record("m", Mode::Shared, "{}") };
    assert_eq!(log.live(), [(7, updated)]);
    assert_eq!(read(&log.format()).live(), log.live());
    // An escape that stands for no character.
    let damaged =
        text(|line| sealed(line, |line| line.push_str("+ 7 0000000000000001-0a 5 m x  %FF")));
    assert_eq!(Log::default().replay(damaged.as_bytes()), Err(Damaged { at: 0 }));
}

#[test]
fn an_entry_is_blocked_by_the_newest_that_its_mode_does_not_get_along_with() {
    let shared = record("a", Mode::Shared, "");
    let log = read(&[enters(3, &plain("a")), enters(5, &shared), enters(7, &shared)].concat());
    let blocker = |seq, mode| log.blocker(seq, mode).map(|(seq, _)| seq);
    assert_eq!(blocker(7, Mode::Shared), Some(3));
    assert_eq!(blocker(7, Mode::Exclusive), Some(5));
    assert_eq!(blocker(3, Mode::Exclusive), None);
}

#[test]
fn an_update_changes_what_is_there() {
    let update = |seq| text(|line| format_update(line, seq, Mode::Shared, "é"));
    let log = read(&[enters(7, &plain("a")), update(7), update(8)].concat());
    assert_eq!(log.live(), [(7, record("a", Mode::Shared, "é"))]);
}

#[test]
fn a_value_is_written_over_and_removed() {
    let (old, new) = (value(7, "old"), value(9, ""));
    let written = [writes(&old), writes(&new)].concat();
    assert_eq!(read(&written).value(), Some(&new));
    let removed = Removed { by: 3, version: 9 };
    let removal = text(|line| format_removal(line, 12, removed));
    let log = read(&[written, removal].concat());
    assert_eq!((log.last, log.value(), log.removed()), (12, None, Some(removed)));
    assert_eq!(log.format(), "");
}

#[test]
fn a_line_from_behind_the_logs_end_is_damage() {
    let removal =
        |number| text(|line| format_removal(line, number, Removed { by: 3, version: number - 1 }));
    let written = [enters(7, &plain("a")), writes(&value(9, "")), enters(11, &plain("b"))];
    let log = [&written.concat(), &*leaves(7)].concat();
    let stale = [
        enters(7, &plain("a")),
        enters(10, &plain("c")),
        writes(&value(8, "old")),
        writes(&value(10, "old")),
        removal(8),
        removal(11),
    ];
    for line in stale {
        let text = format!("{log}{line}");
        let damaged = Damaged { at: log.len() };
        assert_eq!(Log::default().replay(text.as_bytes()), Err(damaged), "{line}");
    }
    // Lines that repeat earlier lines are accepted: a writer that is killed while it writes the live lines again leaves such lines.
    for line in [enters(11, &plain("b")), writes(&value(9, "")), removal(12).repeat(2)] {
        read(&format!("{log}{line}"));
    }
    // After a header whose `last` is larger than the numbers of the live lines, these lines are accepted.
    let anew = [writes(&value(9, "")), enters(7, &plain("a")), enters(8, &plain("b"))].concat();
    assert_eq!(Log::after(20).replay(anew.as_bytes()), Ok(anew.len()));
}

#[test]
fn every_cut_of_the_last_line_is_forgiven_and_damage_before_it_is_not() {
    let first = enters(7, &plain("a"));
    let lines = [
        enters(9, &plain("b")),
        enters(9, &record("b", Mode::Shared, "data")),
        text(|line| format_update(line, 7, Mode::Shared, "data")),
        writes(&value(9, "data")),
        text(|line| format_removal(line, 9, Removed { by: 1, version: 8 })),
        leaves(7),
    ];
    for second in lines {
        let text = format!("{first}{second}");
        for cut in first.len()..text.len() {
            let mut log = Log::default();
            let replayed = log.replay(&text.as_bytes()[..cut]);
            assert_eq!(replayed, Ok(first.len()), "cut at {cut}: {second}");
            assert_eq!(log, read(&first));
        }
        let damaged = text.replacen("+ 7", "+ 8", 1);
        assert_eq!(Log::default().replay(damaged.as_bytes()), Err(Damaged { at: 0 }));
    }
}

#[test]
fn a_whole_line_that_nobody_of_ours_wrote_is_damage() {
    let first = enters(7, &plain("a"));
    for id in ["../../x-1", "..", ".-1", "/etc/x-1", "-1", "", "1-1", "00000000000000AA-1"] {
        let other = enters(9, &Record { id: id.into(), ..plain("b") });
        let damaged = Damaged { at: first.len() };
        let replayed = Log::default().replay(format!("{first}{other}").as_bytes());
        assert_eq!(replayed, Err(damaged), "{id}");
    }
    let version = text(|text| sealed(text, |text| text.push_str("! 9 of another version")));
    for other in [version, enters(u64::MAX, &plain("a")), writes(&value(u64::MAX, ""))] {
        assert_eq!(Log::default().replay(other.as_bytes()), Err(Damaged { at: 0 }));
    }
}

fn any_record() -> impl Strategy<Value = Record> {
    let mode = prop_oneof![Just(Mode::Exclusive), Just(Mode::Shared)];
    let label = proptest::option::of(".*");
    (".*", mode, ".*", label).prop_map(|(member, mode, data, label)| {
        let label = label.map(Arc::from);
        Record { label, ..record(&member, mode, &data) }
    })
}

proptest! {
    #[test]
    fn members_data_and_labels_of_any_kind_survive(entry in any_record(), seq in 1..=LARGEST) {
        let log = read(&enters(seq, &entry));
        prop_assert_eq!(log.live(), &[(seq, entry)]);
    }

    #[test]
    fn what_is_live_survives_being_written_anew(
        entries in proptest::collection::btree_map(1..100_u64, any_record(), 0..5),
        data in proptest::option::of(".*"),
    ) {
        let mut log = Log::default();
        entries.into_iter().for_each(|(seq, record)| log.enter(seq, record));
        if let Some(data) = data {
            log.write(value(200, &data), &[]);
        }
        prop_assert_eq!(&read(&log.format()), &log);
        // If the writer was killed before it wrote the header, a reader reads the live lines twice.
        prop_assert_eq!(&read(&log.format().repeat(2)), &log);
    }
}

#[test]
fn what_is_to_come_is_known_to_whoever_reads_the_log() {
    for (updates, bytes) in [(0, 0), (1, 0), (1, 1), (1, 26), (2, 26), (3, 500), (2, 2_500)] {
        let data = Data::from(r#"{"wants":1}"#);
        let mut room = Room { updates, bytes };
        let entered = Record { data: with_room(&data, room), ..plain("a") };
        let mut log = read(&enters(LARGEST, &entered));
        assert_eq!(&*without_room(&entered.data), &*data);
        let mut to_come = log.to_come();
        for _ in 0..updates {
            room = room.after_update();
            let data = with_room(&"x".repeat(bytes).into(), room);
            let line = text(|line| format_update(line, LARGEST, Mode::Shared, &data));
            let after = log.to_come_after(LARGEST, &data);
            assert!(line.len() as u64 + after <= to_come, "{updates} of {bytes}: {room:?}");
            assert_eq!(log.replay(line.as_bytes()), Ok(line.len()));
            assert_eq!(log.to_come(), after);
            to_come = after;
        }
        let line = leaves(LARGEST);
        assert!(line.len() as u64 <= to_come, "{updates} of {bytes}");
        assert_eq!(log.replay(line.as_bytes()), Ok(line.len()));
        assert_eq!(log.to_come(), 0);
    }
}

/// Who waits for an entry to go is among those who are woken when it goes.
#[cfg(linux_kernel)]
#[test]
fn an_entry_blocks_those_of_which_it_is_the_blocker() {
    const ENTRIES: u64 = 6;
    for modes in 0..1_u64 << ENTRIES {
        let mut log = Log::default();
        let mode = |seq: u64| match modes >> (seq - 1) & 1 {
            0 => Mode::Exclusive,
            _ => Mode::Shared,
        };
        for seq in 1..=ENTRIES {
            log.enter(seq, Record { id: seq.to_string().into(), ..record("a", mode(seq), "") });
        }
        for seq in 1..=ENTRIES {
            let blocked: Vec<_> = log.blocked_by(seq).map(|record| record.id.to_string()).collect();
            let is_blocked = |later: &u64| {
                log.blocker(*later, mode(*later)).is_some_and(|(blocker, _)| blocker == seq)
            };
            let expected: Vec<_> =
                (1..=ENTRIES).filter(is_blocked).map(|seq| seq.to_string()).collect();
            assert_eq!(blocked, expected, "{modes:b} {seq}");
        }
    }
}
