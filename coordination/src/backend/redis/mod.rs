//! `redis://host:6379/0`: many hosts, over one Redis server, the master that Sentinels name, or a cluster.
//!
//! # How it works
//!
//! Each step of the protocol (`enter`, `leave`, `renew`, …) is one Lua script, and all keys of a namespace have one hash tag,
//! `{<namespace>}:`. A session is a hash that has the moment when its lease ends, by the namespace's own clock. That clock goes by
//! the server's, but is never set back: if the server's clock is set back, the namespace's clock goes on from where it was. The
//! entries of a queue are in two sorted sets, one for exclusive and one for shared entries, ordered by their numbers. The text of
//! an entry is in the session's hash, so that it ends with the session. An entry's number is one more than the last, and at least
//! the clock's time in microseconds; it is the fencing token.
//!
//! A lock that nobody else wants costs one request, and one more to release it. The script for it is short: it publishes nothing on
//! the queue's channel unless somebody has read or followed a queue lately; and it does not check whether the session's lease is
//! over, because the client checks that itself, and by an earlier deadline.
//!
//! When an entry leaves, the script notifies the entries that it blocked, each on the channel of the client that owns it. The
//! message says whether anything else blocks that entry; if nothing does, the client need not ask the server. A message may be
//! lost. So waiters also ask the server when the lease of the entry that they wait for may be over, and after each loss of a
//! connection. A script that comes across a session whose lease is over ends the session. All this goes over one connection per
//! coordinator.
//!
//! A call that was given up may arrive late. On the same connection, it still comes before all calls that are sent later. If the
//! connection was replaced after the call was sent, it may come after calls on the new one. So each connection has a number, and
//! the scripts reject calls of a session that come on an older connection than the newest that the session has used. When a server
//! comes back with older data, each client sends it the entries that it knows, and the server removes all other entries of the
//! client's session.
//!
//! With Sentinels, a heartbeat counts only if more than half of them name the server that answered it: a Sentinel that is cut off
//! together with an old master goes on naming that one. If the server has `min-replicas-to-write`, heartbeats and grants count only
//! when that many replicas have confirmed them. In a cluster, a connection goes to the node that has the keys. Each call also names
//! a key that never exists: so while the keys are being moved, a node refuses the whole call, instead of stopping the script
//! half-way.
//!
//! # Guarantees
//!
//! Exclusion, order and tokens hold over crashes of clients, and over a restart of a server whose log is synced for each write
//! (`appendonly yes`, `appendfsync always`). If the server may have forgotten grants, nothing is granted until the longest lease is
//! over (*quarantine*).
//!
//! Whether the server may have forgotten grants is known by the namespace's *record*, a hash that the server has next to the
//! namespace's clock: if there is no record, if another server wrote it, if the server was a replica since, or if its log may lack
//! something, grants may have been forgotten. The record also says for how long the server has certainly forgotten nothing (its
//! *reach*). The clients count the reach by their own clocks, because the server has only its wall clock, and send it with every
//! call. Whether the log is complete is checked now and then, because it may be turned off at any time.
//!
//! Replication is asynchronous, so a fail-over may forget the newest grants; two clients may then hold a lock, if the old master
//! goes on for longer than quarantine lasts. Tokens go on rising over all this, even after a loss of all data, as long as the
//! server's clock was not set back. If that clock is set forward, sessions end early by as much: holders learn it with their next
//! heartbeat, and fencing protects the resource until then. After a holder has crashed, the next waiter is granted the lock when
//! the holder's lease has run out.
//!
//! # Requirements
//!
//! Redis 6 or newer. The user needs the keys `~{<namespace>}:*`, the channels `&{<namespace>}:*` and the commands
//! `+info +subscribe +unsubscribe +publish +eval +evalsha +time` with `+@hash +@sortedset +@string +del +exists +pexpire`;
//! `+config|get` tells whether the log is synced, a cluster needs `+cluster|slots`, replicas that confirm `+wait`. Keys must
//! not be evicted: `maxmemory-policy noeviction`.
//!
//! # URL options
//!
//! `rediss://` uses TLS; `redis+unix:///path` is a socket, with the number of the database as the option `db`. Otherwise the path
//! is the number of the database. Several hosts are tried in random order.
//!
//! * `sentinel`: the hosts are Sentinels, of a master with this name.
//! * `quarantine`: for how long the server has to have forgotten nothing before it grants anything, if this is not to be the
//!   longest lease; or `off`.
//! * `ca`, `cert`, `key`: PEM files. Without `ca`, the certificates that the system trusts are used.
//! * `server_name`: the name in the server's certificate, if it is not the host.
//! * `password_file`: a file with the password, instead of one in the URL.

mod client;
mod config;
mod connection;
mod entries;
mod entry;
mod error;
#[cfg(test)]
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
use self::server::Server;
use super::{SessionId, Store};
use crate::backend::descriptor::{Connect, Descriptor};
use crate::backend::server::notifications::{Subscriptions, Told};
use crate::backend::server::patience;
use crate::backend::server::reads::Reads;
use crate::characteristics::{Characteristics, Durability, Liveness, LossDetection, Scope};
use crate::config::Settings;
use crate::error::Result;
use crate::url::{Authority, UrlOption};

/// If the server has lost its record, the leases that it has forgotten are taken to be no longer than this, unless the URL says
/// otherwise.
const UNKNOWN: Duration = Duration::from_secs(30);

/// What is known of the store before a connection is made.
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

/// The backend: a namespace of a server.
pub(crate) struct Redis {
    connections: Arc<Connections>,
    hub: Arc<Subscriptions>,
    sessions: OpenSessions,
    entries: OwnEntries,
    reads: Reads<Told>,
    /// The server as the first connection found it.
    server: Server,
    /// Why two clients may hold the same lock while servers are cut off from each other, as of the first connection; `None`: they
    /// cannot.
    partition_overlap: Option<&'static str>,
    /// For how long the server has to have forgotten nothing before it grants anything; `None`: for the longest lease.
    quarantine: Option<Duration>,
    /// Bounds one request inside `gone`.
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
        // The server applies this length to the leases of all clients, so it is not made shorter if this client has
        // `quarantine=off`.
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
}
