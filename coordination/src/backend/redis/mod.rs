//! `redis://host:6379/0`: locks for processes on many hosts, kept by a Redis server, by the master that Sentinels name, or by a
//! cluster.
//!
//! # How it works
//!
//! Each step of the protocol (`enter`, `leave`, `renew`, …) is one Lua script, and all keys of a namespace have one hash tag,
//! `{<namespace>}:`. A session is a hash that has the moment when its lease ends, by the namespace's own clock. The namespace's
//! clock is the server's clock plus an offset. If the server's clock is set back, the offset is raised, so that the namespace's
//! clock never goes back. The entries of a queue are in two sorted sets, one for exclusive and one for shared entries, ordered by
//! their numbers. The text of an entry is in the session's hash, so that it ends with the session. An entry's number is one more
//! than the last, and at least the clock's time in microseconds; it is the fencing token.
//!
//! A lock that nobody else wants costs one request, and one more to release it. The scripts for this case are short. They publish
//! nothing on the queue's channel unless some client has read or observed a queue of the namespace lately. And the script that
//! enters does not check whether the session's lease is over, because the client checks that itself, and its deadline is earlier
//! than the server's.
//!
//! When an entry leaves, the script publishes a message for each entry that the leaving entry blocked, on the channel of the client
//! that owns the blocked entry. The message says whether anything else blocks that entry. If nothing does, the client has the lock
//! without another request. A message may be lost. So waiting clients also ask the server when the lease of the entry that they
//! wait for may be over, and after each loss of a connection. If a script finds a session whose lease is over, it removes the
//! session. Calls and messages of a coordinator share one connection.
//!
//! A call that the client has given up may arrive late. If the client still uses the same connection, the call arrives before all
//! calls that are sent later. If the client has replaced the connection since, the call may arrive after calls on the new
//! connection. So each connection has a number, and the scripts reject a call if the server has already carried out a call of its
//! session that came on a newer connection. If a server comes back with older data, it may have entries that were removed already.
//! So each client sends the server the ids of its entries, and the server removes all other entries of the client's session.
//!
//! With Sentinels, a heartbeat counts only if more than half of the Sentinels name the server that answered it. One Sentinel is not
//! enough, because a Sentinel that is cut off together with an old master goes on naming the old master. If the server has
//! `min-replicas-to-write`, a heartbeat or a grant counts only when that many replicas have confirmed it. In a cluster, the
//! connection goes to the node that has the namespace's keys. Each call also names a key that never exists. Because of this key, a
//! node refuses the whole call while the keys are being moved to another node; without it, the node would begin the script and stop
//! it half-way.
//!
//! # Guarantees
//!
//! Exclusion, order and tokens hold over crashes of clients, and over a restart of a server whose log is synced for each write
//! (`appendonly yes`, `appendfsync always`). If the server may have forgotten grants, it grants nothing until the longest lease
//! that it may have forgotten is over. This time is called *quarantine*.
//!
//! The server keeps a *record* of the namespace, in the same hash as the namespace's clock, by which it knows whether it may have
//! forgotten grants. The server may have forgotten grants if there is no record, if another server wrote the record, if the server
//! was a replica after it wrote the record, or if its log may lack writes. The record also says for how long the server has
//! certainly forgotten nothing; this time is called its *reach*. The clients measure the reach by their own clocks and send it with
//! every call, because the server has only its wall clock, which may be set. Clients also check again and again whether the server
//! syncs its log, because that may be turned off at any time.
//!
//! Replication is asynchronous, so the newest grants may be forgotten in a fail-over. If the old master goes on granting for longer
//! than quarantine lasts, two clients may hold the same lock. Tokens rise over restarts, fail-overs and even a loss of all data, as
//! long as the server's clock was not set back. If the server's clock is set forward, leases end earlier by that amount: a holder
//! learns that its session is over with its next heartbeat, and until then the fencing token protects the resource. If a holder
//! crashes, the next waiter gets the lock when the holder's lease has run out.
//!
//! # Requirements
//!
//! Redis 6 or newer. The user needs the keys `~{<namespace>}:*`, the channels `&{<namespace>}:*` and the commands `+info +subscribe
//! +unsubscribe +publish +eval +evalsha +time` with `+@hash +@sortedset +@string +del +exists +pexpire`. With `+config|get`, the
//! client can find out whether the log is synced; without it, a restart counts as a loss of grants. `+cluster|slots` is needed with
//! a cluster, and `+wait` with `min-replicas-to-write`. The server must not evict keys: `maxmemory-policy noeviction`.
//!
//! # URL options
//!
//! `rediss://` uses TLS. `redis+unix:///path` connects to a Unix socket; the option `db` is the number of the database. In other
//! URLs the path, or `db`, is the number of the database. Several hosts are tried in random order.
//!
//! * `sentinel`: the hosts of the URL are Sentinels, and the server is the master that they know under this name.
//! * `quarantine`: how long the server grants nothing after it may have forgotten grants. Without this option: as long as the
//!   longest lease that it may have forgotten. `off`: it grants at once.
//! * `ca`, `cert`, `key`: PEM files. Without `ca`, the certificates that the system trusts are used.
//! * `server_name`: the name in the server's certificate, if that is not the name of the host in the URL.
//! * `password_file`: the path of a file that has the password, instead of a password in the URL.

