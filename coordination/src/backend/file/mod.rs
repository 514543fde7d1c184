//! `file:///dir`: one host, no server.
//!
//! # How it works
//!
//! A queue is a file, `queues/lock.<name>`: a log of entries, and of a value where there is one, read and
//! appended to under a `flock` that is held for microseconds through a cached descriptor. What is history
//! goes when the log has become long. Its clock is the host's, since boot. A session is a file too,
//! `sessions/<id>`, which its process holds locked for as long as it lives. An entry counts while its
//! session's file is locked; so when a process dies the kernel frees its locks at once, and a process that
//! is paused keeps them. Waiters are woken by inotify: a change to the queue's file, or the
//! close of a session's, which the kernel does for a killed process too; a slow re-check stands behind it.
//!
//! Nothing is ever unlinked that somebody may hold: queue files stay (an inode per name ever used),
//! session files are removed under their own lock.
//!
//! # Guarantees
//!
//! Exclusion between all processes of the host, in the order of asking, without any clock: there is no
//! lease that could run out. A crash frees within 50 ms; a removed or replaced file is
//! noticed with the next heartbeat. Tokens are `max(last + 1, wall clock in µs)`, kept in the queue's
//! file; they survive loss of power with `durable=true` only. So do the versions of values.
//!
//! A process that is stopped in the few microseconds in which it holds a queue's `flock` holds up that
//! queue until it goes on or dies. A child forked without exec keeps its parent's session alive
//! after the parent's death, until it ends too.
//!
//! # Requirements
//!
//! Linux; a local file system (network ones are refused); a directory that belongs to the user
//! of all processes that share it. Its parent must exist.
//!
//! # URL options
//!
//! * `durable=true`: a grant waits until its token is on the disk, and a write until the value is. Default:
//!   false.
//! * `network_filesystem=allow`: do not refuse NFS and its like. Default: `refuse`.

mod config;
mod directory;
mod entries;
mod error;
#[cfg(test)]
mod fuzz;
mod header;
mod inotify;
mod liveness;
mod log;
mod queue;
mod session;
mod store;
#[cfg(test)]
mod tests;
mod values;
mod watch;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;

use self::config::Config;
use self::store::Store;
use crate::backend;
use crate::backend::descriptor::{Connect, Descriptor};
use crate::characteristics::{Characteristics, Durability, Liveness, LossDetection, Scope};
use crate::config::Settings;
use crate::error::{Error, LossReason, Result};
use crate::key::QueueKey;
use crate::url::UrlOption;

/// What is said of a file system that is shared between hosts.
const NETWORK: &str =
    "on a network file system a lock may end with its connection, and may not reach other hosts";

/// How long to wait for a queue's short lock before asking again.
const BUSY: Duration = Duration::from_millis(1);

/// What is known of the store before it is asked.
pub(super) static DESCRIPTOR: Descriptor = Descriptor {
    name: "file",
    options: &[UrlOption::shown("durable"), UrlOption::shown("network_filesystem")],
    namespace: |_| None,
    loss_detection: LossDetection::Heartbeat,
    is_in_process: false,
    parse: |url| Ok(Box::new(Config::parse(url)?)),
};

/// The backend: a directory.
pub(crate) struct FileStore {
    config: Config,
    namespace: String,
    /// Replaced when a session is opened after the directory was moved away.
    store: Mutex<Arc<Store>>,
}

impl FileStore {
    pub(crate) fn open(config: &Config, settings: &Settings) -> Result<Self> {
        let store = Store::open(config, &settings.namespace)?;
        Ok(Self {
            config: config.clone(),
            namespace: settings.namespace.clone(),
            store: Mutex::new(Arc::new(store)),
        })
    }

    fn store(&self) -> Arc<Store> {
        Arc::clone(&self.store.lock().unwrap_or_else(|poisoned| poisoned.into_inner()))
    }

    /// The store, opened anew if its directory is not where the URL says any more.
    fn store_in_place(&self) -> Result<Arc<Store>> {
        let mut store = self.store.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if !store.is_in_place() {
            *store = Arc::new(Store::open(&self.config, &self.namespace)?);
        }
        Ok(Arc::clone(&store))
    }

    /// Runs a step that writes what has to last.
    async fn change<T: Send + 'static>(
        &self,
        operation: &'static str,
        step: impl Fn(&Store) -> Option<Result<T>> + Send + 'static,
    ) -> Result<T> {
        let store = self.store();
        if !self.config.durable {
            return when_free(|| step(&store)).await;
        }
        // The disk takes milliseconds: not on the session's thread, where heartbeats run.
        let written = tokio::task::spawn_blocking(move || {
            loop {
                match step(&store) {
                    Some(outcome) => return outcome,
                    None => std::thread::sleep(BUSY),
                }
            }
        });
        written.await.unwrap_or_else(|_| Err(Error::lost(operation, LossReason::Closed)))
    }
}

/// Repeats a step until the queue's short lock was to be had.
async fn when_free<T>(mut step: impl FnMut() -> Option<Result<T>>) -> Result<T> {
    loop {
        match step() {
            Some(outcome) => return outcome,
            None => tokio::time::sleep(BUSY).await,
        }
    }
}

/// The names of the queues of this kind of which that is so, in order.
async fn names_where(
    store: &Store,
    kind: &'static str,
    is_so: impl Fn(&QueueKey) -> Option<Result<bool>>,
) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for key in store.keys(kind)? {
        if when_free(|| is_so(&key)).await? {
            names.push(key.name().to_owned());
        }
        // There may be thousands, and heartbeats run on this thread.
        tokio::task::yield_now().await;
    }
    Ok(names)
}

#[async_trait]
impl Connect for Config {
    async fn connect(self: Box<Self>, settings: &Settings) -> Result<Arc<dyn backend::Store>> {
        Ok(Arc::new(FileStore::open(&self, settings)?))
    }
}

impl backend::Store for FileStore {
    fn scheme(&self) -> &'static str {
        DESCRIPTOR.name
    }

    fn characteristics(&self) -> Characteristics {
        Characteristics {
            scope: Scope::Processes,
            liveness: Liveness::Process,
            loss_detection: DESCRIPTOR.loss_detection,
            survives_restart: Durability::NotApplicable,
            survives_power_loss: if self.config.durable { Durability::Yes } else { Durability::No },
            survives_failover: Durability::NotApplicable,
            fifo: true,
            fencing_survives_data_loss: true,
            early_expiry: self.store().is_on_network.then_some(NETWORK),
            max_plain_name: 200,
            min_ttl: None,
        }
    }
}
