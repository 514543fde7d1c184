//! Implements [`Server`] for PostgreSQL.
//!
//! Here an entry is named by the text `<path> <id>`, and a session by its id.

use std::collections::BTreeMap;
use std::time::Duration;

use coordination::ErrorKind;

use super::super::{Node, Protocol, Proxy, Server, Setup};
use super::pooler::PASSWORD;
use super::{Postgres, rights, wait_ready};

/// SQL for the time of the server's clock, in the unit of the library's tables.
const NOW: &str = "coordination.clock()";
/// How many connections to the server a pooler has. Those of the checks' clients are many times that.
const POOLED: usize = 10;
/// How often a client behind a pooler asks, because no notifications reach it.
const WITHOUT_WORD: Duration = Duration::from_secs(1);

impl Server for Postgres {
    fn set_up(setup: &Setup) -> Self {
        assert!(!setup.peers_by_proxy, "a PostgreSQL server has no peers");
        let options = Self::options().replicas(setup.nodes - 1);
        let options = match setup.setting {
            "" => options,
            "pooled" => options.pooled(POOLED),
            "rights" => options.restricted(),
            other => panic!("PostgreSQL has no setting {other:?}"),
        };
        match &setup.also_at {
            Some(address) => options.also_at(address).start(),
            None => options.start(),
        }
    }

    fn scheme(&self) -> &'static str {
        "postgres"
    }

    fn nodes(&self) -> Vec<&Node> {
        self.nodes.iter().map(|node| &**node).collect()
    }

    fn wait_ready(&self) {
        self.nodes.iter().for_each(|node| wait_ready(node));
    }

    /// Counts the requests in the logs of the servers, to which they write each statement.
    fn request_counts(&self) -> BTreeMap<String, u64> {
        let mut counts = BTreeMap::new();
        for node in self.nodes() {
            for request in node.log().lines().filter_map(request_in) {
                *counts.entry(request).or_default() += 1;
            }
        }
        counts
    }

    fn authority(&self) -> String {
        match &self.pooler {
            Some(pooler) => pooler.address().to_string(),
            None => {
                let addresses = self.nodes().into_iter().map(|node| node.address().to_string());
                addresses.collect::<Vec<_>>().join(",")
            }
        }
    }

    fn url(&self, authority: &str, namespace: &str) -> String {
        let url = format!("postgres://{}{authority}/postgres?sslmode=disable", self.user());
        match namespace {
            "" => url,
            _ => format!("{url}&namespace={namespace}"),
        }
    }

    fn other_urls(&self, authority: &str, namespace: &str) -> Vec<String> {
        let url = |namespace: &str| self.url(authority, namespace);
        let other = |schema: &str| format!("{}&schema={schema}", url(namespace));
        vec![
            url(&format!("{namespace}a")),
            url(&format!("{namespace}A")),
            other("one"),
            other("two"),
        ]
    }

    fn secure_url(&self, authority: &str, namespace: &str) -> String {
        self.url(authority, namespace).replacen("disable", "verify-full", 1)
    }

    fn refused_urls(&self) -> Vec<(String, ErrorKind)> {
        let url = self.url(&self.authority(), "");
        let with_user = |user: &str| url.replace(&self.user(), user);
        vec![
            (with_user("user:secret@"), ErrorKind::Auth),
            (with_user("user@"), ErrorKind::Auth),
            (with_user(""), ErrorKind::Config),
            (url.replace("/postgres?", "/nowhere?"), ErrorKind::Config),
            (url.replace("disable", "prefer"), ErrorKind::Config),
            (format!("{url}&schema=A"), ErrorKind::Config),
        ]
    }

    fn proxy_to(&self, index: usize) -> Proxy {
        let address = match &self.pooler {
            Some(pooler) => pooler.address(),
            None => self.nodes[index].address(),
        };
        Proxy::speaking(Protocol::Postgres, address)
    }

    fn most_connections(&self) -> usize {
        3
    }

    fn entries(&self, namespace: &str, kind: &str) -> Vec<String> {
        self.ask_lines(&format!(
            "SELECT encode(q.path, 'escape') || ' ' || encode(e.id, 'escape')
               FROM coordination.entries e JOIN coordination.queues q ON q.id = e.queue
               JOIN coordination.sessions s ON s.id = e.session
               WHERE s.expires > {NOW} AND encode(q.path, 'escape') LIKE '{}/{kind}/%' ORDER BY e.seq",
            escaped(namespace)
        ))
    }

    fn token_of(&self, entry: &str) -> u64 {
        let id = id_of(entry);
        let seq = self.ask(&format!("SELECT seq FROM coordination.entries WHERE id = '{id}'"));
        seq.parse().unwrap_or_default()
    }

    fn session_of(&self, entry: &str) -> Option<String> {
        id_of(entry).get(..16).map(ToOwned::to_owned)
    }

    fn members(&self, namespace: &str) -> Vec<String> {
        self.ask_lines(&format!(
            "SELECT encode(member, 'escape') FROM coordination.sessions
               WHERE namespace = '{}' AND expires > {NOW} ORDER BY 1",
            escaped(namespace)
        ))
    }

    fn session_of_member(&self, namespace: &str, member: &str) -> Option<String> {
        let found = self.ask(&format!(
            "SELECT encode(id, 'escape') FROM coordination.sessions
               WHERE namespace = '{}' AND member = '{member}'",
            escaped(namespace)
        ));
        (!found.is_empty()).then_some(found)
    }

    fn delete_entry(&self, entry: &str) -> bool {
        let id = id_of(entry);
        !self
            .ask(&format!("DELETE FROM coordination.entries WHERE id = '{id}' RETURNING 1"))
            .is_empty()
    }

    fn end_session(&self, session: &str) -> bool {
        let ended = self.ask(&format!(
            "UPDATE coordination.sessions SET expires = 1
               WHERE id = '{session}' AND expires > {NOW} RETURNING 1"
        ));
        !ended.is_empty()
    }

    /// Puts nothing: every row of an entry has a session, so a stranger cannot put an entry without one.
    fn put_strangers(&self, _namespace: &str) -> Vec<String> {
        Vec::new()
    }

    fn crash_release(&self, ttl: Duration) -> Duration {
        ttl
    }

    fn poll(&self) -> Duration {
        if self.pooler.is_some() { WITHOUT_WORD } else { Duration::ZERO }
    }

    fn notice(&self, heartbeat: Duration) -> Duration {
        heartbeat + Duration::from_millis(50)
    }
}

