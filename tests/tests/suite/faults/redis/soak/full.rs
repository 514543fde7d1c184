//! F-36: other keys fill the server's memory, and nothing is evicted (`maxmemory`, `noeviction`).

use std::time::Duration;

use coordination::{ClaimId, ClaimOptions, Coordinator, Effect, Error, ErrorKind, NewItem};
use coordination_tests::harness::{Direction, Mode, Redis, Server, rerun_on_threads};
use tokio::task::block_in_place;
use tokio::time::{sleep, timeout};

use super::{LONG, site};

/// Sets `maxmemory`, to simulate a full memory or to make room again.
fn set_limit(redis: &Redis, bytes: &str) {
    block_in_place(|| redis.ask(&["CONFIG", "SET", "maxmemory", bytes]));
}

fn is_full<T>(outcome: Result<T, Error>) {
    let error = outcome.err().expect("the memory is full");
    assert_eq!(error.kind(), ErrorKind::Quota, "{error}");
}

/// How many clients wait for a lock that is held.
async fn waiting(client: &Coordinator, lock: &str) -> usize {
    let holders = client.lock(lock).expect("a good name").holders().await;
    holders.expect("reading takes no memory").len() - 1
}

/// Locks stay held, also over restarts of the server; waiters are served; a release takes effect and can be seen by
/// reading. Only new entries are refused, at once, and they can be made when there is room again.
#[test]
fn f36_what_is_held_is_kept_while_the_memory_is_full() {
    rerun_on_threads(async || {
        let (redis, site) = block_in_place(|| site(Redis::options()));
        let lease = site.lease();
        let (one, other) = (site.client("one").await, site.client("other").await);
        let lock = one.lock("x").expect("a good name").acquire(None).await.expect("it is free");
        let shared = one.lock("y").expect("a good name").acquire(None).await.expect("it is free");
        let semaphore = one.semaphore("s", 1).expect("a good name");
        let permit = semaphore.acquire(None).await.expect("it is free");
        let election = one.election("e").expect("a good name");
        let leader = election.campaign(&1, None).await.expect("nobody stands");
        let group = one.group("g").expect("a good name");
        let member = group.join_or_create(&1).await.expect("there is room");
        let value = one.value::<u32>("v").expect("a good name");
        value.set(&7).await.expect("there is room");
        let held = |name: &'static str| {
            let lock = other.lock(name).expect("a good name");
            tokio::spawn(async move { lock.acquire(None).await })
        };
        let (next, next_shared, dropped) = (held("x"), held("y"), held("x"));
        let second = other.semaphore("s", 1).expect("a good name");
        let next_permit = tokio::spawn(async move { second.acquire(None).await });
        let second = other.election("e").expect("a good name");
        let next_leader = tokio::spawn(async move { second.campaign(&2, None).await });
        let seen = timeout(LONG, async {
            while waiting(&one, "x").await + waiting(&one, "y").await < 3
                || election.candidates().await.expect("it answers").len() < 2
                || semaphore.holders().await.is_err()
            {
                sleep(Duration::from_millis(20)).await;
            }
        });
        seen.await.expect("they come to wait");
        sleep(site.heartbeat).await;

        set_limit(&redis, "1");
        sleep(2 * lease).await;
        is_full(one.lock("z").expect("a good name").acquire(Some(LONG)).await);
        dropped.abort();
        let left = timeout(LONG, async {
            while waiting(&one, "x").await > 1 {
                sleep(Duration::from_millis(20)).await;
            }
        });
        left.await.expect("who gives up leaves");
        is_full(value.set(&8).await);
        is_full(group.join_as("new", &2).await);
        is_full(site.builder("late").connect(&site.url).await);
        assert!(lock.is_held() && shared.is_held() && permit.is_held() && leader.is_leader());
        assert_eq!(value.read().await.expect("it answers").map(|kept| kept.value), Some(7));
        assert_eq!(group.members().await.expect("it answers").iter().count(), 1);
        assert!(value.delete().await.expect("that takes no memory"));
        let shared = shared.downgrade().await.expect("that takes none worth a word");
        lock.release().await.expect("the server confirms");
        permit.release().await.expect("the server confirms");
        leader.resign().await.expect("the server confirms");
        member.leave().await.expect("the server confirms");
        shared.release().await.expect("the server confirms");
        let served = timeout(LONG, async {
            let next = next.await.expect("no panic").expect("it is its turn");
            let shared = next_shared.await.expect("no panic").expect("it is its turn");
            let permit = next_permit.await.expect("no panic").expect("it is its turn");
            let leader = next_leader.await.expect("no panic").expect("it is its turn");
            (next, shared, permit, leader)
        });
        let (next, _shared, _permit, leader) = served.await.expect("who waits is served");

        // The server restarts and reads its log. Then the memory is made as full as before.
        block_in_place(|| {
            redis.node(0).restart();
            redis.wait_ready();
        });
        set_limit(&redis, "1");
        sleep(2 * lease).await;
        assert!(next.is_held() && leader.is_leader());
        one.stop().await.expect("the server confirms");

        set_limit(&redis, "0");
        let late = site.builder("one").connect(&site.url).await.expect("there is room");
        let fresh = late.lock("z").expect("a good name").acquire(Some(LONG)).await;
        assert!(fresh.expect("there is room").is_held());
    });
}

