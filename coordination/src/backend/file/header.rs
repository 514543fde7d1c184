//! The beginning of a queue file, header and name, and the checksum that ends each of its lines.
//!
//! The header is written in one piece, within one page.

use std::fmt::Write as _;

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
        let mut field = |name: &str| fields.next()?.strip_prefix(name)?.parse().ok();
        Some(Self { generation: field("gen=")?, start: field("start=")?, last: field("last=")? })
    }
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
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_header_comes_back_and_has_its_width() {
        let header = Header { generation: 2, start: 113, last: u64::MAX };
        assert_eq!(header.format().len(), HEADER);
        assert_eq!(Header::parse(&header.format()), Some(header));
        assert_eq!(Header::parse(&header.format().replacen("gen=0", "gen=1", 1)), None);
    }

    #[test]
    fn a_name_comes_back_once_it_is_whole() {
        let line = name_line("a b\n");
        assert_eq!(parse_name_line(format!("{line}+ 7").as_bytes()).as_deref(), Some("a b\n"));
        assert_eq!(parse_name_line(line.trim_end().as_bytes()), None);
        assert!(name_line(&"é".repeat(key::HARD_MAX_NAME_BYTES / 2)).len() <= LONGEST_NAME_LINE);
    }

    proptest! {
        #[test]
        fn arbitrary_text_never_panics(text in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = parse_name_line(&text);
            let _ = std::str::from_utf8(&text).map(Header::parse);
        }
    }
}
