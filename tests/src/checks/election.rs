//! E1–E4: one leader per term, terms that rise for whoever looks, and a leader that knows when it is out.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use coordination::{
    BootInstant, Coordinator, Effect, Election, ErrorKind, Fence, FencingToken, Leadership,
    LossReason, Result, State, Term, Terms,
};
use serde_json::json;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{sleep, timeout};

use super::interruption::{Scene, at_every_poll};
use super::timing::lease_of;
use super::tools::{
    Chance, MOMENT, PATIENCE, Room, drop_after_polls, poll_once, poll_times, until_state,
};
use super::{Backend, Stage};
use crate::harness::Mode;
use crate::harness::log::now_ns;

/// The election that the checks are about.
const NAME: &str = "scheduler";
/// What the contract allows between a loss and word of it.
const NOTICE: Duration = Duration::from_millis(50);
/// What it allows, beyond the bound of L1, for a new leader (E4).
const ELECTING: Duration = Duration::from_secs(2);

fn election(coordinator: &Coordinator) -> Election {
    coordinator.election(NAME).expect("a valid name")
}

/// Leads, in good time, under the name of the member.
async fn campaign(coordinator: &Coordinator) -> Result<Leadership> {
    election(coordinator).campaign(coordinator.member_id(), Some(PATIENCE)).await
}

fn campaign_in_background(coordinator: &Coordinator) -> JoinHandle<Result<Leadership>> {
    let coordinator = coordinator.clone();
    tokio::spawn(async move { campaign(&coordinator).await })
}

/// Waits until exactly these members stand, in this order.
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

/// The next that an observer is told, in good time.
async fn told(terms: &mut Terms) -> Result<Option<Term>> {
    timeout(PATIENCE, terms.next()).await.expect("an observer is told")
}

fn late(moment: BootInstant, than: BootInstant) -> Duration {
    moment.saturating_duration_since(than)
}

/// E1: somebody who stands is elected, and everybody can ask who leads.
///
/// Tooz: test_run_for_election, test_get_leader.
pub async fn e1_who_stands_is_elected(stage: &Stage) -> Result<()> {
    let (one, other) = (stage.connect("one").await?, stage.connect("other").await?);
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
    leadership.resign().await?;
    assert_eq!(election(&other).leader().await?, None);
    Ok(())
}

