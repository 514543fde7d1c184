//! F-11 and F-12 on a network that loses packets: no kernel acknowledges them, and neither side gets an error.
//!
//! The holder is in a network namespace of its own, the servers and the waiter in another one. `network.rs` has the
//! same rows with a proxy, whose kernel acknowledges what the proxy then drops.

use std::thread;
use std::time::Duration;

use serde_json::json;

use super::crash::since;
use super::told::assert_told;
use super::{LONG, Site};
use crate::checks::Backend;
use crate::harness::log::now_ns;
use crate::harness::netns::{Lines, SERVER, within};
use crate::harness::{Direction, Setup};
use crate::must_hold;

/// What a test in a network namespace needs.
#[derive(Clone, Copy, Debug)]
pub struct Apart {
    /// The store under test.
    pub backend: Backend,
    /// The worker's binary.
    pub worker: &'static str,
    /// The test's name with its crate and modules, by which it is started again in the namespace.
    pub test: &'static str,
}

const LOCK: &str = "silent";

/// F-11: nothing that the holder sends reaches the server.
///
/// # Panics
///
/// If an assertion of the row fails.
pub fn f11_requests_lost_silently(apart: Apart) {
    // No heartbeat reaches the server, so the lease runs from the last heartbeat before the fault.
    lost_silently(apart, &[Direction::ToServer]);
}

/// F-12: no answer reaches the holder.
pub fn f12_replies_lost_silently(apart: Apart) {
    lost_silently(apart, &[Direction::ToClient]);
}

/// F-11: packets are lost in both directions.
pub fn f11_everything_lost_silently(apart: Apart) {
    lost_silently(apart, &[Direction::ToServer, Direction::ToClient]);
}

fn lost_silently(apart: Apart, lost: &[Direction]) {
    within(apart.test, |lines| {
        let setup = Setup { also_at: Some(SERVER.to_owned()), ..Setup::default() };
        let server = apart.backend.set_up(&setup).expect("the row is for servers");
        let site = Site::on(server, apart.worker);
        let port = site.server().node(0).address().port();
        let away = site.away(format!("{SERVER}:{port}"), lines.at_client(apart.worker));
        holder_away(&site, &away, lines, lost);
    });
}

fn holder_away(site: &Site, away: &Site, lines: &Lines, lost: &[Direction]) {
    // Heartbeats that reach the server renew the lease until the client gives up.
    let renewed_for = match lost.contains(&Direction::ToServer) {
        true => Duration::ZERO,
        false => site.server().insists_for(site.lease()),
    };
    let (holder, waiter) = (away.process("holder"), site.process("waiter"));
    let first = holder.acquire(LOCK);
    holder.observe(LOCK);
    let waiting = waiter.wait_for(LOCK);
    waiter.sees_contenders(LOCK, 2);
    lines.lose(lost);
    let silent_ns = now_ns();
    // A call that is made now gets no answer, and returns at its timeout.
    let refused = holder.acquire_within("another", site.lease() / 2).expect_err("out of reach");
    assert_eq!(refused["kind"], json!("Unavailable"), "{refused}");
    let probe = holder.not_held(LONG);
    let valid = since(silent_ns, probe.last_true_ns);
    assert!(valid < site.valid_for(), "held for {valid:?} without a reply");
    let told = assert_told(probe.last_true_ns, holder.lost(LONG).t_ns);
    let next = waiter.granted(waiting, LONG);
    must_hold!(next.token > first.token);
    let freed = since(silent_ns, next.t_ns);
    assert!(freed <= site.crash_release() + renewed_for, "free only after {freed:?}");
    assert!(next.t_ns > probe.last_true_ns, "granted to two (S3)");
    thread::sleep((3 * site.lease()).saturating_sub(since(silent_ns, now_ns())));
    lines.heal(lost);
    let healed_ns = now_ns();
    waiter.release(LOCK);
    // L5: the process that has lost the lock can acquire it again, although it was not restarted.
    let again = holder.acquire(LOCK);
    must_hold!(again.token > next.token);
    let back = since(healed_ns, again.t_ns);
    assert_eq!(site.entries().len(), 1, "the old entry is gone");
    println!(
        "{} {lost:?} silently: valid {valid:?}, free after {freed:?}, told {told:?} late, back after {back:?}",
        site.name()
    );
}
