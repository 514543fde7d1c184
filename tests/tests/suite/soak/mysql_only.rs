//! What only MySQL and MariaDB have, or can have wrong: the poll, deadlocks, fenced transactions, users, settings, character
//! sets, other versions.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use coordination::{ClaimOptions, Coordinator, Durability, ErrorKind, NewItem, Recipe, Result};
use coordination_tests::harness::{Certificates, Mysql, Server, rerun_on_threads};
use tokio::task::block_in_place;

const PATIENCE: Option<Duration> = Some(Duration::from_secs(10));

fn url(mysql: &Mysql) -> String {
    format!("{}&ttl=2s&heartbeat=250ms", mysql.url(&mysql.authority(), ""))
}

fn one() -> Arc<Mysql> {
    block_in_place(|| Arc::new(Mysql::one()))
}

fn ask(mysql: &Mysql, statement: &str) -> String {
    block_in_place(|| mysql.ask(statement))
}

/// Whether a transaction that checks this token first is carried out.
fn is_fenced(mysql: &Mysql, name: &str, token: u64) -> Result<(), String> {
    let check = format!("CALL coordination.coordination_fence('{name}', {token})");
    block_in_place(|| mysql.try_ask(&check)).map(drop)
}

fn try_connect_kind(result: Result<Coordinator>) -> ErrorKind {
    let error = result.expect_err("it is refused");
    println!("{error}");
    error.kind()
}

fn requests(mysql: &Mysql, of: &str) -> u64 {
    block_in_place(|| mysql.request_counts()).get(of).copied().unwrap_or_default()
}

/// S2: a transaction that checks the token is the holder's, or is not carried out, whatever the name is like.
#[test]
fn s2_a_fenced_transaction_is_the_holders() {
    rerun_on_threads(async || {
        let mysql = one();
        let coordinator = Coordinator::connect(&url(&mysql)).await.expect("a server");
        let long = "é/".repeat(300);
        for name in ["x", "a b/c%é", "X", &long] {
            let lock = coordinator.lock(name).expect("a good name");
            let guard = lock.acquire(PATIENCE).await.expect("free");
            let token = guard.token().value();
            assert_eq!(is_fenced(&mysql, name, token), Ok(()), "{name}");
            let waiting = tokio::spawn({
                let lock = lock.clone();
                async move { lock.acquire(PATIENCE).await }
            });
            let waiter = loop {
                let next = "SELECT MAX(seq) FROM coordination.coordination_entries";
                let newest: u64 = ask(&mysql, next).parse().expect("a number");
                if newest > token {
                    break newest;
                }
            };
            let refused = is_fenced(&mysql, name, waiter).expect_err("it waits");
            assert!(refused.contains("is not that of a holder"), "{refused}");
            guard.release().await.expect("released");
            let next = waiting.await.expect("no panic").expect("free");
            is_fenced(&mysql, name, token).expect_err("it was released");
            assert_eq!(is_fenced(&mysql, name, next.token().value()), Ok(()));
            next.release().await.expect("released");
        }
        coordinator.stop().await.expect("stopped");
    });
}

