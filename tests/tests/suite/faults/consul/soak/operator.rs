//! What operators do to Consul: restored snapshots, and `consul lock` on the library's keys.

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use coordination::{Coordinator, ErrorKind};
use coordination_tests::faults::{LONG, Site};
use coordination_tests::harness::{Consul, Server, rerun_if_starved, wait_until};
use coordination_tests::must_hold;

use tokio::runtime::Runtime;

use crate::WORKER;

const LOCK: &str = "operator";
const OTHER: &str = "held on";

fn consul(server: &Consul, arguments: &[&str]) -> Command {
    let mut command = Command::new("consul");
    let (subcommand, rest) = arguments.split_at(if arguments[0] == "snapshot" { 2 } else { 1 });
    let address = format!("-http-addr=http://{}", server.authority());
    command.args(subcommand).arg(address).args(rest).stdout(Stdio::null());
    command
}

/// F-52: a restored snapshot sets Consul's index back to a smaller number, while blocking queries wait for a larger
/// one.
#[test]
fn f52_the_index_goes_back() {
    rerun_if_starved(|| {
        let server = Arc::new(Consul::one());
        let site = Site::on(server.clone(), WORKER);
        let (holder, waiter) = (site.process("holder"), site.process("waiter"));
        let first = holder.acquire(LOCK);
        let waiting = waiter.wait_for(LOCK);
        waiter.sees_contenders(LOCK, 2);
        let snapshot = server.directory().join("snapshot");
        let path = snapshot.display().to_string();
        assert!(consul(&server, &["snapshot", "save", &path]).status().expect("it runs").success());
        for number in 0..50 {
            server.put_key(&format!("elsewhere/{number}"), "");
        }
        assert!(
            consul(&server, &["snapshot", "restore", &path]).status().expect("it runs").success()
        );
        holder.keeps(LOCK);
        holder.release(LOCK);
        let next = waiter.granted(waiting, LONG);
        must_hold!(next.token > first.token);
        waiter.release(LOCK);
        assert!(wait_until(LONG, || site.entries().is_empty()), "{:?}", site.entries());
    });
}

/// F-68: a snapshot is restored after a session that still lives has removed one of its entries, and has ended its
/// write fence since, as it does from time to time. The removed entry comes back, but it must not block anybody.
#[test]
fn f68_what_was_given_back_since_blocks_nobody() {
    rerun_if_starved(|| {
        let server = Arc::new(Consul::one());
        let site = Site::on(server.clone(), WORKER);
        let [one, two] = ["one", "two"].map(|name| site.process(name));
        one.acquire(OTHER);
        one.observe(OTHER);
        one.acquire(LOCK);
        let snapshot = server.directory().join("snapshot");
        let path = snapshot.display().to_string();
        assert!(consul(&server, &["snapshot", "save", &path]).status().expect("it runs").success());
        one.release(LOCK);
        let fence = || server.key("coordination/member/one")["ModifyIndex"].clone();
        let before = fence();
        assert!(wait_until(4 * LONG, || fence() != before), "it ends its write fence");
        assert!(
            consul(&server, &["snapshot", "restore", &path]).status().expect("it runs").success()
        );
        let waiting = two.wait_for(LOCK);
        one.lost(4 * LONG);
        two.granted(waiting, LONG);
        two.release(LOCK);
        one.acquire(LOCK);
        one.release(LOCK);
        assert!(wait_until(LONG, || site.entries().is_empty()), "{:?}", site.entries());
    });
}

/// An operator runs `consul lock` on a queue's prefix, and on the whole namespace. The library's locks work
/// nevertheless, and so does `consul lock`.
#[test]
fn f23_consul_lock_among_our_keys() {
    rerun_if_starved(|| {
        let server = Arc::new(Consul::one());
        let site = Site::on(server.clone(), WORKER);
        for prefix in [format!("coordination/lock/{LOCK}"), "coordination".to_owned()] {
            let mut other =
                consul(&server, &["lock", &prefix, "sleep", "3"]).spawn().expect("it runs");
            let key = format!("{prefix}/.lock");
            assert!(wait_until(LONG, || !server.key(&key)["Session"].is_null()), "{prefix}");
            let name = |role: &str| format!("{role}-{}", prefix.len());
            let (holder, waiter) = (site.process(&name("holder")), site.process(&name("waiter")));
            let first = holder.acquire(LOCK);
            holder.observe(LOCK);
            let waiting = waiter.wait_for(LOCK);
            waiter.sees_contenders(LOCK, 2);
            thread::sleep(Duration::from_millis(100));
            holder.keeps(LOCK);
            holder.release(LOCK);
            must_hold!(waiter.granted(waiting, LONG).token > first.token);
            assert!(!server.key(&key)["Session"].is_null(), "it holds its own lock still");
            waiter.release(LOCK);
            assert!(other.wait().expect("it is ours").success());
            let left = server.keys(&format!("coordination/lock/{LOCK}/"));
            assert_eq!(left, [""; 0]);
        }
    });
}

