//! How many requests and messages locking costs on ZooKeeper.

use std::sync::Arc;
use std::time::{Duration, Instant};

use coordination_tests::harness::{Zookeeper, rerun_on_threads};
use tokio::task::block_in_place;

use super::{Counted, SETTLED, SOON, WAITERS, every};

const HEARTBEAT: Duration = Duration::from_secs(1);

async fn counted() -> Counted {
    let builder = every(HEARTBEAT).ttl(Duration::from_secs(30));
    Counted::new(|| Arc::new(Zookeeper::one()), builder).await
}

/// Whether the number of requests is the expected one, or larger by no more than the heartbeats of this time.
fn is_about(requests: u64, expected: u64, took: Duration) -> bool {
    let heartbeats = 1 + took.as_secs();
    (expected..=expected + heartbeats).contains(&requests)
}

#[test]
fn an_uncontended_lock_is_two_requests_and_its_release_another() {
    rerun_on_threads(async || {
        let server = counted().await;
        let lock = server.lock("uncontended");
        // The first round creates the queue's node and the nodes above it.
        server.cycle(&lock, 1).await;
        let rounds = 100;
        let began = Instant::now();
        let cost = server.uncontended(&lock, rounds).await;
        assert!(is_about(cost.requests, 3 * rounds, began.elapsed()), "{cost}");
    });
}

#[test]
fn a_lock_that_is_held_for_a_while_is_watched() {
    rerun_on_threads(async || {
        let server = counted().await;
        let lock = server.lock("held");
        let hold = async || {
            server.hold(&lock, Duration::from_millis(200)).await;
            tokio::time::sleep(Duration::from_millis(100)).await;
        };
        hold().await;
        let cost = server.cost(hold()).await;
        println!("a lock held for 200 ms: {cost}");
        // Besides the lock's own requests, there are two for the watch: one sets it, and one removes it.
        assert!((4..=6).contains(&cost.requests), "{cost}");
    });
}

/// A list of the session's nodes, once in 3.5 to 4 s, looks for all locks that are held.
#[test]
fn many_locks_that_are_held_cost_what_one_does() {
    rerun_on_threads(async || {
        let length = Duration::from_secs(12);
        let cost = counted().await.held_for(100, length).await;
        // Heartbeats, which come each second, and the lists.
        assert!(cost.requests <= length.as_secs() + 1 + 4, "{cost}");
    });
}

#[test]
fn a_try_in_vain_is_three_requests() {
    rerun_on_threads(async || {
        let server = counted().await;
        let lock = server.lock("taken");
        let guard = lock.acquire(Some(SOON)).await.expect("it is free");
        // Waits until the watch of the holder's own node has begun, so that its requests are not counted.
        tokio::time::sleep(SETTLED).await;
        let cost = server.cost(server.try_in_vain(&lock)).await;
        println!("a try in vain: {cost}");
        assert!(is_about(cost.requests, 3, Duration::ZERO), "{cost}");
        guard.release().await.expect("the store confirms");
    });
}

/// Contenders of one process that enter at the same time share listings of the queue.
#[test]
fn a_rush_lists_seldom() {
    const MANY: u64 = 300;
    rerun_on_threads(async || {
        let server = counted().await;
        let lock = server.lock("rush");
        let guard = lock.acquire(Some(SOON)).await.expect("it is free");
        let rush = async {
            let enter = |_| {
                let lock = lock.clone();
                tokio::spawn(async move { lock.acquire(None).await })
            };
            let waiting: Vec<_> = (0..MANY).map(enter).collect();
            let all = 1 + MANY as usize;
            let count = || server.server.entries("coordination", "lock").len();
            while block_in_place(count) < all {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            waiting
        };
        let mut waiting = Vec::new();
        let cost = server.cost(async { waiting = rush.await }).await;
        println!("{MANY} enter at once: {cost}");
        // For each contender, one request creates its node, and another one watches the node before it. If contenders
        // did not share listings of the queue, each would need a third request.
        assert!(cost.requests < MANY * 5 / 2, "{cost}");
        waiting.iter().for_each(|waiter| waiter.abort());
        guard.release().await.expect("the store confirms");
    });
}

#[test]
fn idle_waiters_cost_nothing_but_heartbeats() {
    rerun_on_threads(async || {
        let server = counted().await;
        // In this time no waiter re-checks, because a re-check comes after three and a half seconds at the earliest.
        let [idle, handing] = server.waited_for(Duration::from_millis(1_500)).await;
        assert!((1..=3).contains(&idle.requests), "a heartbeat each second: {idle}");
        // Each hand-over costs the request that removes the holder's node, and the read of the next waiter's node.
        assert!(handing.requests <= 3 * (WAITERS as u64 + 1), "{handing}");
    });
}

#[test]
fn c2_calls_in_doubt_are_cleared_away_together() {
    rerun_on_threads(async || counted().await.give_up_in_silences(10).await);
}
