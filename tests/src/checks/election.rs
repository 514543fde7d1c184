//! E1–E4: one leader per term, observers see terms rise, and a leader knows when it has lost.

mod loss;
mod observers;

use std::sync::Arc;
use std::time::{Duration, Instant};

use coordination::{
    BootInstant, Coordinator, Election, ElectionEvent, ErrorKind, Fence, Leadership, LossReason,
    Result, Term, Terms,
};
use serde_json::json;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{sleep, timeout};

use super::TestStore;
use super::interruption::{Pair, at_every_poll};
use super::tools::{MOMENT, PATIENCE, Room, assert_out_of_time};
use crate::bounds;
use crate::harness::eventually_async;

pub use loss::*;
pub use observers::*;

/// The election that the checks use.
const NAME: &str = "scheduler";
/// How soon a guard reports its loss (T2, T3).
const NOTICE: Duration = Duration::from_millis(50);

fn election(coordinator: &Coordinator) -> Election {
    coordinator.election(NAME).expect("a valid name")
}

/// Campaigns, within the timeout of the checks, with the member id as the value.
async fn campaign(coordinator: &Coordinator) -> Result<Leadership> {
    election(coordinator).campaign(coordinator.member_id(), Some(PATIENCE)).await
}

fn campaign_in_background(coordinator: &Coordinator) -> JoinHandle<Result<Leadership>> {
    let coordinator = coordinator.clone();
    tokio::spawn(async move { campaign(&coordinator).await })
}

/// Waits until exactly these members are candidates, in this order.
async fn until_candidates(election: &Election, members: &[&str]) {
    let mut seen = Vec::new();
    let come = async {
        loop {
            let candidates = election.candidates().await.expect("the store is in reach");
            seen = candidates.into_iter().map(|candidate| candidate.member).collect();
            if seen == members {
                return;
            }
            sleep(Duration::from_millis(5)).await;
        }
    };
    let outcome = timeout(PATIENCE, come).await;
    assert!(outcome.is_ok(), "{members:?} expected, and there are {seen:?}");
}

/// The next term that an observer sees, within the timeout of the checks; `None` when nobody leads.
async fn told(terms: &mut Terms) -> Result<Option<Term>> {
    let event = timeout(PATIENCE, terms.next()).await.expect("an observer is told");
    event.map(ElectionEvent::into_term)
}

fn late(moment: BootInstant, than: BootInstant) -> Duration {
    moment.saturating_duration_since(than)
}

/// E1: a candidate is elected, and every client can ask who leads.
///
/// Tooz: corresponds to these tests of the Python library Tooz: `test_run_for_election`, `test_get_leader`.
pub async fn e1_who_stands_is_elected(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    assert_eq!(election(&one).leader().await?, None);
    let leadership = campaign(&one).await?;
    assert!(leadership.is_leader());
    for asking in [&one, &other] {
        let leader = election(asking).leader().await?.expect("somebody leads");
        assert_eq!((leader.term, leader.leader.as_str()), (leadership.term(), "one"));
        assert_eq!(leader.value::<String>()?, "one");
        let mistaken = leader.value::<u32>().expect_err("it is no number");
        assert_eq!(mistaken.kind(), ErrorKind::Corrupt);
    }
    assert!(election(&other).try_campaign("other").await?.is_none());
    // The entry of the failed `try_campaign` may still be there for a moment (L4). This waits until it is removed.
    let alone = async || election(&one).candidates().await.is_ok_and(|all| all.len() == 1);
    eventually_async(PATIENCE, alone).await;
    leadership.resign().await?;
    assert_eq!(election(&other).leader().await?, None);
    Ok(())
}

/// E1: elections with different names are independent, and so are locks with the same name.
pub async fn e1_names_are_apart(store: &TestStore) -> Result<()> {
    let one = store.connect("one").await?;
    let leadership = campaign(&one).await?;
    let lock = one.lock(NAME)?.try_acquire().await?.expect("a lock is no election");
    let other = one.election("scheduler/2")?.try_campaign("one").await?;
    let other = other.expect("another name is another election");
    assert_eq!(election(&one).candidates().await?.len(), 1);
    lock.release().await?;
    other.resign().await?;
    assert!(leadership.is_leader());
    leadership.resign().await
}

