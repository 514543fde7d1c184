//! An instance that fails and comes back, at another address each time.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::sleep;
use std::time::Duration;

use coordination_history::now;
use coordination_tests::harness::{Proxy, Server, wait_until};
use rustix::process::Signal;

use super::{Place, TIMES};
use crate::http::{Answer, Service, try_ask};
use crate::{LONG, Store};

const WORDS: &str = "--no-access-log --drain 500ms --long long/";

pub(crate) struct Instance {
    // Declared before the store, so that it has ended when a directory is removed.
    running: Mutex<Option<Service>>,
    store: Store,
    /// Its way to the store, if that has a server.
    pub(super) network: Option<Proxy>,
    /// Where it listens; empty while it is gone.
    at: Mutex<String>,
    /// How often it was started: it may come back at the address where it was.
    starts: AtomicU32,
    /// From when until when it could not answer, in nanoseconds; the last one may last.
    away: Mutex<Vec<(u64, u64)>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Instance {
    /// So many on this store, when they are ready.
    pub(super) fn start(place: &Place, count: usize) -> Vec<Self> {
        let instances: Vec<Self> = match place {
            Place::Directory => {
                let directory = Store::file();
                let urls = vec![directory.url.clone(); count - 1];
                let others = urls.into_iter().map(Store::at);
                // The last one has the directory, as it is the last to be dropped.
                others.chain([directory]).map(|store| Self::new(store, None)).collect()
            }
            Place::Server(server) => (0..count).map(|_| Self::by_network(&**server)).collect(),
        };
        instances.iter().for_each(Self::restart);
        for instance in &instances {
            assert!(wait_until(LONG, || instance.is_ready()), "not ready");
        }
        instances
    }

    /// One with a network of its own.
    fn by_network(server: &dyn Server) -> Self {
        let network = server.proxy_to(0);
        let url = server.url(&network.address().to_string(), "chaos");
        let joint = if url.contains('?') { '&' } else { '?' };
        Self::new(Store::at(format!("{url}{joint}{TIMES}")), Some(network))
    }

    fn new(store: Store, network: Option<Proxy>) -> Self {
        let (running, at, away) = (Mutex::default(), Mutex::default(), Mutex::default());
        Self { store, network, running, at, starts: AtomicU32::new(0), away }
    }

    fn restart(&self) {
        let service = Service::begin(&self.store, WORDS);
        // Before anybody finds it: it knows of nothing that was granted by the one before.
        self.starts.fetch_add(1, Ordering::SeqCst);
        lock(&self.at).clone_from(&service.native);
        *lock(&self.running) = Some(service);
    }

    pub(super) fn is_ready(&self) -> bool {
        self.ask("GET", "/readyz", "", LONG).is_ok_and(|answer| answer.status == 200)
    }

    /// Nobody is asked where it was: another instance may listen there by now.
    fn is_gone(&self) {
        lock(&self.at).clear();
    }

    /// Which of its starts was the last one.
    pub(super) fn start_number(&self) -> u32 {
        self.starts.load(Ordering::SeqCst)
    }

    /// Where it is now.
    fn at(&self) -> String {
        lock(&self.at).clone()
    }

    pub(super) fn ask(
        &self,
        method: &str,
        path: &str,
        body: &str,
        patience: Duration,
    ) -> io::Result<Answer> {
        try_ask(&self.at(), method, path, body, patience)
    }

    /// How much of the time between these moments it could not answer in.
    pub(super) fn away_between(&self, from: u64, to: u64) -> Duration {
        let away = lock(&self.away);
        let within = away.iter().map(|away| away.1.min(to).saturating_sub(away.0.max(from)));
        Duration::from_nanos(within.sum())
    }

    /// Does this, by which it cannot answer until it is over.
    fn away(&self, fault: impl FnOnce()) {
        lock(&self.away).push((now(), u64::MAX));
        fault();
        if let Some(last) = lock(&self.away).last_mut() {
            last.1 = now();
        }
    }

    /// Killed, and started again after a while.
    pub(super) fn is_killed(&self, length: Duration) {
        self.away(|| {
            *lock(&self.running) = None;
            self.is_gone();
            sleep(length);
            self.restart();
        });
    }

    /// Stopped in order, and started again.
    pub(super) fn is_stopped(&self, length: Duration) {
        self.away(|| {
            let mut service = lock(&self.running).take().expect("it runs");
            service.terminate();
            assert_eq!(service.process.code(), Some(0), "{}", service.written());
            self.is_gone();
            sleep(length);
            self.restart();
        });
    }

    /// Stands still for a while.
    pub(super) fn stands_still(&self, length: Duration) {
        self.away(|| {
            let signal = |signal| {
                lock(&self.running).as_ref().expect("it runs").process.signal(signal);
            };
            signal(Signal::STOP);
            sleep(length);
            signal(Signal::CONT);
        });
    }

    pub(super) fn heal(&self) {
        if let Some(network) = &self.network {
            network.heal();
            network.accept();
        }
    }
}
