//! F-25: another server takes over, which may not have heard of the newest grants.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use coordination_tests::faults::{Process, Site};
use coordination_tests::harness::redis::Reply;
use coordination_tests::harness::{
    Launch, Redis, Scratch, Server, judged, ports::free_address, wait_until,
};

use super::{LONG, site, with_url};
use crate::WORKER;

/// A replica is refused at connect, with advice.
#[test]
fn f25_a_replica_is_refused() {
    judged(|| {
        let (redis, site) = site(Redis::options().nodes(2), "");
        redis.wait_replicated(1);
        let replica = site.at(redis.node(1).address());
        let refused = Process::unconnected(&replica).try_connect(&replica, "x");
        let refused = refused.expect_err("a replica takes no writes");
        assert!(refused["message"].to_string().contains("replica"), "{refused}");
        // Whichever of the two is tried first.
        site.at(format!("{},{}", redis.node(1).address(), redis.node(0).address())).process("y");
    });
}

/// The master dies, and a replica that lags takes its place: the newest grant is forgotten, its holder is told
/// with its next heartbeat, and the token still rises.
#[test]
fn f25_failover_to_a_lagging_replica() {
    judged(|| {
        let (redis, site) = site(Redis::options().nodes(2), "");
        redis.wait_replicated(1);
        let addresses = [redis.node(0).address(), redis.node(1).address()];
        let site = site.at(format!("{},{}", addresses[0], addresses[1]));
        let (holder, other) = (site.process("holder"), site.process("other"));
        // It hears no more from here on.
        redis.try_ask(1, &["REPLICAOF", "127.0.0.1", "1"]).expect("it answers");
        let old = holder.acquire("x");
        holder.observe("x");
        redis.node(0).kill();
        redis.try_ask(1, &["REPLICAOF", "NO", "ONE"]).expect("it answers");
        let promoted = Instant::now();
        // Its entry is gone, its session may be there still.
        let lost = holder.lost(LONG);
        println!("F-25 redis: told {:?} after the fail-over: {}", promoted.elapsed(), lost.reason);
        let new = other.acquire_within("x", LONG).expect("the replica serves");
        assert!(new.token > old.token, "{} after {}", new.token, old.token);
    });
}

/// Sentinels move the master: clients follow.
#[test]
fn f25_sentinels() {
    judged(|| {
        let (redis, _) = site(Redis::options().nodes(2), "");
        redis.wait_replicated(1);
        let scratch = Scratch::new("sentinel");
        let sentinel = free_address();
        let _sentinel = start_sentinel(&scratch, sentinel, redis.node(0).address());
        let ask = |words: &[&str]| coordination_tests::harness::redis::ask(sentinel, None, words);
        // It has heard of the replica.
        let knows = || {
            ask(&["SENTINEL", "REPLICAS", "mymaster"]).is_ok_and(|found| {
                found.texts().iter().any(|text| *text == redis.node(1).address().port().to_string())
            })
        };
        assert!(wait_until(LONG, knows), "the Sentinel sees no replica");
        let url = format!("redis://{sentinel}/?sentinel=mymaster");
        let by = with_url(Site::on(redis.clone(), WORKER), url);
        let holder = by.process("holder");
        let first = holder.acquire("x");
        holder.release("x");
        // Not before it trusts the replica.
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
        assert!(second.token > first.token);
        let unknown = with_url(by, format!("redis://{sentinel}/?sentinel=nobody"));
        let refused =
            Process::unconnected(&unknown).try_connect(&unknown, "x").expect_err("unknown");
        assert_eq!(refused["kind"], "Config", "{refused}");
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

/// A cluster's node that has all slots, and one that has none and says where they are.
#[test]
fn f27_moved() {
    judged(|| {
        // Ten thousand above its own, the default, may be somebody else's.
        let buses = [free_address().port().to_string(), free_address().port().to_string()];
        let options =
            |bus: &str| Redis::options().flag("cluster-enabled", "yes").flag("cluster-port", bus);
        let (first, first_site) = site(options(&buses[0]), "");
        let (second, second_site) = site(options(&buses[1]), "");
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
        assert!(other.granted(waiting, Duration::from_secs(5)).token > held.token);
    });
}
