//! F-36: the disk that has the tables is full, while there is room for the server's log.

use std::fs;
use std::time::Duration;

use coordination::{Coordinator, ErrorKind};
use tokio::task::block_in_place;
use tokio::time::sleep;

use super::super::{PATIENCE, one};
use super::{Faulty, LONG};

/// More locks than there is room for in what the tables have of the disk already.
const MANY: usize = 20_000;

/// F-36: the tables cannot become larger. What is held stays held, who waits for a lock is served, and new entries are refused with
/// `Quota` until there is room.
pub(crate) async fn f36_what_is_held_is_kept_while_the_disk_is_full<S: Faulty>() {
    let server = one::<S>();
    let (disk, url) = block_in_place(|| server.on_a_small_disk());
    let holder = Coordinator::connect(&url).await.expect("a server");
    let other = Coordinator::connect(&url).await.expect("a server");
    let lock = holder.lock("x").expect("a name");
    let held = lock.acquire(PATIENCE).await.expect("free");
    let waits = other.lock("x").expect("a name");
    let waiting = tokio::spawn(async move { waits.acquire(Some(4 * LONG)).await });
    while lock.holders().await.expect("listed").len() < 2 {}
    let filler = block_in_place(|| disk.fill());
    let mut more = Vec::new();
    let refused = loop {
        let lock = holder.lock(format!("more-{}", more.len())).expect("a name");
        match lock.acquire(PATIENCE).await {
            Ok(guard) => more.push(guard),
            Err(error) => break error,
        }
        assert!(more.len() < MANY, "the disk is not full");
    };
    println!("F-36 {}: {} more, and then {refused}", server.scheme(), more.len());
    assert_eq!(refused.kind(), ErrorKind::Quota, "{refused}");
    // Two leases.
    sleep(Duration::from_secs(4)).await;
    assert!(held.is_held() && more.iter().all(|guard| guard.is_held()), "a session was lost");
    held.release().await.expect("that takes no room");
    let next = waiting.await.expect("no panic").expect("who waits is served");
    fs::remove_file(filler).expect("it is ours");
    let free = other.lock("free").expect("a name");
    free.acquire(Some(LONG)).await.expect("there is room").release().await.expect("released");
    next.release().await.expect("released");
    drop(more);
    other.stop().await.expect("stopped");
}
