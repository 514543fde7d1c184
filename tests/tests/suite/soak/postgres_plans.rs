//! How PostgreSQL carries out the statements of the library's functions.

use coordination_tests::harness::{Postgres, Server, rerun_on_threads};
use tokio::task::block_in_place;

use crate::sql::{ask, make, one};

/// Statements after which each table has a hundred thousand rows.
const MANY: &[&str] = &[
    "INSERT INTO coordination.queues (path, last, version, value)
       SELECT convert_to('coordination/lock/many-' || n, 'UTF8'), n, n, 'v' FROM generate_series(1, 100000) n",
    "INSERT INTO coordination.sessions (id, namespace, member, channel, lease, expires, forget_at, generation)
       SELECT convert_to(lpad(n::text, 16, '0'), 'UTF8'), 'coordination', convert_to('m' || n, 'UTF8'), 'c', 3600000000,
         CASE WHEN n % 3 > 0 THEN coordination.clock() + 3600000000 END,
         CASE WHEN n % 3 = 0 THEN coordination.clock() + 3600000000 END, 1 FROM generate_series(1, 100000) n",
    "INSERT INTO coordination.entries (queue, seq, id, session, shared, generation, text)
       SELECT id, id, convert_to('many-' || id, 'UTF8'), convert_to(lpad(id::text, 16, '0'), 'UTF8'), false, 1, ''
       FROM coordination.queues",
    "INSERT INTO coordination.records (queue, name, data) SELECT id, 'a', '1' FROM coordination.queues",
    "INSERT INTO coordination.created (queue, id, at) SELECT id, 7, coordination.clock() FROM coordination.queues",
    "INSERT INTO coordination.floors (namespace, last)
       SELECT convert_to('other-' || n, 'UTF8'), n FROM generate_series(1, 100000) n",
    // A queue that is known to be empty, for the short ways of `enter` and `leave`.
    "INSERT INTO coordination.queues (path, last, first) VALUES ('coordination/lock/empty', 5, 6)",
    "VACUUM ANALYZE",
];

/// Each function that the library calls, and the one that its users call.
const STEPS: &[&str] = &[
    "enter('0000000000000007', 1, 'coordination/lock/many-7', 'new-1', false, '')",
    "enter('0000000000000007', 1, 'coordination/lock/many-8', 'new-2', true, '')",
    "enter('0000000000000007', 1, 'coordination/lock/new', 'new-3', false, '')",
    "enter('0000000000000007', 1, 'coordination/lock/empty', 'new-4', false, '')",
    "leave('0000000000000007', 1, 'coordination/lock/empty', 'new-4',
       (SELECT last FROM coordination.queues WHERE path = 'coordination/lock/empty'))",
    "position('0000000000000007', 'coordination/lock/many-7', 'new-1', false, NULL)",
    "look('coordination/lock/many-7', 7, false, true)",
    "update('0000000000000007', 1, 'coordination/lock/many-8', 'new-2', true, 'x', NULL)",
    "hear('coordination/lock/many-7')",
    "read('coordination/lock/many-7')",
    "tend('coordination/lock/many-7')",
    "renew('0000000000000007', 1, '{new-1,new-2}')",
    "clear_up(false)",
    "clear_up(true)",
    "settle('0000000000000007', 2, '{new-1,new-2}')",
    "write('0000000000000007', 2, 'coordination/lock/many-4', NULL, 'w', false, 9, '{a,b}', '{1,2}')",
    "records_of('coordination/lock/many-4', '{a,b}')",
    "list('coordination/lock/many-5', 'coordination/lock/many-6', 100)",
    "prune('coordination', 1, 'coordination/lock/many-5', 'coordination/lock/many-6', 100)",
    "open('coordination', 'new', 1, 'member', 'c', 60000000, '0000000000000010')",
    "leave('0000000000000007', 2, 'coordination/lock/many-7', 'new-1', NULL)",
    "close('coordination', '0000000000000007')",
    "coordination_fence('many-11', 11)",
];

/// L7: with a hundred thousand rows in each table, no statement of any function reads a table through: the server finds the
/// rows by an index, as its own plans (`EXPLAIN`) say.
#[test]
fn l7_every_statement_has_an_index() {
    rerun_on_threads(async || {
        let postgres = one::<Postgres>();
        make(&*postgres).await;
        MANY.iter().for_each(|many| drop(ask(&*postgres, many)));
        for step in STEPS {
            let plans = plans_of(&postgres, step);
            let through = plans.lines().filter(|line| line.contains("Seq Scan on"));
            let through: Vec<_> = through.collect();
            assert!(through.is_empty(), "{step}: {through:#?} in {plans}");
        }
        // Only the short way of `leave` leaves the queue like this.
        let query =
            "SELECT first > last FROM coordination.queues WHERE path = 'coordination/lock/empty'";
        assert_eq!(ask(&*postgres, query), "t", "the short ways were not taken");
    });
}

/// Statements after which the server knows of the table of entries that many came and went, and that none is there.
const EMPTIED: &[&str] = &[
    "INSERT INTO coordination.sessions (id, namespace, channel, lease, expires, generation)
       VALUES ('0000000000000007', 'coordination', 'c', 3600000000, coordination.clock() + 3600000000, 1)",
    "INSERT INTO coordination.entries (queue, seq, id, session, shared, generation, text)
       SELECT 0, n, convert_to('gone-' || n, 'UTF8'), 'none', false, 1, '' FROM generate_series(1, 10000) n",
    "DELETE FROM coordination.entries",
    "VACUUM ANALYZE coordination.entries",
];

/// L7: a connection that makes its plans while the table of entries is empty finds entries by an index all the same. It keeps these
/// plans, and removed rows collect in the table until the server cleans it up.
#[test]
fn l7_an_emptied_table_is_not_read_through() {
    rerun_on_threads(async || {
        let postgres = one::<Postgres>();
        make(&*postgres).await;
        EMPTIED.iter().for_each(|statement| drop(ask(&*postgres, statement)));
        for step in [
            "enter('0000000000000007', 1, 'coordination/lock/x', 'new', false, '')",
            "leave('0000000000000007', 1, 'coordination/lock/x', 'new', NULL)",
            // The short ways: the third entry finds the queue empty.
            "enter('0000000000000007', 1, 'coordination/lock/x', 'second', false, '')",
            "leave('0000000000000007', 1, 'coordination/lock/x', 'second', (SELECT last FROM coordination.queues
               WHERE path = 'coordination/lock/x'))",
            "enter('0000000000000007', 1, 'coordination/lock/x', 'third', false, '')",
        ] {
            let plans = plans_of(&postgres, step);
            assert!(plans.contains("on entries"), "{step}: {plans}");
            assert!(!plans.contains("Seq Scan on entries"), "{step}: {plans}");
        }
    });
}

/// The plans of all statements of a step, as the server writes them to its log.
fn plans_of(postgres: &Postgres, step: &str) -> String {
    let before = block_in_place(|| postgres.node(0).log()).len();
    // The module writes the plan of each statement to the server's log, also of those within functions.
    ask(
        postgres,
        &format!(
            "LOAD 'auto_explain'; SET auto_explain.log_min_duration = 0;
             SET auto_explain.log_nested_statements = on; SET coordination.lock_timeout = '10s';
             SELECT * FROM coordination.{step}"
        ),
    );
    let log = block_in_place(|| postgres.node(0).log());
    let plans = &log[before..];
    assert!(plans.contains("Query Text:"), "no plan of {step}: {plans}");
    plans.to_owned()
}
