//! F-59: the master is cut off from its replica and from two of three Sentinels, and a replica takes over; replicas confirm
//! nothing.

use std::time::Duration;

use coordination::{ClaimOptions, Coordinator, NewItem};
use coordination_tests::harness::redis::{MASTER, RedisOptions, Reply};
use coordination_tests::harness::{
    Direction, Protocol, Proxy, Redis, Server, Unit, rerun_if_starved, rerun_on_threads, wait_until,
};
use coordination_tests::must_hold;
use tokio::task::block_in_place;
use tokio::time::timeout;

use super::{LONG, site, with_url};

/// The key with the exclusive entries of the lock "x".
const QUEUE: &str = "{coordination}:exclusive:lock/x";
/// The key with the exclusive entries of the semaphore "s": those of callers that wait for their turn to choose permits.
const WAITS: &str = "{coordination}:exclusive:semaphore/s";
/// The key with how many parties each double barrier is for, and its rounds.
const PARTIES: &str = "{coordination}:values:double-barrier";
/// How often each test is repeated.
const ROUNDS: usize = 10;
/// The channel on which changes of the double barrier "d" are published.
const CHANGES: &str = "{coordination}:queue:double-barrier/d";
/// Sentinels consider a master down if it has not replied for this long.
const DOWN_AFTER: Duration = Duration::from_secs(1);

/// The longest time until all Sentinels know of a new master and a client has asked them.
const SPREAD: Duration = Duration::from_secs(3);

/// How long nothing may be granted while no replica confirms. It is granted within a few milliseconds if nobody waits for replicas.
const UNCONFIRMED: Duration = Duration::from_secs(1);

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

/// An operator has made the replica a master, and the old master still runs. It refuses every write, because it has no replica any more.
/// A client that is connected to it goes over to the new one.
#[test]
fn f59_a_master_that_has_lost_its_replica_is_left() {
    rerun_if_starved(|| {
        let (redis, site) = site(replicated());
        redis.wait_replicated(1);
        let [one, two] = [0, 1].map(|node| redis.node(node).address());
        let client = site.at(format!("{one},{two}")).process("client");
        let old = client.acquire("x");
        client.release("x");
        redis.try_ask(1, &["CONFIG", "SET", "min-replicas-to-write", "0"]).expect("it answers");
        redis.try_ask(1, &["REPLICAOF", "NO", "ONE"]).expect("it answers");
        let new = client.acquire_within("x", LONG).expect("the new master serves");
        must_hold!(new.token > old.token, "{} after {}", new.token, old.token);
    });
}

/// The client did not reach most Sentinels while another master took over, so that they did not tell it. When it reaches them again, the
/// old master, which is cut off from all others, still answers, and refuses every call. The client goes over to the new master all the
/// same.
#[test]
fn f59_an_old_master_that_refuses_is_left() {
    rerun_if_starved(|| {
        let (redis, site) = site(Redis::options().sentinels(DOWN_AFTER).apart().nodes(2));
        redis.wait_replicated(1);
        let sentinels = redis.sentinels();
        sentinels.wait_settled(1);
        let far = [1, 2].map(|index| Proxy::start(sentinels.address(index)));
        let near = [sentinels.address(0), far[0].address(), far[1].address()];
        let near = near.map(|address| address.to_string()).join(",");
        let losing =
            with_url(site.clone(), format!("redis://{near}/?sentinel={MASTER}&quarantine=off"));
        let (holder, other) = (losing.process("holder"), site.process("other"));
        holder.acquire("x");
        holder.observe("x");
        redis.part(&[0], &[0]);
        far.iter().for_each(|proxy| {
            proxy.refuse();
            proxy.reset_all();
        });
        holder.lost(LONG);
        assert!(other.acquire_within("x", LONG).is_ok(), "no fail-over");
        let refuse = ["ACL", "SETUSER", "default", "-eval", "-evalsha"];
        redis.try_ask(0, &refuse).expect("it answers");
        far.iter().for_each(Proxy::heal);
        assert!(holder.acquire_within("y", LONG).is_ok(), "it stays with the old master");
    });
}

