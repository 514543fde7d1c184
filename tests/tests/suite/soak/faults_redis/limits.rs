//! F-72: the server has all the clients that it takes.

use std::time::Duration;

use coordination_tests::faults::connecting::Traced;
use coordination_tests::harness::redis::Operator;
use coordination_tests::harness::{Redis, Server, judged};

use super::site;
use crate::WORKER;

/// What such a server says.
const FULL: &str = "max number of clients";

/// Who connects is told so in the server's words, and costs it one connection; who has lost his connection comes back.
#[test]
fn f72_the_server_is_full() {
    judged(|| {
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
