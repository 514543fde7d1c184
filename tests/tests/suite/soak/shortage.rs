//! F-64: a program has no file descriptor left when its connection breaks.

use std::time::Duration;

use coordination::{ErrorKind, Result};
use coordination_tests::checks::Backend;
use coordination_tests::faults::{LONG, Site};
use coordination_tests::harness::descriptors::{take_all, with_descriptors};
use coordination_tests::harness::eventually_async;
use tokio::time::sleep;

use crate::WORKER;

/// Enough descriptors for a client, for starting its server, and for the runtime.
const ENOUGH: u64 = 256;
const LEASE: Duration = Duration::from_secs(8);

pub(crate) fn f64_held_over_a_shortage(backend: Backend) {
    let held = || {
        let site = Site::start(backend, 1, WORKER).with_ttl(LEASE);
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        runtime.block_on(over_a_shortage(&site)).expect("all is well");
    };
    with_descriptors(ENOUGH, held);
}

async fn over_a_shortage(site: &Site) -> Result<()> {
    let proxy = site.server().proxy_to(0);
    let (one, other) = (site.at(proxy.address()).client("one").await, site.client("other").await);
    let guard = one.lock("vol-7")?.acquire(Some(LONG)).await?;
    let (lock, waits) = (one.lock("vol-7")?, other.lock("vol-7")?);
    let waiting = tokio::spawn(async move { waits.acquire(Some(LONG)).await });
    let both = async || lock.holders().await.is_ok_and(|holders| holders.len() == 2);
    eventually_async(LONG, both).await;

    proxy.refuse();
    let mut taken = take_all();
    // One descriptor stays free, because the soak's count of faults writes to a file.
    taken.pop();
    proxy.reset_all();
    // Also takes the descriptors of the connections that have just been closed.
    taken.extend(take_all());
    let soon = Some(Duration::from_millis(200));
    let refused = one.lock("vol-8")?.acquire(soon).await.expect_err("no server can be reached");
    let kinds = [ErrorKind::Unavailable, ErrorKind::Timeout, ErrorKind::Storage];
    assert!(kinds.contains(&refused.kind()), "{refused}");
    sleep(LEASE / 4).await;
    assert!(guard.is_held(), "its lease is not over");
    drop(taken);
    proxy.accept();

    // The same process goes on, and has not lost its lock.
    one.lock("vol-8")?.acquire(Some(LONG)).await?.release().await?;
    assert!(guard.is_held());
    guard.release().await?;
    waiting.await.expect("no panic")?.release().await?;
    one.stop().await?;
    other.stop().await
}

coordination_tests::each_store!(servers f64_held_over_a_shortage);
