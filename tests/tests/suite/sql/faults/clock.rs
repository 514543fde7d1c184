//! F-28, F-62: the server's clock is set. Leases end by that clock, and tokens begin at it.

use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use coordination_tests::bounds;
use coordination_tests::faults::{SCHEDULING, Site};
use coordination_tests::harness::{WallClock, wait_until};
use coordination_tests::must_hold;

use super::{Faulty, LONG};
use crate::WORKER;

/// An hour in milliseconds.
const HOUR: i64 = 60 * 60 * 1_000;

/// A server that sees this clock, and a site whose clients use it and have this lease.
fn site<S: Faulty>(clock: &WallClock, lease: Duration) -> (Arc<S>, Site) {
    let server = Arc::new(S::start_by(clock));
    let seconds = || server.tell(S::SECONDS).expect("it tells the time").parse::<i64>();
    let before = seconds().expect("a number");
    clock.set(HOUR);
    let after = seconds().expect("a number");
    clock.set(0);
    let ahead = after - before;
    assert!((3_599..=3_610).contains(&ahead), "{ahead} s: the server does not see the clock");
    let site = Site::on(Arc::clone(&server) as Arc<_>, WORKER).with_ttl(lease);
    (server, site)
}

/// The longest time that a loss may take to be told which the next heartbeat brings, on a machine that is busy.
fn told(site: &Site) -> Duration {
    10 * site.server().notice(site.heartbeat)
}

/// F-28: a clock that is set forward ends leases early. The holder learns of that with its next heartbeat. When the clock is set right,
/// nobody loses anything, and tokens rise.
pub(crate) fn f28_server_clock_set_forward<S: Faulty>() {
    let clock = WallClock::new();
    let (_server, site) = site::<S>(&clock, LONG / 3);
    let (holder, other) = (site.process("holder"), site.process("other"));
    let old = holder.acquire("x");
    holder.observe("x");
    let set = Instant::now();
    clock.set(HOUR);
    let lost = holder.lost(LONG);
    let took = set.elapsed();
    println!("F-28 {}, +1 h: told after {took:?}: {}", site.name(), lost.reason);
    assert!(took <= told(&site), "{took:?}");
    let new = other.acquire("x");
    must_hold!(new.token > old.token, "{} after {}", new.token, old.token);
    other.observe("x");
    clock.set(0);
    sleep(3 * site.heartbeat);
    other.keeps("x");
    other.release("x");
    let next = holder.acquire("x");
    must_hold!(next.token > new.token, "{} after {}", next.token, new.token);
}

/// F-28: a clock that is set back costs nobody a lock. Leases that are renewed after that are as long as usual.
pub(crate) fn f28_server_clock_set_back<S: Faulty>() {
    let clock = WallClock::new();
    let (server, site) = site::<S>(&clock, LONG / 15);
    let (holder, other) = (site.process("holder"), site.process("other"));
    let first = holder.acquire("x");
    holder.observe("x");
    clock.set(-HOUR);
    sleep(3 * site.heartbeat);
    holder.keeps("x");
    holder.release("x");
    let second = other.acquire("x");
    must_hold!(second.token > first.token, "{} after {}", second.token, first.token);
    let waiting = holder.wait_for("x");
    holder.sees_contenders("x", 2);
    let long =
        format!("SELECT count(*) FROM {} WHERE expires - lease > {}", S::table("sessions"), S::NOW);
    let renewed = wait_until(LONG, || server.tell(&long).as_deref() == Ok("0"));
    assert!(renewed, "a lease is longer than it may be");
    let killed = Instant::now();
    other.kill();
    let third = holder.granted(waiting, LONG);
    let took = killed.elapsed();
    println!("F-28 {}, −1 h: followed after {took:?}", site.name());
    assert!(took <= site.crash_release(), "{took:?}");
    must_hold!(third.token > second.token, "{} after {}", third.token, second.token);
}

