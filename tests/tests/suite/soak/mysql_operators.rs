//! What operators, replicas and other programs do to MySQL and MariaDB while clients are connected.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use coordination::{ClaimOptions, Coordinator, ErrorKind, NewItem};
use coordination_tests::harness::{Mysql, Server, rerun_on_threads};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::block_in_place;
use tokio::time::{Instant, sleep};

use super::mysql_only::one;
use crate::sql::{PATIENCE, SqlServer, try_connect_kind};

/// The options of a URL whose session is lost quickly.
const SHORT: &str = "ttl=2s&heartbeat=250ms";
const NOW: &str = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))";

fn url(mysql: &Mysql, options: &str) -> String {
    format!("{}&{options}", mysql.url(&mysql.authority(), ""))
}

fn ask(mysql: &Mysql, statement: &str) -> String {
    block_in_place(|| mysql.ask(statement))
}

/// Runs statements on a new connection in another thread, and returns as soon as the server runs the `SELECT SLEEP`
/// that is among them.
fn begin(mysql: &Arc<Mysql>, work: &str) -> thread::JoinHandle<Result<String, String>> {
    let running = {
        let (mysql, work) = (Arc::clone(mysql), work.to_owned());
        thread::spawn(move || mysql.try_ask(&work))
    };
    while sleeping(mysql).is_empty() && !running.is_finished() {}
    running
}

/// The ids of connections that run a `SELECT SLEEP`.
fn sleeping(mysql: &Mysql) -> String {
    ask(mysql, "SELECT id FROM information_schema.processlist WHERE info LIKE 'SELECT SLEEP%'")
}

/// A primary, and a server that replicates from it. The replica accepts writes, as it does by default.
fn replicated() -> [Arc<Mysql>; 2] {
    block_in_place(|| {
        let numbered = |id| Mysql::options().set("server-id", id).set("log-bin", "log").start();
        let servers = ["1", "2"].map(|id| Arc::new(numbered(id)));
        let authority = servers[0].authority();
        let (host, port) = authority.rsplit_once(':').expect("a port");
        servers[1].ask(&format!(
            "CHANGE MASTER TO master_host = '{host}', master_port = {port}, master_user = 'coordination'; START SLAVE"
        ));
        let running = "SHOW GLOBAL STATUS LIKE 'Slaves_running'";
        while !servers[1].ask(running).ends_with('1') {}
        servers
    })
}

/// S1: a server of the URL that replicates from another one is not used, although it accepts writes.
#[test]
fn s1_a_replica_that_may_be_written_to_is_not_used() {
    rerun_on_threads(async || {
        let [primary, replica] = replicated();
        let both = format!("{},{}", primary.authority(), replica.authority());
        let both = format!("{}&ttl=10s", primary.url(&both, ""));
        let mut granted = Vec::new();
        let mut coordinators = Vec::new();
        for _ in 0..10 {
            let coordinator = Coordinator::connect(&both).await.expect("the primary");
            let lock = coordinator.lock("x").expect("a name");
            granted.extend(lock.try_acquire().await.expect("an answer"));
            coordinators.push(coordinator);
        }
        assert_eq!(granted.len(), 1, "S1: so many hold it");
        let refused = Coordinator::connect(&url(&replica, "ttl=10s")).await.expect_err("a replica");
        assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
        assert!(refused.to_string().contains("replicates"), "{refused}");
        drop(granted);
        for coordinator in coordinators {
            coordinator.stop().await.expect("stopped");
        }
        // The replica becomes a primary.
        ask(&replica, "STOP SLAVE; RESET SLAVE ALL");
        let coordinator = Coordinator::connect(&url(&replica, "ttl=10s")).await.expect("a primary");
        coordinator.stop().await.expect("stopped");
    });
}

