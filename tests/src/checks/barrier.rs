//! BR1–BR3: barriers, double barriers and latches let nobody go too early, and everybody in time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use coordination::blocking::wait;
use coordination::{Barrier, Coordinator, DoubleBarrier, Effect, ErrorKind, Inside, Latch, Result};
use serde_json::json;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{sleep, timeout};

use super::TestStore;
use super::tools::{
    ANSWERED, MOMENT, PATIENCE, assert_out_of_time, drop_after_polls, without_a_runtime,
};
use crate::harness::{Mode, eventually_async};
use crate::must_hold;

const NAME: &str = "phase";

fn barrier(coordinator: &Coordinator) -> Barrier {
    coordinator.barrier(NAME).expect("a valid name")
}

fn double(coordinator: &Coordinator, parties: u32) -> DoubleBarrier {
    coordinator.double_barrier(NAME, parties).expect("allowed")
}

fn latch(coordinator: &Coordinator, count: u32) -> Latch {
    coordinator.latch(NAME, count).expect("allowed")
}

fn wait_in_background(barrier: &Barrier) -> JoinHandle<Result<()>> {
    let barrier = barrier.clone();
    tokio::spawn(async move { barrier.wait(Some(PATIENCE)).await })
}

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

/// Both in, one at each client.
async fn both_in(one: &Coordinator, other: &Coordinator) -> Result<(Inside, Inside)> {
    let entering = enter_in_background(&double(one, 2));
    let inside = double(other, 2).enter(Some(PATIENCE)).await?;
    Ok((is_in(entering).await?, inside))
}

/// BR1: all who wait are let go when it is opened, and nobody before.
pub async fn br1_lets_go_all_and_nobody_before(store: &TestStore) -> Result<()> {
    let first = store.connect("first").await?;
    assert!(barrier(&first).is_open().await?);
    barrier(&first).wait(None).await?;
    for round in 0..3 {
        assert!(barrier(&first).close().await?);
        assert!(!barrier(&first).close().await?, "closed already");
        let opened = Arc::new(AtomicBool::new(false));
        let mut waiting = JoinSet::new();
        for client in 0..2 {
            let coordinator = store.connect(&format!("client-{round}-{client}")).await?;
            for _ in 0..10 {
                let (barrier, opened) = (barrier(&coordinator), Arc::clone(&opened));
                waiting.spawn(async move {
                    barrier.wait(Some(PATIENCE)).await?;
                    assert!(opened.load(Ordering::SeqCst), "too early");
                    Ok::<_, coordination::Error>(())
                });
            }
        }
        sleep(MOMENT).await;
        opened.store(true, Ordering::SeqCst);
        assert!(barrier(&first).open().await?);
        while let Some(outcome) = waiting.join_next().await {
            outcome.expect("no panic")?;
        }
        assert!(!barrier(&first).open().await?, "open already");
    }
    Ok(())
}

/// BR1: what was closed a moment ago holds, also in a process that has just seen it open.
pub async fn br1_what_was_just_closed_holds(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let mine = barrier(&one);
    for round in 0..store.rounds(20, 6) {
        // Somebody of this process follows it.
        mine.close().await?;
        let waiting = wait_in_background(&mine);
        sleep(MOMENT / 10).await;
        barrier(&other).open().await?;
        timeout(PATIENCE, waiting).await.expect("let go").expect("no panic")?;
        let closing = if round % 2 == 0 { &one } else { &other };
        barrier(closing).close().await?;
        let refused = mine.wait(Some(MOMENT / 5)).await.expect_err("it is closed");
        assert!(matches!(refused.kind(), ErrorKind::Timeout | ErrorKind::Unavailable), "{refused}");
        let refused = mine.wait(Some(std::time::Duration::ZERO)).await.expect_err("it is closed");
        assert!(matches!(refused.kind(), ErrorKind::Timeout | ErrorKind::Unavailable), "{refused}");
    }
    Ok(())
}

