//! The nodes of a queue: what they are called, and what their names say.
//!
//! The name of a contender's node ends with the sequence number that the server gave it, a counter of 32 bits that wraps; so two
//! such numbers are compared by their difference. The numbers of one parent's children are in the order in which they were made.

use super::config::Style;
use crate::backend::{EntryId, Mode};

/// In the name of a contender's node: the part between the entry's id and the sequence number.
const KAZOO: [(&str, Mode); 2] = [("__lock__", Mode::Exclusive), ("__rlock__", Mode::Shared)];
/// The part between id and sequence number in the names of Curator's nodes, one for each kind of lock. If two of them mean the same
/// mode, our own nodes have the first.
const CURATOR: [(&str, Mode); 3] =
    [("-lock-", Mode::Exclusive), ("-__READ__", Mode::Shared), ("-__WRIT__", Mode::Exclusive)];
/// The prefix of the names of Curator's nodes and, with `nodes=curator`, of ours too.
const PROTECTED: &str = "_c_";
/// How many characters a sequence number has; a negative one may have one more.
const DIGITS: usize = 10;

/// The node of a contender (an entry of ours or of another library): a child of the queue's node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Node<'a> {
    pub(super) name: &'a str,
    /// The mode that the node's name says. An entry that was downgraded to shared keeps its name: its data says so.
    pub(super) mode: Mode,
    /// The sequence number, which gives the node's order among its siblings.
    pub(super) number: i32,
}

impl Style {
    fn infixes(self) -> &'static [(&'static str, Mode)] {
        match self {
            Self::Kazoo => &KAZOO,
            Self::Curator => &CURATOR,
        }
    }

    /// The name of an entry's node, up to its sequence number.
    pub(super) fn prefix(self, id: &EntryId, mode: Mode) -> String {
        let infix =
            self.infixes().iter().find(|(_, of)| *of == mode).map_or("", |(infix, _)| infix);
        format!("{}{infix}", self.name(id))
    }

    /// The contender's node that has this name; `None`: no contender's node has such a name.
    pub(super) fn read(self, name: &str) -> Option<Node<'_>> {
        if self == Self::Curator && is_ours(name) {
            // We make no node with this name, because ours begin with `_c_`. The entry of such a node would get the same id as
            // the entry of the node with `_c_`.
            return None;
        }
        // A negative number may have one character more. Two lengths are tried instead of a search, as names are read by the
        // thousand.
        [DIGITS, DIGITS + 1].into_iter().find_map(|length| {
            let (before, digits) = name.split_at_checked(name.len().checked_sub(length)?)?;
            let (_, mode) = self.infixes().iter().find(|(infix, _)| before.ends_with(infix))?;
            Some(Node { name, mode: *mode, number: sequence(digits)? })
        })
    }

    /// The id of the entry of a listed node: the node's whole name, so that the node is found by it.
    pub(super) fn id(self, node: Node<'_>) -> EntryId {
        // The id has no `_c_`, since our entry ids begin with their session on every store.
        let own = node.name.strip_prefix(PROTECTED).filter(|name| is_ours(name));
        EntryId::from_store(own.filter(|_| self == Self::Curator).unwrap_or(node.name))
    }

    /// For the id of an entry that was listed: the name of its node. For the id of an entry of ours that was not listed: the
    /// beginning of its node's name.
    pub(super) fn name(self, id: &EntryId) -> String {
        match self {
            Self::Curator if is_ours(id.as_str()) => format!("{PROTECTED}{}", id.as_str()),
            _ => id.as_str().to_owned(),
        }
    }
}

impl Node<'_> {
    /// Whether this node was made before its sibling with this number.
    pub(super) fn is_before(&self, number: i32) -> bool {
        self.age(number) < 0
    }

    /// The difference between this node's number and `number`. Negative: this node was made before its sibling with that number.
    pub(super) fn age(&self, number: i32) -> i32 {
        self.number.wrapping_sub(number)
    }
}

/// The sequence number, if the text is nothing else.
fn sequence(digits: &str) -> Option<i32> {
    let is_number = digits.strip_prefix('-').unwrap_or(digits).bytes().all(|b| b.is_ascii_digit());
    if is_number { digits.parse().ok() } else { None }
}

/// Whether a name begins as an [`EntryId`] of ours does.
fn is_ours(name: &str) -> bool {
    name.split_once('-').is_some_and(|(session, _)| {
        session.len() == 16 && session.bytes().all(|byte| byte.is_ascii_hexdigit())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::SessionId;

    #[test]
    fn names_say_what_they_are() {
        let node = |style: Style, name: &'static str| {
            style.read(name).map(|node| (node.mode, node.number))
        };
        let (exclusive, shared) = (Mode::Exclusive, Mode::Shared);
        for (style, name, expected) in [
            (Style::Kazoo, "8f__lock__0000000012", Some((exclusive, 12))),
            (Style::Kazoo, "8f__rlock__0000000012", Some((shared, 12))),
            (Style::Kazoo, "8f__lock__-2147483648", Some((exclusive, i32::MIN))),
            (Style::Kazoo, "8f__lock__-000000005", Some((exclusive, -5))),
            (Style::Kazoo, "_c_8f-lock-0000000012", None),
            (Style::Kazoo, "8f__lock__", None),
            (Style::Kazoo, "8f__lock__12", None),
            (Style::Kazoo, "8f__lock__00000000x2", None),
            (Style::Kazoo, "8f__lock__+000000012", None),
            (Style::Kazoo, "8f__lock__4000000000", None),
            (Style::Curator, "_c_8f-lock-0000000012", Some((exclusive, 12))),
            (Style::Curator, "_c_8f-__READ__0000000012", Some((shared, 12))),
            (Style::Curator, "_c_8f-__WRIT__0000000012", Some((exclusive, 12))),
            (Style::Curator, "8f__lock__0000000012", None),
        ] {
            assert_eq!(node(style, name), expected, "{name}");
        }
    }

    #[test]
    fn order_survives_the_wrap() {
        let last = Style::Kazoo.read("a__lock__2147483647").expect("a contender");
        let next = Style::Kazoo.read("b__lock__-2147483648").expect("a contender");
        assert!(last.is_before(next.number) && !next.is_before(last.number));
        assert!(!last.is_before(last.number));
        assert!(last.age(next.number) == -1);
    }

    #[test]
    fn a_listed_entry_of_ours_tells_its_session_and_finds_its_node() {
        let session = SessionId::random();
        let own = EntryId::random(session);
        for style in [Style::Kazoo, Style::Curator] {
            for mode in [Mode::Exclusive, Mode::Shared] {
                let name = format!("{}{:010}", style.prefix(&own, mode), 7);
                let node = style.read(&name).expect("a contender");
                assert_eq!(node.mode, mode);
                let listed = style.id(node);
                assert!(listed.is_of(session), "{listed:?}");
                assert_eq!(style.name(&listed), name);
            }
        }
        let foreign = "_c_2a0b8c1e-0000-4000-8000-1234567890ab-lock-0000000001";
        let node = Style::Curator.read(foreign).expect("a contender");
        assert_eq!(Style::Curator.name(&Style::Curator.id(node)), foreign);
    }
}
