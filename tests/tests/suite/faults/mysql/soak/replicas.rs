//! F-25: a replica that does not have the newest grants or releases is made the primary.

use std::sync::Arc;
use std::time::Instant;

use coordination_tests::faults::Site;
use coordination_tests::harness::{Mysql, Server, rerun_if_starved, wait_until};
use coordination_tests::must_hold;

use super::LONG;
use crate::WORKER;

const ENTRIES: &str = "SELECT COUNT(*) FROM coordination.coordination_entries";

/// A primary, its replica, and a site whose URL names both.
fn site() -> (Arc<Mysql>, Site) {
    let mysql = Arc::new(Mysql::options().replicas(1).start());
    let site = Site::on(Arc::clone(&mysql) as Arc<_>, WORKER);
    (mysql, site)
}

/// Waits until the replica's answer to the statement is `answer`.
fn until(mysql: &Mysql, statement: &str, answer: &str) {
    let seen = || mysql.try_ask_at(1, statement).as_deref() == Ok(answer);
    assert!(wait_until(LONG, seen), "{statement}: {:?}", mysql.try_ask_at(1, statement));
}

/// From now on the replica receives nothing.
fn fall_behind(mysql: &Mysql) {
    mysql.try_ask_at(1, "STOP SLAVE").expect("it is a replica");
}

/// The replica does not know the newest grant when it is made the primary. The holder learns of its loss with the first
/// heartbeat to which the new primary replies, and tokens rise nevertheless. When the old primary comes back, it is
/// read-only, as its configuration says, and nobody uses it.
#[test]
fn f25_a_replica_that_lacks_a_grant_is_promoted() {
    rerun_if_starved(|| {
        let (mysql, site) = site();
        let (holder, other) = (site.process("holder"), site.process("other"));
        let first = other.acquire("x");
        other.release("x");
        let last = "SELECT last FROM coordination.coordination_queues";
        until(&mysql, last, &first.token.to_string());
        until(&mysql, ENTRIES, "0");
        fall_behind(&mysql);
        let old = holder.acquire("x");
        holder.observe("x");
        mysql.node(0).kill();
        mysql.promote(1);
        let promoted = Instant::now();
        let lost = holder.lost(LONG);
        println!("F-25 mysql: told {:?} after the fail-over: {}", promoted.elapsed(), lost.reason);
        let new = other.acquire_within("x", LONG).expect("the replica serves");
        must_hold!(new.token > old.token, "{} after {}", new.token, old.token);
        must_hold!(old.token > first.token, "{} after {}", old.token, first.token);
        mysql.node(0).restart();
        mysql.wait_ready();
        for member in 0..6 {
            let late = site.process(&format!("late-{member}"));
            must_hold!(late.try_acquire("x").is_none(), "granted on the old primary");
        }
        other.release("x");
    });
}

/// The replica does not know the newest release when it is made the primary. The holder's session goes on there, and its
/// first heartbeats remove the entry that was left. So the others need not wait for the end of the session.
#[test]
fn f25_a_replica_that_lacks_a_release_is_promoted() {
    rerun_if_starved(|| {
        let (mysql, site) = site();
        let site = site.with_ttl(LONG);
        let (holder, other) = (site.process("holder"), site.process("other"));
        let kept = holder.acquire("kept");
        holder.observe("kept");
        let old = holder.acquire("x");
        until(&mysql, ENTRIES, "2");
        fall_behind(&mysql);
        holder.release("x");
        mysql.node(0).kill();
        mysql.promote(1);
        let promoted = Instant::now();
        let new = other.acquire_within("x", LONG / 2).expect("the entry that was left is removed");
        println!("F-25 mysql: granted {:?} after the fail-over", promoted.elapsed());
        must_hold!(new.token > old.token, "{} after {}", new.token, old.token);
        holder.keeps("kept");
        holder.release("kept");
        let again = other.acquire("kept");
        must_hold!(again.token > kept.token, "{} after {}", again.token, kept.token);
        other.release("kept");
        other.release("x");
    });
}
