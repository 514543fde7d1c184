//! How many requests and messages locking costs on etcd.

use std::sync::Arc;
use std::time::Duration;

use coordination::Admission;
use coordination_tests::harness::{Etcd, rerun_on_threads};

use super::{Counted, SETTLED, SOON, WAITERS, every};

/// A server, and a client with a heartbeat interval so long that no heartbeat is counted.
async fn counted() -> Counted {
    let heartbeat = Duration::from_secs(60);
    Counted::new(|| Arc::new(Etcd::one()), every(heartbeat).ttl(6 * heartbeat)).await
}

async fn beating() -> Counted {
    Counted::new(|| Arc::new(Etcd::one()), every(Duration::from_secs(1))).await
}

#[test]
fn an_uncontended_lock_is_one_request_and_its_release_another() {
    rerun_on_threads(async || {
        let server = counted().await;
        let lock = server.lock("uncontended");
        let rounds = 10;
        let cost = server.uncontended(&lock, rounds).await;
        assert_eq!(cost.requests, 2 * rounds);
        assert_eq!(cost.served(), 2 * rounds as i64);
        assert_eq!(cost.sent, 2 * rounds);
    });
}

/// A lock that is held for a while is watched. One stream serves all watches, and a key is read once when the stream
/// begins to watch it.
#[test]
fn a_lock_that_is_held_for_a_while_is_watched() {
    rerun_on_threads(async || {
        let server = counted().await;
        let lock = server.lock("held");
        let hold = || server.hold(&lock, Duration::from_millis(200));
        let first = server.cost(hold()).await;
        println!("the first lock held for 200 ms: {first}");
        assert_eq!((first.requests, first.served()), (4, 4));
        assert_eq!((first.of("Watch"), first.of("Range")), (1, 1));
        let second = server.cost(hold()).await;
        println!("the second lock held for 200 ms: {second}");
        // The key has been watched since the first hold, which began before this entry was written. So no event can
        // have been missed, and the key need not be read.
        assert_eq!((second.requests, second.served()), (2, 2));
        assert_eq!((second.of("Watch"), second.of("Range")), (0, 0));
    });
}

/// A list of the session's keys, once in 3.5 to 4 s, looks for all locks that are held.
#[test]
fn many_locks_that_are_held_cost_what_one_does() {
    rerun_on_threads(async || {
        let cost = counted().await.held_for(100, Duration::from_secs(12)).await;
        assert_eq!(cost.served(), cost.of("LeaseTimeToLive"), "{cost}");
        assert!((2..=4).contains(&cost.of("LeaseTimeToLive")), "{cost}");
    });
}

/// An attempt to acquire a lock that is held costs two requests: one enters, and the other removes the entry.
#[test]
fn a_try_in_vain_is_two_requests() {
    rerun_on_threads(async || {
        let server = counted().await;
        let lock = server.lock("taken");
        let guard = lock.acquire(Some(SOON)).await.expect("it is free");
        // Waits until the watch of the holder's own entry has begun, so that its requests are not counted.
        tokio::time::sleep(SETTLED).await;
        let cost = server.cost(server.try_in_vain(&lock)).await;
        println!("a try in vain: {cost}");
        assert_eq!((cost.requests, cost.served()), (2, 2));
        guard.release().await.expect("the store confirms");
    });
}

#[test]
fn idle_waiters_cost_nothing_but_heartbeats() {
    rerun_on_threads(async || {
        let server = beating().await;
        // In this time no waiter re-checks, because a re-check comes after three and a half seconds at the earliest.
        let [idle, handing] = server.waited_for(Duration::from_millis(1_500)).await;
        assert_eq!(idle.served(), idle.of("LeaseKeepAlive"));
        assert!((1..=3).contains(&idle.sent), "a heartbeat each second: {idle}");
        // Each hand-over costs the request that removes the holder's entry, a read of the next waiter's entry, and
        // another read if that waiter's watch started late.
        assert!(handing.requests <= 3 * (WAITERS as u64 + 1), "{handing}");
        assert_eq!((handing.of("LeaseGrant"), handing.of("Watch")), (0, 0));
    });
}

