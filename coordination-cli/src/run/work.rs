//! `coordination work`: a command for each item of a queue.

use std::time::{Duration, Instant};

use coordination::{
    ClaimOptions, Coordinator, Effect, Error, ErrorKind, WorkClaim, WorkItem, WorkQueue,
};

use super::child::{Ended, Prepared, check_grace};
use super::finish::{After, finish};
use super::reach::{is_out_of_reach, reach};
use super::signals::Signals;
use super::wanted::{Budget, Hold};
use super::{Settling, settle, shorten_heartbeat, until_signal};
use crate::args::{Store, Work};
use crate::exit::{self, Failure, Outcome, say};
use crate::settings;

/// The longest delay that an item is given back with, which is the longest that a queue knows.
const LONGEST_DELAY: Duration = Duration::from_secs(900);
/// How much longer than its claim an item lives at least: else it could be dead before it may be claimed again.
const GRACE: Duration = Duration::from_secs(900 + 300);
/// How long it is tried to tell the store how a command has ended, in steps of so long.
const AGAIN: Duration = Duration::from_millis(200);

/// How one item's turn ended.
enum End {
    /// As its command did.
    OfCommand,
    /// The claim was lost.
    Lost,
}

/// Runs the command for one item after the other; answers the exit code.
pub(crate) async fn work(work: &Work, store: &Store) -> Outcome<u8> {
    let mut config = settings::read(store)?;
    shorten_heartbeat(&mut config)?;
    let lease = settings::lease(&config);
    check_grace(&work.child, Some(lease.map_or(work.ttl, |lease| lease.min(work.ttl))))?;
    let mut signals = Signals::new()?;
    // It hears what is passed on to the command as well.
    let mut heard = Signals::new()?;
    // Before anything is claimed: such a program may not be there.
    let mut command = Prepared::new(&work.command, &work.child, store.quiet)?;
    let reaching = reach(config, work.wait, Budget::new(work.wait), store.quiet);
    let coordinator = until_signal(&mut signals, &mut command, reaching).await?;
    command.hand_on(&coordinator, store);
    let settling = Settling { asked: work.child.settle, lease, is_quiet: store.quiet };
    let queue = coordinator.queue(&work.queue)?;
    let mut after;
    let outcome = loop {
        after = After::Wait;
        let next = next(work, &queue, &settling, &coordinator);
        let claiming = until_signal(&mut signals, &mut command, next);
        let (claim, item) = match claiming.await {
            Ok(Some(next)) => next,
            Ok(None) if work.once => {
                break Err(Failure::new(exit::BUSY, format!("{:?} has no item", queue.name())));
            }
            Ok(None) => break Ok(0),
            Err(failure) => break Err(failure),
        };
        after = After::Work;
        let ran = run(command, claim, &item, &mut signals).await;
        let ended = match ran {
            Ok((ended, hold)) => settled(work, &item, &ended, hold).await.map(|end| match end {
                End::OfCommand => ended.outcome(),
                End::Lost => Ok(exit::LOST),
            }),
            // Before it could start: somebody else has the item.
            Err(failure) if failure.code == exit::LOST && !work.once => {
                failure.report();
                Ok(Ok(exit::LOST))
            }
            Err(failure) => Err(failure),
        };
        match (ended, heard.end()) {
            (Ok(outcome), _) if work.once => break outcome,
            (Ok(_), Some(number)) => break Err(Failure::by_signal(number)),
            (Ok(_), None) => {}
            (Err(failure), _) => break Err(failure),
        }
        command = match Prepared::new(&work.command, &work.child, store.quiet) {
            Ok(command) => command,
            Err(failure) => break Err(failure),
        };
        command.hand_on(&coordinator, store);
    };
    finish(&coordinator, &outcome, after).await;
    outcome
}

/// Claims the next item, and keeps it claimed; `None`: there was none in the time given.
async fn next(
    work: &Work,
    queue: &WorkQueue,
    settling: &Settling,
    coordinator: &Coordinator,
) -> Outcome<Option<(Hold, WorkItem)>> {
    let budget = Budget::new(work.wait);
    loop {
        let options = ClaimOptions::default().limit(1).ttl(work.ttl).grace(GRACE);
        let Some(mut claim) = queue.claim_wait(options, budget.left()).await? else {
            return Ok(None);
        };
        claim.keep_alive();
        // It may have been acknowledged meanwhile by who had it before.
        let Some(item) = claim.items().first().cloned() else { continue };
        let hold = Hold::Claim(Box::new(claim));
        if item.claims() > 1 {
            // The command of who had it before may be about to end.
            settle(&hold, settling, coordinator).await?;
        }
        return Ok(Some((hold, item)));
    }
}

async fn run(
    command: Prepared<'_>,
    hold: Hold,
    item: &WorkItem,
    signals: &mut Signals,
) -> Outcome<(Ended, Option<Hold>)> {
    command.fed(item.body().to_vec()).run_under(hold, signals).await
}

