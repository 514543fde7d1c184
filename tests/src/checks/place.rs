//! PL1: whoever waits can be told how many are before it.

use coordination::{Place, Result};

use super::TestStore;
use super::tools::{PATIENCE, acquire, acquire_in_background, lock, until, until_contenders};

/// PL1: of a lock, where nobody reads the queue as long as nobody looks.
pub async fn pl1_of_a_lock(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let place = Place::new();
    let held = place.of(acquire(&one)).await?;
    assert_eq!((place.token(), place.look().await?), (None, None), "it is granted");
    let first = acquire_in_background(&other);
    until_contenders(store, &lock(&one), 2).await;
    let second = tokio::spawn({
        let (place, lock) = (place.clone(), lock(&other));
        async move { place.of(lock.acquire(Some(PATIENCE))).await }
    });
    until(async || Ok(place.token().is_some() && place.is_blocked())).await;
    assert_eq!((place.ahead(), place.look().await?, place.ahead()), (None, Some(2), Some(2)));
    let token = place.token();
    let listed = lock(&one).holders().await?;
    assert_eq!(listed.last().map(|contender| contender.token), token);

    held.release().await?;
    let first = first.await.expect("no panic")?;
    until(async || Ok(place.look().await? == Some(1))).await;
    first.release().await?;
    let second = second.await.expect("no panic")?;
    assert_eq!(Some(second.token()), token);
    assert_eq!((place.token(), place.look().await?, place.ahead()), (None, None, Some(1)));
    second.release().await
}

/// PL1: of permits, where the queue is read whenever it may be somebody's turn, and each time it is told how many are left.
pub async fn pl1_of_a_permit(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let semaphore = one.semaphore("uploads", 2)?;
    let first = semaphore.acquire(Some(PATIENCE)).await?;
    let second = semaphore.acquire(Some(PATIENCE)).await?;
    let place = Place::new();
    let waits = tokio::spawn({
        let (place, semaphore) = (place.clone(), other.semaphore("uploads", 2)?);
        // Without a timeout, shortly before which the queue would be read in any case.
        async move { place.of(semaphore.acquire_many(2, None)).await }
    });
    until(async || Ok(place.ahead() == Some(2))).await;
    first.release().await?;
    until(async || Ok(place.ahead() == Some(1))).await;
    assert_eq!(place.look().await?, Some(1));
    second.release().await?;
    let permit = waits.await.expect("no panic")?;
    assert_eq!((place.ahead(), place.token()), (Some(0), None));
    permit.release().await
}
