//! `zookeeper://host:2181/namespace`: many hosts, over ZooKeeper's own protocol.
//!
//! # How it works
//!
//! A session is a session of ZooKeeper's, with an ephemeral node for its member id. An entry is an ephemeral sequential node,
//! `<namespace>/lock/<name>/<entry id>__lock__<number>`. The number of the transaction that made the node (its zxid) is the entry's
//! sequence number and its fencing token. The order of the entries is that of the numbers that the server appended to the names.
//! The request that makes the node and the request that lists the queue are sent together. So an uncontended lock costs two
//! requests in one round trip, and one more request to release it. If a connection breaks, a request that was sent on it may be
//! carried out after later requests. `write_fence.rs` makes sure that such a late request has no effect.
//!
//! A waiter watches the node that blocks it. When that node is gone, the waiter lists the queue once. The list shows whether the
//! waiter's own node is still there, and what blocks it now. If several callers of one session list a queue at the same time, they
//! share listings, see `siblings.rs`.
//!
//! The node of a shared entry has `__rlock__` in its name, so that an exclusive entry finds its blocker by the names alone.
//! Everything else about an entry is in its node's data. An entry that was downgraded to shared keeps its name, and its data have
//! `"shared":true`. A queue's value is a node of its own, `<namespace>/values/lock/<name>`. All observers of a queue share two
//! persistent watches. After each change they read the queue once: first the names, and then the nodes that are new. An entry's
//! data change only by an update, which also writes the node of the queue: see `entries.rs`.
//!
//! A server answers reads from its own copy of the data, which may lag behind. So a read of a whole queue begins with a `sync`.
//!
//! Only the leader ends sessions, and it hears only twice in each tick from the other servers which sessions are alive. A server
//! answers a ping before the leader has heard of it. So heartbeats are writes: the answer to a write shows that the server is in
//! touch with the leader. It does not show yet that this heartbeat has extended the lease. But it shows that an earlier heartbeat
//! has done so, whose answer came at least half a tick before: see [`proof_delay`](Store::proof_delay).
//!
//! kazoo's `Lock`, `ReadLock` and `WriteLock` on `<namespace>/lock/<name>` and our locks exclude each other; the option
//! `parents=persistent` is needed for that. OpenStack's Tooz uses kazoo's locks too, but on a path that is never ours, so its locks
//! and ours ignore each other. With `nodes=curator`, our exclusive locks and Curator's `InterProcessMutex` or Go's `zk.Lock`
//! exclude each other.
//!
//! # Guarantees
//!
//! Exclusion, order and tokens are preserved in crashes and restarts of servers, in a change of the leader, and if a minority of
//! the servers is lost. If a holder crashes, the next one gets the lock after at most the lease and one and a half ticks. If all
//! data are lost, tokens start again from 1. A holder watches its own node, so it learns at once if its node is removed.
//!
//! # Requirements
//!
//! ZooKeeper 3.6 or newer. The rights to create, read, write and delete on `<chroot>/<namespace>` and below; connecting checks the
//! rights on the node of that path. A member id is the name of a node: as long as another program's node has that name, no session
//! with this member id can be opened. The servers' `minSessionTimeout` must have its default, two ticks, because
//! [`proof_delay`](Store::proof_delay) is computed from it. All servers must have one `tickTime` and one `maxSessionTimeout`: a server
//! to which the client crate connects again may grant the session a shorter lease, and the crate does not tell. So the servers are
//! asked (`grants.rs`), and if one grants less, the session is lost. But between the new connection and this loss, holders rely on
//! their locks for longer than the servers keep them: `docs/decisions/zookeeper-leases.md` says why.
//!
//! # URL options
//!
//! `zk://` and `kazoo://` mean the same as `zookeeper://`; `zookeeper+tls://`, `zk+tls://` and `kazoo+tls://` use TLS. If the URL
//! has several hosts, they are servers of one ensemble, and are tried in random order. The last segment of the path is the
//! namespace, and the part before it is the chroot. A user and a password are those of ZooKeeper's `digest` scheme.
//!
//! * `ca`, `cert`, `key`: PEM files. Without `ca`, the system's certificates are trusted.
//! * `password_file`: a file with the password, for a URL that has no password in it.
//! * `acl`: who has access to the nodes that this client makes. `creator` (the default if there is a user): only that user. `open`:
//!   everybody.
//! * `nodes`: the library whose names the nodes have, `kazoo` (the default) or `curator`.
//! * `parents`: the kind of a queue's node. A `container` (the default) is removed by the server some time after the queue has
//!   become empty. A `persistent` node stays. kazoo needs `persistent`: its lock object fails once the queue's node was removed.

