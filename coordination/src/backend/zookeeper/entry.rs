//! Entries, as they are read from nodes' names and data.

use zookeeper_client::Stat;

use super::nodes::Node;
use crate::backend::server::own_entries;
use crate::backend::server::stored::StoredEntry;
use crate::backend::{Entry, EntryId};

pub(super) type OwnEntries = own_entries::OwnEntries<Known>;

/// What is known of the node of an entry of ours.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Known {
    /// The version of the write fence under which the last request to make the node was sent; `None`: none was sent.
    pub(super) asked: Option<i32>,
    /// The node; `None`: no answer has come yet that names it.
    pub(super) made: Option<Made>,
}

/// A node that was made for an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Made {
    pub(super) name: String,
    /// The node's number among its siblings.
    pub(super) number: i32,
    /// The transaction that made the node, which is the entry's sequence number.
    pub(super) seq: u64,
    /// How often the node's data was updated, as far as is known.
    pub(super) updates: i32,
}

/// The entry of a node with this data.
pub(super) fn entry_of(id: EntryId, node: Node<'_>, data: &[u8], stat: &Stat) -> Entry {
    StoredEntry::entry(id.as_str(), number(stat.czxid), node.mode, data)
}

/// A transaction's number (zxid) as a sequence number.
pub(super) fn number(transaction: i64) -> u64 {
    u64::try_from(transaction).unwrap_or_default()
}