/// L7: while another transaction stays open, old versions of rows cannot be purged, and the library's statements do not
/// read all of them.
#[test]
fn l7_an_open_transaction_slows_nobody_down() {
    rerun_on_threads(async || {
        let mysql = one();
        let coordinator = Coordinator::connect(&url(&mysql, "ttl=60s")).await.expect("a server");
        let lock = coordinator.lock("x").expect("a name");
        lock.acquire(PATIENCE).await.expect("free").release().await.expect("released");
        ask(&mysql, "CREATE TABLE coordination.beside (n INT) ENGINE = InnoDB");
        let open = begin(
            &mysql,
            "START TRANSACTION WITH CONSISTENT SNAPSHOT; INSERT INTO coordination.beside VALUES (1); SELECT SLEEP(600)",
        );
        // These statements leave as many old versions of rows as an hour in which some sessions send heartbeats, and
        // other sessions hold the lock in turn.
        ask(
            &mysql,
            &format!(
                "USE coordination;
                 INSERT INTO coordination_sessions (id, namespace, member, lease, expires, generation)
                   SELECT CONCAT('s', seq), 'coordination', CONCAT('m', seq), 60000000, {NOW} + 60000000, 1
                   FROM seq_1_to_100;
                 EXECUTE IMMEDIATE 'CREATE PROCEDURE work() BEGIN
                   DECLARE n INT DEFAULT 0;
                   START TRANSACTION;
                   WHILE n < 20000 DO
                     UPDATE coordination_sessions SET expires = {} - 3600000000 + n * 100000
                       WHERE id = CONCAT(''s'', 1 + n % 100);
                     SET n = n + 1;
                   END WHILE;
                   UPDATE coordination_sessions SET expires = {} + 600000000 WHERE id LIKE ''s%'';
                   COMMIT;
                 END';
                 CALL work();
                 INSERT INTO coordination_entries (queue, seq, id, session, shared, generation, text)
                   SELECT id, last - 20000 + seq, CONCAT('e', seq), 's1', FALSE, 1, ''
                   FROM coordination_queues, seq_1_to_20000;
                 DELETE FROM coordination_entries",
                NOW.replace('\'', "''"),
                NOW.replace('\'', "''"),
            ),
        );
        let guard = lock.acquire(PATIENCE).await.expect("free");
        // The ids are looked up before the measurement, so that the pages of these queries are not counted.
        let ours = "SELECT id FROM coordination.coordination_sessions WHERE id NOT LIKE 's%'";
        let ours = ask(&mysql, ours);
        let entered = format!(
            "SELECT id FROM coordination.coordination_entries WHERE session = '{ours}' AND seq = {}",
            guard.token()
        );
        let entered = ask(&mysql, &entered);
        for step in [
            "renew('s1', 1, '', 49)".to_owned(),
            "enter('s1', 1, 'coordination/lock/x', SHA1(RAND()), FALSE, '')".to_owned(),
            format!(
                "position('{ours}', 'coordination/lock/x', '{entered}', FALSE, {})",
                guard.token()
            ),
            "read('coordination/lock/x')".to_owned(),
            "list('coordination/lock/', 'coordination/lock0', 100)".to_owned(),
            format!("fence('x', {})", guard.token()),
        ] {
            // The smallest of four counts is used, because some heartbeats check all entries, and so read more pages.
            let pages = (0..4).map(|_| pages_of(&mysql, &step)).min().expect("some tries");
            println!("L7 mysql: {pages} pages for {}", step.split('(').next().unwrap_or_default());
            assert!(pages < 2_000, "L7: {pages} pages: {step}");
        }
        ask(&mysql, &format!("KILL {}", sleeping(&mysql)));
        open.join().expect("no panic").expect_err("killed");
        drop(coordinator.stop().await);
    });
}

/// How many pages of the database this statement reads.
fn pages_of(mysql: &Mysql, step: &str) -> u64 {
    let pages = "SELECT '', variable_value FROM information_schema.global_status
                 WHERE variable_name = 'INNODB_BUFFER_POOL_READ_REQUESTS'";
    let said = ask(
        mysql,
        &format!(
            "USE coordination; SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED;
             {pages}; CALL coordination_{step}; {pages}"
        ),
    );
    let counts = said.lines().filter_map(|line| line.strip_prefix('\t')?.parse::<u64>().ok());
    let counts: Vec<_> = counts.collect();
    let [before, .., after] = counts[..] else { panic!("no counts in {said}") };
    after - before
}

