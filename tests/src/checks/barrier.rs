//! BR1: barriers let nobody through too early, and everybody in time. The modules below have the checks of double
//! barriers (BR2) and of latches (BR3).

mod double;
mod latch;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use coordination::blocking::wait;
use coordination::{Barrier, Coordinator, DoubleBarrier, ErrorKind, Latch, Result};
use serde_json::json;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{sleep, timeout};

use super::TestStore;
use super::tools::{
    ANSWERED, MOMENT, PATIENCE, assert_out_of_time, drop_after_polls, without_a_runtime,
};
use crate::harness::Mode;

pub use double::*;
pub use latch::*;

const NAME: &str = "phase";

fn barrier(coordinator: &Coordinator) -> Barrier {
    coordinator.barrier(NAME).expect("a valid name")
}

fn double(coordinator: &Coordinator, parties: u32) -> DoubleBarrier {
    coordinator.double_barrier(NAME, parties).expect("allowed")
}

fn latch(coordinator: &Coordinator, count: u32) -> Latch {
    coordinator.latch(NAME, count).expect("allowed")
}

fn wait_in_background(barrier: &Barrier) -> JoinHandle<Result<()>> {
    let barrier = barrier.clone();
    tokio::spawn(async move { barrier.wait(Some(PATIENCE)).await })
}

/// BR1: no waiter passes a closed barrier. When the barrier is opened, all waiters pass.
pub async fn br1_lets_go_all_and_nobody_before(store: &TestStore) -> Result<()> {
    let first = store.connect("first").await?;
    assert!(barrier(&first).is_open().await?);
    barrier(&first).wait(None).await?;
    for round in 0..3 {
        assert!(barrier(&first).close().await?);
        assert!(!barrier(&first).close().await?, "closed already");
        let opened = Arc::new(AtomicBool::new(false));
        let mut waiting = JoinSet::new();
        for client in 0..2 {
            let coordinator = store.connect(&format!("client-{round}-{client}")).await?;
            for _ in 0..10 {
                let (barrier, opened) = (barrier(&coordinator), Arc::clone(&opened));
                waiting.spawn(async move {
                    barrier.wait(Some(PATIENCE)).await?;
                    assert!(opened.load(Ordering::SeqCst), "too early");
                    Ok::<_, coordination::Error>(())
                });
            }
        }
        sleep(MOMENT).await;
        opened.store(true, Ordering::SeqCst);
        assert!(barrier(&first).open().await?);
        while let Some(outcome) = waiting.join_next().await {
            outcome.expect("no panic")?;
        }
        assert!(!barrier(&first).open().await?, "open already");
    }
    Ok(())
}

/// BR1: a barrier that was closed a moment ago blocks, also in a process that has just seen it open.
pub async fn br1_what_was_just_closed_holds(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let mine = barrier(&one);
    for round in 0..store.rounds(20, 6) {
        // A waiter of this process follows the barrier, so that the process has seen it open.
        mine.close().await?;
        let waiting = wait_in_background(&mine);
        sleep(MOMENT / 10).await;
        barrier(&other).open().await?;
        timeout(PATIENCE, waiting).await.expect("let go").expect("no panic")?;
        let closing = if round % 2 == 0 { &one } else { &other };
        barrier(closing).close().await?;
        let refused = mine.wait(Some(MOMENT / 5)).await.expect_err("it is closed");
        assert!(matches!(refused.kind(), ErrorKind::Timeout | ErrorKind::Unavailable), "{refused}");
        let refused = mine.wait(Some(std::time::Duration::ZERO)).await.expect_err("it is closed");
        assert!(matches!(refused.kind(), ErrorKind::Timeout | ErrorKind::Unavailable), "{refused}");
    }
    Ok(())
}

/// BR1: a caller that waits when the barrier is opened may pass, although the barrier is closed again at once.
pub async fn br1_opened_for_a_moment(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let (mine, theirs) = (barrier(&one), barrier(&other));
    mine.close().await?;
    for round in 0..store.rounds(10, 4) {
        let waiting: Vec<_> =
            [&mine, &theirs, &mine, &theirs].into_iter().map(wait_in_background).collect();
        // After this pause, each waiter has seen that the barrier is closed.
        sleep(2 * ANSWERED).await;
        theirs.open().await?;
        theirs.close().await?;
        for waiting in waiting {
            let let_go = timeout(PATIENCE / 2, waiting).await;
            let_go.unwrap_or_else(|_| panic!("round {round}: it was open")).expect("no panic")?;
        }
        let refused = mine.wait(Some(ANSWERED)).await.expect_err("who comes now finds it closed");
        assert_out_of_time(&refused, ANSWERED);
    }
    Ok(())
}