/// F-28: the clock is set back just after the holder has died, so that by the clock its lease lasts for an hour. Its waiter has the lock
/// within two leases and five seconds.
pub(crate) fn f28_server_clock_set_back_after_a_death<S: Faulty>() {
    let clock = WallClock::new();
    let (_server, site) = site::<S>(&clock, LONG / 15);
    let (holder, waiter) = (site.process("holder"), site.process("waiter"));
    let old = holder.acquire("x");
    let waiting = waiter.wait_for("x");
    waiter.sees_contenders("x", 2);
    holder.kill();
    clock.set(-HOUR);
    let set = Instant::now();
    let new = waiter.granted(waiting, LONG);
    let took = set.elapsed();
    println!("F-28 {}, −1 h after a death: followed after {took:?}", site.name());
    assert!(took <= bounds::recovered(site.ttl) + SCHEDULING, "{took:?}");
    must_hold!(new.token > old.token, "{} after {}", new.token, old.token);
}

/// F-28: the clock is changed every second, by less than a lease.
pub(crate) fn f28_server_clock_steps<S: Faulty>() {
    let clock = WallClock::new();
    let (_server, site) = site::<S>(&clock, LONG / 3);
    let (holder, other) = (site.process("holder"), site.process("other"));
    holder.acquire("x");
    holder.observe("x");
    let mut last = 0;
    for step in [400, -700, 900, -1_000, 500, 0, 800, -300] {
        clock.set(step);
        sleep(Duration::from_secs(1));
        let token = other.acquire("y").token;
        must_hold!(token > last, "{token} after {last}");
        last = token;
        other.release("y");
    }
    holder.keeps("x");
}

/// F-62: the server restarts with a clock that is an hour behind, and nothing is lost. When the clock is set right, the holder is told
/// with its next heartbeat that its lease has ended, and the waiter is served.
pub(crate) fn f62_a_clock_that_was_behind_is_set_right<S: Faulty>() {
    let clock = WallClock::new();
    let (server, site) = site::<S>(&clock, LONG / 3);
    let (holder, waiter) = (site.process("holder"), site.process("waiter"));
    let old = holder.acquire("x");
    holder.observe("x");
    let waiting = waiter.wait_for("x");
    waiter.sees_contenders("x", 2);
    clock.set(-HOUR);
    server.node(0).restart();
    server.wait_ready();
    sleep(site.lease());
    holder.keeps("x");
    clock.set(0);
    let set = Instant::now();
    let lost = holder.lost(LONG);
    let took = set.elapsed();
    println!("F-62 {}, behind: told after {took:?}: {}", site.name(), lost.reason);
    assert!(took <= told(&site), "{took:?}");
    let new = waiter.granted(waiting, LONG);
    must_hold!(new.token > old.token, "{} after {}", new.token, old.token);
    waiter.release("x");
    let next = holder.acquire("x");
    must_hold!(next.token > new.token, "{} after {}", next.token, new.token);
}

/// F-62: the server restarts with a clock that is an hour ahead, so that all leases have ended. When the clock is set right, the new
/// holder keeps the lock, and if it dies, nobody waits for an hour.
pub(crate) fn f62_a_clock_that_was_ahead_is_set_right<S: Faulty>() {
    let clock = WallClock::new();
    let (server, site) = site::<S>(&clock, LONG / 10);
    let (holder, waiter) = (site.process("holder"), site.process("waiter"));
    let old = holder.acquire("x");
    holder.observe("x");
    let waiting = waiter.wait_for("x");
    waiter.sees_contenders("x", 2);
    clock.set(HOUR);
    server.node(0).restart();
    server.wait_ready();
    let lost = holder.lost(LONG);
    println!("F-62 {}, ahead: {}", site.name(), lost.reason);
    let new = waiter.granted(waiting, LONG);
    must_hold!(new.token > old.token, "{} after {}", new.token, old.token);
    waiter.observe("x");
    let waiting = holder.wait_for("x");
    holder.sees_contenders("x", 2);
    clock.set(0);
    sleep(2 * site.lease());
    waiter.keeps("x");
    waiter.kill();
    let killed = Instant::now();
    let next = holder.granted(waiting, LONG);
    let took = killed.elapsed();
    println!("F-62 {}, ahead: followed after {took:?}", site.name());
    assert!(took <= bounds::recovered(site.ttl) + SCHEDULING, "{took:?}");
    must_hold!(next.token > new.token, "{} after {}", next.token, new.token);
}
