//! What a check runs on: a store of its own, clients of it, and the means to break it.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{LazyLock, OnceLock};
use std::time::Duration;

use coordination::{Builder, Coordinator, Lock, Result};
use serde_json::json;

use crate::harness::{Etcd, Proxy, Pulse, Scratch, Worker};

/// The lease asked for; etcd grants whole seconds.
const TTL: Duration = Duration::from_secs(2);
/// How long a request may take on top of what the contract says, and scheduling with it (2.11).
pub const SLACK: Duration = Duration::from_millis(200);

/// A store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// `memory://`
    Memory,
    /// `file://`
    File,
    /// `etcd://`
    Etcd,
}

impl Backend {
    /// What the stages on this store are called in the list of checks.
    pub fn stages(self) -> &'static [&'static str] {
        match self {
            Self::Memory => &["memory"],
            Self::File => &["file"],
            Self::Etcd => &["etcd", "own_etcd"],
        }
    }
}

/// The programs that a check may start; only a test target knows where they are.
#[derive(Clone, Copy, Debug)]
pub struct Programs {
    /// A client process under the test's command: `src/bin/worker`.
    pub worker: &'static str,
    /// A client that forks: `src/bin/forker.rs`.
    pub forker: &'static str,
}

/// An empty store, and what can be done to it.
#[derive(Debug)]
pub struct Stage {
    backend: Backend,
    url: String,
    namespace: String,
    programs: Programs,
    pulse: Pulse,
    // Before the server it leads to, so that it goes first.
    proxy: OnceLock<Proxy>,
    server: Option<Server>,
    scratch: Option<Scratch>,
}

/// Whose etcd it is.
#[derive(Debug)]
enum Server {
    /// For checks that leave the server itself alone; one for all tests of a process.
    Shared(&'static Etcd),
    /// For checks that pause it, kill it or compact its history.
    Own(Box<Etcd>),
}

impl Stage {
    /// A memory store.
    pub fn memory(programs: Programs) -> Self {
        let namespace = unique();
        Self::new(Backend::Memory, format!("memory://{namespace}"), namespace, programs)
    }

    /// A directory.
    pub fn file(programs: Programs) -> Self {
        let scratch = Scratch::new("stage");
        let url = format!("file://{}", scratch.join("locks").display());
        let stage = Self::new(Backend::File, url, "coordination".to_owned(), programs);
        Self { scratch: Some(scratch), ..stage }
    }

    /// A namespace on the server that the tests of this process share.
    pub fn etcd(programs: Programs) -> Self {
        static SHARED: LazyLock<Etcd> = LazyLock::new(Etcd::one);
        Self::on_etcd(Server::Shared(&SHARED), programs)
    }

    /// A server of its own, to be paused, killed or spoiled.
    pub fn own_etcd(programs: Programs) -> Self {
        Self::on_etcd(Server::Own(Box::new(Etcd::one())), programs)
    }

    fn on_etcd(server: Server, programs: Programs) -> Self {
        let namespace = unique();
        let url = format!("etcd://{}/{namespace}", server.etcd().authority());
        let stage = Self::new(Backend::Etcd, url, namespace, programs);
        Self { server: Some(server), ..stage }
    }

    fn new(backend: Backend, url: String, namespace: String, programs: Programs) -> Self {
        Self {
            backend,
            url,
            namespace,
            programs,
            pulse: Pulse::start(),
            proxy: OnceLock::new(),
            server: None,
            scratch: None,
        }
    }

    /// Which store it is.
    pub fn backend(&self) -> Backend {
        self.backend
    }

    /// The store's URL.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The store's URL for clients that are to be cut off by [`proxy`](Self::proxy).
    pub fn url_by_proxy(&self) -> String {
        format!("etcd://{}/{}", self.proxy().address(), self.namespace)
    }

    /// The lease that a session is granted; `None`: it lives as long as its process.
    pub fn ttl(&self) -> Option<Duration> {
        (self.backend == Backend::Etcd).then_some(TTL)
    }

    /// The time between heartbeats.
    pub fn heartbeat(&self) -> Duration {
        match self.backend {
            Backend::Memory | Backend::File => Duration::from_millis(100),
            Backend::Etcd => Duration::from_millis(250),
        }
    }

    /// How long one heartbeat may take.
    pub fn attempt_timeout(&self) -> Duration {
        self.heartbeat().min(TTL / 6)
    }

    /// How long after a holder's crash the next waiter is granted the lock (contract 2.11).
    pub fn crash_bound(&self) -> Duration {
        let bound = match self.backend {
            Backend::Memory => SLACK,
            Backend::File => Duration::from_millis(50) + SLACK,
            Backend::Etcd => TTL + Duration::from_secs(1) + SLACK,
        };
        bound + self.scheduling()
    }

    /// How long an entry that was removed may look held: the contract's T3.
    pub fn notice_bound(&self) -> Duration {
        let bound = match self.backend {
            Backend::Memory | Backend::File => self.heartbeat() + SLACK,
            Backend::Etcd => Duration::from_millis(50) + SLACK,
        };
        bound + self.scheduling()
    }

