//! `consul://host:8500/namespace`: many hosts, over Consul's HTTP interface.
//!
//! # How it works
//!
//! A session is a session of Consul's. It locks one key for its member id, the *member's key*. An entry is a key that the session
//! has locked, `<namespace>/lock/<name>/<entry>`, which Consul deletes with the session. The index of Consul's log at which the
//! key was created is the entry's sequence number and its fencing token. One transaction locks the key and reads the queue, so an
//! uncontended lock costs one request, and one more to release. A waiter sends a blocking query for the key of the entry that
//! blocks it. Consul answers that query when the key changes, and then the waiter reads the queue once.
//!
//! Each blocking query needs a connection of its own, and Consul allows 200 connections from one address. So a process sends at
//! most two blocking queries for single keys or queues. All further waiters for an exclusive lock share one more query, for the
//! names of all keys of the namespace: if the key of a waiter's blocker is no longer among the names, the blocker is gone.
//! Observers, and waiters for a shared lock, read the store every 250 ms if those two queries are taken.
//!
//! A queue's value is the key `<namespace>/lock/<name>/.value`, which no session locks. It is written on condition that its
//! modification index, which is the value's version, is unchanged. Consul has no condition that a range of keys is empty. So a
//! write that must happen only while the queue has no entry begins with a transaction that puts a key `.closing` and reads the
//! queue. If the queue has no entry, the value is written on condition that `.closing` is unchanged. An `enter` that comes in
//! between finds the key `.closing` and deletes it, so that the write is refused.
//!
//! Every transaction that creates a key has the condition that the member's key of its session is unchanged. If a call was given
//! up and may still arrive late, the member's key is written anew: then Consul refuses the late call.
//!
//! # Guarantees
//!
//! Exclusion, order and tokens hold over crashes, restarts, a change of the leader and loss of a minority. Consul ends a session
//! between one and two leases after its last heartbeat, so if a holder crashes, the next waiter gets the lock within two leases.
//! Our sessions have no health check: normally only the end of the lease, or an operator, ends them. But Consul also ends a session
//! when the agent on which it was opened leaves the cluster. This includes a server that Consul's autopilot removes because the
//! server seems to be dead, unless `autopilot.cleanup_dead_servers` is off. After loss of all data, tokens start again from 1.
//!
//! The command `consul lock` uses another protocol. Its key `.lock` may be under the same prefix as our keys, but its locks and
//! ours do not exclude each other.
//!
//! # Requirements
//!
//! Consul 1.8 or newer. A lease is not shorter than the servers' `session_ttl_min`, 10 s by default. With ACLs, the token needs
//! the right `write` for `key_prefix "<namespace>/"` and for `session_prefix ""`. The right `read` for `agent_prefix ""` is
//! optional: without it, the characteristics do not say whether the store is durable and how short a lease may be.
//!
//! # URL options
//!
//! `consul+https://` uses TLS. Several hosts are agents of one datacenter, tried in random order. The path is the namespace.
//!
//! * `ca`, `cert`, `key`: PEM files. Without `ca`, the system's certificates are trusted.
//! * `server_name`: the name in the server's certificate, if it is not the host.
//! * `token_file`: a file with the ACL token, instead of the URL's password: `consul://:token@host`.
//! * `dc`: the datacenter, if it is not the agent's own.
//! * `lock_delay`: after a session was ended by force (its lease ran out, or an operator ended it), nobody else can lock its keys
//!   for this long, 0 to 60 s. Default: 0.

mod active_watches;
mod agent;
mod client;
mod config;
mod crowding;
mod entries;
mod entry;
mod error;
#[cfg(all(test, coordination_internals))]
mod fuzz;
mod keys;
mod kv;
mod lock_delayed;
mod long_queue;
mod older_data;
mod open_sessions;
mod pool;
mod request;
mod rights;
mod sessions;
#[cfg_attr(not(feature = "_tls"), path = "no_tls.rs")]
mod tls;
mod txn;
mod values;
mod watching;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use self::active_watches::Watches;
use self::agent::Agent;
use self::client::{Agents, Connections};
use self::config::Config;
use self::lock_delayed::Leftovers;
use self::long_queue::LongQueues;
use self::older_data::OlderData;
use self::open_sessions::OpenSessions;
use self::txn::Transactions;
use super::Store;
use super::descriptor::{Connect, Descriptor};
use super::server::access;
use super::server::patience;
use super::server::reads::Reads;
use super::server::txn_kv::TxnKv;
use crate::characteristics::{
    Characteristics, Durability, Liveness, LossDetection, Scope, ServerInfo,
};
use crate::config::Settings;
use crate::error::Result;
use crate::url::{Authority, UrlOption};

