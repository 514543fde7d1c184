//! `memory://[name]`: sessions and queues in this process, for tests.
//!
//! # How it works
//!
//! All coordinators of this process whose URLs have the same name, and which have the same namespace, share one store: a map
//! under a mutex. The entries of a queue are in the order of their sequence numbers. A waiter listens to the entry that blocks
//! it.
//!
//! # Guarantees
//!
//! Exclusion between tasks and threads of this process; a lock is granted in the order in which they asked for it. A session lives
//! as long as its coordinator: there is no lease to run out, so a guard has no deadline. If
//! [`Lock::break_lock`](crate::Lock::break_lock) removes an entry, the entry's holder learns of that with the next heartbeat. A
//! token is at least the wall clock in microseconds, and larger than all earlier tokens.
//!
//! # Requirements
//!
//! None. The store runs on the caller's tokio runtime, if there is one. Its clock is tokio's: a test that pauses tokio's time
//! pauses the store's clock too.
//!
//! # URL options
//!
//! Only those that all stores have.

mod entries;
mod sessions;
mod store;
mod values;
mod watching;

use std::sync::Arc;

use async_trait::async_trait;

#[cfg(feature = "testing")]
pub(crate) use self::store::Store;
#[cfg(not(feature = "testing"))]
use self::store::Store;
use crate::backend;
use crate::backend::descriptor::{Connect, Descriptor};
use crate::characteristics::{Characteristics, Durability, Liveness, LossDetection, Scope};
use crate::config::Settings;
#[cfg(feature = "testing")]
use crate::error::ErrorKind;
use crate::error::{Error, Result};
use crate::url::{Authority, Url};

/// The store's name from the URL. Coordinators with the same name and the same namespace share a store.
pub(crate) struct Config {
    name: String,
}

impl Config {
    pub(crate) fn parse(url: &Url) -> Result<Self> {
        if url.user.is_some()
            || url.password.is_some()
            || !matches!(url.path.as_str(), "" | "/")
            || url.hosts.len() > 1
        {
            return Err(Error::config(
                "a memory URL is memory://name, or memory:// for the unnamed store",
            ));
        }
        let name = url.hosts.first().map(|host| host.name.clone()).unwrap_or_default();
        Ok(Self { name })
    }
}

/// What is known of the store before connecting to it.
pub(super) static DESCRIPTOR: Descriptor = Descriptor {
    name: "memory",
    options: &[],
    authority: Authority::Name,
    namespace: |_| None,
    loss_detection: LossDetection::Heartbeat,
    is_in_process: true,
    parse: |url| Ok(Box::new(Config::parse(url)?)),
};

/// The backend: a named store of this process.
pub(crate) struct Memory {
    store: Arc<Store>,
}

impl Memory {
    /// The store, for a call to it; an error if a test has made the store unreachable.
    fn reach(&self, operation: &'static str) -> Result<&Store> {
        #[cfg(feature = "testing")]
        if !self.store.is_reachable() {
            let message = "the store is out of reach, as the test has it";
            return Err(Error::new(ErrorKind::Unavailable, operation, message));
        }
        let _ = operation;
        Ok(&self.store)
    }

    pub(crate) fn new(config: &Config, settings: &Settings) -> Self {
        Self { store: store(&config.name, &settings.namespace) }
    }

    /// A store without a name, for a simulated world: no other coordinator can reach this store.
    #[cfg(coordination_internals)]
    pub(crate) fn unshared() -> Self {
        Self { store: Arc::new(Store::new()) }
    }
}

/// The store of this name and namespace. If no coordinator is connected to it, makes a new, empty one.
pub(crate) fn store(name: &str, namespace: &str) -> Arc<Store> {
    // A namespace has no NUL, so different pairs of name and namespace have different names here.
    Store::named(&format!("{name}\0{namespace}"))
}

#[async_trait]
impl Connect for Config {
    async fn connect(self: Box<Self>, settings: &Settings) -> Result<Arc<dyn backend::Store>> {
        Ok(Arc::new(Memory::new(&self, settings)))
    }
}

impl backend::Store for Memory {
    fn scheme(&self) -> &'static str {
        DESCRIPTOR.name
    }

    fn characteristics(&self) -> Characteristics {
        Characteristics {
            scope: Scope::Threads,
            liveness: Liveness::Process,
            loss_detection: DESCRIPTOR.loss_detection,
            survives_restart: Durability::NotApplicable,
            survives_power_loss: Durability::No,
            survives_failover: Durability::NotApplicable,
            fifo: true,
            fencing_survives_data_loss: true,
            early_expiry: None,
            partition_overlap: None,
            max_plain_name: usize::MAX,
            min_ttl: None,
        }
    }
}
