//! F-61, F-68: the server restarts with a log in which acknowledged writes are missing, although its settings say that
//! it is synced.

use std::process::Command;
use std::time::{Duration, Instant};

use coordination_tests::faults::Process;
use coordination_tests::harness::{Mode, Redis, Server, rerun_if_starved, wait_until};
use coordination_tests::must_hold;

use super::{CLOCK, LONG, granted_once_lost, quarantined, site};

/// The log is turned off while the server runs. After a restart the server has only what the log contained until then,
/// and the namespace's record in the log still says that each write is synced. But a client that was connected before
/// knows that the log was off. So nothing is granted before the old holder has lost its lock.
#[test]
fn f61_the_log_is_turned_off_while_the_server_runs() {
    rerun_if_starved(|| {
        let (redis, site) = site(Redis::options());
        let proxies = site.proxies();
        let holder = site.by(&proxies).with_ttl(Duration::from_secs(8)).process("holder");
        let other = quarantined(&site, "8s").process("other");
        turn_off(&redis, &other);
        let old = holder.acquire("x");
        holder.observe("x");
        proxies[0].set_both(Mode::Blackhole);
        redis.node(0).restart();
        redis.wait_ready();
        assert_eq!(is_synced(&redis), Some(true), "the old log is not read");
        granted_once_lost(&holder, old.token, &other);
    });
}

/// The log is turned off while the server runs, and then the server restarts twice. Between the restarts only new
/// clients connect, which cannot know that the log was off. But a client that was connected before still knows that the
/// log was off when it reconnects.
#[test]
fn f61_the_log_is_turned_off_and_the_server_restarted_twice() {
    rerun_if_starved(|| {
        let (redis, site) = site(Redis::options());
        let (cut, slow) = (site.proxies(), site.proxies());
        let holder = site.by(&cut).with_ttl(Duration::from_secs(12)).process("holder");
        let other = quarantined(&site.by(&slow), "12s").process("other");
        turn_off(&redis, &other);
        let old = holder.acquire("x");
        holder.observe("x");
        for proxies in [&cut, &slow] {
            proxies[0].set_both(Mode::Blackhole);
        }
        for name in ["first", "second"] {
            redis.node(0).restart();
            redis.wait_ready();
            site.process(name).kill();
        }
        slow[0].set_both(Mode::Pass);
        granted_once_lost(&holder, old.token, &other);
    });
}

/// Connected clients notice when the log is no longer synced for each write, and when it is synced again.
#[test]
fn f61_a_log_that_is_not_synced_any_more_is_noticed() {
    rerun_if_starved(|| {
        let (redis, site) = site(Redis::options());
        let client = site.process("client");
        assert_eq!(is_synced(&redis), Some(true));
        for (setting, value, is_so) in [
            ("appendfsync", "everysec", false),
            ("appendfsync", "always", true),
            ("no-appendfsync-on-rewrite", "yes", false),
        ] {
            redis.ask(&["CONFIG", "SET", setting, value]);
            let set = Instant::now();
            let is_noticed = wait_until(LONG, || is_synced(&redis) == Some(is_so));
            assert!(is_noticed, "{setting} {value}: nobody has noticed");
            println!("F-61 redis: {setting} {value}: noticed after {:?}", set.elapsed());
        }
        client.acquire("x");
    });
}

/// When the log is turned on, the server first writes a whole new log. If it restarted before the new log is complete,
/// it would read the old log. So the record does not say that the log is synced before the new log is complete.
#[test]
fn f61_a_log_that_is_being_written_is_not_synced_yet() {
    rerun_if_starved(|| {
        let (redis, site) = site(Redis::options().flag("enable-debug-command", "yes"));
        site.process("first").kill();
        redis.ask(&["CONFIG", "SET", "appendonly", "no"]);
        redis.ask(&["DEBUG", "POPULATE", "20000"]);
        // The server waits this many microseconds for each key that it writes to the new log.
        redis.ask(&["CONFIG", "SET", "rdb-key-save-delay", "1000"]);
        redis.ask(&["CONFIG", "SET", "appendonly", "yes"]);
        let client = site.process("second");
        assert_eq!(is_synced(&redis), Some(false));
        redis.ask(&["CONFIG", "SET", "rdb-key-save-delay", "0"]);
        let is_written = wait_until(2 * LONG, || is_synced(&redis) == Some(true));
        assert!(is_written, "nobody has noticed that it is written");
        client.acquire("x");
    });
}

