//! What only PostgreSQL has: fenced transactions, roles, settings, encodings, replicas, other versions of its tables.

use std::sync::Arc;
use std::time::Duration;

use coordination::{Coordinator, ErrorKind, Recipe};
use coordination_tests::harness::{Certificates, Postgres, Server, rerun_on_threads};
use tokio::task::block_in_place;

use crate::sql::{PATIENCE, SqlServer, ask, make, sql_checks, try_ask, try_connect_kind};

sql_checks!(Postgres);

impl SqlServer for Postgres {
    const BEHIND: (f64, &'static [&'static str], u64) = (4.0, &["look"], 250);
    const USER: &'static str = "CREATE ROLE app LOGIN PASSWORD 'secret'";
    const RIGHTS: (&'static [&'static str], &'static str) = (
        &[
            "GRANT USAGE ON SCHEMA coordination TO app",
            "GRANT SELECT ON coordination.version TO app",
        ],
        "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA coordination TO app",
    );
    const LOGIN: (&'static str, &'static str) = ("ALTER ROLE app NOLOGIN", "ALTER ROLE app LOGIN");
    const PASSWORD: &'static str = "ALTER ROLE app PASSWORD '{}'";
    const FULL: (&'static str, &'static str, &'static str) = (
        "ALTER ROLE app CONNECTION LIMIT 1",
        "ALTER ROLE app CONNECTION LIMIT -1",
        "too many connections",
    );
    const DROP: &'static str = "DROP SCHEMA coordination CASCADE";
    /// Empty, because PostgreSQL creates all tables in one transaction, so that an interrupted installation leaves no
    /// table.
    const NOT_ENDED: &'static [&'static str] = &[];
    const LEFT: &'static str = "
        INSERT INTO coordination.queues (path, last)
          SELECT convert_to('coordination/lock/left-' || n, 'UTF8'), n FROM generate_series(1, 650) n;
        INSERT INTO coordination.entries (queue, seq, id, session, shared, generation, text)
          SELECT q.id, 1, s.id || convert_to(q.id::text, 'UTF8'), s.id, false, 0, ''
          FROM coordination.queues q, coordination.sessions s";
    const DEAD: &'static [&'static str] = &[
        "INSERT INTO coordination.queues (path, last)
           SELECT convert_to('coordination/lock/dead-' || n, 'UTF8'), 1 FROM generate_series(1, 1000) n",
        "INSERT INTO coordination.sessions (id, namespace, member, channel, lease, expires, generation)
           SELECT convert_to('s' || n, 'UTF8'), 'coordination', convert_to('m' || n, 'UTF8'), 'c', 60000000,
             coordination.clock() + CASE WHEN n = 0 THEN 60000000 ELSE -1000 END, 1 FROM generate_series(0, 10) n",
        "INSERT INTO coordination.entries (queue, seq, id, session, shared, generation, text)
           SELECT id, 1, convert_to('e' || id, 'UTF8'), convert_to('s' || 1 + id % 10, 'UTF8'), false, 1, ''
           FROM coordination.queues WHERE path LIKE 'coordination/lock/dead-%'",
    ];
    /// With the step that the client sends after it, if that is due.
    const RENEW: &'static str =
        "SELECT CASE WHEN is_due THEN coordination.clear_up(all_times) ELSE status END
           FROM coordination.renew('s0', 1, '{}')";
    const STUCK: (&'static [&'static str], &'static str) = (
        &[
            "CREATE FUNCTION public.stuck() RETURNS trigger LANGUAGE plpgsql AS $$
               BEGIN RAISE EXCEPTION 'it stays'; END $$",
            "CREATE TRIGGER stuck BEFORE DELETE ON coordination.entries FOR EACH ROW
               WHEN (OLD.session = 'dead') EXECUTE FUNCTION public.stuck()",
            "INSERT INTO coordination.queues (path, last) VALUES ('coordination/lock/dead', 1)",
            "INSERT INTO coordination.entries (queue, seq, id, session, shared, generation, text)
               SELECT id, 1, 'dead', 'dead', false, 1, '' FROM coordination.queues WHERE path = 'coordination/lock/dead'",
            "INSERT INTO coordination.sessions (id, namespace, member, channel, lease, expires, generation)
               VALUES ('dead', 'coordination', 'dead', 'c', 60000000, 1, 1)",
        ],
        "DROP TRIGGER stuck ON coordination.entries",
    );
    const USED_AND_PRUNED: &'static str =
        "INSERT INTO coordination.queues (path, last) VALUES ('coordination/lock/x', 9000000000000000);
         INSERT INTO coordination.floors (namespace, last) VALUES ('coordination', 9000000000000000);
         DELETE FROM coordination.queues";
    const MAKES_QUEUE: &'static str = "SET coordination.lock_timeout = '10s';
        SELECT coordination.leave(NULL, 1, 'coordination/lock/x', 'nobody', NULL)";
    const BY_HAND: &'static str = "SET bytea_output = 'escape'";
    const CHANNEL: &'static str = "'c', ";
    /// Rows that were written, and times that rows were looked up.
    const WORK: (&'static str, u64) = (
        "SELECT sum(n_tup_ins + n_tup_upd + n_tup_del + seq_scan + coalesce(idx_scan, 0))
           FROM pg_stat_user_tables WHERE schemaname = 'coordination'",
        9,
    );
    const OLD_VIEW: &'static str = "BEGIN ISOLATION LEVEL REPEATABLE READ";
    const WANTS_TLS: ErrorKind = ErrorKind::Tls;
    const SLEEPING: &'static str =
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'";

    fn start(certificates: Option<&Certificates>) -> Self {
        match certificates {
            Some(those) => Self::options().tls(those, &those.server, false).start(),
            None => Self::one(),
        }
    }

    fn tell(&self, statement: &str) -> Result<String, String> {
        self.try_ask(0, statement)
    }

    fn table(name: &str) -> String {
        format!("coordination.{name}")
    }

    fn call(function: &str, arguments: &str) -> String {
        format!("SELECT * FROM coordination.{function}({arguments})")
    }

    fn fence(name: &str, token: u64) -> String {
        format!("SELECT coordination.coordination_fence('{name}', {token})")
    }

    fn sleep(seconds: f64) -> String {
        format!("SELECT pg_sleep({seconds})")
    }

    fn beside(&self, url: &str) -> String {
        format!("{url}&schema=locks_1")
    }

    fn end_connections(&self) {
        self.ask(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'coordination:%'",
        );
    }

    fn statements(&self) -> Vec<String> {
        let log = self.node(0).log();
        let is_one = |line: &&str| line.contains("statement: ") || line.contains("execute ");
        log.lines().filter(is_one).map(ToOwned::to_owned).collect()
    }
}

