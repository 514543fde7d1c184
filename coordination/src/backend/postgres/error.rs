//! What PostgreSQL and its client say → our errors, case by case.

use std::error::Error as StdError;

use tokio_postgres::Error as PostgresError;
use tokio_postgres::error::{DbError, Severity, SqlState};

use crate::backend::server::cause::{causes, connection_kind, is_hang_up};
use crate::backend::server::connections::Failure;
use crate::error::{Effect, Error, ErrorKind};

/// The code of what our own functions say of the settings with which transactions begin.
const SETUP: &str = "SETUP";

/// What a failed statement says of its connection, and to us.
pub(super) fn failure(operation: &'static str, error: &PostgresError) -> Failure {
    match error.as_db_error() {
        Some(said) => refusal(operation, said),
        None => broken(operation, error),
    }
}

/// The server has carried out nothing: a statement is all or nothing.
fn refusal(operation: &'static str, said: &DbError) -> Failure {
    let (kind, is_broken) = judged(said);
    let mut message = format!("{} ({})", said.message(), said.code().code());
    if let Some(detail) = said.detail() {
        message = format!("{message}: {detail}");
    }
    let error = Error::new(kind, operation, message).with_effect(effect(operation, said));
    Failure { is_broken, ..Failure::harmless(error) }
}

/// What kind of error it is, and whether another connection may do better, perhaps to another server.
fn judged(said: &DbError) -> (ErrorKind, bool) {
    let code = said.code();
    // pg_hba.conf has lines for those only who come by TLS.
    let wants_tls = said.message().contains("no encryption") || said.message().contains("SSL off");
    match code.code() {
        // The server's settings have changed: the next connection begins with our own.
        SETUP => return (ErrorKind::Unavailable, true),
        // The queue of what is told is full, which passes: somebody listens, and does not read.
        "54000" if said.message().contains("NOTIFY") => return (ErrorKind::Unavailable, false),
        "28000" if wants_tls => return (ErrorKind::Tls, true),
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
        // It has become a replica.
        SqlState::READ_ONLY_SQL_TRANSACTION => (ErrorKind::Unavailable, true),
        // It is going down, or coming up, or has no room for us, or somebody has ended our connection.
        SqlState::ADMIN_SHUTDOWN
        | SqlState::CRASH_SHUTDOWN
        | SqlState::CANNOT_CONNECT_NOW
        | SqlState::DATABASE_DROPPED
        | SqlState::IDLE_SESSION_TIMEOUT
        | SqlState::TOO_MANY_CONNECTIONS
        | SqlState::CONNECTION_EXCEPTION
        | SqlState::CONNECTION_FAILURE
        | SqlState::CONNECTION_DOES_NOT_EXIST
        // What pgbouncer says of all that is wrong between the server and itself.
        | SqlState::PROTOCOL_VIOLATION
        // Something that nobody has foreseen, as a function that is replaced while it is called.
        | SqlState::INTERNAL_ERROR => (ErrorKind::Unavailable, true),
        // Somebody has locked our rows, or cancels our statements, or two did the same at once.
        SqlState::LOCK_NOT_AVAILABLE
        | SqlState::QUERY_CANCELED
        | SqlState::T_R_DEADLOCK_DETECTED
        | SqlState::T_R_SERIALIZATION_FAILURE
        | SqlState::UNIQUE_VIOLATION
        | SqlState::IO_ERROR => (ErrorKind::Unavailable, false),
        // Our tables or functions are gone, or others: they are looked for, and made, by who connects.
        SqlState::UNDEFINED_TABLE
        | SqlState::UNDEFINED_FUNCTION
        | SqlState::INVALID_SCHEMA_NAME
        | SqlState::UNDEFINED_COLUMN => (ErrorKind::Unavailable, true),
        SqlState::DATA_CORRUPTED | SqlState::INDEX_CORRUPTED => (ErrorKind::Corrupt, false),
        _ if is_end(said) => (ErrorKind::Unavailable, true),
        _ => (ErrorKind::Unsupported, false),
    }
}

/// Whether the server has ended the connection with that.
fn is_end(said: &DbError) -> bool {
    matches!(said.parsed_severity(), Some(Severity::Fatal | Severity::Panic))
}

/// A transaction that waits for a replica's word, and is told to end, is committed here and perhaps not there; and where the
/// server goes down, what it had in hand may be done.
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
        | SqlState::IO_ERROR => Effect::Unknown,
        _ => Effect::None,
    }
}

/// Whether this is what the server says before the answer to a statement for whose commit it did not wait as long as it should have: a replica may
/// not have it.
pub(super) fn is_unconfirmed(said: &DbError) -> bool {
    // Its words are in the server's language, and its code is that of most warnings.
    said.parsed_severity() == Some(Severity::Warning) && said.routine() == Some("SyncRepWaitForLSN")
}

/// Whether the other side does not understand what we say, or wants to do nothing of it.
pub(super) fn is_not_spoken(error: &PostgresError) -> bool {
    error.code() == Some(&SqlState::PROTOCOL_VIOLATION)
}

fn broken(operation: &'static str, error: &PostgresError) -> Failure {
    let beneath = causes(error.source());
    let kind = match connection_kind(&beneath) {
        ErrorKind::Unavailable if is_not_understood(error) => ErrorKind::Corrupt,
        kind => kind,
    };
    // The statement may have been under way when the connection broke.
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

/// Whether it is an answer of another type than ours are.
fn is_not_understood(error: &PostgresError) -> bool {
    error.to_string().starts_with("error deserializing column")
}