/// F-68: an older log is restored while clients are connected. The holder learns of its loss with its next heartbeat,
/// and tokens go on rising.
#[test]
fn f68_restored_from_an_older_log() {
    rerun_if_starved(|| {
        let (redis, site) = site(Redis::options());
        let (holder, other) = (site.process("holder"), site.process("other"));
        other.acquire("x");
        other.release("x");
        let older = keep_copy(&redis);
        let old = holder.acquire("x");
        holder.observe("x");
        restore(&redis, &older);
        let restored = Instant::now();
        let lost = holder.lost(LONG);
        println!(
            "F-68 redis: told {:?} after it was restored: {}",
            restored.elapsed(),
            lost.reason
        );
        let new = other.acquire_within("x", LONG).expect("nobody holds it");
        must_hold!(new.token > old.token, "{} after {}", new.token, old.token);
    });
}

/// F-68: while the holder is cut off, an older log is restored, in which the namespace's record is the same. Then the
/// server restarts once more, and between the two restarts only new clients connect. A client that was connected before
/// knows that writes are missing.
#[test]
fn f68_restored_from_an_older_log_and_restarted() {
    rerun_if_starved(|| {
        let (redis, site) = site(Redis::options());
        let (cut, slow) = (site.proxies(), site.proxies());
        let holder = site.by(&cut).with_ttl(Duration::from_secs(8)).process("holder");
        let other = quarantined(&site.by(&slow), "8s").process("other");
        other.acquire_within("y", LONG).expect("the quarantine ends");
        let older = keep_copy(&redis);
        let old = holder.acquire("x");
        holder.observe("x");
        other.acquire("z");
        for proxies in [&cut, &slow] {
            proxies[0].set_both(Mode::Blackhole);
        }
        restore(&redis, &older);
        site.process("first").kill();
        redis.node(0).restart();
        redis.wait_ready();
        site.process("second").kill();
        slow[0].set_both(Mode::Pass);
        granted_once_lost(&holder, old.token, &other);
    });
}

