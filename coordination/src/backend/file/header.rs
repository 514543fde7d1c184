//! The text at the beginning of a queue's file (the header, and a line with the queue's name), and the checksum at the end of each
//! line.
//!
//! The header is written with one call and lies within one memory page. So no other process reads half of it.

use std::fmt::Write as _;

use crate::key;

/// The length of the header line, in bytes.
pub(super) const HEADER: usize = 108;

/// The largest number that a queue's file may have; a larger number is damage. No time and no file size is that large. The sum of
/// such a number and a small one still fits into the `i64` of system calls.
pub(super) const LARGEST: u64 = 1 << 62;

/// The fields of the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    /// Rises whenever the file's earlier contents are replaced, instead of being continued. A process that has read the file under
    /// an earlier generation then reads it again from the start.
    pub(super) generation: u64,
    /// The offset where the log begins. Lines before this offset have no effect any more.
    pub(super) start: u64,
    /// At least as large as every sequence number in the lines before `start`. So numbers go on rising after those lines were
    /// dropped.
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

/// Parses a number of a queue's file: a time in microseconds, or an offset. `None`: the text is not a number, or the number is
/// above [`LARGEST`].
pub(super) fn number(text: &str) -> Option<u64> {
    text.parse().ok().filter(|number| *number <= LARGEST)
}

/// The line after the header, with the queue's full name. It tells people who read the file, and processes that open it, whose file
/// this is. If the queue's name is too long for a file name, the file's own name has only a hash, and the library reads the queue's
/// name from this line.
pub(super) fn name_line(name: &str) -> String {
    format!("name {}\n", key::escape(name))
}

/// The largest length of the line with the queue's name. Escaping turns each byte of the name into at most three.
pub(super) const LONGEST_NAME_LINE: usize = "name \n".len() + 3 * key::HARD_MAX_NAME_BYTES;

/// The queue's name, from the line after the header; `None`: the line is not complete.
pub(super) fn parse_name_line(text: &[u8]) -> Option<String> {
    let line = text.split(|byte| *byte == b'\n').next().filter(|line| line.len() < text.len())?;
    key::unescape(std::str::from_utf8(line.strip_prefix(b"name ")?).ok()?)
}

/// Appends one line to `text`: the text that `write` writes, then the checksum of this text.
pub(super) fn sealed(text: &mut String, write: impl FnOnce(&mut String)) {
    let from = text.len();
    write(text);
    let sum = crc32fast::hash(text.as_bytes().get(from..).unwrap_or_default());
    let _ = writeln!(text, " {sum:08x}");
}

/// The line without its checksum; `None`: the checksum is wrong or missing.
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
