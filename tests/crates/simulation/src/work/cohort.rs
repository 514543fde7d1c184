//! Tasks of a process that pass a lock on among themselves, while others want it too.
//!
//! In the history each turn is a grant like any other, with a token that has the turn in its last bits. So the checker
//! compares it with those of the other tasks of its process and of all other contenders. What the checker does not know,
//! how many turns a process may have one after the other, is checked here.

use std::collections::BTreeMap;
use std::time::Duration;

use coordination::{Cohort, Coordinator, FencingToken};

use super::held::Held;
use crate::stage::{Stage, lock};

/// The most turns of a batch, few, so that many batches have that many.
const TURNS: u32 = 2;
/// When the last turn of a batch may begin at the latest.
const TIME: Duration = Duration::from_millis(100);

/// How many turns have been seen under each number of the store.
#[derive(Default)]
pub(crate) struct Ledger(BTreeMap<FencingToken, u32>);

/// The cohort for the lock "a" in this coordinator.
pub(crate) fn of(coordinator: &Coordinator) -> Cohort {
    coordinator.lock("a").expect("the name is one").cohort().batch(TURNS, TIME)
}

/// LC2: checks that a batch has no more turns than it may, by its tokens and by counting.
pub(super) fn judge(stage: &Stage, held: &Held) {
    let Held::Turn(guard) = held else { return };
    let token = guard.token();
    let turns = {
        let mut ledger = lock(&stage.ledgers.cohort);
        let turns = ledger.0.entry(token.number()).or_default();
        *turns += 1;
        *turns
    };
    stage.judges("LC2");
    if token.turn() > 0 {
        stage.judges("LC2 passed on");
    }
    // A store that has lost its data may give the number to another grant.
    if token.turn() >= TURNS || turns > TURNS && stage.has_all_data() {
        stage.broken(format!("LC2: {guard:?} has turn {turns} of at most {TURNS}"));
    }
}
