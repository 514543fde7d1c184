//! `coordination run`: a command under a lock, a permit, a slot, or at most so often.

pub(crate) mod acquire;
pub(crate) mod alive;
mod around;
pub(crate) mod child;
pub(crate) mod elect;
pub(crate) mod family;
mod finish;
mod former;
pub(crate) mod handle;
pub(crate) mod holder;
pub(crate) mod join;
mod locks;
mod no_fork;
mod progress;
mod reach;
mod settling;
pub(crate) mod signals;
pub(crate) mod started;
mod waiting;
mod wanted;
pub(crate) mod watch;
pub(crate) mod work;

use std::time::Duration;

use coordination::{Claim, Config, Coordinator, LossDetection, OncePer, Scope};
use tokio::time::sleep;

use self::child::{Prepared, check_grace};
use self::finish::{After, finish};
use self::former::{Former, follow, sleep_out, told_if_lost};
use self::reach::reach;
use self::signals::Signals;
use self::waiting::{Waited, wait};
use self::wanted::{Budget, Hold, Wanted};
use crate::args::{IfBusy, OnLost, Run, Store};
use crate::exit::{self, Failure, Outcome};
use crate::note::keeps_notes;
use crate::settings;

/// How long a command may take to end whose wrapper was told that its lock is lost.
const ENDING: Duration = Duration::from_millis(150);
/// The heartbeat interval where a loss is told with the heartbeat. The same for all, whatever their URLs say: who comes next
/// has to know how late the one before may be told.
const SHORT_HEARTBEAT: Duration = Duration::from_millis(200);

/// What we have got for the command.
enum Ready {
    Run {
        hold: Option<Hold>,
        claim: Option<Box<Claim>>,
    },
    /// It was not free in time.
    Busy(String),
    /// The period is spent.
    Done,
}

/// What whoever comes next waits for.
struct Settling {
    /// As `--settle` says.
    asked: Option<Duration>,
    /// The lease that we ask for.
    lease: Option<Duration>,
    is_quiet: bool,
}

impl Settling {
    /// For as long as a command runs whose wrapper is told just now that what it ran under was taken away.
    fn length(&self, coordinator: &Coordinator) -> Duration {
        match self.asked {
            Some(length) => length,
            None if is_on_one_host(coordinator) => Duration::ZERO,
            None => coordinator.loss_delay() + ENDING,
        }
    }

    /// For a former holder that was not told; `None`: nobody is waited for.
    fn former(&self, hold: &Hold, coordinator: &Coordinator) -> Outcome<Option<Former>> {
        match hold {
            _ if self.asked == Some(Duration::ZERO) => Ok(None),
            // Its worker is told when it renews the claim.
            Hold::Claim(_) => Ok(None),
            // By [`follow`].
            Hold::Locks(_) if is_on_one_host(coordinator) => Ok(None),
            hold => {
                let (ours, part) = (hold.granted(), hold.part());
                Former::new(coordinator, ours, part, self.lease, self.is_quiet).map(Some)
            }
        }
    }
}

/// Runs the command; answers the exit code.
pub(crate) async fn run(run: &Run, store: &Store) -> Outcome<u8> {
    if run.no_fork {
        return no_fork::run(run, store).await;
    }
    let mut command = Prepared::new(&run.command, &run.child, store.quiet)?;
    let mut config = settings::read(store)?;
    shorten_heartbeat(&mut config)?;
    let is_under = !run.lock.is_empty() || run.semaphore.is_some() || run.singleton.is_some();
    let lease = settings::lease(&config);
    check_grace(&run.child, lease.filter(|_| is_under))?;
    let mut signals = Signals::new()?;
    let budget = Budget::new(run.wait);
    let reaching = reach(config, run.wait, budget, store.quiet);
    let coordinator = until_signal(&mut signals, &mut command, reaching).await?;
    command.hand_on(&coordinator, store);
    let settling = Settling { asked: run.child.settle, lease, is_quiet: store.quiet };
    let preparing = prepare(run, &settling, &coordinator, budget);
    let outcome = until_signal(&mut signals, &mut command, preparing).await;
    let after = after(&outcome);
    let outcome = match outcome {
        Ok(Ready::Run { hold, claim }) => {
            command.run(hold, claim.map(|claim| *claim), run.release_after, &mut signals).await
        }
        Ok(Ready::Done) => Ok(0),
        Ok(Ready::Busy(what)) => busy(run, what),
        Err(failure) => Err(failure),
    };
    finish(&coordinator, &outcome, after).await;
    outcome
}

/// What has ended when there is nothing more to do.
fn after(prepared: &Outcome<Ready>) -> After {
    match prepared {
        Ok(Ready::Run { .. } | Ready::Done) => After::Work,
        Ok(Ready::Busy(_)) | Err(_) => After::Wait,
    }
}

/// How a run ends that did not get what it wanted in time.
fn busy(run: &Run, what: String) -> Outcome<u8> {
    match run.if_busy {
        IfBusy::Skip => Ok(0),
        IfBusy::Fail => Err(Failure::new(exit::BUSY, what)),
    }
}

