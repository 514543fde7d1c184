//! `etcd://host:2379/namespace`: many hosts, over etcd's v3 API.
//!
//! # How it works
//!
//! A session is an etcd lease, with a key for its member id. An entry is a key under the session's lease,
//! `<namespace>/lock/<name>/<lease>`. The key's create revision is the entry's sequence number and its fencing token. One
//! transaction puts the key and reads the newest key before it, so an uncontended lock costs one request, and one more to
//! release.
//!
//! A waiter starts a watch on the key of the entry that blocks it, at the current revision, and then reads that key once, in case
//! it changed before the watch began. The watch could also start at the revision of the blocking entry, without that read. But
//! etcd serves a watch that starts at an older revision by a loop that runs only every 100 ms (`syncWatchersLoop` in etcd's
//! `mvcc`), which is why etcd's own lock hands over slowly.
//!
//! All watches share one stream, and a watch stays for a moment after its last waiter has gone. As keys are used again, there may
//! still be a watch on the blocker's key that began before the blocker was entered, because of an earlier entry with this key. Such
//! a watch has missed nothing, so the waiter need not read the key.
//!
//! The key of a shared entry has an `r` before the lease. So the keys of exclusive entries are a range of their own, in which a
//! shared entry finds the newest exclusive entry. All else about an entry is in its value, which an update puts anew: an entry
//! that was downgraded from exclusive to shared keeps its key, and its value says `"shared":true`. A queue's value is the key
//! `<namespace>/lock/<name>/!`, under no lease. It is written on condition that its modification revision, which is the value's
//! version, is unchanged. Observers of a queue share one watch on its prefix, and read the queue once for each message.
//!
//! `etcdctl lock <namespace>/lock/<name>` and Go's `concurrency.Mutex` on that prefix exclude our locks, and are excluded by our
//! locks. They put `<prefix>/<lease>` and wait for all older keys under the prefix, whatever their names. So a queue that they
//! share with us must have no value: they would wait until the value's key is gone.
//!
//! # Guarantees
//!
//! Exclusion, order and tokens hold over crashes, restarts, a change of the leader and loss of a minority. If a holder crashes, the
//! next waiter gets the lock within the lease and one second. Before 3.4.31 and 3.5.13 a leader that was paused may end leases
//! early (etcd-io/etcd#15247). Every holder watches its own key, so it learns at once if its lease was ended early. Until the
//! holder has learnt it, the fencing token protects the resource. After loss of all data, tokens start again from 1.
//!
//! # Requirements
//!
//! etcd 3.4 or newer. The user needs a role with read and write permission on the prefix `<namespace>/`: without one of these
//! permissions, connecting fails and the error names it. Building needs `protoc`.
//!
//! # URL options
//!
//! `etcds://` uses TLS, `etcd://` does not. The schemes `etcd3+https` and `etcd3+http` mean the same; these are the names that
//! OpenStack's Tooz uses. Several hosts are endpoints of one cluster, tried in random order. The path is the namespace.
//!
//! * `ca`, `cert`, `key`: PEM files. Without `ca`, the system's certificates are trusted.
//! * `server_name`: the name in the server's certificate, if it is not the host.
//! * `password_file`: a file with the password, instead of one in the URL.

mod active_watches;
mod client;
mod config;
mod entries;
mod entry;
mod error;
#[cfg(all(test, coordination_internals))]
mod fuzz;
mod keys;
mod origin;
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
use self::client::{Connections, Endpoints, early_expiry, status};
use self::config::Config;
use self::txn::Transactions;
use super::Store;
use super::server::access;
use super::server::patience;
use super::server::reads::Reads;
use super::server::txn_kv::TxnKv;
use crate::backend::descriptor::{Connect, Descriptor};
use crate::characteristics::{
    Characteristics, Durability, Liveness, LossDetection, Scope, ServerInfo,
};
use crate::config::Settings;
use crate::error::Result;
use crate::url::{Authority, UrlOption};

/// What is known of the store before connecting to it.
pub(super) static DESCRIPTOR: Descriptor = Descriptor {
    name: "etcd",
    options: &[
        UrlOption::hidden("ca"),
        UrlOption::hidden("cert"),
        UrlOption::hidden("key"),
        UrlOption::shown("server_name"),
        UrlOption::hidden("password_file"),
    ],
    authority: Authority::Hosts,
    namespace: access::path_namespace,
    loss_detection: LossDetection::Watch,
    is_in_process: false,
    parse: |url| Ok(Box::new(Config::parse(url)?)),
};

/// The backend: a namespace of a cluster.
pub(crate) struct Etcd {
    connections: Arc<Connections>,
    txn_kv: Arc<TxnKv<Transactions>>,
    watches: Watches,
    reads: Reads<i64>,
    early_expiry: Option<&'static str>,
    version: String,
}

impl Etcd {
    /// Connects, and asks for the server's version.
    async fn connect(config: Config, settings: &Settings) -> Result<Self> {
        let endpoints = Endpoints::new(&config, settings);
        let connections = Arc::new(Connections::new(endpoints, settings, patience(settings)));
        let status = connections.greet(status).await;
        let status = status.map_err(|error| error.at(&connections.shown()))?;
        if connections.link.may_be_refused() {
            rights::check(&connections, &format!("{}/", settings.namespace)).await?;
        }
        let store = Transactions(Arc::clone(&connections));
        Ok(Self {
            watches: Watches::new(Arc::clone(&connections)),
            // `1`: the lowest free key of a session is used again at once. etcd's index keeps every key that was ever put until
            // the next compaction, so few different keys should be used.
            txn_kv: Arc::new(TxnKv::new(store, &settings.namespace, keys::name_of, 1)),
            connections,
            reads: Reads::default(),
            early_expiry: early_expiry(status.version()),
            version: status.version().to_owned(),
        })
    }
}

#[async_trait]
impl Connect for Config {
    async fn connect(self: Box<Self>, settings: &Settings) -> Result<Arc<dyn Store>> {
        Ok(Arc::new(Etcd::connect(*self, settings).await?))
    }
}

impl Store for Etcd {
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
            early_expiry: self.early_expiry,
            partition_overlap: None,
            max_plain_name: 200,
            min_ttl: Some(Duration::from_secs(1)),
        }
    }

    fn server_info(&self) -> ServerInfo {
        ServerInfo { version: Some(self.version.clone()), clock_ahead_ms: None }
    }
}
