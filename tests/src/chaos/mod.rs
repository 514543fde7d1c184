//! Chaos: several client processes contend for a few names while a nemesis breaks what they need, and a
//! checker judges what they wrote down.
//!
//! * [`client`] is what a client process does: acquire, hold, ask all the time whether it is held, write to
//!   the `resource` under the token, let go; in all the ways in which a program may.
//! * [`nemesis`] makes of a seed the faults, their order and their length; `strike` carries them out.
//! * [`run`] starts all this, heals it in the end, looks for what is left behind, and lets
//!   `coordination-history` judge. A long run is made of rounds: each has a history of its own, which is judged
//!   and thrown away.
//!
//! The schedule of a seed is always the same; what happens within it is not, as processes and servers are
//! real. A round that fails keeps all it wrote.
//!
//! Two groups of clients work side by side, each on names of its own. What an operator does to the store by
//! hand may cost timed exclusion until it is noticed (the matrix says `FENCE`): that happens to the *spoiled*
//! group only. Its exclusion is not judged while it happens, and nobody's while a leader or all servers are
//! paused, where that breaks what timed exclusion rests on (`Cost::Untimed`). All else is, tokens above all.

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

/// A store under chaos.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Store {
    /// Which.
    pub backend: Backend,
    /// How many servers.
    pub nodes: usize,
}

impl Store {
    /// A directory.
    pub const FILE: Self = Self { backend: Backend::File, nodes: 0 };
    /// One etcd server.
    pub const ETCD: Self = Self { backend: Backend::Etcd, nodes: 1 };
    /// Three of them.
    pub const ETCD3: Self = Self { backend: Backend::Etcd, nodes: 3 };
    /// A Redis server that keeps what it answered.
    pub const REDIS: Self = Self { backend: Backend::Redis, nodes: 1 };
    /// A PostgreSQL server that keeps what it answered.
    pub const POSTGRES: Self = Self { backend: Backend::Postgres, nodes: 1 };
    /// A MariaDB server that keeps what it answered.
    pub const MYSQL: Self = Self { backend: Backend::Mysql, nodes: 1 };
    /// One Consul server.
    pub const CONSUL: Self = Self { backend: Backend::Consul, nodes: 1 };
    /// Three of them.
    pub const CONSUL3: Self = Self { backend: Backend::Consul, nodes: 3 };
    /// One ZooKeeper server.
    pub const ZOOKEEPER: Self = Self { backend: Backend::Zookeeper, nodes: 1 };
    /// Three of them.
    pub const ZOOKEEPER3: Self = Self { backend: Backend::Zookeeper, nodes: 3 };

    /// Those of this build.
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

    /// The lease, where there is one.
    const TTL: Duration = Duration::from_secs(2);
    /// Where a server takes more than a second to start, or several seconds to lead.
    const LONG_TTL: Duration = Duration::from_secs(6);

    /// By the name that the command line has for it.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|store| store.name() == name)
    }

    /// Its name on the command line: `file`, `etcd`, `etcd3`…
    pub fn name(self) -> String {
        let name = self.backend.name();
        if self.nodes > 1 { format!("{name}{}", self.nodes) } else { name.to_owned() }
    }

    /// What cargo needs to build it.
    fn feature(self) -> String {
        match self.has_server() {
            true => format!(" --features {}", self.backend.name()),
            false => String::new(),
        }
    }

    fn has_server(self) -> bool {
        self.nodes > 0
    }

    /// The lease, where there is one.
    fn ttl(self) -> Option<Duration> {
        let is_slow = self.backend == Backend::Zookeeper || self == Self::CONSUL3;
        self.has_server().then_some(if is_slow { Self::LONG_TTL } else { Self::TTL })
    }

    fn heartbeat(self) -> Duration {
        Duration::from_millis(if self.has_server() { 300 } else { 100 })
    }

    /// How long one attempt at a call may take (L4: a try asks once).
    fn attempt(self) -> Duration {
        let heartbeat = self.heartbeat();
        self.ttl().map_or(heartbeat, |ttl| bounds::attempt(heartbeat, ttl))
    }

    /// L5: how soon everything works again when nothing is broken any more.
    fn recovery(self) -> Duration {
        bounds::recovered(self.ttl())
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
