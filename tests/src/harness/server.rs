//! The trait of a store's test servers: what checks and fault rows can do with any of them.
//!
//! Each store with a server implements [`Server`], in a folder of its own beside this file. Checks and rows that
//! several stores share use only this trait, and never name a store.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::Duration;

use coordination::ErrorKind;

use super::{Node, Proxy, Unit, wait_until};

/// How long servers may take to agree on a leader.
const ELECTED: Duration = Duration::from_secs(10);

/// Which servers a test asks for.
#[derive(Clone, Debug)]
pub struct Setup {
    /// How many servers; one by default.
    pub nodes: usize,
    /// Whether the servers reach one another only through proxies, so that one can be [isolated](Server::isolate).
    pub peers_by_proxy: bool,
    /// A further address at which the servers listen for clients, on the same ports: the address of the server's side
    /// of a network namespace.
    pub also_at: Option<String>,
    /// A special configuration, by the name that the store's harness gives it: `tokens`, `proxy`, `sentinels`. Empty:
    /// none.
    pub setting: &'static str,
}

impl Default for Setup {
    fn default() -> Self {
        Self::of(1)
    }
}

impl Setup {
    /// A setup of this number of servers.
    pub fn of(nodes: usize) -> Self {
        Self { nodes, peers_by_proxy: false, also_at: None, setting: "" }
    }

    /// One server, in this setting.
    pub fn in_setting(setting: &'static str) -> Self {
        Self { setting, ..Self::default() }
    }
}

/// The running servers of a store; they and their data are removed on drop.
///
/// A string identifies an *entry*, in a form that each implementation chooses: a key, a path, or whatever it needs to
/// find the entry. A string identifies a *session* in the same way. Only the store's own implementation interprets the
/// string. All calls block.
pub trait Server: Debug + Send + Sync {
    /// Starts the servers; on return they are ready, and empty.
    fn set_up(setup: &Setup) -> Self
    where
        Self: Sized;

    /// The scheme of the store's URLs, and the store's name in the output of tests.
    fn scheme(&self) -> &'static str;

    /// The processes of the servers.
    fn nodes(&self) -> Vec<&Node>;

    /// The process at `index`, counted from zero.
    ///
    /// # Panics
    ///
    /// When there is no process at `index`.
    fn node(&self, index: usize) -> &Node {
        self.nodes()[index]
    }

    /// Waits until each server whose process runs serves clients.
    ///
    /// # Panics
    ///
    /// If a server does not serve clients in time.
    fn wait_ready(&self);

    /// How many requests of each kind the running servers have received, from any client, by the servers' own counters.
    /// A server that restarts may begin at zero.
    fn request_counts(&self) -> BTreeMap<String, u64>;

    // How clients reach the servers.

    /// The nodes as the authority of a URL: `127.0.0.1:p1,127.0.0.1:p2`.
    fn authority(&self) -> String {
        let addresses: Vec<_> =
            self.nodes().iter().map(|node| node.address().to_string()).collect();
        addresses.join(",")
    }

    /// The URL of this namespace on the servers at `authority`, which may be a proxy's address; an empty
    /// namespace is the library's default.
    fn url(&self, authority: &str, namespace: &str) -> String {
        match namespace {
            "" => format!("{}://{authority}", self.scheme()),
            _ => format!("{}://{authority}/{namespace}", self.scheme()),
        }
    }

    /// URLs of other namespaces on the same servers. Each differs from the URL of `namespace`, and from the other URLs,
    /// in a part that distinguishes namespaces.
    fn other_urls(&self, authority: &str, namespace: &str) -> Vec<String> {
        ["a", "A", ".a"].map(|more| self.url(authority, &format!("{namespace}{more}"))).into()
    }

    /// The URL of this namespace over TLS.
    fn secure_url(&self, authority: &str, namespace: &str) -> String {
        self.url(authority, namespace).replacen("://", "s://", 1)
    }

    /// URLs for which connecting to these servers fails, each with the kind of error: wrong users and passwords
    /// (`secret` is each wrong password), options that contradict each other.
    fn refused_urls(&self) -> Vec<(String, ErrorKind)>;

    /// The part of a URL before the authority, with this password.
    fn user_information(&self, password: &str) -> String {
        format!("user:{password}@")
    }

    /// Starts a proxy in front of a node that knows where messages of the store's protocol begin and end.
    fn proxy_to(&self, index: usize) -> Proxy {
        Proxy::start(self.node(index).address())
    }

