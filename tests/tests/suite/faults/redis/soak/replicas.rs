//! F-25: a server takes over that may not have received the newest grants.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use coordination_tests::faults::connecting::Traced;
use coordination_tests::faults::{Process, Site};
use coordination_tests::harness::redis::Reply;
use coordination_tests::harness::{
    Launch, Mode, Redis, Scratch, Server, ports::free_address, rerun_if_starved, wait_until,
};
use coordination_tests::must_hold;

use super::{CLOCK, LONG, granted_once_lost, quarantined, site, with_url};
use crate::WORKER;

/// The key with the exclusive entries of the lock "x".
pub(super) const QUEUE: &str = "{coordination}:exclusive:lock/x";

/// Makes a node a replica of the server at `of`; `None` makes it a master.
pub(super) fn replicate(redis: &Redis, node: usize, of: Option<SocketAddr>) {
    let port = of.map(|of| of.port().to_string());
    let words = match &port {
        Some(port) => ["REPLICAOF", "127.0.0.1", port],
        None => ["REPLICAOF", "NO", "ONE"],
    };
    redis.try_ask(node, &words).expect("it answers");
}

/// A client refuses to connect to a replica, with an error that gives advice.
#[test]
fn f25_a_replica_is_refused() {
    rerun_if_starved(|| {
        let (redis, site) = site(Redis::options().nodes(2));
        redis.wait_replicated(1);
        let replica = site.at(redis.node(1).address());
        let refused = Process::unconnected(&replica).try_connect(&replica, "x");
        let refused = refused.expect_err("a replica takes no writes");
        assert!(refused["message"].to_string().contains("replica"), "{refused}");
        // If the URL names both servers, the client connects to the master, whichever server it tries first.
        site.at(format!("{},{}", redis.node(1).address(), redis.node(0).address())).process("y");
    });
}

/// The two servers change roles by hand, and the new replica accepts writes. A client that stays connected to it is
/// granted nothing there, because the master would not know of it.
#[test]
fn f25_a_master_becomes_a_replica_that_takes_writes() {
    rerun_if_starved(|| {
        let (redis, site) = site(Redis::options().nodes(2).flag("replica-read-only", "no"));
        redis.wait_replicated(1);
        let [one, two] = [0, 1].map(|node| site.at(redis.node(node).address()));
        let old = one.process("old");
        old.acquire("y");
        old.release("y");
        replicate(&redis, 1, None);
        replicate(&redis, 0, Some(redis.node(1).address()));
        redis.wait_replicated(0);
        let new = two.process("new");
        for name in ["x", "z"] {
            let refused = old.acquire_within(name, Duration::from_secs(3));
            new.acquire(name);
            assert!(refused.is_err(), "held by two: {refused:?}");
        }
    });
}

/// The master dies, and a replica that lags takes over: it does not know the newest grant. That grant's holder learns
/// of its loss with its next heartbeat, and tokens still rise.
#[test]
fn f25_failover_to_a_lagging_replica() {
    rerun_if_starved(|| {
        let (redis, site) = site(Redis::options().nodes(2));
        redis.wait_replicated(1);
        let addresses = [redis.node(0).address(), redis.node(1).address()];
        let site = site.at(format!("{},{}", addresses[0], addresses[1]));
        let (holder, other) = (site.process("holder"), site.process("other"));
        // From here on the replica receives nothing.
        redis.try_ask(1, &["REPLICAOF", "127.0.0.1", "1"]).expect("it answers");
        let old = holder.acquire("x");
        holder.observe("x");
        redis.node(0).kill();
        redis.try_ask(1, &["REPLICAOF", "NO", "ONE"]).expect("it answers");
        let promoted = Instant::now();
        // The new master has no entry of the holder, but it may have the holder's session. So the reason of the loss
        // is not asserted.
        let lost = holder.lost(LONG);
        println!("F-25 redis: told {:?} after the fail-over: {}", promoted.elapsed(), lost.reason);
        let new = other.acquire_within("x", LONG).expect("the replica serves");
        must_hold!(new.token > old.token, "{} after {}", new.token, old.token);
    });
}

