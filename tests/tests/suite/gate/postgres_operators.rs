//! What operators and other programs do in the database while clients are connected.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use coordination::Coordinator;
use coordination_tests::harness::{Postgres, Server, rerun_on_threads};
use tokio::task::block_in_place;
use tokio::time::{Instant, sleep};

const PATIENCE: Option<Duration> = Some(Duration::from_secs(10));

fn one() -> Arc<Postgres> {
    block_in_place(|| Arc::new(Postgres::one()))
}

fn url(postgres: &Postgres, options: &str) -> String {
    format!("{}&{options}", postgres.url(&postgres.authority(), ""))
}

fn ask(postgres: &Postgres, statement: &str) -> String {
    block_in_place(|| postgres.ask(statement))
}

/// L5: an operator sets a transaction isolation level with which the library's statements fail, and the setting
/// applies to existing connections too. No session is lost by that.
#[test]
fn l5_settings_change_while_connected() {
    rerun_on_threads(async || {
        let postgres = one();
        let url = url(&postgres, "ttl=2s&heartbeat=250ms");
        let coordinator = Coordinator::connect(&url).await.expect("a server");
        let lock = |name| coordinator.lock(name).expect("a good name");
        let held = lock("held").acquire(PATIENCE).await.expect("free");
        ask(&postgres, "ALTER SYSTEM SET default_transaction_isolation = 'serializable'");
        ask(&postgres, "SELECT pg_reload_conf()");
        let until = Instant::now() + Duration::from_secs(3);
        while Instant::now() < until {
            let guard = lock("other").acquire(PATIENCE).await.expect("free");
            guard.release().await.expect("released");
            sleep(Duration::from_millis(20)).await;
        }
        assert!(held.is_held(), "the session was lost");
        held.release().await.expect("released");
        coordinator.stop().await.expect("stopped");
    });
}

/// L5: a session has already ended when the answer to its opening arrives. The client can open another session.
#[test]
fn l5_a_session_that_is_over_before_its_answer_came() {
    rerun_on_threads(async || {
        let postgres = one();
        let url = url(&postgres, "ttl=2s&heartbeat=250ms");
        let coordinator = Coordinator::connect(&url).await.expect("a server");
        // The trigger delays the opening of a session for longer than an attempt may take.
        for statement in [
            "CREATE FUNCTION public.late() RETURNS trigger LANGUAGE plpgsql AS $$
               BEGIN PERFORM pg_catalog.pg_sleep(1); NEW.expires := 1; RETURN NEW; END $$",
            "CREATE TRIGGER late BEFORE INSERT ON coordination.sessions FOR EACH ROW EXECUTE FUNCTION public.late()",
            "UPDATE coordination.sessions SET expires = 1",
        ] {
            ask(&postgres, statement);
        }
        let opened = "SELECT count(*) FROM coordination.sessions WHERE channel <> ''";
        while ask(&postgres, opened) != "2" {
            sleep(Duration::from_millis(20)).await;
        }
        ask(&postgres, "DROP TRIGGER late ON coordination.sessions");
        let began = Instant::now();
        let lock = coordinator.lock("x").expect("a good name");
        // The lock has to be acquired within two leases and five seconds (L5).
        let guard = loop {
            match lock.acquire(Some(Duration::from_secs(1))).await {
                Ok(guard) => break guard,
                Err(error) => assert!(began.elapsed() < Duration::from_secs(9), "L5: {error}"),
            }
        };
        println!("L5 postgres: a session again after {:?}", began.elapsed());
        guard.release().await.expect("released");
        coordinator.stop().await.expect("stopped");
    });
}

