//! Nodes that an operator has removed by hand.

use std::time::Duration;

use coordination::{ClaimOptions, Coordinator, NewItem, Result};
use coordination_tests::harness::{Server, Zookeeper, rerun_on_threads};
use tokio::task::block_in_place;

const RECORDS: &str = "/coordination/records";

/// WK2: a work queue goes on working after somebody has removed one of its records.
#[test]
fn wk2_a_queue_goes_on_without_a_record_that_was_removed() -> Result<()> {
    rerun_on_threads(go_on_without_a_record)
}

async fn go_on_without_a_record() -> Result<()> {
    let zookeeper = block_in_place(Zookeeper::one);
    let url = format!("zookeeper://{}", zookeeper.authority());
    let client = Coordinator::builder().ttl(Duration::from_secs(4)).connect(&url).await?;
    let jobs = client.queue("jobs")?;
    // Bodies of this length are stored in records beside the queue's value.
    let post = async || jobs.post(&[NewItem::new(vec![7; 4_096])]).await;
    post().await?;
    let claim = jobs.claim(ClaimOptions::default().limit(1)).await?.expect("it is ready");
    assert_eq!(block_in_place(|| remove_bodies(&zookeeper)), 1);
    assert_eq!(claim.ack_all().await?, 1);
    post().await?;
    let claim = jobs.claim(ClaimOptions::default().limit(1)).await?.expect("it is ready");
    assert_eq!(claim.items()[0].body().len(), 4_096);
    assert_eq!(claim.ack_all().await?, 1);
    client.stop().await
}

/// Removes, from all queues, the records that hold the bodies of items; returns how many there were.
fn remove_bodies(zookeeper: &Zookeeper) -> usize {
    let below = |path: &String| {
        let children = zookeeper.children(path).into_iter();
        children.map(|child| format!("{path}/{child}")).collect::<Vec<_>>()
    };
    let kinds = below(&RECORDS.to_owned());
    let queues = kinds.iter().flat_map(below).collect::<Vec<_>>();
    let records = queues.iter().flat_map(below);
    let is_bodies = |path: &String| path.rsplit('/').next().is_some_and(|name| name.contains('b'));
    records.filter(is_bodies).filter(|path| zookeeper.delete(path)).count()
}
