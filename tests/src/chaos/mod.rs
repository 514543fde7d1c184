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
//! paused, as that breaks what timed exclusion rests on (`Cost::Untimed`). All else is, tokens above all.

mod carried;
pub mod client;
mod delay;
mod effects;
mod fleet;
pub mod nemesis;
mod operations;
mod report;
mod resource;
pub mod run;
mod sample;
mod site;
mod strike;
mod things;
mod turn;

pub use report::Summary;
pub use run::{Chaos, Outcome};

use std::time::Duration;

/// A store under chaos.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Store {
    /// A directory.
    File,
    /// One etcd server.
    Etcd,
    /// Three of them.
    Etcd3,
}

impl Store {
    /// By the name that the command line has for it.
    pub fn named(name: &str) -> Option<Self> {
        [Self::File, Self::Etcd, Self::Etcd3].into_iter().find(|store| store.name() == name)
    }

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Etcd => "etcd",
            Self::Etcd3 => "etcd3",
        }
    }

    /// The lease, where there is one.
    fn ttl(self) -> Option<Duration> {
        (self != Self::File).then_some(Duration::from_secs(2))
    }

    fn heartbeat(self) -> Duration {
        match self {
            Self::File => Duration::from_millis(100),
            Self::Etcd | Self::Etcd3 => Duration::from_millis(300),
        }
    }

    /// How long one attempt at a call may take (contract L4: a try asks once).
    fn attempt(self) -> Duration {
        let heartbeat = self.heartbeat();
        self.ttl().map_or(heartbeat, |ttl| heartbeat.min(ttl / 6))
    }

    /// L1: how soon what a dead process had is free.
    fn crash_release(self) -> Duration {
        self.ttl().map_or(Duration::from_millis(50), |ttl| ttl + Duration::from_secs(1))
    }

    /// L5: how soon everything works again when nothing is broken any more.
    fn recovery(self) -> Duration {
        2 * self.ttl().unwrap_or_default() + Duration::from_secs(5)
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