/// S2: a lock stays where it is until a transaction that has checked its token is over, though its session ends meanwhile; and
/// whoever waits behind it does not ask all the time.
#[test]
fn s2_nobody_is_granted_a_lock_within_a_fenced_transaction() {
    rerun_on_threads(async || {
        let mysql = one();
        let holder = Coordinator::connect(&url(&mysql)).await.expect("a server");
        let guard = holder.lock("x").expect("a name").acquire(PATIENCE).await.expect("free");
        let token = guard.token().value();
        let transaction = {
            let mysql = Arc::clone(&mysql);
            let work = format!(
                "BEGIN; CALL coordination.coordination_fence('x', {token}); SELECT SLEEP(2.5); COMMIT"
            );
            thread::spawn(move || {
                let done = mysql.try_ask(&work).map(drop);
                (done, Instant::now())
            })
        };
        let sleeping =
            "SELECT COUNT(*) FROM information_schema.processlist WHERE info LIKE 'SELECT SLEEP%'";
        while ask(&mysql, sleeping) != "1" {}
        ask(&mysql, "UPDATE coordination.coordination_sessions SET expires = 1");
        let other = Coordinator::connect(&url(&mysql)).await.expect("a server");
        let next = other.lock("x").expect("a name").acquire(PATIENCE).await.expect("free by then");
        let granted = Instant::now();
        let (done, ended) = transaction.join().expect("no panic");
        assert_eq!(done, Ok(()));
        let early = ended.saturating_duration_since(granted);
        assert!(early < Duration::from_millis(100), "granted {early:?} before its end");
        is_fenced(&mysql, "x", token).expect_err("it is over");
        assert!(next.is_held() && next.token().value() > token);
        let asked = requests(&mysql, "look") + requests(&mysql, "position");
        println!("S2 mysql: {asked} looks behind a transaction of 2.5 s");
        assert!(asked < 500, "{asked} looks");
        next.release().await.expect("released");
        other.stop().await.expect("stopped");
        holder.stop().await.expect("stopped");
    });
}

/// SEC-7: rights on our tables and procedures are enough, and what is missing is told by who connects.
#[test]
fn sec7_a_user_with_rights_on_these_tables_is_enough() {
    rerun_on_threads(async || {
        let mysql = one();
        ask(&mysql, "CREATE USER app IDENTIFIED BY 'secret'");
        let as_app = url(&mysql).replace("coordination@", "app:secret@");
        // It may make no database.
        assert_eq!(try_connect_kind(Coordinator::connect(&as_app).await), ErrorKind::Permission);
        Coordinator::connect(&url(&mysql)).await.expect("made").stop().await.expect("stopped");
        assert_eq!(try_connect_kind(Coordinator::connect(&as_app).await), ErrorKind::Permission);
        ask(&mysql, "GRANT SELECT, EXECUTE ON coordination.* TO app");
        assert_eq!(try_connect_kind(Coordinator::connect(&as_app).await), ErrorKind::Permission);
        ask(&mysql, "GRANT INSERT, UPDATE, DELETE ON coordination.* TO app");
        let app = Coordinator::connect(&as_app).await.expect("enough");
        let lock = app.lock("x").expect("a name");
        let guard = lock.acquire(PATIENCE).await.expect("free");
        assert_eq!(lock.holders().await.expect("listed").len(), 1);
        guard.release().await.expect("released");
        app.stop().await.expect("stopped");
        let wrong = as_app.replace("secret", "other");
        assert_eq!(try_connect_kind(Coordinator::connect(&wrong).await), ErrorKind::Auth);
    });
}

/// Settings of the server that would undo what is promised do not.
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
            let before = ask(&mysql, &format!("SELECT @@global.{name}"));
            ask(&mysql, &format!("SET GLOBAL {setting}"));
            // What is made there is made with the setting.
            ask(
                &mysql,
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
            ask(&mysql, &format!("SET GLOBAL {name} = {before}"));
        }
    });
}

/// S8: whatever the database's character set and collation, names that differ are apart.
#[test]
fn s8_names_are_apart_in_every_collation() {
    rerun_on_threads(async || {
        let mysql = one();
        for collation in ["latin1_swedish_ci", "utf8mb4_general_ci", "utf8mb4_unicode_ci"] {
            let database = format!("in_{collation}");
            ask(&mysql, &format!("CREATE DATABASE {database} COLLATE {collation}"));
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
                assert_eq!(block_in_place(|| mysql.try_ask(&check)).as_deref(), Ok(""), "{name}");
            }
            drop(held);
            coordinator.stop().await.expect("stopped");
        }
    });
}

