//! Checks while connecting whether the token has all rights that are needed later. Otherwise a missing right could show as late
//! as at the first release.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use super::client::Connections;
use super::kv::{Operation, forbidden, transaction};
use super::pool::{Lane, Pool};
use crate::backend::server::connections::Failure;
use crate::error::{Effect, Error, ErrorKind, Result};

/// No key ever has this index, so a condition that a key has it never holds.
const NO_INDEX: u64 = u64::MAX >> 1;

/// How long one try may take. Several tries fit into the time for connecting.
const LONGEST_TRY: Duration = Duration::from_secs(1);

/// Fails if the token's policies do not let it write all keys that begin with `prefix`, which is the namespace's prefix. The
/// error names the rule that is missing.
///
/// Consul checks the rights for all operations before it carries out the first. The last operations have a condition that never
/// holds, so nothing is written.
pub(super) async fn check(connections: &Arc<Connections>, prefix: &str) -> Result<()> {
    let keys = ["", "lock/", "member/"].map(|kind| format!("{prefix}{kind}rights"));
    let mut steps: Vec<_> = keys.iter().map(|key| Operation::set(key.as_str(), b"")).collect();
    steps.extend(keys.iter().map(|key| Operation::is_unchanged(key.as_str(), NO_INDEX)));
    let ask = |pool: Pool| {
        let (request, limit) = (transaction(&steps), connections.patience.min(LONGEST_TRY));
        async move {
            let request = request.map_err(Failure::harmless)?;
            let asking = timeout(limit, pool.ask(Lane::Kept, "connect", request)).await;
            asking.unwrap_or_else(|_| Err(Failure::late("connect", limit, Effect::None)))
        }
    };
    let answer = match connections.greet(ask).await {
        Ok(answer) => answer,
        // The check has no result, so it is not known whether a right is missing. Rights are checked only here: so connecting
        // fails, with an error after which it can be tried again.
        Err(error) if error.is_transient() || error.kind() == ErrorKind::Tls => {
            return Err(error.with_effect(Effect::None));
        }
        // Any other error will occur again in the calls that follow, which report it.
        Err(_) => return Ok(()),
    };
    match forbidden(&answer) {
        Some(said) => Err(lacking("connect", &keys_under(prefix), &said)),
        None => Ok(()),
    }
}

/// The policy rule for the keys that begin with `prefix`, for messages.
pub(super) fn keys_under(prefix: &str) -> String {
    format!("key_prefix {prefix:?}")
}

/// The error of a call for which a policy lacks this rule.
pub(super) fn lacking(operation: &'static str, rule: &str, said: &str) -> Error {
    let message = format!(
        "no policy of the token has `{rule} {{ policy = \"write\" }}`, or all of it: {said}"
    );
    Error::new(ErrorKind::Permission, operation, message).with_effect(Effect::None)
}
