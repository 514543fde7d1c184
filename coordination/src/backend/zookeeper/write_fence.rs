//! Write fences: they keep a call that was given up from taking effect later.
//!
//! After a connection broke, a server may still carry out a request that was sent on it, even when it has already answered requests
//! on the next connection: its threads read the two connections independently of each other. So an entry's node is made on
//! condition that a node of its session has a certain version, the *write fence*. Before a client relies on not having found the
//! node of a call that was given up, it writes to the session's node: from then on no request that was sent under the earlier
//! version has an effect. Calls under way are refused too, and made anew; so one such write is made for all calls that were given
//! up before it.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use tokio::sync::Mutex;
use zookeeper_client::{Client, Error as ZooKeeperError};

use super::client::Connection;
use super::error::from_zookeeper;
use crate::error::{Error, LossReason, Result};

pub(super) struct WriteFence {
    /// The path of the session's node, which is deleted with the session.
    pub(super) path: String,
    version: AtomicI32,
    /// One call ends a version at a time. Those that wait then find that it is ended, and write nothing.
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

    /// Ends this version: no request that was sent under it takes effect any more. Does nothing if the version has ended before.
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

/// The error if somebody has removed the session's node or its member's, which means that the session is over.
pub(super) fn revoked(operation: &'static str) -> Error {
    Error::lost(operation, LossReason::Revoked)
}
