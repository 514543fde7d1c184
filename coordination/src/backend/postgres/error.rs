//! Translates errors of PostgreSQL and of its client crate into our errors, case by case.

use std::error::Error as StdError;

use tokio_postgres::Error as PostgresError;
use tokio_postgres::error::{DbError, Severity, SqlState};

use crate::backend::server::cause::{causes, connection_kind, is_hang_up};
use crate::backend::server::connections::Failure;
use crate::error::{Effect, Error, ErrorKind};

/// The error code that the function `begin_step` (`schema.sql`) raises if the transaction has another isolation level than read
/// committed.
const SETUP: &str = "SETUP";

/// Translates the error of a failed statement: the error for the caller, and whether the connection can still be used.
pub(super) fn failure(operation: &'static str, error: &PostgresError) -> Failure {
    match error.as_db_error() {
        Some(said) => refusal(operation, said),
        None => broken(operation, error),
    }
}

/// Translates an error with which the server has answered. The server has rolled back the whole statement, unless the function
/// `effect` says that it may not have.
fn refusal(operation: &'static str, said: &DbError) -> Failure {
    let (kind, is_broken) = judged(said);
    let mut message = format!("{} ({})", said.message(), said.code().code());
    if let Some(detail) = said.detail() {
        message = format!("{message}: {detail}");
    }
    let error = Error::new(kind, operation, message).with_effect(effect(operation, said));
    Failure { is_broken, ..Failure::harmless(error) }
}

/// The kind of the error for the caller; and true if the connection is of no more use, so that another one has to be made, perhaps
/// to another server.
fn judged(said: &DbError) -> (ErrorKind, bool) {
    let code = said.code();
    // Whether the server refuses the connection because `pg_hba.conf` demands TLS. There is no error code for that, so it is
    // recognised by the message.
    let wants_tls = said.message().contains("no encryption") || said.message().contains("SSL off");
    match code.code() {
        // Somebody has changed the default isolation level after this connection was made. Another connection helps, because
        // `Connection::make` checks the defaults and then sets the level itself (`database::SETTINGS`).
        SETUP => return (ErrorKind::Unavailable, true),
        // The functions were replaced by others with another result, and a statement that was prepared before no longer fits. It was
        // not carried out. The message depends on the server's language, so the case is recognised by the routine in the server.
        "0A000" if said.routine() == Some("RevalidateCachedQuery") => {
            return (ErrorKind::Unavailable, true);
        }
        // The server's queue of notifications is full, because some client has sent LISTEN and does not read its notifications. The
        // connection is kept, because this passes by itself.
        "54000" if said.message().contains("NOTIFY") => return (ErrorKind::Unavailable, false),
        "28000" if wants_tls => return (ErrorKind::Tls, true),
        // The pooler pgbouncer refuses a client with the same code as any failure, and tells only in words that it does not know the
        // user, the password or the database.
        "08P01" if is_stranger(said) => return (ErrorKind::Auth, true),
        "08P01" if is_no_database(said.message()) => return (ErrorKind::Config, true),
        _ => {}
    }
    match *code {
        SqlState::INVALID_PASSWORD | SqlState::INVALID_AUTHORIZATION_SPECIFICATION => {
            (ErrorKind::Auth, true)
        }
        SqlState::INVALID_CATALOG_NAME => (ErrorKind::Config, false),
        SqlState::INSUFFICIENT_PRIVILEGE => (ErrorKind::Permission, false),
        SqlState::DISK_FULL | SqlState::OUT_OF_MEMORY | SqlState::CONFIGURATION_LIMIT_EXCEEDED => {
            (ErrorKind::Quota, is_end(said))
        }
        SqlState::PROGRAM_LIMIT_EXCEEDED => (ErrorKind::Value, false),
        // The server has become a replica.
        SqlState::READ_ONLY_SQL_TRANSACTION => (ErrorKind::Unavailable, true),
        // The server is shutting down, starting, or out of connections; or somebody has ended our connection.
        SqlState::ADMIN_SHUTDOWN
        | SqlState::CRASH_SHUTDOWN
        | SqlState::CANNOT_CONNECT_NOW
        | SqlState::DATABASE_DROPPED
        | SqlState::IDLE_SESSION_TIMEOUT
        | SqlState::TOO_MANY_CONNECTIONS
        | SqlState::CONNECTION_EXCEPTION
        | SqlState::CONNECTION_FAILURE
        | SqlState::CONNECTION_DOES_NOT_EXIST
        // The pooler pgbouncer uses this code for every failure between itself and the server.
        | SqlState::PROTOCOL_VIOLATION
        // A failure inside the server, for instance if a function is replaced while it is called.
        | SqlState::INTERNAL_ERROR => (ErrorKind::Unavailable, true),
        // Another transaction holds a lock on our rows, somebody has cancelled the statement, two transactions conflicted, or the
        // server could not open, read or write a file, for instance because it has no descriptor left.
        SqlState::LOCK_NOT_AVAILABLE
        | SqlState::QUERY_CANCELED
        | SqlState::T_R_DEADLOCK_DETECTED
        | SqlState::T_R_SERIALIZATION_FAILURE
        | SqlState::UNIQUE_VIOLATION
        | SqlState::INSUFFICIENT_RESOURCES
        | SqlState::SYSTEM_ERROR
        | SqlState::UNDEFINED_FILE
        | SqlState::IO_ERROR => (ErrorKind::Unavailable, is_end(said)),
        // Our tables or functions were dropped or replaced. Another connection helps, because whoever makes it checks for our
        // schema and creates it if it does not exist.
        SqlState::UNDEFINED_TABLE
        | SqlState::UNDEFINED_FUNCTION
        | SqlState::INVALID_SCHEMA_NAME
        | SqlState::UNDEFINED_COLUMN => (ErrorKind::Unavailable, true),
        // The server does not have a statement that was prepared on this connection any more. Nothing was carried out. On another
        // connection the statement is prepared anew.
        SqlState::INVALID_SQL_STATEMENT_NAME => (ErrorKind::Unavailable, true),
        SqlState::DATA_CORRUPTED | SqlState::INDEX_CORRUPTED => (ErrorKind::Corrupt, false),
        _ if is_end(said) => (ErrorKind::Unavailable, true),
        _ => (ErrorKind::Unsupported, false),
    }
}

