//! The text of a queue's file: a header of fixed width, the queue's name, and a log with one line for each change of the queue.
//!
//! ```text
//! coordination-queue 1 gen=00001795171200000311 start=00000000000000000119 last=00001795171200000000 e3c0a1b2
//! name vol-7
//! + 1795171200000417 9f0c…-51d2… 1795171200000 host-1 7b1fd8a3
//! + 1795171200000522 51aa…-03fe… 1795171200001 host-2 s eyJuIjoxfQ 90b2e3d1
//! + 1795171200000530 7d20…-9b44… 1795171200002 host-2 x  nightly%20dump 5c01aa97
//! ~ 1795171200000522 x eyJuIjoyfQ 1f00c7a9
//! = 1795171200000618 b09e8d7c6a5f4e3d eyJsaW1pdCI6M30 55d3a0c4
//! = 1795171200000690 0c1d2e3f4a5b6c7d eyJsaW1pdCI6Mn0 p1 eyJ9 p0 - 2a9c01d7
//! . 1795171200000690 p1 eyJ9 77aa03be
//! / 1795171200000777 0c1d2e3f4a5b6c7d 1795171200000618 8e6f5d4c
//! - 1795171200000417 0a44c1f2
//! ```
//!
//! Each line begins with a character that says what it does:
//!
//! * `+` appends an entry: sequence number, id, wall clock in ms, member; then mode (`x` exclusive, `s` shared), data in base64 and
//!   label. The label is left out if the entry has none; mode and data are left out too if the entry also is exclusive and has no
//!   data.
//! * `~` gives an entry another mode and other data.
//! * `-` removes an entry.
//! * `=` writes the queue's value: version, the id of the write, data. Then follow the records that are written together with the
//!   value, each with its name and its data, or `-` if the record is removed.
//! * `.` writes one record: the version of the value, the name of the record, its data. When a log is shortened, the records follow
//!   the `=` line of the value as such lines, and the version is that of this `=` line.
//! * `/` removes the value: the number of the removal, the id of the write, the version that was removed.
//!
//! Every line of the log ends with a CRC-32 of the text before it. A line whose checksum is right was written in full. So the
//! checksum shows whether the last line is the half-written line of a killed writer. If a line is there twice, it has an effect
//! only once.
//!
//! Tabs after an entry's data reserve space on the disk. From their number a reader computes how many bytes will still be written
//! for the entry before its turn has come.
//!
//! To shorten a log, the lines that still have an effect are written again (`compact.rs`): first the value, then its records, and
//! then the entries, in order. In all other places numbers rise from line to line: an entry's number is larger than those of all
//! entries before, and a value's number is larger than all numbers before. A line whose number does not rise is damage: an old line
//! that is not a part of the log. This happens if, after a loss of power, the log ends before the old line, and then grows again
//! until it reaches that line.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use data_encoding::BASE64URL_NOPAD;

use super::header::{number, sealed, unseal};
use super::liveness::session_of;
use crate::backend::{Beside, Data, Mode, Room};
use crate::key;

/// Stands in a line for the data of a record that is removed. This text is not valid base64, so it cannot be taken for data.
const GONE: &str = "-";
/// The character that reserves space on the disk; see [`with_room`].
const ROOM: char = '\t';

/// The largest length of a line that removes an entry.
const LEAVING: usize = "- 18446744073709551615 01234567\n".len();

/// An entry, as the log has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) id: Arc<str>,
    pub(super) since_ms: u64,
    /// The member id, [escaped](crate::key::escape).
    pub(super) member: Arc<str>,
    /// The label, which is not escaped.
    pub(super) label: Option<Arc<str>>,
    pub(super) mode: Mode,
    /// The data. As long as the entry may be updated before its turn, [tabs](with_room) follow, which reserve space.
    pub(super) data: Data,
}

impl Record {
    /// The largest number of bytes that will still be written for this entry: for its updates before its turn, and for the line
    /// that removes it. So much space is reserved.
    pub(super) fn to_come(&self) -> u64 {
        to_come(&self.data)
    }
}

