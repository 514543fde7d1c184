//! F-23, F-26, F-27: what an operator, or a full memory, does to a server. F-61: damaged keys.

use std::thread::sleep;
use std::time::{Duration, Instant};

use coordination_tests::faults::Process;
use coordination_tests::harness::redis::Reply;
use coordination_tests::harness::{Redis, rerun_if_starved, rerun_on_threads};
use coordination_tests::must_hold;
use tokio::task::{JoinSet, block_in_place};
use tokio::time::timeout;

use super::{CLOCK, LONG, site};

/// F-23: all places of a queue are removed at once, and nobody is told of that. However long the lease is, a re-check finds it, and then all
/// waiters of the process queue again at once, though most of them have rested.
#[test]
fn f23_a_queue_in_which_many_of_one_process_wait() {
    const CROWD: usize = 40;
    rerun_on_threads(async || {
        let (redis, site) = block_in_place(|| site(Redis::options()));
        let client = site.with_ttl(Duration::from_secs(600)).client("one").await;
        let lock = client.lock("x").expect("a good name");
        let held = lock.acquire(None).await.expect("it is free");
        let mut waiting = JoinSet::new();
        for _ in 0..CROWD {
            let lock = lock.clone();
            waiting.spawn(async move { lock.acquire(None).await?.release().await });
        }
        let seen = timeout(LONG, async {
            while lock.holders().await.expect("it answers").len() <= CROWD {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
        seen.await.expect("they come to wait");
        block_in_place(|| redis.ask(&["DEL", "{coordination}:exclusive:lock/x"]));
        let served = timeout(LONG, async {
            while let Some(one) = waiting.join_next().await {
                one.expect("no panic").expect("it is its turn");
            }
        });
        served.await.expect("they wait for a re-check two by two");
        drop(held);
    });
}

/// F-27: the server drops all cached scripts, and the client sends them again.
#[test]
fn f27_scripts_flushed() {
    rerun_if_starved(|| {
        let (redis, site) = site(Redis::options());
        let (one, other) = (site.process("one"), site.process("other"));
        one.acquire("x");
        one.observe("x");
        for _ in 0..5 {
            redis.ask(&["SCRIPT", "FLUSH"]);
            other.acquire("y");
            other.release("y");
            sleep(site.heartbeat);
        }
        one.keeps("x");
    });
}

/// F-27: connections are killed. The session stays, and a waiter still learns of a release.
#[test]
fn f27_clients_killed() {
    rerun_if_starved(|| {
        let (redis, site) = site(Redis::options());
        let (holder, waiter) = (site.process("holder"), site.process("waiter"));
        let first = holder.acquire("x");
        holder.observe("x");
        let waiting = waiter.wait_for("x");
        holder.sees_contenders("x", 2);
        for _ in 0..5 {
            redis.ask(&["CLIENT", "KILL", "TYPE", "normal"]);
            redis.ask(&["CLIENT", "KILL", "TYPE", "pubsub"]);
            sleep(site.heartbeat);
        }
        holder.keeps("x");
        holder.release("x");
        must_hold!(waiter.granted(waiting, LONG).token > first.token);
    });
}

/// F-27: another program's script keeps the server busy for less than a lease; the server refuses other requests
/// meanwhile.
#[test]
fn f27_busy() {
    rerun_if_starved(|| {
        let (redis, site) = site(Redis::options().flag("busy-reply-threshold", "50"));
        let holder = site.process("holder");
        holder.acquire("x");
        holder.observe("x");
        let busy = std::thread::scope(|scope| {
            let spinning = scope.spawn(|| redis.try_ask(0, &["EVAL", "while true do end", "0"]));
            sleep(Duration::from_millis(700));
            let killed = redis.try_ask(0, &["SCRIPT", "KILL"]);
            assert!(matches!(killed, Ok(Reply::Text(_))), "{killed:?}");
            spinning.join().expect("no panic")
        });
        assert!(matches!(busy, Ok(Reply::Error(_))), "{busy:?}");
        sleep(2 * site.heartbeat);
        holder.keeps("x");
        holder.release("x");
    });
}

/// F-27: the server refuses writes for a while, for lack of a replica: nothing is written, and nothing is lost.
#[test]
fn f27_read_only_for_a_while() {
    rerun_if_starved(|| {
        let (redis, site) = site(Redis::options());
        let holder = site.process("holder");
        holder.acquire("x");
        holder.observe("x");
        redis.ask(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
        sleep(2 * site.heartbeat);
        let refused = holder.acquire_within("y", Duration::from_millis(500));
        let refused = refused.expect_err("there is no replica");
        println!("F-27 redis: {refused}");
        assert!(["Unavailable", "Timeout"].contains(&refused["kind"].as_str().unwrap_or_default()));
        redis.ask(&["CONFIG", "SET", "min-replicas-to-write", "0"]);
        sleep(2 * site.heartbeat);
        holder.keeps("x");
        holder.acquire("y");
    });
}

/// F-26: without `noeviction` the store reports that leases may end early. If a session's key is evicted, the holder
/// learns of its loss with its next heartbeat.
#[test]
fn f26_evicted() {
    rerun_if_starved(|| {
        let (redis, site) = site(
            Redis::options().flag("maxmemory-policy", "allkeys-lru").flag("maxmemory", "100mb"),
        );
        let strict = site.with_option("require=no_early_expiry");
        let refused = coordination_tests::faults::Process::unconnected(&strict);
        let refused = refused.try_connect(&strict, "strict").expect_err("it may evict");
        assert_eq!(refused["kind"], "Unsupported", "{refused}");
        let holder = site.process("holder");
        let old = holder.acquire("x");
        holder.observe("x");
        let keys = redis.ask(&["KEYS", "*:session:*"]).texts();
        redis.ask(&["DEL", &keys[0]]);
        let lost = holder.lost(LONG);
        assert_eq!(lost.reason, "ExpiredByServer");
        must_hold!(site.process("other").acquire("x").token > old.token);
    });
}

/// Somebody changes the namespace's record to useless numbers, or to numbers beyond any clock or lease. Locks stay
/// held, and connected and new clients go on.
#[test]
fn f61_a_record_that_somebody_has_changed() {
    rerun_if_starved(|| {
        let (redis, site) = site(Redis::options());
        let (holder, other) = (site.process("holder"), site.process("other"));
        let mut newest = holder.acquire("x").token;
        let fields = redis.ask(&["HKEYS", CLOCK]).texts();
        let host = fields.into_iter().find(|field| field.starts_with("host:")).expect("a host");
        let changes = [
            ("server", "abc"),
            ("server", "0123abc:x"),
            ("last", "garbage"),
            ("last", ""),
            ("last", "-1"),
            ("last", "9007199254740993"),
            ("offset", "1e400"),
            ("offset", "nan"),
            ("offset", "9007199254740993"),
            ("reach", "nan"),
            ("reach", "-1"),
            ("reach", "99999999999999999999"),
            ("longest", "-"),
            ("longest", "-99999999999999"),
            ("longest", "99999999999999"),
            ("needed", "99999999999999"),
            ("using", "99999999999999"),
            ("began", "9007199254740993"),
            ("since", "9007199254740993"),
            ("term", ""),
            ("epoch", "garbage"),
            ("epoch", "1e400"),
            ("heard", "garbage"),
            ("before", "garbage"),
            (&host, "garbage"),
        ];
        for (number, (field, text)) in changes.into_iter().enumerate() {
            let mut granted = |process: &Process, name: &str| {
                let token = process.acquire_within(name, LONG).expect("it goes on").token;
                must_hold!(token > newest, "{field} {text}: {token} after {newest}");
                must_hold!(
                    token < newest + 3_600_000_000,
                    "{field} {text}: {token} after {newest}"
                );
                newest = token;
            };
            println!("F-61 redis: {field} {text}");
            // This lock is acquired by the fast script, which uses the record's numbers.
            granted(&other, &format!("a{number}"));
            redis.ask(&["HSET", CLOCK, field, text]);
            granted(&other, &format!("b{number}"));
            assert_eq!(other.holders(&format!("b{number}")), ["other"]);
            redis.ask(&["HDEL", CLOCK, field]);
            granted(&site.process(&format!("fresh{number}")), &format!("c{number}"));
            assert!(holder.is_held("x"), "{field} {text}");
        }
    });
}

/// A session's key is replaced by a key of another type. Only that session ends.
#[test]
fn f61_a_session_of_another_type() {
    rerun_if_starved(|| {
        let (redis, site) = site(Redis::options());
        let (holder, waiter) = (site.process("holder"), site.process("waiter"));
        holder.acquire("x");
        holder.observe("x");
        let spoilt = site.process("spoilt");
        let old = spoilt.acquire("y");
        let session =
            site.server().session_of_member("coordination", "spoilt").expect("it is open");
        let key = session.replace("coordination ", "{coordination}:session:");
        redis.ask(&["SET", &key, "somebody else's"]);
        let asked = Instant::now();
        let new = waiter.acquire_within("y", LONG).expect("its session is over");
        println!("F-61 redis: granted after {:?}", asked.elapsed());
        must_hold!(new.token > old.token);
        must_hold!(!spoilt.is_held("y"), "held by two");
        // By now the damaged session's lease is over, so other clients' heartbeats have removed what is left of it.
        sleep(2 * site.lease());
        holder.keeps("x");
        holder.release("x");
        assert_eq!(
            spoilt.acquire_within("x", LONG).map(|_| spoilt.holders("x")),
            Ok(vec!["spoilt".to_owned()])
        );
        assert_eq!(redis.ask(&["GET", &key]).text().as_deref(), Some("somebody else's"));
    });
}

/// A queue's key is replaced by a key of another type. The locks of this queue are lost, and nothing else.
#[test]
fn f61_a_queue_of_another_type_and_its_holder() {
    rerun_if_starved(|| {
        let (redis, site) = site(Redis::options());
        let holder = site.process("holder");
        for lock in ["x", "y"] {
            holder.acquire(lock);
            holder.observe(lock);
        }
        let key = "{coordination}:exclusive:lock/y";
        redis.ask(&["DEL", key]);
        redis.ask(&["SET", key, "somebody else's"]);
        sleep(2 * site.lease());
        assert!(holder.is_held("x"), "the other one is nothing to it");
        must_hold!(!holder.is_held("y"), "nobody knows that it is held");
        redis.ask(&["DEL", key]);
        site.process("other").acquire("y");
        assert!(holder.is_held("x"));
    });
}

/// A queue's key and a member's key are replaced by keys of another type, and then the session that made them ends.
/// No other session is affected.
#[test]
fn f61_a_queue_and_a_member_of_another_type() {
    rerun_if_starved(|| {
        let (redis, site) = site(Redis::options());
        let holder = site.process("holder");
        holder.acquire("x");
        holder.observe("x");
        for key in ["{coordination}:exclusive:lock/y", "{coordination}:member:spoilt"] {
            let spoilt = site.process("spoilt");
            spoilt.acquire("y");
            redis.ask(&["DEL", key]);
            redis.ask(&["LPUSH", key, "somebody else's"]);
            drop(spoilt);
            sleep(2 * site.lease());
            holder.keeps("x");
            assert_eq!(redis.ask(&["ZCARD", "{coordination}:sessions"]), Reply::Number(1));
            redis.ask(&["DEL", key]);
        }
    });
}
