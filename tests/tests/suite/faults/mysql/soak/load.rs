//! Many processes at the same time, and what they leave in the tables.

use std::sync::Arc;

use coordination_tests::harness::{Mysql, Server, rerun_if_starved, wait_until};

use super::LONG;
use crate::soak::sql_load::{ACQUISITIONS, CLIENTS, LOCKS, PROCESSES, acquire_often, contend_on};

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
        let left = rows(&mysql);
        println!("rows of queues, entries and sessions: {left:?}");
        assert!(left[0] <= 101 && left[1] == 0 && left[2] <= 2 * PROCESSES as u64, "{left:?}");
        let size = "SELECT SUM(data_length + index_length) FROM information_schema.tables
                      WHERE table_schema = 'coordination'";
        let size: u64 = mysql.ask(size).parse().expect("a number");
        println!("tables: {size} bytes");
        assert!(size < 32 << 20, "{size} bytes");
    });
}

/// How many rows the tables of queues, entries and sessions have.
fn rows(mysql: &Mysql) -> [u64; 3] {
    ["queues", "entries", "sessions"].map(|table| {
        number(mysql, &format!("SELECT COUNT(*) FROM coordination.coordination_{table}"))
    })
}

fn number(mysql: &Mysql, query: &str) -> u64 {
    mysql.ask(query).parse().expect("a number")
}

/// L7: what a hundred thousand acquisitions leave: a row for each lock, and old versions of rows that the server removes soon.
/// For as many acquisitions again, the tables take no more room.
#[test]
fn l7_a_hundred_thousand_acquisitions_leave_little() {
    let size = "SELECT SUM(file_size) FROM information_schema.innodb_sys_tablespaces
                  WHERE name LIKE 'coordination/%'";
    let old = "SELECT variable_value FROM information_schema.global_status
                 WHERE variable_name = 'INNODB_HISTORY_LIST_LENGTH'";
    rerun_if_starved(|| {
        let mysql = Mysql::options().set("general-log", "off").start();
        let url = mysql.url(&mysql.authority(), "");
        let mut sizes = Vec::new();
        for _ in 0..2 {
            acquire_often(&url, ACQUISITIONS);
            println!("L7 mysql: {} old versions of rows", number(&mysql, old));
            let (rows, purged) = (rows(&mysql), wait_until(LONG, || number(&mysql, old) < 1_000));
            sizes.push(number(&mysql, size));
            println!("L7 mysql: rows of queues, entries and sessions: {rows:?}; {sizes:?} bytes");
            assert!(rows[0] <= LOCKS as u64 && rows[1] == 0, "{rows:?}");
            assert!(rows[2] <= 2 * CLIENTS as u64, "{rows:?}");
            assert!(purged, "{} old versions of rows", number(&mysql, old));
        }
        assert!(sizes[0] < 32 << 20, "{sizes:?} bytes");
        assert!(sizes[1] <= sizes[0] + sizes[0] / 4, "{sizes:?} bytes");
    });
}