mod client;
mod config;
mod connection;
mod entries;
mod entry;
mod error;
#[cfg(all(test, coordination_internals))]
mod fuzz;
mod link;
mod listings;
mod open_sessions;
mod raw_connection;
mod rights;
mod script;
mod sentinels;
mod server;
mod sessions;
mod silence;
mod topology;
mod values;
mod watching;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use self::client::{Client, Connections};
use self::config::Config;
use self::entry::OwnEntries;
use self::open_sessions::OpenSessions;
use self::script::Call;
use self::server::Server;
use super::{SessionId, Store};
use crate::backend::descriptor::{Connect, Descriptor};
use crate::backend::server::notifications::{Subscriptions, Told};
use crate::backend::server::patience;
use crate::backend::server::reads::Reads;
use crate::backend::server::updates::Updates;
use crate::characteristics::{
    Characteristics, Durability, Liveness, LossDetection, Scope, ServerInfo,
};
use crate::config::Settings;
use crate::error::Result;
use crate::url::{Authority, UrlOption};

/// If the server has lost its record, it does not know how long the forgotten leases were. It then assumes that none of them was
/// longer than the longest of these three: `UNKNOWN`, this client's own lease, and this client's `quarantine`.
const UNKNOWN: Duration = Duration::from_secs(30);

/// The options of the URL, and what the library knows of the store before a connection is made.
pub(super) static DESCRIPTOR: Descriptor = Descriptor {
    name: "redis",
    options: &[
        UrlOption::shown("sentinel"),
        UrlOption::shown("quarantine"),
        UrlOption::shown("db"),
        UrlOption::hidden("ca"),
        UrlOption::hidden("cert"),
        UrlOption::hidden("key"),
        UrlOption::shown("server_name"),
        UrlOption::hidden("password_file"),
    ],
    authority: Authority::Hosts,
    namespace: |_| None,
    loss_detection: LossDetection::Heartbeat,
    is_in_process: false,
    parse: |url| Ok(Box::new(Config::parse(url)?)),
};

/// The backend: gives access to one namespace of a Redis server.
pub(crate) struct Redis {
    connections: Arc<Connections>,
    hub: Arc<Subscriptions>,
    sessions: OpenSessions,
    entries: OwnEntries,
    /// The last updates of our own entries, each with the name of the record under which it was made.
    updates: Arc<Updates<Call, Option<String>>>,
    reads: Reads<Told>,
    /// What the server told about itself when the first connection was made.
    server: Server,
    /// Why two clients may hold the same lock while servers are cut off from each other; `None`: two clients cannot. This follows
    /// from the server's settings, which the first connection has read.
    partition_overlap: Option<&'static str>,
    /// The option `quarantine`: after the server may have forgotten grants, it grants this client nothing for this long. `None`:
    /// for as long as the longest lease that the server may have forgotten.
    quarantine: Option<Duration>,
    /// How long one request inside `gone` may take before `gone` fails.
    patience: Duration,
}

impl Redis {
    /// Connects, and asks the server what it is.
    async fn connect(config: Config, settings: &Settings) -> Result<Self> {
        let patience = patience(settings);
        let base = format!("{{{}}}:", settings.namespace);
        let channel = SessionId::random().to_string();
        let hub = Arc::new(Subscriptions::new(&base, &channel));
        let quarantine = config.quarantine;
        if quarantine.is_none() && settings.ttl > UNKNOWN {
            let ttl = settings.ttl;
            tracing::warn!(
                "a lease of {ttl:?} may be granted to others before it is over, should the server lose its data: clients \
                 that do not know of it wait for {UNKNOWN:?}, unless their URLs have `quarantine={ttl:?}`"
            );
        }
        // A server that has lost its record assumes that no client had a lease longer than `unknown`. Therefore `quarantine=off` of
        // this client does not make `unknown` shorter.
        let unknown = settings.ttl.max(UNKNOWN).max(quarantine.unwrap_or_default());
        let client = Client::new(config, &base, unknown, Arc::clone(&hub), patience);
        let connections = Arc::new(Connections::new(client, settings, patience));
        let first = connections.first().await?;
        let sentinels = connections.link.sentinels.as_ref();
        let partition_overlap = first.topology.partition_overlap(sentinels.is_some(), settings.ttl);
        if let Some(sentinels) = sentinels {
            let connections = Arc::downgrade(&connections);
            sentinels.on_switch(move || {
                if let Some(connections) = connections.upgrade() {
                    tokio::spawn(async move { connections.look_again().await });
                }
            });
        }
        Ok(Self {
            sessions: OpenSessions::new(Arc::clone(&connections), channel),
            connections,
            hub,
            entries: OwnEntries::default(),
            updates: Arc::default(),
            reads: Reads::default(),
            server: first.server.clone(),
            partition_overlap,
            quarantine,
            patience,
        })
    }

    fn epoch(&self) -> u64 {
        *self.connections.epochs().borrow()
    }
}

#[async_trait]
impl Connect for Config {
    async fn connect(self: Box<Self>, settings: &Settings) -> Result<Arc<dyn Store>> {
        Ok(Arc::new(Redis::connect(*self, settings).await?))
    }
}

impl Store for Redis {
    fn scheme(&self) -> &'static str {
        DESCRIPTOR.name
    }

    fn characteristics(&self) -> Characteristics {
        Characteristics {
            scope: Scope::Hosts,
            liveness: Liveness::Lease,
            loss_detection: DESCRIPTOR.loss_detection,
            survives_restart: self.server.keeps,
            survives_power_loss: self.server.keeps,
            // Replication is asynchronous, so a replica that takes over may lack the newest writes.
            survives_failover: Durability::No,
            fifo: true,
            fencing_survives_data_loss: true,
            early_expiry: Some(self.server.early_expiry()),
            partition_overlap: self.partition_overlap,
            max_plain_name: 200,
            min_ttl: None,
        }
    }

    fn server_info(&self) -> ServerInfo {
        self.server.info.clone()
    }
}
