//! [`TestStore`]: an empty store for one check, clients of it, and the means to break it.

use std::collections::BTreeMap;
use std::fs;
use std::panic::Location;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use coordination::{Builder, Coordinator, FencingToken, Lock, Result};
use serde_json::json;
use tokio::time::timeout;

use super::{Backend, Kind, Setting, settings};
use crate::bounds::{self, PATIENCE, SCHEDULING};
use crate::harness::{Connecting, Named, Proxy, SchedulerLag, Scratch, Server, Worker};

/// The lease that clients ask for on stores that have no leases.
const TTL: Duration = Duration::from_secs(2);

/// How often waiters look where nothing tells them of a change (`docs/backends/file.md`).
const POLL: Duration = Duration::from_millis(50);

/// The checks that have more than four sessions in one process, each with its number of sessions. Each session needs
/// ten file descriptors.
const MANY_SESSIONS: &[(&str, u64)] = &[
    ("s8_namespaces_and_prefixes_are_apart", 5),
    ("s8_urls_are_apart", 8),
    ("l2_every_waiter_is_served", 5),
    ("br2_together_in_and_out", 6),
    ("e2_observers_see_terms_rise", 6),
    ("hr1_many_agree", 8),
];

/// The programs that a check may start. Only a test target knows their paths.
#[derive(Clone, Copy, Debug)]
pub struct Programs {
    /// A client process that executes commands of the test: `src/bin/worker`.
    pub worker: &'static str,
    /// A client that forks: `src/bin/forker.rs`.
    pub forker: &'static str,
}

/// An empty store, and what a check can do to it.
#[derive(Debug)]
pub struct TestStore {
    setting: Setting,
    url: String,
    namespace: String,
    programs: Programs,
    lag: SchedulerLag,
    // Declared before the server, so that it is dropped first.
    proxy: OnceLock<Proxy>,
    server: Option<Arc<dyn Server>>,
    /// The host name by which clients reach the servers, in the setting `named`.
    named: Option<Named>,
    // Declared before the directory that its threads use, so that it is dropped first.
    _connecting: Option<Connecting>,
    scratch: Option<Scratch>,
}

impl TestStore {
    /// A store with a namespace of its own. If the store has a server, other tests of this process use the server too.
    pub fn shared(setting: impl Into<Setting>, programs: Programs) -> Self {
        let setting = setting.into();
        match setting.backend.kind() {
            Kind::Files => Self::in_directory(setting, programs),
            Kind::InProcess => {
                let namespace = unique();
                let url = format!("{}://{namespace}", setting.backend.name());
                Self::new(setting, url, namespace, programs)
            }
            Kind::Server => Self::on(setting, shared_server(setting), programs),
        }
    }

    /// A store with a server that no other test uses, which the check may pause, kill or damage.
    pub fn own(setting: impl Into<Setting>, programs: Programs) -> Self {
        let setting = setting.into();
        match setting.set_up() {
            Some(server) => Self::on(setting, server, programs),
            None => Self::shared(setting, programs),
        }
    }

    fn in_directory(setting: Setting, programs: Programs) -> Self {
        let scratch = Scratch::new("store");
        let url = format!("{}://{}", setting.backend.name(), scratch.join("locks").display());
        let is_crowded = setting == settings::FILE_CONNECTING;
        let connecting = is_crowded.then(|| Connecting::start(&url, Duration::from_millis(100)));
        let store = Self::new(setting, url, "coordination".to_owned(), programs);
        Self { _connecting: connecting, scratch: Some(scratch), ..store }
    }

    fn on(setting: Setting, server: Arc<dyn Server>, programs: Programs) -> Self {
        let namespace = unique();
        let ports = || server.nodes().iter().map(|node| node.address().port()).collect::<Vec<_>>();
        let named = setting.is_named().then(|| Named::new(1, &ports()));
        let url = server.url(&authority(&*server, named.as_ref()), &namespace);
        let store = Self::new(setting, url, namespace, programs);
        Self { server: Some(server), named, ..store }
    }

    fn new(setting: Setting, url: String, namespace: String, programs: Programs) -> Self {
        Self {
            setting,
            url,
            namespace,
            programs,
            lag: SchedulerLag::start(),
            proxy: OnceLock::new(),
            server: None,
            named: None,
            _connecting: None,
            scratch: None,
        }
    }

