//! Translates the errors of Redis and of its client crate into our errors, case by case.

use redis::{ErrorKind as RedisKind, RedisError, ServerErrorKind};

use crate::backend::server::cause::kind_said;
use crate::backend::server::connections::Failure;
use crate::env::local_socket;
use crate::error::{Effect, Error, ErrorKind};

/// Translates the error of a failed request: the error for the caller, and whether the connection can still be used.
pub(super) fn failure(operation: &'static str, error: &RedisError) -> Failure {
    let is_moved = error.kind() == RedisKind::Server(ServerErrorKind::Moved);
    let moved_to = error.redirect_node().filter(|_| is_moved);
    let moved_to = moved_to.map(|(address, _)| address.to_owned());
    let is_broken = is_broken(error);
    let told = from_redis(operation, error);
    let is_hang_up = error.kind() == RedisKind::Io && told.kind() == ErrorKind::Unavailable;
    Failure { is_broken, is_hang_up, moved_to, ..Failure::harmless(told) }
}

/// Whether this error shows that the connection is of no more use, so that another one has to be made, perhaps to another server.
fn is_broken(error: &RedisError) -> bool {
    // What stopped a script counts, too: before Redis 7, a master that was demoted refuses the first write within a script, and not
    // the script.
    let (code, text) = said_by_server(error);
    if code == "READONLY" || is_demoted(&code, &text) {
        return true;
    }
    // A master that refuses writes because it has lost its replicas may have been replaced by one of them. Nobody tells a master that
    // is cut off, and it goes on answering. So the next server is tried, or the Sentinels are asked.
    if code == "NOREPLICAS" {
        return true;
    }
    match error.kind() {
        RedisKind::Io | RedisKind::Parse | RedisKind::AuthenticationFailed => true,
        RedisKind::Server(kind) => matches!(
            kind,
            ServerErrorKind::Moved | ServerErrorKind::MasterDown | ServerErrorKind::ClusterDown
        ),
        _ => error.code() == Some("NOAUTH"),
    }
}

/// Whether the server says that it is no longer the master. It says so in these words to who waits for replicas (`WAIT`).
fn is_demoted(code: &str, text: &str) -> bool {
    code == "UNBLOCKED" || text.contains("used with replica instances")
}

/// Whether our keys are being moved to another node of the cluster. The request had no effect.
pub(super) fn is_moving(error: &RedisError) -> bool {
    use ServerErrorKind::{Ask, TryAgain};
    matches!(error.kind(), RedisKind::Server(Ask | TryAgain))
}

fn from_redis(operation: &'static str, error: &RedisError) -> Error {
    let said = error.to_string();
    let kind = match error.kind() {
        RedisKind::Server(_) | RedisKind::Extension => {
            let (code, text) = said_by_server(error);
            return Error::new(server_kind(&code, &text), operation, format!("{code} {text}"))
                .with_effect(server_effect(&code, &text));
        }
        RedisKind::AuthenticationFailed => ErrorKind::Auth,
        RedisKind::InvalidClientConfig | RedisKind::Client | RedisKind::EmptySentinelList => {
            ErrorKind::Config
        }
        RedisKind::RESP3NotSupported => ErrorKind::Unsupported,
        RedisKind::Io => io_kind(error, &said),
        // The server's first bytes are not of Redis's protocol. They may be a TLS alert: the server expects TLS, and we use none.
        RedisKind::Parse if operation == "connect" => ErrorKind::Tls,
        RedisKind::Parse => ErrorKind::Unavailable,
        RedisKind::UnexpectedReturnType => ErrorKind::Corrupt,
        RedisKind::MasterNameNotFoundBySentinel => ErrorKind::Config,
        _ => ErrorKind::Unavailable,
    };
    // If the connection broke, whatever the reason, the server may have carried out the request before; and if the answer cannot be
    // read, the server has probably carried it out. Other errors of the kind `Unavailable` are treated like these. Connecting
    // changes nothing at the server, so its effect is `None`.
    let is_of_answer =
        matches!(error.kind(), RedisKind::Io | RedisKind::Parse | RedisKind::UnexpectedReturnType);
    let is_open = operation != "connect" && (is_of_answer || kind == ErrorKind::Unavailable);
    let effect = if is_open { Effect::Unknown } else { Effect::None };
    Error::new(kind, operation, said).with_effect(effect)
}

