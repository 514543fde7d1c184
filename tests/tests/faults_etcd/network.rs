//! F-11 to F-13: a network that swallows one direction, or resets everything.

use std::{thread, time::Duration};

use coordination_tests::{
    faults::{Process, Site, crash::since, deadline_after},
    harness::{Direction, Etcd, Mode, Proxy, log::now_ns},
};
use serde_json::json;

use super::{LONG, TTL, assert_told, cluster, contenders};

const LOCK: &str = "network";

/// A lock whose holder reaches the servers by proxies; the waiter does not need them.
struct Proxied {
    // Before the servers they lead to.
    proxies: Vec<Proxy>,
    etcd: Etcd,
    site: Site,
    holder: Process,
    waiter: Process,
    waiting: u64,
    token: u64,
}

impl Proxied {
    fn new(nodes: usize) -> Self {
        let (etcd, site) = cluster(nodes);
        let proxies: Vec<_> =
            etcd.nodes().iter().map(|node| Proxy::start(node.address())).collect();
        let addresses: Vec<_> = proxies.iter().map(|proxy| proxy.address().to_string()).collect();
        let holder = site.at(addresses.join(",")).process("holder");
        let waiter = site.process("waiter");
        let token = holder.acquire(LOCK).token;
        holder.observe(LOCK);
        holder.call(json!({ "command": "state_events" }));
        let waiting = waiter.wait_for(LOCK);
        waiter.sees_contenders(LOCK, 2);
        Self { proxies, etcd, site, holder, waiter, waiting, token }
    }

    fn set(&self, direction: Direction, mode: Mode) {
        self.proxies.iter().for_each(|proxy| proxy.set(direction, mode));
    }

    /// The holder's states since it was last asked.
    fn states(&self) -> Vec<String> {
        let next = || self.holder.event_named("state", Duration::ZERO);
        let events = std::iter::from_fn(next);
        events.filter_map(|event| Some(event["state"].as_str()?.to_owned())).collect()
    }
}

#[test]
fn f11_requests_swallowed() {
    // Nothing reaches the server, so the lease runs from the last heartbeat before.
    swallowed(1, Direction::ToServer, Duration::ZERO);
}

#[test]
fn f11_requests_swallowed_of_three() {
    swallowed(3, Direction::ToServer, Duration::ZERO);
}

#[test]
fn f12_replies_swallowed() {
    // Heartbeats reach the server until the client gives up.
    swallowed(1, Direction::ToClient, TTL);
}

#[test]
fn f12_replies_swallowed_of_three() {
    swallowed(3, Direction::ToClient, TTL);
}

fn swallowed(nodes: usize, direction: Direction, renewed_for: Duration) {
    let lock = Proxied::new(nodes);
    lock.set(direction, Mode::Blackhole);
    let silent_ns = now_ns();
    let probe = lock.holder.not_held(LONG);
    let valid = since(silent_ns, probe.last_true_ns);
    assert!(valid < deadline_after(TTL), "held for {valid:?} without a reply");
    assert_told(probe.last_true_ns, lock.holder.lost(LONG).t_ns);
    let next = lock.waiter.granted(lock.waiting, LONG);
    assert!(next.token > lock.token);
    let freed = since(silent_ns, next.t_ns);
    assert!(freed <= lock.site.crash_release() + renewed_for, "free only after {freed:?}");
    assert!(next.t_ns > probe.last_true_ns, "granted to two (contract S3)");
    println!("F-11/12 etcd ×{nodes} {direction:?}: valid {valid:?}, free after {freed:?}");
    thread::sleep((3 * TTL).saturating_sub(since(silent_ns, now_ns())));
    lock.proxies.iter().for_each(Proxy::heal);
    lock.waiter.release(LOCK);
    // Contract L5.
    let again = lock.holder.acquire_within(LOCK, 2 * TTL + Duration::from_secs(5));
    assert!(again.expect("the network is back").token > next.token);
    assert_eq!(contenders(&lock.etcd).len(), 1, "the old entry is gone");
}

#[test]
fn f13_connections_reset() {
    connections_reset(1);
}

#[test]
fn f13_connections_reset_of_three() {
    connections_reset(3);
}

fn connections_reset(nodes: usize) {
    let lock = Proxied::new(nodes);
    let resets = 5;
    for _ in 0..resets {
        lock.proxies.iter().for_each(Proxy::reset_all);
        thread::sleep(TTL / 2);
        lock.holder.keeps(LOCK);
    }
    thread::sleep(TTL);
    lock.holder.keeps(LOCK);
    let states = lock.states();
    let suspended = states.iter().filter(|state| *state == "Suspended").count();
    assert!(suspended <= resets, "{states:?}");
    assert!(
        states.iter().all(|state| ["Suspended", "Connected"].contains(&&**state)),
        "{states:?}"
    );
    assert!(lock.waiter.poll(lock.waiting).is_none(), "granted to two");
    // The watch on its own entry was made again.
    let own = super::operator::entry_of(&lock.etcd, lock.token);
    assert!(lock.etcd.delete_key(&own));
    let deleted_ns = now_ns();
    println!("F-13 etcd ×{nodes}: {states:?}");
    assert_told(deleted_ns, lock.holder.lost(LONG).t_ns);
    lock.waiter.granted(lock.waiting, Duration::from_secs(2));
}

/// A waiter whose connection is reset is served all the same.
#[test]
fn f13_waiters_connection_reset() {
    let (etcd, site) = cluster(1);
    let proxy = Proxy::start(etcd.node(0).address());
    let (holder, waiter) = (site.process("holder"), site.at(proxy.address()).process("waiter"));
    for round in 0..5 {
        let token = holder.acquire(LOCK).token;
        let waiting = waiter.wait_for(LOCK);
        holder.sees_contenders(LOCK, 2);
        proxy.reset_all();
        // At once, and when the watch may be in the making.
        thread::sleep(Duration::from_millis(20) * round);
        let released_ns = holder.release(LOCK);
        let next = waiter.granted(waiting, LONG);
        let took = since(released_ns, next.t_ns);
        assert!(took <= Duration::from_secs(2), "contract L2: served after {took:?}");
        assert!(next.token > token);
        waiter.release(LOCK);
        println!("F-13 etcd: the waiter was served after {took:?}");
    }
}