/// With `lock_delay`, a lock that was taken from its holder is granted to nobody before the delay is over, even if
/// clients enter and leave the queue meanwhile. A lock that was released is free at once.
#[test]
fn f23_a_lock_delay_keeps_what_was_taken() {
    rerun_if_starved(|| {
        const DELAY: Duration = Duration::from_secs(3);
        let server = Arc::new(Consul::one());
        let site = Site::on(server.clone(), WORKER).with_option("lock_delay=3s");
        let runtime = Runtime::new().expect("a runtime");
        runtime.block_on(async {
            let [holder, waiter, other, late] = ["holder", "waiter", "other", "late"];
            let holder = site.client(holder).await;
            let (waiter, other, late) =
                (site.client(waiter).await, site.client(other).await, site.client(late).await);
            let lock = |client: &Coordinator| client.lock(LOCK).expect("a good name");
            let held = lock(&holder).acquire(None).await.expect("it is free");
            let passing = {
                let lock = lock(&other);
                tokio::spawn(async move { lock.acquire(Some(Duration::from_secs(1))).await })
            };
            let until = Instant::now() + LONG;
            while lock(&waiter).holders().await.expect("it can be read").len() < 2 {
                assert!(Instant::now() < until, "`other` does not come");
            }
            let waiting = {
                let lock = lock(&waiter);
                tokio::spawn(async move { lock.acquire(Some(LONG)).await })
            };
            let session = server.session_of_member("coordination", "holder").expect("it has one");
            assert!(server.end_session(&session));
            let ended = Instant::now();
            held.lost().await;
            println!("told after {:?}", ended.elapsed());
            // The lock is not granted during the delay, not even when the waiter just behind the old holder gives up.
            let refused = passing.await.expect("no panic").expect_err("it is kept");
            assert_eq!(refused.kind(), ErrorKind::Timeout);
            assert!(lock(&late).try_acquire().await.expect("it can be asked for").is_none());
            let guard = waiting.await.expect("no panic").expect("it is free in the end");
            let waited = ended.elapsed();
            println!("granted after {waited:?}");
            assert!(waited >= DELAY - Duration::from_millis(200), "after {waited:?}");
            must_hold!(guard.token() > held.token());
            // If a holder's client closes its session, the lock is free without this delay.
            drop(guard);
            let guard = lock(&late).acquire(Some(LONG)).await.expect("it is free");
            let stopped = Instant::now();
            late.stop().await.expect("it stops");
            let next = lock(&waiter).acquire(Some(LONG)).await.expect("it is free");
            assert!(stopped.elapsed() < DELAY, "after {:?}", stopped.elapsed());
            must_hold!(next.token() > guard.token());
            next.release().await.expect("it is held");
        });
        assert!(wait_until(LONG, || site.entries().is_empty()), "{:?}", site.entries());
    });
}

/// With `lock_delay`, a crashed process's lock stays blocked for a while. Each waiter tries to take it once and finds
/// it blocked; when the delay is over, only one of them tries again. No key of the crashed process is left, not even
/// its member's key.
#[test]
fn f23_a_lock_delay_is_tried_seldom() {
    rerun_if_starved(|| {
        const READERS: usize = 6;
        const DELAY: Duration = Duration::from_secs(4);
        let server = Arc::new(Consul::one());
        let site = Site::on(server.clone(), WORKER).with_option("lock_delay=4s");
        let runtime = Runtime::new().expect("a runtime");
        let dead = site.process("dead");
        let held = dead.acquire(LOCK);
        runtime.block_on(async {
            let (mut readers, mut waiting) = (Vec::new(), Vec::new());
            for number in 0..READERS {
                let reader = site.client(&format!("reader-{number}")).await;
                let lock = reader.lock(LOCK).expect("a good name");
                waiting.push(tokio::spawn(async move { lock.acquire_shared(Some(LONG)).await }));
                readers.push(reader);
            }
            let lock = readers[0].lock(LOCK).expect("a good name");
            let until = Instant::now() + LONG;
            while lock.holders().await.expect("it can be read").len() < READERS + 1 {
                assert!(Instant::now() < until, "not all come");
            }
            let session = server.session_of_member("coordination", "dead").expect("it has one");
            let tries = || server.request_counts().get("PUT txn").copied().unwrap_or_default();
            let before = tries();
            assert!(before > 0, "each has entered");
            dead.kill();
            assert!(server.end_session(&session));
            let ended = Instant::now();
            tokio::time::sleep(DELAY * 3 / 4).await;
            let tried = tries() - before;
            println!("F-23: {tried} tries in vain within {:?}", ended.elapsed());
            assert!(tried <= 2 * READERS as u64, "{tried} tries in vain");
            for one in waiting {
                let guard = one.await.expect("no panic").expect("it is free in the end");
                must_hold!(u64::from(guard.token()) > held.token);
                guard.release().await.expect("it is held");
            }
            println!("F-23: all are served after {:?}", ended.elapsed());
            let is_left = || !server.keys("coordination/member/dead").is_empty();
            assert!(wait_until(LONG, || !is_left()), "the member's key stays");
            drop(readers);
        });
        assert!(wait_until(LONG, || site.entries().is_empty()), "{:?}", site.entries());
    });
}
