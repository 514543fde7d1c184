//! From what is wanted to a hold: the wait, the promise, and the delivery of the answer.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use coordination::{FencingToken, SharedValue, State as SessionState, Version};
use tokio::sync::watch;

use self::place::{EndsWithIt, Place, Waiter};
pub(crate) use self::undelivered::Undelivered;
use crate::auth::Right;
use crate::finishing::{Finishing, finished};
use crate::guard::Guard;
use crate::holds::{Begun, Covered};
use crate::ids;
use crate::keys::Ticket;
use crate::problem::{Code, Problem};
use crate::promise::{self, Promise, Promised, SatOut};
use crate::service::{Phase, Shared, Waiting};
use crate::settings::Cover;
use crate::text::millis;
use crate::waited;
use crate::wanted::{self, Wanted, What};

pub(crate) mod place;
mod room;
#[cfg(test)]
pub(crate) mod tests;
pub(crate) mod undelivered;

/// How long the library waits at a place that others may go on with: longer than anybody comes back to it.
const FOR_GOOD: Duration = Duration::from_secs(366 * 86_400);

/// How much later than its client's time a wait may be answered: the library's own ends by then, and says more.
const LATE: Duration = Duration::from_millis(100);

/// How long one try may take, with the reading and the writing of promises, and how much longer for each further name: these are acquired
/// one after the other, perhaps from a store that is far away.
const ONE_TRY: (Duration, Duration) = (Duration::from_secs(5), Duration::from_millis(500));

/// The longest lease there is.
pub(crate) const LONGEST: Duration = Duration::from_secs(86_400);

/// The longest lease of these locks together; without any, of what is no lock.
pub(crate) fn longest_lease(service: &Shared, locks: &[&str]) -> Duration {
    let is_promised = !locks.is_empty() && locks.iter().all(|name| service.promises(name));
    match service.cover {
        Cover::Lease(cover) if !is_promised => cover,
        // Promises keep it, or nothing keeps it once the instance is dead, however short it is.
        Cover::Lease(_) | Cover::Nothing | Cover::Any => LONGEST,
    }
}

/// Waits for what is wanted, and takes it in as a hold.
///
/// The work is done by a task of its own, which undoes a grant that nobody is there to receive. With a ticket, a repetition of the
/// request goes on at the same place.
///
/// # Cancel safety
///
/// Dropping the future gives up the place in the queue, and what may be granted after that, unless they are to be kept.
pub(crate) async fn acquire(
    service: &Shared,
    wanted: Wanted,
    ticket: Option<Ticket>,
) -> Result<Undelivered, Problem> {
    acquire_after(service, wanted, ticket, Duration::ZERO).await
}

/// The same for whoever has waited for so long already.
///
/// # Cancel safety
///
/// As for [`acquire`].
pub(crate) async fn acquire_after(
    service: &Shared,
    mut wanted: Wanted,
    mut ticket: Option<Ticket>,
    waited: Duration,
) -> Result<Undelivered, Problem> {
    let begun = Instant::now();
    let wait_in_all = wanted.wait;
    wanted.wait = wait_in_all.saturating_sub(waited);
    let place = ticket.as_ref().map_or_else(Place::new, Ticket::place);
    let (wait, keep, one_try) = (wanted.wait, wanted.keep, one_try(&wanted));
    let waiter = match &mut ticket {
        Some(ticket) => ticket.waiter(),
        None => place.wait_at(keep),
    };
    let failed = || Problem::new(Code::Internal, "the place is over before the wait has begun");
    let mut waiter = waiter.ok_or_else(failed)?;
    waiter.is_of(&wanted.who);
    let let_in = let_in(service, &wanted);
    // Whoever has repeated the request meanwhile waits at this place for nothing.
    let until_over = let_in.inspect_err(|problem| place.end(Err(problem.clone())))?;
    if wait.is_zero() {
        place.begin_to_try();
    }
    // Else the library ends the wait, and so it does one try: but not what is done about promises after that.
    let is_kept = ticket.is_some() && (!wait.is_zero() || !keep.is_zero());
    let listed = service.queued.list(wanted.all(), &place);
    let work = work(Arc::clone(service), wanted, (Arc::clone(&place), is_kept), until_over, ticket);
    tokio::spawn(async move {
        let _until_over = listed;
        work.await;
    });
    if is_kept {
        waiter.wants(wait_in_all);
    }
    let answer = match (wait.is_zero(), is_kept) {
        (true, _) => waiter.answer(one_try).await,
        (false, true) => waited::waiting(waiter.answer(wait)).await,
        (false, false) => waited::waiting(waiter.answer(wait + LATE)).await,
    };
    answer.unwrap_or_else(|| {
        let problem = not_yet(service, waiter.is_blocked(), begun, keep);
        let ahead = if is_kept { waiter.ahead() } else { place.ahead(wait) };
        Err(behind(problem, ahead))
    })
}

