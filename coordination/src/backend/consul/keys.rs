//! The keys of a namespace.
//!
//! Under a queue's prefix stand its entries, each under its own name, which begins with a hexadecimal digit, and
//! keys that begin with a dot: ours, and the `.lock` of Consul's own tools, which is none of our business.

use crate::backend::server::keyed::ValueKeys;
use crate::backend::{Mode, SessionId};
use crate::key;

const VALUE: &str = ".value";
const CLOSING: &str = ".closing";
const REMOVED: &str = ".removed";
/// The hexadecimal digits of a session's name, and at least so many of the number of its entry in the queue.
const SESSION: usize = 16;
const NUMBER: usize = 6;

/// The name of an entry of ours. None begins with another: a transaction can read no single key that may be absent.
pub(super) fn name_of(session: SessionId, _mode: Mode, number: usize) -> String {
    format!("{session}-{number:0NUMBER$}")
}

/// The keys of one queue.
pub(super) struct Keys {
    prefix: String,
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

    /// Stands for a moment while the value is written on condition that there is no entry.
    pub(super) fn closing(&self) -> String {
        format!("{}{CLOSING}", self.prefix)
    }

    /// Stands for a while where a value was removed.
    fn removed(&self) -> String {
        format!("{}{REMOVED}", self.prefix)
    }

    pub(super) fn of_value(&self) -> ValueKeys {
        let prefix = self.prefix.clone();
        ValueKeys { prefix, value: self.value(), removed: self.removed() }
    }

    /// `name`: see [`Slots`](crate::backend::server::keyed::Slots).
    pub(super) fn entry(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    /// The name of an entry with this key; `None`: it is none of ours.
    pub(super) fn entry_name<'a>(&self, key: &'a str) -> Option<&'a str> {
        key.strip_prefix(&self.prefix).filter(|name| is_entry(name))
    }
}

/// Whether an entry of ours may have this name.
fn is_entry(name: &str) -> bool {
    name.split_once('-').is_some_and(|(session, number)| {
        let is_session = session.len() == SESSION && session.bytes().all(|b| b.is_ascii_hexdigit());
        is_session && number.len() >= NUMBER && number.bytes().all(|b| b.is_ascii_digit())
    })
}

/// The queue's part of a value's key under the prefix of its kind; `None`: it is another key.
pub(super) fn queue_of_value<'a>(key: &'a str, kind_prefix: &str) -> Option<&'a str> {
    let (queue, name) = key.strip_prefix(kind_prefix)?.split_once('/')?;
    (name == VALUE).then_some(queue)
}

/// The queue's part of an entry's key under the prefix of its kind; `None`: it is another key.
pub(super) fn queue_of_entry<'a>(key: &'a str, kind_prefix: &str) -> Option<&'a str> {
    let (queue, name) = key.strip_prefix(kind_prefix)?.split_once('/')?;
    is_entry(name).then_some(queue)
}

/// A session's name in the namespace.
pub(super) fn member(namespace: &str, member: &str) -> String {
    format!("{namespace}/member/{}", key::encode(member))
}

/// A key as a path of a request. Ours have letters, digits and `_-.~%/`.
pub(super) fn path(key: &str) -> String {
    key.replace('%', "%25")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::SessionId;

    #[test]
    fn an_entry_is_told_from_everything_else() {
        let keys = Keys::new("ns/lock/a%2Fb/".into());
        let session = SessionId::random();
        for number in [0, 15, 1_234_567] {
            let name = name_of(session, Mode::Shared, number);
            assert_eq!(keys.entry_name(&keys.entry(&name)), Some(&*name));
        }
        for other in [
            keys.value(),
            keys.closing(),
            keys.removed(),
            format!("{}.lock", keys.prefix()),
            keys.prefix().to_owned(),
            format!("{}{session}-000000/x", keys.prefix()),
            format!("{}{session}-1", keys.prefix()),
            format!("{}{session}-00000x", keys.prefix()),
            format!("ns/lock/a/{session}-000000"),
        ] {
            assert_eq!(keys.entry_name(&other), None, "{other}");
        }
    }

    #[test]
    fn the_key_of_a_value_tells_its_queue() {
        assert_eq!(queue_of_value("ns/claims/a%2Fb/.value", "ns/claims/"), Some("a%2Fb"));
        for other in ["ns/claims/a/.lock", "ns/claims/a/b/.value", "ns/claims/.value", "ns"] {
            assert_eq!(queue_of_value(other, "ns/claims/"), None, "{other}");
        }
    }

    #[test]
    fn the_key_of_an_entry_tells_its_queue() {
        let name = name_of(SessionId::random(), Mode::Exclusive, 7);
        let queue = |key: &str| queue_of_entry(key, "ns/lock/").map(str::to_owned);
        assert_eq!(queue(&format!("ns/lock/a%2Fb/{name}")).as_deref(), Some("a%2Fb"));
        for other in
            ["ns/lock/a/.value", &format!("ns/lock/a/b/{name}"), &format!("ns/lock/{name}")]
        {
            assert_eq!(queue(other), None, "{other}");
        }
    }

    #[test]
    fn a_path_is_decoded_once() {
        assert_eq!(path("ns/lock/a%2Fb/"), "ns/lock/a%252Fb/");
    }
}