fn one() -> Arc<Postgres> {
    crate::sql::one()
}

fn url(postgres: &Postgres) -> String {
    crate::sql::url(postgres)
}

/// Settings of a role or a database that would break the library's promises have no effect on the library.
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
            // An earlier setting may have made the role's transactions read-only, so this one is read-write.
            ask(
                &*postgres,
                &format!("BEGIN READ WRITE; ALTER ROLE postgres SET {setting}; COMMIT"),
            );
            // The tables are created while the setting is in force.
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
            ask(&*postgres, "BEGIN READ WRITE; ALTER ROLE postgres RESET ALL; COMMIT");
        }
    });
}

/// S1, T2: what was answered is on the disk, also for a role whose commits do not wait for that.
#[test]
fn s1_a_grant_is_on_the_disk_when_it_is_answered() {
    rerun_on_threads(async || {
        let options = Postgres::options().set("wal_writer_delay", "10s");
        let postgres = block_in_place(|| Arc::new(options.start()));
        ask(&*postgres, "ALTER ROLE postgres SET synchronous_commit = off");
        let url = url(&postgres).replace("ttl=2s&heartbeat=250ms", "ttl=60s&heartbeat=20s");
        let coordinator = Coordinator::connect(&url).await.expect("a server");
        let lock = coordinator.lock("x").expect("a name");
        let guard = lock.acquire(PATIENCE).await.expect("free");
        block_in_place(|| {
            postgres.node(0).kill();
            postgres.node(0).restart();
            postgres.wait_ready();
        });
        let token = guard.token().to_string();
        assert_eq!(ask(&*postgres, "SELECT seq FROM coordination.entries"), token);
        guard.release().await.expect("released");
        coordinator.stop().await.expect("stopped");
    });
}