/// Tables of another version are neither used nor changed.
#[test]
fn x1_another_version_is_refused() {
    rerun_on_threads(async || {
        let mysql = one();
        Coordinator::connect(&url(&mysql)).await.expect("made").stop().await.expect("stopped");
        ask(&mysql, "UPDATE coordination.coordination_version SET version = 9");
        assert_eq!(
            try_connect_kind(Coordinator::connect(&url(&mysql)).await),
            ErrorKind::Unsupported
        );
        ask(&mysql, "CREATE DATABASE beside");
        let beside = url(&mysql).replace("?", "/beside?");
        Coordinator::connect(&beside).await.expect("beside it").stop().await.expect("stopped");
        assert_eq!(ask(&mysql, "SELECT version FROM coordination.coordination_version"), "9");
    });
}

/// All who come first make the tables once; and an installation that was not ended is made again.
#[test]
fn x1_many_make_the_tables_at_once() {
    rerun_on_threads(async || {
        let mysql = one();
        ask(&mysql, "CREATE DATABASE coordination");
        ask(&mysql, "CREATE PROCEDURE coordination.coordination_enter() SELECT 'not ended'");
        let connecting = (0..12).map(|_| {
            let url = url(&mysql);
            tokio::spawn(async move {
                let coordinator = Coordinator::connect(&url).await?;
                coordinator.lock("x")?.acquire(PATIENCE).await?.release().await?;
                coordinator.stop().await
            })
        });
        for connected in connecting.collect::<Vec<_>>() {
            connected.await.expect("no panic").expect("made by one of them");
        }
    });
}

/// A server that can only be read is refused, and says why; one that becomes so is left until it can be written to.
#[test]
fn r1_a_read_only_server_is_refused() {
    rerun_on_threads(async || {
        let mysql = one();
        let coordinator = Coordinator::connect(&url(&mysql)).await.expect("a server");
        ask(&mysql, "SET GLOBAL read_only = 1");
        let refused = Coordinator::connect(&url(&mysql)).await.expect_err("it is a replica");
        assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
        assert!(refused.to_string().contains("cannot be written to"), "{refused}");
        ask(&mysql, "SET GLOBAL read_only = 0");
        let lock = coordinator.lock("x").expect("a name");
        lock.acquire(PATIENCE).await.expect("free").release().await.expect("released");
        coordinator.stop().await.expect("stopped");
    });
}

/// A free lock costs a statement, and its release another; with a hundred who wait, a process has three connections, and asks at
/// most four times a second while nothing happens.
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
        assert_eq!(ask(&mysql, connected), "3");
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

/// L2: between two processes a lock that is busy changes hands within 50 ms.
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

/// A deadlock, and a lock of another's that lasts, are nobody's errors: a step that the server has undone is made again.
#[test]
fn l2_what_the_server_undoes_is_made_again() {
    rerun_on_threads(async || {
        let mysql = one();
        let url = url(&mysql).replace("ttl=2s&heartbeat=250ms", "ttl=15s");
        let coordinator = Coordinator::connect(&url).await.expect("a server");
        let lock = coordinator.lock("x").expect("a name");
        lock.acquire(PATIENCE).await.expect("free").release().await.expect("released");
        let transaction = {
            let mysql = Arc::clone(&mysql);
            // Longer than a step waits for a lock.
            let work = "BEGIN; SELECT id FROM coordination.coordination_queues FOR UPDATE; \
                        SELECT SLEEP(1.8); COMMIT";
            thread::spawn(move || mysql.try_ask(work).map(drop))
        };
        let sleeping =
            "SELECT COUNT(*) FROM information_schema.processlist WHERE info LIKE 'SELECT SLEEP%'";
        while ask(&mysql, sleeping) != "1" {}
        let guard = lock.acquire(PATIENCE).await.expect("made again");
        transaction.join().expect("no panic").expect("carried out");
        guard.release().await.expect("released");
        coordinator.stop().await.expect("stopped");
    });
}

