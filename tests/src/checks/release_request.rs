//! RR1: holders of a lock are asked to let go of it, and nobody else is.

use coordination::{Coordinator, ErrorKind, FencingToken, LockGuard, Result};
use tokio::time::{sleep, timeout};

use super::tools::{
    ANSWERED, MOMENT, PATIENCE, acquire, acquire_in_background, drop_after_polls, lock,
    until_contenders,
};
use super::{SCHEDULING, TestStore};
use crate::harness::Mode;

/// Asks all holders to let go, and returns their tokens.
async fn ask(coordinator: &Coordinator) -> Result<Vec<FencingToken>> {
    let asked = lock(coordinator).request_release().await?;
    Ok(asked.into_iter().map(|holder| holder.token).collect())
}

/// Waits until the holder is told.
async fn told(guard: &LockGuard) -> Result<()> {
    timeout(PATIENCE, guard.release_requested()).await.expect("it is told")
}

/// Asserts that the holder is not told while a store that has something to tell would do so.
async fn assert_not_told(guard: &LockGuard) {
    assert!(!guard.is_release_requested());
    let told = timeout(ANSWERED + 4 * MOMENT, guard.release_requested()).await;
    assert!(told.is_err() && !guard.is_release_requested(), "nobody has asked it");
}

/// RR1: a request reaches the holder that listens, takes nothing away, and concerns no later holder.
pub async fn rr1_the_holder_is_asked(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let holder = acquire(&one).await?;
    assert_not_told(&holder).await;
    let waiting = acquire_in_background(&other);
    until_contenders(store, &lock(&one), 2).await;
    for _ in 0..2 {
        // Only the holder is asked, and to ask again changes nothing.
        assert_eq!(ask(&other).await?, [holder.token()]);
        told(&holder).await?;
        assert!(holder.is_held() && holder.is_release_requested());
    }
    holder.release().await?;
    let next = waiting.await.expect("no panic")?;
    assert_not_told(&next).await;
    assert_eq!(ask(&one).await?, [next.token()]);
    told(&next).await?;
    next.release().await
}

/// RR1: a holder that listens only after somebody has asked is told all the same.
pub async fn rr1_asked_before_it_listens(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let holder = acquire(&one).await?;
    assert_eq!(ask(&other).await?, [holder.token()]);
    told(&holder).await?;
    holder.release().await
}

/// RR1: nobody is asked if nobody holds the lock; what a holder was asked that has gone since, by whatever way, concerns nobody.
pub async fn rr1_who_follows_is_not_asked(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    assert_eq!(ask(&other).await?, []);
    for listens in [false, true] {
        let holder = acquire(&one).await?;
        assert_eq!(ask(&other).await?, [holder.token()]);
        if listens {
            told(&holder).await?;
        }
        drop(holder);
        let next = acquire(&other).await?;
        assert_not_told(&next).await;
        assert_eq!(ask(&one).await?, [next.token()]);
        lock(&one).break_lock().await?;
        let last = acquire(&one).await?;
        assert_not_told(&last).await;
        last.release().await?;
        assert_eq!(ask(&other).await?, []);
    }
    Ok(())
}

/// RR1: all who share the lock are asked; who shares it later is not.
pub async fn rr1_all_who_share_are_asked(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let share =
        async |coordinator: &Coordinator| lock(coordinator).acquire_shared(Some(PATIENCE)).await;
    let holders = [share(&one).await?, share(&other).await?, share(&one).await?];
    // The first one listens before, the others later.
    assert_not_told(&holders[0]).await;
    assert_eq!(ask(&other).await?, holders.each_ref().map(|holder| holder.token()));
    for holder in &holders {
        told(holder).await?;
    }
    let later = share(&other).await?;
    assert_not_told(&later).await;
    let [first, second, third] = holders;
    first.release().await?;
    let asked = [second.token(), third.token(), later.token()];
    assert_eq!(ask(&one).await?, asked);
    told(&later).await
}

/// RR1: no request is forgotten when the future that waits for it is dropped, or the future that makes it has been polled often
/// enough.
pub async fn rr1_dropped_futures_forget_nothing(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    for polls in 0..6 {
        let holder = acquire(&one).await?;
        drop_after_polls(holder.release_requested(), polls).await;
        drop_after_polls(lock(&other).request_release(), polls).await;
        assert_eq!(ask(&other).await?, [holder.token()]);
        drop_after_polls(holder.release_requested(), polls).await;
        told(&holder).await?;
        assert!(drop_after_polls(holder.release_requested(), 1).await, "it is known");
        holder.release().await?;
    }
    Ok(())
}

/// RR1: who waits to be asked learns that the lock was lost.
pub async fn rr1_a_loss_ends_the_wait(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let holder = acquire(&one).await?;
    let waiting = async { timeout(PATIENCE, holder.release_requested()).await.expect("it ends") };
    let breaking = async { lock(&other).break_lock().await };
    let (waited, broken) = tokio::join!(waiting, breaking);
    assert!(broken?.is_some());
    assert_eq!(waited.expect_err("nobody has asked").kind(), ErrorKind::Lost);
    drop(holder);
    let holder = acquire(&one).await?;
    one.stop().await?;
    let error = holder.release_requested().await.expect_err("nobody has asked");
    assert_eq!(error.kind(), ErrorKind::Closed);
    assert!(!holder.is_release_requested());
    Ok(())
}

/// RR1: a request that is made while the holder's connection is away is seen after that, at the latest with the next re-check.
pub async fn rr1_a_lost_notification_only_delays(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect_by_proxy("one").await?, store.connect("other").await?);
    let holder = acquire(&one).await?;
    assert_not_told(&holder).await;
    store.proxy().set_both(Mode::Stall);
    assert_eq!(ask(&other).await?, [holder.token()]);
    sleep(2 * MOMENT).await;
    store.proxy().reset_all();
    store.proxy().heal();
    let recheck = store.ttl().expect("the check is for leases").min(PATIENCE);
    let bound = recheck + 2 * store.attempt_timeout() + SCHEDULING + store.scheduling();
    timeout(bound, holder.release_requested()).await.expect("it is told")?;
    holder.release().await
}
