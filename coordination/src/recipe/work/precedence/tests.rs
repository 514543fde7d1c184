//! Who waits for whom, and how long, on paused time.

use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::*;
use crate::error::{ErrorKind, Result};
use crate::recipe::work::WorkQueue;
use crate::recipe::work::draft::{Draft, Outcome};
use crate::{ClaimId, ClaimOptions, Coordinator, NewItem};

/// The queue as another process has it.
async fn queue(store: &str) -> Result<WorkQueue> {
    let url = format!("memory://work-{store}");
    // The caller's runtime, whose clock these tests pause.
    let coordinator = Coordinator::builder().heartbeat_on_current_runtime(true).connect(&url).await;
    coordinator?.queue("jobs")
}

/// An entry that goes first as long as this is kept, and asks for as much as is given.
async fn marked(queue: &WorkQueue) -> Result<Grant> {
    marked_for(queue, COURTESY).await
}

async fn marked_for(queue: &WorkQueue, courtesy: Duration) -> Result<Grant> {
    let queue = &queue.engine.queue;
    let data = mark(courtesy).into();
    let contents = Contents { mode: Mode::Shared, data, ..queue.contents() };
    queue.acquire_within(&Request { contents, policy: None }, None).await
}

/// How long it waits for those that go first, and how often it looks meanwhile.
async fn wait(precedence: &mut Precedence<'_>, look: &Look) -> (Duration, u32) {
    let (begun, mut looks) = (Instant::now(), 1);
    while let Some((last, limit)) = precedence.before(look) {
        precedence.let_go_first(last, limit).await;
        looks += 1;
        assert!(looks < 1_000, "it waits without end, since {:?}", begun.elapsed());
    }
    (begun.elapsed(), looks)
}

fn assert_about(took: Duration, millis: u64) {
    let expected = Duration::from_millis(millis);
    assert!(took.abs_diff(expected) < Duration::from_millis(20), "{took:?}, not {expected:?}");
}

