//! Many processes at the same time, and what they leave in the tables.

use std::sync::Arc;

use coordination_tests::harness::{Mysql, rerun_if_starved};

use crate::soak::sql_load::{PROCESSES, contend_on};

/// S1, S2: each of sixteen processes acquires one lock a thousand times, and then a hundred locks ten times each.
/// There are never two holders, tokens rise, and no call reports a deadlock. The number of rows that are left is
/// bounded.
#[test]
fn s2_sixteen_processes_on_one_lock_and_on_a_hundred() {
    rerun_if_starved(|| {
        let mysql = Arc::new(Mysql::options().set("general-log", "off").start());
        contend_on(Arc::clone(&mysql) as Arc<_>);
        // How many transactions the server has rolled back because of deadlocks. The library repeats them, so no caller
        // notices.
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
