//! `coordination break`: what somebody holds is taken away, or its holders are asked to let go of it.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use coordination::{
    Candidate, Claimant, Contender, Coordinator, Effect, Election, Error, FencingToken, Limiter,
    Lock, Occupant, Scope, Semaphore, WorkQueue,
};

use crate::args::{Break, Broken, Store};
use crate::broken::{self, Granted, Mark, Part, STANDS_STILL};
use crate::exit::{self, Failure, NOBODY, Outcome, say};
use crate::history::{self, Taken};
use crate::note::note_break;
use crate::settings;

/// The code of who was asked and said no.
const REFUSED: u8 = 1;
/// Who has a claim that belongs to no process.
const BY_ID: &str = "whoever has its id";

/// What is held, of one recipe.
enum Held {
    Lock(Lock),
    Semaphore(Semaphore),
    Limiter(Limiter),
    Election(Election),
    Queue(WorkQueue),
}

/// Who holds some of it, or waits for it.
struct Who {
    member: String,
    /// As it is shown, with its label.
    shown: String,
    token: FencingToken,
    holds: bool,
    /// How much of it, where that is known.
    part: Part,
}

impl Who {
    fn new(member: &str, label: &str, token: FencingToken, holds: bool) -> Self {
        let (member, shown) = (member.to_owned(), exit::who(member, label));
        Self { member, shown, token, holds, part: Part::All }
    }

    fn of_contender(one: &Contender) -> Self {
        let part = if one.shared { Part::Shared } else { Part::All };
        Self { part, ..Self::new(&one.member, &one.label, one.token, one.holding) }
    }

    fn of_occupant(one: &Occupant) -> Self {
        let holds = !one.slots.is_empty();
        // It has them for good; one that waits may get any.
        let part = if holds { Part::Slots(one.slots.clone()) } else { Part::All };
        Self { part, ..Self::new(&one.member, &one.label, one.token, holds) }
    }

    fn of_candidate(one: &Candidate) -> Self {
        Self::new(&one.member, &one.label, one.term, one.leading)
    }

    fn of_claim(one: &Claimant) -> Self {
        let who = Self::new(&one.member, "", one.token, true);
        if one.member.is_empty() { Self { shown: BY_ID.to_owned(), ..who } } else { who }
    }
}

pub(crate) async fn break_grant(asked: &Break, store: &Store) -> Outcome<u8> {
    let config = settings::read(store)?;
    let lease = settings::lease(&config);
    let coordinator = settings::connect(config).await?;
    let outcome = match asked.ask {
        true => asked_to_let_go(asked, store, &coordinator).await,
        false => taken_away(asked, store, &coordinator, lease).await,
    };
    let _ = coordinator.stop().await;
    outcome
}

/// Takes nothing away, and so needs no confirmation.
async fn asked_to_let_go(asked: &Break, store: &Store, coordinator: &Coordinator) -> Outcome<u8> {
    let lock = coordinator.lock(&asked.name)?;
    let holders = lock.request_release().await?;
    if holders.is_empty() {
        say(format_args!("nobody holds {:?}", lock.name()));
        return Ok(NOBODY);
    }
    for holder in holders.iter().filter(|_| !store.quiet) {
        let shown = shown(lock.name(), &Who::of_contender(holder));
        say(format_args!("asked to let go: {shown}"));
    }
    Ok(0)
}

