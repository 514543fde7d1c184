//! F-61: how one client's longer lease affects all others.

use std::time::{Duration, Instant};

use coordination_tests::harness::{Redis, Server, rerun_if_starved, wait_until};

use super::{CLOCK, LONG, quarantined, site};

/// A client with a lease of a day connects to a namespace that others use. The others' calls still succeed at once,
/// even after a restart of the server, which loses nothing.
#[test]
fn f61_a_longer_lease_stops_nobody() {
    rerun_if_starved(|| {
        let (redis, site) = site(Redis::options());
        let site = quarantined(&site, "");
        let worker = site.process("worker");
        // The namespace is new, so nobody knows how long the leases were, and there is a quarantine.
        let waiting = worker.wait_for("x");
        worker.granted(waiting, 3 * LONG);
        worker.release("x");
        let _long = site.with_ttl(Duration::from_secs(24 * 3_600)).process("long");
        worker.acquire("x");
        worker.release("x");
        site.process("newcomer").acquire("y");
        redis.node(0).restart();
        redis.wait_ready();
        worker.acquire_within("x", LONG).expect("nothing is forgotten");
    });
}

/// The next quarantine is as long as the longest lease among the clients that were connected lately. A client that
/// has long been gone does not lengthen it.
#[test]
fn f61_a_longer_lease_counts_for_as_long_as_it_may_live() {
    rerun_if_starved(|| {
        let (redis, site) = site(Redis::options());
        let site = quarantined(&site, "");
        let (_short, _longer) =
            (site.process("short"), site.with_ttl(Duration::from_secs(5)).process("longer"));
        site.with_ttl(Duration::from_secs(31)).process("once").kill();
        let longest = || redis.ask(&["HGET", CLOCK, "longest"]).text();
        assert_eq!(longest().as_deref(), Some("31000000"));
        let begun = Instant::now();
        // The record keeps the long lease for twice its length. After that, the next heartbeats lower it.
        let is_lowered = wait_until(5 * LONG, || longest().as_deref() != Some("31000000"));
        println!("F-61 redis: after {:?} the longest lease is {:?} µs", begun.elapsed(), longest());
        assert!(is_lowered);
        assert_eq!(longest().as_deref(), Some("5000000"));
        assert!(begun.elapsed() > Duration::from_secs(31));
    });
}
