//! Implements [`Server`] for etcd.

use std::collections::BTreeMap;
use std::time::Duration;

use coordination::ErrorKind;

use super::super::{Node as Process, Proxy, Server, Setup, Unit};
use super::Etcd;

impl Server for Etcd {
    fn set_up(setup: &Setup) -> Self {
        let mut options = Self::options().nodes(setup.nodes);
        if setup.peers_by_proxy {
            options = options.peers_by_proxy();
        }
        if let Some(address) = &setup.also_at {
            options = options.also_at(address);
        }
        options.in_setting(setup.setting).start()
    }

    fn authority(&self) -> String {
        match &self.front {
            Some(front) => front.address().to_string(),
            None => Self::authority(self),
        }
    }

    fn url(&self, authority: &str, namespace: &str) -> String {
        let user = if self.users_on { Self::user_information() } else { String::new() };
        match namespace {
            "" => format!("etcd://{user}{authority}"),
            _ => format!("etcd://{user}{authority}/{namespace}"),
        }
    }

    fn proxy_to(&self, index: usize) -> Proxy {
        Proxy::start(self.front.as_ref().map_or(self.node(index).address(), Process::address))
    }

    /// With a `grpc-proxy` the lease is longer: the proxy passes renewals of leases on only every half second.
    fn ttl(&self) -> Duration {
        Duration::from_secs(if self.front.is_some() { 6 } else { 2 })
    }

    fn heartbeat(&self) -> Duration {
        Duration::from_millis(if self.front.is_some() { 1_000 } else { 250 })
    }

    fn scheme(&self) -> &'static str {
        "etcd"
    }

    fn nodes(&self) -> Vec<&Process> {
        self.nodes().iter().map(|node| &**node).collect()
    }

    fn wait_ready(&self) {
        self.wait_ready();
    }

    fn request_counts(&self) -> BTreeMap<String, u64> {
        self.request_counts()
    }

    fn refused_urls(&self) -> Vec<(String, ErrorKind)> {
        let authority = self.authority();
        vec![
            (format!("etcd://user:secret@{authority}/x"), ErrorKind::Auth),
            (format!("etcd://user@{authority}/x"), ErrorKind::Config),
        ]
    }

    fn units(&self) -> &'static [Unit] {
        &[Unit::Messages, Unit::Frames]
    }

    fn entries(&self, namespace: &str, kind: &str) -> Vec<String> {
        let mut keys = self.keys(&format!("{namespace}/{kind}/"));
        // A key that contains `/!` is the queue's own value, for instance that of a group, or the mark of its removal.
        // No entry's name begins with `!`.
        keys.retain(|key| !key.contains("/!"));
        keys
    }

    fn token_of(&self, entry: &str) -> u64 {
        let fields = self.administer(&["get", "--write-out=fields", "--", entry]);
        let field = fields.lines().find_map(|line| line.strip_prefix("\"CreateRevision\" : "));
        field.and_then(|revision| revision.parse().ok()).unwrap_or_default()
    }

    /// The lease's id is a part of the entry's key: `<namespace>/lock/<name>/<lease>-<random>`.
    fn session_of(&self, entry: &str) -> Option<String> {
        let lease = entry.rsplit('/').next()?.split('-').next()?;
        Some(lease.to_owned())
    }

    fn members(&self, namespace: &str) -> Vec<String> {
        let prefix = format!("{namespace}/member/");
        let keys = self.keys(&prefix);
        keys.iter().filter_map(|key| key.strip_prefix(&prefix).map(str::to_owned)).collect()
    }

    fn session_of_member(&self, namespace: &str, member: &str) -> Option<String> {
        let key = format!("{namespace}/member/{member}");
        let lease = self.administer(&["get", "--print-value-only", "--", &key]);
        Some(lease.trim().to_owned()).filter(|lease| !lease.is_empty())
    }

    fn delete_entry(&self, entry: &str) -> bool {
        self.delete_key(entry)
    }

    fn end_session(&self, session: &str) -> bool {
        i64::from_str_radix(session, 16).is_ok_and(|lease| self.revoke_lease(lease))
    }

    fn put_strangers(&self, namespace: &str) -> Vec<String> {
        let keys = self.keys(&format!("{namespace}/group/"));
        let group = keys.iter().find_map(|key| key.strip_suffix('!')).expect("there is a group");
        let strangers = [("7f", "{{{"), ("zz-not-hex", "[]"), ("7f-1", "")];
        let put = strangers.map(|(name, value)| {
            let key = format!("{group}{name}");
            self.administer(&["put", &key, value]);
            key
        });
        put.to_vec()
    }

    fn forget_history(&self) {
        self.compact();
    }

    fn leader_index(&self) -> Option<usize> {
        self.leader_index()
    }

    fn isolate(&self, index: usize) {
        self.isolate(index);
    }

    fn rejoin(&self) {
        self.rejoin();
    }

    fn crash_release(&self, ttl: Duration) -> Duration {
        ttl + Duration::from_secs(1)
    }

    fn notice(&self, _heartbeat: Duration) -> Duration {
        Duration::from_millis(50)
    }
}
