//! F-36 on Redis: the test with a lock; the other tests are in the soak.

use std::sync::Arc;
use std::time::Duration;

use coordination::ErrorKind;
use coordination_tests::faults::Site;
use coordination_tests::harness::{Redis, rerun_on_threads};
use tokio::task::block_in_place;
use tokio::time::{sleep, timeout};

use crate::WORKER;

const LONG: Duration = Duration::from_secs(30);

#[test]
fn f36_a_lock_is_kept_and_given_on_while_the_memory_is_full() {
    rerun_on_threads(async || {
        let redis = block_in_place(|| Arc::new(Redis::one()));
        let site = Site::on(Arc::clone(&redis) as Arc<_>, WORKER);
        let (one, other) = (site.client("one").await, site.client("other").await);
        let (lock, same) = (one.lock("x"), other.lock("x"));
        let (lock, same) = (lock.expect("a good name"), same.expect("a good name"));
        let guard = lock.acquire(None).await.expect("it is free");
        let next = tokio::spawn(async move { same.acquire(None).await });
        let seen = timeout(LONG, async {
            while lock.holders().await.expect("it answers").len() < 2 {
                sleep(Duration::from_millis(20)).await;
            }
        });
        seen.await.expect("it comes to wait");
        block_in_place(|| redis.ask(&["CONFIG", "SET", "maxmemory", "1"]));
        sleep(site.lease() * 5 / 4).await;
        assert!(guard.is_held());
        let refused = one.lock("y").expect("a good name").acquire(Some(LONG)).await;
        let refused = refused.expect_err("the memory is full");
        assert_eq!(refused.kind(), ErrorKind::Quota, "{refused}");
        guard.release().await.expect("the server confirms");
        let next = timeout(LONG, next).await.expect("it is its turn").expect("no panic");
        assert!(next.expect("it is its turn").is_held());
    });
}
