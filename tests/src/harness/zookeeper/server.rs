//! Implements [`Server`] for ZooKeeper.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use coordination::ErrorKind;

use super::super::{Node, Protocol, Proxy, Server, Setup};
use super::Zookeeper;
use crate::bounds;

/// The text that a server logs when it meets a fault of its own
/// (`NIOServerCnxnFactory.processInterestOpsUpdateRequests`, 3.8): its selector thread finds a connection that is being
/// closed, and goes back to sleep without processing the rest of its queue. Until another connection wakes the thread,
/// it reads nothing from the connections in the rest of the queue. If a client's connection is among these, the client
/// gets no answers on it, and replaces it.
const STUMBLE: &str = "Ignoring unexpected runtime exception";
/// A client that has lost its connection makes its second attempt to connect after 100 to 200 ms.
const RECONNECT: Duration = Duration::from_millis(200);
/// A client gives up a connection on which nothing arrives for twice as long as a call may take, but at most this long.
const SILENCE: Duration = Duration::from_millis(1_500);
/// The `tickTime` of the servers.
const TICK: Duration = Duration::from_millis(200);
impl Server for Zookeeper {
    fn set_up(setup: &Setup) -> Self {
        let mut options = Self::options().nodes(setup.nodes);
        if setup.peers_by_proxy {
            options = options.peers_by_proxy();
        }
        if let Some(address) = &setup.also_at {
            options = options.also_at(address);
        }
        options.start()
    }

