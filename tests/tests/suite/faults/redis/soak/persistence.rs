//! F-7, F-24, F-61: a server that loses data, and the quarantine in which it grants nothing.

use std::time::{Duration, Instant};

use coordination_tests::faults::SCHEDULING;
use coordination_tests::harness::{Mode, Redis, Server, rerun_if_starved, wait_until};
use coordination_tests::must_hold;

use super::{CLOCK, LONG, granted_once_lost, quarantined, site, work};

/// F-24: all data are deleted. The holder learns of its loss with its next heartbeat, and tokens go on rising.
#[test]
fn f24_all_is_flushed() {
    rerun_if_starved(|| {
        let (redis, site) = site(Redis::options());
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
        must_hold!(new.token > old.token, "{} after {}", new.token, old.token);
    });
}

/// F-7, F-24: a server that keeps nothing is killed and restarts. The holder loses its lock, and nothing is granted
/// before the longest lease is over.
#[test]
fn f07_restarted_with_nothing_left() {
    rerun_if_starved(|| {
        let quarantine = Duration::from_secs(3);
        let (redis, site) = site(Redis::options().forgetful());
        let site = quarantined(&site, "3s");
        // At first the server has no record of the namespace, so there is a quarantine before the first grant too.
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
        must_hold!(new.token > old.token);
        assert!(took + Duration::from_millis(500) >= quarantine, "{took:?}");
        assert!(took <= 2 * quarantine + Duration::from_secs(2), "{took:?}");
        let old = holder.not_held(LONG);
        assert!(old.last_true_ns < new.t_ns, "held by two");
    });
}

/// A server that keeps nothing restarts, and there is no quarantine. The next contender gets the lock at once, while
/// the old holder may still hold it; only the fencing tokens protect what the lock guards.
#[test]
fn f07_without_quarantine() {
    rerun_if_starved(|| {
        let (redis, site) = site(Redis::options().forgetful());
        let holder = site.process("holder");
        let old = holder.acquire("x");
        redis.node(0).restart();
        redis.wait_ready();
        let new = site.process("other").acquire("x");
        must_hold!(new.token > old.token);
    });
}

/// A server restarts with older data. In these data, a lock is still held that has been released since. Its old entry
/// blocks nobody.
#[test]
fn f07_restarted_with_older_data() {
    rerun_if_starved(|| {
        let (redis, site) = site(Redis::options().forgetful());
        let site = quarantined(&site, "1s");
        let (one, other) = (site.process("one"), site.process("other"));
        let old = one.acquire("x");
        redis.ask(&["SAVE"]);
        one.release("x");
        redis.node(0).restart();
        redis.wait_ready();
        let restarted = Instant::now();
        let new = other.acquire_within("x", LONG).expect("nobody holds it");
        println!("F-7 redis: granted {:?} after a restart with older data", restarted.elapsed());
        must_hold!(new.token > old.token);
        // The client `one` can use the lock again: either its session is in the older data too, or it has opened a
        // new session.
        let waiting = one.wait_for("x");
        other.release("x");
        must_hold!(one.granted(waiting, LONG).token > new.token);
    });
}

/// F-61: the log is synced for each write, but its directory is lost. The old holder is cut off, and relies on its
/// lease.
#[test]
fn f61_the_data_are_gone_although_the_log_is_synced() {
    rerun_if_starved(|| {
        let (redis, site) = site(Redis::options());
        let proxies = site.proxies();
        let holder = site.by(&proxies).with_ttl(Duration::from_secs(4)).process("holder");
        let other = quarantined(&site, "4s").process("other");
        let old = holder.acquire("x");
        holder.observe("x");
        proxies[0].set_both(Mode::Blackhole);
        redis.restart_empty();
        granted_once_lost(&holder, old.token, &other);
    });
}

/// F-61: a server restarts within its process, as `DEBUG RESTART` does it. The processor time of this process is not
/// reset, but its data are gone. The library must not conclude from the processor time that the server has lost
/// nothing.
#[test]
fn f61_a_restart_within_the_same_process() {
    rerun_if_starved(|| {
        let options = Redis::options().forgetful().flag("enable-debug-command", "yes");
        let (redis, site) = site(options);
        let lease = Duration::from_secs(4);
        work(&redis, 0, lease);
        let proxies = site.proxies();
        let holder = site.by(&proxies).with_ttl(lease).process("holder");
        let other = quarantined(&site, "4s").process("other");
        let old = holder.acquire("x");
        holder.observe("x");
        proxies[0].set_both(Mode::Blackhole);
        let run = || {
            let info = redis.try_ask(0, &["INFO", "server"]).ok()?.text()?;
            info.lines().find(|line| line.starts_with("run_id:")).map(str::to_owned)
        };
        let before = run();
        // The server restarts at once, without a reply to this command.
        let _ = redis.try_ask(0, &["DEBUG", "RESTART"]);
        assert!(wait_until(LONG, || run().is_some_and(|run| Some(run) != before)), "no restart");
        granted_once_lost(&holder, old.token, &other);
    });
}

