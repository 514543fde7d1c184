//! Which calls of a session still count.
//!
//! A server may carry out a request of a connection that broke after it has answered what the client has asked on the
//! next one: its threads read the two side by side. So an entry's node is made on condition of the version of a node of
//! its session's, the *write fence*. Before a client relies on not having found the node of a call that was given up, it
//! writes to that node: from then on nothing that was sent under the version before has an effect. Calls under way are
//! refused, too, and made anew; so one write does for all calls that were given up before it.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use tokio::sync::Mutex;
use zookeeper_client::{Client, Error as ZooKeeperError};

use super::client::Connection;
use super::error::from_zookeeper;
use crate::error::{Error, LossReason, Result};

pub(super) struct WriteFence {
    /// Its node, which ends with the session.
    pub(super) path: String,
    version: AtomicI32,
    /// One call writes at a time: those after it see what it has done.
    ending: Mutex<()>,
}

impl WriteFence {
    pub(super) fn new(path: String) -> Self {
        Self { path, version: AtomicI32::new(0), ending: Mutex::default() }
    }

    /// The version of the fence's node, as far as is known.
    pub(super) fn version(&self) -> i32 {
        self.version.load(Ordering::SeqCst)
    }

    /// Ends this version for whatever was sent under it; a no-op when it is over already.
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

/// The error of a session of which somebody has removed a node that stands for it.
pub(super) fn revoked(operation: &'static str) -> Error {
    Error::lost(operation, LossReason::Revoked)
}
