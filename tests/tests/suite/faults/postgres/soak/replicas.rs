//! F-25: a replica that may not have received the newest grants is promoted.

use std::sync::Arc;
use std::time::Instant;

use coordination_tests::faults::Site;
use coordination_tests::harness::{Postgres, Server, rerun_if_starved, wait_until};
use coordination_tests::must_hold;

use super::LONG;
use crate::WORKER;

/// A primary, its replica, and a site whose URL names both.
fn site() -> (Arc<Postgres>, Site) {
    let postgres = Arc::new(Postgres::options().replicas(1).start());
    let site = Site::on(Arc::clone(&postgres) as Arc<_>, WORKER);
    (postgres, site)
}

/// Waits until the node's answer to the statement is `answer`.
fn until(postgres: &Postgres, node: usize, statement: &str, answer: &str) {
    let seen = || postgres.try_ask(node, statement).as_deref() == Ok(answer);
    assert!(wait_until(LONG, seen), "{statement}: {:?}", postgres.try_ask(node, statement));
}

/// The replica stops receiving from the primary, so it does not know the newest grant when it is promoted. The holder
/// learns of its loss with the first heartbeat to which the new primary replies, and tokens rise nevertheless.
#[test]
fn f25_a_replica_that_lags_is_promoted() {
    rerun_if_starved(|| {
        let (postgres, site) = site();
        let (holder, other) = (site.process("holder"), site.process("other"));
        let first = other.acquire("x");
        other.release("x");
        until(&postgres, 1, "SELECT last FROM coordination.queues", &first.token.to_string());
        until(&postgres, 1, "SELECT count(*) FROM coordination.entries", "0");
        postgres.try_ask(1, "ALTER SYSTEM SET primary_conninfo = ''").expect("it may be set");
        postgres.try_ask(1, "SELECT pg_reload_conf()").expect("it is read");
        until(&postgres, 1, "SELECT count(*) FROM pg_stat_wal_receiver", "0");
        let old = holder.acquire("x");
        holder.observe("x");
        postgres.node(0).kill();
        postgres.promote(1);
        let promoted = Instant::now();
        let lost = holder.lost(LONG);
        println!(
            "F-25 postgres: told {:?} after the fail-over: {}",
            promoted.elapsed(),
            lost.reason
        );
        let new = other.acquire_within("x", LONG).expect("the replica serves");
        must_hold!(new.token > old.token, "{} after {}", new.token, old.token);
        must_hold!(old.token > first.token, "{} after {}", old.token, first.token);
        other.release("x");
    });
}

/// The primary acknowledges a grant only after the replica has confirmed it, so a grant survives the promotion of the
/// replica.
#[test]
fn f25_a_replica_that_confirms_is_promoted() {
    rerun_if_starved(|| {
        let (postgres, site) = site();
        let site = site.with_ttl(LONG / 3);
        // The setting is made on the primary only. If the replica had it too, it would wait for a replica of its own
        // after its promotion.
        postgres.ask("ALTER SYSTEM SET synchronous_standby_names = '*'");
        postgres.ask("SELECT pg_reload_conf()");
        until(&postgres, 0, "SHOW synchronous_standby_names", "*");
        let (holder, waiter) = (site.process("holder"), site.process("waiter"));
        let old = holder.acquire("x");
        let waiting = waiter.wait_for("x");
        holder.sees_contenders("x", 2);
        postgres.node(0).kill();
        postgres.promote(1);
        holder.keeps("x");
        holder.release("x");
        let new = waiter.granted(waiting, LONG);
        must_hold!(new.token > old.token, "{} after {}", new.token, old.token);
        waiter.release("x");
    });
}
