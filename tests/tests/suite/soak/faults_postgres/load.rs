//! Many processes at once, and what that leaves in the tables.

use std::sync::Arc;
use std::time::Duration;

use coordination_history::read;
use coordination_tests::faults::{Process, Site, many};
use coordination_tests::harness::{Postgres, Scratch, Server, rerun_if_starved, wait_until};
use serde_json::json;

use super::LONG;
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
        let options =
            Postgres::options().set("autovacuum_naptime", "2s").set("log_statement", "none");
        let postgres = Arc::new(options.start());
        let site = Site::on(Arc::clone(&postgres) as Arc<_>, WORKER);
        let site = site.with_ttl(LEASE).with_heartbeat(LEASE / 6);
        let processes: Vec<_> =
            (0..PROCESSES).map(|index| site.process(&format!("client-{index}"))).collect();
        contend(&processes, 1, TURNS);
        contend(&processes, 100, TURNS / 100);
        let log = postgres.node(0).log();
        for trouble in ["deadlock detected", "could not serialize", "lock timeout"] {
            assert_eq!(log.matches(trouble).count(), 0, "{trouble}");
        }
        let sizes =
            "SELECT string_agg(relname || ' ' || n_live_tup || ' live ' || n_dead_tup || ' dead '
                       || pg_total_relation_size(relid) / 1024 || ' KiB', ', ')
                     FROM pg_stat_user_tables WHERE schemaname = 'coordination'";
        let dead =
            "SELECT max(n_dead_tup) FROM pg_stat_user_tables WHERE schemaname = 'coordination'";
        // Twice as many as those that are not worth being swept.
        let is_swept = || postgres.ask(dead).parse::<u64>().is_ok_and(|dead| dead < 1_500);
        let swept = wait_until(LONG, is_swept);
        println!("tables: {}", postgres.ask(sizes));
        assert!(swept, "{} dead rows", postgres.ask(dead));
        let size = "SELECT sum(pg_total_relation_size(relid)) FROM pg_stat_user_tables
                      WHERE schemaname = 'coordination'";
        let size: u64 = postgres.ask(size).parse().expect("a number");
        assert!(size < 32 << 20, "{size} bytes");
    });
}
