//! Causes the faults of a run.

use std::sync::Arc;
use std::time::Duration;

use coordination::simulation::{Link, Weather};
use coordination_history::Event;
use rand::RngExt;
use tokio::task::JoinSet;

use crate::plan::{Fault, weather};
use crate::stage::{Process, Stage};
use crate::work;

/// Causes faults until the run is over; several faults may last at the same time. Then waits until the last fault has
/// ended, and lets the network work normally.
pub(crate) async fn rage(stage: Arc<Stage>) {
    let mut faults = JoinSet::new();
    while !stage.is_over() {
        let calm = stage.up_to(stage.plan.calm) + Duration::from_millis(1);
        tokio::time::sleep(calm).await;
        let kinds = &stage.plan.faults;
        if kinds.is_empty() || stage.is_over() {
            continue;
        }
        let fault = kinds[stage.draw(|random| random.random_range(0..kinds.len()))];
        let stage = Arc::clone(&stage);
        faults.spawn(async move {
            stage.record(0, 0, 0, Event::Fault { kind: fault.number() });
            strike(&stage, fault).await;
            stage.record(0, 0, 0, Event::FaultEnd { kind: fault.number() });
        });
    }
    // Faults are awaited and never aborted, because a task that is aborted would not undo its fault.
    while let Some(ended) = faults.join_next().await {
        ended.expect("a fault does not fail");
    }
    stage.world.set_weather(Weather::calm());
}

async fn strike(stage: &Arc<Stage>, fault: Fault) {
    let ttl = stage.plan.ttl;
    let length = ttl.mul_f64(stage.draw(|random| random.random_range(0.1..3.0)));
    let processes = stage.processes();
    if processes.is_empty() {
        return;
    }
    let index = stage.draw(|random| random.random_range(0..processes.len()));
    let victim = &processes[index];
    match fault {
        Fault::Pause | Fault::Suspend => pause(stage, victim, fault, length).await,
        Fault::Kill => kill(stage, victim, length).await,
        Fault::RequestsCut => cut(victim, length, |link, on| link.requests_cut = on).await,
        Fault::RepliesCut => cut(victim, length, |link, on| link.replies_cut = on).await,
        Fault::HeartbeatsCut => cut(victim, length, |link, on| link.heartbeats_cut = on).await,
        Fault::BothCut => {
            let both = |link: &mut Link, on| (link.requests_cut, link.replies_cut) = (on, on);
            cut(victim, length, both).await;
        }
        Fault::Restart => {
            stage.world.set_down(true);
            tokio::time::sleep(length / 2).await;
            stage.world.set_down(false);
        }
        Fault::WaiterRemoved => drop(stage.world.remove_some_waiter("lock")),
        Fault::Weather => {
            let new = stage.draw(|random| weather(random, ttl));
            stage.world.set_weather(new);
            tokio::time::sleep(length).await;
        }
        Fault::EarlyEnd => {
            stage.breaks_word(false);
            stage.world.end_some_session();
            // The holder may believe for up to this time that it still holds the lock. After that, a watch or a
            // heartbeat that gets through reports the loss.
            tokio::time::sleep(ttl).await;
        }
        Fault::Wipe => {
            stage.world.set_down(true);
            tokio::time::sleep(Duration::from_millis(10)).await;
            stage.breaks_word(true);
            stage.world.wipe();
            stage.world.set_down(false);
            tokio::time::sleep(ttl).await;
        }
    }
}

async fn pause(stage: &Stage, victim: &Process, fault: Fault, length: Duration) {
    if victim.client.is_paused() || victim.client.is_dead() {
        return;
    }
    stage.record(victim.number, 0, 0, Event::Paused);
    match fault {
        Fault::Suspend => victim.client.suspend(),
        _ => victim.client.pause(),
    }
    tokio::time::sleep(length).await;
    if !victim.client.is_dead() {
        victim.client.resume();
        stage.record(victim.number, 0, 0, Event::Resumed);
    }
}

async fn kill(stage: &Arc<Stage>, victim: &Process, length: Duration) {
    if victim.client.is_dead() {
        return;
    }
    victim.client.crash();
    stage.remove(victim.number);
    stage.record(victim.number, 0, 0, Event::Crash);
    // The session of the dead process lasts until its lease is over.
    tokio::time::sleep(length).await;
    work::start(stage).await;
}

async fn cut(victim: &Process, length: Duration, set: impl Fn(&mut Link, bool)) {
    let change = |on| {
        let mut link = victim.client.link();
        set(&mut link, on);
        victim.client.set_link(link);
    };
    change(true);
    tokio::time::sleep(length).await;
    change(false);
}