/// E1: two leaders that resign in favour of each other lead in turn.
///
/// Tooz: corresponds to the test `test_run_for_election_multiple_clients_stand_down` of the Python library Tooz.
pub async fn e1_leaders_make_room_in_turn(store: &TestStore) -> Result<()> {
    let clients = [store.connect("one").await?, store.connect("other").await?];
    let mut leadership = campaign(&clients[0]).await?;
    for round in 1..=store.rounds(20, 6) {
        let (former, next) = (&clients[(round + 1) % 2], &clients[round % 2]);
        let waiting = campaign_in_background(next);
        until_candidates(&election(former), &[former.member_id(), next.member_id()]).await;
        let term = leadership.term();
        leadership.resign().await?;
        leadership = waiting.await.expect("no panic")?;
        assert!(leadership.term() > term);
        let leader = election(former).leader().await?.expect("somebody leads");
        assert_eq!(leader.leader, next.member_id());
    }
    leadership.resign().await
}

/// E1: there are never two leaders, whoever contends and however a leadership ends; a fence accepts every leader's
/// token.
pub async fn e1_one_leader_of_many(store: &TestStore) -> Result<()> {
    let contest = Arc::new((Room::default(), Fence::new()));
    let rounds = store.rounds(100, 10);
    let mut tasks = JoinSet::new();
    for client in 0..3 {
        let coordinator = store.connect(&format!("client-{client}")).await?;
        for task in 0..3 {
            let (coordinator, contest) = (coordinator.clone(), Arc::clone(&contest));
            tasks.spawn(async move {
                for round in 0..rounds {
                    let leadership = campaign(&coordinator).await?;
                    {
                        let _inside = contest.0.enter();
                        assert!(leadership.is_leader());
                        assert_eq!(contest.1.check(leadership.term()), Ok(()));
                        tokio::task::yield_now().await;
                    }
                    match (round + task) % 2 {
                        0 => leadership.resign().await?,
                        _ => drop(leadership),
                    }
                }
                Ok::<_, coordination::Error>(())
            });
        }
    }
    while let Some(outcome) = tasks.join_next().await {
        outcome.expect("no two leaders")?;
    }
    let last = store.connect("last").await?;
    until_candidates(&election(&last), &[]).await;
    Ok(())
}

/// E1: candidates are elected in the order in which they came, and listed in that order.
pub async fn e1_first_come_first_elected(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let mut waiting = Vec::new();
    let mut members = Vec::new();
    for place in 0..6 {
        let client = if place % 3 == 1 { &other } else { &one };
        let standing = election(client);
        let task = async move { standing.campaign(&place, Some(PATIENCE)).await };
        waiting.push(tokio::spawn(task));
        members.push(client.member_id());
        until_candidates(&election(&one), &members).await;
    }
    let candidates = election(&other).candidates().await?;
    assert!(candidates.is_sorted_by(|one, next| one.term < next.term), "{candidates:?}");
    let places = candidates.iter().map(|candidate| candidate.value::<u32>());
    assert_eq!(places.collect::<Result<Vec<_>>>()?, [0, 1, 2, 3, 4, 5]);
    let leading = candidates.iter().map(|candidate| candidate.leading);
    assert!(leading.eq([true, false, false, false, false, false]), "{candidates:?}");
    for (waiting, candidate) in waiting.into_iter().zip(candidates) {
        let leadership = waiting.await.expect("no panic")?;
        assert_eq!(leadership.term(), candidate.term);
        leadership.resign().await?;
    }
    Ok(())
}

/// E1: a campaign that is dropped at any poll leaves no candidate, and its client is never elected.
///
/// Tooz: corresponds to the test `test_unwatch_elected_as_leader` of the Python library Tooz, in which a client that no
/// longer watches the election may win it nevertheless.
pub async fn e1_a_dropped_campaign_leaves_no_candidacy(store: &TestStore) -> Result<()> {
    let least = store.rounds(1, 2);
    at_every_poll(store, "campaign", least, interrupted_campaign).await?;
    at_every_poll(store, "campaign against a leader", 2, interrupted_candidacy).await?;
    at_every_poll(store, "resign", least, interrupted_resignation).await?;
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    // If the task that won the election is aborted before anybody has taken the leadership out of the task's result, no
    // candidate is left.
    let leadership = campaign(&one).await?;
    let waiting = campaign_in_background(&other);
    until_candidates(&election(&one), &["one", "other"]).await;
    leadership.resign().await?;
    waiting.abort();
    drop(waiting.await);
    until_candidates(&election(&one), &[]).await;
    Ok(())
}

/// Case: a client campaigns while nobody leads.
pub async fn interrupted_campaign(pair: &Pair<'_>) -> Result<()> {
    let mine = election(&pair.one);
    drop(pair.interrupt(mine.campaign("one", pair.patience())).await?);
    nobody_stands(pair).await
}

/// Case: a client campaigns while another one leads; the leader resigns meanwhile.
pub async fn interrupted_candidacy(pair: &Pair<'_>) -> Result<()> {
    let resigning = pair.drop_later(campaign(&pair.other).await?);
    let mine = election(&pair.one);
    drop(pair.interrupt(mine.campaign("one", pair.patience())).await?);
    resigning.await.expect("no panic");
    nobody_stands(pair).await
}