/// Tells the store how the command has ended; answers what became of the item.
async fn settled(work: &Work, item: &WorkItem, ended: &Ended, hold: Option<Hold>) -> Outcome<End> {
    let Some(Hold::Claim(claim)) = hold else { return Ok(End::OfCommand) };
    if ended.was_stopped || !claim.is_held() {
        if !ended.was_stopped {
            say(format_args!("the claim of {} was lost while the command ran", item.id()));
        }
        return Ok(End::Lost);
    }
    let told = match ended.code {
        0 => told(&claim, async || claim.ack(item.id()).await.map(drop)).await,
        _ => {
            let delay = delay(work.delay, item.claims());
            told(&claim, async || claim.nack(item.id(), delay).await.map(drop)).await
        }
    };
    match told {
        Ok(()) => Ok(End::OfCommand),
        Err(error) if is_loss(&error) => {
            say(format_args!("the claim of {} was lost as the command ended", item.id()));
            Ok(End::Lost)
        }
        Err(error) => {
            let what = "the command has ended, but runs again, as the store was not told";
            Err(Failure::new(Failure::from(error).code, format!("{what}: {}", item.id())))
        }
    }
}

/// Tells the store as often as it takes while the claim lasts; one that answers, and refuses, for as long as the claim lasted at
/// first.
async fn told(claim: &WorkClaim, tell: impl AsyncFn() -> Result<(), Error>) -> Result<(), Error> {
    let refused_until = Instant::now() + claim.remaining();
    let mut is_in_doubt = false;
    loop {
        let error = match tell().await {
            Ok(()) => return Ok(()),
            Err(error) => error,
        };
        if is_in_doubt && is_given_back(&error) {
            return Ok(());
        }
        let is_refused = may_be_mended(&error) && Instant::now() < refused_until;
        if !claim.is_held() || !(is_out_of_reach(&error) || is_refused) {
            return Err(error);
        }
        is_in_doubt |= error.effect() == Effect::Unknown;
        tokio::time::sleep(AGAIN).await;
    }
}

/// Whether the claim lasts, but has the item no longer: then this process has given it back, by a try whose answer was lost.
fn is_given_back(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::NotClaimed | ErrorKind::NotClaimedBy)
}

/// A full disk, for one, or a password that is changed at the server first.
fn may_be_mended(error: &Error) -> bool {
    use ErrorKind::{Auth, Permission, Quota, Storage};
    matches!(error.kind(), Storage | Quota | Auth | Permission)
}

fn is_loss(error: &Error) -> bool {
    use ErrorKind::{Closed, Lost, NoSuchClaim, NotClaimed, NotClaimedBy};
    matches!(error.kind(), NoSuchClaim | NotClaimed | NotClaimedBy | Lost | Closed)
}

/// Twice as long with each time that the item was claimed.
fn delay(first: Duration, claims: u32) -> Duration {
    let doubled = 2u32.saturating_pow(claims.saturating_sub(1));
    first.checked_mul(doubled).unwrap_or(LONGEST_DELAY).min(LONGEST_DELAY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_grow_to_what_a_queue_takes() {
        let second = Duration::from_secs(1);
        let delays = [1, 2, 3, 10, 11, 40].map(|claims| delay(second, claims).as_secs());
        assert_eq!(delays, [1, 2, 4, 512, 900, 900]);
        assert_eq!(delay(Duration::ZERO, 40), Duration::ZERO);
    }

    /// The answer to a nack is lost, and the next try finds that the claim has the item no longer.
    #[cfg(coordination_internals)]
    #[tokio::test(start_paused = true)]
    async fn what_was_given_back_by_a_try_in_doubt_is_no_loss() -> Result<(), Error> {
        use coordination::NewItem;
        use coordination::simulation::{Clocks, Run, Traits, Weather, World};
        let _run = Run::begin(1);
        let world = World::new(1, Traits::SERVER);
        let settings = Coordinator::builder().ttl(Duration::from_secs(60));
        let coordinator = world.client(Clocks::default()).connect(settings.into()).await?;
        let (queue, value) = (coordinator.queue("jobs")?, coordinator.value::<u32>("other")?);
        queue.post(&[NewItem::new("a")]).await?;
        let claim = queue.claim(ClaimOptions::default()).await?.expect("it is ready");
        let item = claim.items()[0].id();
        let version = value.set(&1).await?;
        let tries = std::cell::Cell::new(0);
        let nack = async || {
            tries.set(tries.get() + 1);
            claim.nack(item, Duration::ZERO).await?;
            // It was carried out, but this is what is heard.
            world.set_weather(Weather { lost_reply: 1_000_000, ..Weather::calm() });
            let unheard = value.compare_and_set(Some(version), &2).await.map(drop);
            world.set_weather(Weather::calm());
            unheard
        };
        told(&claim, nack).await?;
        assert_eq!(tries.get(), 2);
        // Without doubt it would be another's doing.
        let nack = async || claim.nack(item, Duration::ZERO).await.map(drop);
        let refused = told(&claim, nack).await.expect_err("it has the item no longer");
        assert_eq!(refused.kind(), ErrorKind::NotClaimed);
        Ok(())
    }
}
