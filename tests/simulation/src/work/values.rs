//! Small operations: values, counters, who leads.

use std::sync::Arc;

use coordination::simulation::nanos;
use coordination::{Effect, Error, Result, Version, Versioned};
use coordination_history::{Answer, Event, Operation};
use rand::RngExt;

use crate::stage::{Process, Stage};

/// One operation on the value, the counter, or the election.
pub(crate) async fn operate(stage: &Arc<Stage>, process: &Arc<Process>) {
    let call = nanos();
    let (object, what, outcome) = match stage.draw(|random| random.random_range(0..3)) {
        0 => value(stage, process).await,
        1 => count(stage, process).await,
        _ => (5, Operation::Leader, leader(process).await),
    };
    let answer = outcome.unwrap_or_else(|error| unsure(&error));
    stage.record(process.number, object, 0, Event::Operation { call, what, answer });
}

fn unsure(error: &Error) -> Answer {
    match error.effect() {
        Effect::None => Answer::NotDone,
        _ => Answer::Unknown,
    }
}

async fn value(stage: &Stage, process: &Process) -> (u32, Operation, Result<Answer>) {
    let number = stage.number() as u32;
    let (what, outcome) = change(stage, process, number).await;
    (6, what, outcome)
}

async fn change(stage: &Stage, process: &Process, number: u32) -> (Operation, Result<Answer>) {
    let shared = match process.coordinator.value::<u32>("value") {
        Ok(shared) => shared,
        Err(error) => return (Operation::Read, Err(error)),
    };
    let expected = stage.last_version();
    match stage.draw(|random| random.random_range(0..9)) {
        0 => {
            let set = shared.set(&number).await.map(|version| written(stage, version));
            (Operation::Set { value: number }, set)
        }
        1 => {
            let deleted = shared.delete().await;
            let answer = |was| if was { Answer::Deleted } else { Answer::Absent };
            (Operation::Delete, deleted.map(answer))
        }
        2..5 => {
            let set = shared.compare_and_set(expected, &number).await;
            let answer = set.map(|version| match version {
                Some(version) => written(stage, version),
                None => Answer::Mismatch,
            });
            let expected = expected.map_or(0, number_of);
            (Operation::CompareAndSet { expected, value: number }, answer)
        }
        5 if let Some(expected) = expected => {
            let deleted = shared.compare_and_delete(expected).await;
            let answer = |was| if was { Answer::Deleted } else { Answer::Mismatch };
            (Operation::CompareAndDelete { expected: number_of(expected) }, deleted.map(answer))
        }
        _ => (Operation::Read, shared.read().await.and_then(|read| seen(stage, read))),
    }
}

fn number_of(version: Version) -> u64 {
    version.to_string().parse().expect("a version is a number")
}

fn written(stage: &Stage, version: Version) -> Answer {
    stage.saw_version(Some(version));
    Answer::Written { version: number_of(version) }
}

fn seen(stage: &Stage, read: Option<Versioned<u32>>) -> Result<Answer> {
    stage.saw_version(read.as_ref().map(|read| read.version));
    Ok(match read {
        Some(read) => Answer::Value { version: number_of(read.version), value: read.value },
        None => Answer::Absent,
    })
}

async fn count(stage: &Stage, process: &Process) -> (u32, Operation, Result<Answer>) {
    let by = stage.draw(|random| random.random_range(-3..=3));
    let counter = match process.coordinator.counter("count") {
        Ok(counter) => counter,
        Err(error) => return (7, Operation::Count, Err(error)),
    };
    match by {
        0 => (7, Operation::Count, counter.read().await.map(Answer::Number)),
        by => (7, Operation::Add { by }, counter.add(by).await.map(Answer::Number)),
    }
}

async fn leader(process: &Process) -> Result<Answer> {
    let term = process.coordinator.election("lead")?.leader().await?;
    Ok(match term {
        Some(term) => Answer::Leader { token: term.term.value() },
        None => Answer::Nobody,
    })
}
