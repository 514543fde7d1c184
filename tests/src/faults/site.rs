//! [`Site`]: a store for a fault row, and what it promises about time.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use coordination::{Builder, Coordinator};

use super::{Process, told};
use crate::bounds::SCHEDULING;
use crate::checks::Backend;
use crate::harness::{Proxy, Scratch, Server, Setup};

/// The heartbeat interval of clients in fault rows, unless [`Site::heartbeat`] is changed.
pub const HEARTBEAT: Duration = Duration::from_millis(300);

/// A store that a fault row breaks.
#[derive(Clone, Debug)]
pub struct Site {
    /// The store's URL.
    pub url: String,
    /// The worker's binary.
    pub worker: String,
    /// The lease that clients ask for and get; `None` if sessions live as long as their process.
    pub ttl: Option<Duration>,
    /// The heartbeat interval.
    pub heartbeat: Duration,
    server: Option<Arc<dyn Server>>,
    /// The directory of a store of files, if it is to be removed with the site.
    _scratch: Option<Arc<Scratch>>,
}

impl Site {
    /// A new store: `nodes` servers, or a directory that is removed with the site.
    pub fn start(backend: Backend, nodes: usize, worker: impl Into<String>) -> Self {
        if let Some(server) = backend.set_up(&Setup::of(nodes)) {
            return Self::on(server, worker);
        }
        let scratch = Scratch::new("faults");
        let site = Self::file(&scratch.join("locks"), worker);
        Self { _scratch: Some(Arc::new(scratch)), ..site }
    }

    /// The store in this directory.
    pub fn file(directory: &Path, worker: impl Into<String>) -> Self {
        Self {
            url: format!("file://{}", directory.display()),
            worker: worker.into(),
            ttl: None,
            heartbeat: HEARTBEAT,
            server: None,
            _scratch: None,
        }
    }

    /// The store of these servers, with the lease that the checks ask for.
    pub fn on(server: Arc<dyn Server>, worker: impl Into<String>) -> Self {
        told::begin();
        Self {
            url: server.url(&server.authority(), ""),
            worker: worker.into(),
            ttl: Some(server.ttl()),
            heartbeat: HEARTBEAT,
            server: Some(server),
            _scratch: None,
        }
    }

    /// The same store by another authority, a proxy's for instance.
    pub fn at(&self, authority: impl std::fmt::Display) -> Self {
        Self { url: self.server().url(&authority.to_string(), ""), ..self.clone() }
    }

    /// The same store through these proxies.
    pub fn by(&self, proxies: &[Proxy]) -> Self {
        let addresses: Vec<_> = proxies.iter().map(|proxy| proxy.address().to_string()).collect();
        self.at(addresses.join(","))
    }

    /// The same store by another authority, for clients that run another program.
    pub fn away(&self, authority: impl std::fmt::Display, worker: impl Into<String>) -> Self {
        Self { worker: worker.into(), ..self.at(authority) }
    }

    /// The same store, for clients that ask for another lease.
    pub fn with_ttl(&self, ttl: Duration) -> Self {
        Self { ttl: Some(ttl), ..self.clone() }
    }

    /// The same store with a further option in the URL, as in `name=value`.
    pub fn with_option(&self, option: &str) -> Self {
        let separator = if self.url.contains('?') { '&' } else { '?' };
        Self { url: format!("{}{separator}{option}", self.url), ..self.clone() }
    }

    /// The same store, for clients with another heartbeat interval.
    pub fn with_heartbeat(self, heartbeat: Duration) -> Self {
        Self { heartbeat, ..self }
    }

    /// The store's servers.
    ///
    /// # Panics
    ///
    /// If the store has none.
    pub fn server(&self) -> &dyn Server {
        &**self.server.as_ref().expect("the row is for servers")
    }

    /// Whether the store has servers.
    pub fn has_server(&self) -> bool {
        self.server.is_some()
    }

    /// A proxy to each server.
    pub fn proxies(&self) -> Vec<Proxy> {
        (0..self.server().nodes().len()).map(|index| self.server().proxy_to(index)).collect()
    }

    /// The store's name in output: `file`, `etcd`, `etcd ×3`.
    pub fn name(&self) -> String {
        match &self.server {
            None => "file".to_owned(),
            Some(server) => match server.nodes().len() {
                1 => server.scheme().to_owned(),
                nodes => format!("{} ×{nodes}", server.scheme()),
            },
        }
    }

    /// The lease of clients.
    ///
    /// # Panics
    ///
    /// If sessions of this store have none.
    pub fn lease(&self) -> Duration {
        self.ttl.expect("the row is for leases")
    }

    /// The entries of all locks; empty for a store without a server.
    pub fn entries(&self) -> Vec<String> {
        let entries = self.server.as_ref().map(|server| server.entries("coordination", "lock"));
        entries.unwrap_or_default()
    }

    /// The entry with this token.
    ///
    /// # Panics
    ///
    /// If there is no such entry.
    pub fn entry_of(&self, token: u64) -> String {
        let has_it = |entry: &String| self.server().token_of(entry) == token;
        self.entries().into_iter().find(has_it).expect("an entry has the token of its grant")
    }

    /// L1: how soon after a holder's death the next waiter must have the lock, with time for scheduling.
    pub fn crash_release(&self) -> Duration {
        let bound = match &self.server {
            Some(server) => server.crash_release(self.lease()),
            None => Duration::from_millis(50),
        };
        bound + SCHEDULING
    }

    /// T1: how long at most a session is valid after a heartbeat was sent.
    pub fn valid_for(&self) -> Duration {
        self.server().valid_for(self.lease(), self.heartbeat)
    }

    /// Starts a client process and connects it.
    pub fn process(&self, member: &str) -> Process {
        Process::connect(self, member)
    }

    /// Connects a client in this process.
    ///
    /// # Panics
    ///
    /// If the client cannot connect.
    pub async fn client(&self, member: &str) -> Coordinator {
        self.builder(member).connect(&self.url).await.expect("the store is there")
    }

    /// The settings of [`Site::client`].
    pub fn builder(&self, member: &str) -> Builder {
        let builder = Coordinator::builder().member_id(member).heartbeat(self.heartbeat);
        match self.ttl {
            Some(ttl) => builder.ttl(ttl),
            None => builder,
        }
    }
}
