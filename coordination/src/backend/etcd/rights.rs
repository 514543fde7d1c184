//! Checks while connecting whether the user has all rights that are needed later. Otherwise a missing right could show as late as
//! at the first release.

use std::sync::Arc;

use etcd_client::{Client, Compare, CompareOp, GetOptions, Txn, TxnOp};

use super::client::Connections;
use super::txn::end_of;
use crate::error::{Effect, Error, ErrorKind, Result};

/// A right that a role gives on a range of keys.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Right {
    Read,
    Write,
}

/// Fails if the user's roles do not give the rights to read and to write all keys that begin with `prefix`. The error names the
/// right that is missing.
///
/// etcd checks the rights that both branches of a transaction need before it evaluates the condition. The condition of this
/// transaction never holds, so nothing is written.
pub(super) async fn check(connections: &Arc<Connections>, prefix: &str) -> Result<()> {
    let Some(denied) = denied(connections, prefix, &[Right::Read, Right::Write]).await else {
        return Ok(());
    };
    // If only the right to write is missing, the first transaction has failed, and a second one that only reads succeeds. The right
    // to write cannot be tried alone, because the condition of the transaction needs the right to read.
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

/// The server's error if one of these rights is missing. `None`: no right is missing, or the call failed for another reason,
/// which later calls will report.
async fn denied(connections: &Arc<Connections>, prefix: &str, rights: &[Right]) -> Option<Error> {
    let mut steps = Vec::new();
    if rights.contains(&Right::Read) {
        let all = GetOptions::new().with_range(end_of(prefix)).with_keys_only().with_limit(1);
        steps.push(TxnOp::get(prefix, Some(all)));
    }
    if rights.contains(&Right::Write) {
        // The range of keys that a role gives rights on may end before the namespace does. So the put is tried for the first key
        // of the namespace and for a key near its end.
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
