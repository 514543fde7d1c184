//! Maps the errors of etcd and of its client to ours, case by case.

use std::error::Error as StdError;
use std::io;

use etcd_client::Error as EtcdError;

use crate::backend::server::cause::{Causes, causes, connection_kind, is_hang_up};
use crate::backend::server::connections::Failure;
use crate::error::{Effect, Error, ErrorKind, LossReason};

/// gRPC status codes (`google.rpc.Code`), as numbers: the client does not export their type.
mod code {
    pub(super) const CANCELLED: i32 = 1;
    pub(super) const UNKNOWN: i32 = 2;
    pub(super) const INVALID_ARGUMENT: i32 = 3;
    pub(super) const DEADLINE_EXCEEDED: i32 = 4;
    pub(super) const NOT_FOUND: i32 = 5;
    pub(super) const PERMISSION_DENIED: i32 = 7;
    pub(super) const RESOURCE_EXHAUSTED: i32 = 8;
    pub(super) const FAILED_PRECONDITION: i32 = 9;
    pub(super) const OUT_OF_RANGE: i32 = 11;
    pub(super) const INTERNAL: i32 = 13;
    pub(super) const UNAVAILABLE: i32 = 14;
    pub(super) const UNAUTHENTICATED: i32 = 16;
}

/// The client's message when the first answer of a keep-alive stream has a remaining TTL of zero.
const LEASE_NOT_FOUND: &str = "lease not found";

/// Whether the lease to be granted exists already, because an earlier call granted it and its answer was lost.
pub(super) fn is_lease_exists(error: &EtcdError) -> bool {
    matches!(error, EtcdError::GRpcStatus(status)
        if status.code() as i32 == code::FAILED_PRECONDITION && status.message().contains("lease already exists"))
}

/// Whether the server has no such lease: it never had it, or has it no longer.
pub(super) fn is_lease_missing(error: &EtcdError) -> bool {
    match error {
        EtcdError::GRpcStatus(status) => {
            status.code() as i32 == code::NOT_FOUND && status.message().contains("lease not found")
        }
        EtcdError::LeaseKeepAliveError(message) => message == LEASE_NOT_FOUND,
        _ => false,
    }
}

/// Whether the client has thrown the answer away because it is longer than the client accepts. The connection is still good.
pub(super) fn is_answer_too_long(error: &EtcdError) -> bool {
    matches!(error, EtcdError::GRpcStatus(status)
        if status.code() as i32 == code::OUT_OF_RANGE && status.message().contains("message length too large"))
}

/// Whether the call was refused, before anything was done, because rights have changed since the call's token was given. With
/// JWT a change of any user's rights makes all older tokens invalid (`ErrAuthOldRevision` in etcd's `rpctypes`).
pub(super) fn is_token_stale(error: &EtcdError) -> bool {
    matches!(error, EtcdError::GRpcStatus(status)
        if status.message().contains("revision of auth store is old"))
}

/// Whether the server runs without authentication, and so refuses a user.
pub(super) fn is_authentication_off(error: &EtcdError) -> bool {
    matches!(error, EtcdError::GRpcStatus(status)
        if status.message().contains("authentication is not enabled"))
}

/// Whether the call was refused, before anything was done, because it was made without a user.
pub(super) fn is_user_missing(error: &EtcdError) -> bool {
    matches!(error, EtcdError::GRpcStatus(status)
        if status.message().contains("user name is empty"))
}

/// Whether the server has refused the call because it is a learner: a server without a vote, which serves serializable reads and
/// hardly anything else. The call has done nothing, and another server may serve it.
fn is_learner(message: &str) -> bool {
    message.contains("not supported for learner")
}

/// Whether the call was refused, before anything was done, because the servers have more requests than they can serve. All
/// servers are equally busy, so a connection to another server would not help.
fn is_overload(error: &EtcdError) -> bool {
    matches!(error, EtcdError::GRpcStatus(status) if status.message().contains("too many requests"))
}

/// Translates the error of a failed call: the error for the caller, and whether the connection can still be used.
pub(super) fn failure(operation: &'static str, error: EtcdError) -> Failure {
    use ErrorKind::{Dns, Refused, Tls, Unavailable};
    let is_hang_up = is_hang_up(&beneath(&error));
    let is_good = is_token_stale(&error) || is_overload(&error);
    let error = from_etcd(operation, error);
    // After these errors another endpoint, or a new connection, may work.
    let is_broken = !is_good && matches!(error.kind(), Dns | Refused | Tls | Unavailable);
    Failure { is_broken, is_hang_up, ..Failure::harmless(error) }
}

