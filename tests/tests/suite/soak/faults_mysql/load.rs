//! Many processes at once, and what that leaves in the tables.

use std::sync::Arc;
use std::time::Duration;

use coordination_history::read;
use coordination_tests::faults::{Process, Site, many};
use coordination_tests::harness::{Mysql, Scratch, rerun_if_starved};
use serde_json::json;

use crate::WORKER;

const PROCESSES: usize = 16;
/// Each of them, in all.
const TURNS: usize = 1_000;
/// Nobody is to lose a session in a rush.
const LEASE: Duration = Duration::from_secs(60);

/// Each process takes these locks in turn, one after the other, so often each; every grant is judged.
fn contend(processes: &[Process], locks: usize, turns: usize) {
    let scratch = Scratch::new("load");
    let file = |lock: usize| scratch.join(format!("history-{lock}"));
    for step in 0..locks {
        let begin = |(index, process): (usize, &Process)| {
            // Not all of them the same one at the same time.
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
        let served = many::judge(&history, PROCESSES * turns);
        if locks == 1 {
            println!("{PROCESSES} × {turns} on one lock: {served:?}");
        }
    }
}

/// S1, S2: sixteen processes with a thousand acquisitions each, on one lock and on a hundred: never two at once, tokens rise,
/// and nobody is told of a deadlock. What is left of it in the tables is bounded.
#[test]
fn s2_sixteen_processes_on_one_lock_and_on_a_hundred() {
    rerun_if_starved(|| {
        let mysql = Arc::new(Mysql::options().set("general-log", "off").start());
        let site = Site::on(Arc::clone(&mysql) as Arc<_>, WORKER);
        let site = site.with_ttl(LEASE).with_heartbeat(LEASE / 6);
        let processes: Vec<_> =
            (0..PROCESSES).map(|index| site.process(&format!("client-{index}"))).collect();
        contend(&processes, 1, TURNS);
        contend(&processes, 100, TURNS / 100);
        // The innermost count is what the server has undone, and nobody was told of.
        println!("deadlocks: {}", mysql.ask("SHOW GLOBAL STATUS LIKE 'Innodb_deadlocks'"));
        let rows = |table: &str| {
            let count =
                mysql.ask(&format!("SELECT COUNT(*) FROM coordination.coordination_{table}"));
            count.parse::<u64>().expect("a number")
        };
        let left = ["queues", "entries", "sessions"].map(rows);
        println!("rows of queues, entries and sessions: {left:?}");
        assert!(left[0] <= 101 && left[1] == 0 && left[2] <= 2 * PROCESSES as u64, "{left:?}");
        let size = "SELECT SUM(data_length + index_length) FROM information_schema.tables
                      WHERE table_schema = 'coordination'";
        let size: u64 = mysql.ask(size).parse().expect("a number");
        println!("tables: {size} bytes");
        assert!(size < 32 << 20, "{size} bytes");
    });
}
