//! The end of a session, told by a connection that breaks.

use std::time::{Duration, Instant};

use coordination::{Coordinator, LossReason, Result, State};
use coordination_tests::faults::SCHEDULING;
use coordination_tests::harness::{Direction, Server, Unit, Zookeeper, judged_on_threads};
use tokio::task::block_in_place;
use tokio::time::{sleep, timeout};

const LEASE: Duration = Duration::from_secs(30);
/// Longer than any word of the server takes, so that heartbeats bring none.
const HEARTBEAT: Duration = Duration::from_secs(5);

async fn client_of(zookeeper: &Zookeeper) -> Result<Coordinator> {
    let builder = Coordinator::builder().member_id("it").heartbeat(HEARTBEAT).ttl(LEASE);
    builder.connect(&format!("zookeeper://{}", zookeeper.authority())).await
}

/// An operator ends the session of a client.
fn end_session(zookeeper: &Zookeeper) {
    let session = zookeeper.session_of_member("coordination", "it").expect("it is connected");
    assert!(zookeeper.end_session(&session));
}

/// The server has ended the session: who stops is told that it is over, whether the client knew before or hears it then.
#[test]
fn a_stop_of_a_session_that_is_over_is_confirmed() -> Result<()> {
    judged_on_threads(stop_what_is_over)
}

async fn stop_what_is_over() -> Result<()> {
    let zookeeper = block_in_place(Zookeeper::one);
    for known in [0, 0, 100, 300, 1_000].map(Duration::from_millis) {
        let client = client_of(&zookeeper).await?;
        block_in_place(|| end_session(&zookeeper));
        sleep(known).await;
        let begun = Instant::now();
        client.stop().await?;
        println!("stopped after {:?}", begun.elapsed());
        assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    }
    Ok(())
}

/// T3: a session that the server has ended is lost when the client hears of it, and not with its next heartbeat.
#[test]
fn t3_the_end_of_a_session_is_told_at_once() -> Result<()> {
    judged_on_threads(tell_the_end)
}

async fn tell_the_end() -> Result<()> {
    let zookeeper = block_in_place(Zookeeper::one);
    for _ in 0..3 {
        let client = client_of(&zookeeper).await?;
        let mut state = client.state();
        // Without a guard, which would watch its own node.
        block_in_place(|| end_session(&zookeeper));
        let begun = Instant::now();
        let bound = zookeeper.notice_of_end(HEARTBEAT) + SCHEDULING;
        let told =
            timeout(bound, async { while state.changed().await == Some(State::Connected) {} });
        told.await.unwrap_or_else(|_| panic!("the state is {:?}", state.current()));
        println!("told after {:?}", begun.elapsed());
        assert_eq!(state.current(), State::Lost(LossReason::ExpiredByServer));
        client.stop().await?;
    }
    Ok(())
}

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
