//! What ZooKeeper and its client say → our errors, case by case.

use zookeeper_client::Error as ZooKeeperError;

use crate::error::{Effect, Error, ErrorKind, LossReason};

pub(super) fn from_zookeeper(operation: &'static str, error: &ZooKeeperError) -> Error {
    let message = error.to_string();
    let (kind, effect, message) = match error {
        // The server's word, or that of the client, which heard nothing for longer than the lease.
        ZooKeeperError::SessionExpired => {
            return Error::lost(operation, LossReason::ExpiredByServer);
        }
        ZooKeeperError::ClientClosed => return Error::lost(operation, LossReason::ConnectionLost),
        // Requests that were under way when the connection broke; what broke it is told to all of them.
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
        // The server cannot do it now, or a node has changed meanwhile: a retry may succeed.
        ZooKeeperError::NotReadOnly
        | ZooKeeperError::Throttled
        | ZooKeeperError::NoNode
        | ZooKeeperError::NodeExists
        | ZooKeeperError::BadVersion
        | ZooKeeperError::NotEmpty
        | ZooKeeperError::RuntimeInconsistent => (ErrorKind::Unavailable, Effect::None, message),
        ZooKeeperError::AuthFailed => (ErrorKind::Auth, Effect::None, message),
        ZooKeeperError::NoAuth => {
            // A server takes any password of a user, and compares it with what each node asks for.
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
        // The client's list may grow.
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
