//! F-25: a server takes over that has not received the newest changes of entries that it knows.

use std::time::{Duration, Instant};

use coordination::{Coordinator, Group};
use coordination_tests::harness::redis::Reply;
use coordination_tests::harness::{
    Redis, Server, ports::free_address, rerun_on_threads, wait_until,
};
use tokio::task::block_in_place;

use super::replicas::{QUEUE, replicate};
use super::{LONG, quarantined, site};

const TTL: Duration = Duration::from_secs(6);

/// The last update of each entry is made again: a holder that has become a reader keeps no reader out. What is written at the new
/// server stays.
#[test]
fn f25_an_update_that_was_lost_is_made_again() {
    after_a_fail_over("off", async |holder, held| {
        held.member.update(&4).await.expect("it is a member");
        let other = &holder;
        let another = other.lock("x").expect("a good name").acquire_shared(Some(LONG)).await;
        another.expect("its holder only reads").release().await.expect("it is held");
        // Over three heartbeats, in which an older one would have been made again.
        let until = Instant::now() + TTL;
        while Instant::now() < until {
            assert_eq!(said(&held.group).await.as_deref(), Some("4"), "the newest");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
}

/// Also while the new server grants nothing, as its quarantine lasts.
#[test]
fn f25_an_update_that_was_lost_is_made_again_during_quarantine() {
    after_a_fail_over("20s", async |other, held| {
        let until = Instant::now() + Duration::from_secs(10);
        while said(&held.group).await.as_deref() != Some("3") {
            assert!(Instant::now() < until, "the last update was not made again");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let term = other.election("e").expect("a good name").leader().await.expect("it is read");
        let value: String = term.expect("it leads").value().expect("it is text");
        assert_eq!(value, "new", "what was proclaimed last");
    });
}

/// What the holder has, all of which it has changed since the new server last heard of it.
struct Held {
    group: Group,
    member: coordination::Membership,
}

/// Makes a holder change its entries, kills the server, and lets one take over that has not received these changes. Then calls
/// `check` with another client.
fn after_a_fail_over(quarantine: &str, check: impl AsyncFn(Coordinator, &Held)) {
    rerun_on_threads(async || {
        let (redis, site) = block_in_place(|| site(Redis::options().nodes(2)));
        block_in_place(|| redis.wait_replicated(1));
        let [one, two] = [0, 1].map(|node| redis.node(node).address());
        let url = quarantined(&site.at(format!("{one},{two}")), quarantine).url;
        let [holder, other] = [connected(&url).await, connected(&url).await];
        let group = holder.group("g").expect("a good name");
        // A new server grants nothing before its quarantine is over.
        let lock = holder.lock("x").expect("a good name");
        let free = lock.acquire(Some(2 * LONG)).await.expect("it is free");
        free.release().await.expect("it is held");
        let member = group.join_or_create(&1).await.expect("it joins");
        let election = holder.election("e").expect("a good name");
        let leadership = election.campaign("old", Some(LONG)).await.expect("nobody leads");
        let guard = lock.acquire(Some(LONG)).await.expect("it is free");
        block_in_place(|| {
            let has_all = || redis.try_ask(1, &["ZCARD", QUEUE]).ok() == Some(Reply::Number(1));
            assert!(wait_until(LONG, has_all), "the replica does not hear of it");
            // From here on the replica receives nothing.
            replicate(&redis, 1, Some(free_address()));
        });
        let reading = guard.downgrade().await.expect("it is held");
        for new in [2, 3] {
            member.update(&new).await.expect("it is a member");
        }
        leadership.proclaim("new").await.expect("it leads");
        block_in_place(|| {
            redis.node(0).kill();
            let is_exclusive = redis.try_ask(1, &["ZCARD", QUEUE]).expect("it answers");
            assert_eq!(is_exclusive, Reply::Number(1), "it has heard of the change");
            replicate(&redis, 1, None);
        });
        let held = Held { group, member };
        check(other.clone(), &held).await;
        assert!(reading.is_held() && leadership.is_held() && held.member.is_held());
        drop(site);
    });
}

async fn connected(url: &str) -> Coordinator {
    let builder = Coordinator::builder().ttl(TTL);
    builder.connect(url).await.expect("the server is there")
}

/// What the group's only member says of itself, as JSON.
async fn said(group: &Group) -> Option<String> {
    let members = group.members().await.expect("it is listed");
    members.iter().next().map(|member| member.capabilities.as_json().to_owned())
}