mod active_watches;
mod addresses;
mod client;
mod config;
mod ending;
mod entries;
mod entry;
mod error;
#[cfg(all(test, coordination_internals))]
mod fuzz;
mod grants;
mod identity;
mod making;
mod nodes;
mod open_sessions;
mod probe;
mod reads;
mod rights;
mod sessions;
mod siblings;
#[cfg(test)]
mod tests;
mod thread;
#[cfg_attr(not(feature = "_tls"), path = "no_tls.rs")]
mod tls;
mod tree;
mod unwatched;
mod values;
mod watch_room;
mod watching;
mod write_fence;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use self::active_watches::Watches;
use self::client::Connector;
use self::config::{Config, Style};
use self::entry::OwnEntries;
use self::open_sessions::OpenSessions;
use self::reads::{Reads, Seen};
use self::siblings::Siblings;
use self::thread::ClientThread;
use self::tree::Tree;
use crate::backend::Store;
use crate::backend::descriptor::{Connect, Descriptor};
use crate::backend::pending_writes::PendingWrites;
use crate::backend::server::bounded_cache::BoundedCache;
use crate::backend::server::patience;
use crate::characteristics::{Characteristics, Durability, Liveness, LossDetection, Scope};
use crate::config::Settings;
use crate::error::{Error, ErrorKind, Result};
use crate::key::QueueKey;
use crate::url::{Authority, UrlOption};

/// A connection is given up if it has no traffic for this long, or if making it takes this long. The probe takes only a part of the
/// time for connecting. The rest of the time for connecting is at least twice as long as this constant, so that two servers can be
/// tried.
const SILENCE: Duration = Duration::from_millis(1_500);
/// The longest pause of the client crate between its first and its second try to connect again (`IterableEndpoints::timeout` in
/// 0.11.2). The crate makes the first try as soon as the connection broke, perhaps before the server has ended the session. If the
/// first try comes before the end of the session, only the second try shows that the session is over.
const RECONNECT: Duration = Duration::from_millis(200);

/// What the library knows of this store before it connects.
pub(super) static DESCRIPTOR: Descriptor = Descriptor {
    name: "zookeeper",
    options: &[
        UrlOption::hidden("ca"),
        UrlOption::hidden("cert"),
        UrlOption::hidden("key"),
        UrlOption::hidden("password_file"),
        UrlOption::shown("acl"),
        UrlOption::shown("nodes"),
        UrlOption::shown("parents"),
    ],
    authority: Authority::Hosts,
    namespace: Config::namespace,
    loss_detection: LossDetection::Watch,
    is_in_process: false,
    parse: |url| Ok(Box::new(Config::parse(url)?)),
};

/// The store of one namespace at an ensemble.
pub(crate) struct Zookeeper {
    sessions: OpenSessions,
    own: Arc<OwnEntries>,
    watches: Arc<Watches>,
    seen: BoundedCache<QueueKey, Seen>,
    /// The writes that create a value and have no answer yet: for each id, how many values of the kind had been removed when the
    /// write was first sent (see `values.rs`).
    pending_creates: PendingWrites<i32>,
    reads: Reads,
    siblings: Siblings,
    tree: Tree,
    style: Style,
    /// The shortest lease that the servers grant, as the probe has found it out.
    shortest: Duration,
    /// Bounds one request inside `gone`; no answer in time is `Unavailable`.
    patience: Duration,
}

impl Zookeeper {
    /// Probes the servers. Keeps no connection; the first session makes its own.
    async fn connect(config: Config, settings: &Settings) -> Result<Self> {
        let patience = patience(settings);
        // The client crate gives up a connection on which nothing arrives for this time. This time is twice as long as a call may
        // take, because the answer to a ping may take as long as a call; but it is no longer than `SILENCE`. When the first
        // connection is made, the crate also waits this long for a server that does not answer, before it tries the next one.
        let mut connector = Connector::new(&config, SILENCE.min(patience * 2))?;
        let shortest = probe::probe(&config, &connector.addresses).await?;
        connector.shortest = shortest;
        let failed = |error: io::Error| {
            let message = format!("cannot start the client's thread: {error}");
            Error::new(ErrorKind::Storage, "connect", message).with_source(error)
        };
        let thread = settings.current_runtime.then(ClientThread::start).transpose();
        Ok(Self {
            sessions: OpenSessions::new(connector, thread.map_err(failed)?),
            own: Arc::default(),
            watches: Arc::default(),
            seen: BoundedCache::default(),
            pending_creates: PendingWrites::default(),
            reads: Reads::default(),
            siblings: Siblings::default(),
            tree: Tree::new(&config.chroot, &settings.namespace, config.is_private, config.parents),
            style: config.style,
            shortest,
            patience,
        })
    }
}

#[async_trait]
impl Connect for Config {
    async fn connect(self: Box<Self>, settings: &Settings) -> Result<Arc<dyn Store>> {
        Ok(Arc::new(Zookeeper::connect(*self, settings).await?))
    }
}

impl Store for Zookeeper {
    fn scheme(&self) -> &'static str {
        DESCRIPTOR.name
    }

    fn characteristics(&self) -> Characteristics {
        Characteristics {
            scope: Scope::Hosts,
            liveness: Liveness::Lease,
            loss_detection: DESCRIPTOR.loss_detection,
            survives_restart: Durability::Yes,
            survives_power_loss: Durability::Yes,
            survives_failover: Durability::Yes,
            fifo: true,
            fencing_survives_data_loss: false,
            early_expiry: None,
            partition_overlap: None,
            max_plain_name: 200,
            min_ttl: Some(self.shortest),
        }
    }

    fn proof_delay(&self) -> Duration {
        // Twice in each tick, the leader asks its followers which sessions are alive. The shortest lease is two ticks, so half a
        // tick is a quarter of it.
        self.shortest / 4
    }

    fn reconnect_delay(&self) -> Duration {
        RECONNECT
    }
}
