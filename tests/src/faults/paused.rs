//! F-3 to F-6 on stores with leases: the client's process is stopped, or the program in it is blocked. `pauses.rs` has
//! many pauses at random.

use std::thread;
use std::time::{Duration, Instant};

use coordination::{Fence, FencingToken};
use serde_json::json;

use super::crash::{holder_paused_keeps, since};
use super::told::assert_told;
use super::{LONG, Process, SCHEDULING, Site};
use crate::bounds;
use crate::harness::log::now_ns;
use crate::harness::{Direction, Mode, wait_until};
use crate::must_hold;

const LOCK: &str = "paused";

fn token_of(process: &Process) -> FencingToken {
    let write = process.call(json!({ "command": "write_fenced", "handle": LOCK, "value": 1 }));
    serde_json::from_value(write["token"].clone()).expect("a token")
}

/// F-3: the holder's process is stopped for three leases.
///
/// # Panics
///
/// If an assertion of the row fails.
pub fn f03_holder_paused_long(site: &Site) {
    let (holder, waiter) = (site.process("holder"), site.process("waiter"));
    let resource = Fence::new();
    holder.acquire(LOCK);
    holder.observe(LOCK);
    resource.check(token_of(&holder)).expect("the first write");
    let waiting = waiter.wait_for(LOCK);
    waiter.sees_contenders(LOCK, 2);
    let (pausing_ns, began) = (now_ns(), Instant::now());
    holder.pause();
    let paused_ns = now_ns();
    let second = waiter.granted(waiting, LONG);
    let took = since(pausing_ns, second.t_ns);
    assert!(took <= site.crash_release(), "free only {took:?} after the pause began");
    resource.check(token_of(&waiter)).expect("the new holder's write");
    thread::sleep((3 * site.lease()).saturating_sub(began.elapsed()));
    let resumed_ns = now_ns();
    holder.resume();
    let probe = holder.not_held(LONG);
    assert!(probe.last_true_ns < paused_ns, "held after the pause: {probe:?}");
    let told = assert_told(resumed_ns, holder.lost(LONG).t_ns);
    must_hold!(resource.check(token_of(&holder)).is_err(), "a stale write was applied");
    println!("F-3 {}: granted after {took:?}, loss told {told:?} after SIGCONT", site.name());
    waiter.observe(LOCK);
    // The continued client removes its old entry, and no other entry.
    thread::sleep(Duration::from_secs(1));
    waiter.keeps(LOCK);
    assert_eq!(waiter.holders(LOCK), ["waiter"]);
}

/// F-4: the process is stopped between a heartbeat and its answer; the deadline counts from when the heartbeat was
/// sent.
pub fn f04_paused_between_heartbeat_and_reply(site: &Site) {
    let proxy = site.server().proxy_to(0);
    let holder = site.at(proxy.address()).process("holder");
    let late = site.heartbeat.mul_f64(0.7);
    // Whether the client reads the answer before its attempt times out depends on the scheduler, so the test tries up
    // to five times.
    let was_counted = (0..5).any(|_| {
        holder.acquire(LOCK);
        holder.observe(LOCK);
        thread::sleep(2 * site.heartbeat);
        proxy.set(Direction::ToClient, Mode::Stall);
        let sent = proxy.messages();
        assert!(wait_a_little(site, || proxy.messages() > sent), "no heartbeat");
        let sent_ns = now_ns();
        holder.pause();
        proxy.set(Direction::ToClient, Mode::Pass);
        thread::sleep(late);
        // Keeps later heartbeats from reaching the server.
        proxy.set(Direction::ToServer, Mode::Blackhole);
        holder.resume();
        let probe = holder.not_held(LONG);
        let valid = since(sent_ns, probe.last_true_ns);
        assert!(valid < site.valid_for(), "held for {valid:?} after it was sent");
        assert_told(probe.last_true_ns, holder.lost(LONG).t_ns);
        proxy.heal();
        proxy.reset_all();
        println!("F-4 {}: valid for {valid:?} after the heartbeat was sent", site.name());
        valid > site.valid_for() - site.server().proof_lag(site.heartbeat) - late / 2
    });
    assert!(was_counted, "no late reply was counted, so nothing was tested");
}

fn wait_a_little(site: &Site, mut condition: impl FnMut() -> bool) -> bool {
    let began = Instant::now();
    while began.elapsed() < 2 * site.heartbeat {
        if condition() {
            return true;
        }
        thread::sleep(Duration::from_micros(200));
    }
    false
}

/// F-5: the process is stopped for less than its lease.
pub fn f05_holder_paused_briefly(site: &Site) {
    // The lease has at least four seconds. So the time that is left of it after the pause is enough for a heartbeat,
    // even on a busy machine.
    let site = site.with_ttl(site.lease().max(Duration::from_secs(4)));
    holder_paused_keeps(&site, site.lease() / 2);
}

/// F-6: every thread of the program's runtime is busy.
pub fn f06_executor_blocked(site: &Site) {
    let (holder, waiter) = (site.process("holder"), site.process("waiter"));
    holder.acquire(LOCK);
    holder.observe(LOCK);
    let waiting = waiter.wait_for(LOCK);
    waiter.sees_contenders(LOCK, 2);
    let length = 3 * site.lease();
    let ms = length.as_millis() as u64;
    let blocking = holder.send(json!({ "command": "block_executor", "ms": ms }));
    let blocked = holder.event_named("blocked", LONG).expect("every thread is busy");
    let asked = holder.send(json!({ "command": "ping" }));
    thread::sleep(length - SCHEDULING);
    assert!(holder.poll(asked).is_none(), "the executor was not blocked: {blocked}");
    holder.receive(blocking, LONG).expect("it ends").expect("no error");
    assert!(wait_until(Duration::from_secs(5), || holder.poll(asked).is_some()));
    holder.keeps(LOCK);
    assert!(waiter.poll(waiting).is_none(), "granted to two");
    holder.release(LOCK);
    waiter.granted(waiting, bounds::served() + SCHEDULING);
}
