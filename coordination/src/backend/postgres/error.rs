//! Translates errors of PostgreSQL and of its client crate into our errors, case by case.

use std::error::Error as StdError;

use tokio_postgres::Error as PostgresError;
use tokio_postgres::error::{DbError, Severity, SqlState};

use crate::backend::server::cause::{causes, connection_kind, is_hang_up};
use crate::backend::server::connections::Failure;
use crate::error::{Effect, Error, ErrorKind};

/// The error code of `begin_step` (`schema.sql`), if transactions begin with an isolation level other than read committed.
const SETUP: &str = "SETUP";

/// What a failed statement means for its connection, and the error for the caller.
pub(super) fn failure(operation: &'static str, error: &PostgresError) -> Failure {
    match error.as_db_error() {
        Some(said) => refusal(operation, said),
        None => broken(operation, error),
    }
}

/// The failure if the server answered with an error. The statement was rolled back as a whole, except where [`effect`] says
/// otherwise.
fn refusal(operation: &'static str, said: &DbError) -> Failure {
    let (kind, is_broken) = judged(said);
    let mut message = format!("{} ({})", said.message(), said.code().code());
    if let Some(detail) = said.detail() {
        message = format!("{message}: {detail}");
    }
    let error = Error::new(kind, operation, message).with_effect(effect(operation, said));
    Failure { is_broken, ..Failure::harmless(error) }
}

/// The kind of the error, and whether to make another connection, perhaps to another server.
fn judged(said: &DbError) -> (ErrorKind, bool) {
    let code = said.code();
    // `pg_hba.conf` lets in nobody who comes without TLS. The server has no code of its own for that.
    let wants_tls = said.message().contains("no encryption") || said.message().contains("SSL off");
    match code.code() {
        // The default isolation level was changed after this connection was made. The next connection begins with
        // `database::SETTINGS`.
        SETUP => return (ErrorKind::Unavailable, true),
        // The server's queue of notifications is full, because some client listens and does not read. This passes.
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
        // pgbouncer answers with this code whatever goes wrong between it and the server.
        | SqlState::PROTOCOL_VIOLATION
        // A failure inside the server, for instance if a function is replaced while it is called.
        | SqlState::INTERNAL_ERROR => (ErrorKind::Unavailable, true),
        // Another transaction holds a lock on our rows, somebody has cancelled the statement, or two transactions conflicted.
        SqlState::LOCK_NOT_AVAILABLE
        | SqlState::QUERY_CANCELED
        | SqlState::T_R_DEADLOCK_DETECTED
        | SqlState::T_R_SERIALIZATION_FAILURE
        | SqlState::UNIQUE_VIOLATION
        | SqlState::IO_ERROR => (ErrorKind::Unavailable, false),
        // Our tables or functions were dropped or replaced. Making the next connection looks for them, and creates them if they do
        // not exist.
        SqlState::UNDEFINED_TABLE
        | SqlState::UNDEFINED_FUNCTION
        | SqlState::INVALID_SCHEMA_NAME
        | SqlState::UNDEFINED_COLUMN => (ErrorKind::Unavailable, true),
        SqlState::DATA_CORRUPTED | SqlState::INDEX_CORRUPTED => (ErrorKind::Corrupt, false),
        _ if is_end(said) => (ErrorKind::Unavailable, true),
        _ => (ErrorKind::Unsupported, false),
    }
}

/// Whether the server ends the connection with this error.
fn is_end(said: &DbError) -> bool {
    matches!(said.parsed_severity(), Some(Severity::Fatal | Severity::Panic))
}

/// Whether the statement may have taken effect although the server answered with an error. A transaction that is cancelled or ended
/// while it waits for a replica is committed on this server, and perhaps not on the replica. When the server shuts down, a
/// statement that was under way may have been committed.
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

/// Whether this is the server's warning that it did not wait for the replicas as long as it should have, so that a replica may lack
/// the commit. It comes before the answer to the statement.
pub(super) fn is_unconfirmed(said: &DbError) -> bool {
    // The warning is recognised by the routine: the text is in the server's language, and the code is that of most warnings.
    said.parsed_severity() == Some(Severity::Warning) && said.routine() == Some("SyncRepWaitForLSN")
}

/// Whether the other side rejects the start-up message: a pooler that does not know, or does not allow, the start-up settings.
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

/// Whether an answer has other types than our functions return.
fn is_not_understood(error: &PostgresError) -> bool {
    error.to_string().starts_with("error deserializing column")
}
