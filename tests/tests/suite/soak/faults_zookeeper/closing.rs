//! The end of a session, told by a connection that breaks.

use std::time::{Duration, Instant};

use coordination::Coordinator;
use coordination_tests::harness::{Direction, Server, Unit, Zookeeper};
use tokio::task::block_in_place;

/// The server ends the session, and its answer is lost: the next connection says so.
#[tokio::test(flavor = "multi_thread")]
async fn a_stop_whose_answer_is_lost_is_confirmed() {
    let zookeeper = block_in_place(Zookeeper::one);
    let proxy = zookeeper.proxy_to(0);
    for _ in 0..5 {
        let client = Coordinator::builder()
            .heartbeat(Duration::from_secs(2))
            .ttl(Duration::from_secs(30))
            .connect(&format!("zookeeper://{}", proxy.address()))
            .await
            .expect("the server is there");
        proxy.cut_before(Direction::ToClient, Unit::Messages, 1);
        let begun = Instant::now();
        client.stop().await.expect("the server has said that it is over");
        assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
        assert!(!proxy.is_cut_pending(), "no answer was lost");
        proxy.heal();
    }
}
