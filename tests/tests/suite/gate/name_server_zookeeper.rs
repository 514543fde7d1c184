//! ZooKeeper's servers, whose host name cannot be looked up any more.

use std::time::Duration;

use coordination::Coordinator;
use coordination_tests::harness::{Named, Server, Zookeeper, rerun_on_threads, wait_until};
use tokio::task::block_in_place;

/// Much longer than it takes to connect again, and to ask the servers.
const LEASE: Duration = Duration::from_secs(20);

/// The connection breaks while the name server is away. The client connects again, to an address that it knows, and asks the server
/// there whether it still grants the lease. Only then do heartbeats count again.
#[test]
fn a_session_is_kept_while_no_name_can_be_looked_up() {
    rerun_on_threads(async || {
        let zookeeper = block_in_place(Zookeeper::one);
        let proxy = zookeeper.proxy_to(0);
        // With two addresses, so that the client crate knows the one that answers.
        let named = Named::new(1, &[proxy.address().port()]);
        let url = format!("zookeeper://{}", named.authority(&proxy.address().to_string()));
        let builder = Coordinator::builder().heartbeat(Duration::from_millis(300)).ttl(LEASE);
        let holder = builder.member_id("holder").connect(&url).await.expect("the name is known");
        let lock = holder.lock("x").expect("a good name");
        let guard = lock.acquire(Some(LEASE)).await.expect("free");
        named.lose_name_server();
        block_in_place(|| {
            proxy.reset_all();
            // A heartbeat that was answered before may still move the deadline on, but by less.
            let later = guard.deadline().expect("a lease has a deadline");
            let later = later.saturating_add(LEASE / 10);
            let counts = || guard.deadline().is_some_and(|deadline| deadline > later);
            assert!(wait_until(LEASE, counts), "no heartbeat counts");
        });
        assert!(guard.is_held());
    });
}