/// E1: elections of other names, and locks of the same name, are apart.
pub async fn e1_names_are_apart(stage: &Stage) -> Result<()> {
    let one = stage.connect("one").await?;
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

/// E1: two who make room for each other lead in turn.
///
/// Tooz: test_run_for_election_multiple_clients_stand_down.
pub async fn e1_leaders_make_room_in_turn(stage: &Stage) -> Result<()> {
    let clients = [stage.connect("one").await?, stage.connect("other").await?];
    let mut leadership = campaign(&clients[0]).await?;
    for round in 1..=stage.rounds(20, 6) {
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

/// E1: never two leaders, whoever contends and however a leadership ends; a fence accepts each.
pub async fn e1_one_leader_of_many(stage: &Stage) -> Result<()> {
    let contest = Arc::new((Room::default(), Fence::new()));
    let rounds = stage.rounds(100, 10);
    let mut tasks = JoinSet::new();
    for client in 0..3 {
        let coordinator = stage.connect(&format!("client-{client}")).await?;
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
    let last = stage.connect("last").await?;
    until_candidates(&election(&last), &[]).await;
    Ok(())
}

/// E1: candidates lead in the order in which they stood, and are listed in it.
pub async fn e1_first_come_first_elected(stage: &Stage) -> Result<()> {
    let (one, other) = (stage.connect("one").await?, stage.connect("other").await?);
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

/// E1: whoever gives up standing, wherever it is, has not stood and is never elected.
///
/// Tooz: test_unwatch_elected_as_leader, and its weakness that the unwatched may win all the same.
pub async fn e1_a_dropped_campaign_leaves_no_candidacy(stage: &Stage) -> Result<()> {
    let least = stage.rounds(1, 2);
    at_every_poll(stage, "campaign", least, interrupted_campaign).await?;
    at_every_poll(stage, "campaign against a leader", 2, interrupted_candidacy).await?;
    at_every_poll(stage, "resign", least, interrupted_resignation).await?;
    let (one, other) = (stage.connect("one").await?, stage.connect("other").await?);
    // The same for a leadership that nobody took from the task that won it.
    let leadership = campaign(&one).await?;
    let waiting = campaign_in_background(&other);
    until_candidates(&election(&one), &["one", "other"]).await;
    leadership.resign().await?;
    waiting.abort();
    drop(waiting.await);
    until_candidates(&election(&one), &[]).await;
    Ok(())
}

/// Nobody leads, and one stands.
pub async fn interrupted_campaign(scene: &Scene<'_>) -> Result<()> {
    let mine = election(&scene.one);
    drop(scene.interrupt(mine.campaign("one", scene.patience())).await?);
    nobody_stands(scene).await
}

/// One stands while somebody else leads, who resigns meanwhile.
pub async fn interrupted_candidacy(scene: &Scene<'_>) -> Result<()> {
    let resigning = scene.drop_later(campaign(&scene.other).await?);
    let mine = election(&scene.one);
    drop(scene.interrupt(mine.campaign("one", scene.patience())).await?);
    resigning.await.expect("no panic");
    nobody_stands(scene).await
}

/// A leader resigns, and stands again in the same moment.
pub async fn interrupted_resignation(scene: &Scene<'_>) -> Result<()> {
    let old = campaign(&scene.one).await?;
    let term = old.term();
    scene.interrupt(old.resign()).await?;
    let new = campaign(&scene.one).await?;
    assert!(new.term() > term && new.is_leader(), "{scene:?}");
    drop(new);
    nobody_stands(scene).await
}

/// Somebody else is elected soon, and nobody stands beside it.
async fn nobody_stands(scene: &Scene<'_>) -> Result<()> {
    let start = Instant::now();
    campaign(&scene.other).await?.resign().await?;
    until_candidates(&election(&scene.other), &[]).await;
    let took = start.elapsed();
    assert!(took <= 20 * NOTICE + scene.stage.scheduling(), "{scene:?}: {took:?}");
    Ok(())
}

/// E1: a campaign in vain tells so in time, and leaves no candidacy either.
pub async fn e1_a_campaign_in_vain_leaves_no_candidacy(stage: &Stage) -> Result<()> {
    let (one, other) = (stage.connect("one").await?, stage.connect("other").await?);
    let leadership = campaign(&one).await?;
    for limit in [Duration::ZERO, MOMENT, 3 * MOMENT] {
        let start = Instant::now();
        let refused = election(&other).campaign("other", Some(limit)).await;
        let took = start.elapsed();
        assert_eq!(refused.expect_err("another leads").kind(), ErrorKind::Timeout);
        let bound = limit + stage.attempt_timeout() + 2 * NOTICE + stage.scheduling();
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

/// E2: an observer who keeps up is told of every change: who leads, a value proclaimed anew, that nobody
/// leads.
pub async fn e2_every_change_is_told(stage: &Stage) -> Result<()> {
    let (one, other) = (stage.connect("one").await?, stage.connect("other").await?);
    let watching = stage.connect("watching").await?;
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
    // One who comes late is told of the present, and the end is told.
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

/// E2: of values proclaimed one after the other, and of calls dropped on their way, the last one counts.
pub async fn e2_the_last_proclaimed_value_counts(stage: &Stage) -> Result<()> {
    let (one, other) = (stage.connect("one").await?, stage.connect("other").await?);
    let leadership = Arc::new(campaign(&one).await?);
    let mut terms = election(&other).observe();
    for round in 0..stage.rounds(60, 12) {
        let leading = Arc::clone(&leadership);
        let proclaiming = async move {
            let dropped = format!("dropped {round}");
            match round % 4 {
                // Dropped at once: the next call is made before anything else can happen.
                0 | 2 => drop(poll_once(leading.proclaim(&dropped)).await),
                polls => drop(drop_after_polls(leading.proclaim(&dropped), polls).await),
            }
            leading.proclaim(&format!("round {round}")).await
        };
        // On a thread of the runtime, where tasks that are made later may begin earlier.
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

/// What the last leader proclaims.
const LAST: u64 = u64::MAX;

/// What an observer is told, until it is told of the last leader.
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

/// Who led which term.
type Leaders = Arc<Mutex<BTreeMap<FencingToken, String>>>;

/// Leads so many times, and ends it in one way or another.
async fn lead_at_random(
    stage: &Stage,
    member: String,
    mut chance: Chance,
    rounds: usize,
    leaders: Leaders,
) -> Result<()> {
    let mut coordinator = stage.connect(&member).await?;
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
                coordinator = stage.connect(&member).await?;
            }
            1 | 2 => leadership.resign().await?,
            _ => drop(leadership),
        }
    }
    coordinator.stop().await
}

/// E2: whatever becomes of many leaders, observers see terms rise, each with its leader, and the last.
pub async fn e2_observers_see_terms_rise(stage: &Stage) -> Result<()> {
    let mut chance = Chance::new("e2_observers_see_terms_rise");
    let watching = stage.connect("watching").await?;
    let leaders = Leaders::default();
    let mut observers = Vec::new();
    for (start, pause) in [(0, 0), (0, 1), (0, 20), (50, 3)] {
        let (start, pause) = (Duration::from_millis(start), Duration::from_millis(pause));
        observers.push(tokio::spawn(observe(election(&watching), start, pause)));
    }
    let killed = (stage.backend() != Backend::Memory).then(|| {
        let worker = stage.worker("killed");
        worker.send(json!({ "command": "reign", "election": NAME }));
        assert!(worker.event(PATIENCE).is_some(), "it leads");
        worker
    });
    let rounds = stage.rounds(60, 8);
    let candidates = (0..4).map(|client| {
        let leaders = Arc::clone(&leaders);
        lead_at_random(stage, format!("client-{client}"), chance.fork(), rounds, leaders)
    });
    let mut candidates: Vec<_> = candidates.map(Box::pin).collect();
    // They make some headway before one of them, a process, is killed.
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

/// Runs futures side by side in one task.
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

/// E2: an observer who was cut off goes on with the present term, and none that is older.
pub async fn e2_observers_go_on_after_an_outage(stage: &Stage) -> Result<()> {
    let (one, other) = (stage.connect("one").await?, stage.connect("other").await?);
    let watching = stage.connect_by_proxy("watching").await?;
    let mut terms = election(&watching).observe();
    assert_eq!(told(&mut terms).await?, None);
    let mut last = None;
    for mode in [Mode::Blackhole, Mode::Stall] {
        let before = campaign(&one).await?;
        while told(&mut terms).await?.map(|term| term.term) != Some(before.term()) {}
        stage.proxy().set_both(mode);
        let mut seen = before.term();
        before.resign().await?;
        for _ in 0..3 {
            campaign(&other).await?.resign().await?;
        }
        let present = campaign(&other).await?;
        let unheard = timeout(stage.attempt_timeout(), terms.next()).await;
        assert!(unheard.is_err(), "it is cut off: {unheard:?}");
        stage.proxy().heal();
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

/// E2, E4: an election goes on over the server's restart, and so do its observers: terms rise.
pub async fn e2_terms_rise_over_a_restart(stage: &Stage) -> Result<()> {
    let (one, other) = (stage.connect("one").await?, stage.connect("other").await?);
    let mut terms = election(&other).observe();
    let mut last = None;
    for _ in 0..2 {
        let leadership = campaign(&one).await?;
        assert!(Some(leadership.term()) > last);
        let waiting = campaign_in_background(&other);
        until_candidates(&election(&other), &["one", "other"]).await;
        stage.server().compact();
        stage.server().node(0).restart();
        stage.server().wait_ready();
        while told(&mut terms).await?.map(|term| term.term) < Some(leadership.term()) {}
        // The session outlives the restart, or ends and is told; in both cases there is a next leader.
        drop(leadership.resign().await);
        let next = waiting.await.expect("no panic")?;
        while told(&mut terms).await?.map(|term| term.term) != Some(next.term()) {}
        last = Some(next.term());
        next.resign().await?;
        while let Some(term) = told(&mut terms).await? {
            assert!(Some(term.term) >= last, "{term:?} after {last:?}");
        }
    }
    Ok(())
}

/// Ends the session of a client that was the first to connect, behind its back.
async fn end_session(stage: &Stage, client: &Coordinator, files: &[PathBuf]) -> Result<()> {
    match stage.backend() {
        // There is no other way.
        Backend::Memory => client.stop().await?,
        Backend::File => {
            for file in files {
                fs::remove_file(file).expect("it is there");
            }
        }
        Backend::Etcd => {
            let first =
                election(client).candidates().await?.first().map(|first| first.term.value());
            let keys = stage.keys("election/");
            let key =
                keys.iter().find(|key| Some(super::grants::create_revision(stage, key)) == first);
            assert!(stage.server().revoke_lease(lease_of(key.expect("somebody leads"))));
        }
    }
    Ok(())
}

/// E3: a leader whose session has ended is told, and is out until it campaigns anew.
///
/// Tooz: none; its weakness 6, "leadership has no loss signal", "the old leader is never told".
pub async fn e3_a_lost_leader_is_out(stage: &Stage) -> Result<()> {
    let mut leader = stage.connect("leader").await?;
    let is_file = stage.backend() == Backend::File;
    let files = if is_file { stage.session_files() } else { Vec::new() };
    let other = stage.connect("other").await?;
    let mut state = leader.state();
    let old = Arc::new(campaign(&leader).await?);
    let waiting = campaign_in_background(&other);
    until_candidates(&election(&other), &["leader", "other"]).await;
    // Shorter terms go unwatched.
    sleep(2 * MOMENT).await;
    let listener = Arc::clone(&old);
    let listening = tokio::spawn(async move { (listener.lost().await, BootInstant::now()) });
    end_session(stage, &leader, &files).await?;
    let ended = BootInstant::now();
    let (reason, told) = timeout(PATIENCE, listening).await.expect("it is told").expect("no panic");
    let delay = late(told, ended);
    eprintln!("E3: told {delay:?} after the session was ended: {reason:?}");
    assert!(delay <= stage.notice_bound(), "told after {delay:?}");
    assert!(!old.is_leader());
    let next = waiting.await.expect("no panic")?;
    assert!(next.term() > old.term());
    match stage.backend() {
        Backend::Memory => leader = stage.connect("leader").await?,
        _ => drop(until_state(&mut state, |state| state == State::Connected).await),
    }
    sleep(3 * stage.heartbeat()).await;
    until_candidates(&election(&leader), &["other"]).await;
    let refused = old.proclaim("still here").await.expect_err("it is out");
    assert_eq!(refused.loss_reason(), Some(reason));
    let value = election(&leader).leader().await?.expect("the other leads").value::<String>()?;
    assert_eq!(value, "other");
    let old_term = old.term();
    let refused = Arc::into_inner(old).expect("nobody listens").resign().await;
    assert_eq!(refused.expect_err("it is out").loss_reason(), Some(reason));
    assert!(next.is_leader());
    let again = campaign_in_background(&leader);
    until_candidates(&election(&other), &["other", "leader"]).await;
    let next_term = next.term();
    next.resign().await?;
    let again = again.await.expect("no panic")?;
    assert!(again.term() > next_term && next_term > old_term);
    again.resign().await
}

/// E3: whatever is done with an old leadership, and whenever it arrives, a later one stays.
pub async fn e3_an_old_resignation_removes_no_new_leader(stage: &Stage) -> Result<()> {
    let (one, other) = (stage.connect("one").await?, stage.connect("other").await?);
    for round in 0..stage.rounds(12, 12) {
        let old = campaign(&one).await?;
        drop_after_polls(old.resign(), round / 2).await;
        let new = campaign(if round % 2 == 0 { &one } else { &other }).await?;
        sleep(MOMENT).await;
        assert!(new.is_leader());
        let leader = election(&other).leader().await?.expect("somebody leads");
        assert_eq!(leader.term, new.term());
        assert_eq!(election(&one).candidates().await?.len(), 1);
        new.resign().await?;
    }
    Ok(())
}

/// E1, E3: a leader that is cut off is told at its deadline, before the next one is elected; and the
/// next is elected within the bound of L1.
pub async fn e3_a_leader_cut_off_is_told_in_time(stage: &Stage) -> Result<()> {
    let (leader, other) = (stage.connect_by_proxy("leader").await?, stage.connect("other").await?);
    let mut state = leader.state();
    let old = campaign(&leader).await?;
    let waiting = campaign_in_background(&other);
    until_candidates(&election(&other), &["leader", "other"]).await;
    let cut = Instant::now();
    stage.proxy().set_both(Mode::Blackhole);
    sleep(2 * NOTICE).await;
    let deadline = old.deadline().expect("a lease has a deadline");
    let watching = async { (old.lost().await, BootInstant::now()) };
    let electing = async { (waiting.await.expect("no panic"), BootInstant::now(), cut.elapsed()) };
    let ((reason, told), (next, elected, took)) = tokio::join!(watching, electing);
    let next = next?;
    assert_eq!(reason, LossReason::DeadlinePassed);
    let delay = late(told, deadline);
    eprintln!("E3: told {delay:?} after the deadline, the next elected {took:?} after the cut");
    assert!(told >= deadline, "told {:?} early", late(deadline, told));
    assert!(delay <= NOTICE + stage.scheduling(), "told {delay:?} late");
    assert!(elected >= deadline, "elected {:?} early", late(deadline, elected));
    assert!(took <= stage.crash_bound(), "elected after {took:?}");
    assert!(next.term() > old.term() && next.is_leader() && !old.is_leader());
    let refused = old.proclaim("still here").await.expect_err("it is out");
    assert_eq!((refused.kind(), refused.effect()), (ErrorKind::Lost, Effect::None));
    stage.proxy().heal();
    until_state(&mut state, |state| state == State::Connected).await;
    until_candidates(&election(&other), &["other"]).await;
    assert!(old.resign().await.is_err() && next.is_leader());
    next.resign().await
}

/// E1, E3: a leader that was stopped for three leases learns it when it wakes; another was elected in time.
pub async fn e3_a_paused_leader_is_told_when_it_wakes(stage: &Stage) -> Result<()> {
    let ttl = stage.ttl().expect("the check is for leases");
    let other = stage.connect("other").await?;
    let worker = stage.worker("sleeper");
    let old = worker.call(json!({ "command": "campaign", "election": NAME, "value": "sleeper" }));
    worker.call(json!({ "command": "watch_leadership", "election": NAME }));
    worker.call(json!({ "command": "probe_leadership", "election": NAME }));
    let waiting = campaign_in_background(&other);
    until_candidates(&election(&other), &["sleeper", "other"]).await;
    let paused = Instant::now();
    worker.pause();
    let next = waiting.await.expect("no panic")?;
    let took = paused.elapsed();
    eprintln!("E3: the next elected {took:?} after the pause began");
    assert!(took <= stage.crash_bound(), "elected after {took:?}");
    assert!(Some(next.term().value()) > old["term"].as_u64());
    sleep((3 * ttl).saturating_sub(paused.elapsed())).await;
    let woken = now_ns();
    worker.resume();
    for _ in 0..2 {
        let event = worker.event(PATIENCE).expect("the loss is told");
        let delay = event["t_ns"].as_u64().expect("a time").saturating_sub(woken);
        let delay = Duration::from_nanos(delay);
        eprintln!("E3: {} told {delay:?} after SIGCONT", event["event"]);
        assert!(delay <= NOTICE + stage.scheduling(), "{event} came {delay:?} after SIGCONT");
        let last = event["last_true_before_ns"].as_u64().unwrap_or_default();
        assert!(last < woken, "leads {:?} after SIGCONT", Duration::from_nanos(last - woken));
    }
    assert!(next.is_leader());
    until_candidates(&election(&other), &["other"]).await;
    next.resign().await
}

/// E4: when a leader's client stops, the next leads.
///
/// Tooz: test_run_for_election_multiple_clients.
pub async fn e4_a_stopped_leader_is_followed(stage: &Stage) -> Result<()> {
    let (leader, other) = (stage.connect("leader").await?, stage.connect("other").await?);
    let old = campaign(&leader).await?;
    let waiting = campaign_in_background(&other);
    until_candidates(&election(&other), &["leader", "other"]).await;
    assert_eq!(election(&other).leader().await?.map(|term| term.leader), Some("leader".into()));
    let stopped = Instant::now();
    leader.stop().await?;
    let next = waiting.await.expect("no panic")?;
    let took = stopped.elapsed();
    assert!(took <= ELECTING, "elected after {took:?}");
    assert_eq!(old.lost().await, LossReason::Closed);
    assert!(next.term() > old.term() && !old.is_leader());
    assert_eq!(election(&other).leader().await?.map(|term| term.leader), Some("other".into()));
    next.resign().await
}

/// E4: when a leader's process is killed, and with it some who waited, the next leads in time.
pub async fn e4_a_killed_leader_is_followed(stage: &Stage) -> Result<()> {
    let coordinator = stage.connect("next").await?;
    let mut terms = election(&coordinator).observe();
    for round in 0..stage.rounds(4, 1) {
        let (worker, waiter) =
            (stage.worker(&format!("leader-{round}")), stage.worker(&format!("waiter-{round}")));
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
        assert!(took <= stage.crash_bound(), "followed after {took:?}");
        assert!(Some(next.term().value()) > old["term"].as_u64());
        while told(&mut terms).await?.map(|term| term.term) != Some(next.term()) {}
        next.resign().await?;
    }
    Ok(())
}
