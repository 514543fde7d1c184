//! `coordination elect`: a command that runs while we lead.

use coordination::Coordinator;

use super::child::{Prepared, check_grace};
use super::finish::{After, finish};
use super::former::told_if_lost;
use super::reach::reach;
use super::signals::Signals;
use super::waiting::{Waited, wait};
use super::wanted::{Budget, Hold, Wanted};
use super::{Settling, settle, shorten_heartbeat, until_signal};
use crate::args::{Elect, Store};
use crate::exit::{self, Failure, Outcome};
use crate::settings;

/// Runs the command when we are elected; answers the exit code.
pub(crate) async fn elect(elect: &Elect, store: &Store) -> Outcome<u8> {
    let mut command = Prepared::new(&elect.command, &elect.child, store.quiet)?;
    let mut config = settings::read(store)?;
    shorten_heartbeat(&mut config)?;
    let lease = settings::lease(&config);
    check_grace(&elect.child, lease)?;
    let mut signals = Signals::new()?;
    let budget = Budget::new(elect.wait);
    let reaching = reach(config, elect.wait, budget, store.quiet);
    let coordinator = until_signal(&mut signals, &mut command, reaching).await?;
    command.hand_on(&coordinator, store);
    let settling = Settling { asked: elect.child.settle, lease, is_quiet: store.quiet };
    let campaign = campaign(elect, &settling, &coordinator, budget);
    let elected = until_signal(&mut signals, &mut command, campaign).await;
    let after = if elected.is_ok() { After::Work } else { After::Wait };
    let outcome = match elected {
        Ok(hold) => command.run(Some(hold), None, None, &mut signals).await,
        Err(failure) => Err(failure),
    };
    finish(&coordinator, &outcome, after).await;
    outcome
}

async fn campaign(
    elect: &Elect,
    settling: &Settling,
    coordinator: &Coordinator,
    budget: Budget,
) -> Outcome<Hold> {
    let mut wanted = Wanted::of_election(elect, coordinator)?;
    let (us, is_quiet) = (coordinator.member_id(), settling.is_quiet);
    let hold = match wait(&mut wanted, us, budget, is_quiet).await? {
        Waited::Got(hold) => hold,
        Waited::Busy(what) => return Err(Failure::new(exit::BUSY, what)),
    };
    told_if_lost(settle(&hold, settling, coordinator).await, &hold, coordinator).await?;
    Ok(hold)
}