/// S1: a commit that no replica has confirmed is not a grant, even if an operator makes the server stop waiting for
/// replicas. The client is told so though its role asks for no warnings.
#[test]
fn s1_a_commit_that_is_told_not_to_wait_is_no_grant() {
    rerun_on_threads(async || {
        let postgres = one();
        ask(&postgres, "ALTER ROLE postgres SET client_min_messages = 'error'");
        let coordinator = Coordinator::connect(&url(&postgres, "ttl=20s")).await.expect("a server");
        let lock = coordinator.lock("x").expect("a good name");
        ask(&postgres, "ALTER SYSTEM SET synchronous_standby_names = 'nobody'");
        ask(&postgres, "SELECT pg_reload_conf()");
        sleep(Duration::from_millis(200)).await;
        let acquiring = tokio::spawn(async move { lock.acquire(PATIENCE).await });
        let cancel = "SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
        let mut cancelled = 0;
        let until = Instant::now() + Duration::from_secs(4);
        while Instant::now() < until {
            cancelled += ask(&postgres, cancel).parse::<u32>().expect("a number");
            assert!(!acquiring.is_finished(), "S1: granted, and no replica has it");
            sleep(Duration::from_millis(20)).await;
        }
        assert!(cancelled > 0, "nothing was committed");
        ask(&postgres, "ALTER SYSTEM RESET synchronous_standby_names");
        ask(&postgres, "SELECT pg_reload_conf()");
        let guard = acquiring.await.expect("no panic").expect("granted at last");
        guard.release().await.expect("released");
        coordinator.stop().await.expect("stopped");
    });
}

/// X1: the client works with a server that sends a warning at each connection.
#[test]
fn x1_a_warning_at_each_connection() {
    rerun_on_threads(async || {
        let postgres = one();
        // The server warns as it does after the system's libraries were updated.
        ask(&postgres, "UPDATE pg_database SET datcollversion = 'older'");
        let url = url(&postgres, "ttl=2s&heartbeat=250ms");
        let coordinator = Coordinator::connect(&url).await.expect("a server");
        let lock = coordinator.lock("x").expect("a good name");
        let guard = lock.acquire(PATIENCE).await.expect("free");
        sleep(Duration::from_millis(600)).await;
        assert!(guard.is_held(), "no heartbeat was confirmed");
        guard.release().await.expect("released");
        coordinator.stop().await.expect("stopped");
    });
}

/// L7: while another transaction stays open, old versions of rows cannot be removed, and the library's statements do
/// not read all of them.
#[test]
fn l7_an_open_transaction_slows_nobody_down() {
    rerun_on_threads(async || {
        let postgres = one();
        let coordinator = Coordinator::connect(&url(&postgres, "ttl=60s")).await.expect("a server");
        let lock = coordinator.lock("x").expect("a good name");
        lock.acquire(PATIENCE).await.expect("free").release().await.expect("released");
        let open = {
            let postgres = Arc::clone(&postgres);
            let work = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM coordination.entries; SELECT pg_sleep(600)";
            thread::spawn(move || drop(postgres.try_ask(0, work)))
        };
        let sleeping = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'";
        while ask(&postgres, sleeping) != "1" {}
        for many in [
            // These statements leave as many old versions of rows as an hour in which some sessions send heartbeats,
            // and other sessions hold the lock in turn.
            "INSERT INTO coordination.sessions (id, namespace, channel, lease, expires, generation)
               SELECT convert_to('s' || n, 'UTF8'), 'coordination', 'c', 60000000, coordination.clock() + 60000000, 1
               FROM generate_series(1, 100) n",
            "DO $$ BEGIN FOR n IN 1..200 LOOP
               UPDATE coordination.sessions SET expires = coordination.clock() - 3600000000 + n * 10000000
                 WHERE id <> (SELECT id FROM coordination.sessions WHERE member IS NOT NULL);
             END LOOP; END $$",
            "UPDATE coordination.sessions SET expires = NULL WHERE member IS NULL",
            "INSERT INTO coordination.entries (queue, seq, id, session, shared, generation, text)
               SELECT id, last - 20000 + n, convert_to('e' || n, 'UTF8'), 's1', false, 1, ''
               FROM coordination.queues, generate_series(1, 20000) n",
            "DELETE FROM coordination.entries",
        ] {
            ask(&postgres, many);
        }
        for step in [
            "coordination.renew((SELECT id FROM coordination.sessions WHERE member IS NOT NULL), 1000, '{}')",
            "coordination.clear_up(random() < 0.01)",
            "coordination.read('coordination/lock/x')",
            "coordination.tend('coordination/lock/x')",
            "coordination.list('coordination/lock/', 'coordination/lock0', 100)",
            "coordination.enter((SELECT id FROM coordination.sessions WHERE member IS NOT NULL), 1000,
               'coordination/lock/x', convert_to(random()::text, 'UTF8'), false, '')",
        ] {
            // Each statement is run four times, and the smallest count is used. The counts differ, because the first
            // `enter` finds an empty queue, and because some heartbeats check all entries.
            let pages = (0..4).map(|_| pages_of(&postgres, step)).min().expect("some tries");
            println!("L7 postgres: {pages} pages for {}", &step[..30]);
            assert!(pages < 2_000, "L7: {pages} pages: {step}");
        }
        ask(
            &postgres,
            "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'PgSleep'",
        );
        open.join().expect("no panic");
        drop(coordinator.stop().await);
    });
}