    /// Which store it is.
    pub fn backend(&self) -> Backend {
        self.setting.backend
    }

    /// Which store it is, in which setting.
    pub fn setting(&self) -> Setting {
        self.setting
    }

    /// How many file descriptors the process of this check may have; `None`: there is no limit.
    pub fn descriptors(&self, check: &str) -> Option<u64> {
        let sessions =
            MANY_SESSIONS.iter().find(|(many, _)| *many == check).map_or(4, |many| many.1);
        (self.setting == settings::FILE_FEW_DESCRIPTORS).then_some(16 * sessions)
    }

    /// Whether the library does without what only Linux has.
    pub fn is_plain(&self) -> bool {
        self.setting == settings::FILE_PLAIN
    }

    /// The store's URL.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The store's URL through [`proxy`](Self::proxy), for clients that are to be cut off.
    pub fn url_by_proxy(&self) -> String {
        self.server().url(&self.proxy().address().to_string(), &self.namespace)
    }

    /// The store's URL without a namespace, for clients that choose theirs by their settings.
    pub fn url_of_all(&self) -> String {
        match &self.server {
            Some(server) => server.url(&authority(&**server, self.named.as_ref()), ""),
            None => self.url.clone(),
        }
    }

    /// URLs of other stores of the same kind: each differs from [`url`](Self::url), and from the others, in a part that
    /// distinguishes stores.
    pub fn other_urls(&self) -> Vec<String> {
        let with = |ending: &str| format!("{}{ending}", self.url);
        match &self.server {
            Some(server) => {
                let authority = authority(&**server, self.named.as_ref());
                server.other_urls(&authority, &self.namespace)
            }
            // The URL has a name or a directory, of which every character matters.
            None => {
                vec![
                    with(":1"),
                    with(":2"),
                    with("%20"),
                    with("a"),
                    with("A"),
                    with("?namespace=a"),
                ]
            }
        }
    }

    /// The store's URL with a further option.
    pub fn url_with(&self, option: &str) -> String {
        with_option(&self.url, option)
    }

    /// The lease that sessions are granted; `None` if they have none and live as long as their process.
    pub fn ttl(&self) -> Option<Duration> {
        self.server.as_ref().map(|server| server.ttl())
    }

    fn ttl_asked_for(&self) -> Duration {
        self.ttl().unwrap_or(TTL)
    }

    /// The heartbeat interval of clients.
    pub fn heartbeat(&self) -> Duration {
        match &self.server {
            Some(server) => server.heartbeat(),
            None => Duration::from_millis(100),
        }
    }

    /// How long one heartbeat may take.
    pub fn attempt_timeout(&self) -> Duration {
        bounds::attempt(self.heartbeat(), self.ttl_asked_for())
    }

    /// L1: how long after a holder's crash the next waiter is granted the lock.
    pub fn crash_bound(&self) -> Duration {
        let bound = match &self.server {
            Some(server) => server.crash_release(server.ttl()),
            None if self.backend().is_in_process() => Duration::ZERO,
            None if self.is_plain() => 2 * POLL,
            None => Duration::from_millis(50),
        };
        bound + SCHEDULING + self.scheduling()
    }

    /// How long after a release, at most, a waiter looks whether it has the lock: zero where a release wakes it.
    pub fn poll(&self) -> Duration {
        match &self.server {
            Some(server) => server.poll(),
            None if self.is_plain() => POLL,
            None => Duration::ZERO,
        }
    }

    /// Whether a process knows which boot of its host it is in. Only then does a clock since boot outlive the process.
    pub fn knows_the_boot(&self) -> bool {
        !self.is_plain()
    }

    /// T3: how long a guard whose entry was removed may claim to be held.
    pub fn notice_bound(&self) -> Duration {
        self.told_bound(|server| server.notice(server.heartbeat()))
    }

    /// T3: how long a guard whose session was [ended](Self::end_session) may claim to be held.
    pub fn end_notice_bound(&self) -> Duration {
        self.told_bound(|server| server.notice_of_end(server.heartbeat()))
    }

    fn told_bound(&self, of: impl Fn(&dyn Server) -> Duration) -> Duration {
        let bound = self.server.as_deref().map_or_else(|| self.heartbeat(), of);
        bound + SCHEDULING + self.scheduling()
    }

