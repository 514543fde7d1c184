//! F-1, F-2, F-3 (on stores without leases), F-5, F-43: holders and waiters that die or pause.

use std::{thread, time::Duration};

use serde_json::json;

use super::{SCHEDULING, Site};
use crate::bounds;
use crate::harness::log::now_ns;
use crate::must_hold;

const LOCK: &str = "crash";
const LONG: Duration = Duration::from_secs(20);

/// F-1: the holder dies, and the next waiter gets the lock within the bound.
///
/// # Panics
///
/// If an assertion of the row fails.
pub fn f01_holder_killed(site: &Site) {
    let (holder, waiter) = (site.process("holder"), site.process("waiter"));
    let first = holder.acquire(LOCK);
    let waiting = waiter.wait_for(LOCK);
    waiter.sees_contenders(LOCK, 2);
    let killed_ns = now_ns();
    holder.kill();
    let second = waiter.granted(waiting, LONG);
    let took = since(killed_ns, second.t_ns);
    assert!(took <= site.crash_release(), "free only {took:?} after the holder's death");
    must_hold!(second.token > first.token);
    assert_eq!(waiter.holders(LOCK), ["waiter"]);
    waiter.release(LOCK);
    assert_eq!(waiter.holders(LOCK), [""; 0]);
    assert_eq!(site.entries(), [""; 0]);
    println!("F-1 {}: free after {took:?}", site.name());
}

/// F-2: the first waiter and one in the middle are killed. The others are served in their order, and both deaths
/// together delay them only once.
///
/// # Panics
///
/// If an assertion of the row fails.
pub fn f02_waiters_killed(site: &Site) {
    let holder = site.process("holder");
    holder.acquire(LOCK);
    let waiters: Vec<_> = (0..4)
        .map(|index| {
            let waiter = site.process(&format!("waiter-{index}"));
            let waiting = waiter.wait_for(LOCK);
            holder.sees_contenders(LOCK, index + 2);
            (waiter, waiting)
        })
        .collect();
    let killed_ns = now_ns();
    waiters[0].0.kill();
    waiters[2].0.kill();
    holder.release(LOCK);
    let mut took = Duration::ZERO;
    let mut last_token = 0;
    for survivor in [1, 3] {
        let (waiter, waiting) = &waiters[survivor];
        let grant = waiter.granted(*waiting, LONG);
        must_hold!(grant.token > last_token);
        last_token = grant.token;
        took = since(killed_ns, grant.t_ns);
        // The two dead waiters together may delay the survivors by the bound once, and not by the bound for each dead
        // waiter. For each survivor, time for a hand-over is added.
        let bound = site.crash_release() + 2 * SCHEDULING;
        assert!(took <= bound, "waiter {survivor} was served only after {took:?}");
        if survivor == 1 {
            assert!(waiters[3].0.poll(waiters[3].1).is_none(), "overtaken");
        }
        waiter.release(LOCK);
    }
    println!("F-2 {}: both served after {took:?}", site.name());
}

/// F-3 and F-5, where the guard has to stay valid: the holder's process is stopped for `pause`.
///
/// # Panics
///
/// If an assertion of the row fails.
pub fn holder_paused_keeps(site: &Site, pause: Duration) {
    let (holder, waiter) = (site.process("holder"), site.process("waiter"));
    let first = holder.acquire(LOCK);
    holder.observe(LOCK);
    let waiting = waiter.wait_for(LOCK);
    waiter.sees_contenders(LOCK, 2);
    for _ in 0..3 {
        holder.pause();
        thread::sleep(pause);
        holder.resume();
        // This is long enough for one or two heartbeats.
        thread::sleep(Duration::from_millis(700));
        holder.keeps(LOCK);
        assert!(waiter.poll(waiting).is_none(), "granted to two");
    }
    let released_ns = holder.release(LOCK);
    let second = waiter.granted(waiting, LONG);
    must_hold!(second.token > first.token);
    assert!(since(released_ns, second.t_ns) <= bounds::served() + SCHEDULING, "L2");
}

/// F-43: the process ends by `exit`, which runs no destructor.
///
/// # Panics
///
/// If an assertion of the row fails.
pub fn f43_exit_with_a_guard(site: &Site) {
    let (holder, waiter) = (site.process("holder"), site.process("waiter"));
    holder.acquire(LOCK);
    let waiting = waiter.wait_for(LOCK);
    waiter.sees_contenders(LOCK, 2);
    let exited_ns = now_ns();
    holder.send(json!({ "command": "exit", "code": 3 }));
    let status = holder.child().wait(Duration::from_secs(5)).expect("exit is not held up");
    let exit = since(exited_ns, now_ns());
    assert!(exit <= bounds::last_try() + SCHEDULING, "exit took {exit:?}");
    assert_eq!(status.code(), Some(3), "no panic on the way out");
    let took = since(exited_ns, waiter.granted(waiting, LONG).t_ns);
    assert!(took <= site.crash_release(), "free only {took:?} after the exit");
    println!("F-43 {}: free {took:?} after the exit", site.name());
}

/// The time between two readings of the clock; zero if they are in the wrong order.
pub fn since(earlier_ns: u64, later_ns: u64) -> Duration {
    Duration::from_nanos(later_ns.saturating_sub(earlier_ns))
}
