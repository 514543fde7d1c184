//! F-28: the server's clock is set. F-62, F-65: what depends on the server's clock.

use std::path::Path;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use coordination_tests::faults::{SCHEDULING, Site};
use coordination_tests::harness::redis::{RedisOptions, Reply};
use coordination_tests::harness::{Redis, Server, WallClock, rerun_if_starved};
use coordination_tests::must_hold;

use tokio::runtime::Runtime;

use super::{CLOCK, LONG, quarantined, site};

/// A server that sees this clock, and a site whose clients use the server.
fn by(clock: &WallClock, options: RedisOptions) -> (Arc<Redis>, Site) {
    let with = |options: RedisOptions, (name, value): &(&str, String)| {
        options.environment(name, Path::new(value))
    };
    let (redis, site) = site(clock.environment().iter().fold(options, with));
    let seconds = || redis.ask(&["TIME"]).text().and_then(|text| text.parse::<i64>().ok());
    let before = seconds().expect("a number");
    clock.set(100_000);
    let after = seconds().expect("a number");
    clock.set(0);
    assert!((99..=102).contains(&(after - before)), "the server does not see the clock");
    (redis, site)
}

/// A clock that is set forward ends leases early. Holders learn of the loss with their next heartbeat.
#[test]
fn f28_server_clock_set_forward() {
    rerun_if_starved(|| {
        let clock = WallClock::new();
        let (_redis, site) = by(&clock, Redis::options());
        let (holder, other) = (site.process("holder"), site.process("other"));
        let old = holder.acquire("x");
        holder.observe("x");
        let set = Instant::now();
        clock.set(160_000);
        let lost = holder.lost(LONG);
        let took = set.elapsed();
        println!("F-28 redis, +60 s: told after {took:?}: {}", lost.reason);
        assert!(took <= site.heartbeat + SCHEDULING, "{took:?}");
        must_hold!(other.acquire("x").token > old.token);
    });
}

/// The server's clock is set back by an hour, but the library's time on the server never goes back. So nothing is
/// lost, tokens rise, and after a holder's death the next client gets the lock within the holder's lease.
#[test]
fn f28_server_clock_set_back() {
    rerun_if_starved(|| {
        let clock = WallClock::new();
        let (_redis, site) = by(&clock, Redis::options());
        let (holder, other) = (site.process("holder"), site.process("other"));
        let first = holder.acquire("x");
        holder.observe("x");
        clock.set(-3_600_000);
        sleep(3 * site.heartbeat);
        holder.keeps("x");
        holder.release("x");
        let second = other.acquire("x");
        must_hold!(second.token > first.token, "{} after {}", second.token, first.token);
        let waiting = holder.wait_for("x");
        holder.sees_contenders("x", 2);
        let killed = Instant::now();
        other.kill();
        let third = holder.granted(waiting, LONG);
        let took = killed.elapsed();
        println!("F-28 redis, −1 h: followed after {took:?}");
        assert!(took <= site.crash_release(), "{took:?}");
        must_hold!(third.token > second.token);
    });
}

/// The clock is changed every second, a little forward and back.
#[test]
fn f28_server_clock_steps() {
    rerun_if_starved(|| {
        let clock = WallClock::new();
        let (_redis, site) = by(&clock, Redis::options());
        let (holder, other) = (site.process("holder"), site.process("other"));
        holder.acquire("x");
        holder.observe("x");
        let mut last = 0;
        for step in [400, -700, 900, -1_000, 500, 0, 800, -300] {
            clock.set(step);
            sleep(Duration::from_millis(1_000));
            let token = other.acquire("y").token;
            must_hold!(token > last, "{token} after {last}");
            last = token;
            other.release("y");
        }
        holder.keeps("x");
    });
}

/// F-62: the server starts with a clock that is an hour behind and is then set right. The jump of the clock to the
/// right time does not end the quarantine earlier.
#[test]
fn f62_a_clock_set_right_after_the_start_ends_no_quarantine() {
    rerun_if_starved(|| {
        let clock = WallClock::new();
        let (redis, site) = by(&clock, Redis::options().forgetful());
        let site = quarantined(&site, "4s");
        let (holder, other) = (site.process("holder"), site.process("other"));
        holder.acquire("x");
        holder.release("x");
        clock.set(-3_600_000);
        redis.node(0).restart();
        redis.wait_ready();
        let restarted = Instant::now();
        clock.set(0);
        other.acquire_within("x", LONG).expect("the quarantine ends");
        let took = restarted.elapsed();
        println!("F-62 redis: granted {took:?} after the restart");
        assert!(took >= Duration::from_millis(3_500), "{took:?}");
    });
}

/// After the clock was set forward, the server still remembers which writes created a value, so that it recognises a
/// repeated write.
#[test]
fn f28_a_clock_set_forward_forgets_no_write() {
    rerun_if_starved(|| {
        let clock = WallClock::new();
        let (redis, site) = by(&clock, Redis::options());
        Runtime::new().expect("a runtime").block_on(async {
            let client = site.client("writer").await;
            let value = client.value("v").expect("a good name");
            value.set(&1).await.expect("nobody else is there");
        });
        clock.set(70_000);
        let kept = redis.ask(&["ZRANGE", "{coordination}:done", "0", "-1"]).texts();
        // The key also records closed sessions, so only the entries that stand for writes are counted.
        let writes = kept.iter().filter(|what| what.starts_with("created:")).count();
        assert_eq!(writes, 1, "{kept:?}");
    });
}

/// F-65: when all clients have died, all their keys are removed in the end, except the clock, without which tokens
/// could go back.
#[test]
fn f65_the_keys_of_dead_clients_go() {
    rerun_if_starved(|| {
        let clock = WallClock::new();
        let (redis, site) = by(&clock, Redis::options());
        let clients: Vec<_> = (0..5).map(|n| site.process(&format!("client-{n}"))).collect();
        for (n, client) in clients.iter().enumerate() {
            for lock in 0..10 {
                client.acquire(&format!("own-{n}-{lock}"));
            }
            client.wait_for("own-0-0");
        }
        clients[1].sees_contenders("own-0-0", 6);
        clients.iter().for_each(|client| client.kill());
        let keys = || redis.ask(&["KEYS", "*"]).texts();
        println!("F-65 redis: five processes left {} keys", keys().len());
        for key in keys().iter().filter(|key| !key.ends_with(":clock")) {
            assert!(matches!(redis.ask(&["PTTL", key]), Reply::Number(left) if left > 0), "{key}");
        }
        clock.set(3 * 24 * 3_600_000);
        assert_eq!(keys(), [CLOCK]);
    });
}
