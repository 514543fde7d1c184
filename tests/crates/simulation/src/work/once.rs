//! Claims that may be made once per period. The wall clocks of the processes differ a little.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use coordination::simulation::nanos;
use coordination::{Claim, FencingToken};
use rand::RngExt;

use crate::plan::WALL_CLOCKS_DIFFER;
use crate::stage::{Process, Stage, lock};

const PERIOD: Duration = Duration::from_millis(150);

/// All claims that were made, by their tokens.
#[derive(Default)]
pub(crate) struct Ledger {
    claims: BTreeMap<FencingToken, Made>,
}

struct Made {
    call: u64,
    end: u64,
    at: SystemTime,
    next: SystemTime,
    /// Whether the client has given the claim back, or may have done so.
    is_given_back: bool,
}

/// Tries to claim the period, and sometimes gives the claim back.
pub(crate) async fn act(stage: &Arc<Stage>, process: &Arc<Process>) {
    let once = process.coordinator.once_per("once", PERIOD).expect("the name is one");
    let call = nanos();
    let (highest, give_back) = {
        let ledger = lock(&stage.ledgers.once);
        let highest = ledger.claims.keys().next_back().copied();
        (highest, stage.draw(|random| random.random_ratio(1, 8)))
    };
    let claim = match once.try_claim().await {
        Ok(Some(claim)) => claim,
        Ok(None) => return,
        Err(error) => return stage.failed("try_claim", &error),
    };
    if stage.has_all_data() && Some(claim.token()) <= highest {
        stage.broken(format!("ON1: {claim:?} after {highest:?}"));
    }
    let (at, next) = (claim.at(), claim.next());
    let made = Made { call, end: nanos(), at, next, is_given_back: give_back };
    let before = lock(&stage.ledgers.once).claims.insert(claim.token(), made);
    if before.is_some() && stage.has_all_data() {
        stage.broken(format!("ON1: {claim:?} is there twice"));
    }
    if give_back {
        return_it(stage, claim).await;
    }
}

async fn return_it(stage: &Stage, claim: Claim) {
    if let Err(error) = claim.give_back().await {
        stage.failed("give_back", &error);
    }
}

/// ON1: checks that two successive claims are a period apart, unless the first one was given back.
pub(crate) fn conclude(stage: &Stage) {
    if !stage.has_all_data() {
        return;
    }
    let apart = (PERIOD - WALL_CLOCKS_DIFFER).as_nanos() as u64;
    let ledger = lock(&stage.ledgers.once);
    let mut claims = ledger.claims.iter().peekable();
    while let (Some((one, before)), Some((other, after))) = (claims.next(), claims.peek()) {
        if before.is_given_back {
            continue;
        }
        stage.judges("ON1");
        if after.at < before.next || after.at < before.at {
            stage.broken(format!("ON1: claim {one} holds beyond the time of claim {other}"));
        }
        if after.end - before.call < apart {
            stage.broken(format!("ON1: claims {one} and {other} are less than {apart} ns apart"));
        }
    }
}
