//! Chaos: several client processes contend for a few names while a nemesis causes faults, and a checker checks the
//! history that they write.
//!
//! * [`client`] is the program of a client process: acquires, holds, asks `is_held` all the time, writes to the
//!   `resource` with the token, and releases, in all the ways in which a program can do that.
//! * [`nemesis`] computes the schedule of faults from a seed: kinds, order and length; `strike` causes the faults.
//! * [`run`] starts everything, repairs the faults at the end, looks for entries and sessions that are left, and has
//!   the history checked by `coordination-history`. A long run consists of rounds; each has a history of its own, which
//!   is deleted after its check.
//!
//! A seed always has the same schedule, but not the same course of events, because processes and servers are real. A
//! round that fails keeps its history and all other files.
//!
//! There are two groups of clients, each with names of its own. Some faults, by which an operator changes the store by
//! hand, may break timed exclusion until they are noticed (`FENCE` in the fault matrix). These faults are made only to
//! the *spoiled* group, whose timed exclusion is not checked during such a fault. No group's timed exclusion is checked
//! while a leader or all servers are paused, if that breaks an assumption of timed exclusion (`Cost::Untimed`).
//! Everything else is checked, above all tokens.

mod carried;
pub mod client;
mod delay;
mod effects;
mod fleet;
mod installation;
pub mod nemesis;
mod operations;
mod report;
mod resource;
pub mod run;
mod sample;
mod strike;
mod things;
mod turn;

pub use report::Summary;
pub use run::{Chaos, Outcome};

use std::time::Duration;

use crate::bounds;
use crate::checks::Backend;

/// A store for chaos.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Store {
    /// The store.
    pub backend: Backend,
    /// The number of servers; zero for a directory.
    pub nodes: usize,
}

impl Store {
    /// A directory.
    pub const FILE: Self = Self { backend: Backend::File, nodes: 0 };
    /// One etcd server.
    pub const ETCD: Self = Self { backend: Backend::Etcd, nodes: 1 };
    /// Three etcd servers.
    pub const ETCD3: Self = Self { backend: Backend::Etcd, nodes: 3 };
    /// A Redis server that loses no acknowledged write in a restart.
    pub const REDIS: Self = Self { backend: Backend::Redis, nodes: 1 };
    /// One PostgreSQL server.
    pub const POSTGRES: Self = Self { backend: Backend::Postgres, nodes: 1 };
    /// One MariaDB server.
    pub const MYSQL: Self = Self { backend: Backend::Mysql, nodes: 1 };
    /// One Consul server.
    pub const CONSUL: Self = Self { backend: Backend::Consul, nodes: 1 };
    /// Three Consul servers.
    pub const CONSUL3: Self = Self { backend: Backend::Consul, nodes: 3 };
    /// One ZooKeeper server.
    pub const ZOOKEEPER: Self = Self { backend: Backend::Zookeeper, nodes: 1 };
    /// Three ZooKeeper servers.
    pub const ZOOKEEPER3: Self = Self { backend: Backend::Zookeeper, nodes: 3 };

    /// The stores of this build.
    pub const ALL: &[Self] = &[
        Self::FILE,
        #[cfg(feature = "etcd")]
        Self::ETCD,
        #[cfg(feature = "etcd")]
        Self::ETCD3,
        #[cfg(feature = "redis")]
        Self::REDIS,
        #[cfg(feature = "postgres")]
        Self::POSTGRES,
        #[cfg(feature = "mysql")]
        Self::MYSQL,
        #[cfg(feature = "consul")]
        Self::CONSUL,
        #[cfg(feature = "consul")]
        Self::CONSUL3,
        #[cfg(feature = "zookeeper")]
        Self::ZOOKEEPER,
        #[cfg(feature = "zookeeper")]
        Self::ZOOKEEPER3,
    ];

    /// The lease of most stores.
    const TTL: Duration = Duration::from_secs(2);
    /// The lease of stores whose server takes more than a second to start, or several seconds to become leader.
    const LONG_TTL: Duration = Duration::from_secs(6);

    /// The store with this name on the command line.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|store| store.name() == name)
    }

    /// The store's name on the command line: `file`, `etcd`, `etcd3`…
    pub fn name(self) -> String {
        let name = self.backend.name();
        if self.nodes > 1 { format!("{name}{}", self.nodes) } else { name.to_owned() }
    }

    /// The option with which cargo builds in this store.
    fn feature(self) -> String {
        match self.has_server() {
            true => format!(" --features {}", self.backend.name()),
            false => String::new(),
        }
    }

    fn has_server(self) -> bool {
        self.nodes > 0
    }

    /// The lease, if the store has one.
    fn ttl(self) -> Option<Duration> {
        let is_slow = self.backend == Backend::Zookeeper || self == Self::CONSUL3;
        self.has_server().then_some(if is_slow { Self::LONG_TTL } else { Self::TTL })
    }

    fn heartbeat(self) -> Duration {
        Duration::from_millis(if self.has_server() { 300 } else { 100 })
    }

    /// L4: how long one attempt at a call may take.
    fn attempt(self) -> Duration {
        let heartbeat = self.heartbeat();
        self.ttl().map_or(heartbeat, |ttl| bounds::attempt(heartbeat, ttl))
    }

    /// L5: how soon everything works again after the last fault has ended.
    fn recovery(self) -> Duration {
        bounds::recovered(self.ttl())
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