/// L7: while its standby is unreachable, a client uses few connections, however many queues it watches and however many
/// hosts its URL names.
#[test]
fn l7_a_standby_that_is_away_multiplies_no_connections() {
    rerun_on_threads(async || {
        let postgres = block_in_place(|| Arc::new(Postgres::options().replicas(1).start()));
        let [primary, replica] = [0, 1].map(|index| postgres.node(index).address().to_string());
        let url = postgres.url(&format!("{replica},{primary}"), "");
        let url = format!("{url}&ttl=2s&heartbeat=250ms");
        let coordinator = Coordinator::connect(&url).await.expect("a server");
        ask(&postgres, "ALTER SYSTEM SET synchronous_standby_names = 'nobody'");
        ask(&postgres, "SELECT pg_reload_conf()");
        let asking: Vec<_> = (0..12)
            .map(|number| {
                let lock = coordinator.lock(format!("x-{number}")).expect("a good name");
                tokio::spawn(async move {
                    loop {
                        drop(lock.holders().await);
                        sleep(Duration::from_millis(50)).await;
                    }
                })
            })
            .collect();
        let ours =
            "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'coordination%'";
        let (mut most, until) = (0, Instant::now() + Duration::from_secs(12));
        while Instant::now() < until {
            most = most.max(ask(&postgres, ours).parse::<u32>().expect("a number"));
            sleep(Duration::from_millis(20)).await;
        }
        println!("L7 postgres: {most} connections while a standby is away");
        asking.iter().for_each(tokio::task::JoinHandle::abort);
        ask(&postgres, "ALTER SYSTEM RESET synchronous_standby_names");
        ask(&postgres, "SELECT pg_reload_conf()");
        let lock = coordinator.lock("x").expect("a good name");
        let guard = lock.acquire(PATIENCE).await.expect("the standby is not waited for");
        guard.release().await.expect("released");
        assert!((1..=4).contains(&most), "L7: {most} connections");
        coordinator.stop().await.expect("stopped");
    });
}

/// R1, L7: both ends of a connection notice if the other one falls silent: the client's after half a minute, so that nothing on the
/// way drops an idle connection without a word, and the server's after a minute, so that it does not keep connections of clients
/// that have lost their power.
#[test]
fn r1_silent_connections_are_probed() {
    rerun_on_threads(async || {
        let postgres = one();
        let coordinator = Coordinator::connect(&url(&postgres, "ttl=60s")).await.expect("a server");
        let port = postgres.node(0).address().port();
        let until = Instant::now() + Duration::from_secs(10);
        // The timers count down from 30 s and 60 s. While the kernel waits for an acknowledgement, there is another timer.
        let are_probed = || {
            let [client, server] = keepalive_timers(port);
            client.is_some_and(|left| left <= 30) && server.is_some_and(|left| left <= 60)
        };
        while !are_probed() && Instant::now() < until {
            sleep(Duration::from_millis(50)).await;
        }
        assert!(are_probed(), "{:?}", keepalive_timers(port));
        coordinator.stop().await.expect("stopped");
    });
}

