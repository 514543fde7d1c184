//! What only MySQL and MariaDB have: polling, settings, character sets.

use std::sync::Arc;
use std::time::{Duration, Instant};

use coordination::{ClaimOptions, Coordinator, Durability, ErrorKind, NewItem, Recipe};
use coordination_tests::harness::{Certificates, Mysql, Server, rerun_on_threads};
use tokio::task::block_in_place;

use crate::sql::{PATIENCE, SqlServer, ask, make, sql_checks, try_ask};

sql_checks!(Mysql);

impl SqlServer for Mysql {
    const BEHIND: (f64, &'static [&'static str], u64) = (2.5, &["look", "position"], 500);
    const USER: &'static str = "CREATE USER app IDENTIFIED BY 'secret'";
    const RIGHTS: (&'static [&'static str], &'static str) = (
        &["GRANT SELECT, EXECUTE ON coordination.* TO app"],
        "GRANT INSERT, UPDATE, DELETE ON coordination.* TO app",
    );
    const LOGIN: (&'static str, &'static str) =
        ("ALTER USER app ACCOUNT LOCK", "ALTER USER app ACCOUNT UNLOCK");
    const PASSWORD: &'static str = "ALTER USER app IDENTIFIED BY '{}'";
    /// Connections that were made before do not count. Who has connected since is remembered with his limit until the rights are
    /// read anew.
    const FULL: (&'static str, &'static str, &'static str) = (
        "ALTER USER app WITH MAX_USER_CONNECTIONS 1",
        "ALTER USER app WITH MAX_USER_CONNECTIONS 0; FLUSH PRIVILEGES",
        "max_user_connections",
    );
    const DROP: &'static str = "DROP DATABASE IF EXISTS coordination";
    const NOT_ENDED: &'static [&'static str] = &[
        "CREATE DATABASE coordination",
        "CREATE PROCEDURE coordination.coordination_enter() SELECT 'not ended'",
    ];
    const LEFT: &'static str = "
        USE coordination;
        INSERT INTO coordination_queues (path, last, changes)
          SELECT CONCAT('coordination/lock/left-', seq), seq, 1 FROM seq_1_to_650;
        INSERT INTO coordination_entries (queue, seq, id, session, shared, generation, text)
          SELECT q.id, 1, CONCAT(s.id, '-', q.id), s.id, FALSE, 0, ''
          FROM coordination_queues q, coordination_sessions s";
    const DEAD: &'static [&'static str] = &["
        USE coordination;
        DELETE FROM coordination_sessions;
        INSERT INTO coordination_queues (path, last, changes)
          SELECT CONCAT('coordination/lock/dead-', seq), 1, 1 FROM seq_1_to_1000;
        INSERT INTO coordination_sessions (id, namespace, member, lease, expires, generation)
          SELECT CONCAT('s', seq), 'coordination', CONCAT('m', seq), 60000000,
            IF(seq = 0, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + 60000000, 1), 1
          FROM seq_0_to_10;
        INSERT INTO coordination_entries (queue, seq, id, session, shared, generation, text)
          SELECT id, 1, CONCAT('e', id), CONCAT('s', 1 + id % 10), FALSE, 1, ''
          FROM coordination_queues WHERE path LIKE 'coordination/lock/dead-%'"];
    const RENEW: &'static str =
        "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED; USE coordination;
        CALL coordination_renew('s0', 1, '', 49)";
    const STUCK: (&'static [&'static str], &'static str) = (
        &["
        USE coordination;
        EXECUTE IMMEDIATE 'CREATE TRIGGER stuck BEFORE DELETE ON coordination_entries FOR EACH ROW
          IF OLD.session = ''dead'' THEN SIGNAL SQLSTATE ''45000'' SET MESSAGE_TEXT = ''it stays''; END IF';
        INSERT INTO coordination_queues (path, last, changes) VALUES ('coordination/lock/dead', 1, 1);
        INSERT INTO coordination_entries (queue, seq, id, session, shared, generation, text)
          SELECT id, 1, 'dead', 'dead', FALSE, 1, '' FROM coordination_queues WHERE path = 'coordination/lock/dead';
        INSERT INTO coordination_sessions (id, namespace, member, lease, expires, generation)
          VALUES ('dead', 'coordination', 'dead', 60000000, 1, 1)"],
        "USE coordination; DROP TRIGGER stuck",
    );
    const USED_AND_PRUNED: &'static str = "USE coordination;
        INSERT INTO coordination_queues (path, last, changes) VALUES ('coordination/lock/x', 9000000000000000, 1);
        INSERT INTO coordination_floors (namespace, last) VALUES ('coordination', 9000000000000000);
        DELETE FROM coordination_queues WHERE path = 'coordination/lock/x'";
    const MAKES_QUEUE: &'static str =
        "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED; USE coordination;
        CALL coordination_leave(NULL, 1, 'coordination/lock/x', 'nobody', NULL)";
    const BY_HAND: &'static str = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED";
    const CHANNEL: &'static str = "";
    /// Statements, also those within procedures.
    const WORK: (&'static str, u64) = (
        "SELECT CAST(SUM(variable_value) AS INTEGER) FROM information_schema.global_status WHERE variable_name IN
           ('COM_SELECT', 'COM_INSERT', 'COM_UPDATE', 'COM_DELETE', 'COM_DELETE_MULTI', 'COM_CALL_PROCEDURE')",
        13,
    );
    const OLD_VIEW: &'static str = "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ; BEGIN";
    /// MariaDB only says that it denies access, so the error cannot have a more exact kind.
    const WANTS_TLS: ErrorKind = ErrorKind::Auth;
    const SLEEPING: &'static str =
        "SELECT COUNT(*) FROM information_schema.processlist WHERE info LIKE 'SELECT SLEEP%'";

    fn start(certificates: Option<&Certificates>) -> Self {
        match certificates {
            Some(those) => Self::options().tls(those, &those.server, false).start(),
            None => Self::one(),
        }
    }

    fn tell(&self, statement: &str) -> Result<String, String> {
        self.try_ask(statement)
    }

    fn table(name: &str) -> String {
        format!("coordination.coordination_{name}")
    }

    fn call(function: &str, arguments: &str) -> String {
        format!("CALL coordination.coordination_{function}({arguments})")
    }

    fn fence(name: &str, token: u64) -> String {
        format!("CALL coordination.coordination_fence('{name}', {token})")
    }

    fn sleep(seconds: f64) -> String {
        format!("SELECT SLEEP({seconds})")
    }

    fn beside(&self, url: &str) -> String {
        self.ask("CREATE DATABASE beside");
        url.replace('?', "/beside?")
    }

    fn end_connections(&self) {
        let ours = "SELECT id FROM information_schema.processlist WHERE db = 'coordination'";
        for id in self.ask(ours).lines() {
            // The connection may have ended already.
            let _ = self.try_ask(&format!("KILL {id}"));
        }
    }

    fn statements(&self) -> Vec<String> {
        const COMMANDS: [&str; 5] = ["Query\t", "Prepare\t", "Execute\t", "Init DB\t", "Ping\t"];
        let log = Mysql::statements(self);
        let is_one = |line: &&str| COMMANDS.iter().any(|command| line.contains(command));
        log.lines().filter(is_one).map(ToOwned::to_owned).collect()
    }
}

