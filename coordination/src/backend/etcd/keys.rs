//! The keys of a queue, and why they sort as they do.
//!
//! Under the queue's prefix stand its value, `!`, the mark of its removal, `!removed`, then the exclusive
//! entries, which begin with a hexadecimal digit as those of other libraries do, then the shared ones, which
//! begin with `r`. So one range has all entries and no value, and one all that a shared entry has to mind.

use etcd_client::{GetOptions, TxnOp};

use crate::backend::server::keyed::ValueKeys;
use crate::backend::{Mode, SessionId};

/// Before every entry.
const VALUE: &str = "!";
const REMOVED: &str = "!removed";
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

/// The keys of one queue.
pub(super) struct Keys {
    prefix: String,
}

/// All keys from one on, and before another.
pub(super) struct Range {
    pub(super) from: String,
    pub(super) to: String,
}

impl Keys {
    /// Those that begin with `prefix`, which ends with a slash.
    pub(super) fn new(prefix: String) -> Self {
        Self { prefix }
    }

    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }

    pub(super) fn value(&self) -> String {
        format!("{}{VALUE}", self.prefix)
    }

    /// Stands for a while where a value was removed.
    fn removed(&self) -> String {
        format!("{}{REMOVED}", self.prefix)
    }

    pub(super) fn of_value(&self) -> ValueKeys {
        let prefix = self.prefix.clone();
        ValueKeys { prefix, value: self.value(), removed: self.removed() }
    }

    pub(super) fn entry(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    pub(super) fn entries(&self) -> Range {
        let parent = self.prefix.strip_suffix('/').unwrap_or(&self.prefix);
        // What comes right after the slash.
        Range { from: self.entry(FIRST_ENTRY), to: format!("{parent}0") }
    }

    pub(super) fn exclusive(&self) -> Range {
        Range { from: self.entry(FIRST_ENTRY), to: self.entry(SHARED) }
    }

    /// The part after the prefix.
    pub(super) fn name<'a>(&self, key: &'a [u8]) -> Option<&'a str> {
        std::str::from_utf8(key).ok()?.strip_prefix(&self.prefix)
    }

    pub(super) fn is_value(&self, key: &[u8]) -> bool {
        self.name(key) == Some(VALUE)
    }

    pub(super) fn is_removed(&self, key: &[u8]) -> bool {
        self.name(key) == Some(REMOVED)
    }
}

/// The queue's part of a value's key under the prefix of its kind; `None`: it is the key of an entry.
pub(super) fn queue_of_value<'a>(key: &'a [u8], kind_prefix: &str) -> Option<&'a str> {
    let rest = std::str::from_utf8(key).ok()?.strip_prefix(kind_prefix)?;
    let (queue, name) = rest.split_once('/')?;
    (name == VALUE).then_some(queue)
}

/// The queue's part of an entry's key under the prefix of its kind; `None`: it is the key of something else.
pub(super) fn queue_of_entry<'a>(key: &'a [u8], kind_prefix: &str) -> Option<&'a str> {
    let rest = std::str::from_utf8(key).ok()?.strip_prefix(kind_prefix)?;
    let (queue, name) = rest.split_once('/')?;
    (name != VALUE && name != REMOVED).then_some(queue)
}

impl Range {
    pub(super) fn get(self, options: GetOptions) -> TxnOp {
        TxnOp::get(self.from, Some(options.with_range(self.to)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn has(range: &Range, key: &str) -> bool {
        (range.from.as_str()..range.to.as_str()).contains(&key)
    }

    #[test]
    fn a_range_has_what_it_says() {
        let keys = Keys::new("ns/lock/a/".into());
        let (all, exclusive) = (keys.entries(), keys.exclusive());
        for digit in ["0", "9ab", "2ffee76b64247a2d", "f00-1", "fff"] {
            assert!(
                has(&all, &keys.entry(digit)) && has(&exclusive, &keys.entry(digit)),
                "{digit}"
            );
        }
        for shared in ["r0", "r2ffee76b64247a2d-1"] {
            assert!(has(&all, &keys.entry(shared)) && !has(&exclusive, &keys.entry(shared)));
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
        assert_eq!(queue_of_value(b"ns/claims/a%2Fb/!", "ns/claims/"), Some("a%2Fb"));
        for other in [&b"ns/claims/a/1"[..], b"ns/claims/a/r1", b"ns/claims/a/b/!", b"ns/claims/!"]
        {
            assert_eq!(queue_of_value(other, "ns/claims/"), None);
        }
        assert!(Keys::new("a/".into()).is_value(b"a/!"));
    }

    #[test]
    fn the_key_of_an_entry_tells_its_queue() {
        for own in [&b"ns/lock/a%2Fb/1"[..], b"ns/lock/a%2Fb/r1-2", b"ns/lock/a%2Fb/b/!"] {
            assert_eq!(queue_of_entry(own, "ns/lock/"), Some("a%2Fb"));
        }
        for other in [&b"ns/lock/a/!"[..], b"ns/lock/a/!removed", b"ns/lock/a", b"ns/lock/a/\xff"] {
            assert_eq!(queue_of_entry(other, "ns/lock/"), None);
        }
    }
}
