//! Items that somebody has changed at the store, as no step does.

use super::super::layout::Body;
use super::*;
use crate::{Coordinator, Effect, NewItem};

/// What cannot be read is not removed, nor is anything with it.
#[tokio::test]
async fn wk2_an_item_that_cannot_be_read_is_not_popped() -> Result<()> {
    let jobs = Coordinator::connect("memory://work-unreadable").await?.queue("jobs")?;
    let items = jobs.post(&[NewItem::new("a"), NewItem::new("b")]).await?;
    let spoil = |draft: &mut Draft<'_>, _: &[u64]| -> Step<Outcome<()>> {
        if let Some(item) = draft.page_mut(0)?.get_mut(&items[1].rank()) {
            item.body = Body::Here("!".to_owned());
        }
        Ok(Outcome::Done(()))
    };
    jobs.engine.run_here("test", spoil).await?;
    let error = jobs.pop(2).await.expect_err("one of them cannot be read");
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Corrupt, Effect::None));
    assert!(error.to_string().contains(&items[1].to_string()), "{error}");
    assert_eq!(jobs.stats().await?.ready, 2);
    assert!(jobs.force_delete(items[1]).await?);
    assert_eq!(jobs.pop(2).await?[0].body(), b"a");
    Ok(())
}