/// S1: a primary that becomes a replica grants nothing to waiters, and confirms no release.
#[test]
fn s1_a_server_that_becomes_read_only_passes_no_lock_on() {
    rerun_on_threads(async || {
        let mysql = one();
        // The lease is so long that no heartbeat notices the change first.
        let holder = Coordinator::connect(&url(&mysql, "ttl=60s")).await.expect("a server");
        let guard = holder.lock("x").expect("a name").acquire(PATIENCE).await.expect("free");
        let other = Coordinator::connect(&url(&mysql, "ttl=60s")).await.expect("a server");
        let lock = other.lock("x").expect("a name");
        let waiting =
            tokio::spawn(async move { lock.acquire(Some(Duration::from_secs(40))).await });
        while ask(&mysql, "SELECT COUNT(*) FROM coordination.coordination_entries") != "2" {}
        ask(&mysql, "SET GLOBAL read_only = 1");
        let releasing = tokio::spawn(guard.release());
        sleep(Duration::from_secs(3)).await;
        assert!(!waiting.is_finished(), "granted by a server that is none any more");
        assert_eq!(
            ask(&mysql, "SELECT COUNT(*) FROM coordination.coordination_entries"),
            "2",
            "released where nobody hears of it"
        );
        ask(&mysql, "SET GLOBAL read_only = 0");
        // The result is not checked, because the release may have failed with an unknown outcome.
        drop(releasing.await.expect("no panic"));
        waiting.await.expect("no panic").expect("granted").release().await.expect("released");
        other.stop().await.expect("stopped");
        holder.stop().await.expect("stopped");
    });
}

/// R1: the server has entries of a session that the session does not know of, and their removal has to wait for a row
/// lock. Nevertheless the session is not lost.
#[test]
fn r1_what_was_left_and_is_locked_waits() {
    rerun_on_threads(async || {
        let mysql = one();
        let coordinator = Coordinator::connect(&url(&mysql, SHORT)).await;
        let coordinator = coordinator.expect("a server");
        let guard = coordinator.lock("x").expect("a name").acquire(PATIENCE).await.expect("free");
        // These entries simulate the following: a session has removed entries at one server, and another server takes
        // over, which still has them.
        ask(
            &mysql,
            "USE coordination;
             INSERT INTO coordination_queues (path, last, changes)
               SELECT CONCAT('coordination/lock/left-', seq), seq, 1 FROM seq_1_to_3;
             INSERT INTO coordination_entries (queue, seq, id, session, shared, generation, text)
               SELECT q.id, 1, CONCAT(s.id, '-', q.id), s.id, FALSE, 0, ''
               FROM coordination_queues q, coordination_sessions s WHERE q.path LIKE 'coordination/lock/left-%'",
        );
        let open = begin(
            &mysql,
            "BEGIN; SELECT * FROM coordination.coordination_queues WHERE path = 'coordination/lock/left-1' FOR UPDATE;
             SELECT e.seq FROM coordination.coordination_entries e WHERE e.queue = (
               SELECT q.id FROM coordination.coordination_queues q WHERE q.path = 'coordination/lock/left-2') FOR UPDATE;
             SELECT SLEEP(6)",
        );
        block_in_place(|| mysql.end_connections());
        let count = || ask(&mysql, "SELECT COUNT(*) FROM coordination.coordination_entries");
        while !open.is_finished() {
            assert!(guard.is_held(), "the session was lost");
            sleep(Duration::from_millis(50)).await;
        }
        let until = Instant::now() + Duration::from_secs(10);
        while count() != "1" && Instant::now() < until {
            sleep(Duration::from_millis(50)).await;
        }
        assert_eq!(count(), "1", "the guard's own");
        assert!(guard.is_held(), "the session was lost");
        guard.release().await.expect("released");
        coordinator.stop().await.expect("stopped");
    });
}

/// S2: in a serializable transaction, checking a token would lock the session's row, so heartbeats would have to
/// wait. The check refuses such a transaction, so no session is lost.
#[test]
fn s2_a_serializable_transaction_is_refused() {
    rerun_on_threads(async || {
        let mysql = one();
        let coordinator = Coordinator::connect(&url(&mysql, SHORT)).await;
        let coordinator = coordinator.expect("a server");
        let guard = coordinator.lock("x").expect("a name").acquire(PATIENCE).await.expect("free");
        let work = format!(
            "SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE; BEGIN;
             CALL coordination.coordination_fence('x', {}); SELECT SLEEP(5); COMMIT",
            guard.token()
        );
        let fenced = begin(&mysql, &work);
        let until = Instant::now() + Duration::from_secs(4);
        while Instant::now() < until {
            assert!(guard.is_held(), "the session was lost");
            sleep(Duration::from_millis(20)).await;
        }
        let refused = fenced.join().expect("no panic").expect_err("refused");
        assert!(refused.contains("SERIALIZABLE"), "{refused}");
        guard.release().await.expect("released");
        coordinator.stop().await.expect("stopped");
    });
}

