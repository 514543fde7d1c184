//! LM1–LM3: a limiter bounds how many contenders work and how many wait on standby; nobody overtakes; and a contender
//! that leaves keeps nothing at the store.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use coordination::{
    Admission, Coordinator, ErrorKind, Limiter, LossReason, Patience, Refusal, Result, Standing,
    WorkSlot,
};
use serde_json::json;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{sleep, timeout};

use super::interruption::{Pair, at_every_poll};
use super::tools::{MOMENT, PATIENCE};
use super::{SCHEDULING, TestStore};
use crate::bounds;
use crate::harness::{Mode, eventually_async};
use crate::must_hold;

const NAME: &str = "nightly";

/// A limiter with this many slots and places on standby, and with the timeout of the checks as its patience.
fn limiter(coordinator: &Coordinator, slots: u32, standby: u32) -> Limiter {
    let limiter = coordinator.limiter(NAME).expect("a valid name");
    limiter.slots(slots).standby(standby).patience(Patience::Timeout(PATIENCE))
}

async fn working(limiter: &Limiter) -> Result<WorkSlot> {
    match limiter.enter().await? {
        Admission::Working(slot) => Ok(slot),
        Admission::Refused(refusal) => panic!("{refusal:?}"),
    }
}

async fn refused(limiter: &Limiter) -> Result<Refusal> {
    match limiter.enter().await? {
        Admission::Working(slot) => panic!("slot {} was free", slot.slot()),
        Admission::Refused(refusal) => Ok(refusal),
    }
}

fn in_background(limiter: &Limiter) -> JoinHandle<Result<Admission>> {
    let limiter = limiter.clone();
    tokio::spawn(async move { limiter.enter().await })
}

async fn admitted(entering: JoinHandle<Result<Admission>>) -> Result<Admission> {
    timeout(PATIENCE, entering).await.expect("decided").expect("no panic")
}

/// Waits until the numbers of working and of waiting contenders are these.
async fn until_inside(limiter: &Limiter, working: usize, waiting: usize) {
    let inside = async || {
        let Ok(occupants) = limiter.inspect().await else { return false };
        let at_work = occupants.iter().filter(|occupant| !occupant.slots.is_empty()).count();
        (at_work, occupants.len()) == (working, working + waiting)
    };
    eventually_async(PATIENCE, inside).await;
}

/// LM1: slots are numbered from 1, each is held by one contender, and a newcomer is refused when all are taken.
pub async fn lm1_slots_and_refusals(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let single = one.singleton("single")?.patience(Patience::Never);
    for _ in 0..3 {
        let slot = working(&single).await?;
        assert_eq!(slot.slot(), 1);
        assert_eq!(refused(&other.singleton("single")?).await?, Refusal::AllBusy);
        slot.release().await?;
    }
    let pair = [limiter(&one, 2, 0), limiter(&other, 2, 0)];
    let held = [working(&pair[0]).await?, working(&pair[1]).await?];
    assert_eq!(held.each_ref().map(WorkSlot::slot), [1, 2]);
    assert_eq!(refused(&pair[1]).await?, Refusal::AllBusy);
    let [first, second] = held;
    first.release().await?;
    assert_eq!(working(&pair[1]).await?.slot(), 1, "the lowest free one");
    drop(second);
    until_inside(&pair[0], 0, 0).await;
    let many = one.limiter("twenty")?.slots(20);
    let mut held = Vec::new();
    for slot in 1..=20 {
        held.push(working(&many).await?);
        assert_eq!(held.last().map(WorkSlot::slot), Some(slot));
    }
    assert_eq!(refused(&many).await?, Refusal::AllBusy);
    Ok(())
}