/// The server that takes over has not received the last release, so the released entry is still there, and its session
/// lives. That server has run all the time: only its change of role shows that writes may be missing.
#[test]
fn f25_a_forgotten_release() {
    rerun_if_starved(|| {
        let (redis, site) = site(Redis::options().nodes(2));
        redis.wait_replicated(1);
        let [one, two] = [0, 1].map(|node| redis.node(node).address());
        let site = site.at(format!("{one},{two}")).with_ttl(Duration::from_secs(8));
        let (holder, other) = (site.process("holder"), site.process("other"));
        let old = holder.acquire("x");
        holder.acquire("y");
        holder.observe("y");
        let entries = |node| redis.try_ask(node, &["ZCARD", QUEUE]).ok();
        let both = || [0, 1].map(entries) == [const { Some(Reply::Number(1)) }; 2];
        assert!(wait_until(LONG, both), "the replica does not hear of it");
        // From here on the replica receives nothing.
        replicate(&redis, 1, Some(free_address()));
        holder.release("x");
        redis.node(0).kill();
        assert_eq!(entries(1), Some(Reply::Number(1)), "it has heard of the release");
        replicate(&redis, 1, None);
        let promoted = Instant::now();
        let new = other.acquire_within("x", LONG).expect("nobody has it");
        println!("F-25 redis: granted {:?} after the fail-over", promoted.elapsed());
        must_hold!(new.token > old.token, "{} after {}", new.token, old.token);
        // The session still lives: the entry was not removed because its session ended.
        holder.keeps("y");
    });
}

/// The replica takes over, and later the old master takes over again. The old master's process has run all the time,
/// and the record names that run, but its data now come from the other server, which has not received the newest
/// grant. The holder is cut off.
#[test]
fn f25_failed_over_and_back_within_one_run() {
    rerun_if_starved(|| {
        let (redis, site) = site(Redis::options().nodes(2));
        redis.wait_replicated(1);
        let addresses = [redis.node(0).address(), redis.node(1).address()];
        let tell = |node, to| replicate(&redis, node, to);
        let proxy = redis.proxy_to(0);
        let holder = site.at(proxy.address()).with_ttl(Duration::from_secs(8)).process("holder");
        // Waits until the quarantine of the namespace has ended.
        let other = quarantined(&site.at(addresses[0]), "8s").process("other");
        other.acquire_within("y", LONG).expect("the quarantine ends");
        other.release("y");
        // From here on the replica receives nothing.
        tell(1, Some(free_address()));
        let old = holder.acquire("x");
        holder.observe("x");
        proxy.set_both(Mode::Blackhole);
        tell(1, None);
        tell(0, Some(addresses[1]));
        redis.wait_replicated(0);
        tell(0, None);
        granted_once_lost(&holder, old.token, &other);
    });
}

/// A replica with a log of its own is restarted as a master. It does not know the newest grant, and nothing shows that
/// it was a replica.
#[test]
fn f25_a_replica_is_restarted_as_the_master() {
    rerun_if_starved(|| {
        let ((first, one), (second, two)) = (site(Redis::options()), site(Redis::options()));
        let proxies = one.proxies();
        let holder = one.by(&proxies).with_ttl(Duration::from_secs(8)).process("holder");
        replicate(&second, 0, Some(first.node(0).address()));
        // While `other` waits for the end of the quarantine, the replica still receives the holder's heartbeats.
        let other = quarantined(&one, "8s").process("other");
        other.acquire_within("y", LONG).expect("the quarantine ends");
        // From here on the replica receives nothing.
        replicate(&second, 0, Some(free_address()));
        let old = holder.acquire("x");
        holder.observe("x");
        proxies[0].set_both(Mode::Blackhole);
        first.node(0).kill();
        second.node(0).restart();
        second.wait_ready();
        granted_once_lost(&holder, old.token, &quarantined(&two, "8s").process("fresh"));
    });
}

/// The master dies, another one takes over and grants the lock, and dies as well. The old master restarts with its own
/// log, which it considers complete. A client that was connected to the second master has seen newer data than this log
/// contains, and notices that they are missing.
#[test]
fn f25_the_old_master_comes_back_with_its_own_log() {
    rerun_if_starved(|| {
        let (redis, site) = site(Redis::options().nodes(2));
        redis.wait_replicated(1);
        let addresses = [redis.node(0).address(), redis.node(1).address()];
        let proxy = redis.proxy_to(1);
        let holder = site.at(format!("{},{}", addresses[0], proxy.address()));
        let holder = holder.with_ttl(Duration::from_secs(8)).process("holder");
        let other = quarantined(&site.at(format!("{},{}", addresses[0], addresses[1])), "8s");
        let other = other.process("other");
        other.acquire_within("y", LONG).expect("the quarantine ends");
        other.release("y");
        redis.node(0).kill();
        redis.try_ask(1, &["REPLICAOF", "NO", "ONE"]).expect("it answers");
        other.acquire_within("y", LONG).expect("the quarantine ends");
        let old = holder.acquire_within("x", LONG).expect("it serves");
        holder.observe("x");
        proxy.set_both(Mode::Blackhole);
        redis.node(1).kill();
        redis.node(0).restart();
        assert!(wait_until(LONG, || redis.try_ask(0, &["PING"]).is_ok()), "it does not answer");
        granted_once_lost(&holder, old.token, &other);
    });
}

