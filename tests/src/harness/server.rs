//! The trait [`Server`]: what checks and tests of faults can do with the test servers of any store.
//!
//! Each store that has a server implements the trait, in a folder of its own next to this file. Checks and tests that
//! several stores share use only this trait, and never name a store.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::Duration;

use coordination::ErrorKind;

use super::{Node, Proxy, Unit, wait_until};

/// How long the servers may take until they have agreed on a leader.
const ELECTED: Duration = Duration::from_secs(10);

/// The servers that a test asks for.
#[derive(Clone, Debug)]
pub struct Setup {
    /// How many servers; one by default.
    pub nodes: usize,
    /// Whether the servers connect to one another only through proxies, so that a test can [isolate](Server::isolate)
    /// one.
    pub peers_by_proxy: bool,
    /// A further address at which the servers serve clients, on the same ports. In a test with network namespaces, this
    /// is the address on the server's side.
    pub also_at: Option<String>,
    /// A special configuration, such as `tokens`, `proxy` or `sentinels`, by the name that the store's harness gives
    /// it. Empty for none.
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

/// The running servers of a store. On drop, the servers are killed and their data are removed.
///
/// A string names an *entry*. Each implementation chooses the form of the string: a key, a path, or whatever it needs
/// to find the entry. In the same way a string names a *session*. Only the implementation that has made a string can
/// interpret it. All calls block.
pub trait Server: Debug + Send + Sync {
    /// Starts the servers. When this returns, they are ready and empty.
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

    /// How many requests of each kind the running servers have received from all clients, by the servers' own counters.
    /// A server that restarts may begin again at zero.
    fn request_counts(&self) -> BTreeMap<String, u64>;

    // How clients reach the servers.

    /// The addresses of the nodes as the authority of a URL: `127.0.0.1:p1,127.0.0.1:p2`.
    fn authority(&self) -> String {
        let addresses: Vec<_> =
            self.nodes().iter().map(|node| node.address().to_string()).collect();
        addresses.join(",")
    }

    /// The URL of this namespace on the servers at `authority`, which may be the address of a proxy. If the namespace
    /// is empty, the URL names none, so the library takes its default.
    fn url(&self, authority: &str, namespace: &str) -> String {
        match namespace {
            "" => format!("{}://{authority}", self.scheme()),
            _ => format!("{}://{authority}/{namespace}", self.scheme()),
        }
    }

    /// URLs of other namespaces on the same servers, very similar to the one of `namespace`. Locks under different URLs
    /// have to be independent.
    fn other_urls(&self, authority: &str, namespace: &str) -> Vec<String> {
        ["a", "A", ".a"].map(|more| self.url(authority, &format!("{namespace}{more}"))).into()
    }

    /// The URL of this namespace over TLS.
    fn secure_url(&self, authority: &str, namespace: &str) -> String {
        self.url(authority, namespace).replacen("://", "s://", 1)
    }

    /// URLs with which connecting to these servers fails, each with the kind of the error. They have wrong users or
    /// passwords (each wrong password is `secret`), or options that contradict each other.
    fn refused_urls(&self) -> Vec<(String, ErrorKind)>;

    /// The part of a URL before the authority: a user with this password.
    fn user_information(&self, password: &str) -> String {
        format!("user:{password}@")
    }

    /// Starts a proxy in front of a node. The proxy knows where messages of the store's protocol begin and end.
    fn proxy_to(&self, index: usize) -> Proxy {
        Proxy::start(self.node(index).address())
    }

    /// The units by which a test can cut the traffic of a connection, the largest first. If the store's protocol has no
    /// unit smaller than a message, these are only messages.
    fn units(&self) -> &'static [Unit] {
        &[Unit::Messages]
    }

    /// The largest number of connections that one process may have open, however many waits it has.
    fn most_connections(&self) -> usize {
        5
    }

    // What an operator can see and do.

    /// The entries of all queues of one kind (`lock`, `group`, `election`…) in a namespace.
    fn entries(&self, namespace: &str, kind: &str) -> Vec<String>;

    /// The fencing token of the entry's grant: the number by which the store orders entries.
    fn token_of(&self, entry: &str) -> u64;

