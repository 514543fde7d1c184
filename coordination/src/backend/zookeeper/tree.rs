//! Where everything stands: paths, and the nodes above.
//!
//! `<chroot>/<namespace>` has `member/<member id>`, for each kind of queue `<kind>/<name>/<contender>`, and
//! `values/<kind>/<name>`. The nodes of queues are containers, which the server removes when they are empty; those of
//! members and contenders are ephemeral, and what is left persists.

use std::collections::HashSet;
use std::pin::Pin;
use std::sync::{Mutex, MutexGuard};

use zookeeper_client::{Acls, Client, CreateMode, CreateOptions, Error as ZooKeeperError};

use super::client::Connection;
use crate::error::Result;
use crate::key::{self, QueueKey};

/// How many queues are remembered to have a node: forgetting one costs a request more.
const REMEMBERED: usize = 4096;

/// The nodes of a namespace.
pub(super) struct Tree {
    root: String,
    is_private: bool,
    known: Mutex<HashSet<QueueKey>>,
}

impl Tree {
    pub(super) fn new(chroot: &str, namespace: &str, is_private: bool) -> Self {
        Self { root: format!("{chroot}/{namespace}"), is_private, known: Mutex::default() }
    }

    pub(super) fn member(&self, member: &str) -> String {
        format!("{}/member/{}", self.root, key::encode(member))
    }

    pub(super) fn queue(&self, queue: &QueueKey) -> String {
        format!("{}/{}/{}", self.root, queue.kind(), queue.encoded())
    }

    /// The node above the queues of a kind.
    pub(super) fn queues(&self, kind: &str) -> String {
        format!("{}/{kind}", self.root)
    }

    /// The node above the values of a kind.
    pub(super) fn values(&self, kind: &str) -> String {
        format!("{}/values/{kind}", self.root)
    }

    pub(super) fn value(&self, queue: &QueueKey) -> String {
        format!("{}/{}", self.values(queue.kind()), queue.encoded())
    }

    /// Whom a node lets in.
    pub(super) fn acls(&self) -> Acls<'static> {
        if self.is_private { Acls::creator_all() } else { Acls::anyone_all() }
    }

    /// What is to be made before a node can be made in this queue, the highest first: nothing where somebody here has
    /// been in it before.
    pub(super) fn missing(&self, queue: &QueueKey) -> Vec<Missing> {
        let known = self.known();
        if known.contains(queue) {
            return Vec::new();
        }
        let container = CreateMode::Container.with_acls(self.acls());
        let mut missing = Vec::new();
        if !known.iter().any(|other| other.kind() == queue.kind()) {
            missing = self.above(&self.queue(queue));
        }
        missing.push((self.queue(queue), container));
        missing
    }

    /// The queue has a node.
    pub(super) fn found(&self, queue: &QueueKey) {
        let mut known = self.known();
        if known.len() >= REMEMBERED && !known.contains(queue) {
            known.clear();
        }
        known.insert(queue.clone());
    }

    /// A queue, which had one, has no node: nor may others have.
    pub(super) fn lost(&self) {
        self.known().clear();
    }

    /// The nodes above a path, the highest first.
    fn above(&self, path: &str) -> Vec<Missing> {
        let ends = path.match_indices('/').map(|(at, _)| at).skip(1);
        let options = CreateMode::Persistent.with_acls(self.acls());
        ends.map(|end| (path[..end].to_owned(), options.clone())).collect()
    }

    /// Makes the nodes above a path.
    pub(super) async fn make_parents(
        &self,
        connection: &Connection,
        operation: &'static str,
        path: &str,
    ) -> Result<()> {
        let missing = self.above(path);
        let making = connection.call(operation, |client| async move {
            match Making::send(&client, &missing).done().await {
                Some(error) => Err(error),
                None => Ok(()),
            }
        });
        making.await
    }

    fn known(&self) -> MutexGuard<'_, HashSet<QueueKey>> {
        self.known.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// A node to be made, without data.
pub(super) type Missing = (String, CreateOptions<'static>);

/// Nodes that are being made: all are sent before the first answer.
pub(super) struct Making<'a>(Vec<BoxFuture<'a, Result<(), ZooKeeperError>>>);

type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

impl<'a> Making<'a> {
    pub(super) fn send(client: &'a Client, missing: &'a [Missing]) -> Self {
        let send = |(path, options): &'a Missing| -> BoxFuture<'a, _> {
            let create = client.create(path, &[], options);
            Box::pin(async move { create.await.map(drop) })
        };
        Self(missing.iter().map(send).collect())
    }

    /// What has failed, if it was the last one that did.
    ///
    /// Those above it may be there, and this user not be allowed to make them.
    pub(super) async fn done(self) -> Option<ZooKeeperError> {
        let mut failed = None;
        for making in self.0 {
            match making.await {
                Ok(()) | Err(ZooKeeperError::NodeExists) => failed = None,
                // Says less than what failed above.
                Err(ZooKeeperError::NoNode) if failed.is_some() => {}
                Err(error) => failed = Some(error),
            }
        }
        failed
    }
}
