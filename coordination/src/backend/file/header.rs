//! The beginning of a queue file, header and name, and the checksum that ends each of its lines.
//!
//! The header is written in one piece, within one page.

use std::fmt::Write as _;

use crate::key;

/// Bytes of the header line.
pub(super) const HEADER: usize = 108;

/// No clock and no file comes near; and what is counted on from here stays within what the system takes.
pub(super) const LARGEST: u64 = 1 << 62;

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
        let Self { generation, start, last } = self;
        let mut line = String::with_capacity(HEADER);
        sealed(&mut line, |line| {
            let _ = write!(
                line,
                "coordination-queue 1 gen={generation:020} start={start:020} last={last:020}"
            );
        });
        debug_assert_eq!(line.len(), HEADER);
        line
    }

    pub(super) fn parse(line: &str) -> Option<Self> {
        let mut fields = unseal(line)?.strip_prefix("coordination-queue 1 ")?.split(' ');
        let mut field = |name: &str| number(fields.next()?.strip_prefix(name)?);
        Some(Self { generation: field("gen=")?, start: field("start=")?, last: field("last=")? })
    }
}

/// A number of a queue: microseconds of the wall clock, or an offset.
pub(super) fn number(text: &str) -> Option<u64> {
    text.parse().ok().filter(|number| *number <= LARGEST)
}

/// The line after the header, which tells people, and a reader of a hashed file name, what this is.
pub(super) fn name_line(name: &str) -> String {
    format!("name {}\n", key::escape(name))
}

/// Every byte of a name takes three at most.
pub(super) const LONGEST_NAME_LINE: usize = "name \n".len() + 3 * key::HARD_MAX_NAME_BYTES;

/// The name, if the line after the header is whole.
pub(super) fn parse_name_line(text: &[u8]) -> Option<String> {
    let line = text.split(|byte| *byte == b'\n').next().filter(|line| line.len() < text.len())?;
    key::unescape(std::str::from_utf8(line.strip_prefix(b"name ")?).ok()?)
}

/// Adds a line, with its checksum at its end.
pub(super) fn sealed(text: &mut String, write: impl FnOnce(&mut String)) {
    let from = text.len();
    write(text);
    let sum = crc32fast::hash(text.as_bytes().get(from..).unwrap_or_default());
    let _ = writeln!(text, " {sum:08x}");
}

/// A line without its checksum, if that is right.
pub(super) fn unseal(line: &str) -> Option<&str> {
    let (text, sum) = line.strip_suffix('\n')?.rsplit_once(' ')?;
    (u32::from_str_radix(sum, 16).ok()? == crc32fast::hash(text.as_bytes())).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_comes_back_and_has_its_width() {
        let header = Header { generation: 2, start: 113, last: LARGEST };
        assert_eq!(header.format().len(), HEADER);
        assert_eq!(Header::parse(&header.format()), Some(header));
        assert_eq!(Header::parse(&header.format().replacen("gen=0", "gen=1", 1)), None);
    }

    #[test]
    fn a_number_after_which_none_comes_is_damage() {
        let header = Header { generation: 2, start: 113, last: 5 };
        for odd in [
            Header { generation: u64::MAX, ..header },
            Header { start: u64::MAX, ..header },
            Header { last: u64::MAX, ..header },
        ] {
            assert_eq!(Header::parse(&odd.format()), None, "{odd:?}");
        }
    }

    #[test]
    fn a_name_comes_back_once_it_is_whole() {
        let line = name_line("a b\n");
        assert_eq!(parse_name_line(format!("{line}+ 7").as_bytes()).as_deref(), Some("a b\n"));
        assert_eq!(parse_name_line(line.trim_end().as_bytes()), None);
        assert!(name_line(&"é".repeat(key::HARD_MAX_NAME_BYTES / 2)).len() <= LONGEST_NAME_LINE);
    }
}