fn to_come(data: &str) -> u64 {
    let updates = if data.ends_with(ROOM) { longest_update_line(data.len()) } else { 0 };
    (LEAVING + updates) as u64
}

/// The data of an entry, followed by tabs if the entry may still be updated before its turn. With the tabs, the data are so long
/// that one update line with them would be as long as all lines together that may still be written for the entry. So every process
/// that reads the log knows how much space the entry needs. Such data are JSON, in which tabs at the end mean nothing.
pub(super) fn with_room(data: &Data, room: Room) -> Data {
    if room.updates == 0 {
        return Data::clone(data);
    }
    let (mut length, mut after) = (room.bytes, 0);
    for _ in 0..room.updates {
        let bytes = longest_update_line(length) + after - longest_update_line(0);
        // Data with this many bytes have at least `bytes` bytes in base64. The number is larger than `room.bytes`, so that there is
        // at least one tab.
        length = (bytes / 4 * 3 + 3).max(room.bytes + 1);
        after = longest_update_line(length);
    }
    let mut text = String::with_capacity(length.max(data.len() + 1));
    text.push_str(data);
    let room = length.saturating_sub(data.len()).max(1);
    text.extend(std::iter::repeat_n(ROOM, room));
    text.into()
}

/// The data without the tabs that follow it.
pub(super) fn without_room(data: &Data) -> Data {
    if data.ends_with(ROOM) { data.trim_end_matches(ROOM).into() } else { Data::clone(data) }
}

/// The queue's value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Written {
    pub(super) version: u64,
    /// The id of the write that made this value.
    pub(super) by: u64,
    pub(super) data: Data,
}

/// The last write of the value, if it was a removal. If the write with the id `by` is repeated, it returns `version` again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Removed {
    pub(super) by: u64,
    /// The version of the value that was removed.
    pub(super) version: u64,
}

/// Appends to `text` the line that enters an entry.
pub(super) fn format_enter(text: &mut String, seq: u64, record: &Record) {
    let Record { id, since_ms, member, label, mode, data } = record;
    sealed(text, |line| {
        let _ = write!(line, "+ {seq} {id} {since_ms} {member}");
        if *mode != Mode::Exclusive || !data.is_empty() || label.is_some() {
            format_contents(line, *mode, data);
        }
        if let Some(label) = label {
            let _ = write!(line, " {}", key::escape(label));
        }
    });
}

/// Appends to `text` the line that updates an entry.
pub(super) fn format_update(text: &mut String, seq: u64, mode: Mode, data: &str) {
    sealed(text, |line| {
        let _ = write!(line, "~ {seq}");
        format_contents(line, mode, data);
    });
}

/// Appends to `text` the line that removes an entry.
pub(super) fn format_leave(text: &mut String, seq: u64) {
    sealed(text, |line| {
        let _ = write!(line, "- {seq}");
    });
}

/// Appends to `text` the line that writes a value, and the records that are written together with it.
pub(super) fn format_value(text: &mut String, value: &Written, beside: &[Beside]) {
    let Written { version, by, data } = value;
    sealed(text, |line| {
        let _ = write!(line, "= {version} {by:016x} ");
        BASE64URL_NOPAD.encode_append(data.as_bytes(), line);
        for Beside { name, data, .. } in beside {
            let _ = write!(line, " {name} ");
            match data {
                Some(data) => BASE64URL_NOPAD.encode_append(data.as_bytes(), line),
                None => line.push_str(GONE),
            }
        }
    });
}

/// Appends to `text` the line with one record, as it is at this version of the queue's value. Such lines are written only when the
/// log is shortened.
fn format_record(text: &mut String, version: u64, name: &str, data: &Data) {
    sealed(text, |line| {
        let _ = write!(line, ". {version} {name} ");
        BASE64URL_NOPAD.encode_append(data.as_bytes(), line);
    });
}

