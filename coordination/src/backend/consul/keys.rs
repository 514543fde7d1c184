//! The keys of a namespace.
//!
//! Under a queue's prefix stand its entries, each under its own name, which begins with a hexadecimal digit, and
//! keys that begin with a dot: ours, and the `.lock` of Consul's own tools, which is none of our business.

use crate::backend::{Mode, SessionId};

pub(super) const VALUE: &str = ".value";
/// Stands for a moment while the value is written on condition that there is no entry.
pub(super) const CLOSING: &str = ".closing";
/// Stands for a while where a value was removed.
pub(super) const REMOVED: &str = ".removed";
/// How many hexadecimal digits a session's name has, and ([`NUMBER`]) how many digits at least the number of its key.
const SESSION: usize = 16;
const NUMBER: usize = 6;

/// The name of an entry of ours. None is the beginning of another: a transaction fails if it reads one key that is absent, and
/// so reads all keys that begin with a name.
pub(super) fn name_of(session: SessionId, _mode: Mode, number: usize) -> String {
    format!("{session}-{number:0NUMBER$}")
}

/// Whether an entry of ours may have this name.
pub(super) fn is_entry(name: &str) -> bool {
    name.split_once('-').is_some_and(|(session, number)| {
        let is_session = session.len() == SESSION && session.bytes().all(|b| b.is_ascii_hexdigit());
        is_session && number.len() >= NUMBER && number.bytes().all(|b| b.is_ascii_digit())
    })
}

/// A key as a path of a request. Ours have letters, digits and `_-.~%/`.
pub(super) fn path(key: &str) -> String {
    key.replace('%', "%25")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::SessionId;
    use crate::backend::server::txn_kv::keys::queue_of;

    #[test]
    fn an_entry_is_told_from_everything_else() {
        let session = SessionId::random();
        for number in [0, 15, 1_234_567] {
            assert!(is_entry(&name_of(session, Mode::Shared, number)));
        }
        for other in [
            VALUE,
            CLOSING,
            REMOVED,
            ".lock",
            "",
            &format!("{session}-000000/x"),
            &format!("{session}-1"),
            &format!("{session}-00000x"),
            &format!("a/{session}-000000"),
        ] {
            assert!(!is_entry(other), "{other}");
        }
    }

    #[test]
    fn the_key_of_a_value_tells_its_queue() {
        let queue = |key: &'static str| queue_of(key, "ns/claims/", |name| name == VALUE);
        assert_eq!(queue("ns/claims/a%2Fb/.value"), Some("a%2Fb"));
        for other in ["ns/claims/a/.lock", "ns/claims/a/b/.value", "ns/claims/.value", "ns"] {
            assert_eq!(queue(other), None, "{other}");
        }
    }

    #[test]
    fn the_key_of_an_entry_tells_its_queue() {
        let name = name_of(SessionId::random(), Mode::Exclusive, 7);
        let queue = |key: &str| queue_of(key, "ns/lock/", is_entry).map(str::to_owned);
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