/// F-68: an older copy of all keys replaces them while the server runs and clients stay connected. The next contender
/// waits for as long as the old holder may hold its lock, and tokens go on rising.
#[test]
fn f68_keys_are_brought_back_while_the_server_runs() {
    const COPY: &str = "
local from, to = ARGV[1], ARGV[2]
for _, key in ipairs(redis.call('KEYS', to .. '{coordination}:*')) do redis.call('DEL', key) end
for _, key in ipairs(redis.call('KEYS', from .. '{coordination}:*')) do
  redis.call('COPY', key, to .. string.sub(key, #from + 1))
end
return 'OK'";
    rerun_if_starved(|| {
        let (redis, site) = site(Redis::options());
        let holder = site.with_ttl(Duration::from_secs(4)).process("holder");
        let other = quarantined(&site, "4s").process("other");
        other.acquire_within("y", LONG).expect("the quarantine ends");
        redis.ask(&["EVAL", COPY, "0", "", "older:"]);
        std::thread::sleep(Duration::from_secs(2));
        let old = holder.acquire("x");
        holder.observe("x");
        other.acquire("z");
        redis.ask(&["EVAL", COPY, "0", "older:", ""]);
        granted_once_lost(&holder, old.token, &other);
    });
}

/// While a client is away, the log is rewritten and the server restarts properly. Nothing is lost, and nobody has to
/// wait for a quarantine.
#[test]
fn f61_nothing_was_forgotten_while_a_client_was_away() {
    rerun_if_starved(|| {
        let (redis, site) = site(Redis::options().flag("enable-debug-command", "yes"));
        let slow = site.proxies();
        let site = site.with_ttl(Duration::from_secs(20));
        let away = quarantined(&site.by(&slow), "4s").process("away");
        let other = quarantined(&site, "4s").process("other");
        other.acquire_within("y", LONG).expect("the quarantine ends");
        redis.ask(&["DEBUG", "POPULATE", "15000"]);
        redis.ask(&["CONFIG", "SET", "rdb-key-save-delay", "1000"]);
        redis.ask(&["BGREWRITEAOF"]);
        assert!(wait_until(LONG, || is_synced(&redis) == Some(false)), "nobody has noticed");
        away.acquire("z");
        slow[0].set_both(Mode::Blackhole);
        redis.ask(&["CONFIG", "SET", "rdb-key-save-delay", "0"]);
        assert!(wait_until(2 * LONG, || is_synced(&redis) == Some(true)), "nobody has noticed");
        for _ in 0..3 {
            redis.node(0).restart();
            redis.wait_ready();
            other.acquire_within("x", LONG).expect("nothing is forgotten");
            other.release("x");
        }
        slow[0].set_both(Mode::Pass);
        away.acquire_within("w", LONG).expect("nothing is forgotten");
        let why = redis.ask(&["HGET", CLOCK, "why"]).text();
        assert_eq!(why.as_deref(), Some("empty"), "there was quarantine");
    });
}

/// F-68: an older log is restored. Before any client connects, the namespace's record is removed, as the documentation
/// advises. This removal causes a quarantine.
#[test]
fn f68_restored_without_its_record() {
    rerun_if_starved(|| {
        let (redis, site) = site(Redis::options());
        let proxies = site.proxies();
        let holder = site.by(&proxies).with_ttl(Duration::from_secs(4)).process("holder");
        let older = keep_copy(&redis);
        let old = holder.acquire("x");
        holder.observe("x");
        proxies[0].set_both(Mode::Blackhole);
        restore(&redis, &older);
        redis.ask(&["DEL", CLOCK]);
        let other = quarantined(&site, "4s").process("other");
        granted_once_lost(&holder, old.token, &other);
    });
}

/// Turns the log off once the quarantine has ended, and waits until all clients know.
fn turn_off(redis: &Redis, client: &Process) {
    client.acquire_within("y", LONG).expect("the quarantine ends");
    redis.ask(&["CONFIG", "SET", "appendonly", "no"]);
    assert!(wait_until(LONG, || is_synced(redis) == Some(false)), "nobody has noticed");
    // Waits until all clients have checked the server's settings.
    std::thread::sleep(Duration::from_secs(11));
}

/// Whether the namespace's record says that the log is synced.
fn is_synced(redis: &Redis) -> Option<bool> {
    let answer = redis.try_ask(0, &["HGET", CLOCK, "synced"]).ok()?.text()?;
    Some(answer == "1")
}

/// Copies the data of the first node; returns the copy's path.
fn keep_copy(redis: &Redis) -> String {
    let copy = redis.directory().join("copy").display().to_string();
    run(&["cp", "-a", &redis.directory().join("n0").display().to_string(), &copy]);
    copy
}

/// Kills the first node, and starts it again with this copy of the data.
fn restore(redis: &Redis, copy: &str) {
    let directory = redis.directory().join("n0").display().to_string();
    redis.node(0).kill();
    run(&["rm", "-r", &directory]);
    run(&["cp", "-a", copy, &directory]);
    redis.node(0).restart();
    redis.wait_ready();
}

fn run(command: &[&str]) {
    let status = Command::new(command[0]).args(&command[1..]).status();
    assert!(status.is_ok_and(|status| status.success()), "{command:?}");
}
