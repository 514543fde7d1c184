//! The library's guards as a hold has them: of any recipe, one like the other.

use std::future::{Future, poll_fn};
use std::iter::once;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use coordination::{
    Grant, Leadership, LockGuard, LossReason, LossWatch, Membership, MultiGuard, Permit, Result,
    WorkSlot,
};
use serde_json::Value;

use crate::kind::Kind;
use crate::problem::{Code, Problem};

/// What the library granted.
#[derive(Debug)]
pub(crate) enum Guard {
    /// A lock, or a share of one.
    Lock(LockGuard),
    /// Several locks, or shares of them; at least one.
    Locks(MultiGuard),
    /// Permits of a semaphore.
    Permit(Permit),
    /// A slot of a limiter.
    Slot(WorkSlot),
    /// The leadership of an election.
    Leadership(Leadership),
    /// The membership of a group.
    Membership(Membership),
}

macro_rules! from {
    ($($guard:ident $variant:ident)*) => {$(
        impl From<$guard> for Guard {
            fn from(guard: $guard) -> Self {
                Self::$variant(guard)
            }
        }
    )*};
}

from! {
    LockGuard Lock
    MultiGuard Locks
    Permit Permit
    WorkSlot Slot
    Leadership Leadership
    Membership Membership
}

impl Guard {
    /// The recipe that it is of.
    pub(crate) fn kind(&self) -> Kind {
        match self {
            Self::Lock(_) | Self::Locks(_) => Kind::Lock,
            Self::Permit(_) => Kind::Semaphore,
            Self::Slot(_) => Kind::Limiter,
            Self::Leadership(_) => Kind::Election,
            Self::Membership(_) => Kind::Group,
        }
    }

    /// The first grant, and those that were acquired with it.
    fn parts(&self) -> (&Grant, &[LockGuard]) {
        match self {
            Self::Lock(guard) => (guard, &[]),
            Self::Locks(guard) => {
                // Invariant: the library makes no set without a lock.
                let (first, others) = guard.guards().split_first().expect("there is one");
                (first, others)
            }
            Self::Permit(guard) => (guard, &[]),
            Self::Slot(guard) => (guard, &[]),
            Self::Leadership(guard) => (guard, &[]),
            Self::Membership(guard) => (guard, &[]),
        }
    }

    fn grants(&self) -> impl Iterator<Item = &Grant> {
        let (first, others) = self.parts();
        once(first).chain(others.iter().map(|guard| &**guard))
    }

    /// The fence of the first grant.
    pub(crate) fn fence(&self) -> u64 {
        self.parts().0.token().value()
    }

    /// The fence of each grant.
    pub(crate) fn fences(&self) -> impl Iterator<Item = u64> {
        self.grants().map(|grant| grant.token().value())
    }

    /// Whether all of it is held at this moment.
    pub(crate) fn is_held(&self) -> bool {
        self.grants().all(Grant::is_held)
    }

    /// Whether others may hold the same lock at the same time.
    pub(crate) fn is_shared(&self) -> bool {
        match self {
            Self::Lock(guard) => guard.is_shared(),
            Self::Locks(guard) => guard.guards().iter().all(LockGuard::is_shared),
            _ => false,
        }
    }

    /// The numbers of its permits or of its slot: nobody else has them at the same time.
    pub(crate) fn slots(&self) -> Vec<u32> {
        match self {
            Self::Permit(guard) => guard.slots().to_vec(),
            Self::Slot(guard) => vec![guard.slot()],
            _ => Vec::new(),
        }
    }

    /// The id of the member, if it is a membership.
    pub(crate) fn member(&self) -> Option<&str> {
        match self {
            Self::Membership(guard) => Some(guard.member_id()),
            _ => None,
        }
    }

    /// How long it can be relied on if nothing more is heard from the store.
    pub(crate) fn remaining(&self) -> Option<Duration> {
        self.grants().filter_map(Grant::remaining).min()
    }

