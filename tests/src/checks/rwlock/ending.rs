//! W1: readers and writers that give up, or whose sessions or processes end.

use std::time::Instant;

use coordination::{BootInstant, LossReason};

use super::super::tools::{ANSWERED, Probe, assert_out_of_time};
use super::*;
use crate::harness::Mode;
use crate::must_hold;

/// W1, L3: when a waiting writer gives up, the readers behind it are admitted, although other readers hold the lock.
pub async fn w1_a_writer_who_gives_up_blocks_nobody(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let reading = share(&one).await?;
    // The writer gives up because its call is dropped.
    let writer = acquire_in_background(&other);
    until_contenders(store, &lock(&one), 2).await;
    let reader = share_in_background(&one);
    until_contenders(store, &lock(&one), 3).await;
    writer.abort();
    let reader = served(store, reader).await?;
    assert!(reading.is_held() && reader.is_held());
    reader.release().await?;
    // The writer gives up by a timeout, while the reader waits.
    let refused = lock(&other);
    let writer = tokio::spawn(async move { refused.acquire(Some(ANSWERED)).await });
    sleep(2 * MOMENT).await;
    served(store, share_in_background(&one)).await?.release().await?;
    let refused = writer.await.expect("no panic").expect_err("it is shared");
    assert_out_of_time(&refused, ANSWERED);
    until_contenders(store, &lock(&one), 1).await;
    reading.release().await
}

/// W1: when a session ends, its shared locks, its exclusive lock and its waiting entries are removed.
pub async fn w1_a_session_that_ends_lets_others_in(store: &TestStore) -> Result<()> {
    let other = store.connect("other").await?;
    // A reader's session ends while a writer waits.
    let dying = store.connect("dying").await?;
    let lost = share(&dying).await?;
    let writer = acquire_in_background(&other);
    until_contenders(store, &lock(&other), 2).await;
    dying.stop().await?;
    assert_eq!(lost.lost().await, LossReason::Closed);
    must_hold!(!lost.is_held());
    let held = served(store, writer).await?;
    drop(lost);
    assert!(held.is_held());
    held.release().await?;
    // A writer's session ends while two readers wait.
    let dying = store.connect("dying").await?;
    let lost = acquire(&dying).await?;
    let readers = [share_in_background(&other), share_in_background(&other)];
    until_contenders(store, &lock(&other), 3).await;
    dying.stop().await?;
    assert_eq!(lost.lost().await, LossReason::Closed);
    let [first, second] = readers;
    let readers = (served(store, first).await?, served(store, second).await?);
    // The session of a waiting writer ends while a reader waits behind it.
    let dying = store.connect("dying").await?;
    let waiting = acquire_in_background(&dying);
    until_contenders(store, &lock(&other), 3).await;
    let behind = share_in_background(&other);
    until_contenders(store, &lock(&other), 4).await;
    dying.stop().await?;
    let refused = waiting.await.expect("no panic").expect_err("it is closed");
    assert_eq!(refused.kind(), ErrorKind::Closed);
    let behind = served(store, behind).await?;
    assert!(readers.0.is_held() && readers.1.is_held() && behind.is_held());
    Ok(())
}

/// W1, S6: readers and writers are granted the lock only by their own live entry; if the entry is gone, they queue
/// again.
pub async fn w1_own_entry_check_on_both_sides(store: &TestStore) -> Result<()> {
    for waits_for_a_share in [true, false] {
        let holder = store.connect("holder").await?;
        let waiter = store.connect("waiter").await?;
        let held = if waits_for_a_share { acquire(&holder).await? } else { share(&holder).await? };
        let waiting = match waits_for_a_share {
            true => share_in_background(&waiter),
            false => acquire_in_background(&waiter),
        };
        until_contenders(store, &lock(&holder), 2).await;
        let old = lock(&holder).holders().await?[1].token;
        if store.has_server() && waits_for_a_share {
            assert!(store.server().delete_entry(&store.entry("lock", old)));
        } else {
            store.end_session("waiter");
        }
        held.release().await?;
        let guard = waiting.await.expect("no panic")?;
        must_hold!(guard.token() > old, "a dead entry was granted");
        assert!(guard.is_held() && guard.is_shared() == waits_for_a_share);
        sleep(3 * store.heartbeat()).await;
        assert!(guard.is_held());
        let holders = lock(&holder).holders().await?;
        assert!(holders.len() == 1 && holders[0].token == guard.token(), "{holders:?}");
        guard.release().await?;
        waiter.stop().await?;
        holder.stop().await?;
    }
    Ok(())
}

/// W1, L1: when the process of a reader or writer is killed, the next contenders get the lock within the crash bound.
pub async fn w1_killed_readers_and_writers_are_followed(store: &TestStore) -> Result<()> {
    let coordinator = store.connect("survivor").await?;
    // A reader's process is killed while a writer waits.
    let worker = store.worker("reader");
    worker.call(json!({ "command": "acquire_shared", "lock": NAME }));
    let waiting = acquire_in_background(&coordinator);
    until_contenders(store, &lock(&coordinator), 2).await;
    let killed = Instant::now();
    worker.kill();
    waiting.await.expect("no panic")?.release().await?;
    let took = killed.elapsed();
    eprintln!("W1: a killed reader is followed after {took:?}");
    assert!(took <= store.crash_bound(), "{took:?}");
    // A process with two writers is killed: one of them holds the lock, and the other waits between two waiting
    // readers.
    let worker = store.worker("writer");
    worker.call(json!({ "command": "acquire", "lock": NAME }));
    let first = share_in_background(&coordinator);
    until_contenders(store, &lock(&coordinator), 2).await;
    worker.send(json!({ "command": "acquire", "lock": NAME, "as": "again" }));
    until_contenders(store, &lock(&coordinator), 3).await;
    let second = share_in_background(&coordinator);
    until_contenders(store, &lock(&coordinator), 4).await;
    let killed = Instant::now();
    worker.kill();
    let first = first.await.expect("no panic")?;
    let second = second.await.expect("no panic")?;
    let took = killed.elapsed();
    eprintln!("W1: a killed writer is followed after {took:?}");
    assert!(took <= store.crash_bound(), "{took:?}");
    assert!(first.is_held() && second.is_held());
    Ok(())
}

/// W1, S3: a reader that is cut off knows that its shared lock is lost before a writer gets the lock.
pub async fn w1_a_reader_cut_off_knows_before_a_writer_is_let_in(store: &TestStore) -> Result<()> {
    let (reader, other) = (store.connect_by_proxy("reader").await?, store.connect("other").await?);
    let reading = Arc::new(share(&reader).await?);
    let beside = share(&other).await?;
    let writer = acquire_in_background(&other);
    until_contenders(store, &lock(&other), 3).await;
    let probe = Probe::start(&reading);
    store.proxy().set_both(Mode::Blackhole);
    let cut = Instant::now();
    beside.release().await?;
    let next = writer.await.expect("no panic")?;
    let granted = BootInstant::now();
    must_hold!(!reading.is_held());
    assert!(probe.last_held().await < granted);
    assert!(cut.elapsed() <= store.crash_bound(), "{:?}", cut.elapsed());
    assert!(next.is_held());
    must_hold!(next.token() > reading.token());
    next.release().await?;
    // The reader can share the lock again, with its next session.
    store.proxy().heal();
    share(&reader).await?.release().await
}
