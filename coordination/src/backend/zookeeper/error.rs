//! Maps each error of ZooKeeper and of its client crate to an error of ours.

use zookeeper_client::Error as ZooKeeperError;

use crate::error::{Effect, Error, ErrorKind, LossReason};

/// The code (`UNKNOWNSESSION`) with which a single server answers a call in a session that does not exist any more. An ensemble
/// answers that the session has expired. The client crate does not know this code.
const UNKNOWN_SESSION: i32 = -12;

pub(super) fn from_zookeeper(operation: &'static str, error: &ZooKeeperError) -> Error {
    let message = error.to_string();
    let (kind, effect, message) = match error {
        // A server has said that the session is over. Or the client crate has given it up, because it has not heard from any server
        // for longer than the lease that it was granted last; then nobody can rely on the session any more (`ending.rs`).
        ZooKeeperError::SessionExpired | ZooKeeperError::UnexpectedErrorCode(UNKNOWN_SESSION) => {
            return Error::lost(operation, LossReason::ExpiredByServer);
        }
        ZooKeeperError::ClientClosed => return Error::lost(operation, LossReason::ConnectionLost),
        // These are errors that break a connection. Every request that was in flight on the connection gets this error, and may
        // have been carried out.
        ZooKeeperError::ConnectionLoss
        | ZooKeeperError::SessionMoved
        | ZooKeeperError::Custom(_)
        | ZooKeeperError::UnexpectedError(_)
        | ZooKeeperError::UnexpectedErrorCode(_)
        | ZooKeeperError::UnmarshalError { .. } => {
            (ErrorKind::Unavailable, Effect::Unknown, message)
        }
        ZooKeeperError::NoHosts => {
            (ErrorKind::Unavailable, Effect::None, "no server of the URL answers".to_owned())
        }
        ZooKeeperError::Timeout => {
            (ErrorKind::Unavailable, Effect::None, "no session in time".to_owned())
        }
        // The server cannot carry out the call now, or a node has changed since it was read. The same call may succeed later.
        ZooKeeperError::NotReadOnly
        | ZooKeeperError::Throttled
        | ZooKeeperError::NoNode
        | ZooKeeperError::NodeExists
        | ZooKeeperError::BadVersion
        | ZooKeeperError::NotEmpty
        | ZooKeeperError::RuntimeInconsistent => (ErrorKind::Unavailable, Effect::None, message),
        ZooKeeperError::AuthFailed => (ErrorKind::Auth, Effect::None, message),
        ZooKeeperError::NoAuth => {
            // A server accepts any password that a client sends. The server compares the password only with the access control list
            // of each node.
            let message =
                "the access control list of a node does not let this user, or this password, in";
            (ErrorKind::Permission, Effect::None, message.to_owned())
        }
        ZooKeeperError::InvalidAcl => {
            let message = "the server does not take the access control list of the nodes";
            (ErrorKind::Permission, Effect::None, message.to_owned())
        }
        ZooKeeperError::QuotaExceeded => (ErrorKind::Quota, Effect::None, message),
        ZooKeeperError::NoChildrenForEphemerals => {
            let message = "a node above is ephemeral: its children cannot be";
            (ErrorKind::Config, Effect::None, message.to_owned())
        }
        ZooKeeperError::Unimplemented => {
            let message = "the server is older than ZooKeeper 3.6";
            (ErrorKind::Unsupported, Effect::None, message.to_owned())
        }
        ZooKeeperError::BadArguments(_)
        | ZooKeeperError::MarshallingError
        | ZooKeeperError::NoWatcher
        | ZooKeeperError::ReconfigDisabled => (ErrorKind::Unsupported, Effect::None, message),
        // Later versions of the client crate may have further errors. Nothing is known of their effects.
        _ => (ErrorKind::Unavailable, Effect::Unknown, message),
    };
    Error::new(kind, operation, message).with_effect(effect)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_error_says_whether_to_go_on_and_what_was_done() {
        for (error, kind, effect) in [
            (ZooKeeperError::ConnectionLoss, ErrorKind::Unavailable, Effect::Unknown),
            (ZooKeeperError::NoHosts, ErrorKind::Unavailable, Effect::None),
            (ZooKeeperError::SessionExpired, ErrorKind::Lost, Effect::None),
            (ZooKeeperError::ClientClosed, ErrorKind::Lost, Effect::None),
            (ZooKeeperError::UnexpectedErrorCode(-12), ErrorKind::Lost, Effect::None),
            (ZooKeeperError::NoAuth, ErrorKind::Permission, Effect::None),
            (ZooKeeperError::AuthFailed, ErrorKind::Auth, Effect::None),
            (ZooKeeperError::QuotaExceeded, ErrorKind::Quota, Effect::None),
            (ZooKeeperError::Unimplemented, ErrorKind::Unsupported, Effect::None),
            (ZooKeeperError::UnexpectedErrorCode(-7), ErrorKind::Unavailable, Effect::Unknown),
        ] {
            let ours = from_zookeeper("enter", &error);
            assert_eq!((ours.kind(), ours.effect()), (kind, effect), "{error}");
        }
    }
}
