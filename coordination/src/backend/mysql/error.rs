//! Translates errors of MySQL, of MariaDB and of the client crate into our errors, case by case.

use mysql_async::{DriverError, Error as MysqlError, ServerError};

use crate::backend::server::cause::{causes, connection_kind, is_hang_up};
use crate::backend::server::connections::Failure;
use crate::error::{Effect, Error, ErrorKind};

/// Translates the error of a failed statement: the error for the caller, and whether the connection can still be used.
pub(super) fn failure(operation: &'static str, error: &MysqlError) -> Failure {
    match error {
        MysqlError::Server(said) => refusal(operation, said),
        error => broken(operation, error),
    }
}

/// Whether the server has rolled the call back because of a deadlock (1213), or because it waited for a lock too long (1205). Then
/// the call has had no effect, and is sent again.
///
/// After a deadlock, the server rolls back the whole transaction. After a wait that was too long, the server rolls back only the
/// one statement of the procedure that waited; the error handler of the procedure then rolls back the rest.
pub(super) fn is_undone(error: &MysqlError) -> bool {
    matches!(error, MysqlError::Server(said) if matches!(said.code, 1205 | 1213))
}

/// Whether the server has refused a statement because the user lacks a right, by what the connection knows of his rights.
pub(super) fn is_denied(error: &MysqlError) -> bool {
    matches!(error, MysqlError::Server(said) if judged(said.code).0 == ErrorKind::Permission)
}

/// Translates an error with which the server has answered. The whole procedure was rolled back, unless the function `effect` says
/// that it may not have been.
fn refusal(operation: &'static str, said: &ServerError) -> Failure {
    let (kind, is_broken) = judged(said.code);
    let message = format!("{} ({})", said.message, said.code);
    let error = Error::new(kind, operation, message).with_effect(effect(said.code));
    Failure { is_broken, ..Failure::harmless(error) }
}

/// The kind of the error for the caller; and true if the connection is of no more use, so that another one has to be made, perhaps
/// to another server.
///
/// Some codes exist only in MySQL or only in MariaDB. A code that exists in both means the same in both.
fn judged(code: u16) -> (ErrorKind, bool) {
    match code {
        // Access is denied: to this user with this password, to a user without a password, or to this host.
        1045 | 1698 | 1130 => (ErrorKind::Auth, true),
        // The password has expired or has to be changed, or the account is locked.
        1820 | 1862 | 3118 | 4151 => (ErrorKind::Auth, true),
        // No such database.
        1049 => (ErrorKind::Config, false),
        // The user lacks a right: on the database, a table, a column or a procedure, or a right that is not bound to a database.
        1044 | 1142 | 1143 | 1370 | 1227 | 1419 => (ErrorKind::Permission, false),
        // The server refuses connections without TLS.
        3159 => (ErrorKind::Tls, true),
        // The server has no more disk space, memory, room in a table, or stack.
        1021 | 1037 | 1038 | 1041 | 1114 | 1436 => (ErrorKind::Quota, false),
        // The value is too large for a packet. The server closes the connection after this error.
        1153 => (ErrorKind::Value, true),
        // The value is too large for a column.
        1406 => (ErrorKind::Value, false),
        // The server is read-only: it has become a replica, or is recovering.
        1036 | 1290 | 1792 | 1836 | 1874 => (ErrorKind::Unavailable, true),
        // The format of the server's binary log is `STATEMENT`, in which changes of our transactions cannot be recorded. A
        // connection keeps the format that was set when it was made. So if the format was changed since, a new connection works.
        1598 | 1665 => (ErrorKind::Unavailable, true),
        // The server has left its replication group, is leaving it, or serves nobody for now.
        3032 | 3100 | 3101 => (ErrorKind::Unavailable, true),
        // The server is out of connections or threads, is shutting down, is not serving, or has ended our connection.
        1040
        | 1203
        | 1226
        | 1129
        | 1135
        | 1053
        | 1077
        | 1079
        | 1080
        | 1047
        | 1152
        | 1158..=1161
        | 1184
        | 1927
        | 4031 => (ErrorKind::Unavailable, true),
        // Our tables or procedures were dropped or replaced. Another connection helps, because whoever makes it checks for them and
        // creates them if they do not exist.
        1146 | 1305 | 1054 | 1318 | 1046 => (ErrorKind::Unavailable, true),
        // Another transaction holds a lock on our rows, somebody has cancelled the statement or is changing the tables, two
        // transactions conflicted, the storage engine failed, or it has no room for more locks or transactions.
        1205 | 1213 | 1020 | 1030 | 1062 | 1180 | 1206 | 1317 | 1412 | 1615 | 1637 | 1689
        | 1969 | 3024 | 3058 | 1026 | 1028 => (ErrorKind::Unavailable, false),
        // A table is damaged.
        1034 | 1194 | 1712 => (ErrorKind::Corrupt, false),
        _ => (ErrorKind::Unsupported, false),
    }
}

