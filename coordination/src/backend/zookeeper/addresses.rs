//! The addresses of the servers' hosts.
//!
//! A name is looked up each time its addresses are needed, because they may have changed. If the name cannot be looked up then, the
//! addresses are used that the last successful look-up has found: a session must not be lost because the name server is away, while
//! the session's own servers are well. If the name server says that the name has none, they are forgotten: by now they may be those of
//! another ensemble, where a session would be granted what somebody holds here.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::timeout;

use crate::env::{names, spawn};
use crate::url::Host;

/// How long the look-up of a host's name may take while a session depends on it.
pub(super) const LOOKUP: Duration = Duration::from_millis(500);

/// What the look-ups of the servers' hosts have found.
#[derive(Default)]
pub(super) struct Addresses {
    /// For each host, what the last successful look-up has found.
    last: Mutex<HashMap<Host, Vec<SocketAddr>>>,
}

/// The addresses of a host, at least one.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct HostAddresses {
    pub(super) addresses: Vec<SocketAddr>,
    /// Whether an earlier look-up has found them, because the host's name cannot be looked up now.
    pub(super) are_earlier: bool,
}

impl Addresses {
    /// Looks up the addresses of a host. If no name server answers within `limit`, returns those of the last successful look-up. The
    /// error is that of this look-up: there was no successful one before, or the host has none now.
    pub(super) async fn of(
        self: &Arc<Self>,
        host: &Host,
        limit: Duration,
    ) -> io::Result<HostAddresses> {
        let Host { name, port } = host.clone();
        let looking = async move { names::addresses(&name, port.unwrap_or_default()).await };
        self.found(host, limit, looking).await
    }

    /// Does what [`of`](Self::of) does, by this look-up.
    async fn found(
        self: &Arc<Self>,
        host: &Host,
        limit: Duration,
        looking: impl Future<Output = io::Result<Vec<SocketAddr>>> + Send + 'static,
    ) -> io::Result<HostAddresses> {
        let (addresses, looked_up) = (Arc::clone(self), host.clone());
        // In a task of its own, so that an answer that comes after `limit` counts for the next caller.
        let looking = spawn(&Handle::current(), async move {
            let found = looking.await;
            match &found {
                Ok(found) => drop(addresses.last().insert(looked_up, found.clone())),
                Err(error) if names::has_none(error) => drop(addresses.last().remove(&looked_up)),
                Err(_) => {}
            }
            found
        });
        let error = match timeout(limit, looking).await {
            Ok(Ok(Ok(addresses))) => return Ok(HostAddresses { addresses, are_earlier: false }),
            Ok(Ok(Err(failed))) => failed,
            Ok(Err(ended)) => io::Error::other(ended),
            Err(late) => io::Error::from(late),
        };
        let earlier = self.last().get(host).cloned();
        earlier.map(|addresses| HostAddresses { addresses, are_earlier: true }).ok_or(error)
    }

    fn last(&self) -> MutexGuard<'_, HashMap<Host, Vec<SocketAddr>>> {
        self.last.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use tokio::sync::oneshot;

    use super::*;

    fn host(name: &str) -> Host {
        Host { name: name.to_owned(), port: Some(7) }
    }

    fn at(last: u8) -> Vec<SocketAddr> {
        vec![SocketAddr::from(([10, 0, 0, last], 7))]
    }

    fn failed() -> io::Result<Vec<SocketAddr>> {
        Err(io::Error::other("the name server is away"))
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_found_last_is_used_while_a_name_cannot_be_looked_up() -> io::Result<()> {
        let (addresses, host, other) = (Arc::new(Addresses::default()), host("a"), host("b"));
        let now = |last| HostAddresses { addresses: at(last), are_earlier: false };
        let earlier = |last| HostAddresses { addresses: at(last), are_earlier: true };
        let unknown = addresses.found(&host, LOOKUP, async { failed() }).await;
        assert!(unknown.expect_err("it was never found").to_string().contains("away"));
        assert_eq!(addresses.found(&host, LOOKUP, async { Ok(at(1)) }).await?, now(1));
        assert_eq!(addresses.found(&host, LOOKUP, async { failed() }).await?, earlier(1));
        assert_eq!(addresses.found(&host, LOOKUP, pending()).await?, earlier(1));
        // Each time the name is looked up first.
        assert_eq!(addresses.found(&host, LOOKUP, async { Ok(at(2)) }).await?, now(2));
        assert_eq!(addresses.found(&host, LOOKUP, async { failed() }).await?, earlier(2));
        let unknown = addresses.found(&other, LOOKUP, pending()).await;
        assert_eq!(unknown.expect_err("another host").kind(), io::ErrorKind::TimedOut);
        Ok(())
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_found_last_is_forgotten_when_a_name_has_none() -> io::Result<()> {
        let (addresses, host) = (Arc::new(Addresses::default()), host("a"));
        for none in ["Name or service not known", "the host has none"] {
            addresses.found(&host, LOOKUP, async { Ok(at(1)) }).await?;
            let said = io::Error::other(format!("failed to lookup address information: {none}"));
            let gone = addresses.found(&host, LOOKUP, async { Err(said) }).await;
            assert!(gone.expect_err("it has none").to_string().contains(none));
            assert!(addresses.found(&host, LOOKUP, pending()).await.is_err(), "it is forgotten");
        }
        Ok(())
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_comes_late_counts_for_the_next_time() -> io::Result<()> {
        let (addresses, host) = (Arc::new(Addresses::default()), host("a"));
        let (answer, answered) = oneshot::channel();
        let late = async { answered.await.map_err(io::Error::other) };
        assert!(addresses.found(&host, LOOKUP, late).await.is_err());
        answer.send(at(1)).expect("the look-up goes on");
        // The task that waits for the answer runs before the one that this look-up starts.
        let found = addresses.found(&host, LOOKUP, async { failed() }).await?;
        assert_eq!(found, HostAddresses { addresses: at(1), are_earlier: true });
        Ok(())
    }
}
