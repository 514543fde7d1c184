//! Clients behind pgbouncer, which may use another connection to the server for each transaction.
//!
//! On a machine without pgbouncer these tests do nothing. It is in Debian's package `pgbouncer`, which `tests/install`
//! installs if it can.

use std::sync::Arc;
use std::time::{Duration, Instant};

use coordination::{Coordinator, ErrorKind};
use coordination_tests::faults::{SCHEDULING, Site};
use coordination_tests::harness::{Pooler, Postgres, Server, on_threads, rerun_if_starved};
use coordination_tests::must_hold;

use super::LONG;
use crate::WORKER;

/// L2: how soon a waiter is served.
const NO_LOST_WAITER: Duration = Duration::from_secs(2).saturating_add(SCHEDULING);

/// A server, and a site whose clients connect to a pooler with this number of connections to the server.
fn site(connections: usize) -> Option<(Arc<Postgres>, Site)> {
    if !Pooler::is_installed() {
        println!("there is no pgbouncer here: not run");
        return None;
    }
    let postgres = Arc::new(Postgres::options().pooled(connections).start());
    let site = Site::on(Arc::clone(&postgres) as Arc<_>, WORKER);
    Some((postgres, site))
}

/// L2: a waiter gets the lock although no notification reaches it, and no `LISTEN` stays on a shared connection.
#[test]
fn l2_a_waiter_is_served_through_a_pooler() {
    rerun_if_starved(|| {
        let Some((postgres, site)) = site(1) else { return };
        let (holder, waiter) = (site.process("holder"), site.process("waiter"));
        let mut last = 0;
        for _ in 0..3 {
            let old = holder.acquire("x");
            let waiting = waiter.wait_for("x");
            holder.sees_contenders("x", 2);
            let released = Instant::now();
            holder.release("x");
            let new = waiter.granted(waiting, LONG);
            println!("L2 pgbouncer: granted {:?} after the release", released.elapsed());
            must_hold!(released.elapsed() < NO_LOST_WAITER, "{:?}", released.elapsed());
            must_hold!(last < old.token && old.token < new.token, "{last}, {old:?}, {new:?}");
            postgres.ask(&format!("SELECT coordination.coordination_fence('x', {})", new.token));
            last = new.token;
            waiter.release("x");
        }
        let listened = postgres.pooler().ask("SELECT count(*) FROM pg_listening_channels()");
        assert_eq!(listened.as_deref(), Ok("0"));
    });
}

/// F-7: the server restarts behind a pooler, whose error messages are different from the server's.
#[test]
fn f07_the_server_is_restarted_behind_a_pooler() {
    rerun_if_starved(|| {
        let Some((postgres, site)) = site(3) else { return };
        let site = site.with_ttl(LONG / 2);
        let (holder, waiter) = (site.process("holder"), site.process("waiter"));
        let old = holder.acquire("x");
        let waiting = waiter.wait_for("x");
        holder.sees_contenders("x", 2);
        let node = postgres.node(0);
        node.kill();
        node.restart();
        holder.keeps("x");
        holder.release("x");
        let new = waiter.granted(waiting, LONG);
        must_hold!(new.token > old.token, "{} after {}", new.token, old.token);
        waiter.release("x");
    });
}

/// X1: a role's transaction settings cannot be changed on a connection that other clients also use, so connecting is
/// refused.
#[test]
fn x1_settings_of_the_role_are_refused_behind_a_pooler() {
    rerun_if_starved(|| {
        let Some((postgres, site)) = site(1) else { return };
        postgres.ask("ALTER ROLE postgres SET default_transaction_isolation = 'serializable'");
        // The pooler has to make new connections, because its old ones do not have the setting.
        postgres.ask(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
               WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'",
        );
        let refused = on_threads(async { Coordinator::connect(&site.url).await.map(drop) });
        let refused = refused.expect_err("it cannot be set");
        assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
        let begins = postgres.pooler().ask("SHOW default_transaction_isolation");
        assert_eq!(begins.as_deref(), Ok("serializable"));
    });
}

/// L4: a statement that one transaction has prepared may be unknown to the next one, or another client's. So none is prepared.
#[test]
fn l4_nothing_is_prepared_through_a_pooler() {
    const TURNS: usize = 20;
    rerun_if_starved(|| {
        let Some((postgres, site)) = site(1) else { return };
        on_threads(async {
            let coordinator = Coordinator::connect(&site.url).await.expect("the pooler is there");
            let lock = coordinator.lock("x").expect("a name");
            for _ in 0..TURNS {
                lock.acquire(Some(LONG)).await.expect("free").release().await.expect("released");
            }
            coordinator.stop().await.expect("stopped");
        });
        for function in ["enter", "leave", "renew"] {
            let names = postgres.statement_names(function);
            must_hold!(names.iter().all(|name| name == "<unnamed>"), "{function}: {names:?}");
        }
        let entered = postgres.statement_names("enter").len();
        must_hold!(entered >= TURNS, "{entered} entries in the log");
        let prepared = postgres.pooler().ask("SELECT count(*) FROM pg_prepared_statements");
        assert_eq!(prepared.as_deref(), Ok("0"));
    });
}
