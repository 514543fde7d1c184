//! What a command runs under: how it is asked for, and how it is held.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant, SystemTime};

use coordination::{
    Admission, Coordinator, Election, Error, FencingToken, Grant, Leadership, Limiter, LossReason,
    Occupant, Patience, Permit, Semaphore, WorkClaim, WorkSlot,
};

use super::around::Held;
use super::locks::{HeldLocks, Locks};
use crate::args::{Elect, Run, Wait};
use crate::broken::{Granted, Part};
use crate::exit::Outcome;

type Result<T, E = Error> = std::result::Result<T, E>;

/// What is to be held.
pub(super) enum Wanted {
    Locks(Locks),
    Semaphore {
        semaphore: Semaphore,
        permits: u32,
    },
    Singleton {
        limiter: Limiter,
        standby: u32,
        replaces: bool,
    },
    /// With what others see of the leader.
    Election {
        election: Election,
        value: String,
    },
}

/// What is held.
pub(crate) enum Hold {
    Locks(HeldLocks),
    Permit(Permit),
    Slot(WorkSlot),
    Leadership(Leadership),
    /// An item of a queue of work.
    Claim(Box<WorkClaim>),
}

/// Somebody who has what we wait for, or waits for it before us.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Other {
    pub(super) member: String,
    pub(super) label: String,
    pub(super) token: u64,
    /// When it asked, by its own clock.
    pub(super) since: Option<SystemTime>,
    pub(super) holds: bool,
    /// It shares with others who share.
    pub(super) shares: bool,
    /// How many permits or slots it has.
    pub(super) has: u32,
}

impl Wanted {
    /// `None`: nothing but a rate.
    pub(super) fn of(
        run: &Run,
        coordinator: &Coordinator,
        wait: Option<Duration>,
    ) -> Result<Option<Self>> {
        let label = run.label.as_deref().unwrap_or_default();
        if !run.lock.is_empty() {
            let locks = Locks::new(&run.lock, run.shared, label, coordinator)?;
            return Ok(Some(Self::Locks(locks)));
        }
        if let Some(permits) = &run.semaphore {
            let semaphore = coordinator.semaphore(&permits.name, permits.count)?.label(label)?;
            return Ok(Some(Self::Semaphore { semaphore, permits: permits.count }));
        }
        let Some(name) = &run.singleton else { return Ok(None) };
        let patience = match wait {
            None => Patience::Forever,
            Some(Duration::ZERO) => Patience::Never,
            Some(limit) => Patience::Timeout(limit),
        };
        let standby = run.standby.unwrap_or_default();
        let limiter = coordinator.singleton(name)?.label(label)?;
        let limiter = limiter.standby(standby).patience(patience);
        let limiter = if run.replace { limiter.latest_wins() } else { limiter };
        Ok(Some(Self::Singleton { limiter, standby, replaces: run.replace }))
    }

    /// A leadership.
    pub(super) fn of_election(elect: &Elect, coordinator: &Coordinator) -> Result<Self> {
        let label = elect.label.as_deref().unwrap_or_default();
        let election = coordinator.election(&elect.name)?.label(label)?;
        let value = elect.value.as_deref().unwrap_or(coordinator.member_id()).to_owned();
        Ok(Self::Election { election, value })
    }

    /// As recipes are called among what is held around a run; of several locks the first.
    fn recipe(&self) -> (&'static str, &str) {
        match self {
            Self::Locks(locks) => ("lock", locks.first().name()),
            Self::Semaphore { semaphore, .. } => ("semaphore", semaphore.name()),
            Self::Singleton { limiter, .. } => ("singleton", limiter.name()),
            Self::Election { election, .. } => ("election", election.name()),
        }
    }

    /// As it is called in messages.
    pub(super) fn shown(&self) -> String {
        match (self, self.recipe()) {
            (Self::Locks(locks), _) => locks.shown(),
            (_, (recipe, name)) => format!("{recipe} {name:?}"),
        }
    }

