//! The nodes of a queue: what names they have, and what these names say.
//!
//! The name of a contender's node ends with a number, which the server appends. (The entry's sequence number is another one, see
//! `entries.rs`.) Among the children of one node, the appended numbers rise in the order in which the children were made. The
//! server counts in 32 bits, and the count wraps. So two numbers are compared by their difference.

use super::config::Style;
use crate::backend::{EntryId, Mode};

/// What stands in the name of a contender's node between the entry's id and the appended number, and the mode that it stands for.
const KAZOO: [(&str, Mode); 2] = [("__lock__", Mode::Exclusive), ("__rlock__", Mode::Shared)];
/// What stands between the id and the appended number in the names of Curator's nodes, one text for each kind of Curator's locks.
/// If two texts stand for one mode, our own nodes of this mode have the first of them.
const CURATOR: [(&str, Mode); 3] =
    [("-lock-", Mode::Exclusive), ("-__READ__", Mode::Shared), ("-__WRIT__", Mode::Exclusive)];
/// How the names of Curator's nodes begin. With `nodes=curator`, the names of our nodes begin with it too.
const PROTECTED: &str = "_c_";
/// How many characters an appended number has. A negative one may have one character more.
const DIGITS: usize = 10;

/// The node of a contender, which is an entry of ours or of another library. The node is a child of the queue's node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Node<'a> {
    pub(super) name: &'a str,
    /// The mode that the node's name stands for. If an entry was downgraded to shared, its node keeps its name, and only the node's
    /// data show that the entry is shared.
    pub(super) mode: Mode,
    /// The appended number, which gives the node's place among its siblings.
    pub(super) number: i32,
}

impl Style {
    fn infixes(self) -> &'static [(&'static str, Mode)] {
        match self {
            Self::Kazoo => &KAZOO,
            Self::Curator => &CURATOR,
        }
    }

    /// The name of an entry's node, without the number that the server appends.
    pub(super) fn prefix(self, id: &EntryId, mode: Mode) -> String {
        let infix =
            self.infixes().iter().find(|(_, of)| *of == mode).map_or("", |(infix, _)| infix);
        format!("{}{infix}", self.name(id))
    }

    /// The contender's node with this name; `None`: this is not the name of a contender's node.
    pub(super) fn read(self, name: &str) -> Option<Node<'_>> {
        if self == Self::Curator && is_ours(name) {
            // None of our nodes has this name, because with `nodes=curator` their names begin with `_c_`. So the node is ignored:
            // otherwise its entry would get the same id as the entry of the node with the same name after a `_c_`.
            return None;
        }
        // A negative number may have one character more. Both lengths are tried. A search for the number would be slower, and
        // thousands of names may have to be read.
        [DIGITS, DIGITS + 1].into_iter().find_map(|length| {
            let (before, digits) = name.split_at_checked(name.len().checked_sub(length)?)?;
            let (_, mode) = self.infixes().iter().find(|(infix, _)| before.ends_with(infix))?;
            Some(Node { name, mode: *mode, number: sequence(digits)? })
        })
    }

    /// The id of the entry of a listed node: the whole name of the node, so that the node can be found by the id.
    pub(super) fn id(self, node: Node<'_>) -> EntryId {
        // If the node is ours, its id leaves out the `_c_`: on every store, the ids of our entries begin with their session's id.
        let own = node.name.strip_prefix(PROTECTED).filter(|name| is_ours(name));
        EntryId::from_store(own.filter(|_| self == Self::Curator).unwrap_or(node.name))
    }

    /// If the entry with this id was listed: the name of its node. If it is an entry of ours that was not listed: how the name of
    /// its node begins.
    pub(super) fn name(self, id: &EntryId) -> String {
        match self {
            Self::Curator if is_ours(id.as_str()) => format!("{PROTECTED}{}", id.as_str()),
            _ => id.as_str().to_owned(),
        }
    }
}

impl Node<'_> {
    /// Whether this node was made before its sibling with the number `number`.
    pub(super) fn is_before(&self, number: i32) -> bool {
        self.age(number) < 0
    }

    /// This node's number minus `number`. Negative: this node was made before its sibling with that number.
    pub(super) fn age(&self, number: i32) -> i32 {
        self.number.wrapping_sub(number)
    }
}

/// The text as an appended number; `None`: the text is not such a number.
fn sequence(digits: &str) -> Option<i32> {
    let is_number = digits.strip_prefix('-').unwrap_or(digits).bytes().all(|b| b.is_ascii_digit());
    if is_number { digits.parse().ok() } else { None }
}

/// Whether a name begins with a session's id and `-`, as an [`EntryId`] of ours does.
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