/// The largest length of a line that writes a value with these data.
pub(super) fn longest_value_line(value: &Written) -> usize {
    let data = BASE64URL_NOPAD.encode_len(value.data.len());
    data + "= 18446744073709551615 0123456789abcdef  01234567\n".len()
}

/// The largest length of a line that updates an entry to data of this many bytes.
fn longest_update_line(bytes: usize) -> usize {
    BASE64URL_NOPAD.encode_len(bytes) + "~ 18446744073709551615 x  01234567\n".len()
}

/// Appends to `text` the line that removes the value. A removal has a number, as a new value would have: `number` is larger than
/// all numbers before it in the log.
pub(super) fn format_removal(text: &mut String, number: u64, removed: Removed) {
    let Removed { by, version } = removed;
    sealed(text, |line| {
        let _ = write!(line, "/ {number} {by:016x} {version}");
    });
}

fn format_contents(line: &mut String, mode: Mode, data: &str) {
    line.push_str(match mode {
        Mode::Exclusive => " x ",
        Mode::Shared => " s ",
    });
    BASE64URL_NOPAD.encode_append(data.as_bytes(), line);
}

fn parse_contents(mode: &str, data: &str) -> Option<(Mode, Data)> {
    let mode = match mode {
        "x" => Mode::Exclusive,
        "s" => Mode::Shared,
        _ => return None,
    };
    Some((mode, parse_data(data)?))
}

/// Whether an entry's id begins with a session's id, as the ids of all our entries do. The session's id is used as the name of a
/// file, and any other text could lead out of the directory.
fn is_ours(id: &str) -> bool {
    let session = session_of(id);
    session.len() == 16 && session.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

fn parse_data(text: &str) -> Option<Data> {
    let bytes = BASE64URL_NOPAD.decode(text.as_bytes()).ok()?;
    Some(String::from_utf8(bytes).ok()?.into())
}

/// The state that a log's lines result in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Log {
    /// The largest number of an entry or a value that is in a line or in the header. New numbers are larger.
    pub(super) last: u64,
    /// The largest number that is in a line. A further line that writes or removes the value has a larger number, or else it is
    /// damage.
    newest: u64,
    /// The largest number of an entry that is in a line. A further line that adds an entry has a larger number, or else it is
    /// damage.
    newest_entry: u64,
    /// The entries that have not left, in the order of their numbers.
    live: Vec<(u64, Record)>,
    /// The largest number of bytes that will still be written for the live entries.
    to_come: u64,
    value: Option<Written>,
    records: BTreeMap<Arc<str>, Data>,
    removed: Option<Removed>,
}

/// Damage: a complete line that this library did not write, or an incomplete line that is not the last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Damaged {
    /// The offset in the text at which the line begins.
    pub(super) at: usize,
}

impl Log {
    /// The state of an empty log whose next number has to be larger than `last`.
    pub(super) fn after(last: u64) -> Self {
        Self { last, ..Self::default() }
    }

    /// Applies more lines, and returns the length of those that are complete. After them there may be the half-written line of a
    /// killed writer. That line never took effect, and will be overwritten.
    pub(super) fn replay(&mut self, text: &[u8]) -> Result<usize, Damaged> {
        let mut good = 0;
        for line in text.split_inclusive(|byte| *byte == b'\n') {
            let Some(unsealed) = std::str::from_utf8(line).ok().and_then(unseal) else {
                let is_last = good + line.len() == text.len();
                return if is_last { Ok(good) } else { Err(Damaged { at: good }) };
            };
            self.apply(unsealed).ok_or(Damaged { at: good })?;
            good += line.len();
        }
        Ok(good)
    }