/// How long whoever does not wait may have to wait for its answer.
fn one_try(wanted: &Wanted) -> Duration {
    let (one, more) = ONE_TRY;
    let further = u32::try_from(wanted.part_count().saturating_sub(1)).unwrap_or(u32::MAX);
    one.saturating_add(more.saturating_mul(further))
}

/// An error, unless it may begin to wait.
fn let_in(service: &Shared, wanted: &Wanted) -> Result<(Waiting, Finishing), Problem> {
    let finishing = service.begin()?;
    room::check(service, wanted)?;
    let limits = service.settings.limits;
    let waiting = service.waits.enter(&wanted.client, wanted.part_count(), limits.waits)?;
    Ok((waiting, finishing))
}

/// Goes on with the wait of an earlier request, at its place. `None`: that wait has ended, as its client did not wait for so long, and it
/// is to be begun anew.
///
/// # Cancel safety
///
/// As for [`acquire`].
pub(crate) async fn go_on(
    service: &Shared,
    mut waiter: Waiter<Undelivered>,
    wanted: &Wanted,
    begun: Instant,
) -> Option<Result<Undelivered, Problem>> {
    let left = wanted.wait.saturating_sub(begun.elapsed());
    waiter.is_of(&wanted.who);
    waiter.wants(wanted.wait);
    // What is tried for the one before is the one try of this one, too: that it is busy is known after that.
    let is_tried = wanted.wait.is_zero() && waiter.is_trying();
    let within = if is_tried { one_try(wanted) } else { left };
    match waited::waiting(waiter.answer(within)).await {
        None => {
            let problem = not_yet(service, waiter.is_blocked(), begun, wanted.keep);
            Some(Err(behind(problem, waiter.ahead())))
        }
        Some(Err(problem)) if problem.code == Code::Busy && begun.elapsed() < wanted.wait => None,
        // It says how long the request before has waited.
        Some(Err(problem)) if problem.code == Code::Busy => {
            Some(Err(problem.with("waited_ms", millis(begun.elapsed()))))
        }
        answer => answer,
    }
}

/// The answer to whoever has waited for as long as it wanted to, for others or for the store.
fn not_yet(service: &Shared, is_blocked: bool, begun: Instant, keep: Duration) -> Problem {
    let session = service.session.borrow().as_ref().map(|session| session.state);
    let problem = match session {
        Some(state) if state != SessionState::Connected => {
            Problem::new(Code::StoreAway, "the store does not answer")
        }
        _ if is_blocked => Problem::new(Code::Busy, "somebody else holds it"),
        _ => Problem::new(
            Code::StoreAway,
            "the store has not let it be waited for in the time given",
        ),
    };
    place_kept(problem.with("waited_ms", millis(begun.elapsed())), keep)
}

/// With how many were ahead in the queue, if others are in the way and it is known how many.
fn behind(problem: Problem, ahead: Option<usize>) -> Problem {
    match ahead {
        Some(ahead) if problem.code == Code::Busy => problem.with("ahead", ahead),
        _ => problem,
    }
}

/// With the time for which its place is kept, if it is.
fn place_kept(problem: Problem, keep: Duration) -> Problem {
    if keep.is_zero() { problem } else { problem.with("place_kept_ms", millis(keep)) }
}

async fn work(
    service: Shared,
    wanted: Wanted,
    (place, is_kept): (Arc<Place<Undelivered>>, bool),
    (waiting, _finishing): (Waiting, Finishing),
    mut ticket: Option<Ticket>,
) {
    let (begun, asked_at) = (Instant::now(), SystemTime::now());
    let _in_any_case = EndsWithIt(Arc::clone(&place));
    let mut phases = service.phase.subscribe();
    let all = wanted.all();
    // Of two requests with the same key the second one may have come with another token.
    let may_wait = || {
        let Some(who) = place.who() else { return Ok(()) };
        all.iter().try_for_each(|(_, name)| service.auth.still(&who, Right::Use, name))
    };
    let waited = tokio::select! {
        biased;
        // Nobody waits there any more, or it was taken away: it is left by dropping the wait.
        () = place.given_up() => None,
        _ = phases.wait_for(|phase| *phase != Phase::Serving) => Some(Err(Problem::draining())),
        refused = service.auth.refused(may_wait) => Some(Err(refused)),
        waited = wait(&service, &wanted, (&place, is_kept), begun) => Some(waited),
    };
    let Some(waited) = waited else {
        // Of one that was taken away whoever comes back in time is told.
        return until_told(&place, &mut phases).await;
    };
    // From here on nothing is dropped half-way: a promise may be written.
    let outcome = match waited {
        Ok(waited) => grant(&service, wanted, waited, asked_at).await,
        Err(problem) => Err(problem),
    };
    let outcome = outcome.and_then(|mut granted| {
        if let Some(ticket) = &mut ticket {
            ticket.granted(&granted.hold()?.handle);
        }
        // From here on nobody else comes to wait at the place, who would have it kept for another time.
        granted.keep(place.kept_for());
        Ok(granted)
    });
    match outcome {
        Ok(granted) => {
            drop(waiting);
            // What nobody receives is undone by its drop.
            place.end(Ok(granted));
        }
        // That settles nothing: it is asked for anew, perhaps with another token.
        Err(problem)
            if matches!(problem.code, Code::Busy | Code::Unauthenticated | Code::Forbidden) =>
        {
            drop(waiting);
            place.end(Err(problem));
        }
        Err(problem) => {
            // Whoever comes back in time is told what became of its place, and does not begin anew without a word.
            place.fail(problem, waiting);
            until_told(&place, &mut phases).await;
        }
    }
}

