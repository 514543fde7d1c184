//! `coordination reset`: the last run of a job is forgotten.

use std::time::Duration;

use crate::args::{Reset, Store};
use crate::exit::{Outcome, printable, say};
use crate::settings;

/// Any will do: what is stored knows its own.
const PERIOD: Duration = Duration::from_secs(1);

pub(crate) async fn reset(asked: &Reset, store: &Store) -> Outcome<u8> {
    let coordinator = settings::connect(settings::read(store)?).await?;
    let outcome = match coordinator.once_per(&asked.name, PERIOD) {
        Ok(job) => job.reset().await,
        Err(error) => Err(error),
    };
    let _ = coordinator.stop().await;
    let was_there = outcome?;
    if !store.quiet {
        let said = if was_there { "the last run is forgotten" } else { "there was no run" };
        say(format_args!("{}: {said}", printable(&asked.name)));
    }
    Ok(0)
}
