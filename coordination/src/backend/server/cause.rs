//! Finds out why a connection broke, from the error that a client crate reports and the chain of its sources.

use std::error::Error as StdError;
use std::io;

use crate::error::ErrorKind;

/// An error and its sources, the deepest source last.
pub(crate) type Causes<'a> = Vec<&'a (dyn StdError + 'static)>;

/// This error, if there is one, and all its sources.
pub(crate) fn causes<'a>(first: Option<&'a (dyn StdError + 'static)>) -> Causes<'a> {
    let next = |cause: &&'a (dyn StdError + 'static)| (*cause).source();
    std::iter::successors(first, next).collect()
}

/// The kind of the error for a connection that failed: nobody listens, the host has no address, TLS failed, or something else.
pub(crate) fn connection_kind(causes: &Causes<'_>) -> ErrorKind {
    let kinds = causes.iter().filter_map(|cause| {
        let io = cause.downcast_ref::<io::Error>().map(io::Error::kind);
        match io {
            Some(io::ErrorKind::ConnectionRefused) => Some(ErrorKind::Refused),
            _ => kind_said(&cause.to_string()),
        }
    });
    kinds.into_iter().next().unwrap_or(ErrorKind::Unavailable)
}

/// The kind of an error, judged by its message; `None`: the message speaks neither of DNS nor of TLS.
pub(crate) fn kind_said(text: &str) -> Option<ErrorKind> {
    const DNS: [&str; 2] = ["dns error", "failed to lookup address"];
    const TLS: [&str; 5] = [
        "certificate",
        "received fatal alert",
        "received corrupt message",
        "handshake",
        "parsing TLS",
    ];
    let speaks_of = |signs: &[&str]| signs.iter().any(|sign| text.contains(sign));
    match () {
        () if speaks_of(&DNS) => Some(ErrorKind::Dns),
        () if speaks_of(&TLS) => Some(ErrorKind::Tls),
        () => None,
    }
}

/// Whether the server closed the connection and gave no reason. A TLS alert, for instance, would be a reason.
pub(crate) fn is_hang_up(causes: &Causes<'_>) -> bool {
    const ENDS: [&str; 3] = ["broken pipe", "connection closed", "connection reset"];
    let ended = |cause: &&(dyn StdError + 'static)| {
        let text = cause.to_string().to_lowercase();
        ENDS.iter().any(|end| text.contains(end))
    };
    connection_kind(causes) == ErrorKind::Unavailable && causes.iter().any(ended)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(error: io::Error) -> ErrorKind {
        connection_kind(&causes(Some(&error)))
    }

    #[test]
    fn what_broke_is_known_by_what_stands_beneath() {
        assert_eq!(kind(io::ErrorKind::ConnectionRefused.into()), ErrorKind::Refused);
        assert_eq!(kind(io::Error::other("invalid peer certificate")), ErrorKind::Tls);
        assert_eq!(kind(io::Error::other("dns error: no such host")), ErrorKind::Dns);
        assert_eq!(kind(io::Error::other("early eof")), ErrorKind::Unavailable);
        assert_eq!(connection_kind(&causes(None)), ErrorKind::Unavailable);
    }

    #[test]
    fn a_hang_up_is_no_refusal() {
        let is = |error: io::Error| is_hang_up(&causes(Some(&error)));
        assert!(is(io::Error::other("Connection reset by peer (os error 104)")));
        assert!(!is(io::ErrorKind::ConnectionRefused.into()));
        assert!(!is(io::Error::other("certificate: connection closed")));
    }
}
