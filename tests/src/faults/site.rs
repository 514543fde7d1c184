//! Where a row takes place: a store, and what it promises about time.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use coordination::{Builder, Coordinator};

use super::{Process, told};
use crate::bounds::SCHEDULING;
use crate::checks::Backend;
use crate::harness::{Proxy, Scratch, Server, Setup};

/// The heartbeat interval of clients here, unless [`Site::heartbeat`] says otherwise.
pub const HEARTBEAT: Duration = Duration::from_millis(300);

/// A store to put faults to.
#[derive(Clone, Debug)]
pub struct Site {
    /// Its URL.
    pub url: String,
    /// The worker's binary.
    pub worker: String,
    /// The lease that clients ask for and get; none where it lives with the process.
    pub ttl: Option<Duration>,
    /// The heartbeat interval.
    pub heartbeat: Duration,
    server: Option<Arc<dyn Server>>,
    /// Where its files are, if they are to go with the site.
    _scratch: Option<Arc<Scratch>>,
}

impl Site {
    /// A store of its own: so many servers, or a directory that is gone with the site.
    pub fn start(backend: Backend, nodes: usize, worker: impl Into<String>) -> Self {
        if let Some(server) = backend.set_up(&Setup::of(nodes)) {
            return Self::on(server, worker);
        }
        let scratch = Scratch::new("faults");
        let site = Self::file(&scratch.join("locks"), worker);
        Self { _scratch: Some(Arc::new(scratch)), ..site }
    }

    /// A directory.
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

    /// These servers, with the lease that the checks ask for.
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

    /// The same store by another way, a proxy for instance.
    pub fn at(&self, authority: impl std::fmt::Display) -> Self {
        Self { url: self.server().url(&authority.to_string(), ""), ..self.clone() }
    }

    /// The same store by these proxies.
    pub fn by(&self, proxies: &[Proxy]) -> Self {
        let addresses: Vec<_> = proxies.iter().map(|proxy| proxy.address().to_string()).collect();
        self.at(addresses.join(","))
    }

    /// The same store by another way, for clients that are started in another way too.
    pub fn away(&self, authority: impl std::fmt::Display, worker: impl Into<String>) -> Self {
        Self { worker: worker.into(), ..self.at(authority) }
    }

    /// The same store, for clients with another lease.
    pub fn with_ttl(&self, ttl: Duration) -> Self {
        Self { ttl: Some(ttl), ..self.clone() }
    }

    /// The same store, for clients with an option more, as in `name=value`.
    pub fn with_option(&self, option: &str) -> Self {
        let separator = if self.url.contains('?') { '&' } else { '?' };
        Self { url: format!("{}{separator}{option}", self.url), ..self.clone() }
    }

    /// The same store, for clients with another heartbeat interval.
    pub fn with_heartbeat(self, heartbeat: Duration) -> Self {
        Self { heartbeat, ..self }
    }

    /// The servers.
    ///
    /// # Panics
    ///
    /// Where the store has none.
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

    /// What the store is called in what rows print: `file`, `etcd`, `etcd ×3`.
    pub fn name(&self) -> String {
        match &self.server {
            None => "file".to_owned(),
            Some(server) => match server.nodes().len() {
                1 => server.scheme().to_owned(),
                nodes => format!("{} ×{nodes}", server.scheme()),
            },
        }
    }

    /// The lease of a store that has them.
    ///
    /// # Panics
    ///
    /// Where it has none.
    pub fn lease(&self) -> Duration {
        self.ttl.expect("the row is for leases")
    }

    /// The entries of locks, as the store shows them; nothing where it has no server to ask.
    pub fn entries(&self) -> Vec<String> {
        let entries = self.server.as_ref().map(|server| server.entries("coordination", "lock"));
        entries.unwrap_or_default()
    }

    /// The entry with this token.
    ///
    /// # Panics
    ///
    /// When there is none.
    pub fn entry_of(&self, token: u64) -> String {
        let has_it = |entry: &String| self.server().token_of(entry) == token;
        self.entries().into_iter().find(has_it).expect("an entry has the token of its grant")
    }

    /// L1: how soon after a holder's death the next waiter must have the lock, scheduling included.
    pub fn crash_release(&self) -> Duration {
        let bound = match &self.server {
            Some(server) => server.crash_release(self.lease()),
            None => Duration::from_millis(50),
        };
        bound + SCHEDULING
    }

    /// How long at most a session may count on a heartbeat, from when that was sent: its deadline (T1).
    pub fn valid_for(&self) -> Duration {
        self.server().valid_for(self.lease(), self.heartbeat)
    }

    /// A client process, connected.
    pub fn process(&self, member: &str) -> Process {
        Process::connect(self, member)
    }

    /// A client in this process.
    ///
    /// # Panics
    ///
    /// When it cannot connect.
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
