//! What is kept from one step to the next.

use tokio::runtime::Handle;
use tokio::task::block_in_place;

use super::super::draft::corrupt;
use super::super::look::{Which, list};
use super::*;
use crate::{Coordinator, NewItem};

/// A step looks at the queue, another process writes, and then the step reads the records: they do not belong to what it saw.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_read_while_others_wrote_is_not_kept() -> Result<()> {
    let queue = async || Coordinator::connect("memory://work-torn").await?.queue("jobs");
    let (here, there) = (queue().await?, queue().await?);
    let items = there.post(&[NewItem::new("a"), NewItem::new("b")]).await?;
    let (engine, mut is_deleted) = (&here.engine, false);
    let before = engine.look("test").await?.version.expect("there is a queue");
    let which = Which { after: None, limit: 10, claimed: true, delayed: true };
    let step = |draft: &mut Draft<'_>, _: &[u64]| {
        if draft.version != before {
            return Err(Stop::Fail(corrupt()));
        }
        if !std::mem::replace(&mut is_deleted, true) {
            let deleting = there.delete(items[0]);
            assert!(block_in_place(|| Handle::current().block_on(deleting))?);
        }
        list(draft, which).map(Outcome::Done)
    };
    let failed = engine.run_until_done("test", Manner::Reads, step).await;
    assert!(failed.is_err(), "it was to begin anew");
    assert!(engine.cached(before).is_empty(), "it has kept what it did not see together");
    Ok(())
}