/// What has filled the memory can be worked off: items are claimed, given back and acknowledged, and claims are renewed. Only posts are
/// refused.
#[test]
fn f36_a_work_queue_is_worked_off_while_the_memory_is_full() {
    rerun_on_threads(async || {
        let (redis, site) = block_in_place(|| site(Redis::options()));
        let client = site.client("one").await;
        let jobs = client.queue("jobs").expect("a good name");
        let items: Vec<_> = (0..5).map(|number| NewItem::new(format!("job {number}"))).collect();
        jobs.post(&items).await.expect("there is room");
        let one = ClaimOptions::default().limit(1);
        let held = jobs.claim(one.clone()).await.expect("there is room").expect("five are ready");
        set_limit(&redis, "1");
        is_full(jobs.post(&items).await);
        held.renew(None, None).await.expect("the server confirms");
        assert_eq!(held.ack_all().await.expect("the server confirms"), 1);
        let id = ClaimId::random();
        let next = jobs.claim_as(id, one.clone()).await.expect("the server confirms");
        let item = next.expect("four are ready").items[0].id();
        jobs.nack(item, id, Duration::ZERO).await.expect("the server confirms");
        let mut done = 0;
        while let Some(claim) = jobs.claim(one.clone()).await.expect("it has an entry") {
            done += claim.ack_all().await.expect("the server confirms");
        }
        assert_eq!(done, 4);
        assert_eq!(jobs.stats().await.expect("it answers").total(), 0);
    });
}

/// The answer to a first request is lost, and then there is no memory for the repeated request. If the caller's error
/// says that nothing was done, there must be no entry.
#[test]
fn f36_refused_after_a_lost_answer() {
    rerun_on_threads(async || {
        let (redis, site) = block_in_place(|| site(Redis::options()));
        let proxies = block_in_place(|| site.proxies());
        let one = site.by(&proxies).client("one").await;
        let mut refused = 0;
        for round in 0..10 {
            proxies[0].set(Direction::ToClient, Mode::Blackhole);
            let lock = one.lock(format!("x{round}")).expect("a good name");
            let asking = tokio::spawn(async move { lock.acquire(None).await });
            let is_there = || !block_in_place(|| site.entries()).is_empty();
            while !is_there() {
                sleep(Duration::from_millis(1)).await;
            }
            set_limit(&redis, "1");
            proxies[0].heal();
            match asking.await.expect("no panic") {
                // The answer reached the proxy only after the fault had ended, so it was not lost.
                Ok(granted) => drop(granted),
                Err(error) => {
                    refused += 1;
                    let says_none = error.effect() == Effect::None;
                    assert!(!(says_none && is_there()), "{error}: it is there");
                }
            }
            set_limit(&redis, "0");
            while is_there() {
                sleep(Duration::from_millis(1)).await;
            }
        }
        assert!(refused > 0, "no answer was lost");
    });
}