/// BR1: who waits when it is opened is let go, though it is closed again at once.
pub async fn br1_opened_for_a_moment(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let (mine, theirs) = (barrier(&one), barrier(&other));
    mine.close().await?;
    for round in 0..store.rounds(10, 4) {
        let waiting: Vec<_> =
            [&mine, &theirs, &mine, &theirs].into_iter().map(wait_in_background).collect();
        // Each has found it closed.
        sleep(2 * ANSWERED).await;
        theirs.open().await?;
        theirs.close().await?;
        for waiting in waiting {
            let let_go = timeout(PATIENCE / 2, waiting).await;
            let_go.unwrap_or_else(|_| panic!("round {round}: it was open")).expect("no panic")?;
        }
        let refused = mine.wait(Some(ANSWERED)).await.expect_err("who comes now finds it closed");
        assert_out_of_time(&refused, ANSWERED);
    }
    Ok(())
}

/// BR1: waits that are dropped leave nothing behind, and the others are let go.
pub async fn br1_dropped_waits(store: &TestStore) -> Result<()> {
    let coordinator = store.connect("one").await?;
    let barrier = barrier(&coordinator);
    barrier.close().await?;
    let stays = wait_in_background(&barrier);
    for polls in 0..store.rounds(20, 10) {
        assert!(!drop_after_polls(barrier.wait(None), polls).await, "it is closed");
    }
    let aborted = wait_in_background(&barrier);
    sleep(MOMENT).await;
    aborted.abort();
    barrier.open().await?;
    timeout(PATIENCE, stays).await.expect("let go").expect("no panic")
}

/// BR1: it stays closed when the session of who closed it is lost, and anybody opens it.
pub async fn br1_belongs_to_nobody(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    barrier(&one).close().await?;
    let waiting = wait_in_background(&barrier(&other));
    store.lose(&one, "one").await?;
    sleep(MOMENT).await;
    assert!(!waiting.is_finished());
    assert!(!barrier(&other).is_open().await?);
    assert!(barrier(&other).open().await?);
    timeout(PATIENCE, waiting).await.expect("let go").expect("no panic")
}

/// BR1: it stays closed when the process that closed it is killed.
pub async fn br1_stays_closed_after_a_kill(store: &TestStore) -> Result<()> {
    let worker = store.worker("closer");
    let close = json!({ "command": "close_barrier", "barrier": NAME });
    assert_eq!(worker.call(close)["closed"], true);
    worker.kill();
    let coordinator = store.connect("one").await?;
    assert!(!barrier(&coordinator).is_open().await?);
    let refused = barrier(&coordinator).wait(Some(2 * MOMENT)).await.expect_err("it is closed");
    assert!(matches!(refused.kind(), ErrorKind::Timeout | ErrorKind::Unavailable), "{refused}");
    barrier(&coordinator).open().await.map(drop)
}

/// BR1: who was cut off while it was opened is let go when it is back; meanwhile time runs.
pub async fn br1_cut_off(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect_by_proxy("one").await?, store.connect("other").await?);
    barrier(&other).close().await?;
    let waiting = {
        let barrier = barrier(&one);
        tokio::spawn(async move { barrier.wait(None).await })
    };
    sleep(MOMENT).await;
    store.proxy().set_both(Mode::Blackhole);
    barrier(&other).open().await?;
    let start = Instant::now();
    let refused = barrier(&one).wait(Some(4 * MOMENT)).await.expect_err("cut off");
    assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
    assert!(start.elapsed() <= 6 * MOMENT + store.scheduling(), "{:?}", start.elapsed());
    assert!(!waiting.is_finished());
    store.proxy().heal();
    timeout(PATIENCE, waiting).await.expect("let go").expect("no panic")
}

/// BR1–BR3: also without an executor.
pub async fn br1_without_a_runtime(store: &TestStore) -> Result<()> {
    let coordinator = store.connect("one").await?;
    without_a_runtime(move || {
        let (barrier, latch) = (barrier(&coordinator), latch(&coordinator, 1));
        wait(barrier.close())?;
        let refused = wait(barrier.wait(Some(ANSWERED))).expect_err("it is closed");
        assert_out_of_time(&refused, ANSWERED);
        wait(barrier.open())?;
        wait(barrier.wait(None))?;
        wait(latch.count_down())?;
        wait(latch.wait(Some(PATIENCE)))?;
        let inside = wait(double(&coordinator, 1).enter(Some(PATIENCE)))?;
        wait(inside.leave(Some(PATIENCE)))
    })
    .await
}

/// BR2: all come before anybody is in, and all have left before anybody is out, round after round.
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

