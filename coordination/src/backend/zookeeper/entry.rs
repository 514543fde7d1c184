//! Entries, as they are read from the names and the data of nodes.

use zookeeper_client::Stat;

use super::nodes::Node;
use crate::backend::server::own_entries;
use crate::backend::server::stored::StoredEntry;
use crate::backend::{Entry, EntryId};

pub(super) type OwnEntries = own_entries::OwnEntries<Known>;

/// What this process knows of the node of one of its own entries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Known {
    /// The version of the write fence that was a condition of the last request to make the node; `None`: no such request was sent.
    pub(super) asked: Option<i32>,
    /// The node; `None`: no answer has named it yet, so it is not known whether it exists.
    pub(super) made: Option<Made>,
}

/// The node that was made for an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Made {
    pub(super) name: String,
    /// The number at the end of the node's name, which gives its order among its siblings.
    pub(super) number: i32,
    /// The entry's sequence number: the number of the transaction that made the node.
    pub(super) seq: u64,
    /// How often the node's data were updated, as far as this process knows.
    pub(super) updates: i32,
}

/// The entry that a node stands for. `data` and `stat` were read from the node.
pub(super) fn entry_of(id: EntryId, node: Node<'_>, data: &[u8], stat: &Stat) -> Entry {
    StoredEntry::entry(id.as_str(), number(stat.czxid), node.mode, data)
}

/// The number of a transaction (zxid), as a sequence number.
pub(super) fn number(transaction: i64) -> u64 {
    u64::try_from(transaction).unwrap_or_default()
}