/// The costs that `docs/recipes/groups.md` names.
#[test]
fn a_group_is_a_few_requests() {
    rerun_on_threads(async || {
        let server = counted().await;
        let group = server.client.group("counted").expect("a good name");
        let cost = server.cost(async { group.create().await.expect("there is none") }).await;
        assert_eq!(cost.requests, 1, "create: {cost}");
        // When the entry is 20 ms old, the client begins to watch it, and reads it once: on a busy machine, before the join
        // has returned here. So both are counted together. Nothing else may follow.
        let mut membership = None;
        let joining = async {
            membership = Some(group.join(&1).await.expect("it is let in"));
            tokio::time::sleep(SETTLED).await;
        };
        let cost = server.cost(joining).await;
        println!("joining a group, and staying in it: {cost}");
        assert_eq!((cost.requests, cost.served()), (2 + 1 + 1, 4), "join: {cost}");
        assert_eq!(cost.of("Watch"), 1, "join: {cost}");
        // The client looks at a watched entry again after three and a half seconds at the earliest: until then, what follows is
        // done.
        let membership = membership.expect("it has joined");
        let cost = server.cost(async { membership.update(&2).await.expect("it is in") }).await;
        assert_eq!(cost.requests, 1, "update: {cost}");
        let cost = server.cost(async { drop(group.members().await.expect("it is there")) }).await;
        assert_eq!(cost.requests, 1, "members: {cost}");
        let cost = server.cost(async { membership.leave().await.expect("it is in") }).await;
        assert_eq!(cost.requests, 1, "leave: {cost}");
        let cost = server.cost(async { group.delete().await.expect("it is empty") }).await;
        assert_eq!(cost.requests, 2, "delete: {cost}");
    });
}

/// The same for a change. The member is of a client that is not counted.
#[test]
fn a_change_is_one_read_for_all_watches() {
    rerun_on_threads(async || {
        let server = counted().await;
        let url = server.server.url(&server.server.authority(), "");
        let heartbeat = Duration::from_secs(60);
        let beside = every(heartbeat).ttl(6 * heartbeat).connect(&url).await.expect("in reach");
        let group = server.client.group("counted").expect("a good name");
        group.create().await.expect("there is none");
        let same = beside.group("counted").expect("a good name");
        let membership = same.join(&1).await.expect("it is let in");
        // Opens the stream that serves all watches.
        server.hold(&server.lock("held"), SETTLED).await;
        let mut watches = Vec::new();
        let watching = async {
            for _ in 0..10 {
                watches.push(group.watch().await.expect("it is there"));
            }
        };
        let cost = server.cost(watching).await;
        println!("ten watches: {cost}");
        assert_eq!(cost.requests, 1, "watch: {cost}");
        tokio::time::sleep(SETTLED).await;
        let changing = async {
            membership.update(&2).await.expect("it is in");
            for watch in &mut watches {
                watch.next().await.expect("it is told");
            }
        };
        let cost = server.cost(changing).await;
        println!("an update, told to ten watches: {cost}");
        assert_eq!(cost.requests, 1, "{cost}");
        drop(watches);
        membership.leave().await.expect("it is in");
        beside.stop().await.expect("the store confirms");
    });
}

/// The costs that the documentation pages of these recipes name. The first use of each is not counted, because it
/// also stores the recipe's settings.
#[test]
fn permits_slots_and_terms_are_a_few_requests() {
    rerun_on_threads(async || {
        let server = counted().await;
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
        // The watch of the holder's own entry begins 20 ms after the grant. Waits for it, so that its requests are
        // not counted.
        tokio::time::sleep(SETTLED).await;
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
    });
}

#[test]
fn c2_calls_in_doubt_are_cleared_away_together() {
    rerun_on_threads(async || beating().await.give_up_in_silences(1).await);
}