/// BR2: the first who come are the round; who comes later waits for the next, and rounds do not mix.
pub async fn br2_the_first_who_come(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let (mine, theirs) = (double(&one, 2), double(&other, 2));
    assert_eq!(mine.waiting().await?, 0);
    let first = enter_in_background(&mine);
    until_waiting(&mine, 1).await;
    let second = is_in(enter_in_background(&theirs)).await?;
    let first = is_in(first).await?;
    must_hold!(first.token() < second.token());
    // The next round begins while this one is still in.
    let third = enter_in_background(&theirs);
    until_waiting(&mine, 1).await;
    assert!(!third.is_finished());
    let refused = first.leave(Some(2 * MOMENT)).await.expect_err("the second is in");
    assert!(matches!(refused.kind(), ErrorKind::Timeout | ErrorKind::Unavailable), "{refused}");
    let fourth = mine.enter(Some(PATIENCE)).await?;
    let third = is_in(third).await?;
    // It has nothing to wait for in the round after its own.
    second.leave(Some(PATIENCE)).await?;
    let (third, fourth) = tokio::join!(third.leave(Some(PATIENCE)), fourth.leave(Some(PATIENCE)));
    third.and(fourth)
}

/// BR2: who gave up has not come, at whatever point it did.
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
            // It may be on its way in (C2), and whoever comes meanwhile meets it.
            sleep(2 * MOMENT).await;
        }
        until_waiting(&theirs, 0).await;
    }
    let (inside, other) = both_in(&one, &other).await?;
    // Dropped, it has left.
    drop(inside);
    other.leave(Some(PATIENCE)).await
}

/// BR2: who has lost its session is out, and the others get out; who waits comes anew.
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
        // It has a new session by itself.
        let (inside, back) = both_in(&one, &other).await?;
        let waited = tokio::join!(inside.leave(Some(PATIENCE)), back.leave(Some(PATIENCE)));
        waited.0.and(waited.1)?;
    }
    Ok(())
}

/// BR2: who left, and did not see the others leave in time, asks again.
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

/// BR2: who was killed inside is out within the bound.
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

/// BR2: who is cut off inside is out when its session is over, and knows.
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