/// Gives up at a signal that ends us, before the command is started.
async fn until_signal<T>(
    signals: &mut Signals,
    command: &mut Prepared<'_>,
    work: impl Future<Output = Outcome<T>>,
) -> Outcome<T> {
    tokio::select! {
        biased;
        number = signals.ending() => Err(Failure::by_signal(number)),
        outcome = work => outcome,
        never = command.reap() => match never {},
    }
}

/// Gets all that the command is to run under.
async fn prepare(
    run: &Run,
    settling: &Settling,
    coordinator: &Coordinator,
    budget: Budget,
) -> Outcome<Ready> {
    let is_quiet = settling.is_quiet;
    let mut wanted = Wanted::of(run, coordinator, budget.left())?;
    let mut hold = match &mut wanted {
        None => None,
        Some(wanted) => match wait(wanted, coordinator.member_id(), budget, is_quiet).await? {
            Waited::Got(hold) => Some(hold),
            Waited::Busy(what) => return Ok(Ready::Busy(what)),
        },
    };
    if let (Some(wanted), Some(hold)) = (&wanted, &mut hold) {
        let settled = settle_after(wanted, hold, settling, coordinator).await;
        told_if_lost(settled, hold, coordinator).await?;
        if is_on_one_host(coordinator) && run.child.on_lost != OnLost::Ignore {
            follow(wanted, hold, is_quiet).await?;
        }
    }
    if let Some(rate) = &run.rate {
        let waiting = waiting::wait_for_rate(rate, coordinator, budget, is_quiet);
        // It may take an hour: who has lost the lock meanwhile has nothing to wait for.
        let busy = match &hold {
            Some(hold) => hold.protect(waiting).await??,
            None => waiting.await?,
        };
        if let Some(busy) = busy {
            not_run(hold).await;
            return Ok(Ready::Busy(busy));
        }
    }
    let claimed = match (job(run, coordinator)?, hold.as_ref().and_then(Hold::first)) {
        (Some(job), Some(grant)) => Some(job.try_claim_under(grant).await?),
        _ => None,
    };
    let claim = match claimed {
        Some(None) => {
            not_run(hold).await;
            return Ok(Ready::Done);
        }
        claimed => claimed.flatten().map(Box::new),
    };
    Ok(Ready::Run { hold, claim })
}

/// What is to run so often only.
fn job(run: &Run, coordinator: &Coordinator) -> Outcome<Option<OncePer>> {
    let permits = run.semaphore.as_ref().map(|permits| &permits.name);
    let name = run.lock.first().or(run.singleton.as_ref()).or(permits);
    let (Some(name), Some(period)) = (name, run.every.or(run.at_least)) else { return Ok(None) };
    let job = coordinator.once_per(name, period)?.at_least(run.at_least.unwrap_or_default());
    Ok(Some(if run.every.is_some() { job.aligned() } else { job }))
}

fn is_on_one_host(coordinator: &Coordinator) -> bool {
    coordinator.characteristics().scope < Scope::Hosts
}

/// Waits as long as the command may still run whose holder has lost just now what we hold.
///
/// On one host nothing but `break` takes anything away from a command that runs: [`follow`] waits for that under a lock, and [`Former`]
/// otherwise.
async fn settle(hold: &Hold, settling: &Settling, coordinator: &Coordinator) -> Outcome {
    let length = settling.length(coordinator);
    let former = settling.former(hold, coordinator)?;
    match hold {
        _ if length.is_zero() && former.is_none() => Ok(()),
        Hold::Claim(claim) => {
            sleep(length.min(claim.remaining())).await;
            Ok(())
        }
        hold => hold.protect(sleep_out(length, former.as_ref())).await?,
    }
}

/// The same where a command of before may be known to have ended: then nobody waits.
async fn settle_after(
    wanted: &Wanted,
    hold: &mut Hold,
    settling: &Settling,
    coordinator: &Coordinator,
) -> Outcome {
    let former = settling.former(hold, coordinator)?;
    match (wanted, hold) {
        (Wanted::Locks(locks), Hold::Locks(held))
            if keeps_notes(&coordinator.characteristics()) =>
        {
            let (length, must) = (settling.length(coordinator), settling.asked.is_some());
            settling::settle(locks, held, length, must, former.as_ref()).await
        }
        (_, hold) => settle(hold, settling, coordinator).await,
    }
}

/// There is nothing to run under it.
async fn not_run(hold: Option<Hold>) {
    if let Some(mut hold) = hold {
        hold.command_has_ended().await;
        // If the store does not confirm it, the lock is free when the lease ends.
        let _ = hold.release().await;
    }
}

/// Where a loss is told with a heartbeat, it should come soon.
fn shorten_heartbeat(config: &mut Config) -> Outcome {
    if config.loss_detection()? == LossDetection::Heartbeat {
        config.heartbeat = Some(SHORT_HEARTBEAT);
    }
    Ok(())
}
