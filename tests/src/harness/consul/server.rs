//! Implements [`Server`] for Consul.

use std::collections::BTreeMap;
use std::time::Duration;

use coordination::ErrorKind;

use super::super::{Node, Protocol, Proxy, Server, Setup};
use super::Consul;

impl Server for Consul {
    fn set_up(setup: &Setup) -> Self {
        assert!(!setup.peers_by_proxy, "servers of Consul meet at the ports that they serve");
        let mut options = Self::options().nodes(setup.nodes);
        if let Some(address) = &setup.also_at {
            options = options.also_at(address);
        }
        options.start()
    }

    fn scheme(&self) -> &'static str {
        "consul"
    }

    fn nodes(&self) -> Vec<&Node> {
        self.nodes().iter().collect()
    }

    fn wait_ready(&self) {
        self.wait_ready();
    }

    fn request_counts(&self) -> BTreeMap<String, u64> {
        self.request_counts()
    }

    fn secure_url(&self, authority: &str, namespace: &str) -> String {
        self.url(authority, namespace).replacen("://", "+https://", 1)
    }

    fn refused_urls(&self) -> Vec<(String, ErrorKind)> {
        let authority = self.authority();
        vec![
            (format!("consul://user:secret@{authority}/x"), ErrorKind::Config),
            (format!("consul://:secret@{authority}/x?token_file=/dev/null"), ErrorKind::Config),
            (format!("consul://{authority}/x?dc=elsewhere"), ErrorKind::Config),
        ]
    }

    fn user_information(&self, password: &str) -> String {
        format!(":{password}@")
    }

    fn proxy_to(&self, index: usize) -> Proxy {
        Proxy::speaking(Protocol::Http1, self.nodes[index].address())
    }

    fn most_connections(&self) -> usize {
        // Each request in flight has its own connection. A client has at most eight requests in flight: four calls,
        // three blocking queries and one heartbeat.
        8
    }

    fn entries(&self, namespace: &str, kind: &str) -> Vec<String> {
        let mut keys = self.keys(&format!("{namespace}/{kind}/"));
        // A key that contains `/.` is the queue's own value, for instance that of a group. No entry's name begins with
        // a dot.
        keys.retain(|key| !key.contains("/."));
        keys
    }

    fn token_of(&self, entry: &str) -> u64 {
        self.key(entry)["CreateIndex"].as_u64().unwrap_or_default()
    }

    fn session_of(&self, entry: &str) -> Option<String> {
        self.key(entry)["Session"].as_str().map(str::to_owned)
    }

    fn members(&self, namespace: &str) -> Vec<String> {
        let prefix = format!("{namespace}/member/");
        let keys = self.keys(&prefix);
        keys.iter().filter_map(|key| key.strip_prefix(&prefix).map(str::to_owned)).collect()
    }

    fn session_of_member(&self, namespace: &str, member: &str) -> Option<String> {
        self.session_of(&format!("{namespace}/member/{member}"))
    }

    fn delete_entry(&self, entry: &str) -> bool {
        self.delete_key(entry)
    }

    fn end_session(&self, session: &str) -> bool {
        self.destroy_session(session)
    }

    fn put_strangers(&self, namespace: &str) -> Vec<String> {
        let keys = self.keys(&format!("{namespace}/group/"));
        let group = keys.iter().find_map(|key| key.strip_suffix(".value"));
        let group = group.expect("there is a group");
        let strangers = [("7f", "{{{"), (".lock", "[]")].map(|(name, value)| {
            let key = format!("{group}{name}");
            self.put_key(&key, value);
            key
        });
        // Puts two more keys whose names look like those of entries. The first has no session, and the second is locked
        // by a session that is not a client's.
        let [free, locked] = [7, 8].map(|number| format!("{group}{number:016x}-{number:06}"));
        self.put_key(&free, "");
        self.lock_key(&locked, "{{{");
        [strangers.to_vec(), vec![free, locked]].concat()
    }

    fn leader_index(&self) -> Option<usize> {
        (0..self.nodes.len()).find(|index| {
            let runs = self.nodes[*index].is_running();
            let said = runs.then(|| self.ask_node(*index, "GET", "/v1/agent/self", "")).flatten();
            said.is_some_and(|(_, said)| said.contains(r#""leader":"true""#))
        })
    }

    fn ttl(&self) -> Duration {
        // The lease is longer than one server takes to restart, and longer than three servers take to notice that their
        // leader is paused.
        Duration::from_secs(if self.nodes.len() > 1 { 6 } else { 4 })
    }

    fn heartbeat(&self) -> Duration {
        Duration::from_millis(600)
    }

    fn crash_release(&self, ttl: Duration) -> Duration {
        2 * ttl
    }

    fn notice(&self, _heartbeat: Duration) -> Duration {
        Duration::from_millis(50)
    }
}
