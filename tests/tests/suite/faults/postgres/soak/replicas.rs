//! F-25: a replica that may not have received the newest grants is promoted.

use std::sync::Arc;
use std::time::Instant;

use coordination_tests::faults::Site;
use coordination_tests::harness::{Postgres, Server, rerun_if_starved, wait_until};
use coordination_tests::must_hold;

use super::LONG;
use crate::WORKER;

/// A primary, its replicas, and a site whose URL names all of them.
fn site(replicas: usize) -> (Arc<Postgres>, Site) {
    let options = Postgres::options().replicas(replicas).set("wal_keep_size", "64MB");
    let postgres = Arc::new(options.start());
    let site = Site::on(Arc::clone(&postgres) as Arc<_>, WORKER);
    (postgres, site)
}

/// Waits until the node's answer to the statement is `answer`.
pub(super) fn until(postgres: &Postgres, node: usize, statement: &str, answer: &str) {
    let seen = || postgres.try_ask(node, statement).as_deref() == Ok(answer);
    assert!(wait_until(LONG, seen), "{statement}: {:?}", postgres.try_ask(node, statement));
}

/// From now on, this replica receives from another server, or from none.
pub(super) fn follow(postgres: &Postgres, replica: usize, primary: Option<usize>) {
    let from = primary.map(|primary| {
        let address = postgres.node(primary).address();
        format!("user=postgres host={} port={}", address.ip(), address.port())
    });
    let set = format!("ALTER SYSTEM SET primary_conninfo = '{}'", from.unwrap_or_default());
    postgres.try_ask(replica, &set).expect("it may be set");
    postgres.try_ask(replica, "SELECT pg_reload_conf()").expect("it is read");
    let (streaming, count) =
        ("SELECT count(*) FROM pg_stat_wal_receiver", usize::from(primary.is_some()));
    until(postgres, replica, streaming, &count.to_string());
}

/// The replica stops receiving from the primary, so it does not know the newest grant when it is promoted. The holder
/// learns of its loss with the first heartbeat to which the new primary replies, and tokens rise nevertheless.
#[test]
fn f25_a_replica_that_lags_is_promoted() {
    rerun_if_starved(|| {
        let (postgres, site) = site(1);
        let (holder, other) = (site.process("holder"), site.process("other"));
        let first = other.acquire("x");
        other.release("x");
        until(&postgres, 1, "SELECT last FROM coordination.queues", &first.token.to_string());
        until(&postgres, 1, "SELECT count(*) FROM coordination.entries", "0");
        follow(&postgres, 1, None);
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
        let (postgres, site) = site(1);
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

/// Of two replicas the one that lags behind is promoted. What is lost is what that one lacks: a grant and a waiter's
/// place. The holder is told with its first heartbeat, the waiter is served nevertheless, and tokens rise. The other replica,
/// which has both, is used by nobody while it is one.
#[test]
fn f25_the_lagging_one_of_two_replicas_is_promoted() {
    rerun_if_starved(|| {
        let (postgres, site) = site(2);
        let [holder, waiter, other] = ["holder", "waiter", "other"].map(|name| site.process(name));
        let first = other.acquire("x");
        other.release("x");
        for replica in [1, 2] {
            until(&postgres, replica, "SELECT count(*) FROM coordination.entries", "0");
            until(
                &postgres,
                replica,
                "SELECT last FROM coordination.queues",
                &first.token.to_string(),
            );
        }
        follow(&postgres, 1, None);
        let old = holder.acquire("x");
        holder.observe("x");
        let waiting = waiter.wait_for("x");
        holder.sees_contenders("x", 2);
        until(&postgres, 2, "SELECT count(*) FROM coordination.entries", "2");
        postgres.node(0).kill();
        postgres.promote(1);
        let promoted = Instant::now();
        let lost = holder.lost(LONG);
        println!(
            "F-25 postgres ×3: told {:?} after the fail-over: {}",
            promoted.elapsed(),
            lost.reason
        );
        let new = waiter.granted(waiting, LONG);
        println!("F-25 postgres ×3: the waiter is served {:?} after it", promoted.elapsed());
        must_hold!(new.token > old.token, "{} after {}", new.token, old.token);
        must_hold!(old.token > first.token, "{} after {}", old.token, first.token);
        // Its row is on the new primary only, which the other replica does not follow.
        let rows = format!("SELECT count(*) FROM coordination.entries WHERE seq = {}", new.token);
        until(&postgres, 1, &rows, "1");
        until(&postgres, 2, &rows, "0");
        waiter.release("x");
    });
}

/// Two fail-overs, one after the other: the newer replica is promoted, the other one follows it, and is promoted in turn. The
/// holder keeps its lock, and the waiter behind it is served after the release.
#[test]
fn f25_each_of_two_replicas_is_promoted_in_turn() {
    rerun_if_starved(|| {
        let (postgres, site) = site(2);
        let site = site.with_ttl(LONG);
        let (holder, waiter) = (site.process("holder"), site.process("waiter"));
        // So it has less than the other replica, whose history it can follow.
        follow(&postgres, 1, None);
        let old = holder.acquire("x");
        let waiting = waiter.wait_for("x");
        holder.sees_contenders("x", 2);
        let entries = "SELECT count(*) FROM coordination.entries";
        until(&postgres, 2, entries, "2");
        postgres.node(0).kill();
        postgres.promote(2);
        holder.keeps("x");
        follow(&postgres, 1, Some(2));
        until(&postgres, 1, entries, "2");
        postgres.node(2).kill();
        postgres.promote(1);
        holder.keeps("x");
        holder.release("x");
        let new = waiter.granted(waiting, LONG);
        must_hold!(new.token > old.token, "{} after {}", new.token, old.token);
        waiter.release("x");
    });
}