const LEAVING: &str = "Consul ends the sessions of an agent that leaves the cluster, as its autopilot makes servers do \
                       that it thinks dead";
/// A session's entries in a queue use at least this many keys in rotation, so that a key is not used again at once. Waiters that
/// share one query only get lists of the names of all keys, one list every few milliseconds. If an entry left and the session's
/// next entry got the same key at once, the key's name would be in every list, and the waiters would not notice that the first
/// entry has left.
const KEYS_IN_TURN: usize = 16;
/// The longest time that a blocking query waits at the server. If the answer is lost on the way, the waiter notices that only
/// after this time. So the time is short: a waiter has to get the lock within two seconds (`L2`).
const LONGEST_QUERY: Duration = Duration::from_secs(1);

/// What is known of the store before connecting to it.
pub(super) static DESCRIPTOR: Descriptor = Descriptor {
    name: "consul",
    options: &[
        UrlOption::hidden("ca"),
        UrlOption::hidden("cert"),
        UrlOption::hidden("key"),
        UrlOption::shown("server_name"),
        UrlOption::hidden("token_file"),
        UrlOption::shown("dc"),
        UrlOption::hidden("lock_delay"),
    ],
    authority: Authority::Hosts,
    namespace: access::path_namespace,
    loss_detection: LossDetection::Watch,
    is_in_process: false,
    parse: |url| Ok(Box::new(Config::parse(url)?)),
};

/// The backend: a namespace of a datacenter.
pub(crate) struct Consul {
    connections: Arc<Connections>,
    sessions: Arc<OpenSessions>,
    txn_kv: Arc<TxnKv<Transactions>>,
    long_queues: LongQueues,
    watches: Watches,
    reads: Reads<u64>,
    leftovers: Leftovers,
    older_data: OlderData,
    agent: Agent,
}

impl Consul {
    /// Connects, and reads the agent's configuration.
    async fn connect(config: Config, settings: &Settings) -> Result<Self> {
        let connections =
            Arc::new(Connections::new(Agents::new(&config), settings, patience(settings)));
        let agent = Agent::greet(&connections).await;
        let agent = agent.map_err(|error| error.at(&connections.shown()))?;
        let prefix = format!("{}/", settings.namespace);
        if config.access.has_password() {
            rights::check(&connections, &prefix).await?;
        }
        let sessions =
            OpenSessions::new(Arc::clone(&connections), prefix.clone(), config.lock_delay);
        let sessions = Arc::new(sessions);
        let store = Transactions::new(Arc::clone(&sessions));
        let txn_kv = Arc::new(TxnKv::new(store, &settings.namespace, keys::name_of, KEYS_IN_TURN));
        let longest = settings.ttl.min(LONGEST_QUERY);
        Ok(Self {
            leftovers: Leftovers::new(
                Arc::clone(&txn_kv),
                Arc::clone(&connections),
                format!("{prefix}member/"),
                config.lock_delay,
            ),
            watches: Watches::new(Arc::clone(&connections), prefix, longest),
            connections,
            sessions,
            txn_kv,
            long_queues: LongQueues::default(),
            reads: Reads::default(),
            older_data: OlderData::new(settings.ttl),
            agent,
        })
    }
}

#[async_trait]
impl Connect for Config {
    async fn connect(self: Box<Self>, settings: &Settings) -> Result<Arc<dyn Store>> {
        Ok(Arc::new(Consul::connect(*self, settings).await?))
    }
}

impl Store for Consul {
    fn scheme(&self) -> &'static str {
        DESCRIPTOR.name
    }

    fn characteristics(&self) -> Characteristics {
        let durable = match self.agent.is_in_memory {
            Some(true) => Durability::No,
            Some(false) => Durability::Yes,
            None => Durability::Unknown,
        };
        Characteristics {
            scope: Scope::Hosts,
            liveness: Liveness::Lease,
            loss_detection: DESCRIPTOR.loss_detection,
            survives_restart: durable,
            survives_power_loss: durable,
            survives_failover: Durability::Yes,
            fifo: true,
            fencing_survives_data_loss: false,
            early_expiry: Some(LEAVING),
            partition_overlap: None,
            max_plain_name: 200,
            min_ttl: self.agent.min_ttl,
        }
    }

    fn server_info(&self) -> ServerInfo {
        ServerInfo { version: self.agent.version.clone(), clock_ahead_ms: None }
    }
}
