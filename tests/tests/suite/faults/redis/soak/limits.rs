//! F-72: the server has as many clients as it accepts. F-65: one session has more names than one answer can list.

use std::time::Duration;

use coordination::Recipe;
use coordination_tests::faults::connecting::Traced;
use coordination_tests::harness::redis::Operator;
use coordination_tests::harness::{Redis, Server, rerun_if_starved, rerun_on_threads};
use tokio::task::block_in_place;

use super::site;
use crate::WORKER;

/// A part of the server's error message.
const FULL: &str = "max number of clients";

/// A new client gets an error with the server's message, and its attempt makes one connection; a client that has lost
/// its connection reconnects.
#[test]
fn f72_the_server_is_full() {
    rerun_if_starved(|| {
        let (redis, site) = site(Redis::options());
        let site = site.with_ttl(Duration::from_secs(8));
        let holder = site.process("holder");
        holder.acquire("x");
        holder.observe("x");
        let mut operator = Operator::connect(redis.node(0).address()).expect("it listens");
        let mut ask = |words: &[&str]| operator.ask(words).expect("it answers").text();
        ask(&["CONFIG", "SET", "maxclients", "1"]);
        let mut client = Traced::new(WORKER, &[]);
        const TRIES: usize = 20;
        for _ in 0..TRIES {
            client.refused_with(&site.url, &["Unavailable"], FULL);
        }
        let stats = ask(&["INFO", "stats"]).unwrap_or_default();
        let rejected = format!("rejected_connections:{TRIES}\r");
        assert!(stats.contains(&rejected), "{TRIES} tries: {stats}");
        ask(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        let refused = holder.acquire_within("y", Duration::from_secs(1)).expect_err("it is full");
        assert!(refused.to_string().contains(FULL), "{refused}");
        ask(&["CONFIG", "SET", "maxclients", "100"]);
        holder.acquire("y");
        holder.keeps("x");
    });
}

/// The names in use are listed by several calls, even if all of them belong to one session.
#[test]
fn f65_the_names_of_one_session_are_listed_in_pages() {
    rerun_on_threads(async || {
        /// More names than the server stores in its compact encoding.
        const NAMES: usize = 2_000;
        let (redis, site) = block_in_place(|| site(Redis::options()));
        let holder = site.client("holder").await;
        let mut guards = Vec::new();
        for number in 0..NAMES {
            let lock = holder.lock(format!("name-{number:04}")).expect("a good name");
            guards.push(lock.acquire(None).await.expect("it is free"));
        }
        let calls = || {
            let counts = block_in_place(|| redis.request_counts());
            counts.get("evalsha").copied().unwrap_or_default()
        };
        let before = calls();
        let names = holder.in_use(Recipe::Lock).await.expect("it answers");
        let calls = calls() - before;
        println!("F-65 redis: {calls} calls");
        assert_eq!(names.len(), NAMES);
        // More than one call was needed. The number may include a few heartbeats.
        assert!(calls >= NAMES as u64 / 500 + 4, "{calls} calls");
    });
}
