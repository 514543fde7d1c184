//! Sets up each store for the library's suite for stores (`coordination::suite`): a namespace of its own, and a proxy
//! in front of its server.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use coordination::Result;
use coordination::suite::{self, Mistake, StoreAccess};

use crate::checks::{Kind, Setting, shared_server, unique};
use crate::harness::{Direction, Mode, Proxy, Scratch, Server};

/// Runs the suite's check of this name on a store. If `mistake` is given, the store makes that deliberate mistake,
/// which some checks have to find.
///
/// # Errors
///
/// Errors of the store in calls that should succeed.
///
/// # Panics
///
/// If the check fails.
pub fn run(setting: impl Into<Setting>, check: &str, mistake: Option<Mistake>) -> Result<()> {
    let setting = setting.into();
    let backend = setting.backend;
    let access: Box<dyn StoreAccess> = match backend.kind() {
        Kind::Files => {
            let scratch = Scratch::new("suite");
            let url = format!("{}://{}", backend.name(), scratch.join("locks").display());
            Box::new(InThisProcess { url, _scratch: Some(scratch) })
        }
        Kind::InProcess => {
            let url = format!("{}://{}", backend.name(), unique());
            Box::new(InThisProcess { url, _scratch: None })
        }
        Kind::Server => Box::new(Served::new(shared_server(setting))),
    };
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).enable_all().build().expect("a runtime");
    runtime.block_on(suite::run(check, &*access, mistake))
}

/// Runs the suite's check of this name on the simulated store, with a deliberate mistake if one is given.
///
/// # Errors
///
/// Errors of the store in calls that should succeed.
///
/// # Panics
///
/// If the check fails.
pub fn simulated(check: &str, mistake: Option<Mistake>) -> Result<()> {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_time().start_paused(true).build().expect("a runtime");
    runtime.block_on(suite::simulated(check, mistake))
}

/// A store that runs within this process.
struct InThisProcess {
    url: String,
    _scratch: Option<Scratch>,
}

impl StoreAccess for InThisProcess {
    fn url(&self) -> String {
        self.url.clone()
    }
}

/// A store with a server, and a proxy in front of the server.
struct Served {
    // Declared before the server, so that it is dropped first.
    proxy: Proxy,
    server: Arc<dyn Server>,
    namespace: String,
    /// How many bytes had arrived from the client when the proxy began to hold requests back. With this number,
    /// `part` checks that a request has come since then.
    before: AtomicU64,
}

impl Served {
    fn new(server: Arc<dyn Server>) -> Self {
        let (proxy, before) = (server.proxy_to(0), AtomicU64::new(0));
        Self { proxy, server, namespace: unique(), before }
    }
}

impl StoreAccess for Served {
    fn url(&self) -> String {
        self.server.url(&self.server.authority(), &self.namespace)
    }

    fn proxy(&self) -> Option<&dyn suite::Proxy> {
        Some(self)
    }
}

impl suite::Proxy for Served {
    fn url(&self) -> String {
        self.server.url(&self.proxy.address().to_string(), &self.namespace)
    }

    fn hold(&self) {
        self.before.store(self.proxy.bytes(Direction::ToServer), Ordering::SeqCst);
        self.proxy.hold();
    }

    fn part(&self) {
        let kept = self.proxy.bytes(Direction::ToServer) - self.before.load(Ordering::SeqCst);
        assert!(kept > 0, "no request came that could be late");
        self.proxy.part();
    }

    fn let_go(&self) {
        self.proxy.let_go();
    }

    fn silence(&self) {
        self.proxy.set_both(Mode::Blackhole);
    }

    fn cut(&self) {
        self.proxy.refuse();
        self.proxy.reset_all();
    }

    fn heal(&self) {
        self.proxy.heal();
    }
}
