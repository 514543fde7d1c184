//! F-7 to F-10: servers that die, or stand still.

use std::{
    thread,
    time::{Duration, Instant},
};

use coordination_tests::{
    faults::{Process, SCHEDULING, Site, crash::since, deadline_after},
    harness::{Etcd, Server, log::now_ns},
};
use serde_json::{Value, json};

use super::{AT_ONCE, LONG, TTL, assert_told, cluster_with, contenders};

const LOCK: &str = "server";

/// A lock that is held and waited for.
struct Contended {
    etcd: Etcd,
    site: Site,
    holder: Process,
    waiter: Process,
    waiting: u64,
    token: u64,
}

impl Contended {
    fn new(nodes: usize, ttl: Duration) -> Self {
        let (etcd, site) = cluster_with(nodes, ttl);
        let (holder, waiter) = (site.process("holder"), site.process("waiter"));
        let token = holder.acquire(LOCK).token;
        holder.observe(LOCK);
        holder.call(json!({ "command": "state_events" }));
        let waiting = waiter.wait_for(LOCK);
        waiter.sees_contenders(LOCK, 2);
        Self { etcd, site, holder, waiter, waiting, token }
    }

    /// Nothing was lost, and the hand-over works as ever.
    fn kept(&self) {
        self.holder.keeps(LOCK);
        assert!(self.waiter.poll(self.waiting).is_none(), "granted to two");
        self.holder.release(LOCK);
        let next = self.waiter.granted(self.waiting, LONG);
        assert!(next.token > self.token);
    }

    /// The holder gave up in time: it had no answer since that moment.
    fn given_up(&self, silent_ns: u64) {
        let probe = self.holder.not_held(LONG);
        let valid = since(silent_ns, probe.last_true_ns);
        assert!(valid < deadline_after(TTL), "held for {valid:?} without an answer");
        let told = assert_told(probe.last_true_ns, self.holder.lost(LONG).t_ns);
        println!("F-8, F-9: given up after {valid:?}, told {told:?} later");
    }

    /// After an outage: the waiter is served, new sessions work, and nothing is left behind (L5).
    fn recovers(&self) {
        let ended = Instant::now();
        let bound = 2 * TTL + Duration::from_secs(5);
        let next = self.waiter.granted(self.waiting, bound);
        assert!(next.token > self.token);
        println!("F-8, F-9: the waiter was served {:?} after the end", ended.elapsed());
        self.waiter.release(LOCK);
        let left = bound.saturating_sub(ended.elapsed());
        let again = self.holder.acquire_within(LOCK, left).expect("the old holder may ask again");
        assert!(again.token > next.token);
        self.site.process("new").acquire("other");
        self.holder.release(LOCK);
        assert_eq!(self.waiter.holders(LOCK), [""; 0]);
    }
}

#[test]
fn f07_server_restarted() {
    let lock = Contended::new(1, 3 * TTL);
    for _ in 0..2 {
        let began = Instant::now();
        lock.etcd.node(0).kill();
        thread::sleep(Duration::from_millis(300));
        lock.etcd.node(0).restart();
        lock.etcd.wait_ready();
        let down = began.elapsed();
        assert!(down < 3 * TTL / 2, "the server needs too long to start: {down:?}");
        // Longer than what was left of the lease.
        thread::sleep(3 * TTL);
        println!("F-7 etcd: kept, the server was down for {down:?}");
        lock.holder.keeps(LOCK);
        assert!(lock.waiter.poll(lock.waiting).is_none(), "granted to two");
    }
    lock.kept();
}

/// Each member in turn, the leader first.
#[test]
fn f07_member_restarted_of_three() {
    let lock = Contended::new(3, TTL);
    for _ in 0..2 {
        let leader = lock.etcd.wait_leader();
        for index in [leader, (leader + 1) % 3] {
            lock.etcd.node(index).kill();
            thread::sleep(TTL);
            lock.holder.keeps(LOCK);
            lock.etcd.node(index).restart();
            lock.etcd.wait_ready();
            thread::sleep(TTL / 2);
            lock.holder.keeps(LOCK);
        }
    }
    lock.kept();
}

#[test]
fn f08_server_down() {
    server_down(1);
}

#[test]
fn f08_servers_down_of_three() {
    server_down(3);
}

