//! What locking costs at an etcd, counted on the wire and by the server.
#![cfg(feature = "etcd")]

use std::{collections::BTreeMap, time::Duration};

use coordination::{Admission, Coordinator, Lock};
use coordination_tests::harness::{Direction, Etcd, Proxy};
use tokio::task::block_in_place;

const HEARTBEAT: Duration = Duration::from_secs(1);
const SOON: Duration = Duration::from_secs(5);

/// A server, a proxy that counts, and a client whose streams are open.
struct Counted {
    etcd: Etcd,
    proxy: Proxy,
    client: Coordinator,
}

/// What was counted between two moments.
#[derive(Debug)]
struct Cost {
    requests: u64,
    messages: u64,
    /// Heartbeats' and watches' among them.
    #[expect(dead_code, reason = "printed")]
    replies: u64,
    by_method: BTreeMap<String, i64>,
}

impl Counted {
    async fn new() -> Self {
        let etcd = block_in_place(Etcd::one);
        let proxy = Proxy::start(etcd.node(0).address());
        let client = Coordinator::builder()
            .heartbeat(HEARTBEAT)
            .connect(&format!("etcd://{}", proxy.address()))
            .await
            .expect("the server is there");
        // The first heartbeat opens the keep-alive stream.
        tokio::time::sleep(HEARTBEAT * 3 / 2).await;
        Self { etcd, proxy, client }
    }

    fn lock(&self, name: &str) -> Lock {
        self.client.lock(name).expect("a good name")
    }

    /// Counts what `work` costs.
    async fn cost(&self, work: impl Future<Output = ()>) -> Cost {
        let counts = || block_in_place(|| self.etcd.request_counts());
        let (requests, messages) = (self.proxy.requests(), self.proxy.messages());
        let replies = self.proxy.messages_in(Direction::ToClient);
        let mut by_method: BTreeMap<_, _> =
            counts().into_iter().map(|(method, count)| (method, -(count as i64))).collect();
        work.await;
        let cost = (self.proxy.requests() - requests, self.proxy.messages() - messages);
        let replies = self.proxy.messages_in(Direction::ToClient) - replies;
        for (method, count) in counts() {
            *by_method.entry(method).or_default() += count as i64;
        }
        by_method.retain(|_, count| *count != 0);
        Cost { requests: cost.0, messages: cost.1, replies, by_method }
    }
}

impl Cost {
    /// Calls that the server counted.
    fn served(&self) -> i64 {
        self.by_method.values().sum()
    }

    fn of(&self, method: &str) -> i64 {
        self.by_method.get(method).copied().unwrap_or_default()
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
    assert_eq!(cost.served(), 2 * rounds as i64);
    // Heartbeats may be among the messages, and nothing else.
    assert!((2 * rounds..=2 * rounds + 2).contains(&cost.messages), "{cost:?}");
}

/// Held for a while it is watched: one stream for all that is watched, and a read for a key that is
/// new to it.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_is_held_for_a_while_is_watched() {
    let server = Counted::new().await;
    let lock = server.lock("held");
    let hold = async || {
        let guard = lock.acquire(Some(SOON)).await.expect("it is free");
        tokio::time::sleep(Duration::from_millis(200)).await;
        guard.release().await.expect("the store confirms");
    };
    let first = server.cost(hold()).await;
    println!("the first lock held for 200 ms: {first:?}");
    assert_eq!((first.requests, first.served()), (4, 4));
    assert_eq!((first.of("Watch"), first.of("Range")), (1, 1));
    let second = server.cost(hold()).await;
    println!("the second lock held for 200 ms: {second:?}");
    // The key is watched still, from before this entry was put: nothing can have been missed.
    assert_eq!((second.requests, second.served()), (2, 2));
    assert_eq!((second.of("Watch"), second.of("Range")), (0, 0));
}

/// A try that fails is a request, and another to leave.
#[tokio::test(flavor = "multi_thread")]
async fn a_try_in_vain_is_two_requests() {
    let server = Counted::new().await;
    let lock = server.lock("taken");
    let guard = lock.acquire(Some(SOON)).await.expect("it is free");
    // The watch on its own entry is there.
    tokio::time::sleep(Duration::from_millis(200)).await;
    let cost = server
        .cost(async {
            assert!(lock.try_acquire().await.expect("the store answers").is_none());
            tokio::time::sleep(Duration::from_millis(100)).await;
        })
        .await;
    println!("a try in vain: {cost:?}");
    assert_eq!((cost.requests, cost.served()), (2, 2));
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
    assert_eq!(idle.requests, 0);
    assert_eq!(idle.served(), 0);
    assert!((2..=4).contains(&idle.messages), "a heartbeat each second: {idle:?}");
    let handing = server
        .cost(async {
            guard.release().await.expect("the store confirms");
            for waiter in waiting {
                waiter.await.expect("no waiter fails");
            }
        })
        .await;
    println!("{WAITERS} hand-overs: {handing:?}");
    // Leave, and look where one stands; a read more where the watch came late.
    assert!(handing.requests <= 3 * (WAITERS as u64 + 1), "{handing:?}");
    assert_eq!((handing.of("LeaseGrant"), handing.of("Watch")), (0, 0));
}

