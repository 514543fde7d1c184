//! W1: a writer that downgrades its lock to a shared one.

use super::*;
use crate::must_hold;

/// W1: a downgrade keeps the token, and admits the readers that are next in the queue, but none behind a waiting
/// writer.
pub async fn w1_downgrade_lets_readers_in(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let held = acquire(&one).await?;
    let first = share_in_background(&other);
    until_contenders(store, &lock(&one), 2).await;
    let writer = acquire_in_background(&other);
    until_contenders(store, &lock(&one), 3).await;
    let late = share_in_background(&one);
    until_contenders(store, &lock(&one), 4).await;
    let token = held.token();
    let held = held.downgrade().await?;
    assert!(held.is_held() && held.is_shared() && held.token() == token);
    let first = served(store, first).await?;
    // The pause is long enough for a heartbeat to check the changed entry, and for watchers of the entry to see the
    // change.
    sleep(2 * store.heartbeat() + MOMENT).await;
    assert!(held.is_held() && first.is_held());
    assert!(!writer.is_finished() && !late.is_finished());
    let holders = lock(&one).holders().await?;
    let seen: Vec<_> = holders.iter().map(|one| (one.holding, one.shared)).collect();
    assert_eq!(seen, [(true, true), (true, true), (false, false), (false, true)]);
    must_hold!(token < first.token());
    held.release().await?;
    first.release().await?;
    let writer = served(store, writer).await?;
    assert!(!late.is_finished());
    writer.release().await?;
    served(store, late).await?.release().await
}

/// W1: if nobody waits, a downgrade opens the lock for readers that come later.
pub async fn w1_downgrade_opens_the_lock(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let held = acquire(&one).await?.downgrade().await?;
    let beside = lock(&other).try_acquire_shared().await?.expect("readers share");
    assert!(lock(&other).try_acquire().await?.is_none());
    // A second downgrade changes nothing.
    let held = held.downgrade().await?;
    assert!(held.is_held());
    must_hold!(held.token() < beside.token());
    held.release().await?;
    assert!(lock(&one).try_acquire().await?.is_none());
    beside.release().await?;
    take_turn(&one).await.map(drop)
}

/// W1: a holder has waited behind many entries, so that on some stores its process has not read the whole queue.
/// After this holder has downgraded its lock, `try_acquire_shared` succeeds in the same process.
pub async fn w1_a_downgrade_behind_many_opens_the_lock(store: &TestStore) -> Result<()> {
    const MANY: usize = 40;
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let mut shares = Vec::new();
    for _ in 0..MANY {
        shares.push(share(&other).await?);
    }
    let writer = acquire_in_background(&one);
    until_contenders(store, &lock(&other), MANY + 1).await;
    for share in shares {
        share.release().await?;
    }
    let held = served(store, writer).await?;
    assert!(lock(&one).try_acquire_shared().await?.is_none(), "it is held alone");
    let held = held.downgrade().await?;
    let beside = lock(&one).try_acquire_shared().await?.expect("readers share");
    must_hold!(held.token() < beside.token());
    assert!(lock(&one).try_acquire().await?.is_none(), "it is held shared");
    held.release().await?;
    beside.release().await?;
    take_turn(&one).await.map(drop)
}

/// W1: downgrading a lock that was lost is an error, and affects no other holder.
pub async fn w1_downgrade_after_a_loss(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let held = acquire(&one).await?;
    lock(&other).break_lock().await?;
    let next = acquire(&other).await?;
    // The downgrade fails whether or not the holder has learned of the loss already.
    let refused = held.downgrade().await.expect_err("it was broken");
    assert_eq!(refused.kind(), ErrorKind::Lost);
    assert!(lock(&one).try_acquire_shared().await?.is_none());
    assert!(next.is_held());
    next.release().await
}

/// W1: a lock is made shared under its guard, which stays, also when that fails.
pub async fn w1_sharing_keeps_the_guard(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let held = acquire(&one).await?;
    let token = held.token();
    assert!(!held.is_shared());
    held.share().await?;
    assert!(held.is_held() && held.is_shared() && held.token() == token);
    let beside = lock(&other).try_acquire_shared().await?.expect("readers share");
    assert!(lock(&other).try_acquire().await?.is_none());
    held.share().await?;
    assert!(held.is_held() && beside.is_held(), "it was shared already");
    lock(&other).break_grant(token).await?.expect("it is held");
    assert_eq!(held.share().await.expect_err("it was broken").kind(), ErrorKind::Lost);
    assert!(!held.is_held() && beside.is_held());
    beside.release().await
}

/// W1, C1: a downgrade that is dropped at any poll releases the lock.
pub async fn w1_a_dropped_downgrade_releases(store: &TestStore) -> Result<()> {
    at_every_poll(store, "downgrade", store.rounds(1, 2), interrupted_downgrade).await
}

/// Case: a holder downgrades its lock, and then another client shares it.
pub async fn interrupted_downgrade(pair: &Pair<'_>) -> Result<()> {
    let held = acquire(&pair.one).await?;
    let shared = pair.interrupt(held.downgrade()).await?;
    if let Some(shared) = &shared {
        assert!(shared.is_held() && shared.is_shared(), "{pair:?}");
        share(&pair.other).await?.release().await?;
    }
    drop(shared);
    nothing_is_left(pair.store, &pair.other, &format!("{pair:?}")).await
}

/// Case: a client waits for a shared lock, and the writer downgrades meanwhile.
pub async fn interrupted_wait_for_a_downgrade(pair: &Pair<'_>) -> Result<()> {
    let held = acquire(&pair.other).await?;
    let lock = lock(&pair.one);
    let downgrading = tokio::spawn(async move {
        sleep(MOMENT / 2).await;
        held.downgrade().await
    });
    let granted = pair.interrupt(lock.acquire_shared(pair.patience())).await?;
    let downgraded = downgrading.await.expect("no panic")?;
    assert!(downgraded.is_held(), "{pair:?}");
    assert!(granted.as_ref().is_none_or(|share| share.is_held()), "{pair:?}");
    drop((granted, downgraded));
    nothing_is_left(pair.store, &pair.other, &format!("{pair:?}")).await
}
