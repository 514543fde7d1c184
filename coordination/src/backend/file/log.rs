//! The text of a queue file: a header of fixed width, the queue's name, and a log of entries.
//!
//! ```text
//! coordination-queue 1 gen=00001795171200000311 start=00000000000000000119 last=00001795171200000000 e3c0a1b2
//! name vol-7
//! + 1795171200000417 9f0c…-51d2… 1795171200000 host-1 7b1fd8a3
//! - 1795171200000417 0a44c1f2
//! ```
//!
//! `+` appends an entry: sequence number, id, wall clock in ms, member. `-` ends one. Every line of the
//! log ends with a CRC-32 of what is before it, so that the half-written last line of a killed writer is
//! told from damage. The header is written in one piece, within one page.

use std::fmt::Write as _;
use std::sync::Arc;

use crate::key;

/// Bytes of the header line.
pub(super) const HEADER: usize = 108;

/// What the header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    /// Rises when what was read before is no longer what the file holds.
    pub(super) generation: u64,
    /// Where the log begins; what is before it is history.
    pub(super) start: u64,
    /// No smaller than any sequence number before `start`.
    pub(super) last: u64,
}

impl Header {
    pub(super) fn format(self) -> String {
        let mut line = format!(
            "coordination-queue 1 gen={:020} start={:020} last={:020}",
            self.generation, self.start, self.last
        );
        seal(&mut line);
        debug_assert_eq!(line.len(), HEADER);
        line
    }

    pub(super) fn parse(line: &str) -> Option<Self> {
        let mut fields = unseal(line)?.strip_prefix("coordination-queue 1 ")?.split(' ');
        let mut field = |name: &str| fields.next()?.strip_prefix(name)?.parse().ok();
        Some(Self { generation: field("gen=")?, start: field("start=")?, last: field("last=")? })
    }
}

/// The line after the header, which tells people, and a reader of a hashed file name, what this is.
pub(super) fn name_line(name: &str) -> String {
    format!("name {}\n", key::escape(name))
}

/// An entry of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) id: Arc<str>,
    pub(super) since_ms: u64,
    /// [Escaped](key::escape).
    pub(super) member: Arc<str>,
    /// Offset in the file.
    pub(super) at: u64,
}

/// Writes the line of an entry that comes.
pub(super) fn format_enter(line: &mut String, seq: u64, record: &Record) {
    line.clear();
    let Record { id, since_ms, member, .. } = record;
    let _ = write!(line, "+ {seq} {id} {since_ms} {member}");
    seal(line);
}

/// Writes the line of an entry that goes.
pub(super) fn format_leave(line: &mut String, seq: u64) {
    line.clear();
    let _ = write!(line, "- {seq}");
    seal(line);
}

/// What the log amounts to so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Log {
    /// The largest sequence number seen.
    pub(super) last: u64,
    /// Entries that have not left, in the order of their sequence numbers.
    live: Vec<(u64, Record)>,
}

/// Damage: a line that is not ours, with lines after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Damaged {
    /// Its offset in the text given.
    pub(super) at: usize,
}

impl Log {
    /// An empty log whose numbers go on after this one.
    pub(super) fn after(last: u64) -> Self {
        Self { last, live: Vec::new() }
    }

    /// Takes in more lines, found at this offset; answers how many bytes were good. What is after them is the half-written
    /// line of a writer that was killed: it never took effect, and is to be overwritten.
    pub(super) fn replay(&mut self, text: &[u8], at: u64) -> Result<usize, Damaged> {
        let mut good = 0;
        for line in text.split_inclusive(|byte| *byte == b'\n') {
            let understood = std::str::from_utf8(line)
                .ok()
                .and_then(unseal)
                .and_then(|line| self.apply(line, at + good as u64));
            if understood.is_none() {
                let is_last = good + line.len() == text.len();
                return if is_last { Ok(good) } else { Err(Damaged { at: good }) };
            }
            good += line.len();
        }
        Ok(good)
    }

    fn apply(&mut self, line: &str, at: u64) -> Option<()> {
        let mut words = line.split(' ');
        let (verb, seq) = (words.next()?, words.next()?.parse().ok()?);
        match verb {
            "+" => {
                let (id, since, member) = (words.next()?, words.next()?, words.next()?);
                let record = Record {
                    id: id.into(),
                    since_ms: since.parse().ok()?,
                    member: member.into(),
                    at,
                };
                self.enter(seq, record);
            }
            "-" => {
                self.leave(seq);
            }
            _ => return None,
        }
        words.next().is_none().then_some(())
    }