/// R1: connections that the server ends are made anew, and nothing is lost.
#[test]
fn r1_connections_are_made_anew() {
    rerun_on_threads(async || {
        let mysql = one();
        let coordinator = Coordinator::connect(&url(&mysql)).await.expect("a server");
        let lock = coordinator.lock("x").expect("a name");
        let mut last = 0;
        for _ in 0..5 {
            let guard = lock.acquire(PATIENCE).await.expect("free");
            assert!(guard.token().value() > last);
            last = guard.token().value();
            kill_all(&mysql);
            tokio::time::sleep(Duration::from_millis(600)).await;
            assert!(guard.is_held());
            kill_all(&mysql);
            guard.release().await.expect("released");
        }
        coordinator.stop().await.expect("stopped");
    });
}

fn kill_all(mysql: &Mysql) {
    let ours = "SELECT id FROM information_schema.processlist WHERE db = 'coordination'";
    for id in ask(mysql, ours).lines() {
        // It may have ended.
        let _ = block_in_place(|| mysql.try_ask(&format!("KILL {id}")));
    }
}

/// R3: all that a replica has of entries that were left goes, however much that is.
#[test]
fn r3_however_many_entries_were_left_they_go() {
    rerun_on_threads(async || {
        let mysql = one();
        let coordinator = Coordinator::connect(&url(&mysql)).await.expect("a server");
        // As a replica that lags would have them.
        ask(
            &mysql,
            "USE coordination;
             INSERT INTO coordination.coordination_queues (path, last, changes)
               SELECT CONCAT('coordination/lock/left-', seq), seq, 1 FROM seq_1_to_650;
             INSERT INTO coordination.coordination_entries (queue, seq, id, session, shared, generation, text)
               SELECT q.id, 1, CONCAT(s.id, '-', q.id), s.id, FALSE, 0, ''
               FROM coordination.coordination_queues q, coordination.coordination_sessions s",
        );
        kill_all(&mysql);
        let until = Instant::now() + Duration::from_secs(10);
        let count = || ask(&mysql, "SELECT COUNT(*) FROM coordination.coordination_entries");
        while count() != "0" && Instant::now() < until {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert_eq!(count(), "0");
        coordinator.stop().await.expect("stopped");
    });
}

/// T1: a heartbeat does not take the longer, the more others have left.
#[test]
fn t1_a_heartbeat_removes_no_more_than_it_has_time_for() {
    rerun_on_threads(async || {
        let mysql = one();
        Coordinator::connect(&url(&mysql)).await.expect("made").stop().await.expect("stopped");
        ask(
            &mysql,
            "USE coordination;
             DELETE FROM coordination_sessions;
             INSERT INTO coordination_queues (path, last, changes)
               SELECT CONCAT('coordination/lock/dead-', seq), 1, 1 FROM seq_1_to_1000;
             INSERT INTO coordination_sessions (id, namespace, member, lease, expires, generation)
               SELECT CONCAT('s', seq), 'coordination', CONCAT('m', seq), 60000000,
                 IF(seq = 0, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + 60000000, 1), 1
               FROM seq_0_to_10;
             INSERT INTO coordination_entries (queue, seq, id, session, shared, generation, text)
               SELECT id, 1, CONCAT('e', id), CONCAT('s', 1 + id % 10), FALSE, 1, ''
               FROM coordination_queues WHERE path LIKE 'coordination/lock/dead-%'",
        );
        let renew = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED; USE coordination;
                     CALL coordination_renew('s0', 1, '', 49)";
        assert_eq!(ask(&mysql, renew), "ok");
        let count = || ask(&mysql, "SELECT COUNT(*) FROM coordination.coordination_entries");
        assert_eq!(count(), "900", "a hundred, and those of the others with the next ones");
        for _ in 0..9 {
            ask(&mysql, renew);
        }
        assert_eq!(count(), "0");
    });
}

/// SEC-3: by TLS the server is verified, and without it nothing is said where it is wanted.
#[test]
fn sec3_the_server_is_verified() {
    rerun_on_threads(async || {
        let certificates = Certificates::new();
        let options = Mysql::options().tls(&certificates, &certificates.server);
        let mysql = block_in_place(|| Arc::new(options.start()));
        let authority = mysql.authority();
        let secure = mysql.secure_url(&authority, "");
        let ca = certificates.authority.display();
        let coordinator =
            Coordinator::connect(&format!("{secure}&ca={ca}")).await.expect("trusted");
        let lock = coordinator.lock("x").expect("a name");
        lock.acquire(PATIENCE).await.expect("free").release().await.expect("released");
        coordinator.stop().await.expect("stopped");
        let kind = |url: String| async move { try_connect_kind(Coordinator::connect(&url).await) };
        assert_eq!(kind(secure.clone()).await, ErrorKind::Tls, "an unknown authority");
        let named = format!("{secure}&ca={ca}&server_name=other.example");
        assert_eq!(kind(named).await, ErrorKind::Tls, "another name");
        // MariaDB says no more than that it denies access.
        let plainly = Coordinator::connect(&mysql.url(&authority, "")).await;
        let refused = plainly.expect_err("it wants TLS");
        assert_eq!(refused.kind(), ErrorKind::Auth, "{refused}");
        assert!(refused.to_string().contains("TLS"), "{refused}");
        let plain = one();
        let url = format!("{}&ca={ca}", plain.secure_url(&plain.authority(), ""));
        assert_eq!(kind(url).await, ErrorKind::Tls, "it has no TLS");
    });
}

/// L7: among a hundred thousand queues, sessions and entries each step finds its rows by an index.
#[test]
fn l7_no_step_reads_a_table_through() {
    rerun_on_threads(async || {
        let mysql = one();
        Coordinator::connect(&url(&mysql)).await.expect("made").stop().await.expect("stopped");
        let now = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))";
        ask(
            &mysql,
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
                 ANALYZE TABLE coordination_queues, coordination_sessions, coordination_entries"
            ),
        );
        for step in [
            "enter('s1', 1, 'coordination/lock/q-7', 's1-1', FALSE, '')",
            "enter('s1', 1, 'coordination/lock/q-8', 's1-2', TRUE, '')",
            "position('s1', 'coordination/lock/q-7', 's1-1', FALSE, (SELECT seq FROM coordination_entries WHERE id = 's1-1'))",
            "update('s1', 1, 'coordination/lock/q-7', 's1-1', TRUE, '', 7)",
            "read('coordination/lock/q-7')",
            "renew('s1', 1, 's1-1s1-2', 4)",
            "settle('s1', 2, 0, 0, 500)",
            "write('s1', 1, 'coordination/lock/q-4', NULL, 'v', FALSE, 9, 'a', '1', 'x', 1)",
            "records_of('coordination/lock/q-4', 'a,b')",
            "list('coordination/lock/q-5', 'coordination/lock/q-6', 100)",
            "prune('coordination', 1, 'coordination/lock/q-5', 'coordination/lock/q-6', 100)",
            "open('coordination', 'new', 1, 'member', 60000000, 's2')",
            "leave('s1', 1, 'coordination/lock/q-7', 's1-1', NULL)",
            "close('coordination', 'new')",
            "fence('q-10', 1)",
        ] {
            let read = ask(
                &mysql,
                &format!(
                    "USE coordination; SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED;
                     FLUSH STATUS; CALL coordination_{step};
                     SELECT '', SUM(variable_value) FROM information_schema.session_status
                       WHERE variable_name IN ('HANDLER_READ_RND_NEXT', 'HANDLER_READ_NEXT', 'HANDLER_READ_PREV')"
                ),
            );
            let rows: f64 =
                read.rsplit('\t').next().and_then(|rows| rows.parse().ok()).expect("a number");
            // Of them are those of the server's own table of numbers.
            assert!(rows < 3_000.0, "{rows} rows are read by {step}");
        }
    });
}