    /// That it is not free, in messages.
    pub(super) fn busy(&self) -> String {
        let are = matches!(self, Self::Locks(locks) if locks.each().len() > 1);
        format!("{} {} busy", self.shown(), if are { "are" } else { "is" })
    }

    /// The words by which its number is changed for all; `None`: it has none.
    pub(super) fn resizing(&self) -> Option<String> {
        match self {
            Self::Semaphore { semaphore, permits } => {
                Some(format!("--semaphore {}:{permits}", semaphore.name()))
            }
            Self::Singleton { limiter, standby, replaces: false } => {
                Some(format!("--singleton {} --standby {standby}", limiter.name()))
            }
            Self::Singleton { limiter, .. } => {
                Some(format!("--singleton {} --replace", limiter.name()))
            }
            Self::Locks(_) | Self::Election { .. } => None,
        }
    }

    /// Takes over our number, if nobody holds anything or waits; answers whether it did.
    pub(super) async fn adapt(&mut self) -> Result<bool> {
        if !self.others(None).await?.is_empty() {
            return Ok(false);
        }
        match self {
            Self::Semaphore { semaphore, permits } => semaphore.resize(*permits).await?,
            Self::Singleton { limiter, .. } => limiter.resize(1).await?,
            Self::Locks(_) | Self::Election { .. } => return Ok(false),
        }
        Ok(true)
    }

    /// `None`: it was not free in time.
    pub(super) async fn acquire(&self, wait: Option<Duration>) -> Result<Option<Hold>> {
        let hold = match (self, wait) {
            (Self::Locks(locks), _) => locks.acquire(wait).await?.map(Hold::Locks),
            (Self::Semaphore { semaphore, .. }, Some(Duration::ZERO)) => {
                semaphore.try_acquire().await?.map(Hold::Permit)
            }
            (Self::Semaphore { semaphore, .. }, _) => {
                Some(Hold::Permit(semaphore.acquire(wait).await?))
            }
            (Self::Singleton { limiter, .. }, _) => match limiter.enter().await? {
                Admission::Working(slot) => Some(Hold::Slot(slot)),
                Admission::Refused(_) => None,
            },
            (Self::Election { election, value }, Some(Duration::ZERO)) => {
                election.try_campaign(value).await?.map(Hold::Leadership)
            }
            (Self::Election { election, value }, _) => {
                Some(Hold::Leadership(election.campaign(value, wait).await?))
            }
        };
        Ok(hold)
    }

    /// Waits until the commands have ended whose locks were broken: see [`Locks::follow`].
    pub(super) async fn follow(&self, hold: &mut Hold) -> Outcome {
        match (self, hold) {
            (Self::Locks(locks), Hold::Locks(held)) => locks.follow(held).await,
            _ => Ok(()),
        }
    }

    /// Who is there, in the order of coming. Of several locks: at the first one that others than us hold.
    pub(super) async fn others(&self, us: Option<&str>) -> Result<Vec<Other>> {
        let occupants = match self {
            Self::Locks(locks) => {
                let contenders = locks.contenders(us).await?.into_iter();
                return Ok(contenders.map(Other::of_contender).collect());
            }
            Self::Election { election, .. } => {
                let candidates = election.candidates().await?.into_iter();
                return Ok(candidates.map(Other::of_candidate).collect());
            }
            Self::Semaphore { semaphore, .. } => semaphore.holders().await?,
            Self::Singleton { limiter, .. } => limiter.inspect().await?,
        };
        Ok(occupants.into_iter().map(Other::of_occupant).collect())
    }

    /// What of it somebody has for a run that we run in, and who, if we could never get it beside that one.
    pub(super) async fn held_around(&self, around: &[Held]) -> Result<Option<(String, Other)>> {
        let Self::Locks(locks) = self else {
            let (recipe, name) = self.recipe();
            let others = self.others(None).await?;
            let holder = self.holder_around(recipe, name, &others, around).cloned();
            return Ok(holder.map(|holder| (self.shown(), holder)));
        };
        for lock in locks.each() {
            let others: Vec<_> =
                lock.holders().await?.into_iter().map(Other::of_contender).collect();
            if let Some(holder) = self.holder_around("lock", lock.name(), &others, around) {
                return Ok(Some((format!("lock {:?}", lock.name()), holder.clone())));
            }
        }
        Ok(None)
    }

