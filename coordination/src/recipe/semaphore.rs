//! The semaphore: a number of permits, each with a slot of its own, in order of arrival.

#[cfg(feature = "macros")]
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::engine::data::{MAX_VALUE_BYTES, from_data, to_data};
use super::engine::grant::{Grant, guard};
use super::engine::label::labelled;
use super::engine::own_entry::Contents;
use super::engine::policy::{Decision, Policy};
use super::engine::queue::Queue;
use super::engine::slots::{self, Claim, MAX_SLOTS, MAX_TAKEN, Occupant};
use super::engine::turn::Request;
use super::engine::waiting::Waiting;
use crate::backend::{Entry, Listing, Mode};
use crate::coordinator::Coordinator;
use crate::error::Result;
use crate::token::FencingToken;

/// A number of permits that all processes share. Made by [`Coordinator::semaphore`], without I/O; cheap to
/// clone.
///
/// Never more permits are held than there are (P1 of `docs/guarantees.md`). Their number is stored on first
/// use. Asking for a different number is an error, so that two versions of a program cannot disagree
/// unnoticed.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
/// let coordinator = coordination::Coordinator::connect("memory://").await?;
/// let uploads = coordinator.semaphore("uploads", 3)?;
/// let (one, two) = (uploads.acquire(None).await?, uploads.acquire_many(2, None).await?);
/// assert_eq!((one.slots(), two.slots()), (&[0][..], &[1, 2][..]));
/// assert!(uploads.try_acquire().await?.is_none());
/// two.release().await?;
/// assert!(uploads.try_acquire().await?.is_some());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Semaphore {
    queue: Queue,
    limit: Limit,
}

/// The number of permits, as the queue's value has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Limit {
    permits: u32,
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} permits", self.permits)
    }
}

/// Who has permits or waits for some, and how many there are, as this listing of the semaphore has it.
pub(super) fn listed(queue: &Queue, listing: &Listing) -> Result<(Vec<Occupant>, Option<u32>)> {
    let limit = slots::limits_in::<Limit>(queue, listing)?;
    Ok((slots::occupants_in(queue, listing, 0)?, limit.map(|limit| limit.permits)))
}

impl Coordinator {
    /// The semaphore of this name with this number of permits, 1 to 10,000. No I/O.
    ///
    /// # Errors
    ///
    /// * [`ErrorKind::Name`](crate::ErrorKind::Name): empty or too long.
    /// * [`ErrorKind::Input`](crate::ErrorKind::Input): `permits` is not 1 to 10,000.
    pub fn semaphore(&self, name: impl AsRef<str>, permits: u32) -> Result<Semaphore> {
        let queue = self.queue_of("semaphore", name.as_ref())?;
        let permits = queue.named(slots::check("the number of permits", permits, MAX_SLOTS))?;
        Ok(Semaphore { queue, limit: Limit { permits } })
    }
}

impl Semaphore {
    /// Notes the template that the semaphore's name was made of, for the log.
    #[cfg(feature = "macros")]
    pub(crate) fn of_template(self, template: Cow<'static, str>) -> Self {
        Self { queue: self.queue.of_template(template), ..self }
    }

    /// The name, with the coordinator's prefix.
    pub fn name(&self) -> &str {
        self.queue.name()
    }

    /// The number of permits that this handle expects the semaphore to have.
    pub fn permits(&self) -> u32 {
        self.limit.permits
    }

    /// Waits for one permit.
    ///
    /// `timeout` is as for [`Lock::acquire`](crate::Lock::acquire): it bounds the whole call, `None` waits
    /// for ever, zero fails fast.
    ///
    /// # Errors
    ///
    /// Those of [`Lock::acquire`](crate::Lock::acquire), and [`ErrorKind::Mismatch`](crate::ErrorKind::Mismatch): the
    /// semaphore was first used with another number of permits.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future at any point leaves nothing behind: if a permit is granted after that, it is
    /// released at once.
    ///
    /// # Fairness
    ///
    /// First come, first served. A contender for many permits is not overtaken by contenders for few.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use coordination::ErrorKind;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let uploads = coordinator.semaphore("uploads", 1)?;
    /// let permit = uploads.acquire(Some(Duration::from_secs(5))).await?;
    /// let late = uploads.acquire(Some(Duration::from_millis(10))).await.unwrap_err();
    /// assert_eq!(late.kind(), ErrorKind::Timeout);
    /// permit.release().await?;
    /// # Ok(()) }
    /// ```
    pub async fn acquire(&self, timeout: Option<Duration>) -> Result<Permit> {
        self.acquire_many(1, timeout).await
    }

