//! A process is stopped in its turn at the file of a queue: it has the file locked, and keeps all others out until it goes on or dies.

use std::{fs::File, path::Path, time::Duration};

use coordination::{Ack, ClaimOptions, Effect, ErrorKind, LossReason, NewItem, State};
use coordination_tests::{faults::LONG, harness::rerun_on_threads, must_hold};
use rustix::fs::{FlockOperation, flock};
use tokio::time::{Instant, sleep_until, timeout};

use super::site;

/// For how long a call to the store is tried.
const TTL: Duration = Duration::from_secs(3);
/// Longer than any call is tried.
const STOPPED: Duration = Duration::from_secs(4);
/// Longer than the process is stopped; but a renewal is due meanwhile.
const KEPT: Duration = Duration::from_secs(9);

/// Locks a queue's file, as a process has it locked that was stopped in its turn.
fn take_turn(locks: &Path, file: &str) -> File {
    let file = File::open(locks.join("coordination/queues").join(file)).expect("it is there");
    flock(&file, FlockOperation::LockExclusive).expect("others let go");
    file
}

/// Calls fail in time and without an effect, or wait; what is held stays held, and what is over by its time is told as lost. When the
/// process goes on, all that waits is served.
#[test]
fn f03_stopped_in_its_turn() {
    rerun_on_threads(async || {
        let (scratch, site) = site();
        let client = site.with_ttl(TTL).client("client").await;
        let (lock, held) =
            (client.lock("vol-7").expect("a name"), client.lock("vol-8").expect("a name"));
        let jobs = client.queue("jobs").expect("a name");
        let held = held.acquire(None).await.expect("it is free");
        lock.acquire(None).await.expect("it is free").release().await.expect("it is ours");
        jobs.post(&["1", "2", "3"].map(NewItem::new)).await.expect("the disk works");
        let one = ClaimOptions::default().limit(1);
        let kept = jobs.claim(one.clone().ttl(KEPT)).await.expect("the disk works");
        let mut kept = kept.expect("three items are ready");
        kept.keep_alive();
        let short = jobs.claim(one.clone().ttl(STOPPED / 2)).await.expect("the disk works");
        let mut short = short.expect("two items are ready");
        short.keep_alive();

        let locks = scratch.join("locks");
        let turns = ["lock.vol-7", "work.jobs"].map(|file| take_turn(&locks, file));
        let until = Instant::now() + STOPPED;
        let acquiring = tokio::spawn(async move { lock.acquire(None).await });
        let claiming = tokio::spawn({
            let jobs = jobs.clone();
            async move { jobs.claim_wait(one, None).await }
        });
        let refused = timeout(LONG, jobs.stats()).await.expect("it has an end");
        let refused = refused.expect_err("nobody can read the queue");
        assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
        assert_eq!(refused.effect(), Effect::None, "{refused}");
        assert!(refused.is_transient(), "{refused}");
        let lost = timeout(LONG, short.lost()).await.expect("its time is over");
        assert_eq!(lost, LossReason::DeadlinePassed);
        sleep_until(until).await;
        must_hold!(!short.is_held(), "a claim is held whose time is over");
        must_hold!(held.is_held(), "a lock is lost that nobody has taken");
        assert!(kept.is_held(), "a claim is lost whose time is not over");
        assert_eq!(client.state().current(), State::Connected);
        assert!(!acquiring.is_finished() && !claiming.is_finished(), "they were not kept out");

        drop(turns);
        let granted = timeout(LONG, acquiring).await.expect("it is served").expect("no panic");
        assert!(granted.expect("the lock is free").is_held());
        let claimed = timeout(LONG, claiming).await.expect("it is served").expect("no panic");
        assert!(claimed.expect("the disk works").expect("an item is ready").is_held());
        let acked = kept.ack(kept.items()[0].id()).await.expect("the claim is held");
        assert_eq!(acked, Ack::Done);
        jobs.stats().await.expect("the queue can be read");
    });
}