    fn holder_around<'o>(
        &self,
        recipe: &str,
        name: &str,
        others: &'o [Other],
        around: &[Held],
    ) -> Option<&'o Other> {
        let is_around = |other: &&Other| {
            let is_it = |held: &Held| {
                (held.recipe.as_str(), held.name.as_str()) == (recipe, name)
                    && (held.member.as_str(), held.token) == (other.member.as_str(), other.token)
            };
            other.holds && around.iter().any(is_it)
        };
        let ours: Vec<_> = others.iter().filter(is_around).collect();
        let is_stuck = match self {
            // Behind one who waits to have it alone, who waits for the one around us.
            Self::Locks(locks) if locks.shared() => others.iter().any(|other| !other.shares),
            Self::Semaphore { permits, .. } => {
                ours.iter().map(|other| other.has).sum::<u32>() >= *permits
            }
            _ => true,
        };
        ours.first().copied().filter(|_| is_stuck)
    }
}

impl Other {
    fn of_contender(who: coordination::Contender) -> Self {
        let (holds, shares) = (who.holding, who.shared);
        let (member, label) = (who.member, who.label);
        let (token, since) = (who.token.value(), who.since);
        Self { member, label, token, since, holds, shares, has: u32::from(holds) }
    }

    fn of_candidate(who: coordination::Candidate) -> Self {
        let (member, label) = (who.member, who.label);
        let (holds, token, since) = (who.leading, who.term.value(), who.since);
        Self { member, label, token, since, holds, shares: false, has: u32::from(holds) }
    }

    fn of_occupant(who: Occupant) -> Self {
        let has = u32::try_from(who.slots.len()).unwrap_or(u32::MAX);
        let (member, label) = (who.member, who.label);
        let (holds, token, since) = (has > 0, who.token.value(), who.since);
        Self { member, label, token, since, holds, shares: false, has }
    }
}

impl Hold {
    /// What the runs within are told.
    pub(super) fn held_by(&self, member: &str) -> Vec<Held> {
        let recipe = match self {
            Self::Locks(_) => "lock",
            Self::Permit(_) => "semaphore",
            Self::Slot(_) => "singleton",
            Self::Leadership(_) => "election",
            Self::Claim(_) => "queue",
        };
        let held = |(name, token): (&str, FencingToken)| {
            let (recipe, name) = (recipe.to_owned(), name.to_owned());
            Held { recipe, name, member: member.to_owned(), token: token.value() }
        };
        self.each().into_iter().map(held).collect()
    }

    /// The same as `break` marks it; nothing of a claim.
    pub(super) fn granted(&self) -> Vec<Granted> {
        let recipe = match self {
            Self::Locks(_) => "lock",
            Self::Permit(_) => "semaphore",
            Self::Slot(_) => "limiter",
            Self::Leadership(_) => "election",
            Self::Claim(_) => return Vec::new(),
        };
        let each = self.each().into_iter();
        each.map(|(name, token)| Granted::new(recipe, name, token)).collect()
    }

    /// How much it is of each of these.
    pub(super) fn part(&self) -> Part {
        match self {
            Self::Locks(locks) if locks.is_shared() => Part::Shared,
            Self::Permit(permit) => Part::Slots(permit.slots().to_vec()),
            Self::Slot(slot) => Part::Slots(vec![slot.slot()]),
            Self::Locks(_) | Self::Leadership(_) | Self::Claim(_) => Part::All,
        }
    }

    pub(super) async fn release(self) -> Result<()> {
        match self {
            Self::Locks(locks) => locks.release().await,
            Self::Permit(permit) => permit.release().await,
            Self::Slot(slot) => slot.release().await,
            Self::Leadership(leadership) => leadership.resign().await,
            Self::Claim(claim) => claim.release().await.map(drop),
        }
    }