    /// Waits for `count` permits at once: all or none, under one guard. At most 500.
    ///
    /// # Errors
    ///
    /// Those of [`acquire`](Self::acquire), and [`ErrorKind::Input`](crate::ErrorKind::Input): more permits than
    /// there are, or none.
    ///
    /// # Cancel safety
    ///
    /// As for [`acquire`](Self::acquire).
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let memory = coordinator.semaphore("memory-gib", 8)?;
    /// let large = memory.acquire_many(6, None).await?;
    /// let small = memory.try_acquire_many(2).await?.expect("two are left");
    /// assert_eq!((large.slots().len(), small.slots().len()), (6, 2));
    /// assert!(memory.try_acquire().await?.is_none());
    /// # Ok(()) }
    /// ```
    pub async fn acquire_many(&self, count: u32, timeout: Option<Duration>) -> Result<Permit> {
        let request = self.request(count)?;
        self.permit(self.queue.acquire_within(&request, timeout).await?)
    }

    /// Acquires one permit if one is free and nobody waits; returns `None` otherwise.
    ///
    /// # Errors
    ///
    /// Those of [`acquire`](Self::acquire) but `Timeout`.
    ///
    /// # Cancel safety
    ///
    /// As for [`acquire`](Self::acquire).
    pub async fn try_acquire(&self) -> Result<Option<Permit>> {
        self.try_acquire_many(1).await
    }

    /// Acquires `count` permits if as many are free and nobody waits; returns `None` otherwise.
    ///
    /// # Errors
    ///
    /// Those of [`acquire_many`](Self::acquire_many) but `Timeout`.
    ///
    /// # Cancel safety
    ///
    /// As for [`acquire`](Self::acquire).
    pub async fn try_acquire_many(&self, count: u32) -> Result<Option<Permit>> {
        let grant = self.queue.acquire(&self.request(count)?, Waiting::Never).await?;
        grant.map(|grant| self.permit(grant)).transpose()
    }

    /// Changes the number of permits for all: for this handle, for contenders that wait, and for callers that ask for
    /// the new number from now on. A caller that asks for another number gets
    /// [`ErrorKind::Mismatch`](crate::ErrorKind::Mismatch).
    ///
    /// When the number grows, waiters are served at once. When it shrinks, nobody loses a permit: new permits are
    /// granted only when fewer are held than the new number.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Input`](crate::ErrorKind::Input): the number is out of range. And those of a store that
    /// refuses or does not answer.
    ///
    /// # Cancel safety
    ///
    /// A dropped call may or may not take effect.
    ///
    /// # Examples
    ///
    /// ```
    /// use coordination::ErrorKind;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let mut uploads = coordinator.semaphore("uploads", 1)?;
    /// let one = uploads.acquire(None).await?;
    /// uploads.resize(2).await?;
    /// let two = uploads.try_acquire().await?.expect("there are two now");
    /// assert_eq!((one.slot(), two.slot()), (0, 1));
    ///
    /// let outdated = coordinator.semaphore("uploads", 1)?;
    /// assert_eq!(outdated.try_acquire().await.unwrap_err().kind(), ErrorKind::Mismatch);
    /// # Ok(()) }
    /// ```
    pub async fn resize(&mut self, permits: u32) -> Result<()> {
        let named = slots::check("the number of permits", permits, MAX_SLOTS);
        let limit = Limit { permits: self.queue.named(named)? };
        slots::set_limits(&self.queue, limit).await?;
        self.limit = limit;
        Ok(())
    }

    /// How many permits there are for all, as the store has it, whatever this handle was made with; `None` if nobody has
    /// acquired one yet.
    ///
    /// # Errors
    ///
    /// The [kinds of error](crate::ErrorKind) of a store that refuses or does not answer.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect: it only reads.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let uploads = coordinator.semaphore("uploads", 3)?;
    /// assert_eq!(uploads.stored_permits().await?, None);
    /// let _permit = uploads.acquire(None).await?;
    /// // Whoever looks need not know the number.
    /// let looks = coordinator.semaphore("uploads", 1)?;
    /// assert_eq!(looks.stored_permits().await?, Some(3));
    /// # Ok(()) }
    /// ```
    pub async fn stored_permits(&self) -> Result<Option<u32>> {
        let limit = slots::limits::<Limit>(&self.queue).await?;
        Ok(limit.map(|limit| limit.permits))
    }

    /// The holders of permits and the contenders that wait, in order.
    ///
    /// # Errors
    ///
    /// The [kinds of error](crate::ErrorKind) of a store that refuses or does not answer.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect: it only reads.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let uploads = coordinator.semaphore("uploads", 3)?;
    /// let permits = uploads.acquire_many(2, None).await?;
    ///
    /// let holders = uploads.holders().await?;
    /// assert_eq!(holders.len(), 1);
    /// assert_eq!(holders[0].slots, permits.slots());
    /// assert_eq!(holders[0].token, permits.token());
    /// # Ok(()) }
    /// ```
    pub async fn holders(&self) -> Result<Vec<Occupant>> {
        slots::occupants(&self.queue, 0).await
    }

