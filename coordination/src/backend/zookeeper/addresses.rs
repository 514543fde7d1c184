//! The addresses of the servers' hosts.
//!
//! A name is looked up each time its addresses are needed, because they may have changed. If the name cannot be looked up then, the
//! addresses are used that the last successful look-up has found: a session must not be lost because the name server is away, while
//! the session's own servers are well. If the name server says that the name has none, they are forgotten: by now they may be those of
//! another ensemble, where a session would be granted what somebody holds here.
//!
//! While no name server answers, a look-up goes on for as long as the system tries, often half a minute, and occupies a thread. So
//! whoever needs a host's addresses meanwhile waits for the look-up that is under way, for some seconds after that has begun. Then
//! another one begins, as one that began without a network may not notice that there is one now.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use crate::env::{names, spawn};
use crate::url::Host;

/// How long the look-up of a host's name may take while a session depends on it.
pub(super) const LOOKUP: Duration = Duration::from_millis(500);
/// A look-up that takes longer may last very long, or never end. From then on nobody begins to wait for it, and the next caller begins
/// another one. Where the system tries for half a minute, that makes some six threads for each host, at most.
const HANGING: Duration = Duration::from_secs(5);
/// So many look-ups of a host go on only if some last far longer than half a minute. Then another one begins after [`SELDOM`], so that
/// look-ups that never end do not take all threads that the process may have.
const MANY: usize = 8;
/// See [`MANY`].
const SELDOM: Duration = Duration::from_secs(300);

/// What the look-ups of the servers' hosts have found.
#[derive(Default)]
pub(super) struct Addresses {
    hosts: Mutex<HashMap<Host, Known>>,
}

/// What is known of a host.
#[derive(Default)]
struct Known {
    /// What the last successful look-up has found.
    last: Option<Vec<SocketAddr>>,
    /// The number of the look-up that has found that, or that the host has none: the name server has told neither to a later one.
    told: u64,
    /// The look-up that was begun last.
    newest: Option<LookUp>,
    /// Each look-up that goes on has a clone.
    going_on: Arc<()>,
}

struct LookUp {
    /// They are numbered in the order in which they were begun, from one.
    number: u64,
    begun: Instant,
    /// What it has found; `None`: nothing yet.
    found: watch::Receiver<Option<Found>>,
}

