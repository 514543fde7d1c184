//! The end of a session, reported when the connection breaks.

use std::time::{Duration, Instant};

use coordination::{Coordinator, Lock, LossReason, Result, State};
use coordination_tests::faults::SCHEDULING;
use coordination_tests::harness::{Direction, Mode, Server, Unit, Zookeeper, rerun_on_threads};
use tokio::task::block_in_place;
use tokio::time::{sleep, timeout};

const LEASE: Duration = Duration::from_secs(30);
/// So long that the server reports the end of a session before the next heartbeat could find it out.
const HEARTBEAT: Duration = Duration::from_secs(5);

async fn client_of(zookeeper: &Zookeeper) -> Result<Coordinator> {
    let builder = Coordinator::builder().member_id("it").heartbeat(HEARTBEAT).ttl(LEASE);
    builder.connect(&format!("zookeeper://{}", zookeeper.authority())).await
}

/// Ends the client's session, as an operator would.
fn end_session(zookeeper: &Zookeeper) {
    let session = zookeeper.session_of_member("coordination", "it").expect("it is connected");
    assert!(zookeeper.end_session(&session));
}

/// If the server has ended the session, `stop` confirms that the session is over. It does so if the client knew of the
/// end before the call, and also if the client learns of it only by the call.
#[test]
fn a_stop_of_a_session_that_is_over_is_confirmed() -> Result<()> {
    rerun_on_threads(stop_what_is_over)
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

/// T3: a session that the server has ended is lost as soon as the server reports the end, not only at the client's next
/// heartbeat.
#[test]
fn t3_the_end_of_a_session_is_told_at_once() -> Result<()> {
    rerun_on_threads(tell_the_end)
}

async fn tell_the_end() -> Result<()> {
    let zookeeper = block_in_place(Zookeeper::one);
    for _ in 0..3 {
        let client = client_of(&zookeeper).await?;
        let mut state = client.state();
        // The client holds no lock here, because the watch on a lock's node would report the loss first.
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

/// The server closes the session, and its reply is lost. The client learns by its next connection that the session is
/// over, so its `stop` succeeds.
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

/// After a loss, the answer to the opening of the next session arrives so late that the attempt has been given up. A
/// later attempt uses the session that this answer opened. Heartbeats then extend this session by the whole lease
/// nevertheless.
#[test]
fn a_session_that_opened_late_has_the_whole_lease() -> Result<()> {
    rerun_on_threads(open_late)
}

async fn open_late() -> Result<()> {
    const SHORT: Duration = Duration::from_secs(4);
    let zookeeper = block_in_place(Zookeeper::one);
    let proxy = zookeeper.proxy_to(0);
    let builder = Coordinator::builder().member_id("it").ttl(SHORT);
    let client = builder.connect(&format!("zookeeper://{}", proxy.address())).await?;
    let lock = client.lock("it")?;
    let before = most_left(&lock).await?;
    // The library gives an attempt up after a sixth of the lease, and the client crate after a third. The next
    // session may be requested up to a sixth of the lease after the loss, because for that long the library first
    // tries to end the old session.
    for late in [SHORT / 4, SHORT / 3, SHORT * 5 / 12] {
        let mut state = client.state();
        proxy.set(Direction::ToClient, Mode::Stall);
        while !matches!(state.current(), State::Lost(_)) {
            state.changed().await;
        }
        sleep(late).await;
        proxy.heal();
        while state.current() != State::Connected {
            state.changed().await;
        }
        let after = most_left(&lock).await?;
        println!(
            "{before:?} are left at the most, and {after:?} in the session that opened {late:?} late"
        );
        assert!(after > before.mul_f64(0.9), "{after:?} of {before:?}");
    }
    client.stop().await
}

/// Holds the lock for some heartbeats, and returns the longest time that was left of the lease meanwhile.
async fn most_left(lock: &Lock) -> Result<Duration> {
    let guard = lock.acquire(None).await?;
    // Waits until the deadline comes from heartbeats, and not from the opening.
    sleep(Duration::from_secs(2)).await;
    let mut most = Duration::ZERO;
    for _ in 0..200 {
        most = most.max(guard.remaining().unwrap_or_default());
        sleep(Duration::from_millis(10)).await;
    }
    guard.release().await?;
    Ok(most)
}
