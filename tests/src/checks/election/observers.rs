//! E2: what observers of an election see.

use std::collections::BTreeMap;
use std::sync::Mutex;

use coordination::FencingToken;

use super::super::tools::{Chance, drop_after_polls, poll_once, poll_times};
use super::*;
use crate::harness::Mode;

/// E2: an observer that keeps up sees each change: a new leader, a newly proclaimed value, and that nobody leads.
pub async fn e2_every_change_is_told(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let watching = store.connect("watching").await?;
    let (mut terms, mut near) = (election(&watching).observe(), election(&one).observe());
    for observer in [&mut terms, &mut near] {
        assert_eq!(told(observer).await?, None, "nobody leads at first");
    }
    let mut last = None;
    for leader in [&one, &other, &one] {
        let leadership = campaign(leader).await?;
        assert!(Some(leadership.term()) > last);
        last = Some(leadership.term());
        for value in [leader.member_id(), "ready", "tired"] {
            if value != leader.member_id() {
                leadership.proclaim(value).await?;
            }
            for observer in [&mut terms, &mut near] {
                let term = told(observer).await?.expect("somebody leads");
                assert_eq!(
                    (term.term, term.leader.as_str()),
                    (leadership.term(), leader.member_id())
                );
                assert_eq!(term.value::<String>()?, value);
            }
        }
        assert!(leadership.is_leader());
        let refused = leadership.proclaim(&"x".repeat(5_000)).await.expect_err("too large");
        assert_eq!(refused.kind(), ErrorKind::Value);
        let leader = election(&watching).leader().await?.expect("somebody leads");
        assert_eq!(leader.value::<String>()?, "tired");
        leadership.resign().await?;
        for observer in [&mut terms, &mut near] {
            assert_eq!(told(observer).await?, None, "nobody leads now");
        }
    }
    // An observer that starts late sees the present term. When the coordinator stops, observers get the error `Closed`.
    let leadership = campaign(&other).await?;
    let mut late = election(&watching).observe();
    while told(&mut late).await?.map(|term| term.term) != Some(leadership.term()) {}
    watching.stop().await?;
    for observer in [&mut terms, &mut late, &mut election(&watching).observe()] {
        let ended = loop {
            if let Err(error) = told(observer).await {
                break error;
            }
        };
        assert_eq!(ended.kind(), ErrorKind::Closed);
    }
    leadership.resign().await
}

/// E2: of values that are proclaimed one after the other, some by calls that are dropped, the last one prevails.
pub async fn e2_the_last_proclaimed_value_counts(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let leadership = Arc::new(campaign(&one).await?);
    let mut terms = election(&other).observe();
    for round in 0..store.rounds(60, 12) {
        let leading = Arc::clone(&leadership);
        let proclaiming = async move {
            let dropped = format!("dropped {round}");
            match round % 4 {
                // Dropped after one poll, so that the next call is made before anything else can happen.
                0 | 2 => drop(poll_once(leading.proclaim(&dropped)).await),
                polls => drop(drop_after_polls(leading.proclaim(&dropped), polls).await),
            }
            leading.proclaim(&format!("round {round}")).await
        };
        // Runs on a worker thread of the runtime. There, a task that is spawned later may run earlier, and the last
        // value must prevail even then.
        tokio::spawn(proclaiming).await.expect("no panic")?;
        sleep(Duration::from_millis(2)).await;
        let leader = election(&other).leader().await?.expect("somebody leads");
        assert_eq!(leader.value::<String>()?, format!("round {round}"));
    }
    leadership.proclaim("last").await?;
    while told(&mut terms).await?.expect("it leads all the time").value::<String>()? != "last" {}
    assert!(timeout(MOMENT, terms.next()).await.is_err(), "nothing comes after the last");
    Arc::into_inner(leadership).expect("nobody else has it").resign().await
}

/// The value that the last leader proclaims.
const LAST: u64 = u64::MAX;

/// Observes the election after `start`, with a pause after each change. Returns the terms that it saw, up to the last
/// leader's.
async fn observe(election: Election, start: Duration, pause: Duration) -> Result<Vec<Term>> {
    sleep(start).await;
    let (mut terms, mut seen) = (election.observe(), Vec::new());
    loop {
        let now = told(&mut terms).await?;
        let is_last = now.as_ref().is_some_and(|term| term.value::<u64>().ok() == Some(LAST));
        seen.extend(now);
        if is_last {
            return Ok(seen);
        }
        sleep(pause).await;
    }
}

/// The leader of each term.
type Leaders = Arc<Mutex<BTreeMap<FencingToken, String>>>;

/// Leads `rounds` times, and ends each leadership in a random way.
async fn lead_at_random(
    store: &TestStore,
    member: String,
    mut chance: Chance,
    rounds: usize,
    leaders: Leaders,
) -> Result<()> {
    let mut coordinator = store.connect(&member).await?;
    for round in 0..rounds {
        let standing = election(&coordinator);
        if chance.below(8) == 0 {
            drop_after_polls(standing.campaign("impatient", None), chance.below(4)).await;
        }
        let leadership = standing.campaign(&round, Some(PATIENCE)).await?;
        leaders.lock().expect("no panic").insert(leadership.term(), member.clone());
        if chance.below(3) == 0 {
            leadership.proclaim(&(round + 1_000)).await?;
        }
        sleep(Duration::from_micros(100) * u32::try_from(chance.below(20)).unwrap_or(0)).await;
        match chance.below(5) {
            0 => {
                coordinator.stop().await?;
                assert!(!leadership.is_leader());
                coordinator = store.connect(&member).await?;
            }
            1 | 2 => leadership.resign().await?,
            _ => drop(leadership),
        }
    }
    coordinator.stop().await
}

