//! `coordination join`: a command that runs as a member of a group.

use super::child::Prepared;
use super::finish::{After, finish};
use super::signals::Signals;
use super::until_signal;
use crate::args::{Child, Join, OnLost, Store};
use crate::exit::Outcome;
use crate::settings;

/// Runs the command when we have joined; answers the exit code.
pub(crate) async fn join(join: &Join, store: &Store) -> Outcome<u8> {
    // A membership comes back after a loss: nothing for which the command would have to end.
    let (foreground, on_lost) = (join.foreground, OnLost::Ignore);
    let options = Child { on_lost, kill_after: None, settle: None, foreground };
    let mut command = Prepared::new(&join.command, &options, store.quiet)?;
    let config = settings::read(store)?;
    let mut signals = Signals::new()?;
    let coordinator = until_signal(&mut signals, &mut command, settings::connect(config)).await?;
    command.hand_on(&coordinator, store);
    let group = coordinator.group(&join.group)?.label(join.label.as_deref().unwrap_or_default())?;
    let joining = async { Ok(group.join_or_create(&join.capabilities).await?) };
    let outcome = match until_signal(&mut signals, &mut command, joining).await {
        Ok(membership) => {
            let membership = membership.rejoining();
            let code = command.run(None, None, None, &mut signals).await;
            let _ = membership.leave().await;
            code
        }
        Err(failure) => Err(failure),
    };
    finish(&coordinator, &outcome, After::Work).await;
    outcome
}
