//! What locking costs at a Consul, counted on the wire.
#![cfg(feature = "consul")]

use std::{collections::BTreeMap, time::Duration};

use coordination::{Coordinator, Lock};
use coordination_tests::harness::{Consul, Proxy, Server};
use tokio::task::block_in_place;

/// Longer than what is counted takes: then no heartbeat is among it.
const HEARTBEAT: Duration = Duration::from_secs(3);
const SOON: Duration = Duration::from_secs(5);

/// A server, a proxy that counts, and a client.
struct Counted {
    consul: Consul,
    proxy: Proxy,
    client: Coordinator,
}

/// What was counted between two moments.
#[derive(Debug)]
struct Cost {
    requests: u64,
    /// Of those that were answered by then; the harness's own are none of them.
    #[expect(dead_code, reason = "printed")]
    by_kind: BTreeMap<String, i64>,
}

impl Counted {
    async fn new() -> Self {
        let consul = block_in_place(Consul::one);
        let proxy = consul.proxy_to(0);
        let client = Coordinator::builder()
            .heartbeat(HEARTBEAT)
            .connect(&format!("consul://{}", proxy.address()))
            .await
            .expect("the server is there");
        Self { consul, proxy, client }
    }

    fn lock(&self, name: &str) -> Lock {
        self.client.lock(name).expect("a good name")
    }

    /// Counts what `work` costs, right after a heartbeat.
    async fn cost(&self, work: impl Future<Output = ()>) -> Cost {
        let counts = || block_in_place(|| self.consul.request_counts());
        let beat = self.proxy.requests();
        while self.proxy.requests() == beat {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
        let mut by_kind: BTreeMap<_, _> =
            counts().into_iter().map(|(kind, count)| (kind, -(count as i64))).collect();
        let requests = self.proxy.requests();
        work.await;
        let requests = self.proxy.requests() - requests;
        for (kind, count) in counts() {
            *by_kind.entry(kind).or_default() += count as i64;
        }
        by_kind.retain(|_, count| *count != 0);
        Cost { requests, by_kind }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_uncontended_lock_is_one_request_and_its_release_another() {
    let server = Counted::new().await;
    let lock = server.lock("uncontended");
    let rounds = 10;
    let cost = server
        .cost(async {
            for _ in 0..rounds {
                let guard = lock.acquire(Some(SOON)).await.expect("it is free");
                guard.release().await.expect("the store confirms");
            }
        })
        .await;
    println!("{rounds} uncontended acquires and releases: {cost:?}");
    assert_eq!(cost.requests, 2 * rounds);
}

/// Held for a while it is watched, by one query.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_is_held_for_a_while_is_watched() {
    let server = Counted::new().await;
    let lock = server.lock("held");
    let hold = async {
        let guard = lock.acquire(Some(SOON)).await.expect("it is free");
        tokio::time::sleep(Duration::from_millis(200)).await;
        guard.release().await.expect("the store confirms");
    };
    let cost = server.cost(hold).await;
    println!("a lock held for 200 ms: {cost:?}");
    assert_eq!(cost.requests, 3);
}

/// A try that fails is a request, and another to leave.
#[tokio::test(flavor = "multi_thread")]
async fn a_try_in_vain_is_two_requests() {
    let server = Counted::new().await;
    let other = Coordinator::connect(&format!("consul://{}", server.consul.authority())).await;
    let other = other.expect("the server is there");
    let held = other.lock("taken").expect("a good name").acquire(Some(SOON)).await.expect("free");
    let lock = server.lock("taken");
    let cost = server
        .cost(async {
            assert!(lock.try_acquire().await.expect("the store answers").is_none());
            tokio::time::sleep(Duration::from_millis(100)).await;
        })
        .await;
    println!("a try in vain: {cost:?}");
    assert_eq!(cost.requests, 2);
    held.release().await.expect("the store confirms");
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_waiters_cost_a_few_queries() {
    const WAITERS: usize = 20;
    let server = Counted::new().await;
    let lock = server.lock("waited-for");
    let guard = lock.acquire(Some(SOON)).await.expect("it is free");
    let waiting: Vec<_> = (0..WAITERS)
        .map(|_| {
            let lock = lock.clone();
            tokio::spawn(async move {
                lock.acquire(None).await.expect("served").release().await.expect("confirmed");
            })
        })
        .collect();
    while lock.holders().await.expect("the store answers").len() <= WAITERS {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    let idle = server.cost(tokio::time::sleep(Duration::from_secs(10))).await;
    println!("{WAITERS} idle waiters for 10 s: {idle:?}");
    // Three queries, each of which is asked again each second, and heartbeats.
    assert!(idle.requests <= 3 * 10 + 4, "{idle:?}");
    let handing = server
        .cost(async {
            guard.release().await.expect("the store confirms");
            for waiter in waiting {
                waiter.await.expect("no waiter fails");
            }
        })
        .await;
    println!("{WAITERS} hand-overs within a process: {handing:?}");
    // Leave, and look where one stands; and what the queries are told.
    assert!(handing.requests <= 4 * (WAITERS as u64 + 1), "{handing:?}");
}