/// LM1: a client whose numbers of slots and of places on standby differ from the stored ones gets an error that names
/// both stored numbers; a resize applies to all clients.
pub async fn lm1_other_numbers_are_an_error(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let mut mine = limiter(&one, 3, 1);
    let held = working(&mine).await?;
    for wrong in [limiter(&other, 1, 1), limiter(&other, 3, 0), limiter(&other, 1, 1).latest_wins()]
    {
        let error = wrong.enter().await.expect_err("three and one are stored");
        assert_eq!(error.kind(), ErrorKind::Mismatch);
        assert!(error.to_string().contains("3 slots and 1 on standby"), "{error}");
    }
    mine.resize(1).await?;
    assert!(held.is_held());
    let waiting = in_background(&limiter(&other, 1, 1));
    until_inside(&mine, 1, 1).await;
    // Waits until the waiter has read the stored numbers.
    sleep(MOMENT).await;
    mine.resize(2).await?;
    let Admission::Working(second) = admitted(waiting).await? else { panic!("there is room") };
    assert_eq!((held.slot(), second.slot()), (1, 2));
    for nonsense in [limiter(&one, 0, 0), limiter(&one, 10_001, 0), limiter(&one, 1, 10_001)] {
        assert_eq!(nonsense.enter().await.expect_err("nonsense").kind(), ErrorKind::Input);
    }
    Ok(())
}

/// LM1: many contenders come and go. Never do more of them work than there are slots, and no slot has two holders.
pub async fn lm1_never_more_than_there_are(store: &TestStore) -> Result<()> {
    let slots = Arc::new(Mutex::new([None::<u64>; 2]));
    let last = Arc::new(Mutex::new([0_u64; 2]));
    let mut tasks: JoinSet<Result<u32>> = JoinSet::new();
    for client in 0..4 {
        let coordinator = store.connect(&format!("client-{client}")).await?;
        for _ in 0..3 {
            let (slots, last) = (Arc::clone(&slots), Arc::clone(&last));
            let (limiter, rounds) = (limiter(&coordinator, 2, 2), store.rounds(30, 6));
            tasks.spawn(async move {
                let mut worked = 0;
                for _ in 0..rounds {
                    let Admission::Working(slot) = limiter.enter().await? else {
                        sleep(Duration::from_millis(3)).await;
                        continue;
                    };
                    let index = usize::try_from(slot.slot() - 1).expect("one of two");
                    let token = slot.token().value();
                    let before = slots.lock().expect("no panic")[index].replace(token);
                    assert_eq!(before, None, "slot {index}");
                    let before =
                        std::mem::replace(&mut last.lock().expect("no panic")[index], token);
                    must_hold!(before < token, "tokens of slot {index} rise");
                    sleep(Duration::from_millis(1)).await;
                    assert!(slot.is_held());
                    slots.lock().expect("no panic")[index] = None;
                    slot.release().await?;
                    worked += 1;
                }
                Ok(worked)
            });
        }
    }
    let worked: u32 = tasks.join_all().await.into_iter().sum::<Result<u32>>()?;
    assert!(worked > 20, "{worked}");
    Ok(())
}

/// LM2: a contender waits on standby and then takes the slot over. Its callback is called at every step of its wait.
/// A third contender is refused.
pub async fn lm2_standby_takes_over(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let worker = working(&limiter(&one, 1, 1)).await?;
    let told = Arc::new(Mutex::new(Vec::new()));
    let entering = tokio::spawn({
        let (limiter, told) = (limiter(&other, 1, 1), Arc::clone(&told));
        async move { limiter.enter_telling(|step| told.lock().expect("fine").push(step)).await }
    });
    until_inside(&limiter(&one, 1, 1), 1, 1).await;
    let start = Instant::now();
    assert_eq!(refused(&limiter(&one, 1, 1)).await?, Refusal::StandbyFull);
    assert_eq!(refused(&limiter(&one, 1, 1).patience(Patience::Never)).await?, Refusal::AllBusy);
    assert!(start.elapsed() < 10 * SCHEDULING + store.scheduling(), "refused at once");
    assert!(!entering.is_finished());
    let token = worker.token();
    worker.release().await?;
    let Admission::Working(next) = admitted(entering).await? else { panic!("its turn") };
    assert!(next.slot() == 1);
    must_hold!(next.token() > token);
    assert_eq!(*told.lock().expect("fine"), [Standing::Standby, Standing::Working(1)]);
    Ok(())
}

