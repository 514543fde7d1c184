//! F-10: the network delivers nothing for a while to waiters that share a blocking query.

use std::sync::Arc;
use std::time::{Duration, Instant};

use coordination::{Coordinator, LockGuard};
use coordination_tests::faults::{LONG, Site};
use coordination_tests::harness::{Consul, Mode, rerun_if_starved};
use tokio::runtime::Runtime;

use crate::WORKER;

/// More locks than the client has blocking queries for, so that waiters share a query.
const LOCKS: usize = 5;
/// How long nothing is delivered. Waiters that share a query re-check within this time.
const SILENCE: Duration = Duration::from_secs(7);

/// F-10: while nothing is delivered, the locks become free. As soon as messages are delivered again, all waiters get
/// their locks.
#[test]
fn f10_silence_under_those_who_share_a_query() {
    rerun_if_starved(|| {
        let server = Arc::new(Consul::one());
        // The lease is so long that no session is lost.
        let site = Site::on(server, WORKER).with_ttl(Duration::from_secs(60));
        let proxy = site.proxies().remove(0);
        let name = |number| format!("lock-{number}");
        let runtime = Runtime::new().expect("a runtime");
        runtime.block_on(async {
            let holder = site.client("holder").await;
            let waiter = site.at(proxy.address()).client("waiter").await;
            let held = take_all(&holder, name).await;
            let waiting: Vec<_> = (0..LOCKS)
                .map(|number| {
                    let lock = waiter.lock(name(number)).expect("a good name");
                    tokio::spawn(async move { lock.acquire(None).await })
                })
                .collect();
            let until = Instant::now() + LONG;
            for number in 0..LOCKS {
                let lock = holder.lock(name(number)).expect("a good name");
                while lock.holders().await.expect("it can be read").len() < 2 {
                    assert!(Instant::now() < until, "nobody waits for {number}");
                }
            }
            proxy.set_both(Mode::Blackhole);
            tokio::time::sleep(SILENCE).await;
            proxy.heal();
            drop(held);
            for waiting in waiting {
                let granted =
                    tokio::time::timeout(LONG, waiting).await.expect("it is served in time");
                granted
                    .expect("no panic")
                    .expect("it is free")
                    .release()
                    .await
                    .expect("it is held");
            }
        });
    });
}

async fn take_all(coordinator: &Coordinator, name: impl Fn(usize) -> String) -> Vec<LockGuard> {
    let mut held = Vec::new();
    for number in 0..LOCKS {
        let lock = coordinator.lock(name(number)).expect("a good name");
        held.push(lock.acquire(None).await.expect("it is free"));
    }
    held
}
