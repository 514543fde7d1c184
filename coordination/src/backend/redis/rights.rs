//! Checks, when the first connection is made, whether the user has all rights that are needed later. Otherwise a missing right
//! might be noticed only when a lock that was granted cannot be released.

use redis::{RedisError, Value};

use super::error::failure;
use super::raw_connection::RawConnection;
use crate::backend::server::connections::Failure;
use crate::error::{Error, ErrorKind};

/// A script that calls each command that the other scripts use, and returns the commands that the user may not call.
pub(super) const SCRIPT: &str = include_str!("scripts/rights.lua");
/// No script has this hash, so `EVALSHA` with it always fails. The kind of error shows whether the user may call `EVALSHA`.
const UNKNOWN: &str = "0000000000000000000000000000000000000000";

/// Fails if a right is missing; the error names the command. The commands are tried on a key and a channel with the name `nowhere`,
/// which never exist.
pub(super) async fn check(connection: &RawConnection, nowhere: &str) -> Result<(), Failure> {
    let (mut evaluating, mut hashed, mut leaving) =
        (connection.clone(), connection.clone(), connection.clone());
    let mut all = redis::cmd("EVAL");
    all.arg(SCRIPT).arg(1).arg(nowhere);
    let mut hash = redis::cmd("EVALSHA");
    hash.arg(UNKNOWN).arg(1).arg(nowhere);
    let (tried, by_hash, left) = tokio::join!(
        all.query_async::<(String, String)>(&mut evaluating),
        hash.query_async::<Value>(&mut hashed),
        leaving.unsubscribe(nowhere),
    );
    refusal("evalsha", by_hash.err())?;
    refusal("unsubscribe", left.err())?;
    match tried {
        Ok((refused, said)) if !refused.is_empty() => Err(missing(&refused, &said)),
        Ok(_) => Ok(()),
        Err(error) => refusal("eval", Some(error)),
    }
}

/// Returns an error only if the command failed because the user lacks the right to it. Other errors are ignored here: if their
/// cause persists, a later call reports it.
fn refusal(command: &str, failed: Option<RedisError>) -> Result<(), Failure> {
    let Some(failed) = failed else { return Ok(()) };
    let failure = failure("connect", &failed);
    match failure.error.kind() {
        ErrorKind::Permission => Err(missing(command, &failed.to_string())),
        _ => Ok(()),
    }
}

fn missing(commands: &str, said: &str) -> Failure {
    let message = format!("the user lacks a right, for {commands}: {said}");
    Failure::broken(Error::new(ErrorKind::Permission, "connect", message))
}
