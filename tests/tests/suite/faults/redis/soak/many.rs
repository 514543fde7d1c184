//! F-65: many sessions, names and watches. Also: large answers, and connections that fall silent.

use std::time::{Duration, Instant};

use coordination::{Coordinator, Error, ErrorKind, State};
use coordination_tests::harness::{
    Direction, Mode, Protocol, Proxy, Redis, Server, Unit, eventually_async, rerun_on_threads,
};
use tokio::task::{JoinHandle, JoinSet, block_in_place};
use tokio::time::timeout;

use super::{CLOCK, LONG, site};

/// A script that creates sessions, each with an entry in one queue. The sessions have ended, or live for a given number
/// of microseconds more.
const PLANT: &str = "
local base, queue, mode = '{coordination}:', ARGV[1], ARGV[2]
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local digits = function(number) return string.format('%.0f', number) end
local expires, text = digits(now + ARGV[4]), string.rep('x', tonumber(ARGV[5]))
for n = tonumber(ARGV[6]), tonumber(ARGV[3]) do
  local session = string.format('%016x', n)
  local id = session .. '-' .. n
  redis.call('HSET', base .. 'session:' .. session, 'member', 'm' .. n, 'channel', 'c', 'lease', '1000000',
    'expires', expires, 'generation', '1', 'entry:' .. queue .. '/' .. id,
    '{\"member\":\"m\",\"since_ms\":1,\"data\":\"' .. text .. '\"}')
  redis.call('ZADD', base .. 'sessions', expires, session)
  redis.call('SET', base .. 'member:m' .. n, session)
  redis.call('ZADD', base .. mode .. ':' .. queue, digits(now - 1000000 + n), id)
end
return 'OK'";

fn plant(redis: &Redis, queue: &str, count: usize, lives: Duration, text: usize) {
    // Split into several calls, because the server does nothing else during a call.
    const PART: usize = 1_000;
    for first in (1..=count).step_by(PART) {
        let last = count.min(first + PART - 1);
        let numbers = [last, lives.as_micros() as usize, text, first].map(|n| n.to_string());
        let [last, lives, text, first] = &numbers;
        redis.ask(&["EVAL", PLANT, "0", queue, "exclusive", last, lives, text, first]);
    }
}

/// Connects with a lease so long that a busy machine does not lose the session.
async fn connected(url: &str) -> Coordinator {
    let builder = Coordinator::builder().ttl(Duration::from_secs(20));
    builder.connect(url).await.expect("the server is there")
}

/// How many connections clients have made: each begins with a `HELLO`.
fn greetings(redis: &Redis) -> u64 {
    block_in_place(|| redis.request_counts()).get("hello").copied().unwrap_or_default()
}

/// Twenty thousand sessions end at once, all of which waited for one lock. The next contender does not remove all of
/// them in one call, so no call makes the server slow.
#[test]
fn f65_all_who_waited_are_dead() {
    const DEAD: usize = 20_000;
    rerun_on_threads(async || {
        let (redis, site) = block_in_place(|| {
            let options = Redis::options().flag("slowlog-log-slower-than", "400000");
            let (redis, site) = site(options.forgetful());
            plant(&redis, "lock/x", DEAD, Duration::ZERO, 10);
            redis.ask(&["SLOWLOG", "RESET"]);
            (redis, site)
        });
        let begun = Instant::now();
        let client = connected(&site.url).await;
        println!("F-65 redis: connected after {:?}", begun.elapsed());
        let lock = client.lock("x").expect("a good name");
        let guard = lock.acquire(Some(LONG)).await.expect("all others are dead");
        println!("F-65 redis: granted {:?} after the start", begun.elapsed());
        assert!(guard.is_held());
        assert_eq!(lock.holders().await.expect("it answers").len(), 1);
        let slow = block_in_place(|| redis.ask(&["SLOWLOG", "GET", "3"])).texts();
        assert!(slow.is_empty(), "{:?}", slow.iter().take(3).collect::<Vec<_>>());
    });
}

/// If another program has a key where the library's key should be, the error names the key.
#[test]
fn a_key_of_another_type_is_told() {
    rerun_on_threads(async || {
        let (redis, site) = block_in_place(|| site(Redis::options()));
        let client = connected(&site.url).await;
        let corrupt = |outcome: Result<(), Error>| {
            let error = outcome.expect_err("it is no key of ours");
            println!("redis: {error}");
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
            assert!(error.to_string().contains("{coordination}:"), "{error}");
        };
        block_in_place(|| redis.ask(&["SET", "{coordination}:exclusive:lock/x", "other"]));
        let lock = client.lock("x").expect("a good name");
        corrupt(lock.acquire(Some(LONG)).await.map(drop));
        corrupt(lock.holders().await.map(drop));
        block_in_place(|| redis.ask(&["DEL", "{coordination}:exclusive:lock/x"]));
        lock.acquire(Some(LONG)).await.expect("it is free").release().await.expect("ours");
        client.stop().await.expect("the server confirms");
        block_in_place(|| {
            redis.ask(&["FLUSHALL"]);
            redis.ask(&["SET", CLOCK, "other"]);
        });
        corrupt(Coordinator::builder().connect(&site.url).await.map(drop));
    });
}