/// What a look-up has found, for all who wait for it.
type Found = Result<Vec<SocketAddr>, Arc<io::Error>>;

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

    /// Does what [`of`](Self::of) does, for all these hosts at the same time. In the order of the hosts; `None`: an error.
    pub(super) async fn of_all(
        self: &Arc<Self>,
        hosts: &[Host],
        limit: Duration,
    ) -> Vec<Option<HostAddresses>> {
        let look_up = |(index, host): (usize, &Host)| {
            let (addresses, host) = (Arc::clone(self), host.clone());
            async move { (index, addresses.of(&host, limit).await.ok()) }
        };
        let looking: JoinSet<_> = hosts.iter().enumerate().map(look_up).collect();
        let mut found = looking.join_all().await;
        found.sort_by_key(|(index, _)| *index);
        found.into_iter().map(|(_, found)| found).collect()
    }

    /// Does what [`of`](Self::of) does, by this look-up if none is under way.
    async fn found(
        self: &Arc<Self>,
        host: &Host,
        limit: Duration,
        looking: impl Future<Output = io::Result<Vec<SocketAddr>>> + Send + 'static,
    ) -> io::Result<HostAddresses> {
        let mut found = self.under_way(host, looking);
        let found =
            async { found.wait_for(Option::is_some).await.ok().and_then(|found| found.clone()) };
        let error = match timeout(limit, found).await {
            Ok(Some(Ok(addresses))) => return Ok(HostAddresses { addresses, are_earlier: false }),
            Ok(Some(Err(failed))) => io::Error::new(failed.kind(), failed),
            // The runtime of the caller that began the look-up has ended.
            Ok(None) => io::Error::other("the look-up has ended"),
            Err(late) => io::Error::from(late),
        };
        let earlier = self.hosts().get(host).and_then(|known| known.last.clone());
        earlier.map(|addresses| HostAddresses { addresses, are_earlier: true }).ok_or(error)
    }

    /// What the look-up of the host finds that is under way. If none is, begins this one.
    fn under_way(
        self: &Arc<Self>,
        host: &Host,
        looking: impl Future<Output = io::Result<Vec<SocketAddr>>> + Send + 'static,
    ) -> watch::Receiver<Option<Found>> {
        let mut hosts = self.hosts();
        let known = hosts.entry(host.clone()).or_default();
        let are_many = Arc::strong_count(&known.going_on) > MANY;
        let hanging = if are_many { SELDOM } else { HANGING };
        if let Some(newest) = known.newest.as_ref().filter(|newest| newest.is_under_way(hanging)) {
            return newest.found.clone();
        }
        let goes_on = Arc::clone(&known.going_on);
        let (tell, found) = watch::channel(None);
        let number = known.newest.as_ref().map_or(0, |newest| newest.number) + 1;
        known.newest = Some(LookUp { number, begun: Instant::now(), found: found.clone() });
        drop(hosts);
        let (addresses, looked_up) = (Arc::clone(self), host.clone());
        // In a task of its own, so that an answer that comes after the caller's limit counts for the next caller.
        spawn(&Handle::current(), async move {
            let _goes_on = goes_on;
            let found = looking.await.map_err(Arc::new);
            addresses.note(looked_up, number, &found);
            tell.send_replace(Some(found));
        });
        found
    }

    /// Notes what a look-up has found, unless a later one was told something by then.
    fn note(&self, host: Host, number: u64, found: &Found) {
        let mut hosts = self.hosts();
        let known = hosts.entry(host).or_default();
        let last = match found {
            Ok(found) => Some(found.clone()),
            Err(error) if names::has_none(error) => None,
            Err(_) => return,
        };
        if number > known.told {
            (known.last, known.told) = (last, number);
        }
    }

    fn hosts(&self) -> MutexGuard<'_, HashMap<Host, Known>> {
        self.hosts.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl LookUp {
    /// Whether it may still find something soon: it has gone on for less than `hanging`. If its task was dropped together with a
    /// runtime, it never will.
    fn is_under_way(&self, hanging: Duration) -> bool {
        let is_alive = self.found.has_changed().is_ok() && self.begun.elapsed() < hanging;
        is_alive && self.found.borrow().is_none()
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::runtime::Builder;
    use tokio::sync::oneshot;
    use tokio::time::sleep;

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
        // Each time the name is looked up first.
        assert_eq!(addresses.found(&host, LOOKUP, async { Ok(at(2)) }).await?, now(2));
        assert_eq!(addresses.found(&host, LOOKUP, async { failed() }).await?, earlier(2));
        assert_eq!(addresses.found(&host, LOOKUP, pending()).await?, earlier(2));
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
            let forgotten = addresses.found(&host, LOOKUP, async { failed() }).await;
            assert!(forgotten.expect_err("it is forgotten").to_string().contains("away"));
        }
        Ok(())
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_comes_late_counts_for_the_next_time() -> io::Result<()> {
        let (addresses, host) = (Arc::new(Addresses::default()), host("a"));
        let (answer, answered) = oneshot::channel();
        let late = async { answered.await.map_err(io::Error::other)? };
        assert!(addresses.found(&host, LOOKUP, late).await.is_err());
        answer.send(Ok(at(1))).expect("the look-up goes on");
        // The look-up is under way still, because its task has not run since.
        let found = addresses.found(&host, LOOKUP, async { failed() }).await?;
        assert_eq!(found, HostAddresses { addresses: at(1), are_earlier: false });
        let found = addresses.found(&host, LOOKUP, async { failed() }).await?;
        assert_eq!(found, HostAddresses { addresses: at(1), are_earlier: true });
        Ok(())
    }

    /// Each look-up occupies a thread for as long as the name server is silent.
    #[tokio::test(start_paused = true)]
    async fn a_look_up_under_way_is_shared() -> io::Result<()> {
        let (addresses, host, other) = (Arc::new(Addresses::default()), host("a"), host("b"));
        let begun = Arc::new(AtomicUsize::new(0));
        let silent = || {
            let begun = Arc::clone(&begun);
            async move {
                begun.fetch_add(1, Ordering::Relaxed);
                pending::<io::Result<Vec<SocketAddr>>>().await
            }
        };
        let first = Instant::now();
        while first.elapsed() < HANGING {
            assert!(addresses.found(&host, LOOKUP, silent()).await.is_err());
            assert_eq!(begun.load(Ordering::Relaxed), 1, "after {:?}", first.elapsed());
        }
        addresses.found(&other, LOOKUP, async { Ok(at(1)) }).await?;
        // A look-up that never ends does not keep the host's name for good.
        addresses.found(&host, LOOKUP, async { Ok(at(2)) }).await?;
        Ok(())
    }

    /// Each of them has a thread.
    #[tokio::test(start_paused = true)]
    async fn look_ups_that_never_end_are_few() -> io::Result<()> {
        let (addresses, host) = (Arc::new(Addresses::default()), host("a"));
        let (begun, first) = (Arc::new(AtomicUsize::new(0)), Instant::now());
        let lasts = 12 * SELDOM;
        while first.elapsed() < lasts {
            let begun = Arc::clone(&begun);
            let silent = async move {
                begun.fetch_add(1, Ordering::Relaxed);
                pending().await
            };
            assert!(addresses.found(&host, LOOKUP, silent).await.is_err());
        }
        let begun = begun.load(Ordering::Relaxed);
        assert!(begun > MANY && begun <= MANY + 12, "{begun} threads after {lasts:?}");
        sleep(SELDOM).await;
        addresses.found(&host, LOOKUP, async { Ok(at(1)) }).await?;
        Ok(())
    }

    /// As after a boot without a network: the system goes on with the look-up that was begun then.
    #[tokio::test(start_paused = true)]
    async fn a_look_up_that_hangs_is_not_waited_for_long() {
        let (addresses, host) = (Arc::new(Addresses::default()), host("a"));
        let begun = Instant::now();
        assert!(addresses.found(&host, LOOKUP, pending()).await.is_err());
        while addresses.found(&host, LOOKUP, async { Ok(at(1)) }).await.is_err() {
            assert!(begun.elapsed() < Duration::from_secs(10), "the network is back");
        }
    }

    /// A look-up that hung ends after a later one.
    #[tokio::test(start_paused = true)]
    async fn what_a_later_look_up_was_told_stands() {
        let none = || Err(io::Error::other("failed to lookup address: the host has none"));
        let later: [(io::Result<_>, Option<u8>); 3] =
            [(Ok(at(2)), Some(2)), (none(), None), (failed(), Some(1))];
        for (told, stands) in later {
            let (addresses, host) = (Arc::new(Addresses::default()), host("a"));
            let (answer, answered) = oneshot::channel();
            let hung = async { answered.await.map_err(io::Error::other)? };
            assert!(addresses.found(&host, LOOKUP, hung).await.is_err());
            sleep(HANGING).await;
            drop(addresses.found(&host, LOOKUP, async { told }).await);
            answer.send(Ok(at(1))).expect("the look-up goes on");
            sleep(LOOKUP).await;
            let known = addresses.found(&host, LOOKUP, async { failed() }).await.ok();
            assert_eq!(known.map(|known| known.addresses), stands.map(at));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_waits_for_a_look_up_gets_what_it_finds() {
        let (addresses, host) = (Arc::new(Addresses::default()), host("a"));
        let answers: [fn() -> io::Result<Vec<SocketAddr>>; 2] = [|| Ok(at(1)), failed];
        for found in answers {
            let (answer, answered) = oneshot::channel();
            let looking = async { answered.await.map_err(io::Error::other)? };
            let (first, second, ()) = tokio::join!(
                biased;
                addresses.found(&host, LOOKUP, looking),
                addresses.found(&host, LOOKUP, pending()),
                async { answer.send(found()).expect("the look-up goes on") },
            );
            let expected = HostAddresses { addresses: at(1), are_earlier: found().is_err() };
            for waited in [first, second] {
                assert_eq!(waited.expect("there is an address"), expected);
            }
        }
    }

    /// As when a coordinator is dropped, whose runtime the look-up needs, and another one shares these addresses.
    #[test]
    fn a_look_up_that_ended_with_its_runtime_is_not_waited_for() -> io::Result<()> {
        let (addresses, host) = (Arc::new(Addresses::default()), host("a"));
        let runtime = || Builder::new_current_thread().enable_time().start_paused(true).build();
        let first = runtime()?;
        assert!(first.block_on(addresses.found(&host, LOOKUP, pending())).is_err());
        drop(first);
        let found = runtime()?.block_on(addresses.found(&host, LOOKUP, async { Ok(at(1)) }))?;
        assert_eq!(found, HostAddresses { addresses: at(1), are_earlier: false });
        Ok(())
    }
}