    /// Why it is lost, if it is: of several grants, why the first of the lost ones is.
    pub(crate) fn loss(&self) -> Option<LossReason> {
        if self.is_held() {
            return None;
        }
        let reason = self.grants().find_map(|grant| {
            let watch = grant.loss_watch();
            match pin!(watch.lost()).poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(reason) => reason,
                Poll::Pending => None,
            }
        });
        Some(reason.unwrap_or(LossReason::DeadlinePassed))
    }

    /// Waits until one of its grants is over, and returns why that was lost; `None`: it was released. The future does not keep
    /// the guard.
    pub(crate) fn over(&self) -> impl Future<Output = Option<LossReason>> + Send + use<> {
        let watches: Vec<LossWatch> = self.grants().map(Grant::loss_watch).collect();
        async move {
            let mut ends: Vec<_> = watches.iter().map(|watch| Box::pin(watch.lost())).collect();
            poll_fn(|context| {
                let mut ready = ends.iter_mut().map(|end| end.as_mut().poll(context));
                ready.find(Poll::is_ready).unwrap_or(Poll::Pending)
            })
            .await
        }
    }

    /// Runs `future` until it is done, or until one of the grants is lost.
    ///
    /// # Errors
    ///
    /// One was lost.
    ///
    /// # Cancel safety
    ///
    /// Dropping it drops `future`; what is held is still held.
    pub(crate) async fn protect<F: Future>(&self, future: F) -> Result<F::Output> {
        match self {
            Self::Locks(guard) => guard.protect(future).await,
            _ => self.parts().0.protect(future).await,
        }
    }

    /// Replaces what others see of it.
    ///
    /// # Errors
    ///
    /// Those of the guard's own method; [`Code::Invalid`], if others see nothing of it.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, it may or may not be replaced.
    pub(crate) async fn tell(&self, value: &Value) -> Result<(), Problem> {
        match self {
            Self::Leadership(guard) => Ok(guard.proclaim(value).await?),
            Self::Membership(guard) => Ok(guard.update(value).await?),
            _ => Err(Problem::new(Code::Invalid, "it has no value")),
        }
    }

    /// Makes it a share of its lock.
    ///
    /// # Errors
    ///
    /// Those of the guard's own method; [`Code::Invalid`], if it is not of one lock.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, it may or may not become one.
    pub(crate) async fn share(&self) -> Result<(), Problem> {
        match self {
            Self::Lock(guard) => Ok(guard.share().await?),
            _ => Err(Problem::new(Code::Invalid, "it is not of one lock")),
        }
    }

    /// Releases it and waits for the store to confirm.
    ///
    /// # Errors
    ///
    /// Those of the guard's own method.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the release goes on in the background.
    pub(crate) async fn release(self) -> Result<()> {
        match self {
            Self::Lock(guard) => guard.release().await,
            Self::Locks(guard) => guard.release().await,
            Self::Permit(guard) => guard.release().await,
            Self::Slot(guard) => guard.release().await,
            Self::Leadership(guard) => guard.release().await,
            Self::Membership(guard) => guard.leave().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use coordination::{Admission, Coordinator, Recipe};

    use super::*;

    /// One of each recipe, named by it.
    async fn guards(coordinator: &Coordinator) -> Result<Vec<Guard>> {
        let slot = match coordinator.limiter("limiter")?.enter().await? {
            Admission::Working(slot) => slot,
            Admission::Refused(why) => panic!("nobody else is there: {why:?}"),
        };
        let group = coordinator.group("group")?;
        Ok(vec![
            coordinator.lock("lock")?.acquire(None).await?.into(),
            coordinator.locks(["a", "b"])?.acquire(None).await?.into(),
            coordinator.semaphore("semaphore", 2)?.acquire_many(2, None).await?.into(),
            slot.into(),
            coordinator.election("election")?.campaign(&(), None).await?.into(),
            group.join_or_create(&()).await?.into(),
        ])
    }

    const RECIPES: [Recipe; 5] =
        [Recipe::Lock, Recipe::Semaphore, Recipe::Limiter, Recipe::Election, Recipe::Group];

    #[tokio::test]
    async fn what_is_granted_is_released() -> Result<()> {
        let coordinator = Coordinator::connect("memory://guard-1").await?;
        for guard in guards(&coordinator).await? {
            assert!(guard.is_held() && guard.loss().is_none() && guard.fence() > 0);
            assert!(RECIPES.iter().any(|recipe| recipe.to_string() == guard.kind().text()));
            assert_eq!(guard.protect(async { 1 }).await?, 1);
            let over = guard.over();
            guard.release().await?;
            assert_eq!(over.await, None, "released, and not lost");
        }
        for recipe in RECIPES {
            assert!(coordinator.in_use(recipe).await?.is_empty(), "{recipe}");
        }
        coordinator.stop().await
    }

    #[tokio::test]
    async fn what_is_lost_says_why() -> Result<()> {
        let coordinator = Coordinator::connect("memory://guard-2").await?;
        let guards = guards(&coordinator).await?;
        coordinator.stop().await?;
        for guard in guards {
            assert_eq!(guard.over().await, Some(LossReason::Closed));
            assert_eq!((guard.is_held(), guard.loss()), (false, Some(LossReason::Closed)));
            assert!(guard.protect(async { 1 }).await.is_err());
        }
        Ok(())
    }

    /// Of several locks the loss of one is the loss of all, whichever it is.
    #[tokio::test]
    async fn several_locks_are_held_while_each_is() -> Result<()> {
        let coordinator = Coordinator::connect("memory://guard-3").await?;
        for broken in [0, 1] {
            let both = coordinator.locks(["a", "b"])?.acquire_shared(None).await?;
            let (name, token) = (["a", "b"][broken], both.guards()[broken].token());
            let guard = Guard::from(both);
            assert!(guard.is_shared() && guard.is_held());
            coordinator.lock(name)?.break_grant(token).await?;
            assert_eq!(guard.over().await, Some(LossReason::EntryDeleted), "{name}");
            assert_eq!(guard.loss(), Some(LossReason::EntryDeleted), "{name}");
            assert!(guard.release().await.is_err());
        }
        coordinator.stop().await
    }
}