    /// Takes away exactly the permits with this token, or the place of one that still waits, and returns who it
    /// was; `None` if nobody has this token any more.
    ///
    /// For operators, when a holder hangs. Whoever waits is granted them at once. The former holder learns of the loss through its guard, at once or within a
    /// heartbeat; until then it may go on writing, and only fencing stops its writes. One that still waits
    /// queues again, at the end.
    ///
    /// # Errors
    ///
    /// The [kinds of error](crate::ErrorKind) of a store that refuses or does not answer;
    /// [`effect`](crate::Error::effect) says whether it may have been taken away.
    ///
    /// # Cancel safety
    ///
    /// A dropped call may or may not take it away. It never takes away a later grant.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let uploads = coordinator.semaphore("uploads", 1)?;
    /// let hanging = uploads.acquire(None).await?;
    ///
    /// let former = uploads.break_grant(hanging.token()).await?.expect("it is held");
    /// assert_eq!(former.slots, hanging.slots());
    /// let next = uploads.try_acquire().await?.expect("it is free");
    /// assert!(next.token() > former.token);
    /// # Ok(()) }
    /// ```
    pub async fn break_grant(&self, token: FencingToken) -> Result<Option<Occupant>> {
        slots::break_grant(&self.queue, 0, token).await
    }

    fn request(&self, count: u32) -> Result<Request> {
        let most = self.limit.permits.min(MAX_TAKEN);
        let wants =
            self.queue.named(slots::check("the number of permits asked for", count, most))?;
        let claim = Claim::wants(wants);
        let (data, room) = (claim.data()?, claim.room(1)?);
        let policy = Fifo { limit: self.limit, is_admitted: AtomicBool::new(false) };
        Ok(Request {
            contents: Contents { data, room, ..self.queue.contents() },
            policy: Some(Arc::new(policy)),
        })
    }

    fn permit(&self, grant: Grant) -> Result<Permit> {
        let claim: Claim = self.queue.named(from_data("acquire", grant.own_entry().data()))?;
        Ok(Permit { grant, slots: claim.slots })
    }
}

labelled!(Semaphore, "the permits that are acquired", "[`Semaphore::holders`]");

/// Serves the contender that came first, with whatever slots are free.
struct Fifo {
    limit: Limit,
    /// Whether the stored limit has been the wanted one: if it differs later, `resize` has changed it.
    is_admitted: AtomicBool,
}

impl Policy for Fifo {
    fn decide(&self, listing: &Listing, own: &Entry) -> Result<Decision> {
        let admitted = self.is_admitted.load(Ordering::Relaxed);
        let Some(limit) = slots::stored(listing, &self.limit, admitted)? else {
            return Ok(Decision::Initialize(to_data("acquire", &self.limit, MAX_VALUE_BYTES)?));
        };
        self.is_admitted.store(true, Ordering::Relaxed);
        let claim = Claim::of(own)?;
        slots::check("the number of permits asked for", claim.wants, limit.permits)?;
        let before = listing.before(own.seq);
        if let Some(waiting) = before.iter().rfind(|entry| entry.mode == Mode::Exclusive) {
            return Ok(Decision::WaitFor(waiting.into()));
        }
        let mut used = BTreeSet::new();
        for holder in before {
            used.extend(Claim::of(holder)?.slots);
        }
        match slots::free(limit.permits, &used, claim.wants) {
            Some(slots) => Ok(Decision::Take(claim.has(slots).data()?)),
            None => Ok(Decision::Wait),
        }
    }

    fn stands(&self, listing: &Listing, own: &Entry) -> Result<bool> {
        slots::stand(listing, own)
    }
}

/// Holds permits of a semaphore; releases them when dropped.
///
/// The token is larger than every earlier token **of the same slot**. A resource that checks tokens must do
/// so per slot: the tokens of different slots are valid at the same time, in any order.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
/// # let coordinator = coordination::Coordinator::connect("memory://").await?;
/// let connections = coordinator.semaphore("connections", 3)?;
/// let permit = connections.acquire(None).await?;
/// // Something that there is one of for each permit, as nobody else has this number now.
/// let port = 7_000 + permit.slot();
/// assert_eq!(port, 7_000);
/// permit.release().await?;
/// # Ok(()) }
/// ```
#[must_use = "the permits are given back when the guard is dropped"]
#[derive(Debug)]
pub struct Permit {
    grant: Grant,
    slots: Vec<u32>,
}

guard!(Permit, "the permits");

impl Permit {
    /// The slots held, one for each permit: numbers from 0, which nobody else has at the same time.
    pub fn slots(&self) -> &[u32] {
        &self.slots
    }

    /// The first slot: the only one, if one permit was asked for.
    pub fn slot(&self) -> u32 {
        self.slots.first().copied().unwrap_or_default()
    }
}