/// In how many seconds the kernel probes the connection to this port: its client's end, and its server's. `None`: not at all.
fn keepalive_timers(port: u16) -> [Option<u64>; 2] {
    let connections = std::fs::read_to_string("/proc/net/tcp").expect("Linux has it");
    let of = |place: usize| {
        connections.lines().find_map(|line| {
            let words: Vec<_> = line.split_whitespace().collect();
            // The state 01 is an established connection, and the timer 02 that of keepalive, in hundredths of a second.
            let is_it = words.get(place)?.ends_with(&format!(":{port:04X}")) && words[3] == "01";
            let left = words.get(5)?.strip_prefix("02:").filter(|_| is_it)?;
            u64::from_str_radix(left, 16).ok().map(|hundredths| hundredths / 100)
        })
    };
    [of(2), of(1)]
}

/// L7: a server whose statements stand still, as on a disk that does not answer, is given few connections of a client.
#[test]
fn l7_a_server_that_stands_still_is_given_few_connections() {
    rerun_on_threads(async || {
        let postgres = one();
        let url = url(&postgres, "ttl=2s&heartbeat=250ms");
        let coordinator = Coordinator::connect(&url).await.expect("a server");
        let lock = coordinator.lock("x").expect("a good name");
        lock.acquire(PATIENCE).await.expect("free").release().await.expect("released");
        for statement in [
            "CREATE FUNCTION public.stands() RETURNS trigger LANGUAGE plpgsql AS $$
               BEGIN PERFORM pg_catalog.pg_sleep(60); RETURN NEW; END $$",
            "CREATE TRIGGER stands BEFORE INSERT OR UPDATE ON coordination.sessions FOR EACH STATEMENT
               EXECUTE FUNCTION public.stands()",
        ] {
            ask(&postgres, statement);
        }
        let ours =
            "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'coordination%'";
        let (mut most, until) = (0, Instant::now() + Duration::from_secs(10));
        while Instant::now() < until {
            most = most.max(ask(&postgres, ours).parse::<u32>().expect("a number"));
            sleep(Duration::from_millis(20)).await;
        }
        println!("L7 postgres: {most} connections while the server stands still");
        // The trigger cannot be dropped while statements run that have called it, but its function can be replaced.
        for statement in [
            "CREATE OR REPLACE FUNCTION public.stands() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'",
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE wait_event = 'PgSleep'",
        ] {
            ask(&postgres, statement);
        }
        let guard = lock.acquire(PATIENCE).await.expect("the server goes on");
        guard.release().await.expect("released");
        assert!((1..=4).contains(&most), "L7: {most} connections");
        coordinator.stop().await.expect("stopped");
    });
}

/// L3: a client that reads a queue and is slow to receive the answer blocks nobody, although the answer is sent before
/// its transaction ends.
#[test]
fn l3_a_reader_that_stands_still_locks_nothing() {
    rerun_on_threads(async || {
        let postgres = one();
        let url = url(&postgres, "ttl=2s&heartbeat=250ms");
        let coordinator = Coordinator::connect(&url).await.expect("a server");
        // The value has more bytes than the kernel buffers for a connection. So the server cannot send all of it before
        // the reader reads.
        ask(
            &postgres,
            "INSERT INTO coordination.queues (path, last, version, value)
               VALUES ('coordination/lock/x', 1, 1, convert_to(repeat('x', 64000000), 'UTF8'))",
        );
        let reading =
            std::net::TcpStream::connect(postgres.node(0).address()).expect("it is there");
        let query = b"SELECT * FROM coordination.read('coordination/lock/x')\0";
        let startup = b"\0\x03\0\0user\0postgres\0database\0postgres\0\0";
        for (kind, message) in [(&b""[..], &startup[..]), (b"Q", query)] {
            let length = u32::try_from(message.len() + 4).expect("it is short").to_be_bytes();
            let said = [kind, &length, message].concat();
            std::io::Write::write_all(&mut &reading, &said).expect("it is taken");
        }
        let stuck = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'ClientWrite'";
        while ask(&postgres, stuck) != "1" {}
        let lock = coordinator.lock("x").expect("a good name");
        let guard = lock.acquire(PATIENCE).await.expect("nobody has it");
        guard.release().await.expect("released");
        assert_eq!(ask(&postgres, stuck), "1", "the answer is on its way yet");
        drop(reading);
        coordinator.stop().await.expect("stopped");
    });
}