pub(super) fn one() -> Arc<Mysql> {
    crate::sql::one()
}

pub(super) fn url(mysql: &Mysql) -> String {
    crate::sql::url(mysql)
}

fn requests(mysql: &Mysql, of: &str) -> u64 {
    block_in_place(|| mysql.request_counts()).get(of).copied().unwrap_or_default()
}

/// Settings of the server that would break the library's promises have no effect on the library.
#[test]
fn x1_settings_of_the_server_do_no_harm() {
    rerun_on_threads(async || {
        let mysql = one();
        for (number, (name, value)) in [
            ("tx_isolation", "'SERIALIZABLE'"),
            ("tx_read_only", "1"),
            ("autocommit", "0"),
            ("sql_mode", "'ANSI,NO_BACKSLASH_ESCAPES,NO_ZERO_DATE'"),
            ("sql_mode", "'ORACLE'"),
            ("sql_mode", "''"),
            ("completion_type", "'RELEASE'"),
            ("time_zone", "'+05:45'"),
            ("innodb_lock_wait_timeout", "50"),
            ("sql_safe_updates", "1"),
            ("sql_select_limit", "1"),
            ("character_set_server", "latin1"),
            ("wait_timeout", "1"),
            ("max_statement_time", "5"),
        ]
        .into_iter()
        .enumerate()
        {
            let setting = format!("{name} = {value}");
            let before = ask(&*mysql, &format!("SELECT @@global.{name}"));
            ask(&*mysql, &format!("SET GLOBAL {setting}"));
            // The tables are created while the setting is in force.
            ask(
                &*mysql,
                &format!("SET autocommit = 1, tx_read_only = 0; CREATE DATABASE locks_{number}"),
            );
            let url = url(&mysql).replace("?", &format!("/locks_{number}?"));
            let coordinator = Coordinator::connect(&url).await.expect(&setting);
            let lock = coordinator.lock("x").expect("a name");
            let guard = lock.acquire(PATIENCE).await.expect(&setting);
            tokio::time::sleep(Duration::from_millis(1_300)).await;
            assert!(guard.is_held(), "{setting}");
            assert_eq!(coordinator.in_use(Recipe::Lock).await.expect(&setting), ["x"]);
            coordinator.prune(Duration::ZERO).await.expect(&setting);
            guard.release().await.expect(&setting);
            coordinator.stop().await.expect(&setting);
            let number = before.parse::<f64>().is_ok();
            let before = if number { before } else { format!("'{before}'") };
            ask(&*mysql, &format!("SET GLOBAL {name} = {before}"));
        }
    });
}

