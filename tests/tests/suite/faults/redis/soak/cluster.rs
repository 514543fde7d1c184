//! F-60: in a cluster, the keys move to another node, and the only node of the URL leaves.

use std::thread::{self, sleep};
use std::time::Duration;

use coordination_tests::harness::redis::RedisOptions;
use coordination_tests::harness::{Redis, Server, rerun_if_starved, wait_until};
use coordination_tests::must_hold;

use super::{CLOCK, LONG, quarantined, site, work};

fn three() -> RedisOptions {
    Redis::options().nodes(3).cluster(3)
}

/// The slot with the namespace's keys moves away from the only node in the URL, and then further, and is divided
/// between two nodes during each move. Holders keep their locks, nobody else gets them, and waiters are served.
#[test]
fn f60_a_slot_moves() {
    rerun_if_starved(|| {
        let (redis, site) = site(three());
        let first = redis.owner(CLOCK);
        let site = site.at(redis.node(first).address());
        let (holder, other) = (site.process("holder"), site.process("other"));
        let held = holder.acquire("x");
        holder.observe("x");
        let waiting = other.wait_for("x");
        holder.sees_contenders("x", 2);
        // All these moves together take longer than a lease.
        for step in 1..=6 {
            thread::scope(|scope| {
                let moving =
                    scope.spawn(|| redis.move_slot(CLOCK, (first + step) % 3, site.heartbeat * 2));
                sleep(site.heartbeat);
                // A call that is made while the slot moves waits until the move is over, and then succeeds.
                other.acquire_within("y", LONG).expect("it is free");
                moving.join().expect("it moves");
            });
            other.release("y");
            assert!(other.acquire_within("x", site.heartbeat).is_err(), "held twice");
            sleep(site.heartbeat);
            holder.keeps("x");
        }
        redis.move_slot(CLOCK, (first + 1) % 3, site.heartbeat);
        holder.release("x");
        must_hold!(other.granted(waiting, LONG).token > held.token);
        // A new client knows only the node in the URL, and has to learn from it which node has the slot now.
        other.release("x");
        let late = site.process("late");
        assert!(late.acquire_within("x", LONG).is_ok());
    });
}

/// In a cluster a client also gets what other nodes publish. What one of them says that was replaced, and does not know that yet, is
/// not the turn of a waiter: the server of the namespace has another record.
#[test]
fn f60_another_node_gives_no_turn() {
    rerun_if_starved(|| {
        let (redis, site) = site(three());
        let owner = redis.owner(CLOCK);
        let (holder, other) = (site.process("holder"), site.process("other"));
        let held = holder.acquire("x");
        let waiting = other.wait_for("x");
        holder.sees_contenders("x", 2);
        let ask = |node, words: &[&str]| redis.try_ask(node, words).expect("it answers").texts();
        let waits =
            ask(owner, &["ZRANGE", "{coordination}:exclusive:lock/x", "0", "-1", "WITHSCORES"]);
        let [_, first, waiter, second] = &waits[..] else { panic!("two wait: {waits:?}") };
        let session = format!("{{coordination}}:session:{}", &waiter[..16]);
        let channel = ask(owner, &["HGET", &session, "channel"]).concat();
        let channel = format!("{{coordination}}:client:{channel}");
        for record in ["", " 0123456789abcdef0123456789abcdef01234567:1795171200000000"] {
            for turn in ["free", "blocked"] {
                let text = format!("lock/x {first} exclusive {second} {turn}{record}");
                ask((owner + 1) % 3, &["PUBLISH", &channel, &text]);
                sleep(site.heartbeat * 2);
                assert!(other.poll(waiting).is_none(), "held twice after {text:?}");
                holder.keeps("x");
            }
        }
        holder.release("x");
        must_hold!(other.granted(waiting, LONG).token > held.token);
    });
}

