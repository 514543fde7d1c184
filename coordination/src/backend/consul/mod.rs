//! `consul://host:8500/namespace`: many hosts, over Consul's HTTP interface.
//!
//! # How it works
//!
//! A session is one of Consul's, with a key for its member id. An entry is a key locked by the session,
//! `<namespace>/lock/<name>/<entry>`, which Consul deletes with the session; the index of Consul's log by which it
//! was created is its sequence number and its fencing token. One transaction locks it and reads the queue, so an
//! uncontended lock costs one request, and one more to release. A waiter asks for the key of the entry that blocks
//! it in a blocking query, which is answered when that key changes, then reads the queue once.
//!
//! Each blocking query has a connection for itself, and Consul allows 200 of one address. So a process has a handful
//! of them; who waits beyond that shares one over the names of all keys of the namespace.
//!
//! A queue's value is the key `<prefix>/.value`, locked by nobody, written on condition of its modification index, which is its
//! version. To write it only while there is no entry, a key `.closing` is put first, which every `enter` removes. Every
//! transaction that creates a key is made on condition that its member's key is unchanged. When a call was given up and may
//! arrive late, the member's key is put anew: the late call then has no effect.
//!
//! # Guarantees
//!
//! Exclusion, order and tokens hold over crashes, restarts, a change of the leader and loss of a minority. Consul ends a
//! session between one and two leases after its last heartbeat, so a crashed holder is followed within two leases. Sessions
//! have no health check: only their lease, or an operator, ends them. They belong to the agent that was connected to, and
//! end when that leaves the cluster; the cluster makes a server leave that it takes for dead, unless
//! `autopilot.cleanup_dead_servers` is off. After loss of all data tokens start again from 1.
//!
//! `consul lock` is another protocol: its key `.lock` may stand among ours, and neither minds the other.
//!
//! # Requirements
//!
//! Consul 1.8 or newer. A lease is not shorter than the servers' `session_ttl_min`, 10 s by default. With ACLs: write
//! for `key_prefix "<namespace>/"` and `session_prefix ""`, and read for `agent_prefix ""` if the
//! characteristics are to be known.
//!
//! # URL options
//!
//! `consul+https://` is TLS. Several hosts are agents of one datacenter, tried in random order. The path is the
//! namespace.
//!
//! * `ca`, `cert`, `key`: PEM files. Without `ca`, the system's certificates count.
//! * `server_name`: what the server's certificate says, if it is not the host.
//! * `token_file`: a file with the ACL token, instead of the URL's password: `consul://:token@host`.
//! * `dc`: the datacenter, if it is not the agent's own.
//! * `lock_delay`: how long a session's keys are kept from others when the session was ended by force, 0 to 60 s. Default: 0.

mod active_watches;
mod agent;
mod client;
mod config;
mod crowding;
mod entries;
mod entry;
mod error;
#[cfg(test)]
mod fuzz;
mod keys;
mod kv;
mod lock_delayed;
mod long_queue;
mod open_sessions;
mod pool;
mod request;
mod rights;
mod sessions;
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
use self::open_sessions::OpenSessions;
use self::txn::Transactions;
use super::Store;
use super::descriptor::{Connect, Descriptor};
use super::server::access;
use super::server::patience;
use super::server::reads::Reads;
use super::server::txn_kv::TxnKv;
use crate::characteristics::{Characteristics, Durability, Liveness, LossDetection, Scope};
use crate::config::Settings;
use crate::error::Result;
use crate::url::{Authority, UrlOption};

const LEAVING: &str = "Consul ends the sessions of an agent that leaves the cluster, as its autopilot makes servers do \
                       that it thinks dead";
/// How many keys a session's entries in a queue use in turn. Waiters that share a query are told the names of keys only, some
/// milliseconds apart. If an entry left and the next one of its session got the same key at once, that name would be in each
/// answer, and its waiters would miss the departure.
const KEYS_IN_TURN: usize = 16;
/// The longest that a query waits. If its answer is lost on the way, nobody notices before this time is over, and a waiter is
/// to be served within two seconds (`L2`).
const LONGEST_QUERY: Duration = Duration::from_secs(1);

/// What is known of the store before it is asked.
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
    agent: Agent,
}

impl Consul {
    /// Connects, and asks the agent about itself.
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
}