/// The code (such as `NOPERM`) and the text of a server's error. Before Redis 7, an error inside a script is reported as an error
/// `ERR` whose text ends with the inner error. If that begins with `-`, the server has refused a command before it was carried out:
/// then code and text of the inner error are returned. Otherwise a command has failed: then only the code is the inner one, and the
/// text still tells of the script.
fn said_by_server(error: &RedisError) -> (String, String) {
    let code = error.code().unwrap_or("ERR");
    let text = error.detail().unwrap_or_default();
    let is_of_script = code == "ERR" && text.contains("@user_script");
    if is_of_script
        && let Some((_, inner)) = text.rsplit_once(": -")
        && let Some((inner_code, rest)) = inner.split_once(' ')
    {
        return (inner_code.to_owned(), rest.to_owned());
    }
    if is_of_script
        && let Some((_, inner)) = text.rsplit_once(": ")
        && let Some((inner_code, _)) = inner.split_once(' ')
        && !inner_code.is_empty()
        && inner_code.bytes().all(|byte| byte.is_ascii_uppercase())
    {
        return (inner_code.to_owned(), text.to_owned());
    }
    (code.to_owned(), text.to_owned())
}

fn server_kind(code: &str, text: &str) -> ErrorKind {
    let speaks_of = |part: &str| text.contains(part);
    match code {
        "NOAUTH" | "WRONGPASS" => ErrorKind::Auth,
        "NOPERM" | "DENIED" => ErrorKind::Permission,
        // The memory is full, or the disk cannot be written to.
        "OOM" | "MISCONF" => ErrorKind::Quota,
        "WRONGTYPE" => ErrorKind::Corrupt,
        _ if is_demoted(code, text) => ErrorKind::Unavailable,
        "NOPROTO" | "CROSSSLOT" => ErrorKind::Unsupported,
        "LOADING" | "BUSY" | "UNKILLABLE" | "READONLY" | "MASTERDOWN" | "CLUSTERDOWN"
        | "TRYAGAIN" | "MOVED" | "ASK" | "NOREPLICAS" | "NOSCRIPT" => ErrorKind::Unavailable,
        _ if speaks_of("AUTH") || speaks_of("invalid password") => ErrorKind::Auth,
        _ if speaks_of("user executing the script") || speaks_of("ACL failure") => {
            ErrorKind::Permission
        }
        _ if speaks_of("DB index") => ErrorKind::Config,
        _ if speaks_of("max number of clients") => ErrorKind::Unavailable,
        _ => ErrorKind::Unsupported,
    }
}

/// Whether a script that failed may have had an effect: if a command inside the script failed, the writes before it stay.
fn server_effect(code: &str, text: &str) -> Effect {
    let is_within = text.contains("script: ") || text.contains("user_script");
    match code {
        // The server refused the script before its first write.
        "OOM" | "MISCONF" | "READONLY" | "NOREPLICAS" | "MASTERDOWN" | "CLUSTERDOWN" => {
            Effect::None
        }
        // What `WAIT` was to confirm was carried out.
        _ if is_within || is_demoted(code, text) => Effect::Unknown,
        _ => Effect::None,
    }
}

