//! F-61 on Redis: the test with a new namespace; the other tests are in the soak.

use std::sync::Arc;
use std::time::Duration;

use coordination::ErrorKind;
use coordination_tests::faults::Site;
use coordination_tests::harness::{Redis, rerun_on_threads};
use tokio::task::block_in_place;

use crate::WORKER;

/// The key in which the server keeps its record of the namespace.
const RECORD: &str = "{coordination}:clock";

/// While the quarantine lasts, nothing is granted in a new namespace, nor in a namespace whose record was changed by
/// hand. Errors of calls name the quarantine as the reason.
#[test]
fn f61_who_asks_in_a_new_namespace_is_told_of_the_quarantine() {
    rerun_on_threads(async || {
        let redis = block_in_place(|| Arc::new(Redis::one()));
        let mut site = Site::on(Arc::clone(&redis) as Arc<_>, WORKER);
        site.url = site.url.replace("quarantine=off", "quarantine=1h");
        let client = site.client("one").await;
        let lock = client.lock("x").expect("a good name");
        let refused = lock.acquire(Some(Duration::from_secs(1))).await;
        let waited = refused.expect_err("the namespace is new");
        let refused = lock.try_acquire().await;
        let asked = refused.expect_err("the namespace is new");
        for error in [waited, asked] {
            println!("{error}");
            assert_eq!(error.kind(), ErrorKind::Unavailable);
            assert!(error.to_string().contains("it is new"), "{error}");
        }
        block_in_place(|| redis.ask(&["HSET", RECORD, "server", "garbage"]));
        let lock = site.client("two").await.lock("x").expect("a good name");
        let error = lock.try_acquire().await.expect_err("nobody knows what was granted");
        assert!(error.to_string().contains("was changed by somebody else"), "{error}");
    });
}
