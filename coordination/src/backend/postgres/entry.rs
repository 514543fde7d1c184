//! Entries: what is known here of our own.

use crate::backend::server::notifications::Wait;
use crate::backend::server::own_entries;

/// Our own entries, each with what it waits for.
pub(super) type OwnEntries = own_entries::OwnEntries<Option<Wait>>;
