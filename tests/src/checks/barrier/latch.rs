//! BR3: a latch lets nobody go before its count is zero.

use coordination::{Coordinator, Effect, ErrorKind, Latch, Result};
use serde_json::json;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{sleep, timeout};

use super::super::TestStore;
use super::super::tools::{ANSWERED, MOMENT, PATIENCE, assert_out_of_time, drop_after_polls};
use super::{NAME, latch};
use crate::harness::{Mode, eventually_async};

/// BR3: each call of `count_down` counts once, whichever client makes it. Waits end when the count has reached zero,
/// and not before.
pub async fn br3_each_count_counts_once(store: &TestStore) -> Result<()> {
    const COUNT: u32 = 15;
    let first = store.connect("first").await?;
    let waiting = {
        let latch = latch(&first, COUNT);
        tokio::spawn(async move { latch.wait(Some(PATIENCE)).await })
    };
    let mut counting = JoinSet::new();
    for _ in 0..3 {
        // This check uses the default lease instead of the tests' short one: on a busy machine many answers would come
        // too late, so that their outcome would be unknown.
        let coordinator = Coordinator::connect(store.url()).await?;
        for _ in 0..5 {
            let latch = latch(&coordinator, COUNT);
            counting.spawn(async move { latch.count_down().await });
        }
    }
    let mut seen = Vec::new();
    while let Some(remaining) = counting.join_next().await {
        let remaining = remaining.expect("no panic")?;
        // If the wait has ended, the count must be zero, although some calls of `count_down` may have no answer yet.
        if waiting.is_finished() {
            assert_eq!(latch(&first, COUNT).remaining().await?, 0);
        }
        seen.push(remaining);
    }
    seen.sort_unstable();
    assert_eq!(seen, (0..COUNT).collect::<Vec<_>>());
    timeout(PATIENCE, waiting).await.expect("let go").expect("no panic")?;
    // A further `count_down` leaves the count at zero.
    assert_eq!(latch(&first, COUNT).count_down().await?, 0);
    latch(&first, COUNT).wait(Some(std::time::Duration::ZERO)).await
}

/// BR3: a wait goes on while one count is missing, and dropped waits leave nothing behind.
pub async fn br3_dropped_waits(store: &TestStore) -> Result<()> {
    let coordinator = store.connect("one").await?;
    let latch = latch(&coordinator, 2);
    latch.count_down().await?;
    for polls in 0..store.rounds(20, 8) {
        assert!(!drop_after_polls(latch.wait(None), polls).await, "one is missing");
    }
    let refused = latch.wait(Some(2 * MOMENT)).await.expect_err("one is missing");
    assert!(matches!(refused.kind(), ErrorKind::Timeout | ErrorKind::Unavailable), "{refused}");
    assert_eq!(latch.remaining().await?, 1);
    latch.count_down().await?;
    latch.wait(Some(PATIENCE)).await
}

/// BR3: a wait that has begun returns when the count reaches zero, even if the latch is reset at once. A reset before
/// the count is zero ends no wait.
pub async fn br3_reset_at_once(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let (mine, theirs) = (latch(&one, 2), latch(&other, 2));
    let wait = |latch: &Latch| {
        let latch = latch.clone();
        tokio::spawn(async move { latch.wait(Some(PATIENCE)).await })
    };
    for round in 0..store.rounds(10, 4) {
        let waiting: Vec<_> = [&mine, &theirs, &mine, &theirs].into_iter().map(wait).collect();
        // After this pause, each waiter has read a count above zero.
        sleep(2 * ANSWERED).await;
        theirs.count_down().await?;
        theirs.reset().await?;
        sleep(2 * MOMENT).await;
        assert!(!waiting.iter().any(JoinHandle::is_finished), "it was not at zero");
        theirs.count_down().await?;
        theirs.count_down().await?;
        theirs.reset().await?;
        for waiting in waiting {
            let let_go = timeout(PATIENCE / 2, waiting).await;
            let_go.unwrap_or_else(|_| panic!("round {round}: it was zero")).expect("no panic")?;
        }
        let refused = mine.wait(Some(ANSWERED)).await.expect_err("a new round");
        assert_out_of_time(&refused, ANSWERED);
        assert_eq!(mine.remaining().await?, 2);
    }
    Ok(())
}

/// BR3: counts stay when the session of the client that counted is lost.
pub async fn br3_counts_belong_to_nobody(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    assert_eq!(latch(&one, 2).count_down().await?, 1);
    store.lose(&one, "one").await?;
    assert_eq!(latch(&other, 2).count_down().await?, 0);
    latch(&other, 2).wait(Some(PATIENCE)).await
}

/// BR3: counts stay when the process that counted is killed.
pub async fn br3_counts_survive_a_kill(store: &TestStore) -> Result<()> {
    let coordinator = store.connect("one").await?;
    let waiting = {
        let latch = latch(&coordinator, 2);
        tokio::spawn(async move { latch.wait(Some(PATIENCE)).await })
    };
    for number in 0..2 {
        assert!(!waiting.is_finished());
        let worker = store.worker(&format!("counter-{number}"));
        let count = json!({ "command": "count_down", "latch": NAME, "count": 2 });
        assert_eq!(worker.call(count)["remaining"], 1 - number);
        worker.kill();
    }
    timeout(PATIENCE, waiting).await.expect("let go").expect("no panic")
}

/// BR3: while the store does not answer, no call of `count_down` is confirmed. After the outage, counting goes on, and
/// the wait of the client that was cut off ends at zero.
pub async fn br3_cut_off(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect_by_proxy("one").await?, store.connect("other").await?);
    let (mine, theirs) = (latch(&one, 5), latch(&other, 5));
    assert_eq!(mine.count_down().await?, 4);
    store.proxy().set_both(Mode::Blackhole);
    let refused = mine.count_down().await.expect_err("cut off");
    assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
    assert_eq!(theirs.count_down().await?, 3);
    store.proxy().heal();
    let counted = async || mine.count_down().await.is_ok();
    eventually_async(PATIENCE, counted).await;
    assert!(theirs.remaining().await? <= 2);
    while theirs.count_down().await? > 0 {}
    mine.wait(Some(PATIENCE)).await
}

/// BR3: the initial count is stored; a client with another count gets an error until the latch is reset, and so does a
/// client with a count of zero.
pub async fn br3_another_count_is_an_error(store: &TestStore) -> Result<()> {
    let coordinator = store.connect("one").await?;
    assert_eq!(latch(&coordinator, 2).remaining().await?, 2);
    latch(&coordinator, 2).count_down().await?;
    let other = latch(&coordinator, 3);
    let refusals = [
        other.count_down().await.map(drop),
        other.remaining().await.map(drop),
        other.wait(Some(PATIENCE)).await,
    ];
    for refused in refusals {
        let refused = refused.expect_err("from two");
        assert_eq!((refused.kind(), refused.effect()), (ErrorKind::Mismatch, Effect::None));
        let text = refused.to_string();
        assert!(text.contains("from 2") && text.contains("3 was"), "{text}");
    }
    other.reset().await?;
    assert_eq!(other.count_down().await?, 2);
    let refused = coordinator.latch(NAME, 0).expect_err("from zero");
    assert_eq!(refused.kind(), ErrorKind::Input);
    Ok(())
}