fn io_kind(error: &RedisError, said: &str) -> ErrorKind {
    if error.is_connection_refusal() {
        ErrorKind::Refused
    } else if said.contains(local_socket::NONE) {
        ErrorKind::Unsupported
    } else if said.contains("close_notify") {
        // If a server is killed, it closes its connections without the end of the TLS session. That is no fault of the TLS
        // settings, so the error is not `Tls`.
        ErrorKind::Unavailable
    } else if said.contains("PEM") || said.contains("TLS") {
        ErrorKind::Tls
    } else {
        kind_said(said).unwrap_or(ErrorKind::Unavailable)
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    /// A server that is demoted refuses who waits for replicas. The next server may answer, and no wait ends for this.
    #[test]
    fn a_master_that_is_demoted_is_left() {
        for said in [
            "-UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)\r\n",
            "-ERR WAIT cannot be used with replica instances. Please also note that since Redis 4.0 if a replica is configured to \
             be writable (which is not the default) writes to replicas are just local and are not propagated.\r\n",
        ] {
            let answer = redis::parse_redis_value(said.as_bytes()).expect("it is an answer");
            let error = answer.extract_error().expect_err("it is a refusal");
            let told = failure("enter", &error);
            let (kind, effect) = (told.error.kind(), told.error.effect());
            assert_eq!((kind, effect), (ErrorKind::Unavailable, Effect::Unknown), "{said}");
            assert!(told.is_broken, "{said}");
        }
    }

    /// A server that was demoted refuses writes, and so does a master that has lost its replicas. Before Redis 7 that is told as the error
    /// of a script.
    #[test]
    fn a_server_that_takes_no_writes_is_left() {
        for said in [
            "-READONLY You can't write against a read only replica. script: 5b1f, on @user_script:9.\r\n",
            "-ERR Error running script (call to f_5b1f): @user_script:9: @user_script: 9: -READONLY You can't write \
             against a read only replica.  \r\n",
            "-NOREPLICAS Not enough good replicas to write. script: 5b1f, on @user_script:9.\r\n",
            "-ERR Error running script (call to f_5b1f): @user_script:9: @user_script: 9: -NOREPLICAS Not enough good \
             replicas to write. \r\n",
        ] {
            let answer = redis::parse_redis_value(said.as_bytes()).expect("it is an answer");
            let error = answer.extract_error().expect_err("it is a refusal");
            let told = failure("renew", &error);
            let (kind, effect) = (told.error.kind(), told.error.effect());
            assert_eq!((kind, effect), (ErrorKind::Unavailable, Effect::None), "{said}");
            assert!(told.is_broken, "{said}");
        }
    }

    /// Before Redis 7, the error of a command within a script has neither its code in front nor a `-` before it.
    #[test]
    fn a_key_of_another_type_is_known_within_a_script() {
        for said in [
            "-WRONGTYPE Operation against a key holding the wrong kind of value script: 5b1f, on @user_script:9.\r\n",
            "-ERR Error running script (call to f_5b1f): @user_script:9: WRONGTYPE Operation against a key holding \
             the wrong kind of value \r\n",
        ] {
            let answer = redis::parse_redis_value(said.as_bytes()).expect("it is an answer");
            let error = answer.extract_error().expect_err("it is a failure");
            let told = failure("enter", &error);
            let (kind, effect) = (told.error.kind(), told.error.effect());
            assert_eq!((kind, effect), (ErrorKind::Corrupt, Effect::Unknown), "{said}");
            assert!(!told.is_broken, "{said}");
        }
    }

    #[test]
    fn whatever_breaks_a_connection_the_call_may_have_been_carried_out() {
        for (said, kind) in [
            ("peer closed connection without sending TLS close_notify", ErrorKind::Unavailable),
            ("received corrupt message of type InvalidContentType", ErrorKind::Tls),
            ("broken pipe", ErrorKind::Unavailable),
            (local_socket::NONE, ErrorKind::Unsupported),
        ] {
            let told = failure("write", &RedisError::from(io::Error::other(said))).error;
            assert_eq!((told.kind(), told.effect()), (kind, Effect::Unknown), "{said}");
            let told = failure("connect", &RedisError::from(io::Error::other(said))).error;
            assert_eq!((told.kind(), told.effect()), (kind, Effect::None), "{said}");
        }
    }
}