/// S8: names that differ are different locks, whatever the database's character set and collation.
#[test]
fn s8_names_are_apart_in_every_collation() {
    rerun_on_threads(async || {
        let mysql = one();
        for collation in ["latin1_swedish_ci", "utf8mb4_general_ci", "utf8mb4_unicode_ci"] {
            let database = format!("in_{collation}");
            ask(&*mysql, &format!("CREATE DATABASE {database} COLLATE {collation}"));
            let url = url(&mysql).replace("?", &format!("/{database}?"));
            let coordinator = Coordinator::connect(&url).await.expect(collation);
            let mut held = Vec::new();
            for name in ["a", "A", "á", "a\u{301}", "a ", "a\0", "ß", "ss", "日本", "ａ", "'\"\\"]
            {
                let lock = coordinator.lock(name).expect("a name");
                held.push(lock.try_acquire().await.expect(name).expect("nobody has it"));
                assert!(lock.try_acquire().await.expect(name).is_none(), "{name:?}");
            }
            assert_eq!(coordinator.in_use(Recipe::Lock).await.expect("listed").len(), held.len());
            for (name, guard) in [("a ", &held[4]), ("日本", &held[8])] {
                let check =
                    format!("CALL {database}.coordination_fence('{name}', {})", guard.token());
                assert_eq!(try_ask(&*mysql, &check).as_deref(), Ok(""), "{name}");
            }
            drop(held);
            coordinator.stop().await.expect("stopped");
        }
    });
}

/// A free lock costs one statement to acquire and one to release. A process with a hundred waiters has three
/// connections, and polls at most four times a second while nothing happens.
#[test]
fn l7_waiters_are_a_poll() {
    rerun_on_threads(async || {
        let mysql = one();
        let url = url(&mysql).replace("ttl=2s&heartbeat=250ms", "ttl=15s");
        let coordinator = Coordinator::connect(&url).await.expect("a server");
        let lock = coordinator.lock("x").expect("a name");
        for _ in 0..10 {
            lock.acquire(PATIENCE).await.expect("free").release().await.expect("released");
        }
        let counts = ["enter", "leave", "position", "poll", "look"].map(|of| requests(&mysql, of));
        assert_eq!(counts, [10, 10, 0, 0, 0]);
        let guard = lock.acquire(PATIENCE).await.expect("free");
        let waiting: Vec<_> = (0..100)
            .map(|nth| {
                let lock = coordinator.lock(format!("{}", nth % 3)).expect("a name");
                let lock = if nth % 2 == 0 { lock_x(&coordinator) } else { lock };
                tokio::spawn(
                    async move { lock.acquire(Some(Duration::from_secs(60))).await.map(drop) },
                )
            })
            .collect();
        tokio::time::sleep(Duration::from_secs(5)).await;
        let all = |mysql: &Mysql| block_in_place(|| mysql.request_counts()).values().sum::<u64>();
        let before = all(&mysql);
        tokio::time::sleep(Duration::from_secs(5)).await;
        let asked = all(&mysql) - before;
        println!("L7 mysql: {asked} requests in five seconds");
        assert!(asked <= 20, "{asked} requests in five seconds");
        let connected =
            "SELECT COUNT(*) FROM information_schema.processlist WHERE db = 'coordination'";
        assert_eq!(ask(&*mysql, connected), "3");
        guard.release().await.expect("released");
        for waited in waiting {
            waited.await.expect("no panic").expect("granted");
        }
        coordinator.stop().await.expect("stopped");
    });
}

fn lock_x(coordinator: &Coordinator) -> coordination::Lock {
    coordinator.lock("x").expect("a name")
}

