//! F-7 to F-10: servers that die or pause.

use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::crash::since;
use super::told::assert_told;
use super::{LONG, Process, SCHEDULING, Site};
use crate::bounds;
use crate::harness::log::now_ns;
use crate::harness::{Node, wait_until};
use crate::must_hold;

const LOCK: &str = "server";

/// A lock that one process holds and another one waits for.
struct Contended {
    site: Site,
    holder: Process,
    waiter: Process,
    waiting: u64,
    token: u64,
}

impl Contended {
    fn new(site: &Site, leases: u32) -> Self {
        let site = site.with_ttl(leases * site.lease());
        let (holder, waiter) = (site.process("holder"), site.process("waiter"));
        let token = holder.acquire(LOCK).token;
        holder.observe(LOCK);
        holder.call(json!({ "command": "state_events" }));
        let waiting = waiter.wait_for(LOCK);
        waiter.sees_contenders(LOCK, 2);
        Self { site, holder, waiter, waiting, token }
    }

    fn node(&self, index: usize) -> &Node {
        self.site.server().node(index)
    }

    fn ttl(&self) -> Duration {
        self.site.lease()
    }

    /// Asserts that nothing was lost so far, and that the lock was not granted to the waiter.
    fn keeps(&self) {
        self.holder.keeps(LOCK);
        assert!(self.waiter.poll(self.waiting).is_none(), "granted to two");
    }

    /// Asserts that nothing was lost, and that the lock can be handed over as usual.
    fn kept(&self) {
        self.keeps();
        self.holder.release(LOCK);
        let next = self.waiter.granted(self.waiting, LONG);
        must_hold!(next.token > self.token);
    }

    /// To be called if the holder got no answer from `silent_ns` on: asserts that it gave the lock up in time.
    fn given_up(&self, silent_ns: u64) {
        let probe = self.holder.not_held(LONG);
        let valid = since(silent_ns, probe.last_true_ns);
        assert!(valid < self.site.valid_for(), "held for {valid:?} without an answer");
        let told = assert_told(probe.last_true_ns, self.holder.lost(LONG).t_ns);
        println!("F-8, F-9: given up after {valid:?}, told {told:?} later");
    }

    /// L5: asserts that after an outage the waiter is served, new sessions work, and no entry is left behind.
    fn recovers(&self) {
        let ended = Instant::now();
        let bound = bounds::recovered(Some(self.ttl())) + SCHEDULING;
        let next = self.waiter.granted(self.waiting, bound);
        must_hold!(next.token > self.token);
        println!("F-8, F-9: the waiter was served {:?} after the end", ended.elapsed());
        self.waiter.release(LOCK);
        let left = bound.saturating_sub(ended.elapsed());
        let again = self.holder.acquire_within(LOCK, left).expect("the old holder may ask again");
        must_hold!(again.token > next.token);
        self.site.process("new").acquire("other");
        self.holder.release(LOCK);
        assert_eq!(self.waiter.holders(LOCK), [""; 0]);
    }
}

/// F-7: the server is killed and started again.
///
/// # Panics
///
/// If an assertion of the row fails.
pub fn f07_server_restarted(site: &Site) {
    let lock = Contended::new(site, 3);
    for _ in 0..2 {
        let began = Instant::now();
        lock.node(0).kill();
        thread::sleep(Duration::from_millis(300));
        lock.node(0).restart();
        site.server().wait_ready();
        let down = began.elapsed();
        assert!(down < lock.ttl() / 2, "the server needs too long to start: {down:?}");
        // This is longer than the lease could last without heartbeats, so heartbeats must have renewed it.
        thread::sleep(lock.ttl());
        println!("F-7 {}: kept, the server was down for {down:?}", site.name());
        lock.keeps();
    }
    lock.kept();
}

/// F-7: two of three servers are killed and started again, one after the other, the leader first.
pub fn f07_member_restarted(site: &Site) {
    let lock = Contended::new(site, 1);
    for _ in 0..2 {
        let leader = site.server().wait_leader();
        for index in [leader, (leader + 1) % 3] {
            lock.node(index).kill();
            thread::sleep(lock.ttl());
            lock.holder.keeps(LOCK);
            lock.node(index).restart();
            site.server().wait_ready();
            thread::sleep(lock.ttl() / 2);
            lock.holder.keeps(LOCK);
        }
    }
    lock.kept();
}