fn server_down(nodes: usize) {
    let lock = Contended::new(nodes, TTL);
    let third = lock.site.process("third");
    let began = Instant::now();
    lock.etcd.nodes().iter().for_each(|node| node.kill());
    let killed_ns = now_ns();
    // While the session can still be saved, and when it is lost.
    unavailable(&third, Duration::from_secs(1));
    lock.given_up(killed_ns);
    unavailable(&lock.holder, Duration::from_secs(1));
    unavailable(&third, Duration::from_millis(500));
    thread::sleep((2 * TTL + TTL / 4).saturating_sub(began.elapsed()));
    lock.etcd.nodes().iter().for_each(|node| node.restart());
    lock.etcd.wait_ready();
    lock.recovers();
}

/// Acquiring fails at its timeout, and says that it is the store's fault.
fn unavailable(process: &Process, timeout: Duration) {
    let error = process.acquire_within("unavailable", timeout).expect_err("there is no server");
    assert_eq!(error["kind"], "Unavailable", "{error}");
    let took = Duration::from_millis(error["ms"].as_u64().unwrap_or_default());
    let difference = took.abs_diff(timeout);
    assert!(difference <= Duration::from_millis(100), "{took:?} instead of {timeout:?}");
}

#[test]
fn f09_server_paused_long() {
    let lock = Contended::new(1, TTL);
    let third = lock.site.process("third");
    third.acquire("held-released");
    third.acquire("held-dropped");
    lock.etcd.node(0).pause();
    let (paused_ns, began) = (now_ns(), Instant::now());
    // On its way to the server, which will see to it when it goes on.
    let late = third.send(json!({ "command": "acquire", "lock": "late", "timeout_ms": 500 }));
    assert_eq!(error_of(third.receive(late, LONG))["kind"], "Unavailable");
    let dropped = third.call(json!({ "command": "drop", "handle": "held-dropped" }));
    let took = since(number(&dropped, "before_ns"), number(&dropped, "after_ns"));
    assert!(took <= AT_ONCE, "drop took {took:?}");
    let release = json!({ "command": "release", "handle": "held-released" });
    let error = third.try_call(release).expect_err("nobody confirms");
    assert!(number(&error, "ms") <= (TTL + SCHEDULING).as_millis() as u64, "{error}");
    assert!(["Unavailable", "Lost"].contains(&error["kind"].as_str().unwrap_or("")), "{error}");
    lock.given_up(paused_ns);
    let stopped = third.try_call(json!({ "command": "stop" })).expect_err("nobody confirms");
    assert_eq!(stopped["kind"], "Unavailable", "{stopped}");
    // Contract L6: the shorter of T and 5 s.
    assert!(number(&stopped, "ms") <= (TTL + SCHEDULING).as_millis() as u64, "{stopped}");
    thread::sleep((3 * TTL).saturating_sub(began.elapsed()));
    lock.etcd.node(0).resume();
    lock.recovers();
    // Neither what was released nor what came too late.
    for name in ["late", "held-released", "held-dropped"] {
        lock.waiter.acquire(name);
        lock.waiter.release(name);
    }
    drop(lock.holder);
    assert_eq!(left_after_a_while(&lock.etcd), [""; 0]);
}

fn left_after_a_while(etcd: &Etcd) -> Vec<String> {
    // `other`, of a process that has ended without a word, goes with its lease.
    coordination_tests::harness::wait_until(TTL + Duration::from_secs(2), || {
        contenders(etcd).is_empty()
    });
    contenders(etcd)
}

fn error_of(answer: Option<Result<Value, Value>>) -> Value {
    answer.expect("an answer in time").expect_err("an error")
}

fn number(value: &Value, name: &str) -> u64 {
    value[name].as_u64().unwrap_or_else(|| panic!("no {name} in {value}"))
}

/// A paused member, the leader too, is a minority.
#[test]
fn f09_member_paused_long_of_three() {
    let lock = Contended::new(3, TTL);
    let leader = lock.etcd.wait_leader();
    for index in [(leader + 1) % 3, leader] {
        lock.etcd.node(index).pause();
        thread::sleep(3 * TTL);
        lock.holder.keeps(LOCK);
        assert!(lock.waiter.poll(lock.waiting).is_none(), "granted to two");
        if index == leader {
            break;
        }
        lock.etcd.node(index).resume();
        lock.etcd.wait_ready();
        thread::sleep(TTL / 2);
        lock.holder.keeps(LOCK);
    }
    // Released while the old leader stands still. When that goes on it may end leases before their
    // time, up to etcd 3.4.30 and 3.5.12: row F-17.
    lock.kept();
}

#[test]
fn f10_server_paused_briefly() {
    let lock = Contended::new(1, 2 * TTL);
    for _ in 0..3 {
        lock.etcd.node(0).pause();
        thread::sleep(TTL);
        lock.etcd.node(0).resume();
        thread::sleep(TTL);
        lock.holder.keeps(LOCK);
    }
    lock.kept();
}
