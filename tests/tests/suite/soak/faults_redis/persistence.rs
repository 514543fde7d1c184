//! F-7, F-24: what a server forgets, and the time in which it grants nothing.

use std::time::{Duration, Instant};

use coordination_tests::faults::SCHEDULING;
use coordination_tests::harness::{Redis, Server, judged};

use super::{LONG, site};

/// F-24: all data are gone. The holder learns it with its next heartbeat, and tokens go on rising.
#[test]
fn f24_all_is_flushed() {
    judged(|| {
        let (redis, site) = site(Redis::options(), "");
        let (holder, other) = (site.process("holder"), site.process("other"));
        let old = holder.acquire("x");
        holder.observe("x");
        let flushed = Instant::now();
        redis.ask(&["FLUSHALL"]);
        let lost = holder.lost(LONG);
        let took = flushed.elapsed();
        println!("F-24 redis: told {took:?} after FLUSHALL");
        assert_eq!(lost.reason, "ExpiredByServer");
        assert!(took <= site.heartbeat + SCHEDULING, "{took:?}");
        let new = other.acquire("x");
        assert!(new.token > old.token, "{} after {}", new.token, old.token);
    });
}

/// F-7, F-24: a server that keeps nothing is killed and comes back. The holder loses, and nobody is granted
/// anything before the longest lease is over.
#[test]
fn f07_restarted_with_nothing_left() {
    judged(|| {
        let quarantine = Duration::from_secs(3);
        let (redis, site) = site(Redis::options().forgetful(), "quarantine=3s");
        // It was just started: the same quarantine.
        let begun = Instant::now();
        let (holder, other) = (site.process("holder"), site.process("other"));
        let old = holder.acquire("x");
        println!("F-7 redis: the first grant {:?} after the start", begun.elapsed());
        holder.observe("x");
        redis.node(0).restart();
        redis.wait_ready();
        let restarted = Instant::now();
        let waiting = other.wait_for("x");
        let lost = holder.lost(LONG);
        println!("F-7 redis: told {:?} after the restart: {}", restarted.elapsed(), lost.reason);
        let new = other.granted(waiting, LONG);
        let took = restarted.elapsed();
        println!("F-7 redis: granted {took:?} after the restart");
        assert!(new.token > old.token);
        assert!(took + Duration::from_millis(500) >= quarantine, "{took:?}");
        assert!(took <= 2 * quarantine + Duration::from_secs(2), "{took:?}");
        let old = holder.not_held(LONG);
        assert!(old.last_true_ns < new.t_ns, "held by two");
    });
}

/// The same with the quarantine turned off: the next is granted at once, and only the token tells.
#[test]
fn f07_without_quarantine() {
    judged(|| {
        let (redis, site) = site(Redis::options().forgetful(), "quarantine=off");
        let holder = site.process("holder");
        let old = holder.acquire("x");
        redis.node(0).restart();
        redis.wait_ready();
        let new = site.process("other").acquire("x");
        assert!(new.token > old.token);
    });
}

/// A server comes back with older data: a lock that was released since is not held again by that.
#[test]
fn f07_restarted_with_older_data() {
    judged(|| {
        let (redis, site) = site(Redis::options().forgetful(), "quarantine=1s");
        let (one, other) = (site.process("one"), site.process("other"));
        let old = one.acquire("x");
        redis.ask(&["SAVE"]);
        one.release("x");
        redis.node(0).restart();
        redis.wait_ready();
        let restarted = Instant::now();
        let new = other.acquire_within("x", LONG).expect("nobody holds it");
        println!("F-7 redis: granted {:?} after a restart with older data", restarted.elapsed());
        assert!(new.token > old.token);
        // Its session was in those data too, or is a new one.
        let waiting = one.wait_for("x");
        other.release("x");
        assert!(one.granted(waiting, LONG).token > new.token);
    });
}
