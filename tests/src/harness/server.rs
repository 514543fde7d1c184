//! What checks and fault rows need of a store's servers, in the library's words.
//!
//! Each store with a server implements [`Server`], in a folder of its own beside this file. What checks and rows
//! know of a store is here: none of them names one.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::Duration;

use coordination::ErrorKind;

use super::{Node, Proxy, Unit, wait_until};

/// How long servers may take to agree on a leader.
const ELECTED: Duration = Duration::from_secs(10);

/// Which servers are asked for.
#[derive(Clone, Debug)]
pub struct Setup {
    /// How many; one unless somebody says otherwise.
    pub nodes: usize,
    /// Whether they reach each other by proxies only, so that one can be [isolated](Server::isolate).
    pub peers_by_proxy: bool,
    /// Another address at which they serve clients too, on the same ports; for a network namespace of
    /// one's own.
    pub also_at: Option<String>,
    /// What is particular about them, in the store's own word: `tokens`, `proxy`, `sentinels`. Empty: nothing.
    pub setting: &'static str,
}

impl Default for Setup {
    fn default() -> Self {
        Self::of(1)
    }
}

impl Setup {
    /// So many.
    pub fn of(nodes: usize) -> Self {
        Self { nodes, peers_by_proxy: false, also_at: None, setting: "" }
    }

    /// One, in this setting.
    pub fn in_setting(setting: &'static str) -> Self {
        Self { setting, ..Self::default() }
    }
}

/// The servers of a store that are running; they and their data are gone on drop.
///
/// An *entry* is named here as the store names it: a key, a path, or whatever leads to it without another word.
/// So is a *session*. Nobody but the store's own implementation looks into them. All calls block.
pub trait Server: Debug + Send + Sync {
    /// Starts them; ready on return, and empty.
    fn set_up(setup: &Setup) -> Self
    where
        Self: Sized;

    /// The scheme of the store's URLs, and its name in what tests print.
    fn scheme(&self) -> &'static str;

    /// Their processes.
    fn nodes(&self) -> Vec<&Node>;

    /// The process at `index`, counted from zero.
    ///
    /// # Panics
    ///
    /// When there is none.
    fn node(&self, index: usize) -> &Node {
        self.nodes()[index]
    }

    /// Waits until each that runs serves.
    ///
    /// # Panics
    ///
    /// When one does not in good time.
    fn wait_ready(&self);

    /// How many requests of each kind have been asked of those that answer, by whomever; a server that
    /// restarts may begin at zero.
    fn request_counts(&self) -> BTreeMap<String, u64>;

    // What leads to them.

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

    /// URLs at the same servers that each differ from that of this namespace, and from one another, in a part that matters.
    fn other_urls(&self, authority: &str, namespace: &str) -> Vec<String> {
        ["a", "A", ".a"].map(|more| self.url(authority, &format!("{namespace}{more}"))).into()
    }

    /// The same by TLS.
    fn secure_url(&self, authority: &str, namespace: &str) -> String {
        self.url(authority, namespace).replacen("://", "s://", 1)
    }

    /// URLs of this store that are refused when connecting to these servers, and how: users and passwords
    /// that are wrong (with `secret` for each password), options that do not go together.
    fn refused_urls(&self) -> Vec<(String, ErrorKind)>;

    /// What stands before the authority in a URL with a password.
    fn user_information(&self, password: &str) -> String {
        format!("user:{password}@")
    }

    /// Something that leads to a node, and knows where the messages of the store's protocol begin and end.
    fn proxy_to(&self, index: usize) -> Proxy {
        Proxy::start(self.node(index).address())
    }

    /// What conversations are cut by, the coarsest first: just messages where the protocol has nothing else.
    fn units(&self) -> &'static [Unit] {
        &[Unit::Messages]
    }

    /// How many connections one process may have, whatever it waits for: a handful.
    fn most_connections(&self) -> usize {
        5
    }

    // What an operator sees and does.

    /// The entries of all queues of a kind (`lock`, `group`, `election`…) in a namespace.
    fn entries(&self, namespace: &str, kind: &str) -> Vec<String>;

    /// The number by which the store orders an entry: the fencing token of its grant.
    fn token_of(&self, entry: &str) -> u64;

    /// The session that an entry belongs to.
    fn session_of(&self, entry: &str) -> Option<String>;

    /// The ids of the members that have a session in a namespace.
    fn members(&self, namespace: &str) -> Vec<String>;

    /// The session of a member.
    fn session_of_member(&self, namespace: &str, member: &str) -> Option<String>;

    /// Removes an entry behind its client's back; false when there was none.
    fn delete_entry(&self, entry: &str) -> bool;

    /// Ends a session behind its client's back, as a lapse of its lease would; false when there was none.
    fn end_session(&self, session: &str) -> bool;

    /// Puts what is no entry beside those of the only group in a namespace; what it put, to be deleted by
    /// [`delete_entry`](Self::delete_entry). Nothing where nothing can stand there.
    fn put_strangers(&self, namespace: &str) -> Vec<String>;

    /// Whether the store has a clock that its clients read with each queue.
    fn has_clock(&self) -> bool {
        false
    }

    /// Forgets what a store may forget of its history, so that nobody can look back; nothing where it keeps
    /// none.
    fn forget_history(&self) {}

    // Several of them.

    /// The node that says it leads; none while there is no leader, or it is paused. One that is cut off from
    /// the others says so until it notices.
    fn leader_index(&self) -> Option<usize> {
        self.nodes().iter().position(|node| node.is_running())
    }

    /// Waits for a leader.
    ///
    /// # Panics
    ///
    /// When there is none within ten seconds.
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

    /// All nodes reach each other again.
    fn rejoin(&self) {}

    // What is promised about time.

    /// The lease that clients of the checks ask for, and are granted.
    fn ttl(&self) -> Duration {
        Duration::from_secs(2)
    }

    /// The heartbeat interval of clients of the checks.
    fn heartbeat(&self) -> Duration {
        Duration::from_millis(250)
    }

    /// L1: how soon after a holder's death the next waiter has the lock.
    fn crash_release(&self, ttl: Duration) -> Duration;

    /// T3: how soon a client whose entry was removed is told: 50 ms where entries are watched, and its
    /// heartbeat interval besides where each heartbeat looks for them.
    fn notice(&self, heartbeat: Duration) -> Duration;

    /// F-22: the same of a session that was ended; that may be told to who connects again.
    fn notice_of_end(&self, heartbeat: Duration) -> Duration {
        self.notice(heartbeat)
    }

    /// F-12: how long at most a client that hears no answers goes on renewing its session.
    fn insists_for(&self, ttl: Duration) -> Duration {
        ttl
    }

    /// How much earlier than a heartbeat that is confirmed the one was sent that is proved by it.
    fn proof_lag(&self, _heartbeat: Duration) -> Duration {
        Duration::ZERO
    }

    /// How long at most a session with this lease counts on a heartbeat, from when that was sent: its deadline (T1).
    fn valid_for(&self, ttl: Duration, _heartbeat: Duration) -> Duration {
        ttl.mul_f64(0.995) - (ttl / 100).max(Duration::from_millis(10))
    }
}
