//! How many requests and messages locking costs on Consul.

use std::sync::Arc;
use std::sync::mpsc::{self, TryRecvError};
use std::thread;
use std::time::Duration;

use coordination::{Coordinator, ValueEvent};
use coordination_tests::harness::{Consul, rerun_on_threads};

use super::{Counted, SOON, WAITERS, every};

/// So long that no heartbeat is sent while requests are counted.
const HEARTBEAT: Duration = Duration::from_secs(3);

const IDLE: Duration = Duration::from_secs(6);

async fn counted() -> Counted {
    Counted::new(|| Arc::new(Consul::one()), every(HEARTBEAT)).await
}

/// Waits until the next request, which is a heartbeat, was sent and answered. If requests are counted from then on, the
/// next heartbeat comes a whole interval later.
async fn after_a_heartbeat(server: &Counted) {
    let beat = server.proxy.requests();
    while server.proxy.requests() == beat {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    tokio::time::sleep(Duration::from_millis(50)).await;
}

#[test]
fn an_uncontended_lock_is_one_request_and_its_release_another() {
    rerun_on_threads(async || {
        let server = counted().await;
        let lock = server.lock("uncontended");
        let rounds = 10;
        after_a_heartbeat(&server).await;
        let cost = server.uncontended(&lock, rounds).await;
        assert_eq!(cost.requests, 2 * rounds);
    });
}

/// A lock that is held for a while is watched by one blocking query.
#[test]
fn a_lock_that_is_held_for_a_while_is_watched() {
    rerun_on_threads(async || {
        let server = counted().await;
        let lock = server.lock("held");
        after_a_heartbeat(&server).await;
        let cost = server.cost(server.hold(&lock, Duration::from_millis(200))).await;
        println!("a lock held for 200 ms: {cost}");
        assert_eq!(cost.requests, 3);
    });
}

/// An attempt to acquire a lock that is held costs two requests: one enters, and the other removes the entry.
#[test]
fn a_try_in_vain_is_two_requests() {
    rerun_on_threads(async || {
        let server = counted().await;
        let url = server.server.url(&server.server.authority(), "");
        let other = Coordinator::connect(&url).await.expect("the server is there");
        let held =
            other.lock("taken").expect("a good name").acquire(Some(SOON)).await.expect("free");
        let lock = server.lock("taken");
        after_a_heartbeat(&server).await;
        let cost = server.cost(server.try_in_vain(&lock)).await;
        println!("a try in vain: {cost}");
        assert_eq!(cost.requests, 2);
        held.release().await.expect("the store confirms");
    });
}

#[test]
fn many_locks_that_are_held_cost_a_few_queries() {
    rerun_on_threads(async || {
        let cost = counted().await.held_for(100, Duration::from_secs(10)).await;
        // Three blocking queries, each repeated every second; every five seconds two reads of up to sixty keys each, for
        // the locks that share a query; and heartbeats. Queries that move to other connections are sent once more.
        assert!(cost.requests <= 3 * 10 + 2 * 3 + 4 + 10, "{cost}");
    });
}

#[test]
fn idle_waiters_cost_a_few_queries() {
    rerun_on_threads(async || {
        let server = counted().await;
        let [idle, handing] = server.waited_for(Duration::from_secs(10)).await;
        // While nothing happens, there are three kinds of requests: three blocking queries, each repeated every
        // second; a re-check every five seconds, for the waiters that share a query; and heartbeats.
        assert!(idle.requests <= 3 * 10 + 2 + 4, "{idle}");
        // Each hand-over costs the request that removes the holder's entry, a read of the next waiter's entry, and
        // the blocking queries that return because of the change.
        assert!(handing.requests <= 4 * (WAITERS as u64 + 1), "{handing}");
    });
}

/// A third client changes other keys some hundred times a second, and each change raises Consul's index. The watch must
/// not query more often because of these changes.
#[test]
fn a_watch_of_a_value_that_was_never_set_costs_two_queries_a_second() {
    rerun_on_threads(async || {
        let consul = Arc::new(Consul::one());
        let writing = Arc::clone(&consul);
        let server = Counted::new(move || consul, every(HEARTBEAT)).await;
        let mut watch = server.client.value::<u64>("never-set").expect("a good name").watch();
        let (stop, stopped) = mpsc::channel::<()>();
        let writer = thread::spawn(move || {
            let mut written = 0;
            while stopped.try_recv() == Err(TryRecvError::Empty) {
                writing.ask("PUT", &format!("/v1/kv/foreign/{}", written % 100), "x");
                written += 1;
            }
            written
        });
        let watching = async {
            loop {
                assert_eq!(watch.next().await.expect("the server answers"), ValueEvent::NoValue);
            }
        };
        let watching = tokio::time::timeout(IDLE, watching);
        let cost = server.cost(async { drop(watching.await) }).await;
        drop(stop);
        let written: u32 = writer.join().expect("it writes");
        println!("beside {written} foreign writes: {cost}");
        assert!(written > 100, "{written} foreign writes are few");
        // Besides two queries a second there are one or two heartbeats, and the watch's first read.
        assert!(cost.requests <= 2 * IDLE.as_secs() + 4, "{cost}");
    });
}

#[test]
fn c2_calls_in_doubt_are_cleared_away_together() {
    rerun_on_threads(async || counted().await.give_up_in_silences(1).await);
}