impl Postgres {
    /// What stands before the address in the URLs of clients.
    fn user(&self) -> String {
        match &self.pooler {
            Some(_) => format!("postgres:{PASSWORD}@"),
            None if self.is_restricted => rights::USER.to_owned(),
            None => "postgres@".to_owned(),
        }
    }

    /// The name of the statement of each call of this function, in the order of the first node's log. It is `<unnamed>` if the
    /// statement was not prepared before.
    pub fn statement_names(&self, function: &str) -> Vec<String> {
        let log = self.nodes[0].log();
        let calls = log.lines().filter_map(call_in).filter(|(_, called)| *called == function);
        calls.map(|(name, _)| name.to_owned()).collect()
    }

    fn ask_lines(&self, statement: &str) -> Vec<String> {
        self.ask(statement).lines().map(ToOwned::to_owned).collect()
    }
}

/// A namespace as the library stores it. The dot is the only character of a namespace that is escaped.
fn escaped(namespace: &str) -> String {
    namespace.replace('.', "%2E")
}

fn id_of(entry: &str) -> &str {
    entry.rsplit(' ').next().unwrap_or_default()
}

/// If the line of the log calls a function of the library, the function's name. For `LISTEN` and `UNLISTEN`, this
/// command; otherwise `None`.
fn request_in(line: &str) -> Option<String> {
    if let Some((_, function)) = call_in(line) {
        return Some(function.to_owned());
    }
    let (_, statement) = line.split_once("statement: ")?;
    let command = statement.split(' ').next()?;
    matches!(command, "LISTEN" | "UNLISTEN").then(|| command.to_lowercase())
}

/// If the line of the log calls a function of the library, the name of the statement and that of the function.
fn call_in(line: &str) -> Option<(&str, &str)> {
    let (_, executed) = line.split_once("execute ")?;
    let (name, call) = executed.split_once(": SELECT * FROM \"coordination\".")?;
    Some((name, call.split('(').next()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_found_in_the_log() {
        let of = |line: &str| request_in(line);
        let call = "LOG:  execute <unnamed>: SELECT * FROM \"coordination\".enter($1, $2)";
        assert_eq!(of(call).as_deref(), Some("enter"));
        assert_eq!(call_in(call), Some(("<unnamed>", "enter")));
        let prepared = call.replace("<unnamed>", "s17");
        assert_eq!(of(&prepared).as_deref(), Some("enter"));
        assert_eq!(call_in(&prepared), Some(("s17", "enter")));
        assert_eq!(of("LOG:  statement: LISTEN \"c\";").as_deref(), Some("listen"));
        assert_eq!(of("LOG:  statement: SELECT 1"), None);
        assert_eq!(of("DETAIL:  parameters: $1 = 'x'"), None);
    }
}
