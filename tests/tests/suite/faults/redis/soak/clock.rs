//! F-28, F-29: the server's or the client's clock is set. F-62, F-65: what depends on the server's clock.
//!
//! The test compiles a small shared library, which is preloaded into the server or the client. It reads a number of
//! milliseconds from a file, and adds them to each time that the process asks for.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use coordination_tests::faults::{SCHEDULING, Site};
use coordination_tests::harness::redis::{RedisOptions, Reply};
use coordination_tests::harness::{Redis, Scratch, Server, rerun_if_starved};
use coordination_tests::must_hold;

use tokio::runtime::Runtime;

use super::{CLOCK, LONG, quarantined, site};

const SHIM: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

static long long offset(void) {
    long long milliseconds = 0;
    FILE *file = fopen(getenv("CLOCK_OFFSET"), "r");
    if (file) {
        if (fscanf(file, "%lld", &milliseconds) != 1) milliseconds = 0;
        fclose(file);
    }
    return milliseconds;
}

static void add(long long *seconds, long *rest, long unit) {
    long long milliseconds = offset();
    *seconds += milliseconds / 1000;
    *rest += (milliseconds % 1000) * (unit / 1000);
    while (*rest < 0) { *rest += unit; *seconds -= 1; }
    while (*rest >= unit) { *rest -= unit; *seconds += 1; }
}

int clock_gettime(clockid_t id, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int outcome = real(id, now);
    if (outcome == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) {
        long long seconds = now->tv_sec;
        add(&seconds, &now->tv_nsec, 1000000000);
        now->tv_sec = seconds;
    }
    return outcome;
}

int gettimeofday(struct timeval *now, void *zone) {
    static int (*real)(struct timeval *, void *);
    if (!real) real = dlsym(RTLD_NEXT, "gettimeofday");
    int outcome = real(now, zone);
    if (outcome == 0) {
        long long seconds = now->tv_sec;
        add(&seconds, &now->tv_usec, 1000000);
        now->tv_sec = seconds;
    }
    return outcome;
}

time_t time(time_t *into) {
    struct timeval now;
    gettimeofday(&now, NULL);
    if (into) *into = now.tv_sec;
    return now.tv_sec;
}
"#;

/// A clock that the test can set.
struct Clock {
    library: PathBuf,
    offset: PathBuf,
    _scratch: Scratch,
}

impl Clock {
    fn new() -> Self {
        let scratch = Scratch::new("clock");
        let (source, library) = (scratch.join("shim.c"), scratch.join("shim.so"));
        fs::write(&source, SHIM).expect("the scratch directory is writable");
        let compiled = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-o"])
            .args([library.as_path(), source.as_path(), Path::new("-ldl")])
            .status()
            .expect("a C compiler is installed");
        assert!(compiled.success(), "the shim does not compile");
        let clock = Self { library, offset: scratch.join("offset"), _scratch: scratch };
        clock.set(0);
        clock
    }

    /// Sets the clock this number of milliseconds ahead.
    fn set(&self, milliseconds: i64) {
        let new = self.offset.with_extension("new");
        fs::write(&new, milliseconds.to_string()).expect("the scratch directory is writable");
        fs::rename(new, &self.offset).expect("the scratch directory is writable");
    }

    /// A server that sees this clock, and a site whose clients use the server.
    fn site(&self) -> (Arc<Redis>, Site) {
        self.site_with(Redis::options())
    }

    fn site_with(&self, options: RedisOptions) -> (Arc<Redis>, Site) {
        let options = options.environment("LD_PRELOAD", &self.library);
        let (redis, site) = site(options.environment("CLOCK_OFFSET", &self.offset));
        let seconds = || redis.ask(&["TIME"]).text().and_then(|text| text.parse::<i64>().ok());
        let before = seconds().expect("a number");
        self.set(100_000);
        let after = seconds().expect("a number");
        self.set(0);
        assert!((99..=102).contains(&(after - before)), "the shim does nothing");
        (redis, site)
    }
}

/// A clock that is set forward ends leases early. Holders learn of the loss with their next heartbeat.
#[test]
fn f28_server_clock_set_forward() {
    rerun_if_starved(|| {
        let clock = Clock::new();
        let (_redis, site) = clock.site();
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
        let clock = Clock::new();
        let (_redis, site) = clock.site();
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
        let clock = Clock::new();
        let (_redis, site) = clock.site();
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
        let clock = Clock::new();
        let (redis, site) = clock.site_with(Redis::options().forgetful());
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
        let clock = Clock::new();
        let (redis, site) = clock.site();
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
        let clock = Clock::new();
        let (redis, site) = clock.site();
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

/// A client whose wall clock is wrong works as usual.
#[test]
fn f29_client_clock_set() {
    rerun_if_starved(|| {
        let clock = Clock::new();
        let (_redis, site) = site(Redis::options());
        let script = clock.library.with_file_name("worker.sh");
        let text = format!(
            "#!/bin/sh\nLD_PRELOAD={} CLOCK_OFFSET={} exec {} \"$@\"\n",
            clock.library.display(),
            clock.offset.display(),
            site.worker
        );
        coordination_tests::harness::write_script(&script, &text);
        let mut set = site.clone();
        set.worker = script.display().to_string();
        let (holder, other) = (set.process("holder"), site.process("other"));
        let mut last = holder.acquire("x").token;
        holder.observe("x");
        for hours in [1, -1] {
            clock.set(hours * 3_600_000);
            sleep(3 * site.heartbeat);
            holder.keeps("x");
        }
        holder.release("x");
        for process in [&other, &holder] {
            let token = process.acquire("x").token;
            must_hold!(token > last, "{token} after {last}");
            last = token;
            process.release("x");
        }
    });
}