/// BR2: the number of parties is stored; another one is an error, and so is none.
pub async fn br2_another_number_is_an_error(store: &TestStore) -> Result<()> {
    // Not the store's short lease: on a busy machine an answer would be late, and the refusal in doubt.
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

/// BR3: each count is counted once, whoever counts, and waits end at zero and not before.
pub async fn br3_each_count_counts_once(store: &TestStore) -> Result<()> {
    const COUNT: u32 = 15;
    let first = store.connect("first").await?;
    let waiting = {
        let latch = latch(&first, COUNT);
        tokio::spawn(async move { latch.wait(Some(PATIENCE)).await })
    };
    let mut counting = JoinSet::new();
    for _ in 0..3 {
        // Not the store's short lease: on a busy machine many answers would be late, and in doubt.
        let coordinator = Coordinator::connect(store.url()).await?;
        for _ in 0..5 {
            let latch = latch(&coordinator, COUNT);
            counting.spawn(async move { latch.count_down().await });
        }
    }
    let mut seen = Vec::new();
    while let Some(remaining) = counting.join_next().await {
        let remaining = remaining.expect("no panic")?;
        // The counts that are still to come are missing.
        if waiting.is_finished() {
            assert_eq!(latch(&first, COUNT).remaining().await?, 0);
        }
        seen.push(remaining);
    }
    seen.sort_unstable();
    assert_eq!(seen, (0..COUNT).collect::<Vec<_>>());
    timeout(PATIENCE, waiting).await.expect("let go").expect("no panic")?;
    // It stays there.
    assert_eq!(latch(&first, COUNT).count_down().await?, 0);
    latch(&first, COUNT).wait(Some(std::time::Duration::ZERO)).await
}

/// BR3: one that is missing is waited for, and what is dropped leaves nothing behind.
pub async fn br3_dropped_waits(store: &TestStore) -> Result<()> {
    let coordinator = store.connect("one").await?;
    let latch = latch(&coordinator, 2);
    latch.count_down().await?;
    for polls in 0..store.rounds(20, 8) {
        assert!(!drop_after_polls(latch.wait(None), polls).await, "one is missing");
    }
    let refused = latch.wait(Some(2 * MOMENT)).await.expect_err("one is missing");
    assert!(matches!(refused.kind(), ErrorKind::Timeout | ErrorKind::Unavailable), "{refused}");
    assert_eq!(latch.remaining().await?, 1);
    latch.count_down().await?;
    latch.wait(Some(PATIENCE)).await
}

/// BR3: who waits when zero is reached is let go, though it is reset at once; a reset before that lets nobody go.
pub async fn br3_reset_at_once(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let (mine, theirs) = (latch(&one, 2), latch(&other, 2));
    let wait = |latch: &Latch| {
        let latch = latch.clone();
        tokio::spawn(async move { latch.wait(Some(PATIENCE)).await })
    };
    for round in 0..store.rounds(10, 4) {
        let waiting: Vec<_> = [&mine, &theirs, &mine, &theirs].into_iter().map(wait).collect();
        // Each has found it above zero.
        sleep(2 * ANSWERED).await;
        theirs.count_down().await?;
        theirs.reset().await?;
        sleep(2 * MOMENT).await;
        assert!(!waiting.iter().any(JoinHandle::is_finished), "it was not at zero");
        theirs.count_down().await?;
        theirs.count_down().await?;
        theirs.reset().await?;
        for waiting in waiting {
            let let_go = timeout(PATIENCE / 2, waiting).await;
            let_go.unwrap_or_else(|_| panic!("round {round}: it was zero")).expect("no panic")?;
        }
        let refused = mine.wait(Some(ANSWERED)).await.expect_err("a new round");
        assert_out_of_time(&refused, ANSWERED);
        assert_eq!(mine.remaining().await?, 2);
    }
    Ok(())
}

/// BR3: counts stay when the session of who counted is lost.
pub async fn br3_counts_belong_to_nobody(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    assert_eq!(latch(&one, 2).count_down().await?, 1);
    store.lose(&one, "one").await?;
    assert_eq!(latch(&other, 2).count_down().await?, 0);
    latch(&other, 2).wait(Some(PATIENCE)).await
}

/// BR3: and when its process is killed.
pub async fn br3_counts_survive_a_kill(store: &TestStore) -> Result<()> {
    let coordinator = store.connect("one").await?;
    let waiting = {
        let latch = latch(&coordinator, 2);
        tokio::spawn(async move { latch.wait(Some(PATIENCE)).await })
    };
    for number in 0..2 {
        assert!(!waiting.is_finished());
        let worker = store.worker(&format!("counter-{number}"));
        let count = json!({ "command": "count_down", "latch": NAME, "count": 2 });
        assert_eq!(worker.call(count)["remaining"], 1 - number);
        worker.kill();
    }
    timeout(PATIENCE, waiting).await.expect("let go").expect("no panic")
}

/// BR3: without the store's word nothing is counted for certain, and nothing twice.
pub async fn br3_cut_off(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect_by_proxy("one").await?, store.connect("other").await?);
    let (mine, theirs) = (latch(&one, 5), latch(&other, 5));
    assert_eq!(mine.count_down().await?, 4);
    store.proxy().set_both(Mode::Blackhole);
    let refused = mine.count_down().await.expect_err("cut off");
    assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
    assert_eq!(theirs.count_down().await?, 3);
    store.proxy().heal();
    let counted = async || mine.count_down().await.is_ok();
    eventually_async(PATIENCE, counted).await;
    assert!(theirs.remaining().await? <= 2);
    while theirs.count_down().await? > 0 {}
    mine.wait(Some(PATIENCE)).await
}

/// BR3: the count is stored; another one is an error until the latch is reset, and so is zero.
pub async fn br3_another_count_is_an_error(store: &TestStore) -> Result<()> {
    let coordinator = store.connect("one").await?;
    assert_eq!(latch(&coordinator, 2).remaining().await?, 2);
    latch(&coordinator, 2).count_down().await?;
    let other = latch(&coordinator, 3);
    let refusals = [
        other.count_down().await.map(drop),
        other.remaining().await.map(drop),
        other.wait(Some(PATIENCE)).await,
    ];
    for refused in refusals {
        let refused = refused.expect_err("from two");
        assert_eq!((refused.kind(), refused.effect()), (ErrorKind::Mismatch, Effect::None));
        let text = refused.to_string();
        assert!(text.contains("from 2") && text.contains("3 was"), "{text}");
    }
    other.reset().await?;
    assert_eq!(other.count_down().await?, 2);
    let refused = coordinator.latch(NAME, 0).expect_err("from zero");
    assert_eq!(refused.kind(), ErrorKind::Input);
    Ok(())
}
