//! Many processes at once, and what that leaves in the tables.

use std::sync::Arc;

use coordination_tests::harness::{Mysql, rerun_if_starved};

use crate::soak::sql_load::{PROCESSES, contend_on};

/// S1, S2: sixteen processes with a thousand acquisitions each, on one lock and on a hundred: never two at once, tokens rise,
/// and nobody is told of a deadlock. What is left of it in the tables is bounded.
#[test]
fn s2_sixteen_processes_on_one_lock_and_on_a_hundred() {
    rerun_if_starved(|| {
        let mysql = Arc::new(Mysql::options().set("general-log", "off").start());
        contend_on(Arc::clone(&mysql) as Arc<_>);
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