/// Some answers to calls are larger than the output buffer that the server allows to subscribers. The server must not
/// close a connection because of them.
#[test]
fn an_answer_larger_than_a_subscribers_limit() {
    const HOLDERS: usize = 3_000;
    rerun_on_threads(async || {
        let (redis, site) = block_in_place(|| {
            let options = Redis::options();
            let options = options.flag("client-output-buffer-limit", "pubsub 1mb 512kb 1");
            let (redis, site) = site(options);
            plant(&redis, "lock/x", HOLDERS, Duration::from_secs(600), 2_000);
            (redis, site)
        });
        let client = connected(&site.url).await;
        let state = client.state();
        let guard = client.lock("y").expect("a good name").acquire(None).await.expect("free");
        let lock = client.lock("x").expect("a good name");
        for _ in 0..3 {
            let holders = timeout(LONG, lock.holders()).await.expect("it ends");
            assert_eq!(holders.expect("it answers").len(), HOLDERS);
        }
        assert!(guard.is_held() && state.current() == State::Connected);
        // The client has made only two connections: one for calls, and one for listings.
        assert_eq!(greetings(&redis), 2, "a connection was given up");
    });
}

/// The connection for listings delivers nothing any more. Heartbeats use another connection, so they do not notice the
/// silence. The next listing uses a new connection.
#[test]
fn a_silent_connection_for_listings() {
    rerun_on_threads(async || {
        let (redis, site) = block_in_place(|| site(Redis::options()));
        let proxy = block_in_place(|| Proxy::start(redis.node(0).address()));
        let client = connected(&redis.url(&proxy.address().to_string(), "coordination")).await;
        let lock = client.lock("x").expect("a good name");
        assert_eq!(lock.holders().await.expect("it answers"), []);
        block_in_place(|| proxy.hold_one(2));
        let other = client.lock("y").expect("a good name");
        let working: JoinHandle<Result<(), Error>> = tokio::spawn(async move {
            loop {
                other.acquire(Some(LONG)).await?.release().await?;
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        });
        timeout(LONG, lock.holders()).await.expect("it ends").expect_err("nothing answers");
        let found = timeout(LONG, async { while lock.holders().await.is_err() {} });
        found.await.expect("it answers");
        assert_eq!(client.state().current(), State::Connected);
        assert!(!working.is_finished());
        working.abort();
        // There have been three connections: one for calls, the silent one for listings, and a new one for listings.
        assert_eq!(proxy.connections(), 3);
        drop(site);
    });
}

/// The connection for calls delivers nothing any more, while listings are still answered. The client makes a new
/// connection for calls before the lease ends.
#[test]
fn a_silent_connection_beside_that_for_listings() {
    rerun_on_threads(async || {
        let (redis, site) = block_in_place(|| site(Redis::options()));
        let proxy = block_in_place(|| Proxy::start(redis.node(0).address()));
        let client = connected(&redis.url(&proxy.address().to_string(), "coordination")).await;
        let lock = client.lock("x").expect("a good name");
        let guard = lock.acquire(Some(LONG)).await.expect("it is free");
        assert_eq!(lock.holders().await.expect("it answers").len(), 1);
        block_in_place(|| proxy.hold_one(1));
        let found = timeout(LONG, async {
            while proxy.connections() == 2 {
                lock.holders().await.expect("it answers");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
        found.await.expect("another one is made");
        eventually_async(LONG, async || client.state().current() == State::Connected).await;
        assert!(guard.is_held());
        drop(site);
    });
}

/// The connection on which the client waits for replicas delivers nothing any more, while the other connections still
/// deliver. The client makes a new connection for these waits before the lease ends.
#[test]
fn a_silent_connection_on_which_replicas_are_waited_for() {
    rerun_on_threads(async || {
        let options = Redis::options().nodes(2).flag("min-replicas-to-write", "1");
        let (redis, site) = block_in_place(|| site(options.flag("min-replicas-max-lag", "3600")));
        block_in_place(|| redis.wait_replicated(1));
        let proxy = block_in_place(|| Proxy::start(redis.node(0).address()));
        let client = connected(&redis.url(&proxy.address().to_string(), "coordination")).await;
        let lock = client.lock("x").expect("a good name");
        let guard = lock.acquire(Some(LONG)).await.expect("it is free");
        assert_eq!(proxy.connections(), 2);
        let value = client.value::<u32>("v").expect("a good name");
        value.set(&0).await.expect("it answers");
        assert_eq!(lock.holders().await.expect("it answers").len(), 1);
        let before = proxy.connections();
        block_in_place(|| proxy.hold_one(2));
        let found = timeout(LONG, async {
            while proxy.connections() == before {
                value.set(&1).await.expect("it answers");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
        found.await.expect("another one is made");
        eventually_async(LONG, async || client.state().current() == State::Connected).await;
        assert!(guard.is_held());
        drop(site);
    });
}

/// The connection for listings is idle for long, and is forgotten on its way without a word to either side. The next listing does not
/// wait for it.
#[test]
fn f57_the_connection_for_listings_is_forgotten_while_it_is_idle() {
    rerun_on_threads(async || {
        let (redis, site) = block_in_place(|| site(Redis::options()));
        let proxy = block_in_place(|| Proxy::start(redis.node(0).address()));
        let client = connected(&redis.url(&proxy.address().to_string(), "coordination")).await;
        let lock = client.lock("x").expect("a good name");
        assert!(lock.holders().await.expect("it answers").is_empty());
        assert_eq!(proxy.connections(), 2);
        tokio::time::sleep(Duration::from_secs(61)).await;
        block_in_place(|| proxy.hold_one(2));
        let listed = timeout(Duration::from_secs(2), lock.holders()).await;
        assert!(listed.expect("it does not wait").expect("it answers").is_empty());
        drop(site);
    });
}

/// The connection for listings was idle for long, and the server takes no further connection. The next listing is made on the idle one.
#[test]
fn f57_a_server_that_is_full_still_lists() {
    rerun_on_threads(async || {
        let (redis, site) = block_in_place(|| site(Redis::options()));
        let client = connected(&site.url).await;
        let lock = client.lock("x").expect("a good name");
        assert!(lock.holders().await.expect("it answers").is_empty());
        tokio::time::sleep(Duration::from_secs(61)).await;
        block_in_place(|| redis.ask(&["CONFIG", "SET", "maxclients", "2"]));
        let listed = timeout(Duration::from_secs(2), lock.holders()).await;
        assert!(listed.expect("it does not wait").expect("it answers").is_empty());
        drop(site);
    });
}

/// The server closes the connection for listings, as it does with idle connections. The connection for calls stays,
/// and the next listing makes a new connection.
#[test]
fn the_connection_for_listings_is_closed() {
    rerun_on_threads(async || {
        let (redis, site) = block_in_place(|| site(Redis::options()));
        let proxy = block_in_place(|| Proxy::start(redis.node(0).address()));
        let client = connected(&redis.url(&proxy.address().to_string(), "coordination")).await;
        let lock = client.lock("x").expect("a good name");
        for closed in 1..=3 {
            let listed = timeout(LONG, async { while lock.holders().await.is_err() {} });
            listed.await.expect("it answers");
            assert_eq!(proxy.connections(), 1 + closed, "the other one was given up");
            block_in_place(|| {
                let clients = redis.ask(&["CLIENT", "LIST"]).texts().concat();
                let others = clients.lines().filter(|line| !line.contains("cmd=client"));
                let ids = others.filter_map(|line| line.strip_prefix("id=")?.split(' ').next());
                let newest = ids.max_by_key(|id| id.parse::<u64>().ok()).expect("there are two");
                redis.ask(&["CLIENT", "KILL", "ID", newest]);
            });
        }
        drop(site);
    });
}

/// One client holds many names, and the server is far away: one heartbeat has no time to ask after all of them. Nothing is lost, and
/// a removal is told after some heartbeats.
#[test]
fn f65_many_names_are_held_at_a_server_that_is_far_away() {
    const TTL: Duration = Duration::from_secs(3);
    rerun_on_threads(async || {
        let (redis, site) = block_in_place(|| site(Redis::options()));
        let proxy = block_in_place(|| Proxy::start(redis.node(0).address()));
        let url = redis.url(&proxy.address().to_string(), "coordination");
        let client = Coordinator::builder().ttl(TTL).connect(&url).await.expect("it is there");
        let names: Vec<_> = (0..2_500).map(|name| format!("x-{name}")).collect();
        let locks = client.locks(&names).expect("good names");
        let held = locks.acquire(Some(LONG)).await.expect("all are free");
        // A sixth of the lease is half a second. Five requests one after the other take longer.
        proxy.set(Direction::ToClient, Mode::Delay(Duration::from_millis(150)));
        let end = Instant::now() + 3 * TTL;
        while Instant::now() < end {
            assert!(held.is_held(), "lost, though the server answers");
            assert_eq!(client.state().current(), State::Connected);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let other = connected(&site.url).await;
        let broken = other.lock(&names[1_234]).expect("a good name");
        broken.break_lock().await.expect("it answers");
        timeout(LONG, held.lost()).await.expect("it is told");
        drop(site);
    });
}

/// With each heartbeat, the answer about the first names comes at once, and that about the others too late. The first one has extended
/// the lease, so the heartbeat counts.
#[test]
fn f65_the_others_of_many_names_are_answered_too_late() {
    const TTL: Duration = Duration::from_secs(3);
    rerun_on_threads(async || {
        let (redis, site) = block_in_place(|| site(Redis::options()));
        let proxy = block_in_place(|| Proxy::speaking(Protocol::Resp, redis.node(0).address()));
        let url = redis.url(&proxy.address().to_string(), "coordination");
        let client = Coordinator::builder().ttl(TTL).connect(&url).await.expect("it is there");
        let names: Vec<_> = (0..600).map(|name| format!("x-{name}")).collect();
        let locks = client.locks(&names).expect("good names");
        let held = locks.acquire(Some(LONG)).await.expect("all are free");
        for _ in 0..5 {
            block_in_place(|| proxy.stall_after(Direction::ToClient, Unit::Messages, 1));
            eventually_async(LONG, async || !proxy.is_cut_pending()).await;
            // A heartbeat may take a sixth of the lease.
            let end = Instant::now() + TTL / 5;
            while Instant::now() < end {
                assert!(held.is_held(), "lost, though the lease was extended");
                assert_eq!(client.state().current(), State::Connected);
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            proxy.heal();
        }
        drop(site);
    });
}

/// More than five thousand watches start at once: each reports the present value and the next one, on one connection.
#[test]
fn f65_a_storm_of_watches() {
    const WATCHES: usize = 6_000;
    rerun_on_threads(async || {
        let (redis, site) = block_in_place(|| site(Redis::options()));
        let builder = site.builder("one").ttl(Duration::from_secs(6));
        let client = builder.connect(&site.url).await.expect("the server is there");
        let begun = Instant::now();
        let mut watching = JoinSet::new();
        for n in 0..WATCHES {
            let mut watch = client.value::<u32>(format!("v-{n}")).expect("a good name").watch();
            watching.spawn(async move {
                watch.next().await.expect("the server answers");
                watch
            });
        }
        let watches = timeout(3 * LONG, watching.join_all()).await.expect("all are told");
        println!("F-65 redis: {WATCHES} watches began within {:?}", begun.elapsed());
        let channels = || match block_in_place(|| redis.ask(&["PUBSUB", "CHANNELS"])) {
            coordination_tests::harness::redis::Reply::List(channels) => channels.len(),
            other => panic!("{other:?}"),
        };
        let all = timeout(3 * LONG, async {
            while channels() <= WATCHES {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        });
        assert!(all.await.is_ok(), "{} channels after {:?}", channels(), begun.elapsed());
        println!("F-65 redis: all are listened to after {:?}", begun.elapsed());
        drop(watches);
        assert_eq!(greetings(&redis), 2, "a connection was given up");
    });
}

/// During a quarantine, the waiters of a client share the checks whether it is over. So there are fewer checks than
/// waiters.
#[test]
fn l7_waiters_in_quarantine_ask_seldom() {
    const WAITERS: usize = 200;
    rerun_on_threads(async || {
        let (redis, site) = block_in_place(|| site(Redis::options()));
        let client = connected(&site.url.replace("quarantine=off", "quarantine=8s")).await;
        let mut waiters = JoinSet::new();
        for number in 0..WAITERS {
            let lock = client.lock(format!("x-{number}"))?;
            waiters.spawn(async move { lock.acquire(None).await });
        }
        tokio::time::sleep(Duration::from_secs(2)).await;
        let calls = || {
            let counts = block_in_place(|| redis.request_counts());
            ["eval", "evalsha"].map(|name| counts.get(name).copied().unwrap_or_default())
        };
        let before: u64 = calls().iter().sum();
        tokio::time::sleep(Duration::from_secs(4)).await;
        let asked = calls().iter().sum::<u64>() - before;
        assert!(asked < WAITERS as u64, "{asked} calls of {WAITERS} waiters in four seconds");
        let granted: Result<Vec<_>, Error> = waiters.join_all().await.into_iter().collect();
        assert_eq!(granted?.len(), WAITERS);
        client.stop().await
    })
    .expect("all are served");
}
