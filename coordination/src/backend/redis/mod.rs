//! `redis://host:6379/0`: many hosts, over one Redis server, the master that Sentinels name, or a cluster.
//!
//! # How it works
//!
//! Every step is one Lua script, and all keys of a namespace have one hash tag, `{<namespace>}:`. A session is a hash with the
//! moment of its end, by the namespace's own clock: that of the server, but it is never set back, and goes on from where it was
//! if the server's is. Entries stand in sorted sets of their queue, exclusive or shared, by their numbers. The text of an entry
//! stands with its session, so that it ends with it. An entry's number is one more than the last, which each heartbeat lifts to
//! the clock's time in microseconds; it is the fencing token. An uncontended lock costs one request, and one more to release,
//! and few commands within it: nothing is told in a queue's channel unless somebody has read or followed a queue lately, and
//! when an entry comes to a free lock it is not checked whether its session's lease is over, as its client knows that, and
//! earlier than the server.
//!
//! When an entry leaves, the script tells those whom the entry kept waiting, each on the channel of its process, and says
//! whether their turn has come, which spares them a request. A message may be lost: so waiters look themselves when the lease
//! of what they wait for may be over, and after each loss of a connection. A script that meets an expired session ends it. All
//! this goes over one connection per coordinator.
//!
//! A call that was given up may arrive after later ones, but only on a connection that was given up too. So each connection has
//! a number, and the scripts refuse what comes on an older one than the newest that was heard of for the session. When a server
//! comes back with older data, each client tells it which entries it knows, and the server removes all others of the client's
//! session.
//!
//! With Sentinels, a heartbeat counts if more than half of them name the server that it went to, as a Sentinel that is cut off
//! with an old master goes on naming that one. Where the server has `min-replicas-to-write`, heartbeats and grants count when
//! as many replicas have confirmed them. In a cluster a connection goes where the keys are, and each call names a key that
//! there never is: so a node refuses the call while the keys move, and stops no script half-way.
//!
//! # Guarantees
//!
//! Exclusion, order and tokens hold over crashes of clients, and over a restart of a server whose log is synced for each write
//! (`appendonly yes`, `appendfsync always`). Where grants may have died with a server or its data, nothing is granted for the
//! longest lease (*quarantine*). Whether grants may have been forgotten is told by the namespace's *record*, which stands with
//! its clock: whether there is a record, which server wrote it, since when that server is the master, whether its log had
//! everything, and for how long it is known to have forgotten nothing. The last is told by the clients with every call, by
//! their own clocks, as the server has none but its wall clock. Whether the log has everything is looked at now and then, as it
//! may be turned off at any time. Replication is asynchronous, so a fail-over may forget the newest grants: two may hold, if
//! the old master goes on for longer than the quarantine takes. Tokens go on rising over all that, also over loss of all data,
//! as long as the server's clock was not set back. Where that clock is set forward, sessions end early by as much: holders
//! learn it with their next heartbeat, and fencing covers the rest. A crashed holder is followed within its lease.
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
//! `rediss://` is TLS; `redis+unix:///path` is a socket, with the database as `db`. Otherwise the path is the
//! number of the database. Several hosts are tried in random order.
//!
//! * `sentinel`: the hosts are all Sentinels of a master with this name.
//! * `quarantine`: how far the record has to reach back, if not for the longest lease; or `off`.
//! * `ca`, `cert`, `key`: PEM files. Without `ca`, the system's certificates count.
//! * `server_name`: what the server's certificate says, if it is not the host.
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

/// Where no record is left of what was granted, leases are taken to have been no longer than this, unless the URL says so.
const UNKNOWN: Duration = Duration::from_secs(30);

/// What is known of the store before it is asked.
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
    /// Why two may hold while servers are cut off from each other, as they were set up at first.
    partition_overlap: Option<&'static str>,
    /// How far the record has to reach back before anything is granted; `None`: for the longest lease.
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
        // Counts for all clients: so it is not shorter if this one has `quarantine=off`.
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
            // Replication is asynchronous.
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
