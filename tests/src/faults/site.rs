//! Where a row takes place: a store, and what it promises about time.

use std::{path::Path, time::Duration};

use coordination::{Builder, Coordinator};

use super::Process;

/// What tests add to a bound for scheduling and round trips (contract 2.11).
pub const SCHEDULING: Duration = Duration::from_millis(200);
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
    /// How soon a lock is free after its holder's death.
    crash_release: Duration,
}

impl Site {
    /// A directory.
    pub fn file(directory: &Path, worker: impl Into<String>) -> Self {
        Self {
            url: format!("file://{}", directory.display()),
            worker: worker.into(),
            ttl: None,
            heartbeat: HEARTBEAT,
            crash_release: Duration::from_millis(50),
        }
    }

    /// The etcd at `authority`, with leases of `ttl`.
    pub fn etcd(authority: &str, ttl: Duration, worker: impl Into<String>) -> Self {
        Self {
            url: format!("etcd://{authority}"),
            worker: worker.into(),
            ttl: Some(ttl),
            heartbeat: HEARTBEAT,
            crash_release: ttl + Duration::from_secs(1),
        }
    }

    /// The same store by another way, a proxy for instance.
    pub fn at(&self, authority: impl std::fmt::Display) -> Self {
        Self { url: format!("etcd://{authority}"), ..self.clone() }
    }

    /// The same store, for clients with the library's own heartbeat interval.
    pub fn with_default_heartbeat(self) -> Self {
        Self { heartbeat: Duration::from_secs(1), ..self }
    }

    /// Contract L1: how soon after a holder's death the next waiter must have the lock, scheduling
    /// included.
    pub fn crash_release(&self) -> Duration {
        self.crash_release + SCHEDULING
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

/// Contract 2.3: how long after a heartbeat was sent a session with this lease may count on it.
pub fn deadline_after(ttl: Duration) -> Duration {
    ttl.mul_f64(0.995) - (ttl / 100).max(Duration::from_millis(10))
}
