//! What only PostgreSQL has, or can have wrong: fenced transactions, roles, settings, encodings, replicas, other versions.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use coordination::{Coordinator, ErrorKind, Recipe, Result};
use coordination_tests::harness::{Certificates, Postgres, Server, rerun_on_threads};
use tokio::task::block_in_place;

const PATIENCE: Option<Duration> = Some(Duration::from_secs(10));

fn url(postgres: &Postgres) -> String {
    format!("{}&ttl=2s&heartbeat=250ms", postgres.url(&postgres.authority(), ""))
}

fn one() -> Arc<Postgres> {
    block_in_place(|| Arc::new(Postgres::one()))
}

fn ask(postgres: &Postgres, statement: &str) -> String {
    block_in_place(|| postgres.ask(statement))
}

/// Whether a transaction that checks this token first is carried out.
fn is_fenced(postgres: &Postgres, name: &str, token: u64) -> Result<(), String> {
    let check = format!("SELECT coordination.coordination_fence('{name}', {token})");
    block_in_place(|| postgres.try_ask(0, &check)).map(drop)
}

fn try_connect_kind(result: Result<Coordinator>) -> ErrorKind {
    let error = result.expect_err("it is refused");
    println!("{error}");
    error.kind()
}

/// S2: a transaction that checks the token is the holder's, or is not carried out, whatever the name is like.
#[test]
fn s2_a_fenced_transaction_is_the_holders() {
    rerun_on_threads(async || {
        let postgres = one();
        let coordinator = Coordinator::connect(&url(&postgres)).await.expect("a server");
        let long = "é/".repeat(300);
        for name in ["x", "a b/c%é", "X", &long] {
            let lock = coordinator.lock(name).expect("a good name");
            let guard = lock.acquire(PATIENCE).await.expect("free");
            let token = guard.token().value();
            assert_eq!(is_fenced(&postgres, name, token), Ok(()), "{name}");
            let waiting = tokio::spawn({
                let lock = lock.clone();
                async move { lock.acquire(PATIENCE).await }
            });
            let waiter = loop {
                let next = "SELECT max(seq) FROM coordination.entries";
                let newest: u64 = ask(&postgres, next).parse().expect("a number");
                if newest > token {
                    break newest;
                }
            };
            let refused = is_fenced(&postgres, name, waiter).expect_err("it waits");
            assert!(refused.contains("is not that of a holder"), "{refused}");
            guard.release().await.expect("released");
            let next = waiting.await.expect("no panic").expect("free");
            is_fenced(&postgres, name, token).expect_err("it was released");
            assert_eq!(is_fenced(&postgres, name, next.token().value()), Ok(()));
            next.release().await.expect("released");
        }
        coordinator.stop().await.expect("stopped");
    });
}

/// S2: a lock stays where it is until a transaction that has checked its token is over, though its session ends meanwhile.
#[test]
fn s2_nobody_is_granted_a_lock_within_a_fenced_transaction() {
    rerun_on_threads(async || {
        let postgres = one();
        let holder = Coordinator::connect(&url(&postgres)).await.expect("a server");
        let guard = holder.lock("x").expect("a name").acquire(PATIENCE).await.expect("free");
        let token = guard.token().value();
        let transaction = {
            let postgres = Arc::clone(&postgres);
            let work = format!(
                "BEGIN; SELECT coordination.coordination_fence('x', {token}); SELECT pg_sleep(1.5); COMMIT"
            );
            thread::spawn(move || {
                let done = postgres.try_ask(0, &work).map(drop);
                (done, Instant::now())
            })
        };
        let sleeping = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'";
        while ask(&postgres, sleeping) != "1" {}
        ask(&postgres, "UPDATE coordination.sessions SET expires = 1");
        let other = Coordinator::connect(&url(&postgres)).await.expect("a server");
        let next = other.lock("x").expect("a name").acquire(PATIENCE).await.expect("free by then");
        let granted = Instant::now();
        let (done, ended) = transaction.join().expect("no panic");
        assert_eq!(done, Ok(()));
        let early = ended.saturating_duration_since(granted);
        assert!(early < Duration::from_millis(100), "granted {early:?} before its end");
        is_fenced(&postgres, "x", token).expect_err("it is over");
        assert!(next.is_held() && next.token().value() > token);
        next.release().await.expect("released");
        other.stop().await.expect("stopped");
        holder.stop().await.expect("stopped");
    });
}

