//! An election: observers of the leader, and leaders that proclaim values.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use coordination::{Election, ErrorKind, FencingToken, Term};

use super::{becomes, within};
use crate::stage::{Process, Stage, lock};

#[derive(Default)]
pub(crate) struct Ledger {
    /// For each process, the last term that its observer has returned.
    told: BTreeMap<u32, Option<Term>>,
    /// For each term, the last value whose `proclaim` has returned without an error.
    said: BTreeMap<FencingToken, u64>,
}

fn election(process: &Process) -> Election {
    process.coordinator.election("observed").expect("the name is one")
}

/// E2: follows the leaders in a process, and checks that the terms which it sees never fall.
pub(crate) async fn follow(stage: Arc<Stage>, process: Arc<Process>) {
    let mut terms = election(&process).observe();
    let mut highest = None;
    loop {
        let term = match terms.next().await {
            Ok(event) => event.into_term(),
            Err(error) if error.kind() == ErrorKind::Closed => return,
            Err(error) => return stage.broken(format!("E2: observing ended: {error}")),
        };
        let number = term.as_ref().map(|term| term.term);
        stage.judges("E2");
        if number.is_some() && number < highest {
            stage.broken(format!("E2: {term:?} after {highest:?}"));
        }
        highest = highest.max(number);
        lock(&stage.ledgers.election).told.insert(process.number, term);
    }
}

/// Becomes leader, proclaims a few numbers, and resigns.
pub(crate) async fn act(stage: &Arc<Stage>, process: &Arc<Process>) {
    let election = election(process);
    let timeout = Some(stage.up_to(Duration::from_millis(200)));
    let leadership = match election.campaign(&stage.number(), timeout).await {
        Ok(leadership) => leadership,
        Err(error) => return stage.failed("campaign", &error),
    };
    for _ in 0..3 {
        let number = stage.number();
        if let Err(error) = leadership.proclaim(&number).await {
            stage.failed("proclaim", &error);
            break;
        }
        lock(&stage.ledgers.election).said.insert(leadership.term(), number);
        tokio::time::sleep(stage.up_to(stage.plan.hold)).await;
        look(stage, &election, leadership.term(), number).await;
    }
    if let Err(error) = leadership.resign().await {
        stage.failed("resign", &error);
    }
}

/// E2: as long as the term lasts, a reader sees the value that the leader proclaimed last before the read, or a newer
/// one.
async fn look(stage: &Stage, election: &Election, mine: FencingToken, said: u64) {
    let term = match election.leader().await {
        Ok(Some(term)) if term.term == mine => term,
        Ok(_) => return,
        Err(error) => return stage.failed("leader", &error),
    };
    stage.judges("E2 proclaimed");
    match term.value::<u64>() {
        Ok(number) if number >= said => {}
        says => stage.broken(format!("E2: {mine} proclaimed {said}, and says {says:?}")),
    }
}

/// E2: checks after the run that all observers see the last term, with the value that was proclaimed last.
pub(crate) async fn conclude(stage: &Arc<Stage>) {
    let Some(process) = stage.processes().first().cloned() else { return };
    let election = election(&process);
    let campaigning = within(&process, async move {
        let leadership = election.campaign("first", None).await?;
        leadership.proclaim("last").await?;
        Ok::<_, coordination::Error>(leadership)
    });
    let leadership = match tokio::time::timeout(stage.plan.recovery(), campaigning).await {
        Ok(Ok(leadership)) => leadership,
        other => return stage.broken(format!("E4: nobody leads after healing: {other:?}")),
    };
    let wrong = becomes(stage, async || {
        let ledger = lock(&stage.ledgers.election);
        let is_last = |term: &Term| {
            term.term == leadership.term()
                && term.value::<String>().is_ok_and(|says| says == "last")
        };
        let told = |process: &Process| ledger.told.get(&process.number).cloned().flatten();
        let behind = stage
            .processes()
            .into_iter()
            .find(|process| !told(process).is_some_and(|term| is_last(&term)));
        behind.map(|process| {
            format!("{leadership:?}; process {} was told {:?}", process.number, told(&process))
        })
    });
    if let Some(wrong) = wrong.await {
        stage.broken(format!("E2: {wrong}"));
    }
    if let Err(error) = within(&process, leadership.resign()).await {
        stage.broken(format!("C5: resigning after healing: {error}"));
    }
}
