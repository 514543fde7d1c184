//! Many processes at the same time, on stores that keep their queues in the tables of an SQL server.

use std::sync::Arc;
use std::time::Duration;

use coordination::{Coordinator, Result};
use coordination_history::read;
use coordination_tests::faults::{Process, Site, many};
use coordination_tests::harness::{Scratch, Server, on_threads};
use serde_json::json;

use crate::WORKER;

pub(crate) const PROCESSES: usize = 16;
/// How many acquisitions each process makes, with one lock and again with a hundred locks.
const TURNS: usize = 1_000;
/// In how many rounds the acquisitions of one lock are made. The time within which a process has to answer is for one round: on
/// MySQL each hand-over waits for the next poll, so all rounds together may take longer than that.
const ROUNDS: usize = 10;
/// A lease so long that no session is lost although the machine is busy.
const LEASE: Duration = Duration::from_secs(60);

/// How many acquisitions [`acquire_often`] makes in the check of what they leave, and of how many locks.
pub(crate) const ACQUISITIONS: usize = 100_000;
pub(crate) const LOCKS: usize = 1_000;
/// How many sessions make the acquisitions.
pub(crate) const CLIENTS: usize = 16;

/// Makes so many acquisitions of [`LOCKS`] locks. On return, each lock is released, and each session is closed.
pub(crate) fn acquire_often(url: &str, acquisitions: usize) {
    on_threads(async {
        let clients = (0..CLIENTS).map(|client| {
            let first = client * LOCKS / CLIENTS;
            tokio::spawn(acquire_in_turn(url.to_owned(), first, acquisitions / CLIENTS))
        });
        for client in clients.collect::<Vec<_>>() {
            client.await.expect("no panic").expect("every lock is acquired and released");
        }
    });
}

async fn acquire_in_turn(url: String, first: usize, acquisitions: usize) -> Result<()> {
    let coordinator = Coordinator::builder().ttl(LEASE).connect(&url).await?;
    for lock in (first..).map(|turn| turn % LOCKS).take(acquisitions) {
        let guard = coordinator.lock(format!("often-{lock}"))?.acquire(Some(LEASE)).await?;
        guard.release().await?;
    }
    coordinator.stop().await
}

/// Each of sixteen processes acquires one lock a thousand times, and then a hundred locks ten times each.
pub(crate) fn contend_on(server: Arc<dyn Server>) {
    let site = Site::on(server, WORKER).with_ttl(LEASE).with_heartbeat(LEASE / 6);
    let processes: Vec<_> =
        (0..PROCESSES).map(|index| site.process(&format!("client-{index}"))).collect();
    contend(&processes, 1, ROUNDS, TURNS / ROUNDS);
    contend(&processes, 100, 1, TURNS / 100);
}

/// In each round each process acquires these locks one after the other, each of them `turns` times; every grant is checked.
fn contend(processes: &[Process], locks: usize, rounds: usize, turns: usize) {
    let scratch = Scratch::new("load");
    let file = |lock: usize| scratch.join(format!("history-{lock}"));
    for step in (0..rounds).flat_map(|_| 0..locks) {
        let begin = |(index, process): (usize, &Process)| {
            // Each process begins with another lock.
            let lock = (step + index * locks / PROCESSES) % locks;
            let name = format!("load-{lock}");
            process
                .send(json!({ "command": "cycle", "lock": name, "n": turns, "file": file(lock) }))
        };
        let begun: Vec<_> = processes.iter().enumerate().map(begin).collect();
        for (process, id) in processes.iter().zip(begun) {
            many::finish(process, id);
        }
    }
    for lock in 0..locks {
        let mut history = read(file(lock)).expect("every record is whole");
        history.sort_by_key(|record| record.at);
        let served = many::judge(&history, PROCESSES * rounds * turns);
        if locks == 1 {
            println!("{PROCESSES} × {} on one lock: {served:?}", rounds * turns);
        }
    }
}