/// The only node in the URL has never had the slot, and dies. By then the client knows the other nodes of the
/// cluster.
#[test]
fn f60_the_node_of_the_url_leaves() {
    rerun_if_starved(|| {
        let (redis, site) = site(three());
        let owner = redis.owner(CLOCK);
        let named = (owner + 1) % 3;
        let site = site.at(redis.node(named).address());
        let holder = site.process("holder");
        holder.acquire("x");
        holder.observe("x");
        redis.node(named).kill();
        // The client loses its connections, and has to reconnect although the node in the URL is dead.
        redis.try_ask(owner, &["CLIENT", "KILL", "TYPE", "normal"]).expect("it answers");
        redis.try_ask(owner, &["CLIENT", "KILL", "TYPE", "pubsub"]).expect("it answers");
        sleep(site.lease() * 2);
        holder.keeps("x");
        // The slot moves to a node that the URL does not name.
        redis.move_slot(CLOCK, (owner + 2) % 3, Duration::ZERO);
        sleep(site.lease() * 2);
        holder.keeps("x");
    });
}

/// An operator makes a replica take over from the master, and the lock is kept. From then on, the node in the URL is
/// a replica.
#[test]
fn f60_failover_in_order() {
    rerun_if_starved(|| {
        let (redis, site) = site(Redis::options().nodes(6).cluster(3));
        let master = redis.owner(CLOCK);
        let site = site.at(redis.node(master).address());
        let holder = site.process("holder");
        holder.acquire("x");
        holder.observe("x");
        redis.try_ask(master + 3, &["CLUSTER", "FAILOVER"]).expect("it answers");
        assert!(wait_until(LONG, || redis.owner(CLOCK) == master + 3), "no fail-over");
        sleep(site.lease() * 2);
        holder.keeps("x");
        // A new client connects to the replica first.
        let late = site.process("late");
        assert!(late.acquire_within("x", site.heartbeat).is_err());
    });
}

/// The master, which is the only node in the URL, dies. After its replica has taken over, everything works again
/// without help.
#[test]
fn f60_failover_after_a_death() {
    rerun_if_starved(|| {
        let (redis, site) = site(Redis::options().nodes(6).cluster(3));
        let master = redis.owner(CLOCK);
        let site = site.at(redis.node(master).address());
        let holder = site.process("holder");
        let first = holder.acquire("x");
        redis.node(master).kill();
        let second = holder.acquire_within("y", LONG).expect("the replica serves");
        must_hold!(second.token > first.token);
    });
}

/// The node with the slot dies. An operator gives the slot to another node, which has run for long, but does not have
/// the slot's keys.
#[test]
fn f60_the_slot_of_a_dead_node_goes_to_another() {
    rerun_if_starved(|| {
        let (redis, site) = site(three());
        let owner = redis.owner(CLOCK);
        let [next, last] = [1, 2].map(|step| (owner + step) % 3);
        work(&redis, next, Duration::from_secs(5));
        site.at(redis.node(owner).address()).process("holder").acquire("x");
        redis.node(owner).kill();
        let tell = |node, command: &[&str]| {
            redis.try_ask(node, command).ok().and_then(|reply| reply.text()).expect("it answers")
        };
        let (slot, id) =
            (tell(next, &["CLUSTER", "KEYSLOT", CLOCK]), tell(next, &["CLUSTER", "MYID"]));
        for node in [next, last] {
            tell(node, &["CLUSTER", "DELSLOTS", &slot]);
            tell(node, &["CLUSTER", "SETSLOT", &slot, "NODE", &id]);
        }
        tell(next, &["CLUSTER", "BUMPEPOCH"]);
        let other = quarantined(&site.at(redis.node(next).address()), "5s").process("other");
        let refused = other.acquire_within("x", Duration::from_secs(2));
        println!("F-60 redis: {}", refused.expect_err("somebody may hold it"));
        other.acquire_within("x", LONG).expect("the quarantine ends");
    });
}