/// F-8: all servers are down for two leases.
pub fn f08_server_down(site: &Site) {
    let lock = Contended::new(site, 1);
    let third = lock.site.process("third");
    let began = Instant::now();
    site.server().nodes().iter().for_each(|node| node.kill());
    let killed_ns = now_ns();
    // Calls fail while the session can still be saved, and also after it was lost.
    unavailable(&third, Duration::from_secs(1));
    lock.given_up(killed_ns);
    unavailable(&lock.holder, Duration::from_secs(1));
    unavailable(&third, Duration::from_millis(500));
    thread::sleep((2 * lock.ttl() + lock.ttl() / 4).saturating_sub(began.elapsed()));
    site.server().nodes().iter().for_each(|node| node.restart());
    site.server().wait_ready();
    lock.recovers();
}

/// Asserts that an acquire fails at its timeout, with the kind of error that means that the store does not answer.
fn unavailable(process: &Process, timeout: Duration) {
    let error = process.acquire_within("unavailable", timeout).expect_err("there is no server");
    assert_eq!(error["kind"], "Unavailable", "{error}");
    let took = Duration::from_millis(error["ms"].as_u64().unwrap_or_default());
    let difference = took.abs_diff(timeout);
    assert!(difference <= Duration::from_millis(100), "{took:?} instead of {timeout:?}");
}

/// F-9: the server is paused for three leases. Each call returns in time nevertheless.
pub fn f09_server_paused_long(site: &Site) {
    let lock = Contended::new(site, 1);
    let third = lock.site.process("third");
    third.acquire("held-released");
    third.acquire("held-dropped");
    lock.node(0).pause();
    let (paused_ns, began) = (now_ns(), Instant::now());
    // The server will carry out this acquire when it is continued.
    let late = third.send(json!({ "command": "acquire", "lock": "late", "timeout_ms": 500 }));
    assert_eq!(error_of(third.receive(late, LONG))["kind"], "Unavailable");
    let dropped = third.call(json!({ "command": "drop", "handle": "held-dropped" }));
    let took = since(number(&dropped, "before_ns"), number(&dropped, "after_ns"));
    assert!(took <= bounds::told(), "drop took {took:?}");
    let release = json!({ "command": "release", "handle": "held-released" });
    let error = third.try_call(release).expect_err("nobody confirms");
    assert!(number(&error, "ms") <= (lock.ttl() + SCHEDULING).as_millis() as u64, "{error}");
    assert!(["Unavailable", "Lost"].contains(&error["kind"].as_str().unwrap_or("")), "{error}");
    lock.given_up(paused_ns);
    let stopped = third.try_call(json!({ "command": "stop" })).expect_err("nobody confirms");
    assert_eq!(stopped["kind"], "Unavailable", "{stopped}");
    let bound = bounds::stopped(lock.ttl()) + SCHEDULING;
    assert!(number(&stopped, "ms") <= bound.as_millis() as u64, "{stopped}");
    thread::sleep((3 * lock.ttl()).saturating_sub(began.elapsed()));
    lock.node(0).resume();
    lock.recovers();
    // Neither calls that were given up nor locks that were released during the pause have left an entry.
    for name in ["late", "held-released", "held-dropped"] {
        lock.waiter.acquire(name);
        lock.waiter.release(name);
    }
    drop(lock.holder);
    // The entry of `other` belongs to a process that was killed, so it is removed when its lease ends.
    wait_until(site.crash_release() + Duration::from_secs(1), || site.entries().is_empty());
    assert_eq!(site.entries(), [""; 0]);
}

fn error_of(answer: Option<Result<Value, Value>>) -> Value {
    answer.expect("an answer in time").expect_err("an error")
}

fn number(value: &Value, name: &str) -> u64 {
    value[name].as_u64().unwrap_or_else(|| panic!("no {name} in {value}"))
}

/// F-9: one server of three is paused, first a follower and then the leader. The other two go on.
pub fn f09_member_paused_long(site: &Site) {
    let lock = Contended::new(site, 1);
    let leader = site.server().wait_leader();
    for index in [(leader + 1) % 3, leader] {
        lock.node(index).pause();
        thread::sleep(3 * lock.ttl());
        lock.keeps();
        if index == leader {
            break;
        }
        lock.node(index).resume();
        site.server().wait_ready();
        thread::sleep(lock.ttl() / 2);
        lock.holder.keeps(LOCK);
    }
    // The lock is released while the old leader is still paused. When the old leader is continued, it may end
    // sessions too early, as etcd does up to 3.4.30 and 3.5.12 (row F-17).
    lock.kept();
}

/// F-10: the server is paused for half a lease.
pub fn f10_server_paused_briefly(site: &Site) {
    let lock = Contended::new(site, 2);
    for _ in 0..3 {
        lock.node(0).pause();
        thread::sleep(site.lease());
        lock.node(0).resume();
        thread::sleep(site.lease());
        lock.holder.keeps(LOCK);
    }
    lock.kept();
}
