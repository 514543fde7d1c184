//! Who waits for whom, and how long, on paused time.

use std::time::Duration;

use tokio::time::Instant;

use super::*;
use crate::error::Result;
use crate::recipe::work::WorkQueue;
use crate::Coordinator;

/// The queue as another process has it.
async fn queue(store: &str) -> Result<WorkQueue> {
    let url = format!("memory://work-{store}");
    // The caller's runtime, whose clock these tests pause.
    let coordinator = Coordinator::builder().heartbeat_on_current_runtime(true).connect(&url).await;
    coordinator?.queue("jobs")
}

/// An entry that goes first as long as this is kept.
async fn marked(queue: &WorkQueue) -> Result<Grant> {
    let queue = &queue.engine.queue;
    let contents = Contents { mode: Mode::Shared, data: MARK.into(), ..queue.contents() };
    queue.acquire_within(&Request { contents, policy: None }, None).await
}

/// How long it waits for those that go first, and how often it looks meanwhile.
async fn wait(precedence: &mut Precedence<'_>, look: &Look) -> (Duration, u32) {
    let (begun, mut looks) = (Instant::now(), 1);
    while precedence.let_others_go(look).await {
        looks += 1;
        assert!(looks < 1_000, "it waits without end, since {:?}", begun.elapsed());
    }
    (begun.elapsed(), looks)
}

#[tokio::test(start_paused = true)]
async fn it_waits_a_second_for_one_of_which_the_store_says_wrongly_that_it_is_gone() -> Result<()> {
    let (here, there) = (queue("early").await?, queue("early").await?);
    let first = marked(&there).await?;
    let look = here.engine.look("test").await?;
    // The store says at once that it is gone, and it stands in all that is read.
    first.release().await?;
    let mut precedence = Precedence::new(&here.engine, Manner::Writes);
    let (took, looks) = wait(&mut precedence, &look).await;
    assert!(took >= COURTESY && took < 2 * COURTESY, "{took:?}");
    assert!(looks <= 110, "{looks}");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_second_counts_for_each_of_the_line_from_when_it_is_the_first() -> Result<()> {
    let (here, there) = (queue("line").await?, queue("line").await?);
    let _line = (marked(&there).await?, marked(&there).await?);
    let mut precedence = Precedence::new(&here.engine, Manner::Writes);
    for _ in 0..TRIES {
        precedence.lost().await;
    }
    let number = |precedence: &Precedence<'_>| precedence.own.as_ref().map(|(own, _)| own.token());
    let own = number(&precedence).expect("it has asked to go first");
    let look = here.engine.look("test").await?;
    let (took, _) = wait(&mut precedence, &look).await;
    assert!(took >= 2 * COURTESY && took < 3 * COURTESY, "{took:?}");
    // It has stood for two seconds, and its own begins now.
    tokio::time::sleep(COURTESY / 2).await;
    precedence.lost().await;
    assert_eq!(number(&precedence), Some(own), "it has lost its place");
    tokio::time::sleep(COURTESY).await;
    precedence.lost().await;
    assert!(number(&precedence).is_some_and(|new| new > own), "it stands there for ever");
    // Those that come later in this process do not wait for the same ones again.
    let others = Precedence::new(&here.engine, Manner::Writes);
    drop(precedence);
    let look = there.engine.look("test").await?;
    assert_eq!(look.ahead.len(), 2);
    let (took, _) = wait(&mut { others }, &look).await;
    assert!(took.is_zero(), "{took:?}");
    Ok(())
}