/// A server gets another replication id when it gets its first replica. Nothing is lost by this change, and nobody has
/// to wait for a quarantine, whether the log is synced for each write or not.
#[test]
fn f25_a_first_replica_stops_nobody() {
    rerun_if_starved(|| {
        for sync in ["always", "everysec"] {
            let (redis, site) = site(Redis::options());
            redis.ask(&["CONFIG", "SET", "appendfsync", sync]);
            let (second, _) = self::site(Redis::options());
            let workers = ["one", "other"].map(|name| quarantined(&site, "3s").process(name));
            workers.iter().zip(["x", "y"]).for_each(|(worker, name)| {
                worker.acquire_within(name, LONG).expect("the quarantine ends");
            });
            let ask = |field| redis.ask(&["HGET", CLOCK, field]).text();
            let reach = || ask("reach").and_then(|reach| reach.parse::<u64>().ok());
            let (term, before) = (ask("term"), reach());
            let port = redis.node(0).address().port().to_string();
            second.ask(&["REPLICAOF", "127.0.0.1", &port]);
            second.wait_replicated(0);
            quarantined(&site, "3s").process("newcomer").acquire("z");
            assert_ne!(term, ask("term"));
            std::thread::sleep(3 * site.heartbeat);
            workers.iter().zip(["x", "y"]).for_each(|(worker, name)| {
                assert!(worker.is_held(name), "{sync}");
                worker.acquire_within(&format!("{name}-2"), LONG).expect("it is free");
            });
            assert!(reach() >= before, "{sync}: it was forgotten what nobody has forgotten");
        }
    });
}

/// The Sentinel appoints another master, and clients connect to it.
#[test]
fn f25_sentinels() {
    rerun_if_starved(|| {
        let (redis, _) = site(Redis::options().nodes(2));
        redis.wait_replicated(1);
        let scratch = Scratch::new("sentinel");
        let sentinel = free_address();
        let _sentinel = start_sentinel(&scratch, sentinel, redis.node(0).address());
        let ask = |words: &[&str]| coordination_tests::harness::redis::ask(sentinel, None, words);
        // Waits until the Sentinel knows the replica.
        let knows = || {
            ask(&["SENTINEL", "REPLICAS", "mymaster"]).is_ok_and(|found| {
                found.texts().iter().any(|text| *text == redis.node(1).address().port().to_string())
            })
        };
        assert!(wait_until(LONG, knows), "the Sentinel sees no replica");
        let url = format!("redis://{sentinel}/?sentinel=mymaster&quarantine=off");
        let by = with_url(Site::on(redis.clone(), WORKER), url);
        let holder = by.process("holder");
        let first = holder.acquire("x");
        holder.release("x");
        // The command is repeated until the Sentinel considers the replica fit to take over.
        let begins = || {
            let begun = ask(&["SENTINEL", "FAILOVER", "mymaster"]);
            begun.is_ok_and(|reply| reply == Reply::Text("OK".to_owned()))
        };
        assert!(wait_until(LONG, begins), "the Sentinel does not begin");
        let moved = Instant::now();
        let is_master = || {
            let info = redis.try_ask(1, &["INFO", "replication"]).ok().and_then(|info| info.text());
            info.is_some_and(|info| info.contains("role:master"))
        };
        assert!(wait_until(LONG, is_master), "no fail-over");
        let second = holder.acquire_within("x", LONG).expect("the new master serves");
        println!("F-25 redis: granted {:?} after the Sentinel was asked", moved.elapsed());
        must_hold!(second.token > first.token);
        let unknown = with_url(by, format!("redis://{sentinel}/?sentinel=nobody"));
        let refused =
            Process::unconnected(&unknown).try_connect(&unknown, "x").expect_err("unknown");
        assert_eq!(refused["kind"], "Config", "{refused}");
    });
}