/// LM2: however many newcomers try, the contender on standby gets the slot.
pub async fn lm2_newcomers_do_not_overtake(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    for _ in 0..store.rounds(3, 1) {
        let worker = working(&limiter(&one, 1, 1)).await?;
        let standby = in_background(&limiter(&other, 1, 1));
        until_inside(&limiter(&one, 1, 1), 1, 1).await;
        let mut storm: JoinSet<Result<bool>> = JoinSet::new();
        for _ in 0..50 {
            let newcomer = limiter(&one, 1, 1).patience(Patience::Never);
            storm.spawn(async move {
                let mut overtook = false;
                for _ in 0..3 {
                    overtook |= matches!(newcomer.enter().await?, Admission::Working(_));
                }
                Ok(overtook)
            });
        }
        sleep(Duration::from_millis(5)).await;
        worker.release().await?;
        let Admission::Working(slot) = admitted(standby).await? else { panic!("it waited") };
        while let Some(overtook) = storm.join_next().await {
            assert!(!overtook.expect("no panic")?, "a newcomer got the slot");
        }
        slot.release().await?;
        until_inside(&limiter(&one, 1, 1), 0, 0).await;
    }
    Ok(())
}

/// LM2: contenders on standby get slots in the order in which they came.
pub async fn lm2_oldest_first(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let worker = working(&limiter(&one, 1, 3)).await?;
    let mut waiting = Vec::new();
    for count in 1..=3 {
        waiting.push(in_background(&limiter(if count % 2 == 0 { &one } else { &other }, 1, 3)));
        until_inside(&limiter(&one, 1, 3), 1, count).await;
    }
    let mut last = worker.token();
    worker.release().await?;
    for entering in waiting {
        let Admission::Working(slot) = admitted(entering).await? else { panic!("its turn") };
        must_hold!(slot.token() > last);
        last = slot.token();
        slot.release().await?;
    }
    Ok(())
}

/// LM2: with `latest_wins`, a contender on standby is replaced by a later one, and tokens rise.
pub async fn lm2_the_latest_wins(store: &TestStore) -> Result<()> {
    let clients = [store.connect("one").await?, store.connect("other").await?];
    let latest = |index: usize| limiter(&clients[index % 2], 1, 1).latest_wins();
    let mut worker = working(&latest(0)).await?;
    for round in 0..store.rounds(30, 6) {
        let old = in_background(&latest(round));
        until_inside(&latest(0), 1, 1).await;
        let new = in_background(&latest(round + 1));
        let Admission::Refused(refusal) = admitted(old).await? else { panic!("replaced") };
        assert_eq!(refusal, Refusal::Replaced);
        until_inside(&latest(0), 1, 1).await;
        let token = worker.token();
        worker.release().await?;
        let Admission::Working(next) = admitted(new).await? else { panic!("the latest") };
        must_hold!(next.token() > token);
        worker = next;
    }
    worker.release().await
}

/// LM3: patience is one deadline for the whole wait, however many slots there are; a contender that gives up frees its
/// place at once.
pub async fn lm3_patience_is_kept(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let held = working(&limiter(&one, 1, 1)).await?;
    let wait = Duration::from_millis(50);
    for (patience, expected) in [
        (Patience::retries(3, wait), 3 * wait),
        (Patience::Timeout(Duration::from_millis(500)), Duration::from_millis(500)),
    ] {
        let start = Instant::now();
        let refusal = refused(&limiter(&other, 1, 1).patience(patience)).await?;
        let took = start.elapsed();
        assert!(matches!(refusal, Refusal::GaveUp { waited } if waited >= expected), "{refusal:?}");
        let bound = bounds::returned(expected) + SCHEDULING + store.scheduling();
        assert!(took >= expected && took <= bound, "{took:?}");
        // The next contender finds the place free once the store has removed the entry of the one that gave up.
        until_inside(&limiter(&one, 1, 1), 1, 0).await;
    }
    let (mut tries, mut last) = (0, Duration::ZERO);
    let asked = |attempt, waited| {
        tries += 1;
        assert!(attempt == tries && waited > last);
        last = waited;
        attempt < 4
    };
    let admission = limiter(&other, 1, 1).enter_while(wait, asked).await?;
    assert!(
        matches!(admission, Admission::Refused(Refusal::GaveUp { waited }) if waited >= 4 * wait)
    );
    assert_eq!(tries, 4);
    held.release().await
}

