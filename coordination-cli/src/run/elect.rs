//! `coordination elect`: a command that runs while we lead.

use coordination::{Coordinator, ErrorKind};

use super::child::Prepared;
use super::signals::Signals;
use super::wanted::Hold;
use super::{settle, shorten_heartbeat, until_signal};
use crate::args::{Elect, Store};
use crate::exit::{self, Failure, Outcome};
use crate::settings;

/// Runs the command when we are elected; answers the exit code.
pub(crate) async fn elect(elect: &Elect, store: &Store) -> Outcome<u8> {
    let command = Prepared::new(&elect.command, &elect.child, store.quiet)?;
    let mut config = settings::read(store)?;
    shorten_heartbeat(&mut config)?;
    let mut signals = Signals::new()?;
    let coordinator = until_signal(&mut signals, settings::connect(config)).await?;
    let elected = until_signal(&mut signals, campaign(elect, &coordinator)).await;
    let outcome = match elected {
        Ok(hold) => command.run(Some(hold), None, None, &mut signals).await,
        Err(failure) => Err(failure),
    };
    // What is left there ends with the session in any case.
    let _ = coordinator.stop().await;
    outcome
}

async fn campaign(elect: &Elect, coordinator: &Coordinator) -> Outcome<Hold> {
    let election = coordinator.election(&elect.name)?;
    let value = elect.value.as_deref().unwrap_or(coordinator.member_id());
    let leadership = match elect.wait.0 {
        Some(wait) if wait.is_zero() => election.try_campaign(value).await?,
        wait => match election.campaign(value, wait).await {
            Err(error) if error.kind() == ErrorKind::Timeout => None,
            outcome => Some(outcome?),
        },
    };
    let busy = || Failure::new(exit::BUSY, format!("somebody else leads {:?}", election.name()));
    let hold = Hold::Leadership(leadership.ok_or_else(busy)?);
    settle(&hold, &elect.child, coordinator).await?;
    Ok(hold)
}