/// For a moment the Sentinel does not know the master, because an operator removes it and adds it again, and in this moment the
/// connections to the master end. Whoever waits goes on waiting.
#[test]
fn f25_the_master_is_unknown_for_a_moment() {
    rerun_if_starved(|| {
        let (redis, site) = site(Redis::options());
        let scratch = Scratch::new("sentinel");
        let sentinel = free_address();
        let _sentinel = start_sentinel(&scratch, sentinel, redis.node(0).address());
        let ask = |words: &[&str]| coordination_tests::harness::redis::ask(sentinel, None, words);
        assert!(wait_until(LONG, || ask(&["PING"]).is_ok()), "the Sentinel does not answer");
        let url = format!("redis://{sentinel}/?sentinel=mymaster&quarantine=off");
        let by = with_url(site.clone(), url);
        let (holder, waiter) = (site.process("holder"), by.process("waiter"));
        holder.acquire("x");
        let waiting = waiter.wait_for("x");
        holder.sees_contenders("x", 2);
        ask(&["SENTINEL", "REMOVE", "mymaster"]).expect("it answers");
        for kind in ["normal", "pubsub"] {
            redis.ask(&["CLIENT", "KILL", "TYPE", kind]);
        }
        holder.release("x");
        std::thread::sleep(Duration::from_secs(2));
        let port = redis.node(0).address().port().to_string();
        ask(&["SENTINEL", "MONITOR", "mymaster", "127.0.0.1", &port, "1"]).expect("it answers");
        waiter.granted(waiting, LONG);
    });
}

/// A Sentinel that the URL names twice, or by two names, has one vote in the majority.
#[test]
fn f59_a_sentinel_with_two_names() {
    rerun_if_starved(|| {
        let (redis, _) = site(Redis::options());
        let scratch = Scratch::new("sentinel");
        let (sentinel, nobody) = (free_address(), free_address());
        let _sentinel = start_sentinel(&scratch, sentinel, redis.node(0).address());
        let knows = || coordination_tests::harness::redis::ask(sentinel, None, &["PING"]).is_ok();
        assert!(wait_until(LONG, knows), "the Sentinel does not answer");
        let mut client = Traced::new(WORKER, &[]);
        let url = |hosts: &str| format!("redis://{hosts}/?sentinel=mymaster&quarantine=off");
        let by_name = format!("localhost:{}", sentinel.port());
        client.connects(&url(&sentinel.to_string()));
        // The same Sentinel twice counts as one, and one of one is a majority.
        client.connects(&url(&format!("{sentinel},{sentinel}")));
        client.connects(&url(&format!("{sentinel},{by_name}")));
        for other in [sentinel.to_string(), by_name] {
            let url = url(&format!("{sentinel},{other},{nobody}"));
            client.refused_with(&url, &["Unavailable"], "more than half of the Sentinels");
        }
    });
}

fn start_sentinel(scratch: &Scratch, at: SocketAddr, master: SocketAddr) -> impl Drop {
    let file = scratch.join("sentinel.conf");
    let text = format!(
        "port {}\nbind 127.0.0.1\ndir {}\nsentinel monitor mymaster {} {} 1\n\
         sentinel down-after-milliseconds mymaster 1000\nsentinel failover-timeout mymaster 5000\n",
        at.port(),
        scratch.path().display(),
        master.ip(),
        master.port()
    );
    std::fs::write(&file, text).expect("the scratch directory is writable");
    let log = scratch.join("sentinel.log");
    Launch::new("redis-server", &log)
        .clear_env()
        .args([file.as_os_str(), "--sentinel".as_ref()])
        .start()
}

/// A cluster's node that has all slots, and one that has none and redirects clients.
#[test]
fn f27_moved() {
    rerun_if_starved(|| {
        // Each node's cluster bus gets a free port. By default it is the client port plus 10,000, which another process
        // may use.
        let buses = [free_address().port().to_string(), free_address().port().to_string()];
        let options =
            |bus: &str| Redis::options().flag("cluster-enabled", "yes").flag("cluster-port", bus);
        let (first, first_site) = site(options(&buses[0]));
        let (second, second_site) = site(options(&buses[1]));
        first.ask(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
        let address = first.node(0).address();
        second.ask(&["CLUSTER", "MEET", "127.0.0.1", &address.port().to_string(), &buses[0]]);
        let knows = || {
            second
                .try_ask(0, &["CLUSTER", "INFO"])
                .is_ok_and(|info| info.text().is_some_and(|info| info.contains("cluster_state:ok")))
        };
        assert!(wait_until(LONG, knows), "the cluster is not up");
        let (one, other) = (first_site.process("one"), second_site.process("other"));
        let held = one.acquire("x");
        let waiting = other.wait_for("x");
        one.sees_contenders("x", 2);
        one.release("x");
        must_hold!(other.granted(waiting, Duration::from_secs(5)).token > held.token);
    });
}
