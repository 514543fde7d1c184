//! F-70: callers wait for the results of a store's background task, and this task panics once. Afterwards everything
//! goes on. The stores are real servers and `file://`.

use std::time::Duration;

use coordination::panics::{arm, armed};
use coordination::{Coordinator, Result};
use coordination_tests::checks::Backend;
use coordination_tests::faults::Site;
use tokio::runtime::Builder;
use tokio::time::{Instant, sleep, timeout};

use crate::WORKER;

const LEASE: Duration = Duration::from_secs(4);
/// How long recovery may take: as long as after any broken connection (L5).
const SOON: Duration = Duration::from_secs(10);
/// How long the server is unreachable.
const AWAY: Duration = Duration::from_millis(300);
/// A waiter that is served within this time was notified of the change: without a notification, it re-checks only after
/// five seconds.
const UNTOLD: Duration = Duration::from_secs(4);

/// Asserts that a lock is handed over, and that a waiter at a barrier is notified.
async fn works(one: &Coordinator, other: &Coordinator, name: &str) -> Result<()> {
    let (held, waits) = (one.lock(name)?.acquire(Some(SOON)).await?, other.lock(name)?);
    let waiting = tokio::spawn(async move { waits.acquire(Some(SOON)).await });
    let (barrier, passes) = (one.barrier(name)?, other.barrier(name)?);
    barrier.close().await?;
    let passing = tokio::spawn(async move { passes.wait(Some(SOON)).await });
    sleep(Duration::from_millis(500)).await;
    assert!(held.is_held());
    let released = Instant::now();
    held.release().await?;
    waiting.await.expect("no panic")?.release().await?;
    barrier.open().await?;
    passing.await.expect("no panic")?;
    assert!(released.elapsed() < UNTOLD, "nobody was told: {:?}", released.elapsed());
    Ok(())
}

/// Runs everything on this thread, because the panic is injected on this thread only.
fn on_this_thread(work: impl Future<Output = Result<()>>) {
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    let worked = runtime.block_on(async { timeout(6 * SOON, work).await });
    worked.expect("it goes on").expect("all is well");
}

fn f70_who_tells_panics(backend: Backend) {
    who_tells_panics(&Site::start(backend, 1, WORKER));
}

/// [`f70_who_tells_panics`] on this store.
pub(crate) fn who_tells_panics(site: &Site) {
    on_this_thread(async {
        let connect = async |member| {
            site.builder(member).heartbeat_on_current_runtime(true).connect(&site.url).await
        };
        let (one, other) = (connect("one").await?, connect("other").await?);
        arm("watching");
        works(&one, &other, "a").await?;
        assert_eq!(armed(), [""; 0], "nothing was watched");
        works(&one, &other, "b").await?;
        one.stop().await?;
        other.stop().await
    });
}

/// A panic of whoever tells a single waiter: the waiter is told by the same task, as nobody starts another one.
#[cfg(feature = "mysql")]
pub(crate) fn who_tells_goes_on(site: &Site) {
    on_this_thread(async {
        let connect = async |member| {
            site.builder(member).heartbeat_on_current_runtime(true).connect(&site.url).await
        };
        let (one, other) = (connect("one").await?, connect("other").await?);
        let (held, waits) = (one.lock("a")?.acquire(Some(SOON)).await?, other.lock("a")?);
        let waiting = tokio::spawn(async move { waits.acquire(Some(2 * SOON)).await });
        sleep(Duration::from_millis(500)).await;
        arm("watching");
        sleep(Duration::from_secs(1)).await;
        assert_eq!(armed(), [""; 0], "nothing was watched");
        let released = Instant::now();
        held.release().await?;
        waiting.await.expect("no panic")?.release().await?;
        assert!(released.elapsed() < UNTOLD, "nobody was told: {:?}", released.elapsed());
        one.stop().await?;
        other.stop().await
    });
}

pub(crate) fn f70_who_connects_panics(backend: Backend) {
    // ZooKeeper's client crate makes connections itself, so no panic can be injected there.
    if backend == Backend::Zookeeper {
        return;
    }
    let site = Site::start(backend, 1, WORKER).with_ttl(LEASE);
    let proxy = site.server().proxy_to(0);
    let url = site.server().url(&proxy.address().to_string(), "");
    on_this_thread(async {
        let connect = async |member| {
            site.builder(member).heartbeat_on_current_runtime(true).connect(&url).await
        };
        let (one, other) = (connect("one").await?, connect("other").await?);
        let held = one.lock("kept")?.acquire(Some(SOON)).await?;
        arm("connecting");
        // The panic is to happen in an attempt to connect that several requests share. Consul's client makes no such
        // attempt if the server comes back at once: it then reconnects for each request that lost its connection.
        proxy.refuse();
        proxy.reset_all();
        let back = async {
            sleep(AWAY).await;
            proxy.accept();
        };
        tokio::join!(works(&one, &other, "a"), back).0?;
        assert_eq!(armed(), [""; 0], "nobody has connected");
        sleep(LEASE).await;
        assert!(held.is_held(), "the session is kept");
        held.release().await?;
        one.stop().await?;
        other.stop().await
    });
}

coordination_tests::each_store!(processes f70_who_tells_panics);

mod connecting {
    use super::f70_who_connects_panics;

    coordination_tests::each_store!(servers f70_who_connects_panics);
}
