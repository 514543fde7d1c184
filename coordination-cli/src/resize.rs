//! `coordination resize`: a number that all who use a name have to give is changed for all.

use coordination::Coordinator;

use crate::args::{Resize, Store};
use crate::exit::{Failure, Outcome, say};
use crate::settings;

pub(crate) async fn resize(asked: &Resize, store: &Store) -> Outcome<u8> {
    let coordinator = settings::connect(settings::read(store)?).await?;
    let outcome = change(asked, &coordinator).await;
    let _ = coordinator.stop().await;
    let what = outcome?;
    if !store.quiet {
        say(format_args!("{what} for all from now on"));
    }
    Ok(0)
}

/// Answers what is true now.
async fn change(asked: &Resize, coordinator: &Coordinator) -> Outcome<String> {
    if let Some(permits) = &asked.semaphore {
        let mut semaphore = coordinator.semaphore(&permits.name, permits.count)?;
        semaphore.resize(permits.count).await?;
        return Ok(format!("semaphore {:?}: {} permits", semaphore.name(), permits.count));
    }
    if let Some(rate) = &asked.rate {
        let limiter = coordinator.rate_limiter(&rate.name, rate.count, rate.window)?;
        limiter.reconfigure().await?;
        let (name, window) = (limiter.name(), rate.window);
        return Ok(format!("rate {name:?}: {} starts in {window:?}", rate.count));
    }
    let Some(name) = &asked.singleton else { return Err(Failure::usage("of what?")) };
    let standby = asked.standby.unwrap_or_default();
    let limiter = coordinator.singleton(name)?.standby(standby);
    let mut limiter = if asked.replace { limiter.latest_wins() } else { limiter };
    limiter.resize(1).await?;
    let who = if asked.replace { "the last one".to_owned() } else { standby.to_string() };
    Ok(format!("singleton {:?}: {who} on standby", limiter.name()))
}
