//! What a command runs under: how it is asked for, and how it is held.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant, SystemTime};

use coordination::{
    Admission, Contender, Coordinator, Election, Error, ErrorKind, FencingToken, Grant, Leadership,
    Limiter, Lock, LockGuard, LossReason, Occupant, Patience, Permit, Semaphore, WorkClaim,
    WorkSlot,
};

use super::around::Held;
use crate::args::{Elect, Run, Wait};
use crate::exit::{self, Failure, Outcome};

type Result<T, E = Error> = std::result::Result<T, E>;

/// How long a command is waited for whose lock was broken: its wrapper is told within half a second, if it does not stand still.
const AFTERMATH: Duration = Duration::from_secs(5);
/// From one question to the next where the store did not answer the first.
const AGAIN: Duration = Duration::from_millis(100);

/// What is to be held.
pub(super) enum Wanted {
    Lock {
        lock: Lock,
        shared: bool,
    },
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
    Lock {
        guard: LockGuard,
        /// On one host: held until the command has ended, though the lock may be broken before.
        aftermath: Option<LockGuard>,
    },
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
        if let Some(name) = &run.lock {
            return Ok(Some(Self::Lock { lock: coordinator.lock(name)?, shared: run.shared }));
        }
        if let Some(permits) = &run.semaphore {
            let semaphore = coordinator.semaphore(&permits.name, permits.count)?;
            return Ok(Some(Self::Semaphore { semaphore, permits: permits.count }));
        }
        let Some(name) = &run.singleton else { return Ok(None) };
        let patience = match wait {
            None => Patience::Forever,
            Some(Duration::ZERO) => Patience::Never,
            Some(limit) => Patience::Timeout(limit),
        };
        let standby = run.standby.unwrap_or_default();
        let limiter = coordinator.singleton(name)?.standby(standby).patience(patience);
        let limiter = if run.replace { limiter.latest_wins() } else { limiter };
        Ok(Some(Self::Singleton { limiter, standby, replaces: run.replace }))
    }

    /// A leadership.
    pub(super) fn of_election(elect: &Elect, coordinator: &Coordinator) -> Result<Self> {
        let election = coordinator.election(&elect.name)?;
        let value = elect.value.as_deref().unwrap_or(coordinator.member_id()).to_owned();
        Ok(Self::Election { election, value })
    }

    /// As recipes are called among what is held around a run.
    fn recipe(&self) -> (&'static str, &str) {
        match self {
            Self::Lock { lock, .. } => ("lock", lock.name()),
            Self::Semaphore { semaphore, .. } => ("semaphore", semaphore.name()),
            Self::Singleton { limiter, .. } => ("singleton", limiter.name()),
            Self::Election { election, .. } => ("election", election.name()),
        }
    }

    /// As it is called in messages.
    pub(super) fn shown(&self) -> String {
        let (recipe, name) = self.recipe();
        format!("{recipe} {name:?}")
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
            Self::Lock { .. } | Self::Election { .. } => None,
        }
    }

    /// Takes over our number, if nobody holds anything or waits; answers whether it did.
    pub(super) async fn adapt(&mut self) -> Result<bool> {
        if !self.others().await?.is_empty() {
            return Ok(false);
        }
        match self {
            Self::Semaphore { semaphore, permits } => semaphore.resize(*permits).await?,
            Self::Singleton { limiter, .. } => limiter.resize(1).await?,
            Self::Lock { .. } | Self::Election { .. } => return Ok(false),
        }
        Ok(true)
    }

    /// `None`: it was not free in time.
    pub(super) async fn acquire(&self, wait: Option<Duration>) -> Result<Option<Hold>> {
        let hold = match (self, wait) {
            (Self::Lock { lock, shared: false }, Some(Duration::ZERO)) => {
                lock.try_acquire().await?.map(Hold::of_lock)
            }
            (Self::Lock { lock, shared: true }, Some(Duration::ZERO)) => {
                lock.try_acquire_shared().await?.map(Hold::of_lock)
            }
            (Self::Lock { lock, shared: false }, _) => {
                Some(Hold::of_lock(lock.acquire(wait).await?))
            }
            (Self::Lock { lock, shared: true }, _) => {
                Some(Hold::of_lock(lock.acquire_shared(wait).await?))
            }
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

    /// Waits until the commands have ended whose locks were broken, but not for one that cannot be ended. A store that refuses or does
    /// not answer for a moment is asked again; without its word the command does not run.
    pub(super) async fn follow(&self, hold: &mut Hold) -> Outcome {
        self.follow_for(hold, AFTERMATH).await
    }

    /// The same, but for this time at most, which the store has as well for each answer.
    async fn follow_for(&self, hold: &mut Hold, limit: Duration) -> Outcome {
        let (Self::Lock { lock, shared }, Hold::Lock { guard, aftermath }) = (self, hold) else {
            return Ok(());
        };
        let before = lock.aftermath()?;
        let is_in_the_way = |who: &Contender| !(*shared && who.shared);
        let ended = async || match shared {
            false => before.acquire(Some(limit)).await,
            true => before.acquire_shared(Some(limit)).await,
        };
        let following = async {
            // Those whom we wait for. Whoever comes later does not stand still for all we know.
            let there = patiently(limit, async || before.holders().await).await??;
            match patiently(limit, &ended).await? {
                Err(error) if error.kind() == ErrorKind::Timeout => {
                    // They stand still; nobody is to wait for them again.
                    for who in there.into_iter().filter(is_in_the_way) {
                        patiently(limit, async || before.break_grant(who.token).await).await??;
                    }
                    patiently(limit, &ended).await
                }
                outcome => Ok(outcome),
            }
        };
        match guard.protect(following).await?? {
            Err(error) if error.kind() == ErrorKind::Timeout => {}
            outcome => *aftermath = Some(outcome?),
        }
        Ok(())
    }

    /// Who is there, in the order of coming.
    pub(super) async fn others(&self) -> Result<Vec<Other>> {
        let occupants = match self {
            Self::Lock { lock, .. } => {
                let contenders = lock.holders().await?.into_iter();
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

    /// Who of those has it for a run that we run in, if we could never get it beside that one.
    pub(super) fn held_around<'o>(
        &self,
        others: &'o [Other],
        around: &[Held],
    ) -> Option<&'o Other> {
        let (recipe, name) = self.recipe();
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
            Self::Lock { shared: true, .. } => others.iter().any(|other| !other.shares),
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
        let (token, since) = (who.token.value(), who.since);
        Self { member: who.member, token, since, holds, shares, has: u32::from(holds) }
    }

    fn of_candidate(who: coordination::Candidate) -> Self {
        let (holds, token, since) = (who.leading, who.term.value(), who.since);
        Self { member: who.member, token, since, holds, shares: false, has: u32::from(holds) }
    }

    fn of_occupant(who: Occupant) -> Self {
        let has = u32::try_from(who.slots.len()).unwrap_or(u32::MAX);
        let (holds, token, since) = (has > 0, who.token.value(), who.since);
        Self { member: who.member, token, since, holds, shares: false, has }
    }
}

impl Hold {
    fn of_lock(guard: LockGuard) -> Self {
        Self::Lock { guard, aftermath: None }
    }

    /// What the runs within are told.
    pub(super) fn held_by(&self, member: &str) -> Held {
        let recipe = match self {
            Self::Lock { .. } => "lock",
            Self::Permit(_) => "semaphore",
            Self::Slot(_) => "singleton",
            Self::Leadership(_) => "election",
            Self::Claim(_) => "queue",
        };
        let (recipe, name, member) = (recipe.to_owned(), self.name().to_owned(), member.to_owned());
        Held { recipe, name, member, token: self.token().value() }
    }

    pub(super) async fn release(self) -> Result<()> {
        match self {
            Self::Lock { guard, aftermath } => {
                // First, so that the next one need not wait for it.
                drop(aftermath);
                guard.release().await
            }
            Self::Permit(permit) => permit.release().await,
            Self::Slot(slot) => slot.release().await,
            Self::Leadership(leadership) => leadership.resign().await,
            Self::Claim(claim) => claim.release().await.map(drop),
        }
    }

    /// What all but a claim are.
    pub(super) fn grant(&self) -> Result<&Grant, &WorkClaim> {
        let grant: &Grant = match self {
            Self::Lock { guard, .. } => guard,
            Self::Permit(permit) => permit,
            Self::Slot(slot) => slot,
            Self::Leadership(leadership) => leadership,
            Self::Claim(claim) => return Err(claim),
        };
        Ok(grant)
    }

    pub(super) fn name(&self) -> &str {
        self.grant().map_or_else(WorkClaim::name, Grant::name)
    }

    pub(super) fn token(&self) -> FencingToken {
        self.grant().map_or_else(WorkClaim::token, Grant::token)
    }

    pub(super) fn is_held(&self) -> bool {
        self.grant().map_or_else(WorkClaim::is_held, Grant::is_held)
    }

    /// Whether anybody has to wait for us to let go: also one who follows a lock that was broken, on one host.
    pub(super) fn is_kept(&self) -> bool {
        let aftermath = match self {
            Self::Lock { aftermath, .. } => aftermath.as_ref(),
            _ => None,
        };
        self.is_held() || aftermath.is_some_and(|guard| guard.is_held())
    }

    /// How long it can be relied on if nothing more is heard from the store; `None`: for as long as we live.
    pub(super) fn remaining(&self) -> Option<Duration> {
        self.grant().map_or_else(|claim| Some(claim.remaining()), Grant::remaining)
    }

    pub(super) async fn lost(&self) -> LossReason {
        match self.grant() {
            Ok(grant) => grant.lost().await,
            Err(claim) => claim.lost().await,
        }
    }

    pub(super) fn session_file(&self) -> Result<Option<OwnedFd>> {
        self.grant().map_or_else(WorkClaim::session_file, Grant::session_file)
    }
}

/// What the store answers, which is asked again for so long if it refuses, or cannot answer.
async fn patiently<T>(limit: Duration, asked: impl AsyncFn() -> Result<T>) -> Outcome<Result<T>> {
    let until = Instant::now() + limit;
    let answer = async {
        loop {
            match asked().await {
                Err(error) if may_pass(&error) && Instant::now() < until => {
                    tokio::time::sleep(AGAIN).await;
                }
                answer => return answer,
            }
        }
    };
    // A call that was begun in time may take as long again.
    let silence = "the store does not say whether a command still runs whose lock was broken";
    let silent = |_| Failure::new(exit::UNAVAILABLE, silence);
    tokio::time::timeout(2 * limit + AGAIN, answer).await.map_err(silent)
}

fn may_pass(error: &Error) -> bool {
    use ErrorKind::{Closed, Collision, Corrupt, Lost, Timeout};
    !matches!(error.kind(), Closed | Collision | Corrupt | Lost | Timeout)
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

#[cfg(test)]
mod tests {
    use super::*;

    /// None of them may keep another one waiting, and the next one finds who is followed by whom.
    #[tokio::test]
    async fn of_several_who_stand_still_each_is_waited_for_together() {
        let coordinator = Coordinator::connect("memory://").await.expect("memory is there");
        let lock = coordinator.lock("x").expect("a name");
        let before = lock.aftermath().expect("a name");
        let mut still = Vec::new();
        for _ in 0..3 {
            still.push(before.acquire_shared(None).await.expect("they share"));
        }
        for shared in [false, true] {
            let wanted = Wanted::Lock { lock: lock.clone(), shared };
            let hold = wanted.acquire(None).await.expect("memory answers");
            let mut hold = hold.expect("it is free");
            wanted.follow_for(&mut hold, Duration::from_millis(50)).await.expect("it is held");
            let Hold::Lock { aftermath, .. } = hold else { panic!("it is a lock") };
            assert!(aftermath.is_some(), "whoever follows waits for nobody");
        }
    }

    /// A store in a directory, with a lock `x` that is held, and whose aftermath's file is out of reach.
    async fn out_of_reach(
        shared: bool,
    ) -> (tempfile::TempDir, [std::path::PathBuf; 2], Wanted, Hold) {
        let directory = tempfile::tempdir().expect("there is room");
        let url = format!("file://{}/x", directory.path().display());
        let coordinator = Coordinator::connect(&url).await.expect("it is there");
        let lock = coordinator.lock("x").expect("a name");
        let before = lock.aftermath().expect("a name").acquire(None).await.expect("it is free");
        before.release().await.expect("it is there");
        let queues = directory.path().join("x/coordination/queues");
        let files = std::fs::read_dir(queues).expect("it is there");
        let mut paths = files.map(|file| file.expect("it is there").path());
        let is_meant = |path: &std::path::PathBuf| path.to_string_lossy().contains("aftermath");
        let path = paths.find(is_meant).expect("it was written");
        let taken = directory.path().join("taken");
        let wanted = Wanted::Lock { lock, shared };
        let hold = wanted.acquire(None).await.expect("it is there").expect("it is free");
        std::fs::rename(&path, &taken).expect("there is room");
        std::fs::create_dir(&path).expect("there is room");
        (directory, [path, taken], wanted, hold)
    }

    /// The lock is ours, and the store cannot be read for a moment.
    #[tokio::test]
    async fn who_follows_asks_again_when_the_store_cannot_be_read_for_a_moment() {
        for shared in [false, true] {
            let (_directory, [path, taken], wanted, mut hold) = out_of_reach(shared).await;
            let mended = async {
                tokio::time::sleep(Duration::from_millis(300)).await;
                std::fs::remove_dir(&path).expect("it is empty");
                std::fs::rename(&taken, &path).expect("there is room");
            };
            let following = wanted.follow_for(&mut hold, Duration::from_secs(10));
            let (followed, ()) = tokio::join!(following, mended);
            followed.expect("it is there again");
            let Hold::Lock { aftermath, .. } = hold else { panic!("it is a lock") };
            assert!(aftermath.is_some(), "whoever comes next waits for nobody");
        }
    }

    /// Nobody knows then whether another command still runs.
    #[tokio::test]
    async fn who_follows_does_not_run_when_the_store_cannot_be_read() {
        let (_directory, _, wanted, mut hold) = out_of_reach(false).await;
        let begun = Instant::now();
        let limit = Duration::from_millis(200);
        let failure = wanted.follow_for(&mut hold, limit).await.expect_err("it is out of reach");
        assert_eq!(failure.code, exit::UNAVAILABLE);
        assert!(begun.elapsed() < 100 * limit, "after {:?}", begun.elapsed());
    }
}