    /// What to add to each bound for the processor time that the machine has withheld.
    pub fn scheduling(&self) -> Duration {
        self.lag.allowance(0, u64::MAX)
    }

    /// Awaits `work`, whose duration a clause [bounds](bounds), and asserts that it took no longer than `bound`,
    /// apart from time that the machine withheld.
    ///
    /// # Panics
    ///
    /// If the work took longer.
    ///
    /// # Cancel safety
    ///
    /// That of `work`.
    #[track_caller]
    pub fn within<F: Future>(
        &self,
        bound: Duration,
        work: F,
    ) -> impl Future<Output = F::Output> + use<'_, F> {
        let caller = Location::caller();
        async move {
            let start = Instant::now();
            let done = timeout(bound + PATIENCE, work).await;
            let took = start.elapsed();
            let bound = bound + SCHEDULING + self.scheduling();
            match done {
                Ok(done) if took <= bound => done,
                _ => panic!("{took:?}, and {bound:?} is the bound: the work at {caller}"),
            }
        }
    }

    /// Whether clients reach the store over a network, and not by function calls.
    pub fn has_server(&self) -> bool {
        self.server.is_some()
    }

    /// `fast` for stores that clients reach by function calls, `slow` for those over a network.
    pub fn rounds(&self, fast: usize, slow: usize) -> usize {
        if self.has_server() { slow } else { fast }
    }

    /// Whether the store has a clock of its own, which clients read along with each queue.
    pub fn has_clock(&self) -> bool {
        self.server.as_ref().map_or(!self.is_plain(), |server| server.has_clock())
    }

    /// The settings of clients.
    pub fn settings(&self) -> Builder {
        Coordinator::builder().ttl(self.ttl_asked_for()).heartbeat(self.heartbeat())
    }

    /// A client with this member id.
    pub async fn connect(&self, member: &str) -> Result<Coordinator> {
        self.settings().member_id(member).connect(&self.url).await
    }

    /// A client that [`proxy`](Self::proxy) can cut off.
    pub async fn connect_by_proxy(&self, member: &str) -> Result<Coordinator> {
        self.settings().member_id(member).connect(&self.url_by_proxy()).await
    }

    /// A client in a process of its own.
    pub fn worker(&self, member: &str) -> Worker {
        self.worker_with(member, &[])
    }

    /// [`worker`](Self::worker), with additional environment variables.
    pub fn worker_with(&self, member: &str, environment: &[(&str, &str)]) -> Worker {
        let worker = Worker::start(self.programs.worker, &self.url, environment);
        worker.call(json!({
            "command": "connect",
            "member": member,
            "ttl_ms": millis(self.ttl_asked_for()),
            "heartbeat_ms": millis(self.heartbeat()),
        }));
        worker
    }

    /// The path of the program that forks.
    pub fn forker(&self) -> &'static str {
        self.programs.forker
    }

    /// The store's server.
    ///
    /// # Panics
    ///
    /// If the store has none.
    pub fn server(&self) -> &dyn Server {
        &**self.server.as_ref().expect("the check is listed for servers only")
    }

    /// If there is a server, removes the history that the server may forget, and then restarts the server.
    pub fn restart(&self) {
        if let Some(server) = &self.server {
            server.forget_history();
            server.node(0).restart();
            server.wait_ready();
        }
    }

    /// The proxy between the server and the clients that connect by it.
    ///
    /// # Panics
    ///
    /// If the store has no server.
    pub fn proxy(&self) -> &Proxy {
        self.proxy.get_or_init(|| self.server().proxy_to(0))
    }

    /// The store's directory.
    ///
    /// # Panics
    ///
    /// If the store has none.
    pub fn directory(&self) -> PathBuf {
        let scratch = self.scratch.as_ref().expect("the check is listed for file only");
        scratch.join("locks")
    }

    /// The files of all open sessions.
    ///
    /// # Panics
    ///
    /// If the store has no directory.
    pub fn session_files(&self) -> Vec<PathBuf> {
        let sessions = self.directory().join(&self.namespace).join("sessions");
        let files = fs::read_dir(sessions).expect("a client has made it");
        files.map(|file| file.expect("readable").path()).collect()
    }

    /// The holder and the waiters of a lock, as the store has them: the entries, or, for a store without a server,
    /// their tokens.
    pub async fn contenders(&self, lock: &Lock) -> Vec<String> {
        match &self.server {
            Some(_) => self.entries("lock"),
            None => {
                let holders = lock.holders().await.expect("the store is in reach");
                holders.iter().map(|contender| contender.token.to_string()).collect()
            }
        }
    }

    /// The entries of all queues of this kind, on a store with a server.
    pub fn entries(&self, kind: &str) -> Vec<String> {
        self.server().entries(&self.namespace, kind)
    }

    /// The entry with this token, on a store with a server.
    ///
    /// # Panics
    ///
    /// If there is no such entry.
    pub fn entry(&self, kind: &str, token: FencingToken) -> String {
        let entries = self.entries(kind);
        let has_it = |entry: &&String| self.server().token_of(entry) == token.value();
        entries.iter().find(has_it).unwrap_or_else(|| panic!("no {token} in {entries:?}")).clone()
    }

    /// Writes keys that are no entries among the entries of the only group, as another program might do. Returns
    /// these keys.
    pub fn put_strangers(&self) -> Vec<String> {
        self.server().put_strangers(&self.namespace)
    }

    /// How many members whose id begins with `begin` have a session at the store.
    pub fn sessions(&self, begin: &str) -> usize {
        let members = match self.backend().kind() {
            Kind::Files => self.session_files().iter().map(|file| member_of(file)).collect(),
            // In memory there are no sessions apart from the coordinators.
            Kind::InProcess => Vec::new(),
            Kind::Server => self.server().members(&self.namespace),
        };
        members.iter().filter(|member| member.starts_with(begin)).count()
    }

    /// Ends a member's session at the store, as an operator or the end of its lease would end it.
    ///
    /// # Panics
    ///
    /// In memory, and if the member has no session.
    pub fn end_session(&self, member: &str) {
        let ended = match self.backend().kind() {
            Kind::Files => {
                let files = self.session_files();
                let file = files.iter().find(|file| member_of(file) == member);
                file.is_some_and(|file| fs::remove_file(file).is_ok())
            }
            Kind::InProcess => panic!("a session in memory ends with its coordinator only"),
            Kind::Server => {
                let session = self.server().session_of_member(&self.namespace, member);
                session.is_some_and(|session| self.server().end_session(&session))
            }
        };
        assert!(ended, "no session of {member}");
    }

    /// Ends a member's session on any store; in memory, by stopping the member's client.
    ///
    /// # Errors
    ///
    /// Errors of the stop.
    ///
    /// # Panics
    ///
    /// If the member has no session.
    pub fn lose(
        &self,
        coordinator: &Coordinator,
        member: &str,
    ) -> impl Future<Output = Result<()>> + use<> {
        let stopping = self.backend().is_in_process().then(|| coordinator.clone());
        if stopping.is_none() {
            self.end_session(member);
        }
        async move {
            match stopping {
                Some(coordinator) => coordinator.stop().await,
                None => Ok(()),
            }
        }
    }
}

