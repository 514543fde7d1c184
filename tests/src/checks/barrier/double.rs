//! BR2: a double barrier lets nobody in before all have come, and nobody out before all have left.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use coordination::{Coordinator, DoubleBarrier, Effect, ErrorKind, Inside, Result};
use serde_json::json;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{sleep, timeout};

use super::super::TestStore;
use super::super::tools::{ANSWERED, MOMENT, PATIENCE, assert_out_of_time, drop_after_polls};
use super::{NAME, double};
use crate::harness::{Mode, eventually_async};
use crate::must_hold;

fn enter_in_background(barrier: &DoubleBarrier) -> JoinHandle<Result<Inside>> {
    let barrier = barrier.clone();
    tokio::spawn(async move { barrier.enter(Some(PATIENCE)).await })
}

async fn until_waiting(barrier: &DoubleBarrier, count: usize) {
    let come = async || barrier.waiting().await.is_ok_and(|waiting| waiting == count);
    eventually_async(PATIENCE, come).await;
}

async fn is_in(entering: JoinHandle<Result<Inside>>) -> Result<Inside> {
    timeout(PATIENCE, entering).await.expect("let in").expect("no panic")
}

/// Lets one party of each client enter, and returns both parties, which are inside.
async fn both_in(one: &Coordinator, other: &Coordinator) -> Result<(Inside, Inside)> {
    let entering = enter_in_background(&double(one, 2));
    let inside = double(other, 2).enter(Some(PATIENCE)).await?;
    Ok((is_in(entering).await?, inside))
}

/// BR2: in each round, nobody is inside before all parties have come, and nobody is out before all have left.
pub async fn br2_together_in_and_out(store: &TestStore) -> Result<()> {
    const PARTIES: u32 = 6;
    let counters: Arc<[AtomicUsize; 2]> = Arc::default();
    let rounds = store.rounds(20, 5);
    let mut tasks = JoinSet::new();
    for party in 0..PARTIES {
        let coordinator = store.connect(&format!("party-{party}")).await?;
        let counters = Arc::clone(&counters);
        tasks.spawn(async move {
            let barrier = double(&coordinator, PARTIES);
            let [come, left] = &*counters;
            for round in 1..=rounds {
                let all = round * usize::try_from(PARTIES).unwrap_or_default();
                come.fetch_add(1, Ordering::SeqCst);
                let inside = barrier.enter(Some(PATIENCE)).await?;
                let seen = come.load(Ordering::SeqCst);
                assert!(seen >= all, "in, and only {seen} of {all} had come");
                assert!(inside.is_held());
                left.fetch_add(1, Ordering::SeqCst);
                inside.leave(Some(PATIENCE)).await?;
                let seen = left.load(Ordering::SeqCst);
                assert!(seen >= all, "out, and only {seen} of {all} had left");
            }
            Ok::<_, coordination::Error>(coordinator)
        });
    }
    while let Some(outcome) = tasks.join_next().await {
        drop(outcome.expect("no panic")?);
    }
    Ok(())
}

/// BR2: the first parties that come form a round. A party that comes later waits for the next round, and parties of
/// different rounds do not mix.
pub async fn br2_the_first_who_come(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let (mine, theirs) = (double(&one, 2), double(&other, 2));
    assert_eq!(mine.waiting().await?, 0);
    let first = enter_in_background(&mine);
    until_waiting(&mine, 1).await;
    let second = is_in(enter_in_background(&theirs)).await?;
    let first = is_in(first).await?;
    assert!(first.token() < second.token());
    // The next round begins to form while the parties of this one are still inside.
    let third = enter_in_background(&theirs);
    until_waiting(&mine, 1).await;
    assert!(!third.is_finished());
    let refused = first.leave(Some(2 * MOMENT)).await.expect_err("the second is in");
    assert!(matches!(refused.kind(), ErrorKind::Timeout | ErrorKind::Unavailable), "{refused}");
    let fourth = mine.enter(Some(PATIENCE)).await?;
    let third = is_in(third).await?;
    // A party leaves together with those of its own round. It does not wait for the second party, of the round before, which is
    // still in.
    let (third, fourth) = tokio::join!(third.leave(Some(PATIENCE)), fourth.leave(Some(PATIENCE)));
    third.and(fourth)?;
    let (fifth, sixth) = both_in(&one, &other).await?;
    // Nor does it wait for a party of a later round.
    second.leave(Some(PATIENCE)).await?;
    let (fifth, sixth) = tokio::join!(fifth.leave(Some(PATIENCE)), sixth.leave(Some(PATIENCE)));
    fifth.and(sixth)
}

