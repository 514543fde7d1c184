//! The keys of a queue, and why they sort as they do.
//!
//! Under the queue's prefix stand its value, `!`, the mark of its removal, `!removed`, then the exclusive
//! entries, which begin with a hexadecimal digit as those of other libraries do, then the shared ones, which
//! begin with `r`. So one range has all entries and no value, and one all that a shared entry has to mind.

use etcd_client::{GetOptions, TxnOp};

use crate::backend::server::txn_kv::Keys;
use crate::backend::{Mode, SessionId};

/// Before every entry.
pub(super) const VALUE: &str = "!";
pub(super) const REMOVED: &str = "!removed";
/// Comes right after all that begins with [`VALUE`], so that a key of any other program counts as an entry.
const FIRST_ENTRY: &str = "\"";
/// What the names of shared entries begin with: after all digits.
pub(super) const SHARED: &str = "r";

/// The name of an entry of ours: `<lease>` as in other libraries, `<lease>-1`, …
pub(super) fn name_of(session: SessionId, mode: Mode, number: usize) -> String {
    let prefix = if mode == Mode::Shared { SHARED } else { "" };
    match number {
        0 => format!("{prefix}{session}"),
        number => format!("{prefix}{session}-{number}"),
    }
}

/// All keys from one on, and before another.
pub(super) struct Range {
    pub(super) from: String,
    pub(super) to: String,
}

/// All entries of a queue.
pub(super) fn entries(keys: &Keys) -> Range {
    let parent = keys.prefix().strip_suffix('/').unwrap_or(keys.prefix());
    // What comes right after the slash.
    Range { from: keys.key(FIRST_ENTRY), to: format!("{parent}0") }
}

/// Those that were entered as exclusive ones.
pub(super) fn exclusive(keys: &Keys) -> Range {
    Range { from: keys.key(FIRST_ENTRY), to: keys.key(SHARED) }
}

/// A key of any other program counts as an entry.
pub(super) fn is_entry(name: &str) -> bool {
    name != VALUE && name != REMOVED
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
        for other in ["ns/lock/a/!", "ns/lock/a/!removed", "ns/lock/a"] {
            assert_eq!(queue(other), None);
        }
    }
}
