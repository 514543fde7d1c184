//! What an administrator does to Consul without the clients' knowledge, and the counters of the servers.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::super::http;
use super::{Consul, MASTER, TOKEN};

/// The name of the sessions that the harness creates to find out whether a server is ready.
const PROBE: &str = "harness";

impl Consul {
    /// Sends a request to a running server as the administrator. Returns the status and the body of the answer.
    ///
    /// # Panics
    ///
    /// If no server answers.
    pub fn ask(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        let running = (0..self.nodes.len()).filter(|index| self.nodes[*index].is_running());
        let answers = running.filter_map(|index| self.ask_node(index, method, path, body));
        // A server that knows no leader answers with status 500. Then the next server is asked.
        let mut answers = answers.filter(|(status, _)| *status != 500);
        answers.next().unwrap_or_else(|| panic!("no answer to {method} {path}"))
    }

    pub(super) fn ask_node(
        &self,
        index: usize,
        method: &str,
        path: &str,
        body: &str,
    ) -> Option<(u16, String)> {
        let token = format!("X-Consul-Token: {MASTER}\r\n");
        let header = self.options.acl.as_ref().map_or("", |_| token.as_str());
        http::request(self.plain[index], (method, path), header, body).ok()
    }

    /// Whether the server can create sessions, which it cannot without a leader.
    pub(super) fn is_ready(&self, index: usize) -> bool {
        let wanted = json!({ "Name": PROBE, "NodeChecks": [], "Checks": [] }).to_string();
        let created = self.ask_node(index, "PUT", "/v1/session/create", &wanted);
        let Some((200, created)) = created else { return false };
        let created: Value = serde_json::from_str(&created).unwrap_or_default();
        let id = created["ID"].as_str().unwrap_or_default().to_owned();
        let destroyed = self.ask_node(index, "PUT", &format!("/v1/session/destroy/{id}"), "");
        destroyed.is_some_and(|(status, _)| status == 200)
    }

    /// Creates the token with the rights that a client of this namespace needs.
    pub(super) fn make_token(&self, namespace: &str) {
        let rules = format!(
            "key_prefix \"{namespace}/\" {{ policy = \"write\" }}\n\
             session_prefix \"\" {{ policy = \"write\" }}\n\
             agent_prefix \"\" {{ policy = \"read\" }}"
        );
        let policy = json!({ "Name": "client", "Rules": rules }).to_string();
        let token = json!({
            "SecretID": TOKEN,
            "AccessorID": "1b7c2d3e-4f5a-4b6c-9d7e-8f9a0b1c2d3e",
            "Policies": [{ "Name": "client" }],
        });
        let (made, _) = self.ask("PUT", "/v1/acl/policy", &policy);
        let (given, _) = self.ask("PUT", "/v1/acl/token", &token.to_string());
        assert_eq!((made, given), (200, 200), "ACLs can be set up");
    }

    /// Deletes the client's token.
    pub fn revoke_token(&self) {
        let path = "/v1/acl/token/1b7c2d3e-4f5a-4b6c-9d7e-8f9a0b1c2d3e";
        assert_eq!(self.ask("DELETE", path, "").0, 200, "there is a token");
    }

    /// The keys that begin with this prefix, sorted.
    pub fn keys(&self, prefix: &str) -> Vec<String> {
        match self.ask("GET", &format!("/v1/kv/{}?keys", escape(prefix)), "") {
            (200, keys) => serde_json::from_str(&keys).expect("a list of keys"),
            _ => Vec::new(),
        }
    }

    /// A key with all its fields, as Consul returns them; null if the key does not exist.
    pub fn key(&self, key: &str) -> Value {
        match self.ask("GET", &format!("/v1/kv/{}?consistent", escape(key)), "") {
            (200, found) => {
                let found: Value = serde_json::from_str(&found).expect("a list of keys");
                found[0].clone()
            }
            _ => Value::Null,
        }
    }

    /// Writes a key.
    pub fn put_key(&self, key: &str, value: &str) {
        assert_eq!(self.ask("PUT", &format!("/v1/kv/{}", escape(key)), value).0, 200);
    }

    /// Writes a key and locks it with a session that never expires; returns the session's id.
    pub fn lock_key(&self, key: &str, value: &str) -> String {
        let wanted = r#"{"Name":"stranger","NodeChecks":[],"Checks":[],"Behavior":"delete"}"#;
        let (_, created) = self.ask("PUT", "/v1/session/create", wanted);
        let created: Value = serde_json::from_str(&created).expect("a session");
        let id = created["ID"].as_str().expect("it has an id").to_owned();
        let path = format!("/v1/kv/{}?acquire={id}", escape(key));
        assert_eq!(self.ask("PUT", &path, value).1, "true");
        id
    }

    /// Deletes a key; returns false if it did not exist.
    pub fn delete_key(&self, key: &str) -> bool {
        let is_there = !self.key(key).is_null();
        self.ask("DELETE", &format!("/v1/kv/{}", escape(key)), "");
        is_there
    }

    /// Destroys a session; returns false if it did not exist.
    pub fn destroy_session(&self, id: &str) -> bool {
        let (_, found) = self.ask("GET", &format!("/v1/session/info/{id}"), "");
        let (status, _) = self.ask("PUT", &format!("/v1/session/destroy/{id}"), "");
        status == 200 && found.contains(id)
    }

    /// The ids of all sessions that clients have created. Sessions of the harness, named `PROBE`, are left out: if the
    /// answer to the creation of such a session was lost, the session still exists.
    pub fn sessions(&self) -> Vec<String> {
        let (_, listed) = self.ask("GET", "/v1/session/list", "");
        let listed: Vec<Value> = serde_json::from_str(&listed).unwrap_or_default();
        let clients = listed.iter().filter(|session| session["Name"] != PROBE);
        let ids = clients.filter_map(|session| session["ID"].as_str());
        ids.map(str::to_owned).collect()
    }

    /// How many requests of each kind the running servers have served, including those of the harness. A blocking query
    /// is counted only when it is answered.
    pub fn request_counts(&self) -> BTreeMap<String, u64> {
        let mut counts = BTreeMap::new();
        for index in 0..self.nodes.len() {
            let path = "/v1/agent/metrics?format=prometheus";
            let told = self.ask_node(index, "GET", path, "").map(|(_, body)| body);
            for (kind, count) in told.unwrap_or_default().lines().filter_map(parse_count) {
                *counts.entry(kind).or_default() += count;
            }
        }
        counts
    }
}

/// Escapes a key for the path of a request.
fn escape(key: &str) -> String {
    key.replace('%', "%25")
}

/// Parses a line such as `consul_http_PUT_v1_txn_count 3`. Returns `None` for requests to the agent, which only
/// administrators send.
fn parse_count(line: &str) -> Option<(String, u64)> {
    let (kind, count) = line.strip_prefix("consul_http_")?.split_once("_count ")?;
    let kind = kind.replace("_v1_", " ").trim_end_matches('_').to_owned();
    (!kind.contains("agent")).then_some(())?;
    Some((kind, count.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_counts() {
        assert_eq!(parse_count("consul_http_PUT_v1_txn_count 3"), Some(("PUT txn".to_owned(), 3)));
        assert_eq!(parse_count("consul_http_PUT_v1_txn_sum 3.5"), None);
        assert_eq!(parse_count("consul_raft_apply 3"), None);
    }
}