/// S8: names that differ are different locks, whatever the database's encoding.
#[test]
fn s8_names_are_apart_in_every_encoding() {
    rerun_on_threads(async || {
        let postgres = one();
        for encoding in ["SQL_ASCII", "LATIN1", "EUC_JP", "UTF8"] {
            let database = format!("in_{}", encoding.to_lowercase());
            ask(
                &*postgres,
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
            // `coordination_fence` finds the tokens by the names, although some databases store the names in another
            // encoding.
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

/// Any allowed name can be the name of the schema, also a reserved word of SQL.
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
            ask(&*postgres, &check);
            assert_eq!(lock.holders().await.expect(schema).len(), 1);
            guard.release().await.expect(schema);
            coordinator.stop().await.expect(schema);
        }
    });
}

/// A server that has no descriptor left says so with the code 53000. That passes, so whoever acquires meanwhile waits for it.
#[test]
fn x1_a_server_without_descriptors_is_asked_again() {
    rerun_on_threads(async || {
        let postgres = one();
        make(&*postgres).await;
        for made in [
            "CREATE FUNCTION public.no_descriptor() RETURNS trigger LANGUAGE plpgsql AS $$
               BEGIN RAISE EXCEPTION 'out of file descriptors' USING ERRCODE = '53000'; END $$",
            "CREATE TRIGGER no_descriptor BEFORE INSERT ON coordination.entries
               FOR EACH ROW EXECUTE FUNCTION public.no_descriptor()",
        ] {
            ask(&*postgres, made);
        }
        let coordinator = Coordinator::connect(&url(&postgres)).await.expect("a server");
        let lock = coordinator.lock("x").expect("a name");
        let acquiring = tokio::spawn(async move { lock.acquire(PATIENCE).await });
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert!(!acquiring.is_finished(), "it waits until the server has one");
        ask(&*postgres, "DROP TRIGGER no_descriptor ON coordination.entries");
        acquiring.await.expect("no panic").expect("free").release().await.expect("released");
        coordinator.stop().await.expect("stopped");
    });
}

/// SEC-7: a role that owns the schema needs no right to create schemas.
#[test]
fn sec7_the_owner_of_an_empty_schema_makes_the_tables() {
    rerun_on_threads(async || {
        let postgres = one();
        ask(&*postgres, "CREATE ROLE app LOGIN PASSWORD 'secret'");
        ask(&*postgres, "CREATE SCHEMA coordination AUTHORIZATION app");
        let url = url(&postgres).replace("postgres@", "app:secret@");
        let app = Coordinator::connect(&url).await.expect("it may make tables there");
        let lock = app.lock("x").expect("a name");
        lock.acquire(PATIENCE).await.expect("free").release().await.expect("released");
        app.stop().await.expect("stopped");
    });
}

/// SEC-7: functions and operators that somebody else has created in the role's search path are not called.
#[test]
fn sec7_nobody_elses_functions_are_called() {
    rerun_on_threads(async || {
        let postgres = one();
        let trap = "LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'called'; END $$";
        for made in [
            // These parameters fit the library's calls better than those of PostgreSQL's own functions, which accept
            // any type.
            format!(
                "CREATE FUNCTION concat_ws(text, text, bigint, text, bigint, text) RETURNS text {trap}"
            ),
            format!("CREATE FUNCTION trap(text, bigint) RETURNS text {trap}"),
            "CREATE OPERATOR || (FUNCTION = trap, LEFTARG = text, RIGHTARG = bigint)".to_owned(),
            format!("CREATE FUNCTION unnest(bytea[]) RETURNS SETOF bytea {trap}"),
            // These have the same parameters as PostgreSQL's own functions; the search path that is set below puts
            // `public` first.
            format!("CREATE FUNCTION clock_timestamp() RETURNS timestamptz {trap}"),
            format!("CREATE FUNCTION pg_notify(text, text) RETURNS void {trap}"),
            "CREATE TABLE queues (path bytea)".to_owned(),
            "ALTER ROLE postgres SET search_path = public, pg_catalog".to_owned(),
        ] {
            ask(&*postgres, &made);
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
        let check = Postgres::fence("x", guard.token().value());
        try_ask(&*postgres, &check).expect("it is the holder's");
        guard.release().await.expect("released");
        waiting.await.expect("no panic").expect("free").release().await.expect("released");
        coordinator.in_use(Recipe::Lock).await.expect("listed");
        coordinator.prune(Duration::ZERO).await.expect("pruned");
        coordinator.stop().await.expect("stopped");
    });
}

/// S1, SEC-7: a role that may not read the tables finds nothing by which it could tell a client that its turn has come.
#[test]
fn sec7_who_has_no_rights_tells_nobody_that_its_turn_has_come() {
    rerun_on_threads(async || {
        let postgres = one();
        let holder = Coordinator::connect(&url(&postgres)).await.expect("a server");
        let other = Coordinator::connect(&url(&postgres)).await.expect("a server");
        let (lock, theirs) = (holder.lock("x").expect("a name"), other.lock("x").expect("a name"));
        let held = lock.acquire(PATIENCE).await.expect("free");
        let waiting = tokio::spawn(async move { theirs.acquire(PATIENCE).await });
        let waiter = loop {
            let contenders = lock.holders().await.expect("listed");
            if let Some(waiter) = contenders.get(1) {
                break waiter.token;
            }
        };
        ask(&*postgres, "CREATE ROLE stranger");
        // What the server says when the lock is free, to all names that everybody sees.
        let free = format!("coordination/lock/x {} exclusive {waiter} free", held.token());
        ask(
            &*postgres,
            &format!(
                "SET ROLE stranger; SELECT pg_notify(application_name, '{free}') FROM pg_stat_activity \
                 WHERE application_name LIKE 'coordination:%'"
            ),
        );
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert!(held.is_held() && !waiting.is_finished(), "two hold the lock");
        held.release().await.expect("released");
        waiting.await.expect("no panic").expect("free").release().await.expect("released");
        for coordinator in [holder, other] {
            coordinator.stop().await.expect("stopped");
        }
    });
}

/// SEC-7: a role that may not call one of the library's functions is refused when it connects, and not when it calls that
/// function. Nobody has to be allowed to call `coordination_fence`, or to use what else is in the same schema.
#[test]
fn sec7_a_function_that_may_not_be_called_is_told() {
    rerun_on_threads(async || {
        let postgres = one();
        make(&*postgres).await;
        ask(&*postgres, Postgres::USER);
        let (too_few, missing) = Postgres::RIGHTS;
        too_few.iter().chain([&missing]).for_each(|right| drop(ask(&*postgres, right)));
        let url = url(&postgres).replace("postgres@", "app:secret@");
        let revoked = |function: &str| format!("REVOKE EXECUTE ON {function} FROM PUBLIC");
        // What the library does not need, and what is not the library's.
        ask(&*postgres, &revoked("FUNCTION coordination.coordination_fence"));
        ask(&*postgres, &revoked("FUNCTION coordination.encoded"));
        ask(
            &*postgres,
            "CREATE FUNCTION coordination.audit() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'; \
             CREATE TABLE coordination.audits (n int)",
        );
        ask(&*postgres, &revoked("FUNCTION coordination.audit"));
        let app = Coordinator::connect(&url).await.expect("it does not need these functions");
        app.stop().await.expect("stopped");
        ask(&*postgres, &revoked("FUNCTION coordination.leave"));
        let refused = Coordinator::connect(&url).await.expect_err("it could not release a lock");
        assert_eq!(refused.kind(), ErrorKind::Permission, "{refused}");
        assert!(refused.to_string().contains("EXECUTE the functions leave"), "{refused}");
        ask(&*postgres, &revoked("ALL FUNCTIONS IN SCHEMA coordination"));
        ask(&*postgres, "GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA coordination TO app");
        let app = Coordinator::connect(&url).await.expect("enough");
        let lock = app.lock("x").expect("a name");
        lock.acquire(PATIENCE).await.expect("free").release().await.expect("released");
        app.stop().await.expect("stopped");
    });
}

/// R1: a client does not use a server as long as it is a replica, and uses it as soon as it has been promoted to
/// primary.
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

/// With a hundred thousand queues, sessions and entries, each statement finds its rows by an index.
#[test]
fn l7_no_step_reads_a_table_through() {
    rerun_on_threads(async || {
        let postgres = one();
        make(&*postgres).await;
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
            ask(&*postgres, many);
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
        // The server counts the reads of a connection only when that connection ends.
        tokio::time::sleep(Duration::from_secs(1)).await;
        let read = "SELECT coalesce(sum(seq_tup_read), 0) FROM pg_stat_user_tables
                      WHERE schemaname = 'coordination' AND relname <> 'version'";
        let read: u64 = ask(&*postgres, read).parse().expect("a number");
        assert!(read < 10_000, "{read} rows were read in tables that were read through");
        let found =
            "SELECT sum(idx_tup_fetch) FROM pg_stat_user_tables WHERE schemaname = 'coordination'";
        assert!(ask(&*postgres, found).parse::<u64>().expect("a number") > 10);
    });
}
