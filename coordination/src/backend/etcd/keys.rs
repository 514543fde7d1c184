//! The keys of a queue, and why they sort as they do.
//!
//! The keys under the queue's prefix sort in this order: the queue's value, `!`; the mark of the value's removal, `!removed`; the
//! exclusive entries, whose names begin with a hexadecimal digit, as do the names that other libraries use; the shared entries,
//! whose names begin with `r`. So one range has all entries and not the value, and another range has all entries that may block a
//! shared entry.

use etcd_client::{GetOptions, TxnOp};

use crate::backend::server::txn_kv::Keys;
use crate::backend::{Mode, SessionId};

/// The name of the value's key, which sorts before every entry.
pub(super) const VALUE: &str = "!";
/// The name of the mark, a key that stays for a while after the value was removed: see `values.rs` of `txn_kv`.
pub(super) const REMOVED: &str = "!removed";
/// The lower end of the range of entries. It sorts right after all keys that begin with [`VALUE`], so that the range also has the
/// keys that other programs have put under the queue's prefix.
const FIRST_ENTRY: &str = "\"";
/// The first character of the names of shared entries. It sorts after all hexadecimal digits, so that no shared entry is in the
/// range of exclusive entries.
pub(super) const SHARED: &str = "r";

/// The name of the key of one of our entries: `<lease>` as in other libraries, then `<lease>-1`, …
pub(super) fn name_of(session: SessionId, mode: Mode, number: usize) -> String {
    let prefix = if mode == Mode::Shared { SHARED } else { "" };
    match number {
        0 => format!("{prefix}{session}"),
        number => format!("{prefix}{session}-{number}"),
    }
}

/// The keys from `from` on and before `to`.
pub(super) struct Range {
    pub(super) from: String,
    pub(super) to: String,
}

/// The range of all entries of a queue.
pub(super) fn entries(keys: &Keys) -> Range {
    let parent = keys.prefix().strip_suffix('/').unwrap_or(keys.prefix());
    // `0` is the character after `/`, so this is the first string after all that begin with the prefix.
    Range { from: keys.key(FIRST_ENTRY), to: format!("{parent}0") }
}

/// The range of all entries that were entered as exclusive. Some of them may have been downgraded to shared since.
pub(super) fn exclusive(keys: &Keys) -> Range {
    Range { from: keys.key(FIRST_ENTRY), to: keys.key(SHARED) }
}

/// Whether the name is that of an entry, which means that its key is in the range [`entries`]. Every key under the queue's prefix
/// is in this range, whoever wrote the key, except the keys whose names begin with `!`: the value, the mark, and any further key
/// that an operator has put there (`!x`). The encoded names of queues have no `!`, so none of the excepted keys belongs to another
/// queue.
pub(super) fn is_entry(name: &str) -> bool {
    name >= FIRST_ENTRY
}

impl Range {
    pub(super) fn get(self, options: GetOptions) -> TxnOp {
        TxnOp::get(self.from, Some(options.with_range(self.to)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::server::txn_kv::keys::queue_of;

    fn has(range: &Range, key: &str) -> bool {
        (range.from.as_str()..range.to.as_str()).contains(&key)
    }

    #[test]
    fn a_range_has_what_it_says() {
        let keys = Keys::new("ns/lock/a/".into());
        let (all, exclusive) = (entries(&keys), exclusive(&keys));
        for digit in ["0", "9ab", "2ffee76b64247a2d", "f00-1", "fff"] {
            assert!(has(&all, &keys.key(digit)) && has(&exclusive, &keys.key(digit)), "{digit}");
        }
        for shared in ["r0", "r2ffee76b64247a2d-1"] {
            assert!(has(&all, &keys.key(shared)) && !has(&exclusive, &keys.key(shared)));
        }
        for other in [
            "ns/lock/a/!",
            "ns/lock/a/!removed",
            "ns/lock/a",
            "ns/lock/ab/1",
            "ns/lock/a-b/1",
            "ns/lock/a%2Fb/1",
        ] {
            assert!(!has(&all, other) && !has(&exclusive, other), "{other}");
        }
    }

    #[test]
    fn the_key_of_a_value_tells_its_queue() {
        let queue = |key: &'static str| queue_of(key, "ns/claims/", |name| name == VALUE);
        assert_eq!(queue("ns/claims/a%2Fb/!"), Some("a%2Fb"));
        for other in ["ns/claims/a/1", "ns/claims/a/r1", "ns/claims/a/b/!", "ns/claims/!"] {
            assert_eq!(queue(other), None);
        }
    }

    #[test]
    fn the_key_of_an_entry_tells_its_queue() {
        let queue = |key: &'static str| queue_of(key, "ns/lock/", is_entry);
        for own in ["ns/lock/a%2Fb/1", "ns/lock/a%2Fb/r1-2", "ns/lock/a%2Fb/b/!"] {
            assert_eq!(queue(own), Some("a%2Fb"));
        }
        for other in
            ["ns/lock/a/!", "ns/lock/a/!removed", "ns/lock/a/!x", "ns/lock/a/", "ns/lock/a"]
        {
            assert_eq!(queue(other), None, "{other}");
            assert!(!has(&entries(&Keys::new("ns/lock/a/".into())), other), "{other}");
        }
    }
}