#[tokio::test(start_paused = true)]
async fn it_waits_a_second_for_one_of_which_the_store_says_wrongly_that_it_is_gone() -> Result<()> {
    let (here, there) = (queue("early").await?, queue("early").await?);
    let first = marked(&there).await?;
    let look = here.engine.look("test").await?;
    // The entry is gone, and the store says so at once; but it still stands in the look that is used here.
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
    let number = |precedence: &Precedence<'_>| precedence.own.as_ref().map(|own| own.grant.token());
    let own = number(&precedence).expect("it has asked to go first");
    let look = here.engine.look("test").await?;
    let (took, _) = wait(&mut precedence, &look).await;
    assert!(took >= 2 * COURTESY && took < 3 * COURTESY, "{took:?}");
    // The step's own entry has stood behind others for two seconds: its own time begins now.
    let asked = precedence.own.as_ref().map(|own| own.courtesy).expect("it has its entry");
    tokio::time::sleep(asked / 2).await;
    precedence.lost().await;
    assert_eq!(number(&precedence), Some(own), "it has lost its place");
    tokio::time::sleep(asked).await;
    precedence.lost().await;
    assert!(number(&precedence).is_some_and(|new| new > own), "it stands there for ever");
    // Steps that begin later in this process do not wait for the same entries again.
    let others = Precedence::new(&here.engine, Manner::Writes);
    drop(precedence);
    tokio::time::sleep(COURTESY).await;
    let look = there.engine.look("test").await?;
    assert_eq!(look.ahead.len(), 2);
    let (took, _) = wait(&mut { others }, &look).await;
    assert!(took.is_zero(), "{took:?}");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn renewals_do_not_wait_one_after_the_other() -> Result<()> {
    let (here, there) = (queue("renewals").await?, queue("renewals").await?);
    let items: Vec<_> = (0..20).map(|number| NewItem::new(format!("item {number}"))).collect();
    here.post(&items).await?;
    let mut ids = Vec::new();
    for _ in 0..items.len() {
        ids.push(ClaimId::random());
        let options = ClaimOptions::default().limit(1);
        assert!(here.claim_as(ids[ids.len() - 1], options).await?.is_some());
    }
    let (_first, begun) = (marked(&there).await?, Instant::now());
    let mut renewing = JoinSet::new();
    for id in ids {
        let here = here.clone();
        renewing.spawn(async move { here.renew(id, None, None).await });
    }
    while let Some(renewed) = renewing.join_next().await {
        renewed.expect("no panic")?;
    }
    let took = begun.elapsed();
    assert!(took < Duration::from_millis(500), "{took:?}");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn one_that_has_to_be_in_time_waits_for_all_together_so_long_at_the_most() -> Result<()> {
    let (here, there) = (queue("in-time").await?, queue("in-time").await?);
    let _line = (marked(&there).await?, marked(&there).await?);
    let look = here.engine.look("test").await?;
    let in_time = || Manner::InTime(Instant::now() + COURTESY * 3 / 4);
    let mut precedence = Precedence::new(&here.engine, in_time());
    assert_about(wait(&mut precedence, &look).await.0, 750);
    // Here the first has been the first for three quarters of a second, and then the second one for half a second.
    let mut precedence = Precedence::new(&here.engine, in_time());
    assert_about(wait(&mut precedence, &look).await.0, 750);
    let mut precedence = Precedence::new(&here.engine, in_time());
    assert_about(wait(&mut precedence, &look).await.0, 500);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn of_those_that_only_read_one_asks_at_a_time() -> Result<()> {
    let here = queue("readers").await?;
    let mut all: Vec<_> = (0..20).map(|_| Precedence::new(&here.engine, Manner::Reads)).collect();
    for _ in 0..2 * TRIES {
        for precedence in &mut all {
            precedence.lost().await;
        }
    }
    assert_eq!(here.engine.look("test").await?.ahead.len(), 1);
    // The next one may when that one is done, in their order.
    for number in 0..all.len() {
        assert!(all[0].own.is_some(), "{number}");
        drop(all.remove(0));
        for precedence in &mut all {
            precedence.lost().await;
        }
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn wk7_one_that_only_reads_gives_up_if_it_takes_too_long_when_it_goes_first() -> Result<()> {
    let here = queue("too-long").await?;
    let mut precedence = Precedence::new(&here.engine, Manner::Reads);
    let mut turns = 0;
    loop {
        precedence.lost().await;
        if precedence.is_too_long() {
            break;
        }
        let look = here.engine.look("test").await?;
        if precedence.own.is_some() && precedence.before(&look).is_none() {
            turns += 1;
            tokio::time::sleep(COURTESY).await;
        }
        assert!(turns <= IN_VAIN + 1, "it keeps all others waiting again and again");
    }
    // The first time it asked for little, as its tries had taken no time.
    assert_eq!(turns, IN_VAIN + 1);
    Ok(())
}

/// Three processes a second die in a crowd, and with them those of their entries that ask to go first.
#[tokio::test(start_paused = true)]
async fn what_dead_processes_leave_holds_others_up_for_no_longer_than_they_asked() -> Result<()> {
    let (here, there) = (queue("dead").await?, queue("dead").await?);
    let asked = Duration::from_millis(60);
    let _dead = (marked_for(&there, asked).await?, marked_for(&there, asked).await?);
    let look = here.engine.look("test").await?;
    let mut precedence = Precedence::new(&here.engine, Manner::InTime(Instant::now() + COURTESY));
    assert_about(wait(&mut precedence, &look).await.0, 120);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn it_asks_for_some_of_its_tries() -> Result<()> {
    let here = queue("asks").await?;
    for (try_takes, asks) in [(1, 50), (30, 120), (400, 1_000)] {
        let mut precedence = Precedence::new(&here.engine, Manner::Writes);
        for _ in 0..TRIES {
            let look = here.engine.look("test").await?;
            assert!(precedence.before(&look).is_none());
            tokio::time::sleep(Duration::from_millis(try_takes)).await;
            precedence.lost().await;
        }
        let own = precedence.own.as_ref().expect("it has asked to go first");
        assert_about(own.courtesy, asks);
        let look = here.engine.look("test").await?;
        assert_about(look.ahead[0].courtesy, asks);
    }
    Ok(())
}

/// Where a turn comes later than callers wait for a claim, each claim that nobody waits for any more would be made all the same, and be
/// given back, while the next one waits.
#[tokio::test(start_paused = true)]
async fn a_claim_that_nobody_waits_for_leaves_the_line() -> Result<()> {
    let (here, there) = (queue("gone").await?, queue("gone").await?);
    here.post(&[NewItem::new("item")]).await?;
    let before = here.engine.look("test").await?.version;
    let first = marked(&there).await?;
    let wait = Some(COURTESY / 10);
    assert!(here.claim_wait(ClaimOptions::default(), wait).await?.is_none());
    tokio::time::sleep(COURTESY / 100).await;
    assert!(here.engine.turn.try_lock().is_ok(), "it keeps others waiting");
    first.release().await?;
    tokio::time::sleep(2 * COURTESY).await;
    assert_eq!(here.engine.look("test").await?.version, before, "it was claimed");
    assert!(here.claim(ClaimOptions::default()).await?.is_some());
    Ok(())
}

/// What a claim clears away before it takes anything is nobody's to give back.
#[tokio::test(start_paused = true)]
async fn a_claim_that_nobody_waits_for_leaves_the_line_between_two_parts() -> Result<()> {
    let queue = queue("parts").await?;
    let (caller, gone) = oneshot::channel::<()>();
    let (mut caller, mut parts) = (Some(caller), 0);
    let step = |draft: &mut Draft<'_>, _: &[u64]| {
        draft.change();
        parts += 1;
        // It goes in the first part.
        Ok(if caller.take().is_some() { Outcome::Again } else { Outcome::Done(()) })
    };
    let done = queue.engine.run_unless_nothing_since("test", Instant::now(), gone, step).await;
    assert!(done.is_err_and(|error| error.kind() == ErrorKind::Closed));
    assert_eq!(parts, 1, "it was claimed for nobody");
    assert!(queue.engine.turn.try_lock().is_ok(), "it keeps others waiting");
    Ok(())
}