/// The lease is the one that we ask for.
async fn taken_away(
    asked: &Break,
    store: &Store,
    coordinator: &Coordinator,
    lease: Option<Duration>,
) -> Outcome<u8> {
    let held = Held::of(coordinator, asked)?;
    let all = held.all().await?;
    let meant = match asked.token {
        Some(token) => all.into_iter().find(|who| who.token.value() == token),
        None => the_holder(asked, all)?,
    };
    let Some(who) = meant else {
        let token = asked.token.map(|token| format!(" with token {token}")).unwrap_or_default();
        say(format_args!("nobody holds {:?}{token}", held.name()));
        return Ok(0);
    };
    if !asked.yes && !is_confirmed(&shown(held.name(), &who))? {
        return Ok(REFUSED);
    }
    let lease = lease.map(|lease| longest(lease, coordinator.characteristics().min_ttl));
    // Of one that waits, too: it may come to hold it before it is taken away. Nobody waits for what has ended for certain.
    let mark = match asked.ended {
        false => held.mark(&who, coordinator, lease),
        true => None,
    };
    if let Held::Lock(lock) = &held {
        note_break(lock, coordinator).await;
    }
    // Before, so that whoever is granted it finds the mark.
    let marked = add(mark.as_ref(), coordinator).await;
    // Exactly the one that was seen: somebody else may hold it by now.
    let former = held.break_grant(who.token).await;
    let may_go_on = match &former {
        Ok(former) => former.as_ref().is_some_and(|who| who.holds),
        Err(error) => error.effect() != Effect::None,
    };
    if !may_go_on {
        remove(mark.as_ref(), coordinator).await;
    }
    let Some(who) = former? else {
        let what = "the holder has changed meanwhile; nothing was done";
        return Err(Failure::new(exit::BUSY, what));
    };
    let taken = Taken::now(coordinator, held.recipe(), &asked.name, &asked.reason);
    // First of all whoever asks is told: the store may take its time with the note.
    if !store.quiet {
        let told = match &held {
            Held::Queue(_) => "its worker is told when it renews the claim".to_owned(),
            _ if who.holds && asked.ended => "nobody waits for its command".to_owned(),
            _ => told(&who, coordinator.loss_delay(), lease),
        };
        say(format_args!("broken: {}; {told}", shown(held.name(), &who)));
    }
    if who.holds
        && let Err(error) = marked
    {
        say(format_args!(
            "warning: the next command waits as if this holder was told, as the store was not: {error}"
        ));
    }
    history::note(coordinator, &taken.away_from(&who.member, who.token.value())).await;
    Ok(0)
}

/// A store that takes no more keeps nobody from taking something away.
async fn add(mark: Option<&Mark>, coordinator: &Coordinator) -> Result<(), Error> {
    match mark {
        Some(mark) => broken::mark(&broken::marks(coordinator)?, mark).await,
        None => Ok(()),
    }
}

/// No command goes on without its lock. If the mark stays, whoever follows waits once, which does no harm.
async fn remove(mark: Option<&Mark>, coordinator: &Coordinator) {
    if let (Some(mark), Ok(marks)) = (mark, broken::marks(coordinator)) {
        let _ = broken::unmark(&marks, |other| other == mark).await;
    }
}

/// When a holder learns of it, until when one goes on that does not, where its settings are ours, and when the next command starts; or
/// what becomes of one that only waited.
fn told(who: &Who, delay: Duration, lease: Option<Duration>) -> String {
    if !who.holds {
        return "it was still waiting, and is sent to the end of the queue".to_owned();
    }
    let (until, then) = match lease {
        Some(lease) => (
            format!("until {lease:?} after its last heartbeat"),
            format!("or else after {lease:?}"),
        ),
        None => (
            "until it ends, or runs again".to_owned(),
            format!("or else after {STANDS_STILL:?}, so end a holder that hangs first"),
        ),
    };
    format!(
        "with our settings a holder is told within {delay:?}, but one that hangs, or that the store does not reach, may go on {until}; \
         the next command under it starts when this holder's has ended, {then}"
    )
}

/// The longest lease that a store grants to who asks for this one.
fn longest(asked: Duration, shortest: Option<Duration>) -> Duration {
    // In whole seconds, as some stores count.
    let seconds = asked.max(shortest.unwrap_or_default()).as_millis().div_ceil(1_000);
    Duration::from_secs(u64::try_from(seconds).unwrap_or(u64::MAX))
}

/// The one that is meant where nobody says which.
fn the_holder(asked: &Break, all: Vec<Who>) -> Outcome<Option<Who>> {
    let holders = all.iter().filter(|who| who.holds).count();
    let is_one = matches!(asked.recipe, Broken::Lock | Broken::Election);
    if !is_one && holders > 1 {
        let tokens = all.iter().filter(|who| who.holds).map(|who| who.token.to_string());
        let tokens = tokens.collect::<Vec<_>>().join(", ");
        return Err(Failure::usage(format!(
            "{holders} hold it: say by --token which one: {tokens}"
        )));
    }
    // One who shares a lock may have come to hold it behind one who waits. If nobody holds it, the first one that waits is meant.
    let place = all.iter().position(|who| who.holds).unwrap_or(0);
    Ok(all.into_iter().nth(place))
}

impl Held {
    fn of(coordinator: &Coordinator, asked: &Break) -> Outcome<Self> {
        let name = &asked.name;
        Ok(match asked.recipe {
            Broken::Lock => Self::Lock(coordinator.lock(name)?),
            // Their numbers do not matter to who takes away.
            Broken::Semaphore => Self::Semaphore(coordinator.semaphore(name, 1)?),
            Broken::Limiter => Self::Limiter(coordinator.limiter(name)?),
            Broken::Election => Self::Election(coordinator.election(name)?),
            Broken::Queue => Self::Queue(coordinator.queue(name)?),
        })
    }