/// A step that is killed in its midst is undone before the connection is used again: the value and what is beside it are
/// written together, or not at all.
#[test]
fn x1_a_step_that_is_killed_is_undone() {
    rerun_on_threads(async || {
        let mysql = one();
        let url = url(&mysql).replace("ttl=2s&heartbeat=250ms", "ttl=60s");
        let coordinator = Coordinator::connect(&url).await.expect("a server");
        let jobs = coordinator.queue("jobs").expect("a name");
        // Not all servers run a handler in each case.
        ask(
            &mysql,
            "USE coordination;
             SET @text = (
               SELECT CONCAT('CREATE PROCEDURE coordination_write(', param_list, ') SQL SECURITY INVOKER ',
                 REPLACE(REPLACE(body, 'DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;', ''),
                   'ROLLBACK;', ''))
                 FROM mysql.proc WHERE db = 'coordination' AND name = 'coordination_write');
             DROP PROCEDURE coordination_write;
             EXECUTE IMMEDIATE @text",
        );
        let transaction = {
            let mysql = Arc::clone(&mysql);
            // Nobody else writes what is beside a value.
            let work = "BEGIN; SELECT * FROM coordination.coordination_records FOR UPDATE; \
                        SELECT SLEEP(1.5); COMMIT";
            thread::spawn(move || mysql.try_ask(work).map(drop))
        };
        while running(&mysql, "SELECT SLEEP").is_empty() {}
        let posting = tokio::spawn({
            let jobs = jobs.clone();
            async move { jobs.post(&[NewItem::new("work")]).await }
        });
        let step = loop {
            if let Some(step) = running(&mysql, "INSERT INTO coordination_records").pop() {
                break step;
            }
        };
        ask(&mysql, &format!("KILL QUERY {step}"));
        posting.await.expect("no panic").expect("made again");
        transaction.join().expect("no panic").expect("carried out");
        let claim = jobs.claim(ClaimOptions::default()).await.expect("whole").expect("posted");
        assert_eq!(claim.items()[0].body(), b"work");
        coordinator.stop().await.expect("stopped");
    });
}