/// Waits until whoever has come back was told what became of its place, or until nobody can come back any more.
async fn until_told(place: &Place<Undelivered>, phases: &mut watch::Receiver<Phase>) {
    tokio::select! {
        biased;
        () = place.over() => {}
        _ = phases.wait_for(|phase| *phase != Phase::Serving) => {}
    }
}

/// Waits for as long as is wanted; at a place with which others may go on, as it is kept, until it is given up.
async fn wait(
    service: &Shared,
    wanted: &Wanted,
    (place, is_kept): (&Place<Undelivered>, bool),
    begun: Instant,
) -> Result<Waited, Problem> {
    let mut wanted = wanted.clone();
    if is_kept && !wanted.wait.is_zero() {
        wanted.wait = FOR_GOOD;
    }
    loop {
        let is_put_off = is_kept && wanted.wait.is_zero() && wanted.what.is_waited_for();
        match wait_once(service, &wanted, (place, is_kept), begun).await {
            // That was the try whose client is answered at once, and whose place is kept.
            Err(problem) if is_put_off && problem.code == Code::Busy => {
                place.put_off(|keep| place_kept(problem, keep));
                wanted.wait = FOR_GOOD;
            }
            waited => return waited,
        }
    }
}

/// What the store granted, and where its promises have to stand.
struct Waited {
    guard: Guard,
    places: Vec<Promising>,
}

/// Where the promise of one lock has to stand.
struct Promising {
    value: SharedValue<Promised>,
    /// The version of one that is over and still there.
    over: Option<Version>,
    /// That of our grant of the lock.
    fence: u64,
}

/// The library's wait, and then that for promises of other instances.
async fn wait_once(
    service: &Shared,
    wanted: &Wanted,
    (place, is_kept): (&Place<Undelivered>, bool),
    begun: Instant,
) -> Result<Waited, Problem> {
    let coordinator = service.coordinator()?;
    let asked = place.asking(wanted::granted(&coordinator, wanted)).await;
    let guard = asked.map_err(|problem| {
        // The library has ended this wait, and has looked before, if there was time for it.
        let ahead = if is_kept { None } else { place.ahead(wanted.wait) };
        ungranted(behind(problem, ahead), begun)
    })?;
    let mut places = Vec::new();
    for (name, fence) in wanted.locks().into_iter().zip(guard.fences()) {
        if service.promises(name) {
            let left = wanted.wait.saturating_sub(begun.elapsed());
            let value = promise::of(&coordinator, name)?;
            let sat_out =
                promise::sit_out(&value, name, &service.sights, left, place.is_promised(fence));
            let over = match guard.protect(sat_out).await.map_err(|_| lost())?? {
                SatOut::Free(over) => over,
                // It is not ours to grant yet; the guard is given up.
                SatOut::Promised => {
                    let why = "it was promised to somebody else for longer";
                    return Err(ungranted(Problem::new(Code::Busy, why), begun));
                }
            };
            places.push(Promising { value, over, fence });
        }
    }
    Ok(Waited { guard, places })
}

/// The lock was ours, and is not any more: somebody else may have been granted it.
pub(crate) fn lost() -> Problem {
    Problem::new(Code::StoreAway, "it was over before you could be told of it; ask again")
}

/// The answer to who was granted nothing.
fn ungranted(problem: Problem, begun: Instant) -> Problem {
    match problem.code {
        Code::Busy => problem.with("waited_ms", millis(begun.elapsed())),
        // Of a grant that was lost at once nobody was told: for its client nothing has ended.
        Code::Ended => lost(),
        _ => problem,
    }
}