    fn recipe(&self) -> &'static str {
        match self {
            Self::Lock(_) => "lock",
            Self::Semaphore(_) => "semaphore",
            Self::Limiter(_) => "limiter",
            Self::Election(_) => "election",
            Self::Queue(_) => "queue",
        }
    }

    fn name(&self) -> &str {
        match self {
            Self::Lock(lock) => lock.name(),
            Self::Semaphore(semaphore) => semaphore.name(),
            Self::Limiter(limiter) => limiter.name(),
            Self::Election(election) => election.name(),
            Self::Queue(queue) => queue.name(),
        }
    }

    async fn all(&self) -> Outcome<Vec<Who>> {
        let of = |all: Vec<Occupant>| all.iter().map(Who::of_occupant).collect();
        Ok(match self {
            Self::Lock(lock) => lock.holders().await?.iter().map(Who::of_contender).collect(),
            Self::Semaphore(semaphore) => of(semaphore.holders().await?),
            Self::Limiter(limiter) => of(limiter.inspect().await?),
            Self::Election(election) => {
                election.candidates().await?.iter().map(Who::of_candidate).collect()
            }
            Self::Queue(queue) => queue.claims().await?.iter().map(Who::of_claim).collect(),
        })
    }

    /// That its holder may go on; `None`: nobody who follows would look for that.
    fn mark(&self, who: &Who, coordinator: &Coordinator, lease: Option<Duration>) -> Option<Mark> {
        match self {
            // A worker's next claim of an item waits for `--settle`.
            Self::Queue(_) => None,
            // Whoever follows waits for the second lock of this name.
            Self::Lock(_) if coordinator.characteristics().scope < Scope::Hosts => None,
            held => {
                let granted = Granted::new(held.recipe(), held.name(), who.token);
                let (us, lease) = (coordinator.member_id(), lease.unwrap_or(STANDS_STILL));
                Some(Mark::new(granted, who.part.clone(), us, lease))
            }
        }
    }

    /// Answers who has lost it, as it was at that moment: whoever waited may have come to hold it since. `None`: nobody has this token
    /// any more.
    async fn break_grant(&self, token: FencingToken) -> Result<Option<Who>, Error> {
        let of = |former: Option<Occupant>| former.as_ref().map(Who::of_occupant);
        Ok(match self {
            Self::Lock(lock) => lock.break_grant(token).await?.as_ref().map(Who::of_contender),
            Self::Semaphore(semaphore) => of(semaphore.break_grant(token).await?),
            Self::Limiter(limiter) => of(limiter.break_grant(token).await?),
            Self::Election(election) => {
                election.break_grant(token).await?.as_ref().map(Who::of_candidate)
            }
            Self::Queue(queue) => queue.break_claim(token).await?.as_ref().map(Who::of_claim),
        })
    }
}

fn shown(name: &str, who: &Who) -> String {
    let how = if who.holds { "held" } else { "waited for" };
    format!("{name:?}, {how} by {} with token {}", who.shown, who.token)
}

fn is_confirmed(what: &str) -> Outcome<bool> {
    if !io::stdin().is_terminal() {
        return Err(Failure::usage("nobody is there to be asked: give --yes"));
    }
    let _ = write!(io::stderr(), "Break {what}? [y/N] ");
    let mut answer = String::new();
    io::stdin().read_line(&mut answer).map_err(|error| Failure::system("cannot read", &error))?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn who(holds: bool) -> Who {
        Who::new("stuck", "", FencingToken::new(7).expect("not zero"), holds)
    }

    /// One breaks just those that hang.
    #[test]
    fn whoever_breaks_is_told_how_long_a_holder_that_hangs_goes_on_and_when_the_next_one_starts() {
        let (ms, holder) = (Duration::from_millis, who(true));
        let said = told(&holder, ms(50), Some(longest(ms(1_500), Some(ms(1_000)))));
        assert!(said.contains("within 50ms") && said.contains("until 2s after"), "{said}");
        assert!(said.ends_with("holder's has ended, or else after 2s"), "{said}");
        assert_eq!(longest(ms(3_000), Some(ms(10_000))), ms(10_000));
        assert_eq!(longest(ms(3_000), None), ms(3_000));
        let said = told(&holder, ms(50), None);
        assert!(said.contains("until it ends") && said.contains("or else after 5s"), "{said}");
    }

    /// It runs nothing that could go on.
    #[test]
    fn whoever_breaks_is_told_that_one_only_waited() {
        let said = told(&who(false), Duration::from_millis(50), Some(Duration::from_secs(10)));
        assert!(said.contains("end of the queue") && !said.contains("may go on"), "{said}");
    }
}
