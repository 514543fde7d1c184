//! F-73: rights that the nodes' access control lists do not give.

use std::time::Duration;

use coordination::{Coordinator, ErrorKind, Result};
use coordination_tests::faults::LONG;
use coordination_tests::faults::connecting::Traced;
use coordination_tests::harness::{Server, Zookeeper, rerun_if_starved, rerun_on_threads};
use tokio::task::block_in_place;

use crate::WORKER;

const RIGHTS: [&str; 4] = ["create", "read", "write", "delete"];

/// F-73: at each attempt to connect, another one of the rights on the namespace's node is missing.
#[test]
fn f73_each_right_is_missing() {
    rerun_if_starved(|| {
        let zookeeper = Zookeeper::one();
        let mut client = Traced::new(WORKER, &[]);
        let url = format!("zookeeper://{}/fleet/locks", zookeeper.authority());
        // In the first round, only an administrator has used the nodes. In the second round, a client has used them
        // too.
        zookeeper.create_all(["/fleet", "/fleet/locks"].map(str::to_owned));
        for _ in 0..2 {
            for missing in RIGHTS {
                zookeeper.permit_all_but("/fleet/locks", Some(missing));
                println!("F-73 zookeeper: without {missing}");
                client.refused_with(&url, &["Permission"], missing);
            }
            zookeeper.permit_all_but("/fleet/locks", None);
            client.connects(&url);
        }
        // Only the successful attempts have made nodes.
        let kinds = zookeeper.children("/fleet/locks");
        assert_eq!(kinds, ["lock", "member", "session"]);
    });
}

/// If the queue's node does not allow its entries to be removed, a release fails with an error that says so. Once the
/// node allows it, the release works.
#[test]
fn a_release_without_the_right_says_so() -> Result<()> {
    rerun_on_threads(release_without_the_right)
}

async fn release_without_the_right() -> Result<()> {
    let zookeeper = block_in_place(Zookeeper::one);
    let url = format!("zookeeper://{}", zookeeper.authority());
    let client = Coordinator::builder().ttl(Duration::from_secs(4)).connect(&url).await?;
    let guard = client.lock("it")?.acquire(None).await?;
    block_in_place(|| zookeeper.permit_all_but("/coordination/lock/it", Some("delete")));
    let refused = guard.release().await.expect_err("the node stands there");
    assert_eq!(refused.kind(), ErrorKind::Permission, "{refused}");
    assert!(refused.to_string().contains("delete"), "{refused}");
    block_in_place(|| zookeeper.permit_all_but("/coordination/lock/it", None));
    client.lock("it")?.acquire(Some(LONG)).await?.release().await?;
    client.stop().await
}