/// SEC-7: rights on our tables are enough, and what is missing is told by who connects.
#[test]
fn sec7_a_role_with_rights_on_these_tables_is_enough() {
    rerun_on_threads(async || {
        let postgres = one();
        ask(&postgres, "CREATE ROLE app LOGIN PASSWORD 'secret'");
        let as_app = url(&postgres).replace("postgres@", "app:secret@");
        // It may make no schema.
        let refused = try_connect_kind(Coordinator::connect(&as_app).await);
        assert_eq!(refused, ErrorKind::Permission);
        Coordinator::connect(&url(&postgres)).await.expect("made").stop().await.expect("stopped");
        assert_eq!(try_connect_kind(Coordinator::connect(&as_app).await), ErrorKind::Permission);
        ask(&postgres, "GRANT USAGE ON SCHEMA coordination TO app");
        ask(&postgres, "GRANT SELECT ON coordination.version TO app");
        assert_eq!(try_connect_kind(Coordinator::connect(&as_app).await), ErrorKind::Permission);
        let rights =
            "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA coordination TO app";
        ask(&postgres, rights);
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

/// Settings of a role or a database that would undo what is promised do not.
#[test]
fn x1_settings_of_the_role_do_no_harm() {
    rerun_on_threads(async || {
        let postgres = one();
        for (number, setting) in [
            "default_transaction_isolation = 'serializable'",
            "default_transaction_isolation = 'repeatable read'",
            "default_transaction_read_only = on",
            "standard_conforming_strings = off",
            "bytea_output = 'escape'",
            "datestyle = 'German'",
            "lock_timeout = '1ms'",
            "statement_timeout = '5s'",
            "synchronous_commit = off",
            "timezone = 'Asia/Kathmandu'",
            "idle_in_transaction_session_timeout = '10ms'",
            "idle_session_timeout = '400ms'",
            "search_path = 'nowhere'",
        ]
        .into_iter()
        .enumerate()
        {
            // It may be read-only by then.
            ask(&postgres, &format!("BEGIN READ WRITE; ALTER ROLE postgres SET {setting}; COMMIT"));
            // What is made there is made with the setting.
            let url = format!("{}&schema=locks_{number}", url(&postgres));
            let coordinator = Coordinator::connect(&url).await.expect(setting);
            let lock = coordinator.lock("x").expect("a name");
            let guard = lock.acquire(PATIENCE).await.expect(setting);
            tokio::time::sleep(Duration::from_millis(600)).await;
            assert!(guard.is_held(), "{setting}");
            assert_eq!(coordinator.in_use(Recipe::Lock).await.expect(setting), ["x"]);
            coordinator.prune(Duration::ZERO).await.expect(setting);
            guard.release().await.expect(setting);
            coordinator.stop().await.expect(setting);
            ask(&postgres, "BEGIN READ WRITE; ALTER ROLE postgres RESET ALL; COMMIT");
        }
    });
}

/// S8: whatever the database's encoding, names that differ are apart.
#[test]
fn s8_names_are_apart_in_every_encoding() {
    rerun_on_threads(async || {
        let postgres = one();
        for encoding in ["SQL_ASCII", "LATIN1", "EUC_JP", "UTF8"] {
            let database = format!("in_{}", encoding.to_lowercase());
            ask(
                &postgres,
                &format!(
                    "CREATE DATABASE {database} ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0"
                ),
            );
            let url = url(&postgres).replace("/postgres?", &format!("/{database}?"));
            let coordinator = Coordinator::connect(&url).await.expect(encoding);
            let mut held = Vec::new();
            for name in ["a", "A", "á", "a\u{301}", "a ", "a\0", "日本", "ａ"] {
                let lock = coordinator.lock(name).expect("a name");
                held.push(lock.try_acquire().await.expect(name).expect("nobody has it"));
                assert!(lock.try_acquire().await.expect(name).is_none(), "{name:?}");
            }
            // The tokens are those of the names, also where the database spells them otherwise.
            for (name, guard) in [("a ", &held[4]), ("日本", &held[6])] {
                let token = guard.token();
                let check = format!("SELECT coordination.coordination_fence('{name}', {token})");
                let fenced = block_in_place(|| postgres.ask_as("postgres", &database, &check));
                match encoding == "LATIN1" && !name.is_ascii() {
                    true => assert!(fenced.expect_err(name).contains("has no equivalent")),
                    false => assert_eq!(fenced.as_deref(), Ok(""), "{name} in {encoding}"),
                }
            }
            drop(held);
            coordinator.stop().await.expect("stopped");
        }
    });
}

/// Any name that is allowed is a schema's, also one that is a word of SQL.
#[test]
fn x1_a_schema_is_called_as_one_likes() {
    rerun_on_threads(async || {
        let postgres = one();
        for schema in ["user", "select", "order", "_1", &"s".repeat(63)] {
            let url = format!("{}&schema={schema}", url(&postgres));
            let coordinator = Coordinator::connect(&url).await.expect(schema);
            let lock = coordinator.lock("x").expect("a name");
            let guard = lock.acquire(PATIENCE).await.expect(schema);
            let token = guard.token();
            let check = format!("SELECT \"{schema}\".coordination_fence('x', {token})");
            ask(&postgres, &check);
            assert_eq!(lock.holders().await.expect(schema).len(), 1);
            guard.release().await.expect(schema);
            coordinator.stop().await.expect(schema);
        }
    });
}

/// SEC-7: whoever has a schema of his own needs no right to make another.
#[test]
fn sec7_the_owner_of_an_empty_schema_makes_the_tables() {
    rerun_on_threads(async || {
        let postgres = one();
        ask(&postgres, "CREATE ROLE app LOGIN PASSWORD 'secret'");
        ask(&postgres, "CREATE SCHEMA coordination AUTHORIZATION app");
        let url = url(&postgres).replace("postgres@", "app:secret@");
        let app = Coordinator::connect(&url).await.expect("it may make tables there");
        let lock = app.lock("x").expect("a name");
        lock.acquire(PATIENCE).await.expect("free").release().await.expect("released");
        app.stop().await.expect("stopped");
    });
}

/// SEC-7: functions and operators that somebody else has put where the role looks for them are not called.
#[test]
fn sec7_nobody_elses_functions_are_called() {
    rerun_on_threads(async || {
        let postgres = one();
        let trap = "LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'called'; END $$";
        for made in [
            // They fit better than PostgreSQL's own, which take anything.
            format!(
                "CREATE FUNCTION concat_ws(text, text, bigint, text, bigint, text) RETURNS text {trap}"
            ),
            format!("CREATE FUNCTION trap(text, bigint) RETURNS text {trap}"),
            "CREATE OPERATOR || (FUNCTION = trap, LEFTARG = text, RIGHTARG = bigint)".to_owned(),
            format!("CREATE FUNCTION unnest(bytea[]) RETURNS SETOF bytea {trap}"),
            // They come first.
            format!("CREATE FUNCTION clock_timestamp() RETURNS timestamptz {trap}"),
            format!("CREATE FUNCTION pg_notify(text, text) RETURNS void {trap}"),
            "CREATE TABLE queues (path bytea)".to_owned(),
            "ALTER ROLE postgres SET search_path = public, pg_catalog".to_owned(),
        ] {
            ask(&postgres, &made);
        }
        let coordinator = Coordinator::connect(&url(&postgres)).await.expect("a server");
        let lock = coordinator.lock("x").expect("a name");
        let guard = lock.acquire(PATIENCE).await.expect("free");
        assert_eq!(lock.holders().await.expect("listed").len(), 1);
        let waiting = tokio::spawn({
            let lock = lock.clone();
            async move { lock.acquire(PATIENCE).await }
        });
        while lock.holders().await.expect("listed").len() < 2 {}
        is_fenced(&postgres, "x", guard.token().value()).expect("it is the holder's");
        guard.release().await.expect("released");
        waiting.await.expect("no panic").expect("free").release().await.expect("released");
        coordinator.in_use(Recipe::Lock).await.expect("listed");
        coordinator.prune(Duration::ZERO).await.expect("pruned");
        coordinator.stop().await.expect("stopped");
    });
}

/// R3: all that a replica has of entries that were left goes, however much that is.
#[test]
fn r3_however_many_entries_were_left_they_go() {
    rerun_on_threads(async || {
        let postgres = one();
        let coordinator = Coordinator::connect(&url(&postgres)).await.expect("a server");
        // As a replica that lags would have them.
        for left in [
            "INSERT INTO coordination.queues (path, last)
               SELECT convert_to('coordination/lock/left-' || n, 'UTF8'), n FROM generate_series(1, 450) n",
            "INSERT INTO coordination.entries (queue, seq, id, session, shared, generation, text)
               SELECT q.id, 1, s.id || convert_to(q.id::text, 'UTF8'), s.id, false, 0, ''
               FROM coordination.queues q, coordination.sessions s",
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'coordination:%'",
        ] {
            ask(&postgres, left);
        }
        let until = Instant::now() + Duration::from_secs(10);
        let count = || ask(&postgres, "SELECT count(*) FROM coordination.entries");
        while count() != "0" && Instant::now() < until {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert_eq!(count(), "0");
        coordinator.stop().await.expect("stopped");
    });
}

/// L7: whoever waits behind a transaction that has checked the token does not ask all the time.
#[test]
fn l7_a_fenced_transaction_is_waited_for_quietly() {
    rerun_on_threads(async || {
        let postgres = one();
        let holder = Coordinator::connect(&url(&postgres)).await.expect("a server");
        let guard = holder.lock("x").expect("a name").acquire(PATIENCE).await.expect("free");
        let token = guard.token().value();
        let transaction = {
            let postgres = Arc::clone(&postgres);
            let work = format!(
                "BEGIN; SELECT coordination.coordination_fence('x', {token}); SELECT pg_sleep(4); COMMIT"
            );
            thread::spawn(move || postgres.try_ask(0, &work).map(drop))
        };
        let sleeping = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'";
        while ask(&postgres, sleeping) != "1" {}
        ask(&postgres, "UPDATE coordination.sessions SET expires = 1");
        let other = Coordinator::connect(&url(&postgres)).await.expect("a server");
        let next = other.lock("x").expect("a name").acquire(PATIENCE).await.expect("free by then");
        assert_eq!(transaction.join().expect("no panic"), Ok(()));
        let counts = block_in_place(|| postgres.request_counts());
        let looks = counts.get("look").copied().unwrap_or_default();
        println!("L7 postgres: {looks} looks behind a transaction of four seconds");
        assert!(looks < 250, "{looks} looks");
        next.release().await.expect("released");
        other.stop().await.expect("stopped");
        holder.stop().await.expect("stopped");
    });
}

/// T1: a heartbeat does not take the longer, the more others have left.
#[test]
fn t1_a_heartbeat_removes_no_more_than_it_has_time_for() {
    rerun_on_threads(async || {
        let postgres = one();
        Coordinator::connect(&url(&postgres)).await.expect("made").stop().await.expect("stopped");
        for many in [
            "INSERT INTO coordination.queues (path, last)
               SELECT convert_to('coordination/lock/dead-' || n, 'UTF8'), 1 FROM generate_series(1, 1000) n",
            "INSERT INTO coordination.sessions (id, namespace, member, channel, lease, expires, generation)
               SELECT convert_to('s' || n, 'UTF8'), 'coordination', convert_to('m' || n, 'UTF8'), 'c', 60000000,
                 coordination.clock() + CASE WHEN n = 0 THEN 60000000 ELSE -1000 END, 1 FROM generate_series(0, 10) n",
            "INSERT INTO coordination.entries (queue, seq, id, session, shared, generation, text)
               SELECT id, 1, convert_to('e' || id, 'UTF8'), convert_to('s' || 1 + id % 10, 'UTF8'), false, 1, ''
               FROM coordination.queues WHERE path LIKE 'coordination/lock/dead-%'",
        ] {
            ask(&postgres, many);
        }
        assert_eq!(ask(&postgres, "SELECT status FROM coordination.renew('s0', 1, '{}')"), "ok");
        let left = ask(&postgres, "SELECT count(*) FROM coordination.entries");
        assert_eq!(left, "900", "a hundred, and those of the others with the next ones");
        for _ in 0..9 {
            ask(&postgres, "SELECT coordination.renew('s0', 1, '{}')");
        }
        assert_eq!(ask(&postgres, "SELECT count(*) FROM coordination.entries"), "0");
    });
}

/// A schema of another version is neither used nor changed.
#[test]
fn x1_another_version_is_refused() {
    rerun_on_threads(async || {
        let postgres = one();
        let coordinator = Coordinator::connect(&url(&postgres)).await.expect("made");
        coordinator.stop().await.expect("stopped");
        ask(&postgres, "UPDATE coordination.version SET version = 99");
        let refused = try_connect_kind(Coordinator::connect(&url(&postgres)).await);
        assert_eq!(refused, ErrorKind::Unsupported);
        let beside = format!("{}&schema=locks_1", url(&postgres));
        Coordinator::connect(&beside).await.expect("beside it").stop().await.expect("stopped");
        assert_eq!(ask(&postgres, "SELECT version FROM coordination.version"), "99");
    });
}

/// R1: a replica is passed over, and one that is made the primary is found.
#[test]
fn r1_a_replica_is_passed_over_until_it_is_the_primary() {
    rerun_on_threads(async || {
        let postgres = block_in_place(|| Arc::new(Postgres::options().replicas(1).start()));
        let [primary, replica] = [0, 1].map(|index| postgres.node(index).address().to_string());
        let at =
            |authority: &str| format!("{}&ttl=6s&heartbeat=500ms", postgres.url(authority, ""));
        let both = at(&format!("{replica},{primary}"));
        let coordinator = Coordinator::connect(&both).await.expect("the primary is there");
        let refused = try_connect_kind(Coordinator::connect(&at(&replica)).await);
        assert_eq!(refused, ErrorKind::Unavailable);
        let lock = coordinator.lock("x").expect("a name");
        let guard = lock.acquire(PATIENCE).await.expect("free");
        let before = guard.token();
        let is_there = "SELECT count(*) FROM coordination.entries";
        while block_in_place(|| postgres.try_ask(1, is_there)).as_deref() != Ok("1") {}
        block_in_place(|| {
            postgres.node(0).kill();
            postgres.promote(1);
        });
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert!(guard.is_held(), "the replica knew of it");
        guard.release().await.expect("released");
        let again = lock.acquire(PATIENCE).await.expect("free");
        assert!(again.token() > before);
        again.release().await.expect("released");
        coordinator.stop().await.expect("stopped");
    });
}

/// Many who come first at once make one schema.
#[test]
fn x1_the_schema_is_made_once() {
    rerun_on_threads(async || {
        let postgres = one();
        let connecting = (0..8).map(|_| {
            let url = url(&postgres);
            tokio::spawn(async move { Coordinator::connect(&url).await })
        });
        for connected in connecting.collect::<Vec<_>>() {
            let coordinator = connected.await.expect("no panic").expect("it is made, or there");
            coordinator.stop().await.expect("stopped");
        }
        assert_eq!(ask(&postgres, "SELECT count(*) FROM coordination.version"), "1");
    });
}

/// A lock that nobody else wants costs one statement, and one more to release.
#[test]
fn l4_a_free_lock_is_one_statement_each_way() {
    rerun_on_threads(async || {
        let postgres = one();
        let coordinator = Coordinator::connect(&url(&postgres)).await.expect("a server");
        let lock = coordinator.lock("x").expect("a name");
        let counts = || block_in_place(|| postgres.request_counts());
        let before = counts();
        for _ in 0..20 {
            lock.acquire(PATIENCE).await.expect("free").release().await.expect("released");
        }
        let after = counts();
        for (request, count) in after {
            let made = count - before.get(&request).copied().unwrap_or_default();
            match request.as_str() {
                "enter" | "leave" => assert_eq!(made, 20, "{request}"),
                "renew" | "settle" => {}
                _ => assert_eq!(made, 0, "{request}"),
            }
        }
        coordinator.stop().await.expect("stopped");
    });
}

/// SEC-3: by TLS the server is verified, and without it nothing is said where it is wanted.
#[test]
fn sec3_the_server_is_verified() {
    rerun_on_threads(async || {
        let certificates = Certificates::new();
        let options = Postgres::options().tls(&certificates, &certificates.server, false);
        let postgres = block_in_place(|| Arc::new(options.start()));
        let authority = postgres.authority();
        let secure = postgres.secure_url(&authority, "");
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
        assert_eq!(kind(postgres.url(&authority, "")).await, ErrorKind::Tls, "it wants TLS");
        let plain = one();
        let url = format!("{}&ca={ca}", plain.secure_url(&plain.authority(), ""));
        assert_eq!(kind(url).await, ErrorKind::Tls, "it has no TLS");
    });
}

/// Among a hundred thousand queues, sessions and entries each step finds its rows by an index.
#[test]
fn l7_no_step_reads_a_table_through() {
    rerun_on_threads(async || {
        let postgres = one();
        Coordinator::connect(&url(&postgres)).await.expect("made").stop().await.expect("stopped");
        for many in [
            "INSERT INTO coordination.queues (path, last)
               SELECT convert_to('coordination/lock/many-' || n, 'UTF8'), n FROM generate_series(1, 100000) n",
            "INSERT INTO coordination.sessions (id, namespace, member, channel, lease, expires, generation)
               SELECT convert_to(lpad(to_hex(n), 16, '0'), 'UTF8'), 'coordination', convert_to('m' || n, 'UTF8'), 'c',
                 3600000000, coordination.clock() + 3600000000, 1 FROM generate_series(1, 100000) n",
            "INSERT INTO coordination.entries (queue, seq, id, session, shared, generation, text)
               SELECT id, id, convert_to('many-' || id, 'UTF8'),
                 convert_to(lpad(to_hex(id), 16, '0'), 'UTF8'), false, 1, '' FROM coordination.queues",
            "ANALYZE",
            "SELECT pg_stat_reset()",
        ] {
            ask(&postgres, many);
        }
        let one = Coordinator::connect(&url(&postgres)).await.expect("a server");
        let other = Coordinator::connect(&url(&postgres)).await.expect("a server");
        for name in ["x", "many-7x"] {
            let lock = one.lock(name).expect("a name");
            let guard = lock.acquire(PATIENCE).await.expect("free");
            let waiting = tokio::spawn({
                let lock = other.lock(name).expect("a name");
                async move { lock.acquire(PATIENCE).await }
            });
            tokio::time::sleep(Duration::from_millis(500)).await;
            lock.holders().await.expect("listed");
            guard.release().await.expect("released");
            waiting.await.expect("no panic").expect("free").release().await.expect("released");
        }
        one.stop().await.expect("stopped");
        other.stop().await.expect("stopped");
        // What a connection has counted is told when it ends.
        tokio::time::sleep(Duration::from_secs(1)).await;
        let read = "SELECT coalesce(sum(seq_tup_read), 0) FROM pg_stat_user_tables
                      WHERE schemaname = 'coordination' AND relname <> 'version'";
        let read: u64 = ask(&postgres, read).parse().expect("a number");
        assert!(read < 10_000, "{read} rows were read in tables that were read through");
        let found =
            "SELECT sum(idx_tup_fetch) FROM pg_stat_user_tables WHERE schemaname = 'coordination'";
        assert!(ask(&postgres, found).parse::<u64>().expect("a number") > 10);
    });
}
