//! G1: what a join or a leave leaves that was dropped on its way.

use super::super::interruption::{Pair, at_every_poll};
use super::*;

/// G1: a join that is dropped at any point leaves nobody behind, and the next one works.
pub async fn g1_dropped_join_leaves_nobody(store: &TestStore) -> Result<()> {
    let least = store.rounds(1, 2);
    at_every_poll(store, "join", least, interrupted_join).await?;
    at_every_poll(store, "join_or_create", least, interrupted_join_or_create).await?;
    at_every_poll(store, "leave", least, interrupted_leave).await?;
    let here = group(&store.connect("one").await?);
    // In memory it went with the last of its clients.
    if !here.exists().await? {
        here.create().await?;
    }
    let there = group(&store.connect("other").await?);
    // While the entry of the dropped one is on its way: it comes first, and is to be waited for.
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

/// A group is joined.
pub async fn interrupted_join(pair: &Pair<'_>) -> Result<()> {
    let (here, there) = groups(pair).await?;
    drop(pair.interrupt(here.join(&())).await?);
    // At once: what is being given up is waited for.
    here.join(&()).await?.leave().await?;
    nobody_is_left(pair, &there).await
}

/// A group is created and joined, or only joined if it is there.
pub async fn interrupted_join_or_create(pair: &Pair<'_>) -> Result<()> {
    let (here, there) = groups(pair).await?;
    // The entry of the join that was dropped last may come yet, and is removed again.
    while let Err(error) = there.delete().await {
        assert_eq!(error.kind(), ErrorKind::GroupNotEmpty, "{error}");
        sleep(Duration::from_millis(5)).await;
    }
    drop(pair.interrupt(here.join_or_create(&())).await?);
    // It may be there, and then nobody is in it.
    let _ = there.create().await;
    nobody_is_left(pair, &there).await
}

/// A group is left.
pub async fn interrupted_leave(pair: &Pair<'_>) -> Result<()> {
    let (here, there) = groups(pair).await?;
    let membership = here.join(&()).await?;
    pair.interrupt(membership.leave()).await?;
    nobody_is_left(pair, &there).await
}

/// The group as both see it; it is there.
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
    // Ten times as long as what a cancelled call has entered may stay (C2).
    assert!(took <= Duration::from_secs(1) + pair.store.scheduling(), "{pair:?}: {took:?}");
    Ok(())
}