fn from_etcd(operation: &'static str, error: EtcdError) -> Error {
    if is_lease_missing(&error) {
        return Error::lost(operation, LossReason::ExpiredByServer);
    }
    if is_token_stale(&error) {
        let message = "rights of users change again and again";
        let source = io::Error::other(root_cause(&error));
        return Error::new(ErrorKind::Unavailable, operation, message).with_source(source);
    }
    let (kind, message) = match &error {
        EtcdError::GRpcStatus(status) => (
            status_kind(status.code() as i32, status.message(), &error),
            status.message().to_owned(),
        ),
        EtcdError::InvalidUri(_)
        | EtcdError::InvalidArgs(_)
        | EtcdError::InvalidMetadataValue(_) => (ErrorKind::Config, error.to_string()),
        EtcdError::TransportError(_) | EtcdError::IoError(_) => {
            (connection_kind(&beneath(&error)), root_cause(&error))
        }
        _ => (ErrorKind::Unavailable, error.to_string()),
    };
    let message = if message.is_empty() { root_cause(&error) } else { message };
    let effect = match kind {
        ErrorKind::Unavailable if is_learner(&message) || is_overload(&error) => Effect::None,
        // The request may have been under way when the connection broke.
        ErrorKind::Unavailable => Effect::Unknown,
        ErrorKind::Tls if operation != "connect" => Effect::Unknown,
        // etcd carries out the request that uses up the last of the space, and answers with this error nevertheless
        // (`quotaApplierV3` in etcd's `apply.go`).
        ErrorKind::Quota => Effect::Unknown,
        _ => Effect::None,
    };
    // The source is kept as text, so that the client crate's types stay inside this folder.
    let source = io::Error::other(root_cause(&error));
    Error::new(kind, operation, message).with_effect(effect).with_source(source)
}

fn status_kind(code: i32, message: &str, error: &EtcdError) -> ErrorKind {
    let speaks_of = |text: &str| message.contains(text);
    match code {
        code::UNAUTHENTICATED => ErrorKind::Auth,
        code::INVALID_ARGUMENT if speaks_of("authentication failed") || speaks_of("user name") => {
            ErrorKind::Auth
        }
        code::FAILED_PRECONDITION if speaks_of("authentication is not enabled") => ErrorKind::Auth,
        code::FAILED_PRECONDITION | code::UNAVAILABLE if is_learner(message) => {
            ErrorKind::Unavailable
        }
        code::PERMISSION_DENIED => ErrorKind::Permission,
        // The request is larger than `--max-request-bytes`, or than gRPC accepts at all.
        code::INVALID_ARGUMENT | code::RESOURCE_EXHAUSTED
            if speaks_of("request is too large") || speaks_of("message larger than max") =>
        {
            ErrorKind::Value
        }
        code::RESOURCE_EXHAUSTED if speaks_of("space exceeded") => ErrorKind::Quota,
        // Too many requests, or HTTP/2's `ENHANCE_YOUR_CALM`: both are temporary.
        code::RESOURCE_EXHAUSTED => ErrorKind::Unavailable,
        code::CANCELLED | code::UNKNOWN | code::INTERNAL | code::UNAVAILABLE => {
            connection_kind(&beneath(error))
        }
        code::DEADLINE_EXCEEDED => ErrorKind::Unavailable,
        _ => ErrorKind::Unsupported,
    }
}

fn root_cause(error: &EtcdError) -> String {
    beneath(error).last().map_or_else(|| error.to_string(), ToString::to_string)
}

/// The errors that caused this one, the deepest last; none for a status that the server itself sent.
fn beneath(error: &EtcdError) -> Causes<'_> {
    causes(match error {
        EtcdError::GRpcStatus(status) => status.source(),
        EtcdError::TransportError(transport) => Some(transport),
        EtcdError::IoError(io) => Some(io),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(code: tonic::Code, message: &str) -> Failure {
        failure("enter", EtcdError::GRpcStatus(tonic::Status::new(code, message)))
    }

    #[test]
    fn only_want_of_space_is_no_overload() {
        use tonic::Code::ResourceExhausted;
        let full = said(ResourceExhausted, "etcdserver: mvcc: database space exceeded");
        assert_eq!((full.error.kind(), full.error.effect()), (ErrorKind::Quota, Effect::Unknown));
        assert!(!full.is_broken);
        let busy = said(ResourceExhausted, "etcdserver: too many requests");
        assert_eq!(
            (busy.error.kind(), busy.error.effect()),
            (ErrorKind::Unavailable, Effect::None)
        );
        assert!(!busy.is_broken, "the others are as busy");
    }

    #[test]
    fn a_call_whose_connection_is_spoiled_may_have_been_carried_out() {
        let spoiled = io::Error::other("received corrupt message");
        let status = tonic::Status::from_error(Box::new(spoiled));
        let told = failure("enter", EtcdError::GRpcStatus(status)).error;
        assert_eq!((told.kind(), told.effect()), (ErrorKind::Tls, Effect::Unknown));
    }

    #[test]
    fn an_answer_that_is_too_long_is_known() {
        // The words of tonic's decoder, and etcd's for a revision that was compacted.
        let long = "Error, decoded message length too large: found 4194305 bytes, the limit is: 4194304 bytes";
        let compacted = "etcdserver: mvcc: required revision has been compacted";
        let is_too_long = |message: &str| {
            let status = tonic::Status::new(tonic::Code::OutOfRange, message);
            is_answer_too_long(&EtcdError::GRpcStatus(status))
        };
        assert!(is_too_long(long) && !is_too_long(compacted));
    }

    #[test]
    fn a_learner_is_left() {
        let message = "etcdserver: rpc not supported for learner";
        for code in [tonic::Code::FailedPrecondition, tonic::Code::Unavailable] {
            let learner = said(code, message);
            assert_eq!(learner.error.kind(), ErrorKind::Unavailable);
            assert!(learner.is_broken && learner.error.effect() == Effect::None);
        }
    }
}