/// LM3: a contender that is dropped at any poll, is refused, or panics in its callback leaves nothing at the store.
pub async fn lm3_whoever_goes_leaves_nothing(store: &TestStore) -> Result<()> {
    let least = store.rounds(1, 2);
    at_every_poll(store, "enter", least, interrupted_enter).await?;
    at_every_poll(store, "enter, on standby", 2, interrupted_standby).await?;
    at_every_poll(store, "leaving a slot", least, interrupted_leave).await?;
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let mine = limiter(&one, 1, 1);
    let held = working(&limiter(&other, 1, 1)).await?;
    let panicking = tokio::spawn({
        let mine = mine.clone();
        async move { mine.enter_telling(|step| panic!("told of {step:?}")).await.map(drop) }
    });
    assert!(panicking.await.is_err_and(|error| error.is_panic()));
    until_inside(&mine, 1, 0).await;
    assert_eq!(refused(&mine.clone().patience(Patience::Never)).await?, Refusal::AllBusy);
    until_inside(&mine, 1, 0).await;
    held.release().await
}

/// Case: a client enters a free slot.
pub async fn interrupted_enter(pair: &Pair<'_>) -> Result<()> {
    let mine = limiter(&pair.one, 1, 1);
    drop(pair.interrupt(mine.enter()).await?);
    nothing_is_left(pair).await
}

/// Case: a client waits on standby, and the worker leaves meanwhile.
pub async fn interrupted_standby(pair: &Pair<'_>) -> Result<()> {
    let leaving = pair.drop_later(working(&limiter(&pair.other, 1, 1)).await?);
    let mine = limiter(&pair.one, 1, 1);
    drop(pair.interrupt(mine.enter()).await?);
    leaving.await.expect("no panic");
    nothing_is_left(pair).await
}

/// Case: a client leaves its slot.
pub async fn interrupted_leave(pair: &Pair<'_>) -> Result<()> {
    let slot = working(&limiter(&pair.one, 1, 1)).await?;
    pair.interrupt(slot.release()).await?;
    nothing_is_left(pair).await
}

/// Asserts that another client gets the slot soon, and that then nobody is in the limiter.
async fn nothing_is_left(pair: &Pair<'_>) -> Result<()> {
    let start = Instant::now();
    let theirs = limiter(&pair.other, 1, 1);
    // Until the interrupted contender's entry is removed, it may have the only place on standby.
    until_inside(&theirs, 0, 0).await;
    working(&theirs).await?.release().await?;
    until_inside(&theirs, 0, 0).await;
    let took = start.elapsed();
    assert!(took <= 10 * bounds::cleared() + pair.store.scheduling(), "{pair:?}: {took:?}");
    Ok(())
}

/// LM3: a worker whose session ends learns of it, and the next contender gets its slot; nothing that the worker does
/// afterwards affects the next contender.
pub async fn lm3_a_lost_session_frees_its_slot(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let old = working(&limiter(&one, 1, 1)).await?;
    let standby = in_background(&limiter(&other, 1, 1));
    until_inside(&limiter(&other, 1, 1), 1, 1).await;
    one.stop().await?;
    assert_eq!(old.lost().await, LossReason::Closed);
    let Admission::Working(new) = admitted(standby).await? else { panic!("its turn") };
    assert!(old.release().await.is_err(), "it had been lost");
    assert!(new.is_held());
    until_inside(&limiter(&other, 1, 1), 1, 0).await;
    new.release().await
}

