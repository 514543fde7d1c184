//! E3: a leader knows when it does not lead any more.

use coordination::{Effect, State};

use super::super::tools::{drop_after_polls, until_state};
use super::*;
use crate::harness::Mode;
use crate::harness::log::now_ns;

/// E3: a leader whose session has ended learns of its loss, and leads again only by a new campaign.
///
/// The library Tooz has no such test, because a leader there is never told that it no longer leads.
pub async fn e3_a_lost_leader_is_out(store: &TestStore) -> Result<()> {
    let mut leader = store.connect("leader").await?;
    let other = store.connect("other").await?;
    let mut state = leader.state();
    let old = Arc::new(campaign(&leader).await?);
    let waiting = campaign_in_background(&other);
    until_candidates(&election(&other), &["leader", "other"]).await;
    // The library begins to watch a leader's entry a little after the election. This waits until then.
    sleep(2 * MOMENT).await;
    let listener = Arc::clone(&old);
    let listening = tokio::spawn(async move { (listener.lost().await, BootInstant::now()) });
    store.lose(&leader, "leader").await?;
    let ended = BootInstant::now();
    let (reason, told) = timeout(PATIENCE, listening).await.expect("it is told").expect("no panic");
    let delay = late(told, ended);
    eprintln!("E3: told {delay:?} after the session was ended: {reason:?}");
    assert!(delay <= store.end_notice_bound(), "told after {delay:?}");
    assert!(!old.is_leader());
    let next = waiting.await.expect("no panic")?;
    assert!(next.term() > old.term());
    if store.backend().is_in_process() {
        leader = store.connect("leader").await?;
    } else {
        until_state(&mut state, |state| state == State::Connected).await;
    }
    sleep(3 * store.heartbeat()).await;
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

/// E3: an operator takes a term away from its leader, and no other one; the next candidate leads.
pub async fn e3_a_term_is_taken_away(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let old = campaign(&one).await?;
    let waiting = campaign_in_background(&other);
    until_candidates(&election(&other), &["one", "other"]).await;
    let operator = election(&other);
    let taken = operator.break_grant(old.term()).await?.expect("it leads");
    assert!(taken.leading && taken.member == "one", "{taken:?}");
    assert!(operator.break_grant(old.term()).await?.is_none());
    let next = timeout(PATIENCE, waiting).await.expect("elected").expect("no panic")?;
    assert!(next.term() > old.term());
    timeout(PATIENCE, old.lost()).await.expect("told");
    assert!(!old.is_leader());
    assert!(old.resign().await.is_err(), "it leads no more");
    assert!(next.is_leader());
    next.resign().await
}

/// E3: nothing that is done with an old leadership, however late, affects a later leadership.
pub async fn e3_an_old_resignation_removes_no_new_leader(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    for round in 0..store.rounds(12, 12) {
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

/// E1, E3: a leader that is cut off learns of its loss at its deadline, before the next leader is elected. The next
/// leader is elected within the bound of L1.
pub async fn e3_a_leader_cut_off_is_told_in_time(store: &TestStore) -> Result<()> {
    let (leader, other) = (store.connect_by_proxy("leader").await?, store.connect("other").await?);
    let mut state = leader.state();
    let old = campaign(&leader).await?;
    let waiting = campaign_in_background(&other);
    until_candidates(&election(&other), &["leader", "other"]).await;
    let cut = Instant::now();
    store.proxy().set_both(Mode::Blackhole);
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
    assert!(delay <= NOTICE + store.scheduling(), "told {delay:?} late");
    assert!(elected >= deadline, "elected {:?} early", late(deadline, elected));
    assert!(took <= store.crash_bound(), "elected after {took:?}");
    assert!(next.term() > old.term() && next.is_leader() && !old.is_leader());
    let refused = old.proclaim("still here").await.expect_err("it is out");
    assert_eq!((refused.kind(), refused.effect()), (ErrorKind::Lost, Effect::None));
    store.proxy().heal();
    until_state(&mut state, |state| state == State::Connected).await;
    until_candidates(&election(&other), &["other"]).await;
    assert!(old.resign().await.is_err() && next.is_leader());
    next.resign().await
}

/// E1, E3: a leader whose process was stopped for three leases learns of its loss when it is continued; meanwhile
/// another leader was elected in time.
pub async fn e3_a_paused_leader_is_told_when_it_wakes(store: &TestStore) -> Result<()> {
    let ttl = store.ttl().expect("the check is for leases");
    let other = store.connect("other").await?;
    let worker = store.worker("sleeper");
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
    assert!(took <= store.crash_bound(), "elected after {took:?}");
    assert!(Some(next.term().value()) > old["term"].as_u64());
    sleep((3 * ttl).saturating_sub(paused.elapsed())).await;
    let woken = now_ns();
    worker.resume();
    for _ in 0..2 {
        let event = worker.event(PATIENCE).expect("the loss is told");
        let delay = event["t_ns"].as_u64().expect("a time").saturating_sub(woken);
        let delay = Duration::from_nanos(delay);
        eprintln!("E3: {} told {delay:?} after SIGCONT", event["event"]);
        assert!(delay <= NOTICE + store.scheduling(), "{event} came {delay:?} after SIGCONT");
        let last = event["last_true_before_ns"].as_u64().unwrap_or_default();
        assert!(last < woken, "leads {:?} after SIGCONT", Duration::from_nanos(last - woken));
    }
    assert!(next.is_leader());
    until_candidates(&election(&other), &["other"]).await;
    next.resign().await
}
