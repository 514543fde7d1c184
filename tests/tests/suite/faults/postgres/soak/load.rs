//! Many processes at the same time, and what they leave in the tables.

use std::sync::Arc;

use coordination_tests::harness::{Postgres, Server, rerun_if_starved, wait_until};

use super::LONG;
use crate::soak::sql_load::{ACQUISITIONS, CLIENTS, LOCKS, acquire_often, contend_on};

/// SQL: the bytes of all tables of the library, with their indexes.
const SIZE: &str = "SELECT sum(pg_total_relation_size(relid)) FROM pg_stat_user_tables
                      WHERE schemaname = 'coordination'";

/// SQL: the dead rows of all tables of the library.
const DEAD: &str =
    "SELECT sum(n_dead_tup) FROM pg_stat_user_tables WHERE schemaname = 'coordination'";
/// SQL: what each table has.
const SIZES: &str =
    "SELECT string_agg(relname || ' ' || n_live_tup || ' live ' || n_dead_tup || ' dead '
               || pg_total_relation_size(relid) / 1024 || ' KiB', ', ')
             FROM pg_stat_user_tables WHERE schemaname = 'coordination'";

/// S1, S2: each of sixteen processes acquires one lock a thousand times, and then a hundred locks ten times each.
/// There are never two holders, tokens rise, and no call reports a deadlock. The size of the tables is bounded.
#[test]
fn s2_sixteen_processes_on_one_lock_and_on_a_hundred() {
    rerun_if_starved(|| {
        let options =
            Postgres::options().set("autovacuum_naptime", "2s").set("log_statement", "none");
        let postgres = Arc::new(options.start());
        contend_on(Arc::clone(&postgres) as Arc<_>);
        let log = postgres.node(0).log();
        for trouble in ["deadlock detected", "could not serialize", "lock timeout"] {
            assert_eq!(log.matches(trouble).count(), 0, "{trouble}");
        }
        let dead =
            "SELECT max(n_dead_tup) FROM pg_stat_user_tables WHERE schemaname = 'coordination'";
        // Autovacuum does not run below a certain number of dead rows. The bound is twice that number.
        let is_swept = || postgres.ask(dead).parse::<u64>().is_ok_and(|dead| dead < 1_500);
        let swept = wait_until(LONG, is_swept);
        println!("tables: {}", postgres.ask(SIZES));
        assert!(swept, "{} dead rows", postgres.ask(dead));
        let size = number(&postgres, SIZE);
        assert!(size < 32 << 20, "{size} bytes");
    });
}

fn number(postgres: &Postgres, query: &str) -> u64 {
    postgres.ask(query).parse().expect("a number")
}

/// L7: what a hundred thousand acquisitions leave while nothing is vacuumed: a row for each lock, and dead rows that are
/// bounded. After a vacuum, the tables take no more room for as many acquisitions again.
#[test]
fn l7_a_hundred_thousand_acquisitions_leave_little() {
    rerun_if_starved(|| {
        let options = Postgres::options().set("autovacuum", "off").set("log_statement", "none");
        let postgres = options.start();
        let url = postgres.url(&postgres.authority(), "");
        let rows = ["queues", "entries", "sessions"]
            .map(|table| format!("SELECT count(*) FROM coordination.{table}"));
        let mut sizes = Vec::new();
        for _ in 0..2 {
            acquire_often(&url, ACQUISITIONS);
            let rows = rows.each_ref().map(|query| number(&postgres, query));
            sizes.push(number(&postgres, SIZE));
            println!("L7 postgres: rows of queues, entries and sessions: {rows:?}");
            println!("L7 postgres: {} dead rows, {sizes:?} bytes", number(&postgres, DEAD));
            println!("L7 postgres: {}", postgres.ask(SIZES));
            assert!(rows[0] <= LOCKS as u64 && rows[1] == 0, "{rows:?}");
            assert!(rows[2] <= 2 * CLIENTS as u64, "{rows:?}");
            postgres.ask("VACUUM");
        }
        assert!(sizes[0] < 64 << 20, "{sizes:?} bytes");
        assert!(sizes[1] <= sizes[0] + sizes[0] / 4, "{sizes:?} bytes");
    });
}