/// BR2: a party that gave up is not counted, however often its future was polled before.
pub async fn br2_who_gave_up_has_not_come(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let (mine, theirs) = (double(&one, 2), double(&other, 2));
    let refused = mine.enter(Some(MOMENT)).await.expect_err("alone");
    assert!(matches!(refused.kind(), ErrorKind::Timeout | ErrorKind::Unavailable), "{refused}");
    until_waiting(&theirs, 0).await;
    let refused = mine.enter(Some(std::time::Duration::ZERO)).await.expect_err("alone");
    until_waiting(&theirs, 0).await;
    assert!(matches!(refused.kind(), ErrorKind::Timeout | ErrorKind::Unavailable), "{refused}");
    for polls in 0..store.rounds(20, 8) {
        assert!(!drop_after_polls(mine.enter(None), polls).await, "alone");
        if store.has_server() {
            // The entry of the dropped call may still be on its way (C2), and would be counted if another party came
            // meanwhile.
            sleep(2 * MOMENT).await;
        }
        until_waiting(&theirs, 0).await;
    }
    let (inside, other) = both_in(&one, &other).await?;
    // Dropping `inside` counts as leaving.
    drop(inside);
    other.leave(Some(PATIENCE)).await
}

/// BR2: a party that lost its session is out, so that the others can leave; it can enter again with its next session.
pub async fn br2_a_lost_session_is_out(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let (lost, inside) = both_in(&one, &other).await?;
    let leaving = tokio::spawn(async move { inside.leave(Some(PATIENCE)).await });
    sleep(MOMENT).await;
    assert!(!leaving.is_finished(), "the other is in");
    store.lose(&one, "one").await?;
    timeout(PATIENCE, lost.lost()).await.expect("told");
    must_hold!(!lost.is_held());
    assert!(lost.leave(Some(PATIENCE)).await.is_err());
    leaving.await.expect("no panic")?;
    if !store.backend().is_in_process() {
        // The client has opened a new session by itself.
        let (inside, back) = both_in(&one, &other).await?;
        let waited = tokio::join!(inside.leave(Some(PATIENCE)), back.leave(Some(PATIENCE)));
        waited.0.and(waited.1)?;
    }
    Ok(())
}

/// BR2: a party that has left, but did not see the others leave within its timeout, can call `leave` again.
pub async fn br2_leaving_is_asked_again(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let (inside, stays) = both_in(&one, &other).await?;
    let refused = inside.leave(Some(ANSWERED)).await.expect_err("the other is in");
    assert_out_of_time(&refused, ANSWERED);
    assert!(!inside.is_held(), "it has left all the same");
    assert!(inside.leave(Some(Duration::ZERO)).await.is_err(), "the other is in");
    let leaving = tokio::spawn(async move { inside.leave(None).await.map(|()| inside) });
    sleep(2 * MOMENT).await;
    assert!(!leaving.is_finished(), "the other is in");
    stays.leave(Some(PATIENCE)).await?;
    let left = timeout(PATIENCE, leaving).await.expect("let out").expect("no panic")?;
    left.leave(Some(PATIENCE)).await
}

/// BR2: a party whose process is killed inside is out within the crash bound.
pub async fn br2_a_killed_process_is_out(store: &TestStore) -> Result<()> {
    let coordinator = store.connect("survivor").await?;
    let worker = store.worker("killed");
    let entering = enter_in_background(&double(&coordinator, 2));
    worker.call(json!({ "command": "go_in", "barrier": NAME, "parties": 2 }));
    let inside = is_in(entering).await?;
    let killed = Instant::now();
    worker.kill();
    inside.leave(Some(PATIENCE)).await?;
    let took = killed.elapsed();
    assert!(took <= store.crash_bound(), "out after {took:?}");
    Ok(())
}

/// BR2: a party is cut off while it is inside. When its session ends, it counts as out, and learns of that.
pub async fn br2_cut_off(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect_by_proxy("one").await?, store.connect("other").await?);
    let (cut, inside) = both_in(&one, &other).await?;
    store.proxy().set_both(Mode::Blackhole);
    inside.leave(Some(PATIENCE)).await?;
    must_hold!(!cut.is_held(), "out for the others, so out for itself");
    drop(cut);
    store.proxy().heal();
    let (inside, back) = both_in(&one, &other).await?;
    let waited = tokio::join!(inside.leave(Some(PATIENCE)), back.leave(Some(PATIENCE)));
    waited.0.and(waited.1)
}

/// BR2: the number of parties is stored; a client with another number gets an error, and so does a client with zero
/// parties.
pub async fn br2_another_number_is_an_error(store: &TestStore) -> Result<()> {
    // This check uses the default lease instead of the tests' short one: on a busy machine the answer could come too
    // late, so that the outcome would be unknown.
    let one = Coordinator::connect(store.url()).await?;
    let other = Coordinator::connect(store.url()).await?;
    let first = enter_in_background(&double(&one, 2));
    until_waiting(&double(&one, 2), 1).await;
    let refused = double(&other, 3).enter(None).await.expect_err("for two");
    assert_eq!((refused.kind(), refused.effect()), (ErrorKind::Mismatch, Effect::None));
    let text = refused.to_string();
    assert!(text.contains("for 2") && text.contains("3 were"), "{text}");
    let inside = double(&other, 2).enter(Some(PATIENCE)).await?;
    drop((is_in(first).await?, inside));
    let refused = one.double_barrier(NAME, 0).expect_err("for nobody");
    assert_eq!(refused.kind(), ErrorKind::Input);
    Ok(())
}