/// The server that the tests of this process share.
pub(crate) fn shared_server(setting: impl Into<Setting>) -> Arc<dyn Server> {
    static SHARED: Mutex<BTreeMap<Setting, Arc<dyn Server>>> = Mutex::new(BTreeMap::new());
    let setting = setting.into();
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    let start = || setting.set_up().expect("a store with a server");
    Arc::clone(shared.entry(setting).or_insert_with(start))
}

/// The authority of a server's URL: its addresses, or the host name that leads to them.
fn authority(server: &dyn Server, named: Option<&Named>) -> String {
    let authority = server.authority();
    named.map_or_else(|| authority.clone(), |named| named.authority(&authority))
}

/// The member id in a session's file.
fn member_of(file: &Path) -> String {
    let note = fs::read_to_string(file).unwrap_or_default();
    note.split_whitespace().nth(1).unwrap_or_default().to_owned()
}

/// A URL with a further option.
pub fn with_option(url: &str, option: &str) -> String {
    let joint = if url.contains('?') { '&' } else { '?' };
    format!("{url}{joint}{option}")
}

fn millis(duration: Duration) -> u64 {
    duration.as_secs() * 1_000 + u64::from(duration.subsec_millis())
}

/// A name that no other test uses, in this process or another.
pub(crate) fn unique() -> String {
    static LAST: AtomicU64 = AtomicU64::new(0);
    format!("check-{}-{}", std::process::id(), LAST.fetch_add(1, Ordering::Relaxed))
}
