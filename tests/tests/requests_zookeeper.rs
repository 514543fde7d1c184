//! What locking costs at a ZooKeeper, counted on the wire.
#![cfg(feature = "zookeeper")]

use std::time::Duration;

use coordination::{Coordinator, Lock};
use coordination_tests::harness::{Direction, Proxy, Server, Zookeeper};
use tokio::task::block_in_place;

const HEARTBEAT: Duration = Duration::from_secs(1);
const SOON: Duration = Duration::from_secs(5);

/// A server, a proxy that counts, and a client.
struct Counted {
    proxy: Proxy,
    client: Coordinator,
    _zookeeper: Zookeeper,
}

/// What was counted between two moments; pings are nothing.
#[derive(Debug)]
struct Cost {
    requests: u64,
    #[expect(dead_code, reason = "printed")]
    replies: u64,
}

impl Counted {
    async fn new() -> Self {
        let zookeeper = block_in_place(Zookeeper::one);
        let proxy = zookeeper.proxy_to(0);
        let client = Coordinator::builder()
            .heartbeat(HEARTBEAT)
            .ttl(Duration::from_secs(30))
            .connect(&format!("zookeeper://{}", proxy.address()))
            .await
            .expect("the server is there");
        Self { _zookeeper: zookeeper, proxy, client }
    }

    fn lock(&self, name: &str) -> Lock {
        self.client.lock(name).expect("a good name")
    }

    /// Counts what `work` costs.
    async fn cost(&self, work: impl Future<Output = ()>) -> Cost {
        let before = (self.proxy.requests(), self.proxy.messages_in(Direction::ToClient));
        work.await;
        let requests = self.proxy.requests() - before.0;
        let replies = self.proxy.messages_in(Direction::ToClient) - before.1;
        Cost { requests, replies }
    }
}

/// Whether that many requests were made, and no others than heartbeats.
fn is_about(requests: u64, expected: u64, took: Duration) -> bool {
    let heartbeats = 1 + took.as_secs();
    (expected..=expected + heartbeats).contains(&requests)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_uncontended_lock_is_two_requests_and_its_release_another() {
    let server = Counted::new().await;
    let lock = server.lock("uncontended");
    let cycle = async || {
        let guard = lock.acquire(Some(SOON)).await.expect("it is free");
        guard.release().await.expect("the store confirms");
    };
    // The first one makes the queue's node and those above it.
    cycle().await;
    let rounds = 100;
    let began = std::time::Instant::now();
    let cost = server
        .cost(async {
            for _ in 0..rounds {
                cycle().await;
            }
        })
        .await;
    println!("{rounds} uncontended acquires and releases: {cost:?}");
    assert!(is_about(cost.requests, 3 * rounds, began.elapsed()), "{cost:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_is_held_for_a_while_is_watched() {
    let server = Counted::new().await;
    let lock = server.lock("held");
    let hold = async || {
        let guard = lock.acquire(Some(SOON)).await.expect("it is free");
        tokio::time::sleep(Duration::from_millis(200)).await;
        guard.release().await.expect("the store confirms");
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    hold().await;
    let cost = server.cost(hold()).await;
    println!("a lock held for 200 ms: {cost:?}");
    // The watch, and its end.
    assert!((4..=6).contains(&cost.requests), "{cost:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_try_in_vain_is_three_requests() {
    let server = Counted::new().await;
    let lock = server.lock("taken");
    let guard = lock.acquire(Some(SOON)).await.expect("it is free");
    // The watch on its own node is there.
    tokio::time::sleep(Duration::from_millis(200)).await;
    let cost = server
        .cost(async {
            assert!(lock.try_acquire().await.expect("the store answers").is_none());
            tokio::time::sleep(Duration::from_millis(100)).await;
        })
        .await;
    println!("a try in vain: {cost:?}");
    assert!(is_about(cost.requests, 3, Duration::ZERO), "{cost:?}");
    guard.release().await.expect("the store confirms");
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_waiters_cost_nothing_but_heartbeats() {
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
    // Shorter than the re-check of each waiter, which comes once in five seconds.
    let idle = server.cost(tokio::time::sleep(Duration::from_secs(3))).await;
    println!("{WAITERS} idle waiters for 3 s: {idle:?}");
    assert!((2..=4).contains(&idle.requests), "a heartbeat each second: {idle:?}");
    let handing = server
        .cost(async {
            guard.release().await.expect("the store confirms");
            for waiter in waiting {
                waiter.await.expect("no waiter fails");
            }
        })
        .await;
    println!("{WAITERS} hand-overs: {handing:?}");
    // Leave, and look where one stands.
    assert!(handing.requests <= 3 * (WAITERS as u64 + 1), "{handing:?}");
}