    /// What it consists of; empty for a claim.
    fn grants(&self) -> Vec<&Grant> {
        let grant: &Grant = match self {
            Self::Locks(locks) => return locks.grants(),
            Self::Permit(permit) => permit,
            Self::Slot(slot) => slot,
            Self::Leadership(leadership) => leadership,
            Self::Claim(_) => return Vec::new(),
        };
        vec![grant]
    }

    /// What it consists of, in the order in which it was asked for: names, and a token for each.
    pub(super) fn each(&self) -> Vec<(&str, FencingToken)> {
        match self {
            Self::Claim(claim) => vec![(claim.name(), claim.token())],
            hold => {
                let grants = hold.grants().into_iter();
                grants.map(|grant| (grant.name(), grant.token())).collect()
            }
        }
    }

    /// What was asked for first; `None`: a claim.
    pub(super) fn first(&self) -> Option<&Grant> {
        self.grants().into_iter().next()
    }

    /// As it is called in messages: what of it is lost, or else all of it.
    pub(super) fn shown(&self) -> String {
        let mut lost = self.grants();
        lost.retain(|grant| !grant.is_held());
        let names: Vec<_> = match lost.is_empty() {
            true => self.each().into_iter().map(|(name, _)| name).collect(),
            false => lost.into_iter().map(Grant::name).collect(),
        };
        names.iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ")
    }

    pub(super) fn is_held(&self) -> bool {
        match self {
            Self::Claim(claim) => claim.is_held(),
            hold => hold.grants().iter().all(|grant| grant.is_held()),
        }
    }

    /// Whether anybody has to wait for us to let go: also one who follows a lock that was broken, on one host.
    pub(super) fn is_kept(&self) -> bool {
        match self {
            Self::Locks(locks) => locks.is_kept(),
            hold => hold.is_held(),
        }
    }

    /// How long it can be relied on if nothing more is heard from the store; `None`: for as long as we live.
    pub(super) fn remaining(&self) -> Option<Duration> {
        match self {
            Self::Claim(claim) => Some(claim.remaining()),
            hold => hold.grants().into_iter().filter_map(Grant::remaining).min(),
        }
    }

    /// Waits until a part of it is lost.
    pub(super) async fn lost(&self) -> LossReason {
        match self {
            Self::Locks(locks) => locks.lost().await,
            Self::Claim(claim) => claim.lost().await,
            Self::Permit(permit) => permit.lost().await,
            Self::Slot(slot) => slot.lost().await,
            Self::Leadership(leadership) => leadership.lost().await,
        }
    }

    /// No command runs under it any more, for certain.
    pub(super) async fn command_has_ended(&mut self) {
        if let Self::Locks(locks) = self {
            locks.command_has_ended().await;
        }
    }

    /// Waits for this, unless a part of it is lost before. A claim's loss is not waited for.
    pub(super) async fn protect<F: Future>(&self, work: F) -> Result<F::Output> {
        match self {
            Self::Locks(locks) => locks.protect(work).await,
            Self::Permit(permit) => permit.protect(work).await,
            Self::Slot(slot) => slot.protect(work).await,
            Self::Leadership(leadership) => leadership.protect(work).await,
            Self::Claim(_) => Ok(work.await),
        }
    }

    pub(super) fn session_file(&self) -> Result<Option<OwnedFd>> {
        match (self, self.first()) {
            (Self::Claim(claim), _) => claim.session_file(),
            (_, Some(grant)) => grant.session_file(),
            (_, None) => Ok(None),
        }
    }
}

/// What is left of the time that we may wait.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget(Option<Instant>);

impl Budget {
    /// `None`: for ever, as where nothing else is said.
    pub(super) fn new(wait: Option<Wait>) -> Self {
        let limit = wait.unwrap_or_default().0;
        // Longer than can be counted is for ever.
        Self(limit.and_then(|limit| Instant::now().checked_add(limit)))
    }

    pub(super) fn left(self) -> Option<Duration> {
        self.0.map(|end| end.saturating_duration_since(Instant::now()))
    }
}
