//! P1, P2: there are never more permits than allowed, and no permit gets lost.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use coordination::{Coordinator, ErrorKind, LossReason, Permit, Result, Semaphore};
use serde_json::json;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{sleep, timeout};

use super::TestStore;
use super::interruption::{Pair, at_every_poll};
use super::tools::{ANSWERED, MOMENT, PATIENCE, assert_out_of_time};
use crate::bounds;
use crate::harness::{Mode, eventually_async};
use crate::must_hold;

const NAME: &str = "uploads";
/// Ten times as long as the entry of a cancelled call may stay (C2).
const CLEARED: Duration = Duration::from_secs(1);

fn semaphore(coordinator: &Coordinator, permits: u32) -> Semaphore {
    coordinator.semaphore(NAME, permits).expect("a valid name")
}

fn in_background(semaphore: &Semaphore, count: u32) -> JoinHandle<Result<Permit>> {
    let semaphore = semaphore.clone();
    tokio::spawn(async move { semaphore.acquire_many(count, Some(PATIENCE)).await })
}

async fn until_entries(semaphore: &Semaphore, count: usize) {
    let listed = async || semaphore.holders().await.is_ok_and(|holders| holders.len() == count);
    eventually_async(PATIENCE, listed).await;
}

/// Asserts that another client can take all permits at once.
async fn all_are_free(other: &Coordinator, permits: u32) -> Result<()> {
    let all = semaphore(other, permits).acquire_many(permits, Some(PATIENCE)).await?;
    assert_eq!(all.slots(), (0..permits).collect::<Vec<_>>());
    all.release().await
}

/// The holder of each slot, each slot's last token, and the largest number of slots that were held at the same time.
#[derive(Default)]
struct Slots {
    held: BTreeMap<u32, u64>,
    last: BTreeMap<u32, u64>,
    most: usize,
}

impl Slots {
    fn take(&mut self, permit: &Permit) {
        let token = permit.token().value();
        for slot in permit.slots() {
            must_hold!(self.held.insert(*slot, token).is_none(), "slot {slot} is taken");
            let last = self.last.insert(*slot, token);
            must_hold!(last.is_none_or(|last| last < token), "tokens of slot {slot} rise");
        }
        self.most = self.most.max(self.held.len());
    }

    fn give_back(&mut self, permit: &Permit) {
        for slot in permit.slots() {
            assert!(self.held.remove(slot).is_some());
        }
    }
}

/// P1: many clients take several permits each: each slot has one holder, and its tokens rise.
pub async fn p1_never_more_than_there_are(store: &TestStore) -> Result<()> {
    const PERMITS: u32 = 3;
    let slots = Arc::new(Mutex::new(Slots::default()));
    let mut tasks: JoinSet<Result<()>> = JoinSet::new();
    for client in 0..3 {
        let coordinator = store.connect(&format!("client-{client}")).await?;
        for task in 0..3_u32 {
            let (semaphore, slots) = (semaphore(&coordinator, PERMITS), Arc::clone(&slots));
            let rounds = store.rounds(30, 6);
            tasks.spawn(async move {
                for round in 0..rounds {
                    let count = 1 + (task + u32::try_from(round).unwrap_or_default()) % PERMITS;
                    let permit = semaphore.acquire_many(count, Some(PATIENCE)).await?;
                    assert_eq!(permit.slots().len(), usize::try_from(count).unwrap_or_default());
                    slots.lock().expect("no panic").take(&permit);
                    sleep(Duration::from_millis(u64::from(task))).await;
                    assert!(permit.is_held());
                    slots.lock().expect("no panic").give_back(&permit);
                    match round % 2 {
                        0 => permit.release().await?,
                        _ => drop(permit),
                    }
                }
                Ok(())
            });
        }
    }
    while let Some(outcome) = tasks.join_next().await {
        outcome.expect("no panic")?;
    }
    assert!(slots.lock().expect("no panic").most > 1, "several at a time");
    Ok(())
}

/// P1: clients are served in the order in which they asked; one that wants few permits does not overtake one that wants
/// many.
pub async fn p1_first_come_first_served(store: &TestStore) -> Result<()> {
    let coordinator = store.connect("one").await?;
    let other = semaphore(&store.connect("other").await?, 3);
    let semaphore = semaphore(&coordinator, 3);
    let (one, two) = (semaphore.acquire(None).await?, other.acquire_many(2, None).await?);
    let big = in_background(&other, 3);
    until_entries(&semaphore, 3).await;
    let small = in_background(&semaphore, 1);
    until_entries(&semaphore, 4).await;
    one.release().await?;
    sleep(MOMENT).await;
    assert!(!small.is_finished(), "a permit is free, and somebody came before");
    assert!(semaphore.try_acquire().await?.is_none());
    two.release().await?;
    let big = timeout(PATIENCE, big).await.expect("served").expect("no panic")?;
    assert!(!small.is_finished());
    big.release().await?;
    let small = timeout(PATIENCE, small).await.expect("served").expect("no panic")?;
    assert_eq!(small.slot(), 0);
    small.release().await
}

