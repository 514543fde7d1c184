//! F-9: calls that were given up while a server was paused reach the store when it is continued.

use std::thread;
use std::time::{Duration, Instant};

use coordination::Coordinator;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use super::{LONG, Site};
use crate::harness::wait_until;

const CLIENTS: usize = 8;

/// Calls that were given up have no effect: all entries are removed, and none appears again while its session lives.
/// Values that were created and deleted are not created again.
///
/// # Panics
///
/// If an assertion of the row fails.
pub fn f09_given_up_calls_come_late(site: &Site) {
    let runtime = Runtime::new().expect("a runtime");
    let names: Vec<_> = (0..CLIENTS).map(|index| format!("late-{index}")).collect();
    let clients: Vec<_> = names.iter().map(|name| runtime.block_on(site.client(name))).collect();
    let ttl = site.lease();
    for round in 1..=3 {
        // If there are several servers, one of them may be paused for any time. If there is only one, it must be
        // paused for less than a lease, because otherwise sessions would be lost.
        let (node, pause) = match site.server().nodes().len() {
            1 => (0, ttl / 2),
            _ => (site.server().wait_leader(), 2 * ttl),
        };
        site.server().node(node).pause();
        let until = Instant::now() + pause;
        let (mut turns, mut writers) = (JoinSet::new(), JoinSet::new());
        for (client, name) in clients.iter().zip(&names) {
            turns.spawn_on(take_turns(client.clone(), name.clone(), until), runtime.handle());
            let name = format!("{name}-{round}");
            writers.spawn_on(create_and_delete(client.clone(), name, until), runtime.handle());
        }
        thread::sleep(until - Instant::now());
        site.server().node(node).resume();
        runtime.block_on(turns.join_all());
        let deleted = runtime.block_on(writers.join_all());
        site.server().wait_ready();
        // Waits until the late calls have been carried out.
        thread::sleep(Duration::from_millis(500));
        let gone = wait_until(LONG, || site.entries().is_empty());
        assert!(gone, "round {round}: {:?}", site.entries());
        for name in deleted.iter().flatten() {
            let value = clients[0].value::<u32>(name).expect("a good name");
            let found = runtime.block_on(value.read()).expect("nothing is broken");
            assert_eq!(found, None, "round {round}: {name} was deleted");
        }
    }
}

/// A client that acquires and releases its own lock all the time, with short timeouts.
async fn take_turns(client: Coordinator, name: String, until: Instant) {
    let lock = client.lock(&name).expect("a good name");
    while Instant::now() < until {
        let patience = Duration::from_millis(rand::random_range(1..500));
        if let Ok(guard) = lock.acquire(Some(patience)).await {
            // A release that is not confirmed goes on in the background.
            drop(guard.release().await);
        }
    }
}

/// A client that creates values and deletes them. Returns the names of values whose deletion was confirmed.
async fn create_and_delete(client: Coordinator, name: String, until: Instant) -> Vec<String> {
    let mut deleted = Vec::new();
    for number in 0.. {
        if Instant::now() >= until {
            break;
        }
        let name = format!("{name}-{number}");
        let value = client.value::<u32>(&name).expect("a good name");
        match value.compare_and_set(None, &number).await {
            Ok(written) => assert!(written.is_some(), "nobody else writes {name}"),
            // The value may still be created later.
            Err(_) => continue,
        }
        while let Err(error) = value.delete().await {
            assert!(until.elapsed() < LONG, "{name} cannot be deleted: {error}");
        }
        deleted.push(name);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    deleted
}
