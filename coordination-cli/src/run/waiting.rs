//! Waits for what a command is to run under, and says who has it.

use std::cell::Cell;
use std::time::{Duration, Instant};

use coordination::{Coordinator, ErrorKind};

use super::around;
use super::progress::{self, Progress};
use super::wanted::{Budget, Hold, Wanted};
use crate::args::Rate;
use crate::exit::{Failure, Outcome, say};

/// How long a store is asked who has what we did not get.
const ASKING: Duration = Duration::from_secs(1);

/// How a wait ended.
pub(super) enum Waited {
    Got(Hold),
    /// It was not free in time; who has it.
    Busy(String),
}

/// Waits, and tells whoever reads that for what, and who has it.
pub(super) async fn wait(
    wanted: &mut Wanted,
    us: &str,
    budget: Budget,
    is_quiet: bool,
) -> Outcome<Waited> {
    if let Some(refusal) = refusal(wanted).await? {
        return Ok(Waited::Busy(refusal));
    }
    let (start, was_told) = (Instant::now(), Cell::new(false));
    let mut outcome = wait_once(wanted, us, budget, is_quiet, &was_told).await;
    if outcome.as_ref().is_err_and(|error| error.kind() == ErrorKind::Mismatch)
        && wanted.adapt().await?
    {
        outcome = wait_once(wanted, us, budget, is_quiet, &was_told).await;
    }
    let shown = wanted.shown();
    match outcome {
        Ok(Some(hold)) => {
            if was_told.get() {
                say(format_args!("got {shown} after {} s", start.elapsed().as_secs()));
            }
            Ok(Waited::Got(hold))
        }
        Err(error) if error.kind() == ErrorKind::Mismatch => Err(mismatch(wanted, &error)),
        Err(error) if error.kind() != ErrorKind::Timeout => Err(error.into()),
        Ok(None) | Err(_) => {
            let others = tokio::time::timeout(ASKING, wanted.others(Some(us))).await;
            let others = others.ok().and_then(Result::ok);
            let who = progress::who(others.as_deref(), None);
            Ok(Waited::Busy(format!("{}: {who}", wanted.busy())))
        }
    }
}

async fn wait_once(
    wanted: &Wanted,
    us: &str,
    budget: Budget,
    is_quiet: bool,
    was_told: &Cell<bool>,
) -> coordination::Result<Option<Hold>> {
    tokio::select! {
        biased;
        outcome = wanted.acquire(budget.left()) => outcome,
        () = Progress::show(wanted, us, is_quiet, was_told) => Ok(None),
    }
}

/// Waits for the next start of a rate, and tells whoever reads that; answers why there is none in time.
pub(super) async fn wait_for_rate(
    rate: &Rate,
    coordinator: &Coordinator,
    budget: Budget,
    is_quiet: bool,
) -> Outcome<Option<String>> {
    let limiter = coordinator.rate_limiter(&rate.name, rate.count, rate.window)?;
    let shown = format!("rate {:?}", rate.name);
    let what = format!("at most {} in {:?}", rate.count, rate.window);
    let (start, was_told) = (Instant::now(), Cell::new(false));
    let outcome = tokio::select! {
        biased;
        outcome = limiter.acquire(1, budget.left()) => outcome,
        () = Progress::tell(&shown, is_quiet, &was_told, async || what.clone()) => return Ok(None),
    };
    match outcome {
        Ok(_) => {
            if was_told.get() {
                say(format_args!("got {shown} after {} s", start.elapsed().as_secs()));
            }
            Ok(None)
        }
        Err(error) if error.kind() == ErrorKind::Timeout => Ok(Some(error.to_string())),
        Err(error) if error.kind() == ErrorKind::Mismatch => {
            let window = rate.window.as_millis();
            let words = format!("--rate {}:{}/{window}ms", rate.name, rate.count);
            Err(Failure::usage(format!(
                "{shown} is in use with other numbers than yours; to change them for all: coordination resize {words}"
            )))
        }
        Err(error) => Err(error.into()),
    }
}

/// What a run that we run in has, and does not give away before we have ended.
async fn refusal(wanted: &Wanted) -> Outcome<Option<String>> {
    let around = around::held();
    if around.is_empty() {
        return Ok(None);
    }
    let holder = wanted.held_around(&around).await?;
    Ok(holder.map(|(what, holder)| {
        let who = progress::shown(&holder);
        format!("{what} is held by the run that this one runs in, {who}: it would wait for ever")
    }))
}

/// In the command's words: those of the library name its own calls.
fn mismatch(wanted: &Wanted, error: &coordination::Error) -> Failure {
    let text = error.to_string();
    let what = text.split_once("the store has ").map_or(text.as_str(), |(_, what)| what);
    let what = what.split("; see `resize`").next().unwrap_or_default();
    let shown = wanted.shown();
    let how = wanted
        .resizing()
        .map(|words| format!("; to change it for all: coordination resize {words}"));
    Failure::usage(format!(
        "{shown} is in use with another number than yours: it has {what}{}",
        how.unwrap_or_default()
    ))
}