/// Writes the promises, if the lease needs them, and takes the grant in.
async fn grant(
    service: &Shared,
    wanted: Wanted,
    waited: Waited,
    asked_at: SystemTime,
) -> Result<Undelivered, Problem> {
    let Waited { guard, places } = waited;
    if !guard.is_held() {
        return Err(lost());
    }
    let handle = ids::handle(&service.tag);
    let covered_for = service.cover.longest();
    let is_covered = covered_for.is_none_or(|cover| wanted.lease <= cover);
    // The store may grant shorter leases than it was asked for, or have confirmed none for long. Where a promise can keep the whole
    // lease, it does.
    let can_promise = places.len() == wanted.locks().len();
    let is_beyond = can_promise && guard.remaining().is_some_and(|left| wanted.lease > left);
    let is_needed = !is_covered || is_beyond || wanted.relies_on_lease;
    // What is shared is kept by none.
    let is_promised = is_needed && wanted.what.is_exclusive_lock();
    let lease = is_promised.then_some(wanted.lease);
    let promises = promised(service, places, lease, &handle).await?;
    if !guard.is_held() {
        // Nobody was told of the promises, and whoever has a lock by now is not to wait for its own.
        promises.into_iter().for_each(|promise| service.holds.undeleted.add(promise));
        return Err(lost());
    }
    let covered = match (promises.is_empty(), is_covered) {
        (false, _) => Covered::Http,
        (true, true) => Covered::All,
        (true, false) => Covered::Nobody,
    };
    let several = match wanted.what {
        What::Locks { names, .. } => Some(names),
        _ => None,
    };
    let hold = service.holds.begin(Begun {
        handle,
        several,
        name: wanted.name,
        title: wanted.title,
        client: wanted.client,
        asked_at,
        covered,
        covered_for,
        promises,
        wait: wanted.wait,
        lease: wanted.lease,
        guard,
    });
    Ok(Undelivered::new(Arc::clone(&service.holds), hold, service.phase.subscribe()))
}

/// Writes a promise of this lease at each of these places: at all of them, or the others are deleted. Without a lease, only those
/// that are over are deleted, as the next one would sit them out once more.
async fn promised(
    service: &Shared,
    places: Vec<Promising>,
    lease: Option<Duration>,
    handle: &str,
) -> Result<Vec<Arc<Promise>>, Problem> {
    let mut promises = Vec::new();
    for Promising { value, over, fence } in places {
        match (lease, over) {
            (Some(lease), over) => {
                let promise = Arc::new(Promise::new(value, fence, handle));
                match written(service, promise, over, lease).await {
                    Ok(promise) => promises.push(promise),
                    Err(problem) => {
                        promises.into_iter().for_each(|one| service.holds.undeleted.add(one));
                        return Err(problem);
                    }
                }
            }
            (None, Some(over)) => drop(value.compare_and_delete(over).await?),
            (None, None) => {}
        }
    }
    Ok(promises)
}

/// Writes this promise in place of one that is over. If it cannot be told whether it was written, it is deleted as soon as that
/// can be: nobody holds what it keeps others out of.
async fn written(
    service: &Shared,
    promise: Arc<Promise>,
    over: Option<Version>,
    lease: Duration,
) -> Result<Arc<Promise>, Problem> {
    match promise.write(over, lease).await {
        Ok(true) => Ok(promise),
        Ok(false) => Err(Problem::new(Code::Busy, "somebody else was promised it meanwhile")),
        Err(error) => {
            service.holds.undeleted.add(promise);
            Err(error.into())
        }
    }
}

/// Takes a lock away from whoever has this grant of it, which is none of our holds, and its promise with it: who holds it next is not to
/// wait for that. False: it had ended before.
///
/// The promise is read first. A store that does not answer that has not taken anything away yet, and its error says so; of a lock that
/// was taken away the promise goes in any case, in the background if it cannot at once.
///
/// # Cancel safety
///
/// If the future is dropped when the promise was read, the lock is taken away all the same.
pub(crate) async fn break_grant(
    service: &Shared,
    name: &str,
    fence: FencingToken,
) -> Result<bool, Problem> {
    let coordinator = service.coordinator()?;
    let lock = coordinator.lock(name)?;
    let promise = match service.promises(name) {
        true => Promise::find(promise::of(&coordinator, name)?, fence.value()).await?,
        false => None,
    };
    let (finishing, holds) = (service.begin_any()?, Arc::clone(&service.holds));
    let breaking = async move {
        let is_broken = lock.break_grant(fence).await?.is_some();
        if is_broken && let Some(promise) = promise {
            holds.delete_promise(Arc::new(promise)).await;
        }
        Ok::<_, coordination::Error>(is_broken)
    };
    Ok(finished(finishing, breaking).await??)
}
