//! Maps the errors of Consul and of the HTTP client to ours, case by case.

use std::error::Error as StdError;
use std::io;

use crate::backend::server::cause::{Causes, causes, connection_kind, is_hang_up};
use crate::backend::server::connections::Failure;
use crate::error::{Effect, Error, ErrorKind};

/// How many characters of a server's message are shown.
const LONGEST_MESSAGE: usize = 300;

/// The failure of a request that got no answer.
pub(super) fn failure(operation: &'static str, error: &reqwest::Error) -> Failure {
    let beneath = causes(error.source());
    let is_cut = error.is_connect() && is_cut(&beneath);
    // If the server just closed the connection during the handshake, that is not an error of TLS: the server may refuse new
    // connections.
    let kind = if is_cut { ErrorKind::Unavailable } else { connection_kind(&beneath) };
    let effect = match error.is_connect() || error.is_builder() {
        true => Effect::None,
        // Whatever broke the connection, the request may have been under way at that moment.
        false => Effect::Unknown,
    };
    let cause = beneath.last().map_or_else(|| "no answer".to_owned(), ToString::to_string);
    let error = Error::new(kind, operation, cause).with_effect(effect);
    let is_hang_up = is_cut || is_hang_up(&beneath);
    Failure { is_hang_up, is_full: is_cut, ..Failure::broken(error) }
}

/// Whether the server closed the connection in the middle of a handshake.
fn is_cut(causes: &Causes<'_>) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    let kinds = causes.iter().filter_map(|cause| cause.downcast_ref::<io::Error>());
    kinds
        .into_iter()
        .any(|cause| matches!(cause.kind(), BrokenPipe | ConnectionReset | UnexpectedEof))
}

/// The error for an answer with this status and this text.
pub(super) fn from_status(operation: &'static str, status: u16, text: &str) -> Error {
    let (kind, effect) = meaning(status, text);
    let shown: String = text.trim().chars().take(LONGEST_MESSAGE).collect();
    let shown = shown.escape_debug();
    let message = match shown.clone().next() {
        Some(_) => format!("{shown} (status {status})"),
        None => format!("status {status}"),
    };
    Error::new(kind, operation, message).with_effect(effect)
}

fn meaning(status: u16, text: &str) -> (ErrorKind, Effect) {
    let speaks_of = |part: &str| text.contains(part);
    let kind = match status {
        // This is the text of Go's HTTP server if a request without TLS comes to a port with TLS.
        400 if speaks_of("HTTP request to an HTTPS server") => ErrorKind::Tls,
        401 => ErrorKind::Auth,
        403 if speaks_of("ACL not found") => ErrorKind::Auth,
        403 => ErrorKind::Permission,
        // This client has too many connections, or sends too many requests.
        429 => ErrorKind::Unavailable,
        500 if speaks_of("ACL not found") => ErrorKind::Auth,
        500 if speaks_of("Permission denied") => ErrorKind::Permission,
        500 if speaks_of("No path to datacenter") || speaks_of("Invalid Session TTL") => {
            ErrorKind::Config
        }
        // Consul 1.21.5, and some other releases, refuse some names of keys: see
        // <https://github.com/hashicorp/consul/issues/22822>.
        400 | 500 if speaks_of("invalid key name") => ErrorKind::Unsupported,
        500 if speaks_of("No cluster leader") || speaks_of("Missing node registration") => {
            ErrorKind::Unavailable
        }
        500 if speaks_of("no space left on device") => {
            // The write may be in Consul's log all the same, so its effect is unknown.
            return (ErrorKind::Quota, Effect::Unknown);
        }
        500..=599 => return (ErrorKind::Unavailable, Effect::Unknown),
        _ => ErrorKind::Unsupported,
    };
    (kind, Effect::None)
}

/// The error of an answer that cannot be understood.
pub(super) fn garbled(operation: &'static str, problem: impl Into<String>) -> Error {
    Error::new(ErrorKind::Corrupt, operation, problem).with_effect(Effect::Unknown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_refusal_has_its_kind() {
        use Effect::{None, Unknown};
        for (status, text, kind, effect) in [
            (403, "ACL not found", ErrorKind::Auth, None),
            (403, "Permission denied", ErrorKind::Permission, None),
            (429, "", ErrorKind::Unavailable, None),
            (500, "No cluster leader", ErrorKind::Unavailable, None),
            (500, "No path to datacenter", ErrorKind::Config, None),
            (500, "Invalid Session TTL '1', must be between", ErrorKind::Config, None),
            (500, "leadership lost while committing log", ErrorKind::Unavailable, Unknown),
            (503, "", ErrorKind::Unavailable, Unknown),
            (500, "invalid key name, keys should respect the", ErrorKind::Unsupported, None),
            (301, "", ErrorKind::Unsupported, None),
        ] {
            let error = from_status("enter", status, text);
            assert_eq!((error.kind(), error.effect()), (kind, effect), "{status} {text}");
        }
    }

    #[test]
    fn what_a_server_says_is_cut_and_escaped() {
        let text = from_status("enter", 500, &format!("a\nb{}", "c".repeat(9_999))).to_string();
        assert!(text.len() < 500 && text.contains("a\\nb") && !text.contains('\n'), "{text}");
    }
}
