//! What locking costs at a Redis, counted on the wire and by the server.
#![cfg(feature = "redis")]

use std::{sync::Arc, time::Duration};

use coordination::{Coordinator, Lock};
use coordination_tests::harness::{Direction, Proxy, Redis, Server};
use tokio::task::block_in_place;

const HEARTBEAT: Duration = Duration::from_secs(1);
const SOON: Duration = Duration::from_secs(5);

/// A server, a proxy that counts, and a client that knows its scripts.
struct Counted {
    redis: Arc<Redis>,
    proxy: Proxy,
    client: Coordinator,
}

impl Counted {
    async fn new() -> Self {
        let redis = Arc::new(block_in_place(Redis::one));
        let proxy = redis.proxy_to(0);
        let client = Coordinator::builder()
            .heartbeat(HEARTBEAT)
            .connect(&redis.url(&proxy.address().to_string(), ""))
            .await
            .expect("the server is there");
        // Each script is sent in full once.
        let lock = client.lock("first").expect("a good name");
        let guard = lock.acquire(Some(SOON)).await.expect("it is free");
        assert!(lock.try_acquire().await.expect("the server answers").is_none());
        guard.release().await.expect("the server confirms");
        drop(lock.holders().await.expect("the server answers"));
        tokio::time::sleep(HEARTBEAT * 3 / 2).await;
        Self { redis, proxy, client }
    }

    fn lock(&self, name: &str) -> Lock {
        self.client.lock(name).expect("a good name")
    }

    /// Requests on the wire, and scripts that the server ran.
    async fn cost(&self, work: impl Future<Output = ()>) -> (u64, u64) {
        let scripts = || {
            let counts = block_in_place(|| self.redis.request_counts());
            counts.get("evalsha").copied().unwrap_or_default()
        };
        let before = (self.proxy.messages_in(Direction::ToServer), scripts());
        work.await;
        (self.proxy.messages_in(Direction::ToServer) - before.0, scripts() - before.1)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_uncontended_lock_is_one_request_and_its_release_another() {
    let server = Counted::new().await;
    let lock = server.lock("uncontended");
    let rounds = 10;
    let (sent, run) = server
        .cost(async {
            for _ in 0..rounds {
                let guard = lock.acquire(Some(SOON)).await.expect("it is free");
                guard.release().await.expect("the server confirms");
            }
        })
        .await;
    println!("{rounds} uncontended acquires and releases: {sent} sent, {run} run");
    // A heartbeat may be among them, and nothing else.
    assert!((2 * rounds..=2 * rounds + 1).contains(&sent) && sent == run, "{sent}, {run}");
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
    while lock.holders().await.expect("the server answers").len() <= WAITERS {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // Shorter than the re-check of each waiter, which comes once in five seconds.
    let (sent, run) = server.cost(tokio::time::sleep(Duration::from_secs(3))).await;
    println!("{WAITERS} idle waiters for 3 s: {sent} sent, {run} run");
    assert!((2..=4).contains(&sent) && run == sent, "a heartbeat each second: {sent}, {run}");
    let (sent, run) = server
        .cost(async {
            guard.release().await.expect("the server confirms");
            for waiter in waiting {
                waiter.await.expect("no waiter fails");
            }
        })
        .await;
    println!("{WAITERS} hand-overs: {sent} sent, {run} run");
    // Each leaves, and hears that it is its turn.
    assert!(sent <= WAITERS as u64 + 3, "{sent}");
}
