//! `coordination elect`: a command that runs while we lead.

use coordination::Coordinator;

use super::child::{Prepared, check_grace};
use super::finish::{After, finish};
use super::reach::reach;
use super::signals::Signals;
use super::waiting::{Waited, wait};
use super::wanted::{Budget, Hold, Wanted};
use super::{settle, shorten_heartbeat, until_signal};
use crate::args::{Elect, Store};
use crate::exit::{self, Failure, Outcome};
use crate::settings;

/// Runs the command when we are elected; answers the exit code.
pub(crate) async fn elect(elect: &Elect, store: &Store) -> Outcome<u8> {
    let mut command = Prepared::new(&elect.command, &elect.child, store.quiet)?;
    let mut config = settings::read(store)?;
    shorten_heartbeat(&mut config)?;
    check_grace(&elect.child, settings::lease(&config))?;
    let mut signals = Signals::new()?;
    let budget = Budget::new(elect.wait);
    let reaching = reach(config, elect.wait, budget, store.quiet);
    let coordinator = until_signal(&mut signals, &mut command, reaching).await?;
    command.hand_on(&coordinator, store);
    let campaign = campaign(elect, &coordinator, budget, store.quiet);
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
    coordinator: &Coordinator,
    budget: Budget,
    is_quiet: bool,
) -> Outcome<Hold> {
    let mut wanted = Wanted::of_election(elect, coordinator)?;
    let hold = match wait(&mut wanted, coordinator.member_id(), budget, is_quiet).await? {
        Waited::Got(hold) => hold,
        Waited::Busy(what) => return Err(Failure::new(exit::BUSY, what)),
    };
    settle(&hold, &elect.child, coordinator).await?;
    Ok(hold)
}