    /// The session to which the entry belongs.
    fn session_of(&self, entry: &str) -> Option<String>;

    /// The ids of all members of the namespace, that is, of the clients that have a session.
    fn members(&self, namespace: &str) -> Vec<String>;

    /// The session of a member.
    fn session_of_member(&self, namespace: &str, member: &str) -> Option<String>;

    /// Removes an entry without the client's knowledge. Returns false if the entry did not exist.
    fn delete_entry(&self, entry: &str) -> bool;

    /// Ends a session without the client's knowledge, as if its lease had expired. Returns false if the session did not
    /// exist.
    fn end_session(&self, session: &str) -> bool;

    /// Writes keys that are no entries next to the entries of the only group in a namespace. Returns the keys, so that
    /// a test can delete them by [`delete_entry`](Self::delete_entry). Returns nothing if the store has no place for
    /// such keys.
    fn put_strangers(&self, namespace: &str) -> Vec<String>;

    /// Whether the store has a clock of its own, which clients read together with each queue.
    fn has_clock(&self) -> bool {
        false
    }

    /// Removes the old versions of the store's data, so that a watch cannot begin at one of them. Does nothing if the
    /// store keeps no old versions.
    fn forget_history(&self) {}

    // Several servers.

    /// The index of the node that believes that it is the leader. `None` if there is no leader, or if the leader is
    /// paused and cannot be asked. A leader that is cut off from the others believes that it still leads until it
    /// notices.
    fn leader_index(&self) -> Option<usize> {
        self.nodes().iter().position(|node| node.is_running())
    }

    /// Waits until there is a leader, and returns its index.
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

    /// Cuts a node off from all other nodes, in both directions, until [`rejoin`](Self::rejoin). Clients can still
    /// reach the node.
    ///
    /// # Panics
    ///
    /// Without [`Setup::peers_by_proxy`].
    fn isolate(&self, index: usize) {
        panic!("node {index} has no others to be cut off from");
    }

    /// Ends all isolation: all nodes can reach one another again.
    fn rejoin(&self) {}

    // The store's promises about time.

    /// The lease for which clients in the checks ask. The store grants it in full.
    fn ttl(&self) -> Duration {
        Duration::from_secs(2)
    }

    /// The time between two heartbeats of clients in the checks.
    fn heartbeat(&self) -> Duration {
        Duration::from_millis(250)
    }

    /// L1: the longest time after a holder's death until the next waiter has the lock.
    fn crash_release(&self, ttl: Duration) -> Duration;

    /// How long after a change, at most, a waiter asks for it: zero if clients are told of changes.
    fn poll(&self) -> Duration {
        Duration::ZERO
    }

    /// T3: the longest time until a client learns that its entry was removed. It is 50 ms if the store's client watches
    /// entries. If the store's client looks for its entries only with each heartbeat, it is longer by the time between
    /// two heartbeats.
    fn notice(&self, heartbeat: Duration) -> Duration;

    /// F-22: the longest time until a client learns that its session was ended. With some stores the client learns it
    /// only when it connects again.
    fn notice_of_end(&self, heartbeat: Duration) -> Duration {
        self.notice(heartbeat)
    }

    /// F-12, for a client that receives no answers although its heartbeats still reach the store and renew its session:
    /// the longest time for which the client goes on sending heartbeats.
    fn insists_for(&self, ttl: Duration) -> Duration {
        ttl
    }

    /// How old the news in a confirmed heartbeat may be. If zero, a confirmed heartbeat proves that the session lived
    /// when this heartbeat was sent. Otherwise it proves only that the session lived this much earlier, when an earlier
    /// heartbeat was sent.
    fn proof_lag(&self, _heartbeat: Duration) -> Duration {
        Duration::ZERO
    }

    /// T1: how long a session with this lease is valid after the last confirmed heartbeat was sent, at most. This is
    /// its deadline.
    fn valid_for(&self, ttl: Duration, _heartbeat: Duration) -> Duration {
        ttl.mul_f64(0.995) - (ttl / 100).max(Duration::from_millis(10))
    }
}
