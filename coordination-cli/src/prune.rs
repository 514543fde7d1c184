//! `coordination prune`: what unused names have left is removed.

use crate::args::{Prune, Store};
use crate::exit::{Outcome, say};
use crate::settings;

pub(crate) async fn prune(asked: &Prune, store: &Store) -> Outcome<u8> {
    let coordinator = settings::connect(settings::read(store)?).await?;
    let outcome = coordinator.prune(asked.unused).await;
    let _ = coordinator.stop().await;
    let removed = outcome?;
    if !store.quiet {
        let names = if removed == 1 { "name" } else { "names" };
        say(format_args!("{removed} unused {names} removed"));
    }
    Ok(0)
}
