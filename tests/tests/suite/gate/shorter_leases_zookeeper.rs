//! A ZooKeeper server that grants shorter leases than before, after it was started again with another configuration.

use std::fs::OpenOptions;
use std::io::Write;
use std::thread;
use std::time::Duration;

use coordination::{Coordinator, LossReason};
use coordination_tests::harness::{Direction, Server, Zookeeper, rerun_on_threads, wait_until};
use coordination_tests::must_hold;
use tokio::task::block_in_place;
use tokio::time::{sleep, timeout};

/// Longer than a restart and the pauses of the client crate between its attempts.
const LEASE: Duration = Duration::from_secs(12);
const SOON: Duration = Duration::from_secs(10);
/// With this lease, a client waits for up to a second and a half before it asks the servers.
const LONG_LEASE: Duration = Duration::from_secs(60);

async fn client(zookeeper: &Zookeeper, member: &str) -> Coordinator {
    client_at(&zookeeper.authority(), member, LEASE).await
}

async fn client_at(authority: &str, member: &str, lease: Duration) -> Coordinator {
    let url = format!("zookeeper://{authority}");
    let builder = Coordinator::builder().heartbeat(Duration::from_millis(300)).ttl(lease);
    builder.member_id(member).connect(&url).await.expect("a server is there")
}

/// Starts the first node again, which grants four seconds at most from then on.
fn shorten(zookeeper: &Zookeeper) {
    let configuration = zookeeper.directory().join("n0.cfg");
    let opened = OpenOptions::new().append(true).open(configuration);
    // Of two lines with the same name, the last one counts.
    let written = opened.and_then(|mut file| file.write_all(b"maxSessionTimeout=4000\n"));
    written.expect("the directory is writable");
    zookeeper.nodes()[0].restart();
    zookeeper.await_ready();
}

/// When the client has connected again, the servers keep its session for four seconds. A holder that is cut off then must not rely on
/// its lock for twelve.
#[test]
fn a_lock_is_lost_where_its_lease_was_made_shorter() {
    rerun_on_threads(async || {
        let zookeeper = block_in_place(Zookeeper::one);
        let holder = client(&zookeeper, "holder").await;
        let lock = holder.lock("x").expect("a good name");
        let guard = lock.acquire(Some(SOON)).await.expect("free");
        block_in_place(|| shorten(&zookeeper));
        let reason = timeout(SOON, guard.lost()).await.expect("the loss is told");
        assert_eq!(reason, LossReason::Revoked);
        must_hold!(!guard.is_held());
        let other = client(&zookeeper, "other").await;
        let lock = other.lock("x").expect("a good name");
        let next = lock.acquire(Some(SOON)).await.expect("it was lost");
        must_hold!(next.token() > guard.token());
        next.release().await.expect("the store confirms");
    });
}

/// The client is connected for a moment to a server that grants less, and asks the servers when that one is away. From then on the
/// client crate asks the others, too, for no more than that. So until that server has answered, no heartbeat counts.
#[test]
fn a_lock_is_lost_where_its_lease_was_made_shorter_before_it_asked() {
    rerun_on_threads(async || {
        let zookeeper = block_in_place(Zookeeper::three);
        let (shorter, other) = (zookeeper.proxy_to(0), zookeeper.proxy_to(1));
        shorter.refuse();
        let authority = format!("{},{}", shorter.address(), other.address());
        let holder = client_at(&authority, "holder", LONG_LEASE).await;
        let lock = holder.lock("x").expect("a good name");
        let guard = lock.acquire(Some(SOON)).await.expect("free");
        block_in_place(|| {
            shorten(&zookeeper);
            other.refuse();
            shorter.accept();
            other.reset_all();
            let answers = || shorter.bytes(Direction::ToClient) > 0;
            assert!(wait_until(SOON, answers), "the client does not connect");
            // Time for the answer to reach the client.
            thread::sleep(Duration::from_millis(50));
            shorter.refuse();
            other.accept();
            shorter.reset_all();
        });
        // Time for the client to connect.
        sleep(Duration::from_millis(500)).await;
        let deadline = guard.deadline();
        // Time for the client to ask.
        sleep(Duration::from_secs(3)).await;
        assert_eq!(guard.deadline(), deadline, "a heartbeat counts");
        shorter.accept();
        let reason = timeout(SOON, guard.lost()).await.expect("the loss is told");
        assert_eq!(reason, LossReason::Revoked);
        must_hold!(!guard.is_held());
    });
}
