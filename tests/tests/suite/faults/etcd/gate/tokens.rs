//! F-56: a stream of watches was opened with an authentication token, and that token expires.

use std::time::{Duration, Instant};

use coordination::{Coordinator, Lock, LossReason};
use coordination_tests::harness::{Etcd, rerun_on_threads};
use tokio::task::block_in_place;
use tokio::time::{sleep, timeout};

const SOON: Duration = Duration::from_secs(10);
const ROUNDS: usize = 10;

/// A stream of watches keeps the token with which it was opened. If etcd 3.4 refuses a new watch because that token
/// has expired, it stops reading the stream. Locks have to work nevertheless.
#[test]
fn f56_watches_after_their_token() {
    rerun_on_threads(async || {
        let etcd = block_in_place(|| Etcd::options().users("").signed_tokens().start());
        let url = format!("etcd://{}{}", Etcd::user_information(), etcd.authority());
        let one = Coordinator::connect(&url).await.expect("the server is there");
        let other = Coordinator::connect(&url).await.expect("the server is there");
        let lock = |client: &Coordinator, name: &str| client.lock(name).expect("a good name");
        let take = async |lock: Lock| lock.acquire(Some(SOON)).await.expect("it is free");
        // Each client has opened its stream of watches by now. The sleep is longer than a token is valid.
        let _held = take(lock(&one, "one")).await;
        let _kept = take(lock(&other, "other")).await;
        sleep(Duration::from_secs(7)).await;

        let broken = take(lock(&one, "broken")).await;
        sleep(Duration::from_millis(200)).await;
        lock(&other, "broken").break_lock().await.expect("it is held");
        let told = timeout(SOON, broken.lost()).await;
        assert_eq!(told, Ok(LossReason::EntryDeleted));

        let start = Instant::now();
        for round in 0..ROUNDS {
            let name = format!("vol-{round}");
            let held = take(lock(&one, &name)).await;
            let waiting = tokio::spawn(take(lock(&other, &name)));
            while lock(&one, &name).holders().await.expect("it can be read").len() < 2 {}
            held.release().await.expect("the store confirms");
            waiting.await.expect("no panic").release().await.expect("the store confirms");
        }
        assert!(start.elapsed() < SOON / 2, "{ROUNDS} hand-overs took {:?}", start.elapsed());
    });
}
