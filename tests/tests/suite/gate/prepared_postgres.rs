//! What a client leaves on a connection to PostgreSQL for later calls. Prepared statements: where there are some, and what happens when
//! the server does not have them any more or has made others of the functions that they call. Settings: where they are made.

use std::time::{Duration, Instant};

use coordination::{Coordinator, Lock};
use coordination_tests::harness::{Postgres, Server, rerun_on_threads};
use tokio::task::block_in_place;

use crate::sql::{PATIENCE, ask, one};

const UNNAMED: &str = "<unnamed>";
/// How many calls of a function are sent on a connection before the first one that uses a prepared statement.
const FIRST: usize = 4;
/// So often that statements are prepared, and then used.
const TURNS: usize = 10;

/// A client at this address. No heartbeat comes between its calls.
async fn connect(postgres: &Postgres, authority: &str) -> Coordinator {
    let url = format!("{}&ttl=60s&heartbeat=20s", postgres.url(authority, ""));
    Coordinator::connect(&url).await.expect("a server")
}

/// Acquires and releases the free lock this often.
async fn take_turns(lock: &Lock, turns: usize) {
    for _ in 0..turns {
        lock.acquire(PATIENCE).await.expect("free").release().await.expect("released");
    }
}

fn log(postgres: &Postgres) -> String {
    block_in_place(|| postgres.node(0).log())
}

/// How many connections clients have made so far, by the first query on each.
fn connections(postgres: &Postgres) -> usize {
    log(postgres).matches("pg_backend_pid() AS process").count()
}

/// A statement that drops the function and makes it again, with this change of its text.
fn made_again(function: &str, from: &str, to: &str) -> String {
    format!(
        "DO $$ DECLARE one regprocedure; made text; BEGIN
           SELECT p.oid, pg_get_functiondef(p.oid) INTO STRICT one, made FROM pg_proc p
             WHERE p.pronamespace = 'coordination'::regnamespace AND p.proname = '{function}';
           EXECUTE 'DROP FUNCTION ' || one;
           EXECUTE replace(made, '{from}', '{to}');
         END $$"
    )
}

/// L4: on a connection to the server itself, the statements of calls that are made again and again are prepared. Through a proxy,
/// which might give a transaction another connection to the server, none is, though the server's process id is passed on.
#[test]
fn l4_statements_are_prepared_where_the_connection_leads_to_the_server() {
    rerun_on_threads(async || {
        let postgres = one::<Postgres>();
        let coordinator = connect(&postgres, &postgres.authority()).await;
        take_turns(&coordinator.lock("x").expect("a name"), TURNS).await;
        for function in ["enter", "leave"] {
            let names = block_in_place(|| postgres.statement_names(function));
            let (first, later) = names.split_at(FIRST);
            assert!(first.iter().all(|name| name == UNNAMED), "{function}: {names:?}");
            assert_eq!(later.len(), TURNS - FIRST, "{function}: {names:?}");
            let is_it = |name: &String| *name == later[0] && name != UNNAMED;
            assert!(later.iter().all(is_it), "{function}: {names:?}");
        }
        coordinator.stop().await.expect("stopped");
        let proxy = block_in_place(|| postgres.proxy_to(0));
        let coordinator = connect(&postgres, &proxy.address().to_string()).await;
        take_turns(&coordinator.lock("x").expect("a name"), TURNS).await;
        for function in ["enter", "leave"] {
            let names = block_in_place(|| postgres.statement_names(function)).split_off(TURNS);
            assert_eq!(names, [UNNAMED; TURNS], "{function}");
        }
        coordinator.stop().await.expect("stopped");
    });
}

