//! G1: what a join or a leave leaves behind if it is dropped before it returns.

use super::super::interruption::{Pair, at_every_poll};
use super::*;

/// G1: a join that is dropped at any poll leaves no member, and the next join works.
pub async fn g1_dropped_join_leaves_nobody(store: &TestStore) -> Result<()> {
    let least = store.rounds(1, 2);
    at_every_poll(store, "join", least, interrupted_join).await?;
    at_every_poll(store, "join_or_create", least, interrupted_join_or_create).await?;
    at_every_poll(store, "leave", least, interrupted_leave).await?;
    let here = group(&store.connect("one").await?);
    // A store in memory ends with its last client, and the group with it.
    if !here.exists().await? {
        here.create().await?;
    }
    let there = group(&store.connect("other").await?);
    // The entry of a dropped join may still be on its way to the store. The next join waits until it is gone.
    for _ in 0..store.rounds(50, 20) {
        tokio::select! {
            biased;
            joined = here.join(&()) => drop(joined?),
            () = std::future::ready(()) => {}
        }
        here.join(&()).await?.leave().await?;
    }
    until_members(&there, &[]).await;
    there.delete().await
}

/// Case: a client joins a group.
pub async fn interrupted_join(pair: &Pair<'_>) -> Result<()> {
    let (here, there) = groups(pair).await?;
    drop(pair.interrupt(here.join(&())).await?);
    // There is no pause before this join: it waits until the entry of the interrupted join is removed.
    here.join(&()).await?.leave().await?;
    nobody_is_left(pair, &there).await
}

/// Case: a client joins a group, and creates it if it does not exist.
pub async fn interrupted_join_or_create(pair: &Pair<'_>) -> Result<()> {
    let (here, there) = groups(pair).await?;
    // The entry of the last dropped join may still arrive, and is then removed. Until then the group cannot be deleted.
    while let Err(error) = there.delete().await {
        assert_eq!(error.kind(), ErrorKind::GroupNotEmpty, "{error}");
        sleep(Duration::from_millis(5)).await;
    }
    drop(pair.interrupt(here.join_or_create(&())).await?);
    // Creates the group if the interrupted call has not created it, so that the group can be read.
    let _ = there.create().await;
    nobody_is_left(pair, &there).await
}

/// Case: a member leaves its group.
pub async fn interrupted_leave(pair: &Pair<'_>) -> Result<()> {
    let (here, there) = groups(pair).await?;
    let membership = here.join(&()).await?;
    pair.interrupt(membership.leave()).await?;
    nobody_is_left(pair, &there).await
}

/// The group as a handle of each client; created if it does not exist.
async fn groups(pair: &Pair<'_>) -> Result<(Group, Group)> {
    let (here, there) = (group(&pair.one), group(&pair.other));
    if !there.exists().await? {
        there.create().await?;
    }
    Ok((here, there))
}

async fn nobody_is_left(pair: &Pair<'_>, there: &Group) -> Result<()> {
    let start = Instant::now();
    until_members(there, &[]).await;
    let took = start.elapsed();
    // Ten times as long as the entry of a cancelled call may stay (C2).
    assert!(took <= Duration::from_secs(1) + pair.store.scheduling(), "{pair:?}: {took:?}");
    Ok(())
}
