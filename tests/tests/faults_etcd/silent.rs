//! F-11 and F-12 on a network that loses packets: nobody's kernel acknowledges them, and nobody is told.
//!
//! The holder is in a namespace of its own, the servers and the waiter in another. `network.rs` has the same
//! rows with a proxy, which takes what it drops from the sender.

use std::sync::LazyLock;
use std::thread;
use std::time::Duration;

use coordination_tests::faults::{Site, crash::since, deadline_after};
use coordination_tests::harness::log::now_ns;
use coordination_tests::harness::netns::{Lines, SERVER, within};
use coordination_tests::harness::{Direction, Etcd};
use serde_json::json;

use super::{LONG, PULSE, TTL, WORKER, assert_told, contenders};

const LOCK: &str = "silent";

#[test]
fn f11_requests_lost_silently() {
    // Nothing reaches the server, so the lease runs from the last heartbeat before.
    within("silent::f11_requests_lost_silently", |lines| {
        lost_silently(lines, &[Direction::ToServer], Duration::ZERO);
    });
}

#[test]
fn f12_replies_lost_silently() {
    // Heartbeats reach the server until the client gives up.
    within("silent::f12_replies_lost_silently", |lines| {
        lost_silently(lines, &[Direction::ToClient], TTL);
    });
}

#[test]
fn f11_everything_lost_silently() {
    within("silent::f11_everything_lost_silently", |lines| {
        lost_silently(lines, &[Direction::ToServer, Direction::ToClient], Duration::ZERO);
    });
}

fn lost_silently(lines: &Lines, lost: &[Direction], renewed_for: Duration) {
    LazyLock::force(&PULSE);
    let etcd = Etcd::options().also_at(SERVER).start();
    let site = Site::etcd(&etcd.authority(), TTL, WORKER);
    let port = etcd.node(0).address().port();
    let away = Site::etcd(&format!("{SERVER}:{port}"), TTL, lines.at_client(WORKER));
    let (holder, waiter) = (away.process("holder"), site.process("waiter"));
    let first = holder.acquire(LOCK);
    holder.observe(LOCK);
    let waiting = waiter.wait_for(LOCK);
    waiter.sees_contenders(LOCK, 2);
    lines.lose(lost);
    let silent_ns = now_ns();
    // Whoever asks now waits for an answer that does not come, and not for longer than he said.
    let refused = holder.acquire_within("another", TTL / 2).expect_err("out of reach");
    assert_eq!(refused["kind"], json!("Unavailable"), "{refused}");
    let probe = holder.not_held(LONG);
    let valid = since(silent_ns, probe.last_true_ns);
    assert!(valid < deadline_after(TTL), "held for {valid:?} without a reply");
    let told = assert_told(probe.last_true_ns, holder.lost(LONG).t_ns);
    let next = waiter.granted(waiting, LONG);
    assert!(next.token > first.token);
    let freed = since(silent_ns, next.t_ns);
    assert!(freed <= site.crash_release() + renewed_for, "free only after {freed:?}");
    assert!(next.t_ns > probe.last_true_ns, "granted to two (contract S3)");
    thread::sleep((3 * TTL).saturating_sub(since(silent_ns, now_ns())));
    lines.heal(lost);
    let healed_ns = now_ns();
    waiter.release(LOCK);
    // Contract L5: the same process, and no help.
    let again = holder.acquire_within(LOCK, 2 * TTL + Duration::from_secs(5));
    let again = again.expect("the network is back");
    assert!(again.token > next.token);
    let back = since(healed_ns, again.t_ns);
    assert_eq!(contenders(&etcd).len(), 1, "the old entry is gone");
    println!(
        "{lost:?} silently: valid {valid:?}, free after {freed:?}, told {told:?} late, back after {back:?}"
    );
}