/// What `docs/recipes/groups.md` says of a group.
#[tokio::test(flavor = "multi_thread")]
async fn a_group_is_a_few_requests() {
    let server = Counted::new().await;
    let group = server.client.group("counted").expect("a good name");
    let cost = server.cost(async { group.create().await.expect("there is none") }).await;
    assert_eq!(cost.requests, 1, "create: {cost:?}");
    let mut membership = None;
    let joining = async { membership = Some(group.join(&1).await.expect("it is let in")) };
    let cost = server.cost(joining).await;
    println!("joining a group: {cost:?}");
    assert_eq!(cost.requests, 2, "join: {cost:?}");
    // Then its own entry is watched.
    let cost = server.cost(tokio::time::sleep(Duration::from_millis(200))).await;
    println!("staying in a group: {cost:?}");
    assert_eq!((cost.of("Range"), cost.of("Txn")), (1, 0), "{cost:?}");
    let membership = membership.expect("it has joined");
    let cost = server.cost(async { membership.update(&2).await.expect("it is in") }).await;
    assert_eq!(cost.requests, 1, "update: {cost:?}");
    let cost = server.cost(async { drop(group.members().await.expect("it is there")) }).await;
    assert_eq!(cost.requests, 1, "members: {cost:?}");

    let mut watches = Vec::new();
    let watching = async {
        for _ in 0..10 {
            watches.push(group.watch().await.expect("it is there"));
        }
    };
    let cost = server.cost(watching).await;
    println!("ten watches: {cost:?}");
    assert_eq!(cost.requests, 1, "watch: {cost:?}");
    tokio::time::sleep(Duration::from_millis(500)).await;
    let changing = async {
        membership.update(&3).await.expect("it is in");
        for watch in &mut watches {
            watch.next().await.expect("it is told");
        }
    };
    let cost = server.cost(changing).await;
    println!("an update, told to ten watches: {cost:?}");
    assert_eq!(cost.requests, 2, "{cost:?}");
    drop(watches);
    tokio::time::sleep(Duration::from_millis(200)).await;
    let cost = server.cost(async { membership.leave().await.expect("it is in") }).await;
    assert_eq!(cost.requests, 1, "leave: {cost:?}");
    let cost = server.cost(async { group.delete().await.expect("it is empty") }).await;
    assert_eq!(cost.requests, 2, "delete: {cost:?}");
}

/// The numbers on the recipes' pages. Each is counted from its second use on: the first one stores the limits.
#[tokio::test(flavor = "multi_thread")]
async fn permits_slots_and_terms_are_a_few_requests() {
    let server = Counted::new().await;
    let client = &server.client;
    let shared = async || {
        let share = server.lock("catalogue").acquire_shared(Some(SOON)).await.expect("shared");
        share.release().await.expect("the store confirms");
    };
    let semaphore = client.semaphore("uploads", 3).expect("a good name");
    let permit = async || {
        let permit = semaphore.acquire(Some(SOON)).await.expect("one is free");
        permit.release().await.expect("the store confirms");
    };
    let limiter = client.singleton("nightly").expect("a good name");
    let slot = async || match limiter.enter().await.expect("in reach") {
        Admission::Working(slot) => slot.release().await.expect("the store confirms"),
        Admission::Refused(refusal) => panic!("{refusal:?}"),
    };
    let election = client.election("scheduler").expect("a good name");
    let term = async || {
        let leadership = election.campaign("here", Some(SOON)).await.expect("nobody stands");
        leadership.resign().await.expect("the store confirms");
    };
    let counter = client.counter("jobs").expect("a good name");
    let count = async || {
        counter.add(1).await.expect("in reach");
    };

    let held = server.lock("catalogue").acquire_shared(Some(SOON)).await.expect("free");
    shared().await;
    assert_eq!(server.cost(shared()).await.requests, 2, "a share beside another");
    held.release().await.expect("the store confirms");
    permit().await;
    assert_eq!(server.cost(permit()).await.requests, 4, "a permit");
    slot().await;
    assert_eq!(server.cost(slot()).await.requests, 4, "a slot");
    assert_eq!(server.cost(term()).await.requests, 2, "a term");
    count().await;
    assert_eq!(server.cost(count()).await.requests, 2, "a count");
}
