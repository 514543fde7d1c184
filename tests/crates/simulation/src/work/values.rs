//! Short operations on a value, a counter and an election, whose results the history checker compares (O7).

use std::sync::Arc;

use coordination::{Effect, Error, Result, Version, Versioned};
use coordination_history::{Answer, Operation};
use rand::RngExt;

use super::held::recorded;
use crate::stage::{Process, Stage};

/// Performs one operation on the value, the counter, or the election.
pub(crate) async fn operate(stage: &Arc<Stage>, process: &Arc<Process>) {
    let (object, what) = choose(stage);
    // The operation is registered before the call: even if the process is killed during the call, the store may carry
    // the operation out.
    let operation = stage.begins(process, object, what);
    let outcome = match object {
        6 => value(stage, process, what).await,
        7 => count(process, what).await,
        _ => leader(process).await,
    };
    stage.ends(operation, outcome.unwrap_or_else(|error| unsure(&error)));
}

fn choose(stage: &Stage) -> (u32, Operation) {
    let value = stage.number() as u32;
    let expected = stage.last_version();
    stage.draw(|random| match random.random_range(0..18) {
        0 => (6, Operation::Set { value }),
        1 => (6, Operation::Delete),
        2..4 => (6, Operation::CompareAndSet { expected, value }),
        4 if expected > 0 => (6, Operation::CompareAndDelete { expected }),
        4..6 => (6, Operation::Read),
        6..8 => (7, Operation::Count),
        8..12 => (7, Operation::Add { by: random.random_range(-3..=3) }),
        _ => (5, Operation::Leader),
    })
}

fn unsure(error: &Error) -> Answer {
    match error.effect() {
        Effect::None => Answer::NotDone,
        _ => Answer::Unknown,
    }
}

async fn value(stage: &Stage, process: &Process, what: Operation) -> Result<Answer> {
    let shared = process.coordinator.value::<u32>("value")?;
    Ok(match what {
        Operation::Set { value } => written(stage, shared.set(&value).await?),
        Operation::CompareAndSet { expected, value } => {
            match shared.compare_and_set(stage.version(expected), &value).await? {
                Some(version) => written(stage, version),
                None => Answer::Mismatch,
            }
        }
        Operation::CompareAndDelete { expected } => {
            // This operation is chosen only if a version was seen before.
            match stage.version(expected) {
                Some(version) if shared.compare_and_delete(version).await? => Answer::Deleted,
                _ => Answer::Mismatch,
            }
        }
        Operation::Delete if shared.delete().await? => Answer::Deleted,
        Operation::Delete => Answer::Absent,
        _ => seen(stage, shared.read().await?),
    })
}

fn number_of(version: Version) -> u64 {
    version.to_string().parse().expect("a version is a number")
}

fn written(stage: &Stage, version: Version) -> Answer {
    stage.saw_version(number_of(version), Some(version));
    Answer::Written { version: number_of(version) }
}

fn seen(stage: &Stage, read: Option<Versioned<u32>>) -> Answer {
    let version = read.as_ref().map(|read| read.version);
    stage.saw_version(version.map_or(0, number_of), version);
    match read {
        Some(read) => Answer::Value { version: number_of(read.version), value: read.value },
        None => Answer::Absent,
    }
}

async fn count(process: &Process, what: Operation) -> Result<Answer> {
    let counter = process.coordinator.counter("count")?;
    let number = match what {
        Operation::Add { by } => counter.add(by).await?,
        _ => counter.read().await?,
    };
    Ok(Answer::Number(number))
}

async fn leader(process: &Process) -> Result<Answer> {
    let term = process.coordinator.election("lead")?.leader().await?;
    Ok(match term {
        Some(term) => Answer::Leader { token: recorded(term.term) },
        None => Answer::Nobody,
    })
}