/// L7: sessions that ended long ago are removed gradually: each opening of a session removes more than one of them, but
/// no statement removes all of them.
#[test]
fn l7_sessions_that_ended_long_ago_go_in_steps() {
    rerun_on_threads(async || {
        let postgres = one();
        let url = url(&postgres, "ttl=2s&heartbeat=250ms");
        Coordinator::connect(&url).await.expect("made").stop().await.expect("stopped");
        ask(
            &postgres,
            "INSERT INTO coordination.sessions (id, namespace, member, channel, lease, expires, generation)
               SELECT convert_to('s' || n, 'UTF8'), 'coordination', convert_to('m' || n, 'UTF8'), 'c', 60000000,
                 coordination.clock() - 3600000000, 1 FROM generate_series(1, 1000) n",
        );
        let open = |number: u32| {
            let open = format!(
                "SELECT status FROM coordination.open('coordination', 'n{number}', 1, 'n{number}', 'c', 60000000, NULL)"
            );
            assert_eq!(ask(&postgres, &open), "ok");
        };
        let count = |which: &str| {
            let count = format!("SELECT count(*) FROM coordination.sessions WHERE {which}");
            ask(&postgres, &count).parse::<u64>().expect("a number")
        };
        let mut left = count("expires > 1 AND expires < coordination.clock()");
        for number in 0..5 {
            open(number);
            let next = count("expires > 1 AND expires < coordination.clock()");
            assert_eq!(left - next, 200, "so many in one step");
            left = next;
        }
        assert_eq!(left, 0);
        // By now these sessions have ended for every client, so heartbeats remove them.
        let beats =
            "SELECT count(ROW(coordination.renew('n0', 1, '{}'), coordination.clear_up(false)))
                       FROM generate_series(1, 100)";
        ask(&postgres, beats);
        assert_eq!(count("expires = 0"), 0);
        ask(
            &postgres,
            "UPDATE coordination.sessions SET forget_at = 1 WHERE forget_at IS NOT NULL",
        );
        ask(&postgres, beats);
        assert_eq!(count("expires IS NULL"), 0, "nothing is left of them");
    });
}

/// How many pages of the database this statement reads.
fn pages_of(postgres: &Postgres, step: &str) -> u64 {
    let plan = ask(postgres, &format!("EXPLAIN (ANALYZE, BUFFERS) SELECT * FROM {step}"));
    let hits = plan.lines().find_map(|line| line.trim().strip_prefix("Buffers: shared hit="));
    let hits = hits.unwrap_or_else(|| panic!("no pages in {plan}"));
    let digits: String = hits.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().expect("a number")
}

/// T4: many calls that wait for a queue's row, which another transaction has locked, do not delay the heartbeats of
/// their process.
#[test]
fn t4_calls_that_wait_for_a_row_do_not_keep_heartbeats_back() {
    rerun_on_threads(async || {
        let postgres = one();
        let coordinator = Coordinator::connect(&url(&postgres, "ttl=2s")).await.expect("a server");
        let lock = |name| coordinator.lock(name).expect("a good name");
        let held = lock("held").acquire(PATIENCE).await.expect("free");
        lock("x").acquire(PATIENCE).await.expect("free").release().await.expect("released");
        let keeping = {
            let postgres = Arc::clone(&postgres);
            let work = "BEGIN; SELECT * FROM coordination.queues WHERE path = 'coordination/lock/x' FOR UPDATE; \
                        SELECT pg_sleep(6)";
            thread::spawn(move || drop(postgres.try_ask(0, work)))
        };
        let sleeping = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'";
        while ask(&postgres, sleeping) != "1" {}
        let crowd: Vec<_> = (0..10)
            .map(|_| {
                let lock = lock("x");
                // The calls are served in the order of the queue, which need not be the order in which the tasks start.
                tokio::spawn(async move {
                    lock.acquire(Some(Duration::from_secs(60))).await?.release().await
                })
            })
            .collect();
        while !keeping.is_finished() {
            assert!(held.is_held(), "the session was lost");
            sleep(Duration::from_millis(20)).await;
        }
        for waited in crowd {
            waited.await.expect("no panic").expect("granted and released");
        }
        assert!(held.is_held(), "the session was lost");
        held.release().await.expect("released");
        coordinator.stop().await.expect("stopped");
    });
}
