//! The cost of locking at each store, counted by the proxy, and by the server if it counts requests.
#![cfg(any(feature = "consul", feature = "etcd", feature = "redis", feature = "zookeeper"))]

#[cfg(feature = "consul")]
mod consul;
#[cfg(feature = "etcd")]
mod etcd;
#[cfg(feature = "redis")]
mod redis;
#[cfg(feature = "zookeeper")]
mod zookeeper;

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use coordination::{Builder, Coordinator, Lock};
use coordination_tests::harness::{Direction, Mode, Proxy, Server};
use tokio::task::block_in_place;

const SOON: Duration = Duration::from_secs(5);
const WAITERS: usize = 20;
/// After a grant, the library waits for 20 ms before it does anything more, such as a watch. This time is long enough
/// for that, and shorter than the time until a waiter's re-check.
#[cfg(any(feature = "etcd", feature = "zookeeper"))]
const SETTLED: Duration = Duration::from_millis(1_500);

/// A server, a proxy that counts, and a client behind the proxy.
struct Counted {
    server: Arc<dyn Server>,
    proxy: Proxy,
    client: Coordinator,
}

/// What a piece of work cost.
struct Cost {
    requests: u64,
    /// Messages to the server, including heartbeats and watches.
    sent: u64,
    /// Messages from the server.
    received: u64,
    /// Requests by kind, counted by the server.
    by_kind: BTreeMap<String, i64>,
}

impl Counted {
    async fn new(start: impl FnOnce() -> Arc<dyn Server>, builder: Builder) -> Self {
        let server = block_in_place(start);
        let proxy = server.proxy_to(0);
        let url = server.url(&proxy.address().to_string(), "");
        let client = builder.connect(&url).await.expect("the server is there");
        Self { server, proxy, client }
    }

    fn lock(&self, name: &str) -> Lock {
        self.client.lock(name).expect("a good name")
    }

    /// Acquires and releases a free lock, `rounds` times.
    async fn cycle(&self, lock: &Lock, rounds: u64) {
        for _ in 0..rounds {
            self.hold(lock, Duration::ZERO).await;
        }
    }

    /// Acquires a free lock, and holds it for this long.
    async fn hold(&self, lock: &Lock, length: Duration) {
        let guard = lock.acquire(Some(SOON)).await.expect("it is free");
        if !length.is_zero() {
            tokio::time::sleep(length).await;
        }
        guard.release().await.expect("the store confirms");
    }

    /// Tries to acquire a lock that is held, and waits until the entry of the try is removed.
    async fn try_in_vain(&self, lock: &Lock) {
        assert!(lock.try_acquire().await.expect("the store answers").is_none());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }

    /// The cost of acquiring and releasing a lock that nobody else wants, `rounds` times.
    async fn uncontended(&self, lock: &Lock, rounds: u64) -> Cost {
        let cost = self.cost(self.cycle(lock, rounds)).await;
        println!("{rounds} uncontended acquires and releases: {cost}");
        cost
    }

    /// The costs of several waiters: while they wait for `length`, and while the lock is handed from one to the next.
    async fn waited_for(&self, length: Duration) -> [Cost; 2] {
        let lock = self.lock("waited-for");
        let guard = lock.acquire(Some(SOON)).await.expect("it is free");
        let wait = |_| {
            let lock = lock.clone();
            tokio::spawn(async move {
                lock.acquire(None).await.expect("served").release().await.expect("confirmed");
            })
        };
        let waiting: Vec<_> = (0..WAITERS).map(wait).collect();
        while lock.holders().await.expect("the store answers").len() <= WAITERS {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        let idle = self.cost(tokio::time::sleep(length)).await;
        println!("{WAITERS} idle waiters for {length:?}: {idle}");
        let handing = async {
            guard.release().await.expect("the store confirms");
            for waiter in waiting {
                waiter.await.expect("no waiter fails");
            }
        };
        let handing = self.cost(handing).await;
        println!("{WAITERS} hand-overs: {handing}");
        [idle, handing]
    }

    /// The cost of so many locks that are held for `length`, from when all of them are watched.
    #[cfg(any(feature = "consul", feature = "etcd", feature = "zookeeper"))]
    async fn held_for(&self, count: usize, length: Duration) -> Cost {
        let mut held = Vec::new();
        for number in 0..count {
            let lock = self.lock(&format!("held-{number}"));
            held.push(lock.acquire(Some(SOON)).await.expect("it is free"));
        }
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        let cost = self.cost(tokio::time::sleep(length)).await;
        println!("{count} locks that are held for {length:?}: {cost}");
        assert!(held.iter().all(|guard| guard.is_held()));
        cost
    }

    /// Many calls are given up while the server's answers are held back: in one case for longer than a call may take,
    /// and in the other so briefly that some calls are given up before they were sent. A single request settles the
    /// outcome of all calls that were sent; a call that was not sent leaves nothing to settle. All in all, each call
    /// may cost at most `requests` requests until nothing of it is left at the store.
    async fn give_up_in_silences(&self, requests: u64) {
        for silence in [2_500, 500] {
            self.give_up_in_silence(300, Duration::from_millis(silence), requests).await;
        }
    }

    async fn give_up_in_silence(&self, count: u64, silence: Duration, requests: u64) {
        let give_up = |number| {
            let lock = self.lock(&format!("given-up-{number}"));
            tokio::spawn(async move { drop(lock.acquire(Some(silence / 5)).await) })
        };
        let left = || block_in_place(|| self.server.entries("coordination", "lock").len());
        let cost = self.cost(async {
            let all: Vec<_> = (0..count).map(give_up).collect();
            tokio::time::sleep(Duration::from_millis(10)).await;
            self.proxy.set(Direction::ToClient, Mode::Stall);
            tokio::time::sleep(silence).await;
            self.proxy.set(Direction::ToClient, Mode::Pass);
            for one in all {
                one.await.expect("none panics");
            }
            while left() > 0 {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        });
        let cost = tokio::time::timeout(4 * SOON, cost).await.expect("cleared away");
        println!("{count} given up in a silence: {cost}");
        assert!(cost.requests <= count * requests, "{cost}");
    }

    /// Counts what `work` costs.
    async fn cost(&self, work: impl Future<Output = ()>) -> Cost {
        let served = || block_in_place(|| self.server.request_counts());
        let counts = || {
            let messages = [Direction::ToServer, Direction::ToClient];
            (self.proxy.requests(), messages.map(|direction| self.proxy.messages_in(direction)))
        };
        let mut by_kind: BTreeMap<_, _> =
            served().into_iter().map(|(kind, count)| (kind, -(count as i64))).collect();
        let (requests, [sent, received]) = counts();
        work.await;
        let now = counts();
        for (kind, count) in served() {
            *by_kind.entry(kind).or_default() += count as i64;
        }
        by_kind.retain(|_, count| *count != 0);
        Cost {
            requests: now.0 - requests,
            sent: now.1[0] - sent,
            received: now.1[1] - received,
            by_kind,
        }
    }
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { requests, sent, received, by_kind } = self;
        write!(f, "{requests} requests, {sent} messages sent and {received} received; {by_kind:?}")
    }
}

#[cfg(any(feature = "etcd", feature = "redis"))]
impl Cost {
    /// How many requests the server counted.
    #[cfg(feature = "etcd")]
    fn served(&self) -> i64 {
        self.by_kind.values().sum()
    }

    fn of(&self, kind: &str) -> i64 {
        self.by_kind.get(kind).copied().unwrap_or_default()
    }
}

fn every(heartbeat: Duration) -> Builder {
    Coordinator::builder().heartbeat(heartbeat)
}