/// Whether the procedure may have been committed although the server answered with an error. There are such cases: if a commit is
/// interrupted, it may have been carried out; if the server shuts down, a procedure in progress may have been committed before; and
/// the server may run out of memory or disk between the commit and the answer.
fn effect(code: u16) -> Effect {
    match code {
        1053
        | 1180
        | 1317
        | 1927
        | 1969
        | 3024
        | 1026
        | 1030
        | 1152
        | 1158..=1161
        | 1021
        | 1037
        | 1038
        | 1041
        | 1114
        | 1436
        | 3100 => Effect::Unknown,
        _ => Effect::None,
    }
}

fn broken(operation: &'static str, error: &MysqlError) -> Failure {
    let beneath = causes(Some(error));
    let kind = match (error, connection_kind(&beneath)) {
        (MysqlError::Driver(DriverError::NoClientSslFlagFromServer), _) => ErrorKind::Tls,
        (MysqlError::Driver(DriverError::PacketTooLarge), _) => ErrorKind::Value,
        (MysqlError::Driver(said), ErrorKind::Unavailable) if is_not_understood(said) => {
            ErrorKind::Corrupt
        }
        (_, kind) => kind,
    };
    // The statement may have been carried out before the connection broke. But if the error is that it was too large for a packet
    // (`Value`), it is taken not to have been sent.
    let is_open = operation != "connect" && kind != ErrorKind::Value;
    let effect = if is_open { Effect::Unknown } else { Effect::None };
    let is_hang_up =
        is_hang_up(&beneath) || matches!(error, MysqlError::Driver(DriverError::ConnectionClosed));
    let error = Error::new(kind, operation, error.to_string()).with_effect(effect);
    Failure { is_hang_up, ..Failure::broken(error) }
}

/// Whether the other side does not speak MySQL's protocol, or has sent something that the client crate cannot read.
fn is_not_understood(said: &DriverError) -> bool {
    matches!(
        said,
        DriverError::CantParseServerVersion { .. }
            | DriverError::PacketOutOfOrder
            | DriverError::UnexpectedPacket { .. }
            | DriverError::FromValue { .. }
            | DriverError::FromRow { .. }
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(code: u16) -> MysqlError {
        MysqlError::Server(ServerError { code, message: "m".to_owned(), state: "s".to_owned() })
    }

    #[test]
    fn what_others_were_in_the_way_of_is_made_again() {
        assert!(is_undone(&said(1205)) && is_undone(&said(1213)));
        assert!(!is_undone(&said(1317)) && !is_undone(&DriverError::ConnectionClosed.into()));
        assert!(is_denied(&said(1142)) && is_denied(&said(1370)) && !is_denied(&said(1045)));
    }

    #[test]
    fn refusals_are_told_apart() {
        let of = |code| {
            let failure = failure("enter", &said(code));
            (failure.error.kind(), failure.is_broken, failure.error.effect())
        };
        assert_eq!(of(1045), (ErrorKind::Auth, true, Effect::None));
        assert_eq!(of(1290), (ErrorKind::Unavailable, true, Effect::None));
        assert_eq!(of(1665), (ErrorKind::Unavailable, true, Effect::None));
        assert_eq!(of(1142), (ErrorKind::Permission, false, Effect::None));
        assert_eq!(of(1927), (ErrorKind::Unavailable, true, Effect::Unknown));
        assert_eq!(of(1153), (ErrorKind::Value, true, Effect::None));
        assert_eq!(of(1874), (ErrorKind::Unavailable, true, Effect::None));
        assert_eq!(of(4151), (ErrorKind::Auth, true, Effect::None));
        assert_eq!(of(1135), (ErrorKind::Unavailable, true, Effect::None));
        assert_eq!(of(1206), (ErrorKind::Unavailable, false, Effect::None));
        assert_eq!(of(1637), (ErrorKind::Unavailable, false, Effect::None));
        assert_eq!(of(1041), (ErrorKind::Quota, false, Effect::Unknown));
        assert_eq!(of(9999), (ErrorKind::Unsupported, false, Effect::None));
    }

    #[test]
    fn a_connection_that_broke_leaves_the_outcome_open() {
        let broken = failure("enter", &DriverError::ConnectionClosed.into());
        assert!(broken.is_broken && broken.is_hang_up);
        assert_eq!(broken.error.effect(), Effect::Unknown);
        let refused =
            failure("connect", &std::io::Error::from(std::io::ErrorKind::ConnectionRefused).into());
        assert_eq!(
            (refused.error.kind(), refused.error.effect()),
            (ErrorKind::Refused, Effect::None)
        );
    }
}