/// The connections on which a statement that begins so is carried out.
fn running(mysql: &Mysql, statement: &str) -> Vec<String> {
    let running = "SELECT id FROM information_schema.processlist WHERE info LIKE";
    let ids = ask(mysql, &format!("{running} '{statement}%'"));
    ids.lines().map(ToOwned::to_owned).collect()
}

/// L2: a change of which nothing tells is found within the lease of who waits, and not at the end of the holder's.
#[test]
fn l2_a_change_that_is_not_told_is_found() {
    rerun_on_threads(async || {
        let mysql = one();
        let long = url(&mysql).replace("ttl=2s&heartbeat=250ms", "ttl=60s");
        let holder = Coordinator::connect(&long).await.expect("a server");
        let guard = holder.lock("x").expect("a name").acquire(PATIENCE).await.expect("free");
        let other = Coordinator::connect(&url(&mysql)).await.expect("a server");
        let lock = other.lock("x").expect("a name");
        let waiting = tokio::spawn(async move { lock.acquire(PATIENCE).await });
        tokio::time::sleep(Duration::from_secs(1)).await;
        let token = guard.token();
        ask(&mysql, &format!("DELETE FROM coordination.coordination_entries WHERE seq = {token}"));
        waiting.await.expect("no panic").expect("found").release().await.expect("released");
        other.stop().await.expect("stopped");
        drop(guard);
        holder.stop().await.expect("stopped");
    });
}

/// What outlives a crash of the server is told as its settings have it.
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

