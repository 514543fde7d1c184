//! Whether the user may do all that is done later: what is missing is told by who connects, and not by the first release.

use std::sync::Arc;

use etcd_client::{Client, Compare, CompareOp, GetOptions, Txn, TxnOp};

use super::client::Connections;
use super::txn::end_of;
use crate::error::{Effect, Error, ErrorKind, Result};

/// What a role gives on a range of keys.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Right {
    Read,
    Write,
}

/// Fails if the user's roles do not give a right on all keys of the namespace, and names it. `prefix`: what these begin with.
///
/// etcd looks for the rights that both branches of a transaction need before it evaluates the condition. This condition never
/// holds, so nothing is written.
pub(super) async fn check(connections: &Arc<Connections>, prefix: &str) -> Result<()> {
    let Some(denied) = denied(connections, prefix, &[Right::Read, Right::Write]).await else {
        return Ok(());
    };
    // A condition is a read, too: so the right to write is not asked for alone.
    let missing = match self::denied(connections, prefix, &[Right::Read]).await {
        Some(_) => "read",
        None => "write",
    };
    let message = format!(
        "no role of this user gives the right `{missing}` on the prefix {prefix}: {}",
        denied.message()
    );
    let error = Error::new(ErrorKind::Permission, "connect", message);
    Err(error.with_effect(Effect::None).with_source(denied))
}

/// Whether any of these rights is missing. Other failures say nothing of rights: whoever makes the call that counts is told of
/// them.
async fn denied(connections: &Arc<Connections>, prefix: &str, rights: &[Right]) -> Option<Error> {
    let mut steps = Vec::new();
    if rights.contains(&Right::Read) {
        let all = GetOptions::new().with_range(end_of(prefix)).with_keys_only().with_limit(1);
        steps.push(TxnOp::get(prefix, Some(all)));
    }
    if rights.contains(&Right::Write) {
        // The first key that there may be, and one near the last.
        let keys = [prefix.to_owned(), format!("{prefix}~")];
        steps.extend(keys.map(|key| TxnOp::put(key, "", None)));
    }
    let never = Compare::version(prefix, CompareOp::Less, 0);
    let trying = Txn::new().when([never]).and_then(steps);
    let make = |client: Client| {
        let trying = trying.clone();
        async move { client.kv_client().txn(trying).await }
    };
    let tried = connections.urgent_call("connect", async |connected| connected.call(make).await);
    tried.await.err().filter(|error| error.kind() == ErrorKind::Permission)
}
