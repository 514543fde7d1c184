//! `coordination run`: a command under a lock, a permit, a slot, or at most so often.

pub(crate) mod child;
pub(crate) mod elect;
pub(crate) mod join;
mod progress;
pub(crate) mod signals;
mod wanted;
pub(crate) mod watch;

use std::time::{Duration, Instant};

use coordination::{Claim, Config, Coordinator, ErrorKind, LossDetection, Scope};

use self::child::Prepared;
use self::progress::Progress;
use self::signals::Signals;
use self::wanted::{Budget, Hold, Wanted};
use crate::args::{Child, IfBusy, Run, Store};
use crate::exit::{self, Failure, Outcome};
use crate::settings;

/// How long a store that tells of a loss at once may need for that, and we to end a command.
const TOLD: Duration = Duration::from_millis(200);
/// The same beyond a heartbeat, where the loss is told with that.
const TOLD_BY_HEARTBEAT: Duration = Duration::from_millis(300);
/// On one host a lock ends with its holder's process, and the command a moment later.
const DEATH: Duration = Duration::from_millis(20);
/// Who was served sooner did not wait for anybody.
const AT_ONCE: Duration = Duration::from_millis(2);
/// The heartbeat interval where a loss is told with the heartbeat, unless the settings say otherwise.
const SHORT_HEARTBEAT: Duration = Duration::from_millis(200);

/// What we have got for the command.
enum Ready {
    Run {
        hold: Option<Hold>,
        claim: Option<Claim>,
    },
    /// It was not free in time.
    Busy(String),
    /// The period is spent.
    Done,
}

/// Runs the command; answers the exit code.
pub(crate) async fn run(run: &Run, store: &Store) -> Outcome<u8> {
    let command = Prepared::new(&run.command, &run.child, store.quiet)?;
    let mut config = settings::read(store)?;
    shorten_heartbeat(&mut config)?;
    let mut signals = Signals::new()?;
    let budget = Budget::new(run.wait.0);
    let coordinator = until_signal(&mut signals, settings::connect(config.clone())).await?;
    let preparing = prepare(run, store.quiet, &config, &coordinator, budget);
    let outcome = until_signal(&mut signals, preparing).await;
    let outcome = match outcome {
        Ok(Ready::Run { hold, claim }) => {
            let code = command.run(hold, run.release_after, &mut signals).await;
            if let (Err(_), Some(claim)) = (&code, claim) {
                // It has not run; another may.
                let _ = claim.give_back().await;
            }
            code
        }
        Ok(Ready::Done) => Ok(0),
        Ok(Ready::Busy(_)) if run.if_busy == IfBusy::Skip => Ok(0),
        Ok(Ready::Busy(what)) => Err(Failure::new(exit::BUSY, what)),
        Err(failure) => Err(failure),
    };
    // What is left there ends with the session in any case.
    let _ = coordinator.stop().await;
    outcome
}

/// Gives up at a signal that ends us.
async fn until_signal<T>(
    signals: &mut Signals,
    work: impl Future<Output = Outcome<T>>,
) -> Outcome<T> {
    tokio::select! {
        biased;
        number = signals.ending() => Err(Failure::silent(exit::by_signal(number))),
        outcome = work => outcome,
    }
}

/// Gets all that the command is to run under.
async fn prepare(
    run: &Run,
    is_quiet: bool,
    config: &Config,
    coordinator: &Coordinator,
    budget: Budget,
) -> Outcome<Ready> {
    let start = Instant::now();
    let wanted = Wanted::of(run, coordinator, run.wait.0)?;
    let hold = match &wanted {
        None => None,
        Some(wanted) => {
            let acquiring = async {
                tokio::select! {
                    biased;
                    outcome = wanted.acquire(budget.left()) => outcome,
                    () = Progress::show(wanted, is_quiet) => Ok(None),
                }
            };
            match acquiring.await {
                Ok(Some(hold)) => Some(hold),
                Ok(None) => return Ok(Ready::Busy(format!("{} is busy", wanted.shown()))),
                Err(error) if error.kind() == ErrorKind::Timeout => {
                    return Ok(Ready::Busy(error.to_string()));
                }
                Err(error) => return Err(error.into()),
            }
        }
    };
    if let Some(hold) = &hold {
        settle(hold, &run.child, config, coordinator, start.elapsed()).await?;
    }
    if let Some(rate) = &run.rate {
        let limiter = coordinator.rate_limiter(&rate.name, rate.count, rate.window)?;
        match limiter.acquire(1, budget.left()).await {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::Timeout => {
                return Ok(Ready::Busy(error.to_string()));
            }
            Err(error) => return Err(error.into()),
        }
    }
    let claim = match (run.every, run.lock.as_ref().or(run.singleton.as_ref())) {
        (Some(period), Some(name)) => {
            match coordinator.once_per(name, period)?.aligned().try_claim().await? {
                Some(claim) => Some(claim),
                None => return Ok(Ready::Done),
            }
        }
        _ => None,
    };
    Ok(Ready::Run { hold, claim })
}

/// Waits as long as the one before us may still be there, who has lost the lock just now.
async fn settle(
    hold: &Hold,
    options: &Child,
    config: &Config,
    coordinator: &Coordinator,
    waited: Duration,
) -> Outcome {
    let store = coordinator.characteristics();
    let length = match (options.settle, store.scope, store.loss_detection) {
        (Some(length), _, _) => length,
        (None, Scope::Hosts, LossDetection::Watch) => TOLD,
        (None, Scope::Hosts, _) => TOLD_BY_HEARTBEAT + config.heartbeat_or(SHORT_HEARTBEAT)?,
        (None, _, _) if waited < AT_ONCE => Duration::ZERO,
        (None, _, _) => DEATH,
    };
    if !length.is_zero() {
        hold.protect(tokio::time::sleep(length)).await?;
    }
    Ok(())
}

/// Where a loss is told with a heartbeat, it should come soon.
fn shorten_heartbeat(config: &mut Config) -> Outcome {
    if config.loss_detection()? == LossDetection::Heartbeat {
        config.heartbeat = Some(config.heartbeat_or(SHORT_HEARTBEAT)?);
    }
    Ok(())
}