/// L2: a busy lock passes from one process to another within 50 ms.
#[test]
fn l2_a_busy_lock_changes_hands_soon() {
    rerun_on_threads(async || {
        let mysql = one();
        let (one, other) = (
            Coordinator::connect(&url(&mysql)).await.expect("a server"),
            Coordinator::connect(&url(&mysql)).await.expect("a server"),
        );
        let mut took = Vec::new();
        let mut guard = one.lock("x").expect("a name").acquire(PATIENCE).await.expect("free");
        for turn in 0..30 {
            let next = if turn % 2 == 0 { &other } else { &one };
            let lock = next.lock("x").expect("a name");
            let waiting = tokio::spawn(async move {
                let guard = lock.acquire(PATIENCE).await;
                (guard, Instant::now())
            });
            tokio::time::sleep(Duration::from_millis(100)).await;
            let released = Instant::now();
            guard.release().await.expect("released");
            let (granted, at) = waiting.await.expect("no panic");
            took.push(at.saturating_duration_since(released));
            guard = granted.expect("granted");
        }
        took.sort();
        println!("L2 mysql: a hand-over took {:?}, at most {:?}", took[15], took[29]);
        assert!(took[15] < Duration::from_millis(50), "{took:?}");
        guard.release().await.expect("released");
        one.stop().await.expect("stopped");
        other.stop().await.expect("stopped");
    });
}

/// The names of the server's counts of rows that are read one after the other, and not found by a key.
const READ_THROUGH: &str = "'HANDLER_READ_RND_NEXT', 'HANDLER_READ_NEXT', 'HANDLER_READ_PREV'";

/// L7: with a hundred thousand rows in each table, each statement finds its rows by an index. So do the queries that the client
/// sends itself: the poll's, and that for a few of a queue's many records.
#[test]
fn l7_no_step_reads_a_table_through() {
    rerun_on_threads(async || {
        let mysql = one();
        make(&*mysql).await;
        let now = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))";
        ask(
            &*mysql,
            &format!(
                "USE coordination;
                 INSERT INTO coordination_queues (path, last, changes, version, value)
                   SELECT CONCAT('coordination/lock/q-', seq), 1, 1, IF(seq % 2, 1, NULL), IF(seq % 2, 'v', NULL)
                   FROM seq_1_to_100000;
                 INSERT INTO coordination_sessions (id, namespace, member, lease, expires, forget_at, generation)
                   SELECT CONCAT('s', seq), 'coordination', CONCAT('m', seq), 60000000,
                     IF(seq % 3 = 0, NULL, {now} + 600000000), IF(seq % 3 = 0, {now} + 60000000, NULL), 1
                   FROM seq_1_to_100000;
                 INSERT INTO coordination_entries (queue, seq, id, session, shared, generation, text)
                   SELECT id, 1, CONCAT('e', id), CONCAT('s', id), FALSE, 1, '' FROM coordination_queues;
                 INSERT INTO coordination_records (queue, name, data)
                   SELECT id, 'a', '1' FROM coordination_queues;
                 INSERT INTO coordination_created (queue, id, at) SELECT id, 7, {now} FROM coordination_queues;
                 INSERT INTO coordination_floors (namespace, last)
                   SELECT CONCAT('other-', seq), seq FROM seq_1_to_100000;
                 INSERT INTO coordination_queues (path, last, first, changes) VALUES ('coordination/lock/empty', 5, 6, 1);
                 ANALYZE TABLE coordination_queues, coordination_sessions, coordination_entries,
                   coordination_records, coordination_created, coordination_floors"
            ),
        );
        for step in [
            "enter('s1', 1, 'coordination/lock/q-7', 's1-1', FALSE, '')",
            "enter('s1', 1, 'coordination/lock/q-8', 's1-2', TRUE, '')",
            "enter('s1', 1, 'coordination/lock/empty', 's1-3', FALSE, '')",
            "leave('s1', 1, 'coordination/lock/empty', 's1-3', (SELECT last FROM coordination_queues WHERE path = 'coordination/lock/empty'))",
            "position('s1', 'coordination/lock/q-7', 's1-1', FALSE, (SELECT seq FROM coordination_entries WHERE id = 's1-1'))",
            "update('s1', 1, 'coordination/lock/q-7', 's1-1', TRUE, '', 7)",
            "read('coordination/lock/q-7')",
            "renew('s1', 1, 's1-1s1-2', 4)",
            "settle('s1', 2, 0, 0, 500)",
            "settle_one('s1', 2, 1, 1)",
            "write('s1', 1, 'coordination/lock/q-4', NULL, 'v', FALSE, 9, 'a', '1', 'x', 1)",
            "list('coordination/lock/q-5', 'coordination/lock/q-6', 100)",
            "prune('coordination', 1, 'coordination/lock/q-5', 'coordination/lock/q-6', 100)",
            "open('coordination', 'new', 1, 'member', 60000000, 's2')",
            "leave('s1', 1, 'coordination/lock/q-7', 's1-1', NULL)",
            "close('coordination', 'new')",
            "fence('q-10', 1)",
        ] {
            let read = ask(
                &*mysql,
                &format!(
                    "USE coordination; SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED;
                     FLUSH STATUS; CALL coordination_{step};
                     SELECT '', SUM(variable_value) FROM information_schema.session_status
                       WHERE variable_name IN ({READ_THROUGH})"
                ),
            );
            let rows: f64 =
                read.rsplit('\t').next().and_then(|rows| rows.parse().ok()).expect("a number");
            // This includes reads of the server's own table of statistics.
            assert!(rows < 3_000.0, "{rows} rows are read by {step}");
        }
        // Only the short way of `leave` leaves the queue like this.
        let query = "SELECT first > last FROM coordination.coordination_queues WHERE path = 'coordination/lock/empty'";
        assert_eq!(ask(&*mysql, query), "1", "the short ways were not taken");
        let one = Coordinator::connect(&url(&mysql)).await.expect("a server");
        let other = Coordinator::connect(&url(&mysql)).await.expect("a server");
        one.queue("jobs").expect("a name").post(&[NewItem::new("work")]).await.expect("posted");
        ask(
            &*mysql,
            "USE coordination; SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED;
             INSERT INTO coordination_records (queue, name, data)
               SELECT q.id, CONCAT('other-', n.seq), '1' FROM coordination_queues q, seq_1_to_20000 n
               WHERE q.path LIKE '%/jobs'",
        );
        let held = lock_x(&one).acquire(PATIENCE).await.expect("free");
        let read_so_far = || {
            let read = format!(
                "SELECT SUM(variable_value) FROM information_schema.global_status
                   WHERE variable_name IN ({READ_THROUGH})"
            );
            ask(&*mysql, &read).parse::<f64>().expect("a number")
        };
        let before = read_so_far();
        // This client has read none of the queue's records yet.
        let jobs = other.queue("jobs").expect("a name");
        let claim = jobs.claim(ClaimOptions::default()).await.expect("read").expect("posted");
        assert_eq!(claim.items()[0].body(), b"work");
        let waited = lock_x(&other).acquire(Some(Duration::from_secs(2))).await;
        waited.expect_err("it is held");
        let rows = read_so_far() - before;
        println!("L7 mysql: {rows} rows for a claim and two seconds of a wait");
        assert!(rows < 15_000.0, "{rows} rows are read for a claim and a wait");
        drop(claim);
        held.release().await.expect("released");
        other.stop().await.expect("stopped");
        one.stop().await.expect("stopped");
    });
}

