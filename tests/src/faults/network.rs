//! F-11 to F-13: a network that drops one direction, or resets all connections. F-57: one that forgets idle
//! connections.

use std::thread;
use std::time::Duration;

use serde_json::json;

use super::crash::since;
use super::told::{assert_told, assert_told_within};
use super::{LONG, Process, SCHEDULING, Site};
use crate::bounds;
use crate::harness::log::now_ns;
use crate::harness::{Direction, Mode, Proxy};
use crate::must_hold;

const LOCK: &str = "network";

/// A lock whose holder reaches the servers through proxies, while its waiter does not.
struct Proxied {
    proxies: Vec<Proxy>,
    holder: Process,
    waiter: Process,
    waiting: u64,
    token: u64,
}

impl Proxied {
    fn new(site: &Site) -> Self {
        let proxies = site.proxies();
        let holder = site.by(&proxies).process("holder");
        let waiter = site.process("waiter");
        let token = holder.acquire(LOCK).token;
        holder.observe(LOCK);
        holder.call(json!({ "command": "state_events" }));
        let waiting = waiter.wait_for(LOCK);
        waiter.sees_contenders(LOCK, 2);
        Self { proxies, holder, waiter, waiting, token }
    }

    fn set(&self, direction: Direction, mode: Mode) {
        self.proxies.iter().for_each(|proxy| proxy.set(direction, mode));
    }

    /// The holder's new states since the last call.
    fn states(&self) -> Vec<String> {
        let next = || self.holder.event_named("state", Duration::ZERO);
        let events = std::iter::from_fn(next);
        events.filter_map(|event| Some(event["state"].as_str()?.to_owned())).collect()
    }
}

/// F-11: nothing that the holder sends reaches the server.
///
/// # Panics
///
/// If an assertion of the row fails.
pub fn f11_requests_swallowed(site: &Site) {
    // No heartbeat reaches the server, so the lease runs from the last heartbeat before the fault.
    swallowed(site, Direction::ToServer, Duration::ZERO);
}

/// F-12: no answer reaches the holder.
pub fn f12_replies_swallowed(site: &Site) {
    // Heartbeats reach the server, and renew the lease, until the client gives up.
    swallowed(site, Direction::ToClient, site.server().insists_for(site.lease()));
}

fn swallowed(site: &Site, direction: Direction, renewed_for: Duration) {
    let lock = Proxied::new(site);
    lock.set(direction, Mode::Blackhole);
    let silent_ns = now_ns();
    let probe = lock.holder.not_held(LONG);
    let valid = since(silent_ns, probe.last_true_ns);
    assert!(valid < site.valid_for(), "held for {valid:?} without a reply");
    assert_told(probe.last_true_ns, lock.holder.lost(LONG).t_ns);
    let next = lock.waiter.granted(lock.waiting, LONG);
    must_hold!(next.token > lock.token);
    let freed = since(silent_ns, next.t_ns);
    assert!(freed <= site.crash_release() + renewed_for, "free only after {freed:?}");
    assert!(next.t_ns > probe.last_true_ns, "granted to two (S3)");
    println!("F-11/12 {} {direction:?}: valid {valid:?}, free after {freed:?}", site.name());
    thread::sleep((3 * site.lease()).saturating_sub(since(silent_ns, now_ns())));
    lock.proxies.iter().for_each(Proxy::heal);
    lock.waiter.release(LOCK);
    // L5: the process that has lost the lock can acquire it again, although it was not restarted.
    must_hold!(lock.holder.acquire(LOCK).token > next.token);
    assert_eq!(site.entries().len(), 1, "the old entry is gone");
}

/// F-13: all connections are reset, repeatedly.
pub fn f13_connections_reset(site: &Site) {
    let lock = Proxied::new(site);
    let resets = 5;
    for _ in 0..resets {
        lock.proxies.iter().for_each(Proxy::reset_all);
        thread::sleep(site.lease() / 2);
        lock.holder.keeps(LOCK);
    }
    thread::sleep(site.lease());
    lock.holder.keeps(LOCK);
    let states = lock.states();
    let suspended = states.iter().filter(|state| *state == "Suspended").count();
    assert!(suspended <= resets, "{states:?}");
    assert!(
        states.iter().all(|state| ["Suspended", "Connected"].contains(&&**state)),
        "{states:?}"
    );
    assert!(lock.waiter.poll(lock.waiting).is_none(), "granted to two");
    // The holder's entry is watched again by now, so its deletion is reported.
    assert!(site.server().delete_entry(&site.entry_of(lock.token)));
    let deleted_ns = now_ns();
    println!("F-13 {}: {states:?}", site.name());
    let notice = site.server().notice(site.heartbeat);
    assert_told_within(notice, deleted_ns, lock.holder.lost(LONG).t_ns);
    lock.waiter.granted(lock.waiting, bounds::served() + SCHEDULING);
}

/// F-13: a waiter whose connection is reset is still served.
pub fn f13_waiters_connection_reset(site: &Site) {
    let proxy = site.server().proxy_to(0);
    let (holder, waiter) = (site.process("holder"), site.at(proxy.address()).process("waiter"));
    for round in 0..5 {
        let token = holder.acquire(LOCK).token;
        let waiting = waiter.wait_for(LOCK);
        holder.sees_contenders(LOCK, 2);
        proxy.reset_all();
        // In the first round, the release comes at once after the reset. In later rounds it comes a little later, while
        // the watch is being re-established.
        thread::sleep(Duration::from_millis(20) * round);
        let took = hand_over(&holder, token, &waiter, waiting);
        println!("F-13 {}: the waiter was served after {took:?}", site.name());
    }
}

/// Releases the lock; returns how soon the waiter gets it. The waiter releases it too.
fn hand_over(holder: &Process, token: u64, waiter: &Process, waiting: u64) -> Duration {
    let released_ns = holder.release(LOCK);
    let next = waiter.granted(waiting, LONG);
    let took = since(released_ns, next.t_ns);
    assert!(took <= bounds::served() + SCHEDULING, "L2: served after {took:?}");
    must_hold!(next.token > token);
    waiter.release(LOCK);
    took
}

/// F-57: a load balancer between clients and servers forgets connections that were idle for a while. A client or a
/// server learns of it only when it sends something: the load balancer then resets the connection.
pub fn f57_idle_connections_forgotten(site: &Site) {
    const WHILE: Duration = Duration::from_secs(2);
    let proxies = site.proxies();
    proxies.iter().for_each(|proxy| proxy.forget_after(WHILE));
    let through = site.by(&proxies);
    let (holder, waiter) = (through.process("holder"), through.process("waiter"));
    for _ in 0..3 {
        let token = holder.acquire(LOCK).token;
        let waiting = waiter.wait_for(LOCK);
        holder.sees_contenders(LOCK, 2);
        thread::sleep(3 * WHILE);
        holder.keeps(LOCK);
        let took = hand_over(&holder, token, &waiter, waiting);
        // The connections that these calls used become idle.
        thread::sleep(2 * WHILE);
        println!("F-57 {}: the waiter was served after {took:?}", site.name());
    }
}