    /// Applies one line. `None`: the line is damage, and nothing of it was applied.
    fn apply(&mut self, line: &str) -> Option<()> {
        let mut words = line.split(' ');
        let (verb, number) = (words.next()?, number(words.next()?)?);
        if verb == "=" {
            return self.apply_value(number, words);
        }
        let rest = [(); 6].map(|()| words.next());
        if words.next().is_some() {
            return None;
        }
        match (verb, rest) {
            ("+", [Some(id), Some(since), Some(member), mode, data, label]) if is_ours(id) => {
                let (mode, data) = match (mode, data) {
                    (None, None) => Default::default(),
                    (mode, data) => parse_contents(mode?, data?)?,
                };
                let label = match label {
                    Some(label) => Some(key::unescape(label)?.into()),
                    None => None,
                };
                let since_ms = since.parse().ok()?;
                if number <= self.newest_entry && self.index(number).is_err() {
                    return None;
                }
                let (id, member) = (id.into(), member.into());
                let record = Record { id, since_ms, member, label, mode, data };
                self.enter(number, record);
            }
            ("-", [None, ..]) => {
                self.leave(number);
            }
            ("~", [Some(mode), Some(data), None, ..]) => {
                let (mode, data) = parse_contents(mode, data)?;
                self.update(number, mode, data);
            }
            (".", [Some(name), Some(data), None, ..]) => {
                if self.value.as_ref()?.version != number {
                    return None;
                }
                self.records.insert(name.into(), parse_data(data)?);
            }
            ("/", [Some(by), Some(version), None, ..]) => {
                let (by, version) = (u64::from_str_radix(by, 16).ok()?, version.parse().ok()?);
                let removed = Removed { by, version };
                if number <= self.newest && self.removed != Some(removed) {
                    return None;
                }
                self.remove(number, removed);
            }
            _ => return None,
        }
        Some(())
    }