/// L4: on a connection to the server itself, the functions that acquire and release find the settings that they need. Through a proxy,
/// which might give a transaction another connection to the server, they make the settings each time.
#[test]
fn l4_settings_are_made_once_where_the_connection_leads_to_the_server() {
    rerun_on_threads(async || {
        let postgres = block_in_place(|| Postgres::options().set("track_functions", "pl").start());
        let proxy = block_in_place(|| postgres.proxy_to(0));
        let calls = |function: &str| -> usize {
            let query = format!(
                "SELECT coalesce(sum(calls), 0) FROM pg_stat_user_functions WHERE funcname = '{function}'"
            );
            ask(&postgres, &query).parse().expect("a number")
        };
        for (authority, each_time) in
            [(postgres.authority(), false), (proxy.address().to_string(), true)]
        {
            let [acquired, made] = ["enter", "begin_step"].map(calls);
            let coordinator = connect(&postgres, &authority).await;
            take_turns(&coordinator.lock("x").expect("a name"), 2 * TURNS).await;
            coordinator.stop().await.expect("stopped");
            // The server counts the calls of a connection when that connection ends.
            let until = Instant::now() + Duration::from_secs(30);
            while calls("enter") < acquired + 2 * TURNS && Instant::now() < until {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            assert!(calls("enter") >= acquired + 2 * TURNS, "the server has not counted the calls");
            let made = calls("begin_step") - made;
            println!("{made} times for {} acquires, through a proxy: {each_time}", 2 * TURNS);
            // There are other steps too: one that opens the session, one that closes it, and heartbeats.
            assert_eq!(made >= 4 * TURNS, each_time, "{made}");
            assert!(each_time || made < 2 * TURNS, "{made}");
        }
    });
}

/// L5: when functions were dropped and made again, prepared statements call the new ones. If those have another result, the client
/// connects anew, which nobody notices who acquires or releases.
#[test]
fn l5_functions_that_are_made_again_are_called() {
    rerun_on_threads(async || {
        let postgres = one::<Postgres>();
        let coordinator = connect(&postgres, &postgres.authority()).await;
        let lock = coordinator.lock("x").expect("a name");
        take_turns(&lock, TURNS).await;
        let before = connections(&postgres);
        for function in ["enter", "leave"] {
            ask(&*postgres, &made_again(function, "", ""));
        }
        take_turns(&lock, TURNS).await;
        assert!(connections(&postgres) <= before + 1, "the same functions");
        let before = connections(&postgres);
        // One more column of the result, which nobody reads.
        ask(
            &*postgres,
            &made_again("enter", "OUT status text,", "OUT more bigint, OUT status text,"),
        );
        take_turns(&lock, TURNS).await;
        let refused = log(&postgres).matches("cached plan must not change result type").count();
        assert_eq!((refused, connections(&postgres)), (1, before + 1), "another result");
        coordinator.stop().await.expect("stopped");
    });
}

/// L5: a server that does not have a prepared statement any more, as if something between had taken another connection to it, has
/// not carried out the call. The client connects anew, and nobody notices who acquires or releases.
#[test]
fn l5_statements_that_the_server_has_forgotten_are_prepared_again() {
    rerun_on_threads(async || {
        let postgres = one::<Postgres>();
        let coordinator = connect(&postgres, &postgres.authority()).await;
        let lock = coordinator.lock("x").expect("a name");
        take_turns(&lock, TURNS).await;
        // Each entry that is entered has its connection forget all statements.
        for made in [
            "CREATE FUNCTION public.forgets() RETURNS trigger LANGUAGE plpgsql AS $$
               BEGIN EXECUTE 'DEALLOCATE ALL'; RETURN NEW; END $$",
            "CREATE TRIGGER forgets BEFORE INSERT ON coordination.entries
               FOR EACH ROW EXECUTE FUNCTION public.forgets()",
        ] {
            ask(&*postgres, made);
        }
        take_turns(&lock, 2 * TURNS).await;
        ask(&*postgres, "DROP TRIGGER forgets ON coordination.entries");
        let is_refusal = |line: &&str| {
            line.contains("prepared statement \"s") && line.contains("does not exist")
        };
        let refused = log(&postgres).lines().filter(is_refusal).count();
        assert!(refused > 0, "no call used a statement that was forgotten");
        let before = block_in_place(|| postgres.statement_names("enter")).len();
        take_turns(&lock, TURNS).await;
        let names = block_in_place(|| postgres.statement_names("enter")).split_off(before);
        assert!(names.last().is_some_and(|name| name != UNNAMED), "prepared again: {names:?}");
        coordinator.stop().await.expect("stopped");
    });
}
