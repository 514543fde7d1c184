//! Write fences: they keep a call from taking effect later, after its caller has given it up.
//!
//! After a connection broke, a server may still carry out a request that was sent on it, even when the server has already answered
//! requests on the next connection: its threads read the two connections independently of each other. So each session has a node
//! whose version is the *write fence*, and an entry's node is made only on condition that the session's node has a certain version.
//!
//! Suppose that the answer to a call was lost, and that the client has to know whether the call has made its node. The client first
//! writes to the session's node. This ends the old version: no request that was sent on condition of the old version has an effect
//! any more. After that, the client lists the names: if the node is not among them, it will never be made. The end of a version
//! also makes other calls fail that are in flight; they are made again. To keep such failures rare, one write to the session's node
//! serves all calls that were given up before it.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use tokio::sync::Mutex;
use zookeeper_client::{Client, Error as ZooKeeperError};

use super::client::Connection;
use super::error::from_zookeeper;
use crate::error::{Error, LossReason, Result};

pub(super) struct WriteFence {
    /// The path of the session's node. The server deletes this node when the session ends.
    pub(super) path: String,
    version: AtomicI32,
    /// Locked by the call that ends a version. Other calls that want to end this version wait for that call, then find that the
    /// version has ended, and write nothing.
    ending: Mutex<()>,
}

impl WriteFence {
    pub(super) fn new(path: String) -> Self {
        Self { path, version: AtomicI32::new(0), ending: Mutex::default() }
    }

    /// The version of the session's node, as far as this process knows.
    pub(super) fn version(&self) -> i32 {
        self.version.load(Ordering::SeqCst)
    }

    /// Ends this version: afterwards, no request that was sent on condition of it takes effect any more. Does nothing if the
    /// version has ended already.
    pub(super) async fn end(
        &self,
        connection: &Connection,
        operation: &'static str,
        version: i32,
    ) -> Result<()> {
        let _turn = self.ending.lock().await;
        if self.version() > version {
            return Ok(());
        }
        let path = &self.path;
        let write = |client: Arc<Client>| async move { client.set_data(path, b"", None).await };
        match connection.raw_call(operation, write).await? {
            Ok(stat) => {
                self.version.fetch_max(stat.version, Ordering::SeqCst);
                Ok(())
            }
            Err(ZooKeeperError::NoNode) => Err(revoked(operation)),
            Err(error) => Err(from_zookeeper(operation, &error)),
        }
    }
}

/// The error if somebody has removed the node of the session or of its member. The session counts as over then.
pub(super) fn revoked(operation: &'static str) -> Error {
    Error::lost(operation, LossReason::Revoked)
}
