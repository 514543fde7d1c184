//! How many requests and messages locking costs on Redis.

use std::sync::Arc;
use std::time::{Duration, Instant};

use coordination::Coordinator;
use coordination_tests::harness::redis::Reply;
use coordination_tests::harness::{Redis, Server, rerun_on_threads};
use tokio::task::block_in_place;

use super::{Cost, Counted, SOON, WAITERS, every};

const HEARTBEAT: Duration = Duration::from_secs(1);

/// A server, and a client that has already sent its scripts in full, so that each call is a short request.
async fn counted() -> Counted {
    let counted = Counted::new(|| Arc::new(Redis::one()), every(HEARTBEAT)).await;
    // Uses each script once, because the first use sends it in full.
    let lock = counted.lock("first");
    let guard = lock.acquire(Some(SOON)).await.expect("it is free");
    counted.try_in_vain(&lock).await;
    guard.release().await.expect("the server confirms");
    drop(lock.holders().await.expect("the server answers"));
    tokio::time::sleep(HEARTBEAT * 3 / 2).await;
    counted
}

/// The number of messages that were sent, without the client's checks of the server. Such a check is made every ten
/// seconds, and is two messages: a read of the server's settings, and a `HELLO`.
fn without_looks(cost: &Cost) -> u64 {
    cost.sent - 2 * cost.of("config|get").unsigned_abs()
}

/// Whether the server knew the script of each message, so that no script was sent in full.
fn is_known(cost: &Cost) -> bool {
    i64::try_from(cost.sent) == Ok(cost.of("evalsha") + cost.of("config|get"))
}

#[test]
fn an_uncontended_lock_is_one_request_and_its_release_another() {
    rerun_on_threads(async || {
        let server = counted().await;
        let lock = server.lock("uncontended");
        let rounds = 10;
        let cost = server.uncontended(&lock, rounds).await;
        // One heartbeat may be included, and nothing else.
        let sent = without_looks(&cost);
        assert!((2 * rounds..=2 * rounds + 1).contains(&sent) && is_known(&cost), "{cost}");
    });
}

/// If no client watches a queue, the scripts publish nothing. A lock that is free again leaves no key.
#[test]
fn an_uncontended_lock_is_few_commands() {
    rerun_on_threads(async || {
        let redis = block_in_place(Redis::one);
        let url = redis.url(&redis.authority(), "");
        let client = Coordinator::builder().connect(&url).await.expect("the server is there");
        let lock = client.lock("uncontended").expect("a good name");
        let cycle = async || {
            let guard = lock.acquire(Some(SOON)).await.expect("it is free");
            guard.release().await.expect("the server confirms");
        };
        cycle().await;
        let rounds = 40;
        let before = block_in_place(|| commands(&redis));
        for _ in 0..rounds {
            cycle().await;
        }
        let run = block_in_place(|| commands(&redis)) - before;
        println!("{rounds} uncontended acquires and releases: {run} commands within scripts");
        // Nine commands to enter and five to leave; the commands of one heartbeat may be included.
        assert!((14 * rounds..=14 * rounds + 30).contains(&run), "{run}");
        let guard = lock.acquire(Some(SOON)).await.expect("it is free");
        let keys = || block_in_place(|| redis.ask(&["KEYS", "*lock/uncontended"]).texts());
        assert_eq!(keys(), ["{coordination}:exclusive:lock/uncontended"]);
        assert!(lock.try_acquire().await.expect("the server answers").is_none());
        assert_eq!(keys(), ["{coordination}:exclusive:lock/uncontended"]);
        guard.release().await.expect("the server confirms");
        assert!(keys().is_empty());
    });
}

/// The number of commands that the server has executed, of those that the library's scripts use.
fn commands(redis: &Redis) -> u64 {
    let info = redis.ask(&["INFO", "commandstats"]).text().unwrap_or_default();
    let is_ours = |name: &str| {
        ["h", "z", "get", "set", "del", "exists", "time", "info", "publish", "pexpire"]
            .iter()
            .any(|begin| name.starts_with(begin))
            && name != "hello"
    };
    info.lines()
        .filter_map(|line| line.strip_prefix("cmdstat_")?.split_once(":calls="))
        .filter(|(name, _)| is_ours(name))
        .filter_map(|(_, rest)| rest.split(',').next()?.parse::<u64>().ok())
        .sum()
}

#[test]
fn idle_waiters_cost_nothing_but_heartbeats() {
    rerun_on_threads(async || {
        let server = counted().await;
        // In this time no waiter re-checks, because a re-check comes after three and a half seconds at the earliest.
        let [idle, handing] = server.waited_for(Duration::from_millis(1_500)).await;
        let sent = without_looks(&idle);
        assert!((1..=3).contains(&sent) && is_known(&idle), "a heartbeat each second: {idle}");
        // Each hand-over costs one request, with which the holder leaves. The server then notifies the next waiter,
        // which sends no request.
        assert!(without_looks(&handing) <= WAITERS as u64 + 3, "{handing}");
    });
}

/// How many names are watched, each of them once, and how many of them are watched at the same time.
const NAMES: usize = 512;
const TOGETHER: usize = 64;

/// For each watched name there is a channel at the server. The client gives the channel up some time after the last
/// watch of that name has ended.
#[test]
fn names_that_were_looked_at_once_cost_nothing() {
    rerun_on_threads(async || {
        let redis = block_in_place(Redis::one);
        let url = redis.url(&redis.authority(), "");
        let builder = Coordinator::builder().heartbeat(HEARTBEAT / 4);
        let client = builder.connect(&url).await.expect("the server is there");
        for batch in 0..NAMES / TOGETHER {
            let value = |n| client.value::<u32>(format!("{batch}-{n}")).expect("a good name");
            let mut watches: Vec<_> = (0..TOGETHER).map(|n| value(n).watch()).collect();
            for watch in &mut watches {
                watch.next().await.expect("the server answers");
            }
            // A watch returns the first value before the client has subscribed to the channel, so the test waits for
            // the channels.
            let limit = Instant::now() + 3 * SOON;
            while channels(&redis, &format!("*value/{batch}-*")) < TOGETHER {
                assert!(Instant::now() < limit, "they are looked at by something else");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        // The client keeps a subscription for ten seconds after the last watch of the name.
        let limit = Instant::now() + 3 * SOON;
        while channels(&redis, "*") > 1 {
            assert!(Instant::now() < limit, "{} channels", channels(&redis, "*"));
            tokio::time::sleep(HEARTBEAT / 4).await;
        }
    });
}

/// How many channels match the pattern.
fn channels(redis: &Redis, like: &str) -> usize {
    match block_in_place(|| redis.ask(&["PUBSUB", "CHANNELS", like])) {
        Reply::List(channels) => channels.len(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn c2_calls_in_doubt_are_cleared_away_together() {
    rerun_on_threads(async || counted().await.give_up_in_silences(3).await);
}