    fn apply_value<'a>(
        &mut self,
        version: u64,
        mut words: impl Iterator<Item = &'a str>,
    ) -> Option<()> {
        let by = u64::from_str_radix(words.next()?, 16).ok()?;
        let data = parse_data(words.next()?)?;
        let is_known = self.value.as_ref().is_some_and(|value| value.version == version);
        if version <= self.newest && !is_known {
            return None;
        }
        let mut beside = Vec::new();
        while let Some(name) = words.next() {
            let data = words.next().filter(|data| *data != GONE).map(parse_data);
            let data = data.map_or(Some(None), |data| data.map(Some))?;
            beside.push(Beside { name: name.into(), data, is_new: false });
        }
        self.write(Written { version, by, data }, &beside);
        Some(())
    }

    /// Adds an entry. If there is an entry with this number, replaces it.
    pub(super) fn enter(&mut self, seq: u64, record: Record) {
        self.came(seq);
        self.newest_entry = self.newest_entry.max(seq);
        self.to_come += record.to_come();
        match self.index(seq) {
            Ok(index) => {
                let before = std::mem::replace(&mut self.live[index].1, record);
                self.to_come -= before.to_come();
            }
            Err(index) => self.live.insert(index, (seq, record)),
        }
    }

    /// Gives an entry another mode and other data. Returns false if no entry has this number.
    pub(super) fn update(&mut self, seq: u64, mode: Mode, data: Data) -> bool {
        let index = self.index(seq);
        let found = index.ok().and_then(|index| self.live.get_mut(index));
        let Some((_, record)) = found else { return false };
        self.to_come += to_come(&data);
        self.to_come -= record.to_come();
        (record.mode, record.data) = (mode, data);
        true
    }

    /// Removes an entry. Returns false if no entry has this number.
    pub(super) fn leave(&mut self, seq: u64) -> bool {
        let left = self.index(seq).map(|index| self.live.remove(index));
        self.to_come -= left.as_ref().map_or(0, |(_, record)| record.to_come());
        left.is_ok()
    }

    pub(super) fn write(&mut self, value: Written, beside: &[Beside]) {
        self.came(value.version);
        for Beside { name, data, .. } in beside {
            match data {
                Some(data) => drop(self.records.insert(Arc::clone(name), Data::clone(data))),
                None => drop(self.records.remove(name)),
            }
        }
        (self.value, self.removed) = (Some(value), None);
    }

    /// Removes the value. The removal has a number of its own, as a write of a new value has.
    pub(super) fn remove(&mut self, number: u64, removed: Removed) {
        self.came(number);
        (self.value, self.removed) = (None, Some(removed));
    }

    pub(super) fn live(&self) -> &[(u64, Record)] {
        &self.live
    }

    /// The largest number of bytes that will still be written for the live entries. So much space is reserved on the disk.
    pub(super) fn to_come(&self) -> u64 {
        self.to_come
    }

    /// What [`to_come`](Self::to_come) will return after this entry was updated to these data.
    pub(super) fn to_come_after(&self, seq: u64, data: &str) -> u64 {
        let before = self.index(seq).map_or(0, |index| self.live[index].1.to_come());
        self.to_come - before + to_come(data)
    }

    pub(super) fn value(&self) -> Option<&Written> {
        self.value.as_ref()
    }

    /// The data of the queue's record with this name.
    pub(super) fn record(&self, name: &str) -> Option<&Data> {
        self.records.get(name)
    }

    pub(super) fn has_records(&self) -> bool {
        !self.records.is_empty()
    }

    pub(super) fn removed(&self) -> Option<Removed> {
        self.removed
    }

    /// The entry with this number, if its id is `id`.
    pub(super) fn get(&self, seq: u64, id: &str) -> Option<&Record> {
        let (_, record) = self.live.get(self.index(seq).ok()?)?;
        (*record.id == *id).then_some(record)
    }

    /// The number of the entry with this id. A caller that knows the number uses [`get`](Self::get), which is faster.
    pub(super) fn find(&self, id: &str) -> Option<u64> {
        self.live.iter().find(|(_, record)| *record.id == *id).map(|(seq, _)| *seq)
    }

    /// The newest entry with a smaller number than `seq` that blocks an entry of this mode.
    pub(super) fn blocker(&self, seq: u64, mode: Mode) -> Option<(u64, &Record)> {
        let before = self.live.get(..self.live.partition_point(|(known, _)| *known < seq))?;
        let blocker = before.iter().rev().find(|(_, record)| record.mode.blocks(mode));
        blocker.map(|(seq, record)| (*seq, record))
    }

    /// The entries of which the entry with this number is the [`blocker`](Self::blocker): their turn may come when it goes.
    #[cfg(linux_kernel)]
    pub(super) fn blocked_by(&self, seq: u64) -> impl Iterator<Item = &Record> {
        let after = self.live.partition_point(|(known, _)| *known <= seq);
        let mode = self.index(seq).ok().and_then(|index| self.live.get(index));
        let mode = mode.map_or(Mode::Exclusive, |(_, record)| record.mode);
        let later = self.live.get(after..).unwrap_or_default();
        // An exclusive entry is blocked by the one right before it, and a shared one by the last exclusive one.
        let is_shared = |entry: &&(u64, Record)| entry.1.mode == Mode::Shared;
        let blocked = match (mode, later.first().filter(is_shared)) {
            (_, None) => 1,
            (Mode::Exclusive, Some(_)) => later.iter().take_while(is_shared).count(),
            (Mode::Shared, Some(_)) => 0,
        };
        later.iter().take(blocked).map(|(_, record)| record)
    }

    /// The shortest log from which this state can be read again. This log contains neither `last`, which is in the header, nor the
    /// last removal of the value.
    pub(super) fn format(&self) -> String {
        let mut text = String::new();
        if let Some(value) = &self.value {
            format_value(&mut text, value, &[]);
            for (name, data) in &self.records {
                format_record(&mut text, value.version, name, data);
            }
        }
        for (seq, record) in &self.live {
            format_enter(&mut text, *seq, record);
        }
        text
    }

    fn came(&mut self, number: u64) {
        self.last = self.last.max(number);
        self.newest = self.newest.max(number);
    }

    fn index(&self, seq: u64) -> Result<usize, usize> {
        self.live.binary_search_by_key(&seq, |(known, _)| *known)
    }
}

#[cfg(test)]
mod tests;
