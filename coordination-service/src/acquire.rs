//! From what is wanted to a hold: the wait, the promise, and the delivery of the answer.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use axum::body::Body;
use coordination::{Coordinator, SharedValue, Version};
use tokio::sync::oneshot;

use crate::delivery::{self, Deliver};
use crate::finishing::Finishing;
use crate::guard::Guard;
use crate::holds::{Begun, Covered, End, Hold, Holds};
use crate::ids;
use crate::keys::Ticket;
use crate::problem::{Code, Problem};
use crate::promise::{self, Promise, Promised, SatOut};
use crate::service::{Phase, Shared, Waiting};
use crate::settings::Cover;
use crate::text::millis;
use crate::waited;
use crate::wanted::{self, Wanted, What};

mod room;
#[cfg(test)]
pub(crate) mod tests;

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

/// A hold whose client may not know of it yet: given up when this is dropped before it was delivered.
pub(crate) struct Undelivered {
    holds: Arc<Holds>,
    hold: Option<Arc<Hold>>,
}

impl Undelivered {
    /// The hold, for the answer's text.
    pub(crate) fn hold(&self) -> Result<&Arc<Hold>, Problem> {
        self.hold.as_ref().ok_or_else(|| Problem::new(Code::Internal, "it was delivered before"))
    }

    /// A body that delivers it when the connection has taken it.
    pub(crate) fn body(self, text: String) -> Body {
        delivery::body(text, self)
    }
}

impl Deliver for Undelivered {
    fn deliver(&mut self) {
        self.hold = None;
    }
}

impl Drop for Undelivered {
    fn drop(&mut self) {
        if let Some(hold) = self.hold.take()
            && !hold.was_told_again()
        {
            self.holds.end_in_background(&hold, End::Undelivered);
            // Where it was lost before: nobody was told of its promise either.
            self.holds.take_back(&hold);
        }
    }
}

/// Waits for what is wanted, and takes it in as a hold.
///
/// The work is done by a task of its own, which undoes a grant that nobody is there to receive.
///
/// # Cancel safety
///
/// Dropping the future gives up the place in the queue, and what may be granted after that.
pub(crate) async fn acquire(
    service: &Shared,
    wanted: Wanted,
    mut ticket: Option<Ticket>,
) -> Result<Undelivered, Problem> {
    let finishing = service.begin()?;
    room::check(service, &wanted)?;
    let limits = service.settings.limits;
    let waiting = service.waits.enter(&wanted.client, wanted.part_count(), limits.waits)?;
    // Not before it is let in: whoever is refused takes no place away from the request before it.
    if let Some(ticket) = &mut ticket {
        ticket.take_over();
    }
    let waits = !wanted.wait.is_zero();
    let (answer, received) = oneshot::channel();
    tokio::spawn(work(Arc::clone(service), wanted, answer, (waiting, finishing), ticket));
    let failed = || Problem::new(Code::Internal, "the wait ended without an answer");
    let answer = if waits { waited::waiting(received).await } else { received.await };
    answer.unwrap_or_else(|_| Err(failed()))
}

fn taken_over() -> Problem {
    Problem::new(Code::Superseded, "a later request with the same key waits in its place")
}

async fn work(
    service: Shared,
    wanted: Wanted,
    mut answer: oneshot::Sender<Result<Undelivered, Problem>>,
    (waiting, _finishing): (Waiting, Finishing),
    mut ticket: Option<Ticket>,
) {
    let (begun, asked_at) = (Instant::now(), SystemTime::now());
    let mut phases = service.phase.subscribe();
    let superseded = async {
        match &ticket {
            Some(ticket) => ticket.superseded().await,
            None => std::future::pending().await,
        }
    };
    let waited = tokio::select! {
        biased;
        // The client is gone: so is its place, by dropping the wait.
        () = answer.closed() => return,
        _ = phases.wait_for(|phase| *phase != Phase::Serving) => Err(Problem::draining()),
        () = superseded => Err(taken_over()),
        waited = wait(&service, &wanted, begun) => waited,
    };
    // From here on nothing is dropped half-way: a promise may be written.
    let outcome = match waited {
        Ok(waited) => grant(&service, wanted, waited, asked_at).await,
        Err(problem) => Err(problem),
    };
    let outcome = outcome.and_then(|granted| {
        let handle = granted.hold()?.handle.clone();
        let is_ours = ticket.as_mut().is_none_or(|ticket| ticket.granted(&handle));
        if is_ours { Ok(granted) } else { Err(taken_over()) }
    });
    drop(waiting);
    // A grant that nobody receives is undone by its drop.
    let _ = answer.send(outcome);
}

/// What the store granted, and where its promises have to stand.
struct Waited {
    guard: Guard,
    places: Vec<Place>,
}

/// Where the promise of one lock has to stand.
struct Place {
    value: SharedValue<Promised>,
    /// The version of one that is over and still there.
    over: Option<Version>,
    /// That of our grant of the lock.
    fence: u64,
}

/// The library's wait, and then that for promises of other instances.
async fn wait(service: &Shared, wanted: &Wanted, begun: Instant) -> Result<Waited, Problem> {
    let coordinator = service.coordinator()?;
    let asked = wanted::granted(&coordinator, wanted).await;
    let guard = asked.map_err(|problem| ungranted(problem, begun))?;
    let mut places = Vec::new();
    for (name, fence) in wanted.locks().into_iter().zip(guard.fences()) {
        if service.promises(name) {
            let (value, over) = sat_out(service, &guard, wanted, name, begun).await?;
            places.push(Place { value, over, fence });
        }
    }
    Ok(Waited { guard, places })
}

/// Waits until no promise of another grant of this lock is in the way; where it is, and which version of one is over.
async fn sat_out(
    service: &Shared,
    guard: &Guard,
    wanted: &Wanted,
    name: &str,
    begun: Instant,
) -> Result<(SharedValue<Promised>, Option<Version>), Problem> {
    let value = promise::of(&service.coordinator()?, name)?;
    let left = wanted.wait.saturating_sub(begun.elapsed());
    let sat_out = guard.protect(promise::sit_out(&value, name, &service.sights, left));
    match sat_out.await.map_err(|_| lost())?? {
        SatOut::Free(over) => Ok((value, over)),
        // It is not ours to grant yet; the guard is given up.
        SatOut::Promised => Err(ungranted(
            Problem::new(Code::Busy, "it was promised to somebody else for longer"),
            begun,
        )),
    }
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
    // What is shared is kept by none.
    let lease = (!is_covered && wanted.what.is_exclusive_lock()).then_some(wanted.lease);
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
        promises,
        wait: wanted.wait,
        lease: wanted.lease,
        guard,
    });
    Ok(Undelivered { holds: Arc::clone(&service.holds), hold: Some(hold) })
}

/// Writes a promise of this lease at each of these places: at all of them, or the others are deleted. Without a lease, only those
/// that are over are deleted, as the next one would sit them out once more.
async fn promised(
    service: &Shared,
    places: Vec<Place>,
    lease: Option<Duration>,
    handle: &str,
) -> Result<Vec<Arc<Promise>>, Problem> {
    let mut promises = Vec::new();
    for Place { value, over, fence } in places {
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

/// Deletes the promise of a grant that was taken away, if there is one.
pub(crate) async fn forget_promise(
    service: &Shared,
    coordinator: &Coordinator,
    name: &str,
    fence: u64,
) -> coordination::Result<()> {
    if service.promises(name) {
        promise::forget(&promise::of(coordinator, name)?, fence).await?;
    }
    Ok(())
}
