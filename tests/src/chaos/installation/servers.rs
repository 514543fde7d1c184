//! The servers of a store. Between each client and each node there is a proxy, which causes the faults of the network.

use std::{fmt::Debug, path::Path, time::Duration};

use rand::{RngExt, rngs::StdRng, seq::IndexedRandom};

use super::super::{Store, nemesis::Fault, things::Group};
use crate::{
    checks::Backend,
    harness::{Proxy, Server, wait_until},
};

/// How long the servers may take until they work again.
pub(super) const READY: Duration = Duration::from_secs(20);

/// The kinds of queues from which an operator may delete entries.
const KINDS: [&str; 4] = ["lock", "semaphore", "limiter", "election"];

/// What differs between stores under chaos. Everything else is the same for every [`Server`].
pub(in super::super) trait Own: Debug + Send + Sync {
    fn server(&self) -> &dyn Server;

    /// The directory that has the store's data and logs.
    fn data(&self) -> &Path;

    /// Causes a fault that only this store has, and keeps it up for this long.
    fn strike(&self, fault: Fault, length: Duration);

    /// Ends what [`strike`](Self::strike) has caused. Returns whether that succeeded.
    fn mend(&self) -> bool;

    /// Whether all nodes serve clients.
    fn is_well(&self) -> bool;

    /// The sessions that still exist at the store. After all clients have stopped, there should be none.
    fn sessions(&self) -> Vec<String>;
}

#[derive(Debug)]
pub(in super::super) struct Servers {
    // Declared before the servers, so that the proxies are dropped before them.
    pub(in super::super) links: Vec<Vec<Proxy>>,
    pub(in super::super) own: Box<dyn Own>,
    ttl: Duration,
}

impl Servers {
    /// Starts the servers of this store; `None` if the store has no server.
    pub(super) fn start(store: Store, seats: usize) -> Option<Self> {
        let own: Box<dyn Own> = match store.backend {
            #[cfg(feature = "etcd")]
            Backend::Etcd => Box::new(super::etcd::Operator::start(store.nodes)),
            #[cfg(feature = "redis")]
            Backend::Redis => Box::new(super::redis::Operator::start()),
            #[cfg(feature = "mysql")]
            Backend::Mysql => Box::new(super::mysql::Operator::start()),
            #[cfg(feature = "postgres")]
            Backend::Postgres => Box::new(super::postgres::Operator::start()),
            #[cfg(feature = "consul")]
            Backend::Consul => Box::new(super::consul::Operator::start(store.nodes)),
            #[cfg(feature = "zookeeper")]
            Backend::Zookeeper => Box::new(super::zookeeper::Operator::start(store.nodes)),
            _ => return None,
        };
        let link = |_| {
            let nodes = 0..own.server().nodes().len();
            nodes.map(|index| own.server().proxy_to(index)).collect()
        };
        let links = (0..seats).map(link).collect();
        Some(Self { links, own, ttl: store.ttl().unwrap_or_default() })
    }

    pub(in super::super) fn server(&self) -> &dyn Server {
        self.own.server()
    }

    pub(super) fn url(&self, seat: usize, group: Group) -> String {
        let links = self.links[seat].iter().map(|link| link.address().to_string());
        self.server().url(&links.collect::<Vec<_>>().join(","), group.name())
    }

    pub(super) fn own_url(&self, group: Group) -> String {
        self.server().url(&self.server().authority(), group.name())
    }

    pub(super) fn crash_release(&self) -> Duration {
        self.server().crash_release(self.ttl)
    }

    pub(super) fn sessions(&self) -> Vec<String> {
        self.own.sessions()
    }

    /// Ends the session of a random member of the group's namespace.
    pub(in super::super) fn end_session(&self, group: Group, rng: &mut StdRng) {
        let members = self.server().members(group.name());
        let member = members.choose(rng);
        let session =
            member.and_then(|member| self.server().session_of_member(group.name(), member));
        if let Some(session) = session {
            self.server().end_session(&session);
        }
    }

    /// Deletes a random entry of the group.
    pub(in super::super) fn delete_entry(&self, group: Group, rng: &mut StdRng) {
        let kind = KINDS.choose(rng).expect("some");
        if let Some(entry) = self.server().entries(group.name(), kind).choose(rng) {
            self.server().delete_entry(entry);
        }
    }

    /// The index of the leader if `leads`, otherwise of a random node that is not the leader. If there is no leader,
    /// the index of a random node.
    pub(in super::super) fn pick(&self, leads: bool, rng: &mut StdRng) -> usize {
        let count = self.server().nodes().len();
        match self.server().leader_index() {
            Some(leader) if leads => leader,
            Some(leader) => (leader + rng.random_range(1..count)) % count,
            None => rng.random_range(0..count),
        }
    }

    /// Resumes or restarts all nodes, and waits until they serve clients.
    pub(in super::super) fn revive(&self) {
        for node in self.server().nodes() {
            node.resume();
            if !node.is_running() {
                node.restart();
            }
        }
        wait_until(READY, || self.own.is_well());
    }

    pub(super) fn heal(&self) -> Result<(), String> {
        self.links.iter().flatten().for_each(Proxy::heal);
        self.server().rejoin();
        self.revive();
        match wait_until(READY, || self.own.mend() && self.own.is_well()) {
            true => Ok(()),
            false => Err("the servers are not well again".to_owned()),
        }
    }
}
