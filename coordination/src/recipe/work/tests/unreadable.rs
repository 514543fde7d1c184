//! Items that somebody has changed at the store, as no step does.

use super::super::layout::Body;
use super::*;
use crate::{ClaimOptions, Coordinator, Effect, NewItem, WorkQueue};

async fn spoil(jobs: &WorkQueue, items: &[ItemId]) -> Result<()> {
    let step = |draft: &mut Draft<'_>, _: &[u64]| -> Step<Outcome<()>> {
        for item in items {
            if let Some(item) = draft.page_mut(0)?.get_mut(&item.rank()) {
                item.body = Body::Here("!".to_owned());
            }
        }
        Ok(Outcome::Done(()))
    };
    jobs.engine.run_here("test", step).await
}

/// What cannot be read is not removed, nor is anything with it.
#[tokio::test]
async fn wk2_an_item_that_cannot_be_read_is_not_popped() -> Result<()> {
    let jobs = Coordinator::connect("memory://work-unreadable").await?.queue("jobs")?;
    let items = jobs.post(&[NewItem::new("a"), NewItem::new("b")]).await?;
    spoil(&jobs, &items[1..]).await?;
    let error = jobs.pop(2).await.expect_err("one of them cannot be read");
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Corrupt, Effect::None));
    assert!(error.to_string().contains(&items[1].to_string()), "{error}");
    assert_eq!(jobs.stats().await?.ready, 2);
    assert!(jobs.force_delete(items[1]).await?);
    assert_eq!(jobs.pop(2).await?[0].body(), b"a");
    Ok(())
}

/// X1: it is claimed, which is told, and those behind it are handed out.
#[tokio::test]
async fn x1_a_claim_of_an_item_that_cannot_be_read_is_told_of() -> Result<()> {
    let jobs = Coordinator::connect("memory://work-unreadable-claim").await?.queue("jobs")?;
    let items = jobs.post(&[NewItem::new("a"), NewItem::new("b"), NewItem::new("c")]).await?;
    spoil(&jobs, &items[..2]).await?;
    let one = || ClaimOptions::default().limit(1);
    let claimed = jobs.claim(one()).await.map(drop);
    let claimed_as = jobs.claim_as(ClaimId::random(), one()).await.map(drop);
    for told in [claimed, claimed_as] {
        let error = told.expect_err("it cannot be read");
        assert_eq!((error.kind(), error.effect()), (ErrorKind::Corrupt, Effect::Applied));
    }
    assert_eq!(jobs.stats().await?.claimed, 2);
    let claim = jobs.claim(one()).await?.expect("one is left");
    assert_eq!(claim.items()[0].body(), b"c");
    Ok(())
}