    /// What the machine has added to the time that anything takes: to be added to each bound.
    pub fn scheduling(&self) -> Duration {
        self.pulse.allowance(0, u64::MAX)
    }

    /// `fast` on stores within reach of a function call, `slow` over a network.
    pub fn rounds(&self, fast: usize, slow: usize) -> usize {
        match self.backend {
            Backend::Memory | Backend::File => fast,
            Backend::Etcd => slow,
        }
    }

    /// The settings of the stage's clients.
    pub fn settings(&self) -> Builder {
        Coordinator::builder().ttl(TTL).heartbeat(self.heartbeat())
    }

    /// A client.
    pub async fn connect(&self, member: &str) -> Result<Coordinator> {
        self.settings().member_id(member).connect(&self.url).await
    }

    /// A client that can be cut off.
    pub async fn connect_by_proxy(&self, member: &str) -> Result<Coordinator> {
        self.settings().member_id(member).connect(&self.url_by_proxy()).await
    }

    /// A client in a process of its own.
    pub fn worker(&self, member: &str) -> Worker {
        let worker = Worker::start(self.programs.worker, &self.url, &[]);
        worker.call(json!({
            "command": "connect",
            "member": member,
            "ttl_ms": millis(TTL),
            "heartbeat_ms": millis(self.heartbeat()),
        }));
        worker
    }

    /// Where the program that forks is.
    pub fn forker(&self) -> &'static str {
        self.programs.forker
    }

    /// The server.
    ///
    /// # Panics
    ///
    /// Where the store has none.
    pub fn server(&self) -> &Etcd {
        self.server.as_ref().expect("the check is listed for etcd only").etcd()
    }

    /// What stands between the server and the clients that connect by it.
    ///
    /// # Panics
    ///
    /// Where the store has no server.
    pub fn proxy(&self) -> &Proxy {
        self.proxy.get_or_init(|| Proxy::start(self.server().node(0).address()))
    }

    /// The store's directory.
    ///
    /// # Panics
    ///
    /// Where the store has none.
    pub fn directory(&self) -> PathBuf {
        let scratch = self.scratch.as_ref().expect("the check is listed for file only");
        scratch.join("locks")
    }

    /// The files of the sessions that are open.
    ///
    /// # Panics
    ///
    /// Where the store has no directory.
    pub fn session_files(&self) -> Vec<PathBuf> {
        let sessions = self.directory().join(&self.namespace).join("sessions");
        let files = fs::read_dir(sessions).expect("a client has made it");
        files.map(|file| file.expect("readable").path()).collect()
    }

    /// Who holds the lock and who waits, in order, as the store itself says: the keys on etcd, and the
    /// tokens elsewhere.
    pub async fn contenders(&self, lock: &Lock) -> Vec<String> {
        match self.backend {
            Backend::Etcd => self.keys("lock/"),
            Backend::Memory | Backend::File => {
                let holders = lock.holders().await.expect("the store is in reach");
                holders.iter().map(|contender| contender.token.to_string()).collect()
            }
        }
    }

    /// Ends the session of this member at the store, as an operator or a lapse of its lease would.
    ///
    /// # Panics
    ///
    /// On memory, and where the member has no session.
    pub fn end_session(&self, member: &str) {
        let ended = match self.backend {
            Backend::Memory => panic!("a session in memory ends with its coordinator only"),
            Backend::File => {
                let is_its = |file: &PathBuf| {
                    let note = fs::read_to_string(file).unwrap_or_default();
                    note.split_whitespace().nth(1) == Some(member)
                };
                let mut files = self.session_files().into_iter().filter(is_its);
                files.next().is_some_and(|file| fs::remove_file(file).is_ok())
            }
            Backend::Etcd => {
                let key = format!("{}/member/{member}", self.namespace);
                let id = self.server().administer(&["get", "--print-value-only", "--", &key]);
                i64::from_str_radix(id.trim(), 16).is_ok_and(|id| self.server().revoke_lease(id))
            }
        };
        assert!(ended, "no session of {member}");
    }

    /// The keys of the namespace that begin with `prefix`; on etcd.
    pub fn keys(&self, prefix: &str) -> Vec<String> {
        self.server().keys(&format!("{}/{prefix}", self.namespace))
    }
}

impl Server {
    fn etcd(&self) -> &Etcd {
        match self {
            Self::Shared(etcd) => etcd,
            Self::Own(etcd) => etcd,
        }
    }
}

fn millis(duration: Duration) -> u64 {
    duration.as_secs() * 1_000 + u64::from(duration.subsec_millis())
}

/// A name that no other test has, in this process or another.
fn unique() -> String {
    static LAST: AtomicU64 = AtomicU64::new(0);
    format!("check-{}-{}", std::process::id(), LAST.fetch_add(1, Ordering::Relaxed))
}
