//! Latches, one after the other. The run checks that each call of `count_down` takes effect exactly once.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use coordination::Latch;
use rand::RngExt;

use super::within;
use crate::stage::{Process, Stage, lock};

const COUNT: u32 = 5;

/// The latch that all clients use at present.
#[derive(Default)]
pub(crate) struct Ledger {
    number: u32,
    /// How many calls of `count_down` have begun (`begun`), and how many of them have returned without an error
    /// (`confirmed`).
    begun: u32,
    confirmed: u32,
    answers: BTreeSet<u32>,
}

impl Ledger {
    /// Returns the number of the current latch. If that latch has reached zero, begins the next one.
    fn present(&mut self) -> u32 {
        if self.confirmed >= COUNT {
            *self = Self { number: self.number + 1, ..Self::default() };
        }
        self.number
    }
}

fn latch(process: &Process, number: u32) -> Latch {
    process.coordinator.latch(format!("latch-{number}"), COUNT).expect("the name is one")
}

/// Counts the current latch down, reads its count, or waits until the count is zero.
pub(crate) async fn act(stage: &Arc<Stage>, process: &Arc<Process>) {
    let number = lock(&stage.ledgers.latch).present();
    let latch = latch(process, number);
    match stage.draw(|random| random.random_range(0..8)) {
        0..4 => count(stage, &latch, number).await,
        4..6 => {
            let before = lock(&stage.ledgers.latch).confirmed;
            match latch.remaining().await {
                Ok(remaining) => judge(stage, number, before, remaining),
                Err(error) => stage.failed("remaining", &error),
            }
        }
        _ => {
            let limit = stage.up_to(Duration::from_millis(100));
            match latch.wait(Some(limit)).await {
                Ok(()) => judge(stage, number, 0, 0),
                Err(error) => stage.failed("wait", &error),
            }
        }
    }
}

async fn count(stage: &Stage, latch: &Latch, number: u32) {
    let before = {
        let mut ledger = lock(&stage.ledgers.latch);
        ledger.begun += 1;
        ledger.confirmed
    };
    match latch.count_down().await {
        Ok(remaining) => {
            judge(stage, number, before + 1, remaining);
            let mut ledger = lock(&stage.ledgers.latch);
            if ledger.number != number {
                return;
            }
            ledger.confirmed += 1;
            let is_twice = !ledger.answers.insert(remaining) && remaining > 0;
            if is_twice && stage.has_all_data() {
                stage.broken(format!("BR3: two counts left {remaining} of latch {number}"));
            }
        }
        Err(error) => stage.failed("count_down", &error),
    }
}

/// BR3: checks a count. At least as many calls as had returned before the read (`confirmed`) must have been counted,
/// and at most as many as have begun.
fn judge(stage: &Stage, number: u32, confirmed: u32, remaining: u32) {
    if !stage.has_all_data() {
        return;
    }
    stage.judges("BR3");
    let ledger = lock(&stage.ledgers.latch);
    // An earlier latch has reached zero, so all of its counts were begun.
    let begun = if ledger.number == number { ledger.begun } else { COUNT };
    let counted = COUNT.saturating_sub(remaining);
    if !(confirmed.min(COUNT)..=begun).contains(&counted) {
        let most = format!("{confirmed} are confirmed, {begun} have begun");
        stage.broken(format!("BR3: {remaining} remain of latch {number}; {most}"));
    }
}

/// BR3: checks after the run that all waiters return when the count is zero.
pub(crate) async fn conclude(stage: &Arc<Stage>) {
    let Some(process) = stage.processes().first().cloned() else { return };
    let number = lock(&stage.ledgers.latch).present();
    let last = latch(&process, number);
    let counting = within(&process, async move {
        while last.count_down().await? > 0 {}
        Ok(())
    });
    let counted: coordination::Result<()> = counting.await;
    if let Err(error) = counted {
        return stage.broken(format!("L5: counting down after healing: {error}"));
    }
    for process in stage.processes() {
        let latch = latch(&process, number);
        let waiting = process.client.spawn(async move { latch.wait(None).await });
        let through = tokio::time::timeout(stage.plan.recovery(), waiting).await;
        if !matches!(through, Ok(Ok(Ok(())))) {
            stage.broken(format!("BR3: it is at zero, and one who waits says {through:?}"));
        }
    }
}
