//! Implements [`Server`] for MariaDB.
//!
//! Here an entry is named by the text `<path> <id>`, and a session by its id.

use std::collections::BTreeMap;
use std::time::Duration;

use coordination::ErrorKind;

use super::super::{Node, Protocol, Proxy, Server, Setup};
use super::{Mysql, USER, rights, wait_ready};

/// SQL for the time of the server's clock in microseconds, as the library's tables have it.
const NOW: &str = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))";

impl Server for Mysql {
    fn set_up(setup: &Setup) -> Self {
        assert!(!setup.peers_by_proxy && setup.nodes == 1, "a MariaDB server has no peers");
        let options = match setup.setting {
            "" => Self::options(),
            "rights" => Self::options().restricted(),
            other => panic!("MariaDB has no setting {other:?}"),
        };
        match &setup.also_at {
            Some(address) => options.also_at(address).start(),
            None => options.start(),
        }
    }

    fn scheme(&self) -> &'static str {
        "mysql"
    }

    fn nodes(&self) -> Vec<&Node> {
        self.nodes.iter().map(|node| &**node).collect()
    }

    fn wait_ready(&self) {
        self.nodes.iter().filter(|node| node.is_running()).for_each(|node| wait_ready(node));
    }

    /// Counts the requests in the server's log of statements.
    fn request_counts(&self) -> BTreeMap<String, u64> {
        let mut counts = BTreeMap::new();
        for request in self.statements().lines().filter_map(request_in) {
            *counts.entry(request).or_default() += 1;
        }
        counts
    }

    fn url(&self, authority: &str, namespace: &str) -> String {
        let url = format!("mysql://{}{authority}?ssl-mode=disabled", self.user());
        match namespace {
            "" => url,
            _ => format!("{url}&namespace={namespace}"),
        }
    }

    fn secure_url(&self, authority: &str, namespace: &str) -> String {
        self.url(authority, namespace).replacen("disabled", "verify_identity", 1)
    }

    fn refused_urls(&self) -> Vec<(String, ErrorKind)> {
        let url = self.url(&self.authority(), "");
        let with_user = |user: &str| url.replace(&self.user(), user);
        // A user who may not use all databases is not told whether there is such a database.
        let nowhere = if self.is_restricted { ErrorKind::Permission } else { ErrorKind::Config };
        vec![
            (with_user("user:secret@"), ErrorKind::Auth),
            (with_user("user@"), ErrorKind::Auth),
            (with_user(""), ErrorKind::Config),
            (url.replace("?", "/nowhere?"), nowhere),
            (url.replace("disabled", "preferred"), ErrorKind::Config),
            (url.replace("?", "/a%60b?"), ErrorKind::Config),
        ]
    }

    fn proxy_to(&self, index: usize) -> Proxy {
        Proxy::speaking(Protocol::Mysql, self.node(index).address())
    }

    fn most_connections(&self) -> usize {
        3
    }

    fn entries(&self, namespace: &str, kind: &str) -> Vec<String> {
        self.lines(&format!(
            "SELECT CONCAT(q.path, ' ', e.id)
               FROM coordination.coordination_entries e
               JOIN coordination.coordination_queues q ON q.id = e.queue
               JOIN coordination.coordination_sessions s ON s.id = e.session
               WHERE s.expires > {NOW} AND q.path LIKE '{}/{kind}/%' ORDER BY e.seq",
            escaped(namespace)
        ))
    }

    fn token_of(&self, entry: &str) -> u64 {
        let id = id_of(entry);
        let asked = "SELECT seq FROM coordination.coordination_entries WHERE id =";
        self.ask(&format!("{asked} '{id}'")).parse().unwrap_or_default()
    }

    fn session_of(&self, entry: &str) -> Option<String> {
        id_of(entry).get(..16).map(ToOwned::to_owned)
    }

    fn members(&self, namespace: &str) -> Vec<String> {
        self.lines(&format!(
            "SELECT member FROM coordination.coordination_sessions
               WHERE namespace = '{}' AND expires > {NOW} ORDER BY 1",
            escaped(namespace)
        ))
    }

    fn session_of_member(&self, namespace: &str, member: &str) -> Option<String> {
        let found = self.ask(&format!(
            "SELECT id FROM coordination.coordination_sessions
               WHERE namespace = '{}' AND member = '{member}'",
            escaped(namespace)
        ));
        (!found.is_empty()).then_some(found)
    }

    fn delete_entry(&self, entry: &str) -> bool {
        let id = id_of(entry);
        let removed = format!("DELETE FROM coordination.coordination_entries WHERE id = '{id}'");
        self.ask(&format!("{removed}; SELECT ROW_COUNT()")) == "1"
    }

    fn end_session(&self, session: &str) -> bool {
        let ended = format!(
            "UPDATE coordination.coordination_sessions SET expires = 1
               WHERE id = '{session}' AND expires > {NOW}"
        );
        self.ask(&format!("{ended}; SELECT ROW_COUNT()")) == "1"
    }

    /// Puts nothing: every row of an entry has a session, so a stranger cannot put an entry without one.
    fn put_strangers(&self, _namespace: &str) -> Vec<String> {
        Vec::new()
    }

    fn crash_release(&self, ttl: Duration) -> Duration {
        ttl
    }

    fn notice(&self, heartbeat: Duration) -> Duration {
        heartbeat + Duration::from_millis(50)
    }
}

impl Mysql {
    /// What stands before the address in the URLs of clients.
    fn user(&self) -> String {
        if self.is_restricted { rights::RESTRICTED.to_owned() } else { format!("{USER}@") }
    }

    /// The rows that a query on the library's tables returns. Empty if the library has not created the tables yet.
    fn lines(&self, statement: &str) -> Vec<String> {
        let answer = match self.try_ask(statement) {
            Err(said) if said.contains("doesn't exist") => return Vec::new(),
            answer => answer.unwrap_or_else(|said| panic!("{statement}: {said}")),
        };
        answer.lines().map(ToOwned::to_owned).collect()
    }
}

/// A namespace as the library stores it. The dot is the only character of a namespace that is escaped.
fn escaped(namespace: &str) -> String {
    namespace.replace('.', "%2E")
}

fn id_of(entry: &str) -> &str {
    entry.rsplit(' ').next().unwrap_or_default()
}

/// If the line of the log calls a procedure of the library, the procedure's name. For the library's queries `poll` or
/// `look`; otherwise `None`.
fn request_in(line: &str) -> Option<String> {
    let (_, statement) = line.split_once("Query\t")?;
    if let Some(call) = statement.strip_prefix("CALL coordination_") {
        return call.split('(').next().map(ToOwned::to_owned);
    }
    let is_poll = statement.starts_with("SELECT path, id, changes ");
    let is_look = statement.starts_with("SELECT e.queue AS queue, e.seq ");
    (is_poll || is_look).then(|| if is_poll { "poll" } else { "look" }.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_found_in_the_log() {
        let of = |line| request_in(line);
        let call = "\t\t     9 Query\tCALL coordination_enter(X'61', 1)";
        assert_eq!(of(call).as_deref(), Some("enter"));
        assert_eq!(of("1 Query\tSELECT path, id, changes FROM x").as_deref(), Some("poll"));
        assert_eq!(of("1 Query\tSELECT 1"), None);
        assert_eq!(of("1 Connect\tcoordination@127.0.0.1"), None);
    }
}