/// P1: the number of permits is stored at the first use, and asking for another number is an error.
pub async fn p1_another_number_is_an_error(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let held = semaphore(&one, 3).acquire(None).await?;
    let error = semaphore(&other, 1).acquire(Some(PATIENCE)).await.expect_err("three are stored");
    assert_eq!(error.kind(), ErrorKind::Mismatch);
    assert!(error.to_string().contains('3') && error.to_string().contains('1'), "{error}");
    held.release().await?;
    let error = semaphore(&other, 1).try_acquire().await.expect_err("that stays");
    assert_eq!(error.kind(), ErrorKind::Mismatch);
    all_are_free(&other, 3).await
}

/// P1: a resize applies to all clients: with more permits, waiters are served; with fewer, no holder loses its permit.
pub async fn p1_resized(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let mut mine = semaphore(&one, 1);
    let first = mine.acquire(None).await?;
    let waiting = in_background(&semaphore(&other, 1), 1);
    until_entries(&mine, 2).await;
    // Waits until the waiter has read that the number is one.
    sleep(MOMENT).await;
    mine.resize(2).await?;
    let second = timeout(PATIENCE, waiting).await.expect("served").expect("no panic")?;
    assert_eq!((first.slot(), second.slot()), (0, 1));
    mine.resize(1).await?;
    assert_eq!(mine.permits(), 1);
    assert!(first.is_held() && second.is_held());
    first.release().await?;
    assert!(mine.try_acquire().await?.is_none(), "one is held, if not the first");
    second.release().await?;
    all_are_free(&other, 1).await
}

/// P1: an impossible request is refused at once, with an error that names the limit.
pub async fn p1_what_cannot_be_is_refused(store: &TestStore) -> Result<()> {
    let coordinator = store.connect("one").await?;
    for permits in [0, 10_001] {
        let error = coordinator.semaphore(NAME, permits).expect_err("out of range");
        assert_eq!(error.kind(), ErrorKind::Input);
        assert!(error.to_string().contains("10000"), "{error}");
    }
    for count in [0, 4] {
        let error = semaphore(&coordinator, 3).acquire_many(count, None).await;
        assert_eq!(error.expect_err("three at most").kind(), ErrorKind::Input);
    }
    assert_eq!(coordinator.semaphore("", 1).expect_err("no name").kind(), ErrorKind::Name);
    all_are_free(&coordinator, 3).await
}

/// P2: an acquire or release that is dropped at any poll loses no permit.
pub async fn p2_cancelled_acquires_leak_nothing(store: &TestStore) -> Result<()> {
    let least = store.rounds(1, 2);
    at_every_poll(store, "permits", least, interrupted_acquire).await?;
    at_every_poll(store, "permits that are taken", 2, interrupted_wait).await?;
    at_every_poll(store, "permits, released", least, interrupted_release).await
}

/// Case: a client takes two permits, which are free.
pub async fn interrupted_acquire(pair: &Pair<'_>) -> Result<()> {
    let mine = semaphore(&pair.one, 2);
    drop(pair.interrupt(mine.acquire_many(2, pair.patience())).await?);
    nothing_is_left(pair).await
}

/// Case: a client waits for two permits, one of which another client holds.
pub async fn interrupted_wait(pair: &Pair<'_>) -> Result<()> {
    let held = semaphore(&pair.other, 2).acquire(Some(PATIENCE)).await?;
    let releasing = pair.drop_later(held);
    let mine = semaphore(&pair.one, 2);
    drop(pair.interrupt(mine.acquire_many(2, pair.patience())).await?);
    releasing.await.expect("no panic");
    nothing_is_left(pair).await
}

/// Case: a client gives two permits back.
pub async fn interrupted_release(pair: &Pair<'_>) -> Result<()> {
    let permit = semaphore(&pair.one, 2).acquire_many(2, Some(PATIENCE)).await?;
    pair.interrupt(permit.release()).await?;
    nothing_is_left(pair).await
}

/// Asserts that all permits can soon be taken, and that then the queue is empty.
async fn nothing_is_left(pair: &Pair<'_>) -> Result<()> {
    let start = Instant::now();
    all_are_free(&pair.other, 2).await?;
    until_entries(&semaphore(&pair.other, 2), 0).await;
    let took = start.elapsed();
    let bound = CLEARED + pair.store.poll() + pair.store.scheduling();
    assert!(took <= bound, "{pair:?}: {took:?}");
    Ok(())
}