/// S1: if an address leads to another server while a client makes its connections, all connections that the client uses
/// lead to one server.
#[test]
fn s1_all_connections_lead_to_one_server() {
    rerun_on_threads(async || {
        let servers = [one(), one()];
        for mysql in &servers {
            let coordinator = Coordinator::connect(&url(mysql, "ttl=10s")).await.expect("a server");
            coordinator.stop().await.expect("stopped");
        }
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let targets = servers.each_ref().map(|mysql| mysql.authority());
        let accepted = Arc::new(AtomicUsize::new(0));
        let forwarding = tokio::spawn({
            let accepted = Arc::clone(&accepted);
            async move {
                while let Ok((mut client, _)) = listener.accept().await {
                    // The first connection leads to one server, and all later ones to the other.
                    let nth = accepted.fetch_add(1, Ordering::SeqCst).min(1);
                    let target = targets[nth].clone();
                    tokio::spawn(async move {
                        let mut server = TcpStream::connect(target).await.expect("it listens");
                        let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
                    });
                }
            }
        });
        let through = format!("{}&ttl=10s", servers[0].url(&address.to_string(), ""));
        let coordinator = Coordinator::connect(&through).await.expect("a server");
        let connected = |mysql: &Mysql| {
            ask(
                mysql,
                "SELECT COUNT(*) FROM information_schema.processlist WHERE db = 'coordination'",
            )
        };
        let until = Instant::now() + Duration::from_secs(5);
        while connected(&servers[0]) != "0" && Instant::now() < until {
            sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(servers.each_ref().map(|mysql| connected(mysql)), ["0", "3"]);
        assert!(accepted.load(Ordering::SeqCst) > 3, "nothing was made again");
        coordinator.stop().await.expect("stopped");
        forwarding.abort();
    });
}

/// A read-only server is refused with a reason; a server that becomes read-only is not used until it accepts writes
/// again.
#[test]
fn r1_a_read_only_server_is_refused() {
    rerun_on_threads(async || {
        let mysql = one();
        let coordinator = Coordinator::connect(&url(&mysql, SHORT)).await.expect("a server");
        ask(&mysql, "SET GLOBAL read_only = 1");
        let refused = Coordinator::connect(&url(&mysql, SHORT)).await.expect_err("it is a replica");
        assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
        assert!(refused.to_string().contains("cannot be written to"), "{refused}");
        ask(&mysql, "SET GLOBAL read_only = 0");
        let lock = coordinator.lock("x").expect("a name");
        lock.acquire(PATIENCE).await.expect("free").release().await.expect("released");
        coordinator.stop().await.expect("stopped");
    });
}

/// If a statement of the library is rolled back, because of a deadlock or because it waited too long for a row lock,
/// the library repeats it. The caller sees no error.
#[test]
fn l2_what_the_server_undoes_is_made_again() {
    rerun_on_threads(async || {
        let mysql = one();
        let url = url(&mysql, "ttl=15s");
        let coordinator = Coordinator::connect(&url).await.expect("a server");
        let lock = coordinator.lock("x").expect("a name");
        lock.acquire(PATIENCE).await.expect("free").release().await.expect("released");
        let transaction = {
            let mysql = Arc::clone(&mysql);
            // The transaction holds the row locks for longer than a statement of the library waits for one.
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

/// R1: when the server closes connections, the client makes new ones, and no lock is lost.
#[test]
fn r1_connections_are_made_anew() {
    rerun_on_threads(async || {
        let mysql = one();
        let coordinator = Coordinator::connect(&url(&mysql, SHORT)).await.expect("a server");
        let lock = coordinator.lock("x").expect("a name");
        let mut last = 0;
        for _ in 0..5 {
            let guard = lock.acquire(PATIENCE).await.expect("free");
            assert!(guard.token().value() > last);
            last = guard.token().value();
            block_in_place(|| mysql.end_connections());
            sleep(Duration::from_millis(600)).await;
            assert!(guard.is_held());
            block_in_place(|| mysql.end_connections());
            guard.release().await.expect("released");
        }
        coordinator.stop().await.expect("stopped");
    });
}

/// R1: a process that only holds a lock uses all its connections now and then, so that nothing on the way drops one of them
/// because it is idle.
#[test]
fn r1_idle_connections_are_used() {
    rerun_on_threads(async || {
        let mysql = one();
        let options = "ttl=15s&heartbeat=1s";
        let coordinator = Coordinator::connect(&url(&mysql, options)).await.expect("a server");
        let guard = coordinator.lock("x").expect("a name").acquire(PATIENCE).await.expect("free");
        let used = || {
            let log = block_in_place(|| mysql.statements());
            let lines = log.lines().filter(|line| line.ends_with(" Query\tDO 0"));
            let connections = lines.filter_map(|line| line.split_whitespace().rev().nth(3));
            connections.map(ToOwned::to_owned).collect::<BTreeSet<_>>()
        };
        let until = Instant::now() + Duration::from_secs(300);
        while used().len() < 2 && Instant::now() < until {
            sleep(Duration::from_secs(1)).await;
        }
        // There are more if the server was slow once, so that they were made anew.
        assert!(used().len() >= 2, "both connections for calls: {:?}", used());
        guard.release().await.expect("released");
        coordinator.stop().await.expect("stopped");
    });
}

/// A statement that is killed while it runs is rolled back before its connection is used again: the value and its
/// records are written together, or not at all.
#[test]
fn x1_a_step_that_is_killed_is_undone() {
    rerun_on_threads(async || {
        let mysql = one();
        let url = url(&mysql, "ttl=60s");
        let coordinator = Coordinator::connect(&url).await.expect("a server");
        let jobs = coordinator.queue("jobs").expect("a name");
        // Removes the procedure's own error handler, because not every server runs it when a statement is killed.
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
            // This transaction locks the rows of the records. So the library's write stops after it has written the
            // value, and before it writes the value's records.
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

/// T4: calls that wait for rows which another transaction has locked do not delay the heartbeats of their process.
#[test]
fn t4_calls_that_wait_for_a_row_do_not_keep_heartbeats_back() {
    rerun_on_threads(async || {
        let mysql = one();
        let coordinator = Coordinator::connect(&url(&mysql, "ttl=3s")).await.expect("a server");
        let lock = |name| coordinator.lock(name).expect("a name");
        let held = lock("held").acquire(PATIENCE).await.expect("free");
        let jobs = coordinator.queue("jobs").expect("a name");
        jobs.post(&[NewItem::new("work")]).await.expect("posted");
        lock("x").acquire(PATIENCE).await.expect("free").release().await.expect("released");
        let open = begin(
            &mysql,
            "BEGIN; SELECT * FROM coordination.coordination_records FOR UPDATE;
             SELECT * FROM coordination.coordination_queues WHERE path = 'coordination/lock/x' FOR UPDATE;
             SELECT * FROM coordination.coordination_created FOR UPDATE; SELECT SLEEP(6)",
        );
        let posting = tokio::spawn({
            let jobs = jobs.clone();
            // An attempt gives up sooner than the transaction ends.
            async move { while jobs.post(&[NewItem::new("more work")]).await.is_err() {} }
        });
        let acquiring = tokio::spawn({
            let lock = lock("x");
            async move { lock.acquire(Some(Duration::from_secs(60))).await?.release().await }
        });
        while !open.is_finished() {
            assert!(held.is_held(), "the session was lost");
            sleep(Duration::from_millis(20)).await;
        }
        posting.await.expect("no panic");
        acquiring.await.expect("no panic").expect("granted and released");
        assert!(held.is_held(), "the session was lost");
        held.release().await.expect("released");
        coordinator.stop().await.expect("stopped");
    });
}

/// The ids of connections that run a statement with this beginning.
fn running(mysql: &Mysql, statement: &str) -> Vec<String> {
    let running = "SELECT id FROM information_schema.processlist WHERE info LIKE";
    let ids = ask(mysql, &format!("{running} '{statement}%'"));
    ids.lines().map(ToOwned::to_owned).collect()
}

/// L2: if a change causes no notification, the waiter finds it within the waiter's own lease, although the holder's
/// lease ends later.
#[test]
fn l2_a_change_that_is_not_told_is_found() {
    rerun_on_threads(async || {
        let mysql = one();
        let long = url(&mysql, "ttl=60s");
        let holder = Coordinator::connect(&long).await.expect("a server");
        let guard = holder.lock("x").expect("a name").acquire(PATIENCE).await.expect("free");
        let other = Coordinator::connect(&url(&mysql, SHORT)).await.expect("a server");
        let lock = other.lock("x").expect("a name");
        let waiting = tokio::spawn(async move { lock.acquire(PATIENCE).await });
        sleep(Duration::from_secs(1)).await;
        let token = guard.token();
        ask(&mysql, &format!("DELETE FROM coordination.coordination_entries WHERE seq = {token}"));
        waiting.await.expect("no panic").expect("found").release().await.expect("released");
        other.stop().await.expect("stopped");
        drop(guard);
        holder.stop().await.expect("stopped");
    });
}

/// A dump contains no procedures by default, so a restored database lacks them. The next client that connects creates
/// what is missing.
#[test]
fn x1_what_is_missing_is_made_again() {
    rerun_on_threads(async || {
        let mysql = one();
        let coordinator = Coordinator::connect(&url(&mysql, SHORT)).await.expect("a server");
        let takes = async |coordinator: &Coordinator, missing: &str| {
            let lock = coordinator.lock("x").expect("a name");
            let guard = lock.acquire(PATIENCE).await.expect(missing);
            guard.release().await.expect(missing);
        };
        takes(&coordinator, "nothing").await;
        for missing in ["PROCEDURE coordination_enter", "PROCEDURE coordination_fence"] {
            ask(&mysql, &format!("USE coordination; DROP {missing}"));
            let other = Coordinator::connect(&url(&mysql, SHORT)).await.expect(missing);
            takes(&other, missing).await;
            takes(&coordinator, missing).await;
            other.stop().await.expect(missing);
        }
        for missing in ["PROCEDURE coordination_leave", "TABLE coordination_entries"] {
            ask(&mysql, &format!("USE coordination; DROP {missing}"));
            takes(&coordinator, missing).await;
        }
        coordinator.stop().await.expect("stopped");
        // The library does not create this table again, because queues in a new table would get ids that are already in
        // use.
        ask(&mysql, "DROP TABLE coordination.coordination_queues");
        assert_eq!(
            try_connect_kind(Coordinator::connect(&url(&mysql, SHORT)).await),
            ErrorKind::Corrupt
        );
    });
}

/// S2: a check that refuses a token leaves no row lock, although its transaction goes on.
#[test]
fn s2_who_is_refused_is_in_nobodys_way() {
    rerun_on_threads(async || {
        let mysql = one();
        let coordinator = Coordinator::connect(&url(&mysql, SHORT)).await.expect("a server");
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

/// S1: no step writes on a read-only server, even if the user could. A row that is removed there and not on the new primary would
/// end the replication from that one.
#[test]
fn s1_no_step_writes_on_a_read_only_server() {
    rerun_on_threads(async || {
        let mysql = one();
        crate::sql::make(&*mysql).await;
        let steps = "SELECT GROUP_CONCAT(routine_name) FROM information_schema.routines \
                     WHERE routine_schema = 'coordination' AND routine_definition LIKE '%START TRANSACTION%'";
        let mut steps: BTreeSet<_> = ask(&mysql, steps).split(',').map(ToOwned::to_owned).collect();
        ask(&mysql, "SET GLOBAL read_only = 1");
        for step in [
            "open('coordination', 's1', 1, 'member', 60000000, NULL)",
            "renew('s1', 1, '', 49)",
            "settle_one('s1', 2, 1, 1)",
            "close('coordination', 's1')",
            "enter('s1', 1, 'coordination/lock/x', 's1-1', FALSE, '')",
            "update('s1', 1, 'coordination/lock/x', 's1-1', TRUE, '', 1)",
            "position('s1', 'coordination/lock/x', 's1-1', FALSE, 1)",
            "leave('s1', 1, 'coordination/lock/x', 's1-1', NULL)",
            "read('coordination/lock/x')",
            "write('s1', 1, 'coordination/value/x', NULL, 'v', FALSE, 1, '', '', '', 0)",
            "prune('coordination', 1, 'coordination/lock/', 'coordination/lock0', 100)",
        ] {
            let call = format!("USE coordination; CALL coordination_{step}");
            let refused = block_in_place(|| mysql.try_ask(&call)).expect_err(step);
            assert!(refused.contains("1290") && refused.contains("read-only"), "{step}: {refused}");
            let name = step.split('(').next().expect("a name");
            steps.remove(&format!("coordination_{name}"));
        }
        assert!(steps.is_empty(), "other steps write, too: {steps:?}");
        ask(&mysql, "SET GLOBAL read_only = 0");
    });
}

/// A primary that becomes a replica grants nothing more, even if the user could still write there.
#[test]
fn r1_a_server_that_becomes_read_only_is_left() {
    rerun_on_threads(async || {
        let mysql = one();
        let coordinator = Coordinator::connect(&url(&mysql, SHORT)).await.expect("a server");
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
