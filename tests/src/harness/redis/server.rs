//! Implements [`Server`] for Redis.
//!
//! Here an entry is named by the text `<namespace> <queue> <id>`, and a session by `<namespace> <id>`.

use std::collections::BTreeMap;
use std::time::Duration;

use coordination::ErrorKind;

use super::super::{Node, Protocol, Proxy, Server, Setup, wait_until};
use super::{READY, Redis, Reply, Sentinels};

/// The commands that clients of the library send. Redis also counts commands that a script calls, under other names;
/// these are no requests.
const REQUESTS: [&str; 5] = ["evalsha", "subscribe", "unsubscribe", "hello", "config|get"];

/// A script that returns the entries of one kind whose sessions are alive: the queue, the id and the number of each,
/// sorted by number.
const ENTRIES: &str = "
local base, found = '{' .. ARGV[1] .. '}:', {}
local time, offset = redis.call('TIME'), redis.call('HGET', base .. 'clock', 'offset') or 0
local now = time[1] * 1000000 + time[2] + offset
for _, mode in ipairs({ 'exclusive', 'shared' }) do
  local begin = base .. mode .. ':'
  for _, key in ipairs(redis.call('KEYS', begin .. ARGV[2] .. '/*')) do
    local all = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
    for at = 1, #all, 2 do
      local session = base .. 'session:' .. string.sub(all[at], 1, 16)
      if tonumber(redis.call('HGET', session, 'expires') or 0) > now then
        found[#found + 1] = { string.sub(key, #begin + 1), all[at], tonumber(all[at + 1]) }
      end
    end
  end
end
table.sort(found, function(one, other) return one[3] < other[3] end)
return found";

/// A script that returns the members whose sessions are alive.
const MEMBERS: &str = "
local base, found = '{' .. ARGV[1] .. '}:', {}
local time, offset = redis.call('TIME'), redis.call('HGET', base .. 'clock', 'offset') or 0
local now = time[1] * 1000000 + time[2] + offset
local begin = base .. 'member:'
for _, key in ipairs(redis.call('KEYS', begin .. '*')) do
  local session = base .. 'session:' .. redis.call('GET', key)
  if tonumber(redis.call('HGET', session, 'expires') or 0) > now then
    found[#found + 1] = string.sub(key, #begin + 1)
  end
end
return found";

impl Server for Redis {
    fn set_up(setup: &Setup) -> Self {
        assert!(!setup.peers_by_proxy, "a Redis server has no peers");
        let options = Self::options().nodes(setup.nodes).in_setting(setup.setting);
        match &setup.also_at {
            Some(address) => options.also_at(address).start(),
            None => options.start(),
        }
    }

    fn scheme(&self) -> &'static str {
        "redis"
    }

    fn nodes(&self) -> Vec<&Node> {
        // In the setting in which slots move, a test sees only the first node. Whatever the test does to this node is
        // done to all nodes.
        let count = if self.options.is_restless { 1 } else { self.nodes.len() };
        self.nodes.iter().take(count).map(|node| &**node).collect()
    }

    fn authority(&self) -> String {
        match &self.sentinels {
            Some(sentinels) => sentinels.authority(),
            None => {
                let addresses = self.nodes().into_iter().map(|node| node.address().to_string());
                addresses.collect::<Vec<_>>().join(",")
            }
        }
    }

    fn wait_ready(&self) {
        for (index, node) in self.nodes.iter().enumerate() {
            let is_ready = || {
                !node.is_running()
                    || matches!(self.try_ask(index, &["PING"]), Ok(Reply::Text(text)) if text == "PONG")
                    // A server that answers, but asks for a password, is ready too.
                    || matches!(self.try_ask(index, &["PING"]), Ok(Reply::Error(text)) if text.starts_with("NOAUTH"))
            };
            assert!(wait_until(READY, is_ready), "not ready: {}", node.log());
        }
        if let Some(cluster) = &self.cluster {
            cluster.wait_ready();
        }
        self.wait_confirmed();
    }

    fn request_counts(&self) -> BTreeMap<String, u64> {
        let mut counts = BTreeMap::new();
        for index in 0..self.nodes.len() {
            let Ok(info) = self.try_ask(index, &["INFO", "commandstats"]) else { continue };
            for line in info.text().unwrap_or_default().lines() {
                if let Some((command, calls)) = count_in(line) {
                    *counts.entry(command).or_default() += calls;
                }
            }
        }
        counts
    }

    /// The URL has `quarantine=off`. This is allowed because the servers and each namespace are new, which the test
    /// knows but the library cannot. If there are Sentinels, the URL names them, and the name under which they know the
    /// server or proxy at `authority`.
    fn url(&self, authority: &str, namespace: &str) -> String {
        let mut options = vec!["quarantine=off".to_owned()];
        let mut at = authority.to_owned();
        if let Some(sentinels) = &self.sentinels {
            let name;
            (at, name) = sentinels.lead_to(authority);
            options.push(format!("sentinel={name}"));
        }
        if !namespace.is_empty() {
            options.push(format!("namespace={namespace}"));
        }
        format!("redis://{at}/?{}", options.join("&"))
    }

    fn other_urls(&self, authority: &str, namespace: &str) -> Vec<String> {
        let url = |namespace: &str| self.url(authority, namespace);
        let mut urls = vec![url(&format!("{namespace}a")), url(&format!("{namespace}A"))];
        // A cluster has only one database, so only the URLs of a Redis without a cluster can name another database.
        if !self.options.is_restless {
            urls.extend(
                [1, 2].map(|database| url(namespace).replace("/?", &format!("/{database}?"))),
            );
        }
        urls
    }

    fn refused_urls(&self) -> Vec<(String, ErrorKind)> {
        let url = self.url(&self.authority(), "");
        let with_user = |user: &str| url.replace("redis://", &format!("redis://{user}@"));
        let mut refused = vec![
            (with_user("user:secret"), ErrorKind::Auth),
            (with_user("user"), ErrorKind::Config),
            (format!("{url}&db=namespace"), ErrorKind::Config),
        ];
        // A cluster has only one database, so this URL would not be refused for its number.
        if self.cluster.is_none() {
            refused.push((format!("{url}&db=99"), ErrorKind::Config));
        }
        refused
    }

    /// In a cluster, one proxy forwards to all nodes, so that clients can be redirected.
    fn proxy_to(&self, index: usize) -> Proxy {
        let address = self.nodes[index].address();
        if self.cluster.is_some() {
            let addresses: Vec<_> = self.nodes.iter().map(|node| node.address()).collect();
            return Proxy::to_all(Protocol::Resp, &addresses);
        }
        match &self.sentinels {
            Some(sentinels) => {
                let proxy = Proxy::by_address(Protocol::Resp, address);
                sentinels.name(&proxy);
                proxy
            }
            None => Proxy::speaking(Protocol::Resp, address),
        }
    }

    fn rejoin(&self) {
        self.links.iter().for_each(Proxy::admit_all);
        self.sentinels.iter().for_each(Sentinels::rejoin);
    }

    fn entries(&self, namespace: &str, kind: &str) -> Vec<String> {
        let Reply::List(found) = self.ask(&["EVAL", ENTRIES, "0", namespace, kind]) else {
            return Vec::new();
        };
        let name = |entry: &Reply| {
            let words = entry.texts();
            format!("{namespace} {} {}", words[0], words[1])
        };
        found.iter().map(name).collect()
    }

    fn token_of(&self, entry: &str) -> u64 {
        let score = |key: &String| self.ask(&["ZSCORE", key, id_of(entry)]).text()?.parse().ok();
        keys_of(entry).iter().find_map(score).unwrap_or_default()
    }

    fn session_of(&self, entry: &str) -> Option<String> {
        let (namespace, _) = entry.split_once(' ')?;
        Some(format!("{namespace} {}", id_of(entry).get(..16)?))
    }

    fn members(&self, namespace: &str) -> Vec<String> {
        self.ask(&["EVAL", MEMBERS, "0", namespace]).texts()
    }

    fn session_of_member(&self, namespace: &str, member: &str) -> Option<String> {
        let id = self.ask(&["GET", &format!("{{{namespace}}}:member:{member}")]).text()?;
        Some(format!("{namespace} {id}"))
    }

    fn delete_entry(&self, entry: &str) -> bool {
        let remove = |key: &String| self.ask(&["ZREM", key, id_of(entry)]) == Reply::Number(1);
        keys_of(entry).iter().any(remove)
    }

    fn end_session(&self, session: &str) -> bool {
        let Some((namespace, id)) = session.split_once(' ') else { return false };
        let key = format!("{{{namespace}}}:session:{id}");
        if self.ask(&["EXISTS", &key]) != Reply::Number(1) {
            return false;
        }
        self.ask(&["HSET", &key, "expires", "1"]);
        self.ask(&["ZADD", &format!("{{{namespace}}}:sessions"), "1", id]);
        true
    }

    /// Puts nothing, because every client removes an entry that has no live session.
    fn put_strangers(&self, _namespace: &str) -> Vec<String> {
        Vec::new()
    }

    fn has_clock(&self) -> bool {
        true
    }

    fn crash_release(&self, ttl: Duration) -> Duration {
        ttl
    }

    fn notice(&self, heartbeat: Duration) -> Duration {
        heartbeat + Duration::from_millis(50)
    }
}

/// The two keys of the entry's queue, for exclusive and for shared entries. The entry is in one of them.
fn keys_of(entry: &str) -> [String; 2] {
    ["exclusive", "shared"].map(|mode| key_of(entry, mode))
}

fn key_of(entry: &str, kind: &str) -> String {
    let mut words = entry.split(' ');
    let (namespace, queue) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    format!("{{{namespace}}}:{kind}:{queue}")
}

fn id_of(entry: &str) -> &str {
    entry.rsplit(' ').next().unwrap_or_default()
}

/// Parses a line such as `cmdstat_evalsha:calls=3,usec=…`; `None` if clients do not send this command.
fn count_in(line: &str) -> Option<(String, u64)> {
    let (command, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
    let calls = rest.split(',').next()?.parse().ok()?;
    REQUESTS.contains(&command).then(|| (command.to_owned(), calls))
}