/// LM3: an operator takes a slot away from its worker, and a place on standby; whoever stands by has the slot.
pub async fn lm3_a_slot_is_taken_away_by_its_token(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let old = working(&limiter(&one, 1, 1)).await?;
    let standby = in_background(&limiter(&other, 1, 1));
    until_inside(&limiter(&other, 1, 1), 1, 1).await;
    let operator = limiter(&other, 1, 1);
    let taken = operator.break_grant(old.token()).await?.expect("it works");
    assert_eq!((&taken.member[..], taken.standby), ("one", false));
    assert_eq!(operator.break_grant(old.token()).await?, None);
    let Admission::Working(new) = admitted(standby).await? else { panic!("its turn") };
    timeout(PATIENCE, old.lost()).await.expect("told");
    assert!(old.release().await.is_err(), "it had been lost");
    assert!(new.is_held());
    until_inside(&limiter(&other, 1, 1), 1, 0).await;
    new.release().await
}

/// LM3: when the store ends a worker's session, the worker's heartbeats and release do not affect the next holder of
/// the slot.
pub async fn lm3_a_revoked_session_frees_its_slot(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let old = working(&limiter(&one, 1, 1)).await?;
    let standby = in_background(&limiter(&other, 1, 1));
    until_inside(&limiter(&other, 1, 1), 1, 1).await;
    store.end_session("one");
    let ended = Instant::now();
    let told = async {
        timeout(PATIENCE, old.lost()).await.expect("told");
        ended.elapsed()
    };
    let (delay, admission) = tokio::join!(told, admitted(standby));
    assert!(delay <= store.end_notice_bound(), "told after {delay:?}");
    let Admission::Working(new) = admission? else { panic!("its turn") };
    assert!(old.release().await.is_err(), "it had been lost");
    sleep(2 * store.heartbeat()).await;
    assert!(new.is_held());
    new.release().await
}

/// LM3: when a worker is killed, the contender on standby gets its slot within the crash bound. A child process of the
/// worker may live on. This child holds no slot, neither after the worker's release nor after the worker's death.
pub async fn lm3_a_killed_worker_is_followed(store: &TestStore) -> Result<()> {
    let coordinator = store.connect("next").await?;
    let worker = store.worker("worker");
    let enter = json!({ "command": "enter", "limiter": NAME, "standby": 1 });
    worker.call(enter.clone());
    worker.call(json!({ "command": "spawn_children", "n": 1, "seconds": 2 }));
    worker.call(json!({ "command": "let_go" }));
    working(&limiter(&coordinator, 1, 1)).await?.release().await?;
    worker.call(enter);
    let standby = in_background(&limiter(&coordinator, 1, 1));
    until_inside(&limiter(&coordinator, 1, 1), 1, 1).await;
    let killed = Instant::now();
    worker.kill();
    let Admission::Working(slot) = admitted(standby).await? else { panic!("its turn") };
    let took = killed.elapsed();
    assert!(took <= store.crash_bound(), "followed after {took:?}");
    slot.release().await
}

/// LM3: a worker that is cut off knows that it has lost its slot before anybody else gets it.
pub async fn lm3_cut_off(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect_by_proxy("one").await?, store.connect("other").await?);
    let old = working(&limiter(&one, 1, 1)).await?;
    let standby = in_background(&limiter(&other, 1, 1));
    until_inside(&limiter(&other, 1, 1), 1, 1).await;
    store.proxy().set_both(Mode::Blackhole);
    let Admission::Working(new) = admitted(standby).await? else { panic!("its turn") };
    must_hold!(!old.is_held());
    store.proxy().heal();
    assert_eq!(refused(&limiter(&one, 1, 1).patience(Patience::Never)).await?, Refusal::AllBusy);
    assert!(new.is_held());
    new.release().await
}
