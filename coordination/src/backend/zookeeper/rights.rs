//! Checks while the library connects whether the user has all the rights that it will need. Otherwise the first release of a lock
//! could be the first call that shows a missing right.

use std::sync::Arc;

use zookeeper_client::{Client, CreateMode, Error as ZooKeeperError, MultiWriteError};

use super::client::Connection;
use super::tree::Tree;
use crate::error::{Effect, Error, ErrorKind, Result};

/// The rights that the operations of the request in [`check`] need, in the order of these operations.
const RIGHTS: [&str; 4] = ["read", "create", "delete", "write"];
/// A version that no node ever has. (-1 would stand for any version.)
const NO_VERSION: i32 = -2;

/// Fails if the access control list of the namespace's node does not give the user one of the rights, and names this right in the
/// error. If the node does not exist, the check succeeds: the library will make the node, with all rights.
///
/// ZooKeeper carries out such a request as a whole or not at all. Its last operation always fails, so the request never changes
/// anything. If an operation before the last one fails with `NoAuth`, the user lacks the right that this operation needs.
pub(super) async fn check(connection: &Connection, tree: &Tree) -> Result<()> {
    let (root, nowhere) = (tree.root(), format!("{}/rights", tree.root()));
    let options = CreateMode::Persistent.with_acls(tree.acls());
    let trying = connection.raw_call("connect", |client: Arc<Client>| async move {
        let mut writer = client.new_multi_writer();
        writer.add_check_version(root, -1)?;
        writer.add_create(&nowhere, b"", &options)?;
        writer.add_delete(&nowhere, None)?;
        writer.add_set_data(root, b"", None)?;
        writer.add_check_version(root, NO_VERSION)?;
        Ok(refused(writer.commit().await))
    });
    match trying.await? {
        Ok(Some(right)) => Err(lacking("connect", right, root)),
        // All other errors will come again in the calls that follow, which report them.
        _ => Ok(()),
    }
}

fn refused<T>(tried: Result<T, MultiWriteError>) -> Option<&'static str> {
    match tried {
        Err(MultiWriteError::OperationFailed { index, source: ZooKeeperError::NoAuth }) => {
            RIGHTS.get(index).copied()
        }
        _ => None,
    }
}

/// The error of a call whose user lacks this right on this node.
pub(super) fn lacking(operation: &'static str, right: &str, node: &str) -> Error {
    let message = format!(
        "the access control list of {node} does not give this user, or this password, the right `{right}`"
    );
    Error::new(ErrorKind::Permission, operation, message).with_effect(Effect::None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_operation_that_is_refused_tells_the_right() {
        let failed = |index, source| -> Result<(), _> {
            Err(MultiWriteError::OperationFailed { index, source })
        };
        assert_eq!(refused(failed(0, ZooKeeperError::NoAuth)), Some("read"));
        assert_eq!(refused(failed(3, ZooKeeperError::NoAuth)), Some("write"));
        assert_eq!(refused(failed(4, ZooKeeperError::BadVersion)), None);
        assert_eq!(refused(failed(0, ZooKeeperError::NoNode)), None);
    }
}