/// P2: waiters that time out leave, and those behind them are served.
pub async fn p2_timed_out_waiters_leave(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let held = semaphore(&one, 2).acquire(None).await?;
    let start = Instant::now();
    let late = semaphore(&other, 2).acquire_many(2, Some(ANSWERED)).await;
    assert_out_of_time(&late.expect_err("one is held"), ANSWERED);
    let bound = bounds::returned(ANSWERED) + super::SCHEDULING + store.scheduling();
    assert!(start.elapsed() <= bound, "{:?}", start.elapsed());
    let behind = semaphore(&other, 2).acquire(Some(PATIENCE)).await?;
    assert_eq!(behind.slot(), 1);
    drop((held, behind));
    all_are_free(&one, 2).await
}

/// P2: permits of a session are free when it ends, and their guards report the loss.
pub async fn p2_a_lost_session_frees_its_permits(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let held = semaphore(&one, 3).acquire_many(2, None).await?;
    let waiting = in_background(&semaphore(&other, 3), 2);
    until_entries(&semaphore(&other, 3), 2).await;
    one.stop().await?;
    assert_eq!(held.lost().await, LossReason::Closed);
    must_hold!(!held.is_held());
    timeout(PATIENCE, waiting).await.expect("served").expect("no panic")?.release().await?;
    assert!(held.release().await.is_err());
    all_are_free(&other, 3).await
}

/// P2: an operator takes exactly one grant away, and no other; whoever waits for it has it.
pub async fn p2_a_grant_is_taken_away_by_its_token(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let (kept, hanging) =
        (semaphore(&one, 3).acquire(None).await?, semaphore(&one, 3).acquire_many(2, None).await?);
    let waiting = in_background(&semaphore(&other, 3), 2);
    until_entries(&semaphore(&other, 3), 3).await;
    // Who only takes away need not know the number of permits.
    let operator = semaphore(&other, 1);
    let taken = operator.break_grant(hanging.token()).await?.expect("it is held");
    assert_eq!((&taken.member[..], &taken.slots[..]), ("one", hanging.slots()));
    assert_eq!(operator.break_grant(hanging.token()).await?, None);
    assert_eq!(timeout(PATIENCE, hanging.lost()).await.expect("told"), LossReason::EntryDeleted);
    let next = timeout(PATIENCE, waiting).await.expect("served").expect("no panic")?;
    must_hold!(next.token() > hanging.token());
    assert_eq!(next.slots(), hanging.slots());
    assert!(kept.is_held());
    assert!(hanging.release().await.is_err());
    assert!(next.is_held());
    kept.release().await?;
    next.release().await?;
    all_are_free(&other, 3).await
}

/// P2: also if the store ends a session, the session's permits are free, and their guards report the loss.
pub async fn p2_a_revoked_session_frees_its_permits(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let held = semaphore(&one, 1).acquire(None).await?;
    store.end_session("one");
    let ended = Instant::now();
    timeout(PATIENCE, held.lost()).await.expect("told");
    assert!(ended.elapsed() <= store.end_notice_bound(), "told after {:?}", ended.elapsed());
    all_are_free(&other, 1).await?;
    // The client has opened its next session by itself.
    semaphore(&one, 1).acquire(Some(PATIENCE)).await?.release().await
}

/// P2: permits of a killed process are free within the crash bound, both those that it held and those that it waited
/// for.
pub async fn p2_a_killed_holder_frees_its_permits(store: &TestStore) -> Result<()> {
    let coordinator = store.connect("next").await?;
    let worker = store.worker("holder");
    worker.call(json!({ "command": "permits", "semaphore": NAME, "of": 2, "count": 2 }));
    worker.send(json!({ "command": "permits", "semaphore": NAME, "of": 2, "count": 1 }));
    let mine = semaphore(&coordinator, 2);
    until_entries(&mine, 2).await;
    let waiting = in_background(&mine, 2);
    until_entries(&mine, 3).await;
    let killed = Instant::now();
    worker.kill();
    let all = timeout(PATIENCE, waiting).await.expect("served").expect("no panic")?;
    let took = killed.elapsed();
    assert!(took <= store.crash_bound(), "served after {took:?}");
    all.release().await
}

/// P2: a holder that is cut off loses its permits before anybody else gets them. A waiter that is cut off is served
/// when it is reconnected.
pub async fn p2_cut_off(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect_by_proxy("one").await?, store.connect("other").await?);
    let held = semaphore(&one, 1).acquire(None).await?;
    let waiting = in_background(&semaphore(&other, 1), 1);
    until_entries(&semaphore(&other, 1), 2).await;
    store.proxy().set_both(Mode::Blackhole);
    let next = timeout(PATIENCE, waiting).await.expect("served").expect("no panic")?;
    must_hold!(!held.is_held(), "lost before it was granted to another");
    let back = in_background(&semaphore(&one, 1), 1);
    store.proxy().heal();
    until_entries(&semaphore(&other, 1), 2).await;
    next.release().await?;
    timeout(PATIENCE, back).await.expect("served").expect("no panic")?.release().await?;
    all_are_free(&other, 1).await
}