/// E2: however many leaders end, observers see terms rise, each with its leader, and reach the last one.
pub async fn e2_observers_see_terms_rise(store: &TestStore) -> Result<()> {
    let mut chance = Chance::new("e2_observers_see_terms_rise");
    let watching = store.connect("watching").await?;
    let leaders = Leaders::default();
    let mut observers = Vec::new();
    for (start, pause) in [(0, 0), (0, 1), (0, 20), (50, 3)] {
        let (start, pause) = (Duration::from_millis(start), Duration::from_millis(pause));
        observers.push(tokio::spawn(observe(election(&watching), start, pause)));
    }
    let killed = (!store.backend().is_in_process()).then(|| {
        let worker = store.worker("killed");
        worker.send(json!({ "command": "reign", "election": NAME }));
        assert!(worker.event(PATIENCE).is_some(), "it leads");
        worker
    });
    let rounds = store.rounds(60, 8);
    let candidates = (0..4).map(|client| {
        let leaders = Arc::clone(&leaders);
        lead_at_random(store, format!("client-{client}"), chance.fork(), rounds, leaders)
    });
    let mut candidates: Vec<_> = candidates.map(Box::pin).collect();
    // The candidates run for a moment before one of them, which is a process, is killed.
    for candidate in &mut candidates {
        assert!(poll_times(candidate.as_mut(), 5).await.is_none_or(|ended| ended.is_ok()));
    }
    if let Some(worker) = &killed {
        worker.kill();
    }
    for candidate in join_all(candidates).await {
        candidate?;
    }
    let last = election(&watching).campaign(&LAST, Some(PATIENCE)).await?;
    for observer in observers {
        let seen = timeout(PATIENCE, observer).await.expect("the last is told");
        let seen = seen.expect("no panic")?;
        let rises =
            |one: &Term, next: &Term| one.term < next.term || one.term == next.term && one != next;
        assert!(seen.is_sorted_by(rises), "{seen:?}");
        assert_eq!(seen.last().map(|term| term.term), Some(last.term()));
        let leaders = leaders.lock().expect("no panic");
        for term in &seen {
            let leader = leaders.get(&term.term);
            assert!(leader.is_none_or(|leader| *leader == term.leader), "{term:?} {leader:?}");
        }
        eprintln!("E2: an observer saw {} of {} terms and more", seen.len(), leaders.len());
    }
    last.resign().await
}

/// Runs several futures concurrently in one task.
async fn join_all<F: Future + Unpin>(mut futures: Vec<F>) -> Vec<F::Output> {
    let mut outputs: Vec<_> = futures.iter().map(|_| None).collect();
    std::future::poll_fn(|context| {
        for (future, output) in futures.iter_mut().zip(&mut outputs) {
            if output.is_none()
                && let std::task::Poll::Ready(ready) = std::pin::Pin::new(future).poll(context)
            {
                *output = Some(ready);
            }
        }
        match outputs.iter().all(Option::is_some) {
            true => std::task::Poll::Ready(()),
            false => std::task::Poll::Pending,
        }
    })
    .await;
    outputs.into_iter().flatten().collect()
}

/// E2: an observer that was cut off goes on with the present term, and sees no older one.
pub async fn e2_observers_go_on_after_an_outage(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let watching = store.connect_by_proxy("watching").await?;
    let mut terms = election(&watching).observe();
    assert_eq!(told(&mut terms).await?, None);
    let mut last = None;
    for mode in [Mode::Blackhole, Mode::Stall] {
        let before = campaign(&one).await?;
        while told(&mut terms).await?.map(|term| term.term) != Some(before.term()) {}
        store.proxy().set_both(mode);
        let mut seen = before.term();
        before.resign().await?;
        for _ in 0..3 {
            campaign(&other).await?.resign().await?;
        }
        let present = campaign(&other).await?;
        let unheard = timeout(store.attempt_timeout(), terms.next()).await;
        assert!(unheard.is_err(), "it is cut off: {unheard:?}");
        store.proxy().heal();
        while seen < present.term() {
            if let Some(term) = told(&mut terms).await? {
                assert!(term.term > seen, "{} after {seen}", term.term);
                seen = term.term;
            }
        }
        assert!(Some(seen) > last);
        last = Some(seen);
        present.resign().await?;
    }
    Ok(())
}

/// E2, E4: when the server restarts, the election and its observers go on, and terms rise.
pub async fn e2_terms_rise_over_a_restart(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let mut terms = election(&other).observe();
    let mut last = None;
    for _ in 0..2 {
        let leadership = campaign(&one).await?;
        assert!(Some(leadership.term()) > last);
        let waiting = campaign_in_background(&other);
        until_candidates(&election(&other), &["one", "other"]).await;
        store.restart();
        let mut seen = None;
        while seen < Some(leadership.term()) {
            seen = told(&mut terms).await?.map(|term| term.term);
        }
        // The leader's session either survives the restart, or ends and the leader learns of it; in both cases there is
        // a next leader.
        drop(leadership.resign().await);
        let next = waiting.await.expect("no panic")?;
        // If the session ended, observers may have seen the next term already.
        while seen != Some(next.term()) {
            seen = told(&mut terms).await?.map(|term| term.term);
        }
        last = Some(next.term());
        next.resign().await?;
        while let Some(term) = told(&mut terms).await? {
            assert!(Some(term.term) >= last, "{term:?} after {last:?}");
        }
    }
    Ok(())
}
