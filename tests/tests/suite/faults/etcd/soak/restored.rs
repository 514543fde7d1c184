//! F-68: the store is restored from a snapshot while clients hold and wait.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use coordination::{Coordinator, ValueWatch};
use coordination_tests::faults::{LONG, Site};
use coordination_tests::harness::{Etcd, rerun_if_starved, rerun_on_threads, wait_until};
use tokio::task::block_in_place;
use tokio::time::{sleep, timeout};

use crate::WORKER;

const LOCK: &str = "restored";
const OTHER: &str = "kept";
const SECOND: Duration = Duration::from_secs(1);

/// After the snapshot was made, a session that still lives has removed one of its entries. When the snapshot is
/// restored, the removed entry comes back, but it must not block anybody.
#[test]
fn f68_what_was_given_back_since_blocks_nobody() {
    rerun_if_starved(|| {
        let etcd = Arc::new(Etcd::one());
        let snapshot = etcd.directory().join("snapshot");
        let site = Site::on(etcd.clone(), WORKER);
        let [one, two, three] = ["one", "two", "three"].map(|name| site.process(name));
        one.acquire(LOCK);
        one.acquire(OTHER);
        etcd.save(&snapshot);
        one.release(LOCK);
        two.acquire(LOCK);
        let waiting = three.wait_for(LOCK);
        three.sees_contenders(LOCK, 2);
        for _ in 0..20 {
            one.acquire("busy");
            one.release("busy");
        }
        one.observe(OTHER);
        two.observe(LOCK);
        etcd.restore(&snapshot);
        // The snapshot has all three sessions, an entry of `one`, and no entry of the others.
        one.lost(LONG);
        two.lost(LONG);
        three.granted(waiting, LONG);
        three.release(LOCK);
        for process in [&one, &two] {
            process.acquire(LOCK);
            process.release(LOCK);
        }
        assert!(wait_until(LONG, || site.entries().is_empty()), "{:?}", site.entries());
    });
}

/// The store is away for longer than the lease before it is restored, so that each session is lost before. The sessions
/// that are opened then owe nothing to the time before the restore, and live on.
#[test]
fn f68_a_session_that_is_opened_after_the_restore_lives_on() {
    rerun_if_starved(|| {
        let etcd = Arc::new(Etcd::one());
        let snapshot = etcd.directory().join("snapshot");
        let site = Site::on(etcd.clone(), WORKER);
        let one = site.process("one");
        one.acquire(OTHER);
        etcd.save(&snapshot);
        for _ in 0..20 {
            one.acquire(LOCK);
            one.release(LOCK);
        }
        one.observe(OTHER);
        let lease = site.ttl.expect("sessions of etcd have leases");
        etcd.restore_after(&snapshot, lease + SECOND);
        one.lost(LONG);
        assert!(one.event_named("not_held", LONG).is_some(), "its probe sees it too");
        one.acquire(LOCK);
        let end = Instant::now() + lease;
        while Instant::now() < end {
            one.keeps(LOCK);
            thread::sleep(SECOND / 10);
        }
        one.release(LOCK);
    });
}

/// Versions go back with the snapshot. A watcher of a value is told what the store has then, and what is written later.
#[test]
fn f68_a_watcher_of_a_value_goes_on_after_the_restore() {
    rerun_on_threads(async || {
        let etcd = Arc::new(block_in_place(Etcd::one));
        let snapshot = etcd.directory().join("snapshot");
        let site = Site::on(etcd.clone(), WORKER);
        let client = Coordinator::connect(&site.url).await.expect("the server is there");
        let value = client.value::<u64>("v").expect("a good name");
        value.set(&1).await.expect("it answers");
        block_in_place(|| etcd.save(&snapshot));
        for number in 2..=40 {
            value.set(&number).await.expect("it answers");
        }
        let mut watch = value.watch();
        tell(&mut watch, 40).await;
        block_in_place(|| etcd.restore(&snapshot));
        tell(&mut watch, 1).await;
        while value.set(&2).await.is_err() {
            sleep(SECOND / 10).await;
        }
        tell(&mut watch, 2).await;
    });
}

/// Waits until the watch has told this value.
async fn tell(watch: &mut ValueWatch<u64>, number: u64) {
    let told = async {
        let mut next = async || watch.next().await.expect("it goes on").into_value();
        while next().await.map(|told| told.value) != Some(number) {}
    };
    timeout(LONG, told).await.unwrap_or_else(|_| panic!("{number} is not told"));
}