/// A dump has no procedures unless that is asked for: what is missing is made by who connects next.
#[test]
fn x1_what_is_missing_is_made_again() {
    rerun_on_threads(async || {
        let mysql = one();
        let coordinator = Coordinator::connect(&url(&mysql)).await.expect("a server");
        let takes = async |coordinator: &Coordinator, missing: &str| {
            let lock = coordinator.lock("x").expect("a name");
            let guard = lock.acquire(PATIENCE).await.expect(missing);
            guard.release().await.expect(missing);
        };
        takes(&coordinator, "nothing").await;
        for missing in ["PROCEDURE coordination_enter", "PROCEDURE coordination_fence"] {
            ask(&mysql, &format!("USE coordination; DROP {missing}"));
            let other = Coordinator::connect(&url(&mysql)).await.expect(missing);
            takes(&other, missing).await;
            takes(&coordinator, missing).await;
            other.stop().await.expect(missing);
        }
        for missing in ["PROCEDURE coordination_leave", "TABLE coordination_entries"] {
            ask(&mysql, &format!("USE coordination; DROP {missing}"));
            takes(&coordinator, missing).await;
        }
        coordinator.stop().await.expect("stopped");
        // The numbers of its rows would be given again, to other queues.
        ask(&mysql, "DROP TABLE coordination.coordination_queues");
        assert_eq!(try_connect_kind(Coordinator::connect(&url(&mysql)).await), ErrorKind::Corrupt);
    });
}

/// S2: a token that is refused locks nothing, though the transaction goes on.
#[test]
fn s2_who_is_refused_is_in_nobodys_way() {
    rerun_on_threads(async || {
        let mysql = one();
        let coordinator = Coordinator::connect(&url(&mysql)).await.expect("a server");
        let lock = coordinator.lock("x").expect("a name");
        let guard = lock.acquire(PATIENCE).await.expect("free");
        let token = guard.token();
        guard.release().await.expect("released");
        ask(
            &mysql,
            "EXECUTE IMMEDIATE 'CREATE PROCEDURE coordination.stale(token BIGINT) BEGIN
               DECLARE CONTINUE HANDLER FOR SQLEXCEPTION BEGIN END;
               START TRANSACTION;
               CALL coordination.coordination_fence(''x'', token);
               SELECT SLEEP(4);
               COMMIT;
             END'",
        );
        let transaction = {
            let mysql = Arc::clone(&mysql);
            thread::spawn(move || mysql.try_ask(&format!("CALL coordination.stale({token})")))
        };
        while running(&mysql, "SELECT SLEEP").is_empty() {}
        for name in ["x", "y"] {
            let lock = coordinator.lock(name).expect("a name");
            lock.acquire(PATIENCE).await.expect("free").release().await.expect("released");
        }
        assert!(!running(&mysql, "SELECT SLEEP").is_empty(), "they have waited for its end");
        transaction.join().expect("no panic").expect("carried out");
        coordinator.stop().await.expect("stopped");
    });
}

/// A primary that is made a replica grants nothing more, though the user may write there all the same.
#[test]
fn r1_a_server_that_becomes_read_only_is_left() {
    rerun_on_threads(async || {
        let mysql = one();
        let coordinator = Coordinator::connect(&url(&mysql)).await.expect("a server");
        let guard = coordinator.lock("x").expect("a name").acquire(PATIENCE).await.expect("free");
        ask(&mysql, "SET GLOBAL read_only = 1");
        let writes = "CREATE DATABASE beside";
        block_in_place(|| mysql.try_ask(writes)).expect("whoever has all rights may write");
        let lock = coordinator.lock("y").expect("a name");
        lock.try_acquire().await.map(drop).expect_err("it is a replica");
        tokio::time::timeout(Duration::from_secs(10), guard.lost()).await.expect("not extended");
        ask(&mysql, "SET GLOBAL read_only = 0");
        lock.acquire(PATIENCE).await.expect("free").release().await.expect("released");
        coordinator.stop().await.expect("stopped");
    });
}