    /// The units at which a test can cut the traffic of a connection, the coarsest first; only messages if the protocol
    /// has nothing else.
    fn units(&self) -> &'static [Unit] {
        &[Unit::Messages]
    }

    /// How many connections one process may have open, however many waits it has.
    fn most_connections(&self) -> usize {
        5
    }

    // What an operator can see and do.

    /// The entries of all queues of one kind (`lock`, `group`, `election`…) in a namespace.
    fn entries(&self, namespace: &str, kind: &str) -> Vec<String>;

    /// The number by which the store orders an entry: the fencing token of its grant.
    fn token_of(&self, entry: &str) -> u64;

    /// The session that an entry belongs to.
    fn session_of(&self, entry: &str) -> Option<String>;

    /// The ids of all members of the namespace: the clients that have a session.
    fn members(&self, namespace: &str) -> Vec<String>;

    /// The session of a member.
    fn session_of_member(&self, namespace: &str, member: &str) -> Option<String>;

    /// Removes an entry without the client's knowledge; false if there was none.
    fn delete_entry(&self, entry: &str) -> bool;

    /// Ends a session without the client's knowledge, as if its lease had expired; false if there was none.
    fn end_session(&self, session: &str) -> bool;

    /// Writes keys that are not entries beside the entries of the only group in a namespace, and returns them, for
    /// [`delete_entry`](Self::delete_entry) to delete. Returns nothing if the store has no place for such keys.
    fn put_strangers(&self, namespace: &str) -> Vec<String>;

    /// Whether the store has a clock of its own, which clients read along with each queue.
    fn has_clock(&self) -> bool {
        false
    }

    /// Removes the history of old versions, so that a watch cannot start from an old version. Does nothing if the store
    /// keeps no history.
    fn forget_history(&self) {}

    // Several servers.

    /// The node that considers itself the leader; none while there is no leader, or while it is paused. A leader that
    /// is cut off from the others still counts until it notices.
    fn leader_index(&self) -> Option<usize> {
        self.nodes().iter().position(|node| node.is_running())
    }

    /// Waits for a leader.
    ///
    /// # Panics
    ///
    /// When no leader is elected within ten seconds.
    fn wait_leader(&self) -> usize {
        let mut leader = None;
        wait_until(ELECTED, || {
            leader = self.leader_index();
            leader.is_some()
        });
        leader.expect("a majority of the nodes should elect a leader")
    }

    /// Cuts a node off from all others, both ways, until [`rejoin`](Self::rejoin); clients still reach it.
    ///
    /// # Panics
    ///
    /// Without [`Setup::peers_by_proxy`].
    fn isolate(&self, index: usize) {
        panic!("node {index} has no others to be cut off from");
    }

    /// Ends all isolation: all nodes reach one another again.
    fn rejoin(&self) {}

    // The store's promises about time.

    /// The lease that clients in the checks ask for; the store grants it in full.
    fn ttl(&self) -> Duration {
        Duration::from_secs(2)
    }

    /// The heartbeat interval of clients of the checks.
    fn heartbeat(&self) -> Duration {
        Duration::from_millis(250)
    }

    /// L1: how soon after a holder's death the next waiter has the lock.
    fn crash_release(&self, ttl: Duration) -> Duration;

    /// T3: how soon a client learns that its entry was removed: 50 ms if the store's client watches entries. If each
    /// heartbeat looks for the entries instead, a heartbeat interval is added.
    fn notice(&self, heartbeat: Duration) -> Duration;

    /// F-22: how soon a client learns that its session was ended. With some stores it learns that only when it connects
    /// again.
    fn notice_of_end(&self, heartbeat: Duration) -> Duration {
        self.notice(heartbeat)
    }

    /// F-12: for how long at most a client that receives no answers continues to send heartbeats that renew its
    /// session.
    fn insists_for(&self, ttl: Duration) -> Duration {
        ttl
    }

    /// If a confirmed heartbeat only proves that the session lived when an earlier one was sent: how much earlier that
    /// was.
    fn proof_lag(&self, _heartbeat: Duration) -> Duration {
        Duration::ZERO
    }

    /// How long at most a session with this lease is valid after a heartbeat was sent: its deadline (T1).
    fn valid_for(&self, ttl: Duration, _heartbeat: Duration) -> Duration {
        ttl.mul_f64(0.995) - (ttl / 100).max(Duration::from_millis(10))
    }
}
