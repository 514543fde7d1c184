//! Many processes at the same time, and what they leave in the tables.

use std::sync::Arc;

use coordination_tests::harness::{Postgres, Server, rerun_if_starved, wait_until};

use super::LONG;
use crate::soak::sql_load::contend_on;

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
        let sizes =
            "SELECT string_agg(relname || ' ' || n_live_tup || ' live ' || n_dead_tup || ' dead '
                       || pg_total_relation_size(relid) / 1024 || ' KiB', ', ')
                     FROM pg_stat_user_tables WHERE schemaname = 'coordination'";
        let dead =
            "SELECT max(n_dead_tup) FROM pg_stat_user_tables WHERE schemaname = 'coordination'";
        // Autovacuum does not run below a certain number of dead rows. The bound is twice that number.
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