/// Case: a leader resigns, and campaigns again at once.
pub async fn interrupted_resignation(pair: &Pair<'_>) -> Result<()> {
    let old = campaign(&pair.one).await?;
    let term = old.term();
    pair.interrupt(old.resign()).await?;
    let new = campaign(&pair.one).await?;
    assert!(new.term() > term && new.is_leader(), "{pair:?}");
    drop(new);
    nobody_stands(pair).await
}

/// Asserts that another client is elected soon, and that then there is no candidate.
async fn nobody_stands(pair: &Pair<'_>) -> Result<()> {
    let start = Instant::now();
    campaign(&pair.other).await?.resign().await?;
    until_candidates(&election(&pair.other), &[]).await;
    let took = start.elapsed();
    assert!(took <= 20 * NOTICE + pair.store.scheduling(), "{pair:?}: {took:?}");
    Ok(())
}

/// E1: a campaign that times out returns in time, and leaves no candidate.
pub async fn e1_a_campaign_in_vain_leaves_no_candidacy(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let leadership = campaign(&one).await?;
    for limit in [Duration::ZERO, MOMENT, 3 * MOMENT] {
        let start = Instant::now();
        let refused = election(&other).campaign("other", Some(limit)).await;
        let took = start.elapsed();
        let refused = refused.expect_err("another leads");
        assert_out_of_time(&refused, limit.max(store.attempt_timeout()));
        let bound = limit + store.attempt_timeout() + 2 * NOTICE + store.scheduling();
        assert!(took >= limit && took <= bound, "{took:?} instead of {limit:?}");
        until_candidates(&election(&one), &["one"]).await;
    }
    leadership.resign().await?;
    assert_eq!(election(&one).leader().await?, None);
    let fit = "x".repeat(4 * 1024 - 2);
    let refused = election(&other).campaign(&format!("{fit}x"), None).await;
    assert_eq!(refused.expect_err("it is too large").kind(), ErrorKind::Value);
    assert_eq!(election(&one).candidates().await?, []);
    let leadership = election(&other).campaign(&fit, Some(PATIENCE)).await?;
    let leader = election(&one).leader().await?.expect("somebody leads");
    assert_eq!(leader.value::<String>()?, fit);
    leadership.resign().await
}

/// E4: when a leader's client stops, the next candidate leads.
///
/// Tooz: corresponds to the test `test_run_for_election_multiple_clients` of the Python library Tooz.
pub async fn e4_a_stopped_leader_is_followed(store: &TestStore) -> Result<()> {
    let (leader, other) = (store.connect("leader").await?, store.connect("other").await?);
    let old = campaign(&leader).await?;
    let waiting = campaign_in_background(&other);
    until_candidates(&election(&other), &["leader", "other"]).await;
    assert_eq!(election(&other).leader().await?.map(|term| term.leader), Some("leader".into()));
    let handing_over = async {
        leader.stop().await?;
        waiting.await.expect("no panic")
    };
    let next = store.within(bounds::served(), handing_over).await?;
    assert_eq!(old.lost().await, LossReason::Closed);
    assert!(next.term() > old.term() && !old.is_leader());
    assert_eq!(election(&other).leader().await?.map(|term| term.leader), Some("other".into()));
    next.resign().await
}

/// E4: when a leader's process is killed, and the processes of some candidates too, the next candidate leads in time.
pub async fn e4_a_killed_leader_is_followed(store: &TestStore) -> Result<()> {
    let coordinator = store.connect("next").await?;
    let mut terms = election(&coordinator).observe();
    for round in 0..store.rounds(4, 1) {
        let (worker, waiter) =
            (store.worker(&format!("leader-{round}")), store.worker(&format!("waiter-{round}")));
        let (leader, second) = (format!("leader-{round}"), format!("waiter-{round}"));
        let command = json!({ "command": "campaign", "election": NAME, "value": round });
        let old = worker.call(command.clone());
        waiter.send(command);
        until_candidates(&election(&coordinator), &[&leader, &second]).await;
        let waiting = campaign_in_background(&coordinator);
        until_candidates(&election(&coordinator), &[&leader, &second, "next"]).await;
        let killed = Instant::now();
        waiter.kill();
        worker.kill();
        let next = waiting.await.expect("no panic")?;
        let took = killed.elapsed();
        eprintln!("E4: followed after {took:?}");
        assert!(took <= store.crash_bound(), "followed after {took:?}");
        assert!(Some(next.term().value()) > old["term"].as_u64());
        while told(&mut terms).await?.map(|term| term.term) != Some(next.term()) {}
        next.resign().await?;
    }
    Ok(())
}