/// Whether this is what pgbouncer says of a database that it does not know, or that the server does not have.
fn is_no_database(message: &str) -> bool {
    message.starts_with("no such database")
        || message.starts_with("database \"") && message.ends_with("does not exist")
}

/// Whether a pooler says that it does not let this user in.
fn is_stranger(said: &DbError) -> bool {
    said.message().contains("authentication failed") || said.message().contains("no such user")
}

/// Whether the server closes the connection after it has sent this error.
fn is_end(said: &DbError) -> bool {
    matches!(said.parsed_severity(), Some(Severity::Fatal | Severity::Panic))
}

/// Whether the statement may have been committed although the server answered with an error. There are such cases: if a transaction
/// is cancelled while its commit waits for a replica, it is committed on this server, but perhaps not on the replica; and if the
/// server shuts down, a statement in progress may have been committed before.
fn effect(operation: &str, said: &DbError) -> Effect {
    match *said.code() {
        _ if is_end(said) && operation != "connect" => Effect::Unknown,
        SqlState::ADMIN_SHUTDOWN
        | SqlState::CRASH_SHUTDOWN
        | SqlState::QUERY_CANCELED
        | SqlState::CONNECTION_EXCEPTION
        | SqlState::CONNECTION_FAILURE
        | SqlState::CONNECTION_DOES_NOT_EXIST
        | SqlState::PROTOCOL_VIOLATION
        | SqlState::INSUFFICIENT_RESOURCES
        | SqlState::SYSTEM_ERROR
        | SqlState::UNDEFINED_FILE
        | SqlState::IO_ERROR => Effect::Unknown,
        _ => Effect::None,
    }
}

/// Whether this is the server's warning that it has stopped waiting for a replica's confirmation of a commit, so that the replica
/// may lack the commit. The server sends the warning before the answer to the statement.
pub(super) fn is_unconfirmed(said: &DbError) -> bool {
    // The warning is recognised by the name of the routine in the server that raised it. Its text depends on the server's language,
    // and its code is the same as that of most warnings.
    said.parsed_severity() == Some(Severity::Warning) && said.routine() == Some("SyncRepWaitForLSN")
}

/// Whether the other side has rejected the start-up message. A pooler does that if it does not know or does not allow the settings
/// in it.
pub(super) fn is_not_spoken(error: &PostgresError) -> bool {
    error.code() == Some(&SqlState::PROTOCOL_VIOLATION)
}

fn broken(operation: &'static str, error: &PostgresError) -> Failure {
    let beneath = causes(error.source());
    let kind = match connection_kind(&beneath) {
        ErrorKind::Unavailable if is_not_understood(error) => ErrorKind::Corrupt,
        kind => kind,
    };
    // The statement may have been carried out before the connection broke.
    let is_open = operation != "connect";
    let effect = if is_open { Effect::Unknown } else { Effect::None };
    let message = match beneath.last() {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    };
    let is_hang_up = is_hang_up(&beneath);
    let error = Error::new(kind, operation, message).with_effect(effect);
    Failure { is_hang_up, ..Failure::broken(error) }
}

/// Whether the answer could not be read, because its columns have other types than those that our functions return.
fn is_not_understood(error: &PostgresError) -> bool {
    error.to_string().starts_with("error deserializing column")
}
