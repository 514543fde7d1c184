//! Watches of a value.

use std::collections::BTreeMap;
use std::sync::Arc;

use coordination::{ErrorKind, Versioned};

use super::{becomes, within};
use crate::stage::{Process, Stage, lock};

/// For each process, the version that its watch reported last.
#[derive(Default)]
pub(crate) struct Ledger {
    told: BTreeMap<u32, Option<Versioned<u32>>>,
}

/// VA3: watches the value in a process, and checks that the reported versions rise.
pub(crate) async fn follow(stage: Arc<Stage>, process: Arc<Process>) {
    let value = process.coordinator.value::<u32>("value").expect("the name is one");
    let mut watch = value.watch();
    let mut highest = None;
    loop {
        let now = match watch.next().await {
            Ok(now) => now.into_value(),
            Err(error) if error.kind() == ErrorKind::Closed => return,
            Err(error) => return stage.broken(format!("VA3: watching ended: {error}")),
        };
        if let Some(now) = &now {
            stage.judges("VA3");
            if Some(now.version) <= highest {
                stage.broken(format!("VA3: {now:?} after {highest:?}"));
            }
            highest = Some(now.version);
        }
        lock(&stage.ledgers.watch).told.insert(process.number, now);
    }
}

/// VA3: checks after the run that every watch reports the last value.
pub(crate) async fn conclude(stage: &Arc<Stage>) {
    let Some(process) = stage.processes().first().cloned() else { return };
    let value = process.coordinator.value::<u32>("value").expect("the name is one");
    let setting = value.clone();
    if let Err(error) = within(&process, async move { setting.set(&u32::MAX).await }).await {
        return stage.broken(format!("L5: setting a value after healing: {error}"));
    }
    let wrong = becomes(stage, async || {
        let reading = value.clone();
        let truth = match within(&process, async move { reading.read().await }).await {
            Ok(Some(truth)) if truth.value == u32::MAX => truth,
            other => return Some(format!("{other:?} was read after the last had been set")),
        };
        let ledger = lock(&stage.ledgers.watch);
        let told = |process: &Process| ledger.told.get(&process.number).cloned().flatten();
        let behind =
            stage.processes().into_iter().find(|process| told(process).as_ref() != Some(&truth));
        behind.map(|process| {
            format!("{truth:?}; process {} was told {:?}", process.number, told(&process))
        })
    });
    if let Some(wrong) = wrong.await {
        stage.broken(format!("VA3: {wrong}"));
    }
}
