//! What a command runs under: how it is asked for, and how it is held.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use coordination::{
    Admission, Coordinator, Error, ErrorKind, FencingToken, Grant, Leadership, Limiter, Lock,
    LockGuard, LossReason, Patience, Permit, Semaphore, WorkClaim, WorkSlot,
};

use crate::args::Run;

type Result<T, E = Error> = std::result::Result<T, E>;

/// How long a command is waited for whose lock was broken: its wrapper is told within half a second, if it does not stand still.
const AFTERMATH: Duration = Duration::from_secs(5);

/// What is to be held.
pub(super) enum Wanted {
    Lock { lock: Lock, shared: bool },
    Semaphore(Semaphore),
    Singleton(Limiter),
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
    pub(super) holds: bool,
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
            return Ok(Some(Self::Semaphore(semaphore)));
        }
        let Some(name) = &run.singleton else { return Ok(None) };
        let patience = match wait {
            None => Patience::Forever,
            Some(Duration::ZERO) => Patience::Never,
            Some(limit) => Patience::Timeout(limit),
        };
        let standby = run.standby.unwrap_or_default();
        Ok(Some(Self::Singleton(coordinator.singleton(name)?.standby(standby).patience(patience))))
    }

    /// As it is called in messages.
    pub(super) fn shown(&self) -> String {
        match self {
            Self::Lock { lock, .. } => format!("lock {:?}", lock.name()),
            Self::Semaphore(semaphore) => format!("semaphore {:?}", semaphore.name()),
            Self::Singleton(limiter) => format!("singleton {:?}", limiter.name()),
        }
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
            (Self::Semaphore(semaphore), Some(Duration::ZERO)) => {
                semaphore.try_acquire().await?.map(Hold::Permit)
            }
            (Self::Semaphore(semaphore), _) => Some(Hold::Permit(semaphore.acquire(wait).await?)),
            (Self::Singleton(limiter), _) => match limiter.enter().await? {
                Admission::Working(slot) => Some(Hold::Slot(slot)),
                Admission::Refused(_) => None,
            },
        };
        Ok(hold)
    }

    /// Waits until the commands have ended whose locks were broken, but not for one that cannot be ended.
    pub(super) async fn follow(&self, hold: &mut Hold) -> Result<()> {
        let (Self::Lock { lock, shared }, Hold::Lock { guard, aftermath }) = (self, hold) else {
            return Ok(());
        };
        let before = lock.aftermath()?;
        let ended = async || match shared {
            false => before.acquire(Some(AFTERMATH)).await,
            true => before.acquire_shared(Some(AFTERMATH)).await,
        };
        let following = async {
            match ended().await {
                Err(error) if error.kind() == ErrorKind::Timeout => {
                    // It stands still; nobody is to wait for it again.
                    before.break_lock().await?;
                    ended().await
                }
                outcome => outcome,
            }
        };
        match guard.protect(following).await? {
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
                return Ok(contenders
                    .map(|who| Other { member: who.member, holds: who.holding })
                    .collect());
            }
            Self::Semaphore(semaphore) => semaphore.holders().await?,
            Self::Singleton(limiter) => limiter.inspect().await?,
        };
        let other = |who: coordination::Occupant| Other {
            holds: !who.slots.is_empty(),
            member: who.member,
        };
        Ok(occupants.into_iter().map(other).collect())
    }
}

impl Hold {
    fn of_lock(guard: LockGuard) -> Self {
        Self::Lock { guard, aftermath: None }
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

/// What is left of the time that we may wait.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget(Option<Instant>);

impl Budget {
    pub(super) fn new(wait: Option<Duration>) -> Self {
        // Longer than can be counted is for ever.
        Self(wait.and_then(|wait| Instant::now().checked_add(wait)))
    }

    pub(super) fn left(self) -> Option<Duration> {
        self.0.map(|end| end.saturating_duration_since(Instant::now()))
    }
}
