//! F-19 to F-21: an ensemble that is cut in two, and entries of a session that was lost.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use coordination_tests::bounds;
use coordination_tests::faults::{LONG, SCHEDULING, Site};
use coordination_tests::harness::{Mode, Server, Setup, Zookeeper, rerun_if_starved};
use coordination_tests::must_hold;

use crate::WORKER;

const LOCK: &str = "ensemble";

fn ensemble() -> (Arc<Zookeeper>, Site) {
    let zookeeper = Arc::new(Zookeeper::set_up(&Setup { peers_by_proxy: true, ..Setup::of(3) }));
    let site = Site::on(Arc::clone(&zookeeper) as Arc<dyn Server>, WORKER);
    (zookeeper, site)
}

fn follower(zookeeper: &Zookeeper) -> usize {
    let leader = zookeeper.wait_leader();
    (leader + 1) % 3
}

/// F-19: the only server that the holder knows is cut off from the leader, and goes on answering reads.
///
/// With the deliberate mistake `deadline-from-reads` (a canary, see `docs/testing.md`) this test fails.
#[test]
fn f19_follower_cut_off() {
    rerun_if_starved(|| {
        // A follower that is cut off goes on for `syncLimit` ticks, which is five seconds here, and longer than the
        // lease.
        let options = Zookeeper::options().nodes(3).peers_by_proxy().line("syncLimit=25");
        let zookeeper = Arc::new(options.start());
        let site = Site::on(Arc::clone(&zookeeper) as Arc<dyn Server>, WORKER);
        let cut_off = follower(&zookeeper);
        let holder = site.at(zookeeper.node(cut_off).address()).process("holder");
        let others = (0..3).filter(|index| *index != cut_off);
        let others: Vec<_> =
            others.map(|index| zookeeper.node(index).address().to_string()).collect();
        let waiter = site.at(others.join(",")).process("waiter");
        for _ in 0..3 {
            let first = holder.acquire(LOCK);
            holder.observe(LOCK);
            let waiting = waiter.wait_for(LOCK);
            waiter.sees_contenders(LOCK, 2);
            zookeeper.silence(cut_off);
            let lost = holder.lost(LONG);
            let next = waiter.granted(waiting, LONG);
            must_hold!(next.token > first.token);
            // S3: the holder loses the lock before the waiter gets it.
            assert!(lost.t_ns < next.t_ns, "lost {} ns too late", lost.t_ns - next.t_ns);
            let ahead = Duration::from_nanos(next.t_ns - lost.t_ns);
            println!("F-19 {}: lost {ahead:?} before the next grant: {}", site.name(), lost.reason);
            assert!(!holder.is_held(LOCK));
            waiter.release(LOCK);
            zookeeper.rejoin();
            zookeeper.wait_ready();
            holder.not_held(LONG);
        }
    });
}

/// F-19: a holder that knows the other servers moves to one of them, and keeps its lock.
#[test]
fn f19_moves_to_another_server() {
    rerun_if_starved(|| {
        let (zookeeper, site) = ensemble();
        let proxies = site.proxies();
        let cut_off = follower(&zookeeper);
        // Makes the holder connect first to the server that will be cut off.
        (0..3).filter(|index| *index != cut_off).for_each(|index| proxies[index].refuse());
        let holder = site.by(&proxies).with_ttl(Duration::from_secs(10)).process("holder");
        proxies.iter().for_each(coordination_tests::harness::Proxy::accept);
        let first = holder.acquire(LOCK);
        zookeeper.isolate(cut_off);
        thread::sleep(Duration::from_secs(12));
        assert!(holder.is_held(LOCK), "the session was lost");
        assert_eq!(site.server().token_of(&site.entry_of(first.token)), first.token);
        holder.release(LOCK);
        println!("F-19 {}: kept", site.name());
    });
}

/// F-20: without a majority nothing is granted, and held locks are lost in time.
#[test]
fn f20_majority_lost() {
    rerun_if_starved(|| {
        let (zookeeper, site) = ensemble();
        let (holder, waiter) = (site.process("holder"), site.process("waiter"));
        let first = holder.acquire(LOCK);
        holder.observe(LOCK);
        let waiting = waiter.wait_for(LOCK);
        waiter.sees_contenders(LOCK, 2);
        let leader = zookeeper.wait_leader();
        let rest: Vec<_> = (0..3).filter(|index| *index != leader).collect();
        rest.iter().for_each(|index| zookeeper.node(*index).kill());
        let lost = holder.lost(LONG);
        println!("F-20 {}: {}", site.name(), lost.reason);
        assert!(!holder.is_held(LOCK));
        thread::sleep(3 * site.lease());
        rest.iter().for_each(|index| zookeeper.node(*index).restart());
        zookeeper.wait_ready();
        let next = waiter.granted(waiting, bounds::recovered(site.ttl) + SCHEDULING);
        must_hold!(next.token > first.token && next.t_ns > lost.t_ns);
        waiter.release(LOCK);
    });
}

/// F-21, CURATOR-604: the client reconnects before the server has removed the entries of its lost session. The client
/// does not take these entries for entries of its new session.
#[test]
fn f21_an_old_entry_is_not_adopted() {
    rerun_if_starved(|| {
        let zookeeper = Arc::new(Zookeeper::one());
        let site = Site::on(Arc::clone(&zookeeper) as Arc<dyn Server>, WORKER);
        let proxy = zookeeper.proxy_to(0);
        let holder = site.at(proxy.address()).process("holder");
        for _ in 0..3 {
            let first = holder.acquire(LOCK);
            holder.observe(LOCK);
            let old = site.entry_of(first.token);
            let old_session = zookeeper.session_of(&old).expect("it has one");
            proxy.set_both(Mode::Blackhole);
            holder.lost(LONG);
            assert!(zookeeper.look(&old).is_some(), "the server has ended the session first");
            proxy.reset_all();
            proxy.heal();
            let next = holder.acquire(LOCK);
            must_hold!(next.token > first.token);
            let entries = site.entries();
            let own = site.entry_of(next.token);
            assert_eq!(entries, [own.as_str()], "the old one is in the way no longer");
            assert_ne!(zookeeper.session_of(&own), Some(old_session));
            holder.release(LOCK);
        }
    });
}
