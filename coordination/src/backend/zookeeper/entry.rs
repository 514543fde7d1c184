//! Entries: what a node's name and its data say of one.

use zookeeper_client::Stat;

use super::entries::number;
use super::nodes::Node;
use crate::backend::server::stored::StoredEntry;
use crate::backend::{Entry, EntryId, Mode};

/// The entry of a node with this data.
pub(super) fn entry_of(id: EntryId, node: Node<'_>, data: &[u8], stat: &Stat) -> Entry {
    let stored = StoredEntry::read(data);
    let mode = mode_of(node, stored.as_ref());
    let since = stored.as_ref().and_then(StoredEntry::since);
    let (member, data) = stored.map(|stored| (stored.member, stored.data)).unwrap_or_default();
    let (member, data) = (member.into(), data.into());
    Entry { id, seq: number(stat.czxid), member, since, mode, data }
}

/// One that was downgraded keeps its name, and its data says that it is shared.
pub(super) fn mode_of(node: Node<'_>, stored: Option<&StoredEntry>) -> Mode {
    match stored {
        Some(stored) if node.mode == Mode::Exclusive => stored.mode(),
        _ => node.mode,
    }
}
