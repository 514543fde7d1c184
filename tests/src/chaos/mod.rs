//! Chaos: several client processes contend for a few names while a nemesis causes faults. The clients write a history,
//! which a checker checks.
//!
//! * [`client`] is the program of a client process. It acquires objects, holds them, calls `is_held` all the time,
//!   writes to the `resource` with its token, and releases the objects. It does this in all the ways in which a program
//!   can.
//! * [`nemesis`] computes the schedule of faults from a seed: which faults happen, in which order, and for how long.
//!   `strike` causes the faults.
//! * `work` has the tasks that post items to a work queue, claim them and acknowledge them.
//! * [`run`] starts everything and repairs the faults at the end. Then it looks for entries and sessions that are left,
//!   and has `coordination-history` check the history. A long run consists of rounds. Each round has a history of its
//!   own, which is deleted after its check.
//!
//! The same seed always gives the same schedule, but not the same events, because processes and servers are real. If a
//! round fails, its history and all other files are kept.
//!
//! There are two groups of clients, and each has names of its own. Some faults are changes that an operator makes to
//! the store by hand. Until clients notice such a change, two of them may hold a lock at once (`FENCE` in the fault
//! matrix). Changes by hand are made only to the *spoiled* group. While such a fault lasts, the checker does not check
//! whether locks of the spoiled group overlap. Pausing a leader or all servers may break an assumption on which
//! exclusion relies (`Cost::Untimed`). While such a pause lasts, the checker does not check whether locks of any group
//! overlap. Everything else is always checked, in particular the tokens.

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
mod work;

pub use report::Summary;
pub use run::{Chaos, Outcome};

use std::time::Duration;

use crate::bounds;
use crate::checks::Backend;

/// A store on which chaos can run.
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

    /// The lease on most stores.
    const TTL: Duration = Duration::from_secs(2);
    /// The lease on stores whose server takes more than a second to start, or several seconds to become the leader.
    const LONG_TTL: Duration = Duration::from_secs(6);

    /// The store that has this name on the command line.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|store| store.name() == name)
    }

    /// The name of the store on the command line: `file`, `etcd`, `etcd3`…
    pub fn name(self) -> String {
        let name = self.backend.name();
        if self.nodes > 1 { format!("{name}{}", self.nodes) } else { name.to_owned() }
    }

    /// The option with which cargo includes this store in the build; empty if the store is always included.
    fn feature(self) -> String {
        match self.has_server() {
            true => format!(" --features {}", self.backend.name()),
            false => String::new(),
        }
    }

    fn has_server(self) -> bool {
        self.nodes > 0
    }

    /// The lease; `None` if the store has none.
    fn ttl(self) -> Option<Duration> {
        let is_slow = self.backend == Backend::Zookeeper || self == Self::CONSUL3;
        self.has_server().then_some(if is_slow { Self::LONG_TTL } else { Self::TTL })
    }

    fn heartbeat(self) -> Duration {
        Duration::from_millis(if self.has_server() { 300 } else { 100 })
    }

    /// L4: how long one attempt of a call may take.
    fn attempt(self) -> Duration {
        let heartbeat = self.heartbeat();
        self.ttl().map_or(heartbeat, |ttl| bounds::attempt(heartbeat, ttl))
    }

    /// L5: how long after the end of the last fault everything has to work again.
    fn recovery(self) -> Duration {
        bounds::recovered(self.ttl())
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