    fn scheme(&self) -> &'static str {
        "zookeeper"
    }

    fn nodes(&self) -> Vec<&Node> {
        self.nodes.iter().map(|member| &member.node).collect()
    }

    fn wait_ready(&self) {
        self.await_ready();
    }

    fn request_counts(&self) -> BTreeMap<String, u64> {
        let answers = (0..self.nodes.len()).filter_map(|index| self.ask(index, "mntr"));
        let packets = answers.filter_map(|answer| {
            let line = answer.lines().find_map(|line| line.strip_prefix("zk_packets_received"));
            line?.trim().parse::<u64>().ok()
        });
        BTreeMap::from([("packets".to_owned(), packets.sum())])
    }

    fn other_urls(&self, authority: &str, namespace: &str) -> Vec<String> {
        let names = [format!("{namespace}a"), format!("{namespace}A")];
        // The last segment of the path is the namespace. The segments before it are ZooKeeper's chroot.
        let paths =
            names.iter().cloned().chain(names.iter().map(|name| format!("{name}/{namespace}")));
        paths.map(|path| self.url(authority, &path)).collect()
    }

    fn secure_url(&self, authority: &str, namespace: &str) -> String {
        self.url(authority, namespace).replacen("://", "+tls://", 1)
    }

    fn refused_urls(&self) -> Vec<(String, ErrorKind)> {
        let authority = self.authority();
        vec![
            (format!("zookeeper://user@{authority}/x"), ErrorKind::Config),
            (format!("zookeeper://{authority}/x?acl=creator"), ErrorKind::Config),
            (format!("zookeeper://{authority}/x?nodes=secret"), ErrorKind::Config),
        ]
    }

    fn proxy_to(&self, index: usize) -> Proxy {
        Proxy::speaking(Protocol::Zookeeper, self.node(index).address())
    }

    fn entries(&self, namespace: &str, kind: &str) -> Vec<String> {
        self.grandchildren(&format!("/{namespace}/{kind}"))
    }

    fn token_of(&self, entry: &str) -> u64 {
        self.look(entry).map_or(0, |(_, made, _)| made)
    }

    fn session_of(&self, entry: &str) -> Option<String> {
        self.look(entry).map(|(_, _, owner)| owner.to_string())
    }

    fn members(&self, namespace: &str) -> Vec<String> {
        self.children(&format!("/{namespace}/member"))
    }

    fn session_of_member(&self, namespace: &str, member: &str) -> Option<String> {
        let (_, _, owner) = self.look(&format!("/{namespace}/member/{member}"))?;
        Some(owner.to_string())
    }

    fn delete_entry(&self, entry: &str) -> bool {
        self.delete(entry)
    }

    fn end_session(&self, session: &str) -> bool {
        session.parse().is_ok_and(|session| self.close_session(session))
    }

    fn put_strangers(&self, namespace: &str) -> Vec<String> {
        let groups = self.children(&format!("/{namespace}/values/group"));
        let group = groups.first().expect("there is a group");
        let queue = format!("/{namespace}/group/{group}");
        if self.look(&queue).is_none() {
            for path in [format!("/{namespace}/group"), queue.clone()] {
                self.wire().create(&path, b"");
            }
        }
        let strangers =
            [("7f__lock__0000000000", "{{{"), ("zz-not-hex", "[]"), ("latch-0000000001", "")];
        let put = strangers.map(|(name, data)| {
            let path = format!("{queue}/{name}");
            self.create(&path, data.as_bytes());
            path
        });
        put.to_vec()
    }

    fn leader_index(&self) -> Option<usize> {
        let leads = |mode: String| mode == "leader" || mode == "standalone";
        (0..self.nodes.len()).find(|index| self.mode(*index).is_some_and(leads))
    }

    /// Works only for a follower: the proxies are on the followers' connections to the leader, but not on the
    /// connections that nodes use in elections.
    fn isolate(&self, index: usize) {
        assert!(!self.links.is_empty(), "the nodes are connected directly");
        for link in self.links_of(index) {
            link.proxy.refuse();
            link.proxy.reset_all();
            link.is_cut.store(true, Ordering::SeqCst);
        }
    }

    fn rejoin(&self) {
        // Only the links that were cut are reset. If other followers had to reconnect at the same moment, the ensemble
        // might stop for a while (see `commits`).
        for link in self.links.iter().filter(|link| link.is_cut.swap(false, Ordering::SeqCst)) {
            // A connection that has lost bytes cannot be used any more, because its stream has a hole.
            link.proxy.reset_all();
            link.proxy.heal();
        }
    }

    /// The lease is longer than a restart takes: the Java virtual machine takes more than a second to start, and the
    /// client retries after one second and then after two more.
    fn ttl(&self) -> Duration {
        Duration::from_secs(4)
    }

    fn crash_release(&self, ttl: Duration) -> Duration {
        ttl + TICK * 3 / 2 + self.until_replaced(ttl / 4)
    }

    fn notice(&self, _heartbeat: Duration) -> Duration {
        Duration::from_millis(50)
    }

    /// The server closes the connection when the session ends, and the client learns of the end when it reconnects. But
    /// if the server has stumbled (`STUMBLE`) when it closed the old connection, it may read nothing from the client's
    /// new connection before the client's next heartbeat.
    fn notice_of_end(&self, heartbeat: Duration) -> Duration {
        let replaced = self.until_replaced(heartbeat) + self.until_given_up(heartbeat);
        self.notice(heartbeat) + RECONNECT + replaced
    }

    /// If the client gets no answers, the client crate reconnects again and again for 7/5 of the lease, and the server
    /// renews the session each time.
    fn insists_for(&self, ttl: Duration) -> Duration {
        ttl * 7 / 5
    }

    /// A confirmed heartbeat only proves that the session lived when the heartbeat before it was sent.
    fn proof_lag(&self, heartbeat: Duration) -> Duration {
        heartbeat
    }
}

impl Zookeeper {
    /// The additional time that a client may need to replace a connection on which a [stumbled](STUMBLE) server reads
    /// nothing. The client notices this after `silence`. Zero if no server has stumbled.
    fn until_replaced(&self, silence: Duration) -> Duration {
        let stumbled = self.nodes.iter().any(|member| member.node.log().contains(STUMBLE));
        if stumbled { silence + RECONNECT } else { Duration::ZERO }
    }

    /// The additional time that a client needs if a server has [kept](Zookeeper::close_session) its connection after the end of the
    /// session, and answers nothing on it. The client crate looks eight times in the time of silence that it allows whether this time
    /// is over (`Session::serve_session` in 0.11.2), so it sees that up to an eighth later. Zero if no server has kept a connection.
    fn until_given_up(&self, heartbeat: Duration) -> Duration {
        if !self.has_kept.load(Ordering::SeqCst) {
            return Duration::ZERO;
        }
        let silence = SILENCE.min(2 * bounds::attempt(heartbeat, self.ttl()));
        silence + silence / 8
    }
}