/// F-61: a client that asks for a longer quarantine than others waits until its own quarantine is over, even if the
/// lock becomes free for it earlier.
#[test]
fn f61_a_waiter_that_wants_a_longer_quarantine() {
    rerun_if_starved(|| {
        let (redis, site) = site(Redis::options().flag("appendfsync", "everysec"));
        let site = site.with_ttl(Duration::from_secs(5));
        let proxies = site.proxies();
        let holder = quarantined(&site, "1s").process("holder");
        let waiter = quarantined(&site.by(&proxies), "12s").process("waiter");
        holder.acquire("x");
        waiter.acquire_within("y", LONG).expect("its quarantine ends");
        let waiting = waiter.wait_for("x");
        holder.sees_contenders("x", 2);
        // Waits until everything that was written is on the disk.
        std::thread::sleep(Duration::from_secs(3));
        let record = || redis.ask(&["HGET", CLOCK, "server"]).text();
        let before = record();
        proxies[0].set_both(Mode::Stall);
        redis.node(0).restart();
        let restarted = Instant::now();
        redis.wait_ready();
        assert!(wait_until(LONG, || record() != before), "the holder does not come back");
        // By hand, shortens the quarantine that the record demands, as if all leases had been short. Otherwise this
        // test would take half a minute.
        redis.ask(&["HSET", CLOCK, "needed", "5000000"]);
        proxies[0].set_both(Mode::Pass);
        holder.acquire_within("z", LONG).expect("its quarantine ends");
        std::thread::sleep(Duration::from_secs(7).saturating_sub(restarted.elapsed()));
        holder.release("x");
        waiter.granted(waiting, LONG);
        println!("F-61 redis: granted {:?} after the restart", restarted.elapsed());
        // The waiter's quarantine of twelve seconds began with the server's start, a little before `restarted`.
        assert!(restarted.elapsed() > Duration::from_secs(11), "{:?}", restarted.elapsed());
    });
}

/// F-61: after the restart, the server does not know how long the longest lease was. Its quarantine is long enough
/// for a lease of thirty seconds.
#[test]
fn f61_a_longer_lease_of_another_is_waited_for() {
    rerun_if_starved(|| {
        let (redis, site) = site(Redis::options().forgetful());
        let proxies = site.proxies();
        let holder = site.by(&proxies).with_ttl(Duration::from_secs(30)).process("holder");
        holder.acquire("x");
        holder.observe("x");
        proxies[0].set_both(Mode::Blackhole);
        redis.restart_empty();
        let other = quarantined(&site, "").process("other");
        let refused = other.acquire_within("x", Duration::from_secs(14));
        let refused = refused.expect_err("somebody may hold it");
        println!("F-61 redis: {refused}");
        holder.keeps("x");
    });
}

/// F-61: the time of a quarantine also passes while no client is connected. So the quarantine ends even if a namespace
/// is used only by jobs that cron starts, each of which gives up before the quarantine ends.
#[test]
fn f61_nobody_has_to_stay_until_the_quarantine_is_over() {
    rerun_if_starved(|| {
        let (_redis, site) = site(Redis::options());
        let site = quarantined(&site, "3s");
        let first = site.process("first");
        let within = Duration::from_millis(300);
        let refused = first.acquire_within("x", within).expect_err("the namespace is new");
        assert_eq!(refused["effect"], "None", "{refused}");
        first.kill();
        std::thread::sleep(Duration::from_secs(4));
        let begun = Instant::now();
        site.process("second").acquire("x");
        println!("F-61 redis: granted after {:?}", begun.elapsed());
        assert!(begun.elapsed() < Duration::from_millis(2_500), "{:?}", begun.elapsed());
    });
}

/// F-61: two virtual machines were resumed from one saved state, half a minute one after the other. So the clock since boot of the
/// first one is ahead, and by that clock alone the quarantine would be over for its clients.
#[test]
fn f61_a_machine_that_was_resumed_earlier_waits_for_the_quarantine() {
    rerun_if_starved(|| {
        let (redis, site) = site(Redis::options());
        let site = quarantined(&site, "20s");
        let first = site.process("first");
        let within = Duration::from_millis(300);
        first.acquire_within("x", within).expect_err("the namespace is new");
        first.kill();
        // As the machine that was resumed later has noted it.
        let fields = redis.ask(&["HKEYS", CLOCK]).texts();
        let host = fields.into_iter().find(|field| field.starts_with("host:")).expect("a host");
        let noted = redis.ask(&["HGET", CLOCK, &host]).text().expect("it is there");
        let (by_boot, by_wall) = noted.split_once(' ').expect("it has two clocks");
        let by_boot = by_boot.parse::<i64>().expect("a number") - 30_000_000;
        redis.ask(&["HSET", CLOCK, &host, &format!("{by_boot} {by_wall}")]);
        let refused = site.process("second").acquire_within("x", within);
        refused.expect_err("the quarantine lasts");
    });
}

/// F-7: with the log synced for each write nothing is lost, and there is no quarantine after a restart.
#[test]
fn f07_a_synced_log_needs_no_quarantine() {
    rerun_if_starved(|| {
        let (redis, site) = site(Redis::options());
        let short = quarantined(&site, "2s").process("short");
        let old = short.acquire("x");
        short.release("x");
        redis.node(0).restart();
        redis.wait_ready();
        let restarted = Instant::now();
        let new = quarantined(&site, "2s").process("other").acquire("x");
        println!("F-7 redis: granted {:?} after a restart that kept all", restarted.elapsed());
        must_hold!(new.token > old.token);
        assert!(restarted.elapsed() < Duration::from_millis(1_500));
    });
}