/// While replicas do not confirm, no heartbeat renews a session and no grant is returned, even if the master replies.
#[test]
fn f59_without_a_replica_nothing_counts() {
    rerun_if_starved(|| {
        let (redis, site) = site(replicated());
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

/// The same for what is granted by the whole queue: permits, places of those who work, memberships.
#[test]
fn f59_without_a_replica_no_permit_and_no_membership_counts() {
    rerun_on_threads(async || {
        let (redis, site) = block_in_place(|| site(replicated()));
        block_in_place(|| redis.wait_replicated(1));
        let client = connected(&site.at(redis.node(0).address()).url).await;
        let semaphore = client.semaphore("s", 3).expect("a good name");
        let limiter = client.limiter("l").expect("a good name").slots(3);
        let group = client.group("g").expect("a good name");
        let first = semaphore.acquire(Some(LONG)).await.expect("it is free");
        let working = limiter.enter().await.expect("it is free");
        let member = group.join_or_create(&()).await.expect("it is there");
        block_in_place(|| redis.node(1).pause());
        let (permit, place, membership) = tokio::join!(
            timeout(UNCONFIRMED, semaphore.acquire(None)),
            timeout(UNCONFIRMED, limiter.enter()),
            timeout(UNCONFIRMED, group.join_as("another", &())),
        );
        assert!(!matches!(permit, Ok(Ok(_))), "one server granted a permit");
        assert!(!matches!(place, Ok(Ok(_))), "one server let somebody work");
        assert!(!matches!(membership, Ok(Ok(_))), "one server let a member in");
        block_in_place(|| redis.node(1).resume());
        drop(semaphore.acquire(Some(LONG)).await.expect("one is left"));
        drop((first, working, member));
    });
}

/// The master's answer to the request for a lock arrives together with the end of the connection, and the replica has not
/// confirmed the grant. The lock is not granted before a replica has.
#[test]
fn f59_a_grant_is_confirmed_also_if_the_connection_ends_with_it() {
    rerun_on_threads(async || {
        let (redis, site) = block_in_place(|| site(replicated()));
        block_in_place(|| redis.wait_replicated(1));
        let proxy = Proxy::speaking(Protocol::Resp, redis.node(0).address());
        let client = connected(&site.at(proxy.address()).url).await;
        let lock = client.lock("x").expect("a good name");
        drop(lock.acquire(Some(LONG)).await.expect("it is free"));
        for round in 0..ROUNDS {
            let lock = client.lock(format!("x-{round}")).expect("a good name");
            block_in_place(|| {
                redis.node(1).pause();
                proxy.cut_after(Direction::ToClient, Unit::Messages, 1);
            });
            let granted = timeout(UNCONFIRMED, lock.acquire(None)).await;
            assert!(!matches!(granted, Ok(Ok(_))), "one server granted it, in round {round}");
            block_in_place(|| redis.node(1).resume());
            drop(lock.acquire(Some(LONG)).await.expect("it is free"));
        }
    });
}

/// A waiter is told that its turn has come, and the connection ends with this message. The server that has taken over knows the
/// waiter's entry, and an entry before it: the waiter is granted nothing, although this server confirms that the entry exists.
#[test]
fn f59_a_grant_is_confirmed_by_the_server_that_gave_it() {
    rerun_on_threads(async || {
        let (redis, site) = block_in_place(|| site(replicated()));
        block_in_place(|| redis.wait_replicated(1));
        let [one, two] = [0, 1].map(|node| redis.node(node).address());
        let proxy = Proxy::speaking(Protocol::Resp, one);
        let holder = connected(&site.at(one).url).await;
        let waiter = connected(&site.at(format!("{},{two}", proxy.address())).url).await;
        let lock = |client: &Coordinator| client.lock("x").expect("a good name");
        let held = lock(&holder).acquire(Some(LONG)).await.expect("it is free");
        let waits = lock(&waiter);
        let waiting = tokio::spawn(async move { waits.acquire(None).await });
        block_in_place(|| {
            let ask = |node, words: &[&str]| redis.try_ask(node, words).expect("it answers");
            let are_two = || ask(1, &["ZCARD", QUEUE]) == Reply::Number(2);
            assert!(wait_until(LONG, are_two), "the replica does not hear of the waiter");
            proxy.refuse();
            for node in [0, 1] {
                ask(node, &["CONFIG", "SET", "min-replicas-to-write", "0"]);
            }
            // Only now: a master without a replica that still wants one refuses calls, and is left.
            ask(1, &["REPLICAOF", "NO", "ONE"]);
            proxy.cut_after(Direction::ToClient, Unit::Messages, 1);
        });
        held.release().await.expect("it is held");
        let granted = timeout(UNCONFIRMED, waiting).await;
        assert!(granted.is_err(), "granted behind another entry");
        assert_eq!(proxy.open_connections(), 0, "it has another server");
        drop(site);
    });
}

/// A waiter writes which permit it takes, and its connection ends after that. The server that has taken over knows the waiter's entry
/// without this permit: it confirms that the entry exists, but the permit is granted only once it knows of that too. Otherwise all
/// who come later would wait for the entry, which never decides there.
#[test]
fn f59_a_permit_is_confirmed_by_the_server_that_knows_it() {
    rerun_on_threads(async || {
        // The last answer that arrives is another one each time: the one to the waiter's look, or to its update, or a later one.
        for answers in 1..=6 {
            let (redis, site) = block_in_place(|| site(replicated()));
            block_in_place(|| redis.wait_replicated(1));
            let [one, two] = [0, 1].map(|node| redis.node(node).address());
            let proxy = Proxy::speaking(Protocol::Resp, one);
            let holder = connected(&site.at(one).url).await;
            let waiter = connected(&site.at(format!("{},{two}", proxy.address())).url).await;
            let permits = |client: &Coordinator| client.semaphore("s", 1).expect("a good name");
            let held = permits(&holder).acquire(Some(LONG)).await.expect("it is free");
            let waits = permits(&waiter);
            let waiting = tokio::spawn(async move { waits.acquire(None).await });
            block_in_place(|| {
                let ask = |node, words: &[&str]| redis.try_ask(node, words).expect("it answers");
                let waits = || ask(1, &["ZCARD", WAITS]) == Reply::Number(1);
                assert!(wait_until(LONG, waits), "the replica does not hear of the waiter");
                proxy.refuse();
                for node in [0, 1] {
                    ask(node, &["CONFIG", "SET", "min-replicas-to-write", "0"]);
                }
                // Only now: a master without a replica that still wants one refuses calls, and is left.
                ask(1, &["REPLICAOF", "NO", "ONE"]);
                proxy.cut_after(Direction::ToClient, Unit::Messages, answers);
            });
            held.release().await.expect("it is held");
            let granted = timeout(UNCONFIRMED, waiting).await;
            let undecided = redis.try_ask(1, &["ZCARD", WAITS]).expect("it answers");
            let is_known = undecided == Reply::Number(0);
            assert!(granted.is_err() || is_known, "granted after {answers} answers");
            drop(site);
        }
    });
}

/// A party is let into a double barrier, and its connection ends after that. The server that has taken over knows the party, and not
/// those that came later: there the party is not in before it has waited for as many again.
#[test]
fn f59_a_place_inside_is_confirmed_by_the_server_that_knows_the_round() {
    rerun_on_threads(async || {
        for answers in 1..=8 {
            let (redis, site) = block_in_place(|| site(replicated()));
            block_in_place(|| redis.wait_replicated(1));
            let [one, two] = [0, 1].map(|node| redis.node(node).address());
            let proxy = Proxy::speaking(Protocol::Resp, one);
            let later = connected(&site.at(one).url).await;
            let first = connected(&site.at(format!("{},{two}", proxy.address())).url).await;
            let barrier =
                |client: &Coordinator| client.double_barrier("d", 2).expect("a good name");
            let waits = barrier(&first);
            let waiting = tokio::spawn(async move { waits.enter(None).await });
            block_in_place(|| {
                let ask = |node, words: &[&str]| redis.try_ask(node, words).expect("it answers");
                let is_there = || ask(1, &["HLEN", PARTIES]) == Reply::Number(1);
                assert!(wait_until(LONG, is_there), "the replica does not hear of the party");
                proxy.refuse();
                for node in [0, 1] {
                    ask(node, &["CONFIG", "SET", "min-replicas-to-write", "0"]);
                }
                // Only now: a master without a replica that still wants one refuses calls, and is left.
                ask(1, &["REPLICAOF", "NO", "ONE"]);
                proxy.cut_after(Direction::ToClient, Unit::Messages, answers);
            });
            let enters = barrier(&later);
            let entering = tokio::spawn(async move { enters.enter(None).await });
            let granted = timeout(UNCONFIRMED, waiting).await;
            assert!(granted.is_err(), "inside after {answers} answers, alone at its server");
            entering.abort();
            drop(site);
        }
    });
}

/// A party has seen that enough have come, and its connection ends before it is told that it has let the round in. The server that has
/// taken over has the value of the same version, and does not know the party that came last: the round is not let in there, but only
/// once another party has come there.
#[test]
fn f59_a_round_is_let_in_only_by_the_server_that_knows_its_parties() {
    rerun_on_threads(async || {
        let (redis, site) = block_in_place(|| site(replicated()));
        block_in_place(|| redis.wait_replicated(1));
        let [one, two] = [0, 1].map(|node| redis.node(node).address());
        let [near, far] = [(); 2].map(|()| Proxy::speaking(Protocol::Resp, one));
        let later = rarely_heard(&site.at(far.address()).url).await;
        let first = rarely_heard(&site.at(format!("{},{two}", near.address())).url).await;
        let barrier = |client: &Coordinator| client.double_barrier("d", 2).expect("a good name");
        let waits = barrier(&first);
        let mut waiting = tokio::spawn(async move { waits.enter(None).await });
        // What the first party has sent on the connection on which it writes: the first of its connections.
        let sent = || near.messages_by_stream(Direction::ToServer).get(&(1, 0)).copied();
        let before = block_in_place(|| {
            let ask = |node, words: &[&str]| redis.try_ask(node, words).expect("it answers");
            let is_there = || {
                let follows = ask(0, &["PUBSUB", "NUMSUB", CHANGES]).texts();
                let is_followed = follows.last().is_some_and(|count| count == "1");
                is_followed && ask(1, &["HLEN", PARTIES]) == Reply::Number(1)
            };
            assert!(wait_until(LONG, is_there), "the first party does not wait");
            near.refuse();
            for node in [0, 1] {
                ask(node, &["CONFIG", "SET", "min-replicas-to-write", "0"]);
            }
            ask(1, &["REPLICAOF", "NO", "ONE"]);
            near.hold_one(1);
            // The other party enters, and cannot do more: the first one has to let the round in.
            far.stall_after(Direction::ToServer, Unit::Messages, 1);
            sent()
        });
        let enters = barrier(&later);
        let entering = tokio::spawn(async move { enters.enter(None).await });
        block_in_place(|| {
            assert!(wait_until(LONG, || sent() > before), "it does not let the round in");
            near.reset_all();
        });
        let granted = timeout(UNCONFIRMED, &mut waiting).await;
        must_hold!(!matches!(granted, Ok(Ok(Ok(_)))), "inside, alone at its server");
        let third = connected(&site.at(two).url).await;
        let third = barrier(&third).enter(Some(LONG)).await.expect("two have come");
        let first = timeout(LONG, waiting).await.expect("two have come");
        drop((first.expect("no panic").expect("two have come"), third));
        entering.abort();
    });
}

/// A worker has gone to the server that has taken over, and the old master takes it for dead. Another one reads that there, and its
/// connection ends before it has written what it makes of that: at the new master, nothing is taken from a worker that lives.
#[test]
fn f59_items_are_brought_back_only_by_the_server_that_takes_their_worker_for_dead() {
    rerun_on_threads(async || {
        let (redis, site) = block_in_place(|| site(Redis::options().nodes(2)));
        block_in_place(|| redis.wait_replicated(1));
        let [one, two] = [0, 1].map(|node| redis.node(node).address());
        let [near, far] = [(); 2].map(|()| Proxy::speaking(Protocol::Resp, one));
        let by = |proxy: &Proxy| site.at(format!("{},{two}", proxy.address()));
        let (stays, lease) = (rarely_heard(&by(&near).url).await, Duration::from_secs(3));
        let goes = by(&far).with_ttl(lease).client("goes").await;
        let jobs = |client: &Coordinator| client.queue("jobs").expect("a good name");
        let (works, claims) = (jobs(&goes), jobs(&stays));
        // From here on its process has an entry, and a connection for listings, its second one.
        assert!(claims.claim(ClaimOptions::default()).await.expect("it answers").is_none());
        works.post(&[NewItem::new("a")]).await.expect("it answers");
        let held = works.claim(ClaimOptions::default()).await.expect("it answers");
        let held = held.expect("it is ready");
        let counted = |number, direction| {
            near.messages_by_stream(direction).get(&(number, 0)).copied().unwrap_or_default()
        };
        let (read, asked) = block_in_place(|| {
            let ask = |node, words: &[&str]| redis.try_ask(node, words).expect("it answers");
            ask(0, &["SET", "all", "of it"]);
            let has_all = || ask(1, &["EXISTS", "all"]) == Reply::Number(1);
            assert!(wait_until(LONG, has_all), "the replica does not hear of the claim");
            ask(1, &["REPLICAOF", "NO", "ONE"]);
            near.refuse();
            far.refuse();
            far.reset_all();
            std::thread::sleep(lease + site.heartbeat);
            near.hold_one(1);
            (counted(2, Direction::ToClient), counted(1, Direction::ToServer))
        });
        let claiming = tokio::spawn(async move { claims.claim(ClaimOptions::default()).await });
        block_in_place(|| {
            let has_read = || {
                counted(2, Direction::ToClient) > read && counted(1, Direction::ToServer) > asked
            };
            assert!(wait_until(LONG, has_read), "it does not find the worker dead");
            near.reset_all();
        });
        let claimed = timeout(LONG, claiming).await.expect("the new master answers");
        let claimed = claimed.expect("no panic").expect("the new master answers");
        must_hold!(claimed.is_none() && held.is_held(), "two live claims have the item");
        held.renew(None, None).await.expect("it lives");
    });
}

/// A master that goes on accepting writes without its replica for longer than a test takes.
fn replicated() -> RedisOptions {
    let options = Redis::options().nodes(2).flag("min-replicas-to-write", "1");
    options.flag("min-replicas-max-lag", "3600")
}

async fn connected(url: &str) -> Coordinator {
    let builder = Coordinator::builder().ttl(Duration::from_secs(20));
    builder.connect(url).await.expect("the server is there")
}

/// A client whose heartbeats do not come between the few messages that a check counts.
async fn rarely_heard(url: &str) -> Coordinator {
    let builder = Coordinator::builder().ttl(Duration::from_secs(20));
    let builder = builder.heartbeat(Duration::from_secs(6));
    builder.connect(url).await.expect("the server is there")
}
