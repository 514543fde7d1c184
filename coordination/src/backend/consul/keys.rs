//! The keys of a namespace.
//!
//! Under a queue's prefix are its entries, whose names begin with a hexadecimal digit, and keys whose names begin with a dot: the
//! ones below, and perhaps the `.lock` of Consul's own tools, which we ignore.

use crate::backend::{Mode, SessionId};

/// The name of the key of the queue's value.
pub(super) const VALUE: &str = ".value";
/// The name of a key that exists for a moment while the value is written on condition that there is no entry: see `alone` in
/// `txn.rs`.
pub(super) const CLOSING: &str = ".closing";
/// The name of the mark, a key that stays for a while after the value was removed: see `values.rs` of `txn_kv`.
pub(super) const REMOVED: &str = ".removed";
/// An entry's name is its session's id, which has this many hexadecimal digits, then `-`, and then a number with at least
/// [`NUMBER`] digits.
const SESSION: usize = 16;
const NUMBER: usize = 6;

/// The name of an entry of ours. All numbers below a million have the same number of digits, so none of these names is the
/// beginning of another name. That matters, because a transaction finds an entry's key by reading all keys that begin with its
/// name: an operation that reads a single key would fail if the key is absent.
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

/// A key as the path of a request's URL. Our keys have only letters, digits and `_-.~%/`, so only `%` has to be encoded.
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