/// S2: the example for MySQL. A holder that is stopped for three leases is refused by the database, and nothing is lost.
#[cfg(feature = "etcd")]
#[test]
fn s2_a_transaction_of_an_old_holder_is_refused_by_mysql() {
    use crate::gate::examples::{example, shown};
    use coordination_tests::harness::rerun_if_starved;

    rerun_if_starved(|| {
        let mysql = Mysql::one();
        let url = mysql.url(&mysql.authority(), "");
        let mut program = example("fenced_transaction_mysql");
        let output = program.env("COORDINATION_URL", url).output().expect("it starts");
        let text = shown(&output);
        assert!(output.status.success(), "{text}");
        for promise in ["refused: ", "is not that of a holder", "PASSED"] {
            assert!(text.contains(promise), "{promise} is missing in:\n{text}");
        }
    });
}

/// The characteristics say what survives a crash, according to the server's settings.
#[test]
fn r1_what_outlives_a_crash_is_told() {
    rerun_on_threads(async || {
        let of = async |name: &str, value: &str| {
            let mysql = block_in_place(|| Mysql::options().set(name, value).start());
            let coordinator = Coordinator::connect(&url(&mysql)).await.expect("a server");
            let told = coordinator.characteristics();
            coordinator.stop().await.expect("stopped");
            (told.survives_restart, told.survives_power_loss)
        };
        let flushed = "innodb-flush-log-at-trx-commit";
        assert_eq!(of(flushed, "0").await, (Durability::No, Durability::No));
        assert_eq!(of(flushed, "1").await, (Durability::Yes, Durability::Yes));
        assert_eq!(of(flushed, "2").await, (Durability::Yes, Durability::No));
        assert_eq!(of("innodb-doublewrite", "0").await, (Durability::Yes, Durability::No));
    });
}
