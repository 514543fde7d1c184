//! Whether the token may do all that is done later: what is missing is told by who connects, and not by the first release.

use std::sync::Arc;

use super::client::Connections;
use super::kv::{Operation, forbidden, transaction};
use crate::error::{Effect, Error, ErrorKind, Result};

/// No key ever has this index.
const NO_INDEX: u64 = u64::MAX >> 1;

/// Fails if the token's policies do not let it write all keys of the namespace, and names what is missing. `prefix`: what these
/// begin with.
///
/// Consul looks for the rights of all operations before it carries out the first. The last one always fails, so nothing is
/// written.
pub(super) async fn check(connections: &Arc<Connections>, prefix: &str) -> Result<()> {
    let keys = ["", "lock/", "member/"].map(|kind| format!("{prefix}{kind}rights"));
    let mut steps: Vec<_> = keys.iter().map(|key| Operation::set(key.as_str(), b"")).collect();
    steps.extend(keys.iter().map(|key| Operation::is_unchanged(key.as_str(), NO_INDEX)));
    let request = transaction(&steps)?;
    // Whatever else is wrong is told to whoever makes the call that counts.
    let Ok(answer) = connections.send_urgently("connect", request).await else { return Ok(()) };
    match forbidden(&answer) {
        Some(said) => Err(lacking("connect", &format!("key_prefix {prefix:?}"), &said)),
        None => Ok(()),
    }
}

/// The error of a call for which a policy lacks this rule.
pub(super) fn lacking(operation: &'static str, rule: &str, said: &str) -> Error {
    let message = format!(
        "no policy of the token has `{rule} {{ policy = \"write\" }}`, or all of it: {said}"
    );
    Error::new(ErrorKind::Permission, operation, message).with_effect(Effect::None)
}
