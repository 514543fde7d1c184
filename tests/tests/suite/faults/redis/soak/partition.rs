//! F-59: the master is cut off from its replica and from two of three Sentinels, and a replica takes over.

use std::time::Duration;

use coordination_tests::harness::redis::MASTER;
use coordination_tests::harness::{Proxy, Redis, Server, rerun_if_starved, wait_until};
use coordination_tests::must_hold;

use super::{LONG, site, with_url};

/// How often each test is repeated.
const ROUNDS: usize = 10;
/// Sentinels consider a master down if it has not replied for this long.
const DOWN_AFTER: Duration = Duration::from_secs(1);

/// The longest time until all Sentinels know of a new master and a client has asked them.
const SPREAD: Duration = Duration::from_secs(3);

/// Which servers the holder of the lock reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    /// The old master's side of the partition, with one Sentinel.
    Losing,
    /// Both sides of the partition, with all servers.
    Both,
}

/// With `min-replicas-to-write` there are never two holders.
#[test]
fn f59_with_min_replicas_on_the_losing_side() {
    (0..ROUNDS).for_each(|_| parted(Side::Losing, true, Duration::ZERO));
}

#[test]
fn f59_with_min_replicas_on_both_sides() {
    (0..ROUNDS).for_each(|_| parted(Side::Both, true, Duration::ZERO));
}

/// Without `min-replicas-to-write`, a holder on the losing side is safe, because a client that does not reach most
/// Sentinels accepts no heartbeat as confirmed.
#[test]
fn f59_without_on_the_losing_side() {
    (0..ROUNDS).for_each(|_| parted(Side::Losing, false, Duration::ZERO));
}

/// Without `min-replicas-to-write`, a client that reaches all servers accepts heartbeats of the old master until most
/// Sentinels name the new one.
#[test]
fn f59_without_on_both_sides() {
    (0..ROUNDS).for_each(|_| parted(Side::Both, false, SPREAD));
}

/// Asserts that the holder's guard is held for at most `bound` after another client was granted the lock. If
/// `is_confirmed`, a master accepts a write only while a replica confirms it (`min-replicas-to-write`).
fn parted(side: Side, is_confirmed: bool, bound: Duration) {
    rerun_if_starved(|| {
        let options = Redis::options().sentinels(DOWN_AFTER).apart();
        let options = match is_confirmed {
            // There are three nodes, because the new master needs a replica, too.
            true => options
                .nodes(3)
                .flag("min-replicas-to-write", "1")
                .flag("min-replicas-max-lag", "1"),
            false => options.nodes(2),
        };
        let (redis, site) = site(options);
        (1..redis.nodes().len()).for_each(|replica| redis.wait_replicated(replica));
        let sentinels = redis.sentinels();
        sentinels.wait_settled(redis.nodes().len() - 1);
        let far = [1, 2].map(|index| Proxy::start(sentinels.address(index)));
        let near = [sentinels.address(0), far[0].address(), far[1].address()];
        let near = near.map(|address| address.to_string()).join(",");
        let losing =
            with_url(site.clone(), format!("redis://{near}/?sentinel={MASTER}&quarantine=off"));
        let holder = if side == Side::Losing { &losing } else { &site }.process("holder");
        let other = site.process("other");
        let held = holder.acquire("x");
        holder.observe("x");
        let waiting = other.wait_for("x");
        holder.sees_contenders("x", 2);

        redis.part(&[0], &[0]);
        if side == Side::Losing {
            far.iter().for_each(|proxy| {
                proxy.refuse();
                proxy.reset_all();
            });
        }
        let granted = other.granted(waiting, LONG);
        must_hold!(granted.token > held.token, "{} after {}", granted.token, held.token);
        let not_held = holder.not_held(LONG);
        let overlap = Duration::from_nanos(not_held.last_true_ns.saturating_sub(granted.t_ns));
        let early = Duration::from_nanos(granted.t_ns.saturating_sub(not_held.last_true_ns));
        println!(
            "F-59 redis: {side:?}, confirmed: {is_confirmed}: both for {overlap:?}, none for {early:?}"
        );

        // In the end the old master is a replica, and everything works.
        redis.rejoin();
        far.iter().for_each(Proxy::heal);
        let follows = || {
            let info = redis.try_ask(0, &["INFO", "replication"]).ok().and_then(|info| info.text());
            info.is_some_and(|info| info.contains("role:slave"))
        };
        assert!(wait_until(LONG, follows), "no replica again");
        assert!(holder.acquire_within("y", LONG).is_ok());
        assert!(overlap <= bound, "{overlap:?}");
    });
}

/// While replicas do not confirm, no heartbeat renews a session and no grant is returned, even if the master replies.
#[test]
fn f59_without_a_replica_nothing_counts() {
    rerun_if_starved(|| {
        // With this limit of the lag, the master goes on accepting writes without its replica for longer than the test
        // takes.
        let options = Redis::options().nodes(2).flag("min-replicas-to-write", "1");
        let (redis, site) = site(options.flag("min-replicas-max-lag", "3600"));
        redis.wait_replicated(1);
        let site = site.at(redis.node(0).address());
        let (holder, other) = (site.process("holder"), site.process("other"));
        holder.acquire("x");
        holder.observe("x");
        redis.node(1).pause();
        assert!(other.acquire_within("y", site.heartbeat).is_err(), "granted by one server");
        assert_eq!(holder.lost(LONG).reason, "DeadlinePassed");
        redis.node(1).resume();
        assert!(holder.acquire_within("x", LONG).is_ok());
    });
}