/// BR1: dropped waits leave nothing behind, and other waiters pass when the barrier is opened.
pub async fn br1_dropped_waits(store: &TestStore) -> Result<()> {
    let coordinator = store.connect("one").await?;
    let barrier = barrier(&coordinator);
    barrier.close().await?;
    let stays = wait_in_background(&barrier);
    for polls in 0..store.rounds(20, 10) {
        assert!(!drop_after_polls(barrier.wait(None), polls).await, "it is closed");
    }
    let aborted = wait_in_background(&barrier);
    sleep(MOMENT).await;
    aborted.abort();
    barrier.open().await?;
    timeout(PATIENCE, stays).await.expect("let go").expect("no panic")
}

/// BR1: a barrier stays closed when the session of the client that closed it is lost, and any client can open it.
pub async fn br1_belongs_to_nobody(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    barrier(&one).close().await?;
    let waiting = wait_in_background(&barrier(&other));
    store.lose(&one, "one").await?;
    sleep(MOMENT).await;
    assert!(!waiting.is_finished());
    assert!(!barrier(&other).is_open().await?);
    assert!(barrier(&other).open().await?);
    timeout(PATIENCE, waiting).await.expect("let go").expect("no panic")
}

/// BR1: a barrier stays closed when the process that closed it is killed.
pub async fn br1_stays_closed_after_a_kill(store: &TestStore) -> Result<()> {
    let worker = store.worker("closer");
    let close = json!({ "command": "close_barrier", "barrier": NAME });
    assert_eq!(worker.call(close)["closed"], true);
    worker.kill();
    let coordinator = store.connect("one").await?;
    assert!(!barrier(&coordinator).is_open().await?);
    let refused = barrier(&coordinator).wait(Some(2 * MOMENT)).await.expect_err("it is closed");
    assert!(matches!(refused.kind(), ErrorKind::Timeout | ErrorKind::Unavailable), "{refused}");
    barrier(&coordinator).open().await.map(drop)
}

/// BR1: a barrier is opened while a waiter is cut off. The waiter passes as soon as it is reconnected. A wait with a
/// timeout ends in time, also while its client is cut off.
pub async fn br1_cut_off(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect_by_proxy("one").await?, store.connect("other").await?);
    barrier(&other).close().await?;
    let waiting = {
        let barrier = barrier(&one);
        tokio::spawn(async move { barrier.wait(None).await })
    };
    sleep(MOMENT).await;
    store.proxy().set_both(Mode::Blackhole);
    barrier(&other).open().await?;
    let start = Instant::now();
    let refused = barrier(&one).wait(Some(4 * MOMENT)).await.expect_err("cut off");
    assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
    assert!(start.elapsed() <= 6 * MOMENT + store.scheduling(), "{:?}", start.elapsed());
    assert!(!waiting.is_finished());
    store.proxy().heal();
    timeout(PATIENCE, waiting).await.expect("let go").expect("no panic")
}

/// BR1–BR3: barriers, double barriers and latches work on threads without an async runtime.
pub async fn br1_without_a_runtime(store: &TestStore) -> Result<()> {
    let coordinator = store.connect("one").await?;
    without_a_runtime(move || {
        let (barrier, latch) = (barrier(&coordinator), latch(&coordinator, 1));
        wait(barrier.close())?;
        let refused = wait(barrier.wait(Some(ANSWERED))).expect_err("it is closed");
        assert_out_of_time(&refused, ANSWERED);
        wait(barrier.open())?;
        wait(barrier.wait(None))?;
        wait(latch.count_down())?;
        wait(latch.wait(Some(PATIENCE)))?;
        let inside = wait(double(&coordinator, 1).enter(Some(PATIENCE)))?;
        wait(inside.leave(Some(PATIENCE)))
    })
    .await
}
