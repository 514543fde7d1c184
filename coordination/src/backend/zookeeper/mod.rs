//! `zookeeper://host:2181/namespace`: many hosts, over ZooKeeper's own protocol.
//!
//! # How it works
//!
//! A session is a session of ZooKeeper's, with an ephemeral node for its member id. An entry is an ephemeral sequential
//! node, `<namespace>/lock/<name>/<entry id>__lock__<number>`; the transaction that made it is its sequence number and
//! its fencing token. The order of the nodes is that of the numbers that the server gave them. Making the node and
//! listing its siblings are sent together, so an uncontended lock costs two requests at once, and one more to release.
//! A request of a connection that broke may arrive after later ones: it has no effect then, see `write_fence.rs`.
//! A waiter watches the node that blocks it, and after that looks at its own and its siblings in one listing. All of a
//! session that list a queue at the same time share listings, see `siblings.rs`.
//!
//! The node of a shared entry has `__rlock__` in its name, so that an exclusive one sees by the names who is before it.
//! What an entry says beyond that is in its data; one that was downgraded keeps its name and says `"shared":true`. A
//! queue's value is a node of its own, `<namespace>/values/lock/<name>`. Observers of a queue share two persistent
//! watches, and read it once for each change: the names first, then the nodes that are new. What an entry says changes by
//! an update only, which changes the node of the queue too: see `entries.rs`.
//!
//! A server that a client is connected to answers reads by itself, and hears late of what others have written: so a look
//! at a whole queue begins with a `sync`. It also answers heartbeats before the leader, which ends sessions, has heard
//! that the session lives. So heartbeats are writes, and each proves the one before it only: see
//! [`proof_delay`](Store::proof_delay).
//!
//! kazoo's `Lock`, `ReadLock` and `WriteLock` on `<namespace>/lock/<name>` exclude us and are excluded. Tooz's locks do
//! not: they are kazoo's, but on a path that is never ours. With `nodes=curator` exclusive locks exclude Curator's
//! `InterProcessMutex` and Go's `zk.Lock`. kazoo's need `parents=persistent`.
//!
//! # Guarantees
//!
//! Exclusion, order and tokens hold over crashes, restarts, a change of the leader and loss of a minority. A
//! crashed holder is followed within its lease and one and a half ticks. After loss of all data tokens start again
//! from 1. A holder watches its own node, so it learns at once if that is removed.
//!
//! # Requirements
//!
//! ZooKeeper 3.6 or newer. The rights to create, read, write and delete on `<chroot>/<namespace>` and below, which whoever
//! connects tries on the node of that path. A member id is the name of a node: as long as another program has made the node of
//! that name, no session with this member id can be opened. `minSessionTimeout` at its default, two ticks:
//! [`proof_delay`](Store::proof_delay) is computed from it.
//!
//! # URL options
//!
//! `zk://` and `kazoo://` are other names for it; `zookeeper+tls://`, `zk+tls://` and `kazoo+tls://` are TLS. Several
//! hosts are servers of one ensemble, tried in random order. The last segment of the path is the namespace, and what
//! stands before it the chroot. A user and a password are those of ZooKeeper's `digest` scheme.
//!
//! * `ca`, `cert`, `key`: PEM files. Without `ca`, the system's certificates count.
//! * `password_file`: a file with the password, instead of one in the URL.
//! * `acl`: whom the nodes let in: `creator` (the default where there is a user) that user alone, `open` everybody.
//! * `nodes`: whose locks the nodes look like: `kazoo` (the default) or `curator`.
//! * `parents`: what becomes of a queue's node when the queue is empty: as a `container` (the default) the server removes it
//!   after some time, as a `persistent` one it stays. A lock object of kazoo's fails once its node was removed.

mod active_watches;
mod client;
mod config;
mod ending;
mod entries;
mod entry;
mod error;
#[cfg(test)]
mod fuzz;
mod identity;
mod making;
mod nodes;
mod open_sessions;
mod probe;
mod reads;
mod rights;
mod sessions;
mod siblings;
mod thread;
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
use crate::backend::server::bounded_cache::BoundedCache;
use crate::backend::server::patience;
use crate::characteristics::{Characteristics, Durability, Liveness, LossDetection, Scope};
use crate::config::Settings;
use crate::error::{Error, ErrorKind, Result};
use crate::key::QueueKey;
use crate::url::{Authority, UrlOption};

/// How long a connection may be silent, or take to be made, before it is given up: two such times fit into what the probe
/// leaves of the time for connecting.
const SILENCE: Duration = Duration::from_millis(1_500);
/// The longest pause of the client crate before its second try to connect again (`IterableEndpoints::timeout` in 0.11.2). The
/// first try, made as soon as the connection broke, may come before the server has ended the session; only the second is then
/// told so.
const RECONNECT: Duration = Duration::from_millis(200);

/// What is known of the store before it is asked.
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

/// The backend: a namespace of an ensemble.
pub(crate) struct Zookeeper {
    sessions: OpenSessions,
    own: Arc<OwnEntries>,
    watches: Arc<Watches>,
    seen: BoundedCache<QueueKey, Seen>,
    /// The writes that create a value and have no answer yet: for each id, how many values of the kind had been removed when
    /// the write was first sent (see `values.rs`). Fewer are in flight at once than the cache has room for.
    pending_creates: BoundedCache<u64, i32>,
    reads: Reads,
    siblings: Siblings,
    tree: Tree,
    style: Style,
    /// The shortest lease that the servers grant.
    shortest: Duration,
    /// Bounds one request inside `gone`.
    patience: Duration,
}

impl Zookeeper {
    /// Probes the servers. The first session makes the first connection that stays.
    async fn connect(config: Config, settings: &Settings) -> Result<Self> {
        let patience = patience(settings);
        // The client crate gives a connection up when nothing arrives on it for this time: twice what a call may take, as a
        // ping may take as long as a call, but no longer than `SILENCE`. The first connection waits as long for a silent server
        // before the next server is tried.
        let connector = Connector::new(&config, SILENCE.min(patience * 2))?;
        let shortest = probe::probe(&config).await?;
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
            pending_creates: BoundedCache::default(),
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
        // A leader asks its followers twice in a tick which sessions live. The shortest lease has two ticks.
        self.shortest / 4
    }

    fn reconnect_delay(&self) -> Duration {
        RECONNECT
    }
}
