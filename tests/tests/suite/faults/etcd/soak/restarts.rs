//! F-58: the clients of many users reconnect at the same time.

use std::time::Duration;

use coordination::{Coordinator, State};
use coordination_tests::harness::{Etcd, rerun_on_threads};
use tokio::task::block_in_place;
use tokio::time::{sleep, timeout};

const CLIENTS: usize = 50;
const RESTARTS: usize = 10;
/// So long that no session ends while the server checks the passwords of all clients. With this bcrypt cost, one
/// check takes 100 ms of a processor.
const LEASE: Duration = Duration::from_secs(20);

/// No session is lost, although the server checks passwords for seconds after each restart.
#[test]
fn f58_fifty_users_after_a_restart() {
    rerun_on_threads(async || {
        let etcd = block_in_place(|| Etcd::options().users("").flag("--bcrypt-cost=11").start());
        let url = format!("etcd://{}{}", Etcd::user_information(), etcd.authority());
        let mut clients = Vec::new();
        for _ in 0..CLIENTS {
            let client = Coordinator::builder().ttl(LEASE).connect(&url).await;
            clients.push(client.expect("the server is there"));
        }
        let mut guards = Vec::new();
        for (number, client) in clients.iter().enumerate() {
            let lock = client.lock(format!("vol-{number}")).expect("a good name");
            guards.push(lock.acquire(Some(LEASE)).await.expect("it is free"));
        }
        for _ in 0..RESTARTS {
            block_in_place(|| {
                etcd.node(0).kill();
                std::thread::sleep(Duration::from_millis(300));
                etcd.node(0).restart();
                etcd.wait_ready();
            });
            sleep(Duration::from_secs(1)).await;
            for client in &clients {
                let mut state = client.state();
                let connected = async {
                    while state.current() != State::Connected {
                        assert!(state.changed().await.is_some(), "it was not stopped");
                    }
                };
                timeout(LEASE, connected).await.expect("it comes back");
            }
            assert!(guards.iter().all(|guard| guard.is_held()));
        }
    });
}
