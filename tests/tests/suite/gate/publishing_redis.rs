//! What somebody can do on Redis who may use channels and no key.

use std::sync::Arc;
use std::time::Duration;

use coordination_tests::faults::Site;
use coordination_tests::harness::redis::Operator;
use coordination_tests::harness::{Redis, Server, rerun_on_threads};
use tokio::task::block_in_place;
use tokio::time::sleep;

use crate::WORKER;

const LONG: Option<Duration> = Some(Duration::from_secs(30));
/// The key in which the server keeps its record of the namespace.
const RECORD: &str = "{coordination}:clock";

/// S1, SEC-7: a user that may use all channels and no key tells no client that its turn has come, although each message on a
/// client's channel shows it the name of the server's record.
#[test]
fn sec7_who_may_use_no_key_tells_nobody_that_its_turn_has_come() {
    rerun_on_threads(async || {
        let redis = block_in_place(|| Arc::new(Redis::one()));
        let site = Site::on(Arc::clone(&redis) as Arc<_>, WORKER);
        let (one, other) = (site.client("one").await, site.client("other").await);
        let (lock, theirs) = (one.lock("x"), other.lock("x"));
        let (lock, theirs) = (lock.expect("a good name"), theirs.expect("a good name"));
        let held = lock.acquire(LONG).await.expect("it is free");
        let waiting = tokio::spawn(async move { theirs.acquire(LONG).await });
        let waiter = loop {
            let contenders = lock.holders().await.expect("it answers");
            if let Some(waiter) = contenders.get(1) {
                break waiter.token;
            }
        };
        block_in_place(|| {
            let record = redis.ask(&["HGET", RECORD, "server"]).text().expect("there is a record");
            // What the server says when the lock is free.
            let free = format!("lock/x {} exclusive {waiter} free {record}", held.token());
            redis.ask(&["ACL", "SETUSER", "stranger", "on", ">canary", "allchannels", "+@pubsub"]);
            let mut stranger = Operator::connect(redis.node(0).address()).expect("it listens");
            let mut ask = |words: &[&str]| stranger.ask(words).expect("it answers");
            ask(&["AUTH", "stranger", "canary"]);
            let channels = ask(&["PUBSUB", "CHANNELS", "{coordination}:client:*"]).texts();
            assert!(channels.len() >= 2, "each client has one: {channels:?}");
            for channel in channels {
                assert_eq!(ask(&["PUBLISH", &channel, &free]).text().as_deref(), Some("1"));
            }
        });
        sleep(Duration::from_millis(500)).await;
        assert!(held.is_held() && !waiting.is_finished(), "two hold the lock");
        held.release().await.expect("the server confirms");
        let next = waiting.await.expect("no panic").expect("it is free");
        next.release().await.expect("the server confirms");
    });
}
