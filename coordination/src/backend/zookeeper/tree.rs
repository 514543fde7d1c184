//! The paths of all nodes, and how the nodes above them are made.
//!
//! `<chroot>/<namespace>` has the following nodes below it: `member/<member id>`, `session/<session id>`, for each kind of queue
//! `<kind>/<name>/<contender>`, `values/<kind>/<name>`, and `records/<kind>/<name>/<record>`. The nodes of members, sessions and
//! contenders are ephemeral. The nodes of queues are containers, which the server removes when they are empty, or persistent if the
//! URL says `parents=persistent`. All other nodes are persistent.

use zookeeper_client::{Acls, Client, CreateMode, CreateOptions, Error as ZooKeeperError};

use super::client::Connection;
use super::config::Parents;
use crate::backend::SessionId;
use crate::backend::server::bounded_cache::BoundedCache;
use crate::error::Result;
use crate::key::{self, QueueKey};

/// How many nodes this process remembers to exist. If a node was dropped from this cache, its next use costs one more request.
const REMEMBERED: usize = 4096;

/// The paths of the nodes of one namespace.
pub(super) struct Tree {
    root: String,
    is_private: bool,
    parents: Parents,
    /// The paths of nodes that existed when this process last used them: nodes of queues, and the nodes of the kinds above them.
    known: BoundedCache<String, ()>,
}

impl Tree {
    pub(super) fn new(chroot: &str, namespace: &str, is_private: bool, parents: Parents) -> Self {
        let known = BoundedCache::of_at_most(REMEMBERED);
        Self { root: format!("{chroot}/{namespace}"), is_private, parents, known }
    }

    pub(super) fn root(&self) -> &str {
        &self.root
    }

    pub(super) fn member(&self, member: &str) -> String {
        format!("{}/member/{}", self.root, key::encode(member))
    }

    pub(super) fn session(&self, session: SessionId) -> String {
        format!("{}/session/{session}", self.root)
    }

    pub(super) fn queue(&self, queue: &QueueKey) -> String {
        format!("{}/{}/{}", self.root, queue.kind(), queue.encoded())
    }

    pub(super) fn entry(&self, queue: &QueueKey, name: &str) -> String {
        format!("{}/{name}", self.queue(queue))
    }

    /// The node whose children are the queues of this kind.
    pub(super) fn queues(&self, kind: &str) -> String {
        format!("{}/{kind}", self.root)
    }

    /// The node whose children are the values of this kind.
    pub(super) fn values(&self, kind: &str) -> String {
        format!("{}/values/{kind}", self.root)
    }

    pub(super) fn value(&self, queue: &QueueKey) -> String {
        format!("{}/{}", self.values(queue.kind()), queue.encoded())
    }

    pub(super) fn record(&self, queue: &QueueKey, name: &str) -> String {
        format!("{}/records/{}/{}/{name}", self.root, queue.kind(), queue.encoded())
    }

    /// The access control list of the nodes that we make.
    pub(super) fn acls(&self) -> Acls<'static> {
        if self.is_private { Acls::creator_all() } else { Acls::anyone_all() }
    }

    /// The nodes that have to be made before an entry's node can be made in this queue, from the top down. Empty if this process
    /// has seen the queue's node before.
    pub(super) fn missing(&self, queue: &QueueKey) -> Vec<Missing> {
        let is_known = |path: &String| self.known.get(path, |()| ()).is_some();
        let path = self.queue(queue);
        if is_known(&path) {
            return Vec::new();
        }
        let is_above = is_known(&self.queues(queue.kind()));
        let mut missing = if is_above { Vec::new() } else { self.above(&path) };
        let mode = match self.parents {
            Parents::Container => CreateMode::Container,
            Parents::Persistent => CreateMode::Persistent,
        };
        missing.push((path, mode.with_acls(self.acls())));
        missing
    }

    /// Notes that the queue's node exists.
    pub(super) fn found(&self, queue: &QueueKey) {
        self.remember(queue, Some(()));
    }

    /// Notes that the queue's node does not exist any more. The nodes above it may be gone too.
    pub(super) fn lost(&self, queue: &QueueKey) {
        self.remember(queue, None);
    }

    fn remember(&self, queue: &QueueKey, is_there: Option<()>) {
        for path in [self.queues(queue.kind()), self.queue(queue)] {
            self.known.update(path, |known| *known = is_there);
        }
    }

    /// The nodes above the node `path`, from the top down.
    fn above(&self, path: &str) -> Vec<Missing> {
        let ends = path.match_indices('/').map(|(at, _)| at).skip(1);
        let options = CreateMode::Persistent.with_acls(self.acls());
        ends.map(|end| (path[..end].to_owned(), options.clone())).collect()
    }

    pub(super) async fn make_parents(
        &self,
        connection: &Connection,
        operation: &'static str,
        path: &str,
    ) -> Result<()> {
        let missing = self.above(path);
        let making = connection.call(operation, |client| async move {
            make_all(&client, &missing).await.map_or(Ok(()), Err)
        });
        making.await
    }
}

/// The path of a node to be made, without data, and the options with which to make it.
pub(super) type Missing = (String, CreateOptions<'static>);

/// Makes these nodes, from the top down. All requests are sent before this function returns; the future waits for the answers.
/// Returns why the lowest node could not be made; `None`: it exists.
///
/// If a lower node exists, the upper nodes exist too. So a failure to make an upper node is ignored then: perhaps the user only
/// lacks the right to create it.
pub(super) fn make_all<'a>(
    client: &'a Client,
    missing: &'a [Missing],
) -> impl Future<Output = Option<ZooKeeperError>> + Send + 'a {
    let create = |(path, options): &'a Missing| client.create(path, &[], options);
    let sent: Vec<_> = missing.iter().map(create).collect();
    async move {
        let mut failed = None;
        for making in sent {
            match making.await {
                Ok(_) | Err(ZooKeeperError::NodeExists) => failed = None,
                // The node above this one could not be made. The error of the upper node is kept, because it says more than this
                // one.
                Err(ZooKeeperError::NoNode) if failed.is_some() => {}
                Err(error) => failed = Some(error),
            }
        }
        failed
    }
}
