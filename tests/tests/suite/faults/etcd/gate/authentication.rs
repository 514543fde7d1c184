//! F-56: authentication is turned off and on again, and a password is changed, while clients are connected.

use std::time::Duration;

use coordination::{ClaimOptions, Coordinator, ErrorKind, Lock, LossReason, NewItem};
use coordination_tests::harness::etcd::USER_PASSWORD;
use coordination_tests::harness::{Etcd, rerun_on_threads};
use tokio::task::block_in_place;
use tokio::time::{sleep, timeout};

const SOON: Duration = Duration::from_secs(30);

fn lock(client: &Coordinator, name: &str) -> Lock {
    client.lock(name).expect("a good name")
}

/// Clients go on when authentication is turned off, and when it is turned on again. A new client with a user is refused
/// while authentication is off.
#[test]
fn f56_authentication_turned_off_and_on() {
    rerun_on_threads(async || {
        let etcd = block_in_place(|| Etcd::options().users("").start());
        let url = format!("etcd://{}{}", Etcd::user_information(), etcd.authority());
        let one = Coordinator::connect(&url).await.expect("the server is there");
        let other = Coordinator::connect(&url).await.expect("the server is there");
        let take = async |client: &Coordinator, name: &str| {
            lock(client, name).acquire(Some(SOON)).await.expect("it is free")
        };
        let kept = take(&one, "kept").await;
        for turned in ["disable", "enable"] {
            block_in_place(|| match turned {
                "disable" => drop(etcd.administer(&["auth", turned])),
                _ => assert!(etcd.etcdctl_as_stranger(&["auth", turned]).status.success()),
            });
            if turned == "disable" {
                let new = Coordinator::connect(&url).await.expect_err("there are no users");
                assert_eq!(new.kind(), ErrorKind::Auth, "{new}");
            }
            let broken = take(&one, "broken").await;
            // The library sends this request only once. It fails if its connection has ended in the meantime, so the
            // test repeats it.
            while let Err(error) = lock(&other, "broken").break_lock().await {
                assert_eq!(error.kind(), ErrorKind::Unavailable, "{turned}: {error}");
            }
            let told = timeout(SOON, broken.lost()).await;
            assert_eq!(told, Ok(LossReason::EntryDeleted), "{turned}");
            let held = take(&one, "vol").await;
            let waits = lock(&other, "vol");
            let waiting = tokio::spawn(async move { waits.acquire(Some(SOON)).await });
            while lock(&one, "vol").holders().await.expect("it can be read").len() < 2 {}
            held.release().await.expect("the store confirms");
            let next = waiting.await.expect("no panic").expect("it is released");
            next.release().await.expect("the store confirms");
            assert!(kept.is_held(), "{turned}");
        }
    });
}

/// A waiter goes on waiting while the server does not accept its password, and gets the lock after the password is
/// correct again.
#[test]
fn f56_password_changed_while_waiting() {
    rerun_on_threads(async || {
        let etcd = block_in_place(|| Etcd::options().users("").start());
        let url = format!("etcd://{}{}", Etcd::user_information(), etcd.authority());
        let one = Coordinator::connect(&url).await.expect("the server is there");
        let other = Coordinator::connect(&url).await.expect("the server is there");
        let _held = lock(&one, "vol").acquire(Some(SOON)).await.expect("it is free");
        let keys = block_in_place(|| etcd.keys("coordination/lock/vol/"));
        let waits = lock(&other, "vol");
        let waiting = tokio::spawn(async move { waits.acquire(Some(SOON)).await });
        while lock(&one, "vol").holders().await.expect("it can be read").len() < 2 {}
        block_in_place(|| {
            etcd.change_password("another");
            // Without this key the lock is free for the waiter, whose session lives. But the server does not accept
            // the waiter's password.
            assert!(etcd.delete_key(&keys[0]));
        });
        sleep(Duration::from_secs(1)).await;
        assert!(!waiting.is_finished(), "{:?}", waiting.await);
        block_in_place(|| etcd.change_password(USER_PASSWORD));
        let guard = waiting.await.expect("no panic").expect("it is its turn");
        guard.release().await.expect("the store confirms");
    });
}

/// A worker that waits for an item goes on waiting while the server does not accept its password, and claims the item
/// after the password is correct again.
#[test]
fn f56_password_changed_while_a_worker_waits() {
    rerun_on_threads(async || {
        let etcd = block_in_place(|| Etcd::options().users("").start());
        let url = format!("etcd://{}{}", Etcd::user_information(), etcd.authority());
        let client = Coordinator::connect(&url).await.expect("the server is there");
        let jobs = client.queue("jobs").expect("a good name");
        let later = NewItem::new("job").delay(Duration::from_secs(2));
        jobs.post(&[later]).await.expect("the store confirms");
        let waits = jobs.clone();
        let options = ClaimOptions::default();
        let waiting = tokio::spawn(async move { waits.claim_wait(options, Some(SOON)).await });
        // Waits until the worker has found that no item is ready.
        sleep(Duration::from_secs(1)).await;
        block_in_place(|| etcd.change_password("another"));
        sleep(Duration::from_secs(2)).await;
        assert!(!waiting.is_finished(), "{:?}", waiting.await);
        block_in_place(|| etcd.change_password(USER_PASSWORD));
        let claim = waiting.await.expect("no panic").expect("it is let in again");
        assert_eq!(claim.expect("the item is ready").ack_all().await.expect("it is ours"), 1);
    });
}