    /// Takes in an entry; its number is larger than all before.
    pub(super) fn enter(&mut self, seq: u64, record: Record) {
        self.last = self.last.max(seq);
        let index = self.live.partition_point(|(known, _)| *known < seq);
        self.live.insert(index, (seq, record));
    }

    /// Removes an entry; false: there was none of this number.
    pub(super) fn leave(&mut self, seq: u64) -> bool {
        let index = self.live.binary_search_by_key(&seq, |(known, _)| *known);
        index.map(|index| self.live.remove(index)).is_ok()
    }

    pub(super) fn live(&self) -> &[(u64, Record)] {
        &self.live
    }

    /// The number of the entry of this id.
    pub(super) fn find(&self, id: &str) -> Option<u64> {
        self.live.iter().find(|(_, record)| &*record.id == id).map(|(seq, _)| *seq)
    }

    /// The newest entry before this number.
    pub(super) fn before(&self, seq: u64) -> Option<(u64, &Record)> {
        let index = self.live.partition_point(|(known, _)| *known < seq);
        let (seq, record) = self.live.get(index.checked_sub(1)?)?;
        Some((*seq, record))
    }
}

/// Ends a line with its checksum.
fn seal(line: &mut String) {
    let sum = crc32fast::hash(line.as_bytes());
    let _ = writeln!(line, " {sum:08x}");
}

/// A line without its checksum, if that is right.
fn unseal(line: &str) -> Option<&str> {
    let (text, sum) = line.strip_suffix('\n')?.rsplit_once(' ')?;
    (u32::from_str_radix(sum, 16).ok()? == crc32fast::hash(text.as_bytes())).then_some(text)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn record(member: &str) -> Record {
        let id = "0000000000000001-0a".into();
        Record { id, since_ms: 5, member: key::escape(member).into(), at: 0 }
    }

    fn enters(seq: u64, record: &Record) -> String {
        let mut line = String::new();
        format_enter(&mut line, seq, record);
        line
    }

    fn leaves(seq: u64) -> String {
        let mut line = String::new();
        format_leave(&mut line, seq);
        line
    }

    #[test]
    fn a_header_comes_back_and_has_its_width() {
        let header = Header { generation: 2, start: 113, last: u64::MAX };
        assert_eq!(header.format().len(), HEADER);
        assert_eq!(Header::parse(&header.format()), Some(header));
        assert_eq!(Header::parse(&header.format().replacen("gen=0", "gen=1", 1)), None);
    }

    #[test]
    fn entries_come_and_go() {
        let text = [enters(7, &record("a b\n")), enters(9, &record("c")), leaves(7)].concat();
        let mut log = Log::default();
        assert_eq!(log.replay(text.as_bytes(), 0), Ok(text.len()));
        assert_eq!((log.last, log.live().len()), (9, 1));
        assert_eq!(log.find("0000000000000001-0a"), Some(9));
    }

    #[test]
    fn every_cut_of_the_last_line_is_forgiven_and_damage_before_it_is_not() {
        let (first, second) = (enters(7, &record("a")), enters(9, &record("b")));
        let text = format!("{first}{second}");
        for cut in first.len()..text.len() {
            let mut log = Log::default();
            assert_eq!(log.replay(&text.as_bytes()[..cut], 0), Ok(first.len()), "cut at {cut}");
            assert_eq!(log.live().len(), 1);
        }
        let damaged = text.replacen("+ 7", "+ 8", 1);
        assert_eq!(Log::default().replay(damaged.as_bytes(), 0), Err(Damaged { at: 0 }));
    }

    proptest! {
        #[test]
        fn members_of_any_kind_survive(member in ".*", seq in 1..u64::MAX) {
            let line = enters(seq, &record(&member));
            let mut log = Log::default();
            prop_assert_eq!(log.replay(line.as_bytes(), 0), Ok(line.len()));
            let read = key::unescape(&log.live()[0].1.member);
            prop_assert_eq!(read, Some(member));
        }

        #[test]
        fn arbitrary_text_never_panics(text in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = Log::default().replay(&text, 0);
            let _ = std::str::from_utf8(&text).map(Header::parse);
        }
    }
}
