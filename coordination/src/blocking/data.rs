//! Values and numbers, what may happen how often, and queues of work.

use std::fmt;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::calls::{calls, made, wraps};
use super::{Coordinator, wait};
use crate::{
    Ack, Attempt, Claim, ClaimId, ClaimOptions, ClaimView, Collected, Grant, ItemId, LastClaim,
    ListOptions, NewItem, RatePermit, Result, ValueWatch, Version, Versioned, WorkClaim, WorkItem,
    WorkLimits, WorkStats,
};

made! {
    Counter by counter(name: impl AsRef<str>);
    RateLimiter by rate_limiter(name: impl AsRef<str>, permits: u32, per: Duration);
    OncePer by once_per(name: impl AsRef<str>, period: Duration);
    WorkQueue by queue(name: impl AsRef<str>);
}

impl Coordinator {
    /// Does the same as [`crate::Coordinator::value`].
    ///
    /// # Errors
    ///
    /// Those of [`crate::Coordinator::value`].
    pub fn value<T: Serialize + DeserializeOwned>(
        &self,
        name: impl AsRef<str>,
    ) -> Result<SharedValue<T>> {
        self.0.value(name).map(SharedValue)
    }
}

/// [`crate::SharedValue`] with blocking calls.
///
/// # Examples
///
/// ```
/// use coordination::{ValueEvent, blocking};
///
/// fn main() -> coordination::Result<()> {
///     let coordinator = blocking::Coordinator::connect("memory://")?;
///     let limit = coordinator.value::<u32>("upload-limit")?;
///     limit.set(&100)?;
///     assert_eq!(limit.update(|now| now.unwrap_or(0) + 1)?.value, 101);
///
///     let mut events = limit.watch();
///     match blocking::wait(events.next())? {
///         ValueEvent::Value(now) => println!("at most {} uploads", now.value),
///         ValueEvent::NoValue => println!("no limit"),
///     }
///     coordinator.stop()
/// }
/// ```
pub struct SharedValue<T>(crate::SharedValue<T>);

wraps! { SharedValue<T: Serialize + DeserializeOwned> }

calls! { SharedValue<T: Serialize + DeserializeOwned>:
    read() -> Option<Versioned<T>>;
    set(value: &T) -> Version;
    compare_and_set(expected: Option<Version>, value: &T) -> Option<Version>;
    delete() -> bool;
    compare_and_delete(expected: Version) -> bool;
    update(change: impl FnMut(Option<T>) -> T) -> Versioned<T>;
}

impl<T: Serialize + DeserializeOwned> SharedValue<T> {
    /// Does the same as [`crate::SharedValue::watch`]. A thread waits for the next event by [`wait`].
    pub fn watch(&self) -> ValueWatch<T> {
        self.0.watch()
    }
}

impl<T> Clone for SharedValue<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> fmt::Debug for SharedValue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// [`crate::Counter`] with blocking calls.
///
/// # Examples
///
/// ```
/// use coordination::blocking;
///
/// fn main() -> coordination::Result<()> {
///     let coordinator = blocking::Coordinator::connect("memory://")?;
///     let tickets = coordinator.counter("tickets")?;
///     println!("ticket {}", tickets.add(1)?);
///     assert_eq!(tickets.read()?, 1);
///     coordinator.stop()
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Counter(crate::Counter);

wraps! { Counter }

calls! { Counter:
    add(amount: i64) -> i64;
    read() -> i64;
    changed(known: i64) -> i64;
}

/// [`crate::RateLimiter`] with blocking calls.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// use coordination::blocking;
///
/// fn main() -> coordination::Result<()> {
///     let coordinator = blocking::Coordinator::connect("memory://")?;
///     let api = coordinator.rate_limiter("api", 5, Duration::from_secs(60))?;
///     for request in 0..5 {
///         api.acquire(1, None)?;
///         println!("request {request}");
///     }
///     assert!(api.try_acquire(1)?.granted().is_none());
///     coordinator.stop()
/// }
/// ```
#[derive(Clone, Debug)]
pub struct RateLimiter(crate::RateLimiter);

wraps! { RateLimiter }

calls! { RateLimiter:
    try_acquire(permits: u32) -> Attempt;
    acquire(permits: u32, timeout: Option<Duration>) -> RatePermit;
    stored_settings() -> Option<crate::RateSettings>;
    reconfigure() -> ();
    reset() -> ();
}

impl RateLimiter {
    /// Does the same as [`crate::RateLimiter::and`].
    ///
    /// # Errors
    ///
    /// Those of [`crate::RateLimiter::and`].
    pub fn and(self, permits: u32, per: Duration) -> Result<Self> {
        self.0.and(permits, per).map(Self)
    }

    /// Does the same as [`crate::RateLimiter::margin`].
    ///
    /// # Errors
    ///
    /// Those of [`crate::RateLimiter::margin`].
    pub fn margin(self, margin: Duration) -> Result<Self> {
        self.0.margin(margin).map(Self)
    }

    /// Does the same as [`crate::RateLimiter::paced`].
    #[must_use]
    pub fn paced(self) -> Self {
        Self(self.0.paced())
    }
}

/// [`crate::OncePer`] with blocking calls.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// use coordination::blocking;
///
/// fn main() -> coordination::Result<()> {
///     let coordinator = blocking::Coordinator::connect("memory://")?;
///     let hourly = coordinator.once_per("report", Duration::from_secs(60 * 60))?;
///     if let Some(claim) = hourly.try_claim()? {
///         println!("run {}", claim.token());
///         blocking::wait(claim.done())?;
///     }
///     assert!(hourly.try_claim()?.is_none());
///     coordinator.stop()
/// }
/// ```
#[derive(Clone, Debug)]
pub struct OncePer(crate::OncePer);

wraps! { OncePer }

calls! { OncePer:
    try_claim() -> Option<Claim>;
    try_claim_under(held: &Grant) -> Option<Claim>;
    due() -> Duration;
    last_claim() -> Option<LastClaim>;
    reset() -> bool;
}

impl OncePer {
    /// Does the same as [`crate::OncePer::aligned`].
    #[must_use]
    pub fn aligned(self) -> Self {
        Self(self.0.aligned())
    }

    /// Does the same as [`crate::OncePer::at_least`].
    #[must_use]
    pub fn at_least(self, time: Duration) -> Self {
        Self(self.0.at_least(time))
    }
}

/// [`crate::WorkQueue`] with blocking calls. What a [`WorkClaim`] awaits is waited for by [`wait`].
///
/// # Examples
///
/// ```
/// use coordination::{Ack, ClaimOptions, NewItem, blocking};
///
/// fn main() -> coordination::Result<()> {
///     let coordinator = blocking::Coordinator::connect("memory://")?;
///     let jobs = coordinator.queue("resize-jobs")?;
///     jobs.post(&[NewItem::new("vol-7")])?;
///
///     let claim = jobs.claim_wait(ClaimOptions::default(), None)?.expect("it waits for ever");
///     for item in claim.items() {
///         assert_eq!(blocking::wait(claim.ack(item.id()))?, Ack::Done);
///     }
///     coordinator.stop()
/// }
/// ```
#[derive(Clone, Debug)]
pub struct WorkQueue(crate::WorkQueue);

wraps! { WorkQueue }

calls! { WorkQueue:
    post(items: &[NewItem]) -> Vec<ItemId>;
    claim(options: ClaimOptions) -> Option<WorkClaim>;
    claim_wait(options: ClaimOptions, timeout: Option<Duration>) -> Option<WorkClaim>;
    claim_as(id: ClaimId, options: ClaimOptions) -> Option<ClaimView>;
    get(id: ClaimId) -> ClaimView;
    renew(id: ClaimId, ttl: Option<Duration>, grace: Option<Duration>) -> Duration;
    release(id: ClaimId) -> usize;
    ack(item: ItemId, claim: ClaimId) -> Ack;
    ack_many(items: &[ItemId], claim: ClaimId) -> usize;
    nack(item: ItemId, claim: ClaimId, delay: Duration) -> Ack;
    claims() -> Vec<crate::Claimant>;
    break_claim(token: crate::FencingToken) -> Option<crate::Claimant>;
    delete(item: ItemId) -> bool;
    force_delete(item: ItemId) -> bool;
    pop(limit: usize) -> Vec<WorkItem>;
    stats() -> WorkStats;
    list(options: ListOptions) -> Vec<WorkItem>;
    item(id: ItemId) -> Option<WorkItem>;
    gc(budget: Option<usize>) -> Collected;
    delete_queue() -> ();
}

impl WorkQueue {
    /// Does the same as [`crate::WorkQueue::with_limits`].
    #[must_use]
    pub fn with_limits(&self, limits: WorkLimits) -> Self {
        Self(self.0.with_limits(limits))
    }

    /// Like [`crate::WorkQueue::set_dead_letters`], but blocks the thread until the call is done.
    ///
    /// # Errors
    ///
    /// Those of [`crate::WorkQueue::set_dead_letters`].
    pub fn set_dead_letters(
        &self,
        max_claims: u32,
        dead_letters: &Self,
        ttl: Option<Duration>,
    ) -> Result<()> {
        wait(self.0.set_dead_letters(max_claims, &dead_letters.0, ttl))
    }
}

#[cfg(all(test, feature = "memory"))]
mod tests {
    use super::super::release;
    use super::*;
    use crate::ValueEvent;

    const HOUR: Duration = Duration::from_secs(3_600);

    #[test]
    fn a_thread_writes_and_watches_values() -> Result<()> {
        let coordinator = Coordinator::connect("memory://blocking-values")?;
        let limit = coordinator.value::<u32>("limit")?;
        let mut events = limit.watch();
        assert_eq!(wait(events.next())?, ValueEvent::NoValue);
        let first = limit.set(&1)?;
        let told = wait(events.next())?.into_value();
        assert_eq!(told.map(|now| (now.version, now.value)), Some((first, 1)));
        let second = limit.compare_and_set(Some(first), &2)?.expect("nobody else writes");
        assert_eq!(limit.update(|now| now.unwrap_or_default() + 1)?.value, 3);
        assert!(!limit.compare_and_delete(second)?);
        assert!(limit.clone().delete()? && limit.read()?.is_none());

        let tickets = coordinator.counter("tickets")?;
        assert_eq!((tickets.add(2)?, tickets.read()?), (2, 2));
        coordinator.stop()
    }

    #[test]
    fn a_thread_keeps_to_a_rate() -> Result<()> {
        let coordinator = Coordinator::connect("memory://blocking-rates")?;
        let api = coordinator.rate_limiter("api", 2, HOUR)?.and(4, 2 * HOUR)?;
        api.acquire(2, None)?;
        assert!(api.try_acquire(1)?.granted().is_none());
        api.reset()?;
        assert!(api.try_acquire(1)?.granted().is_some());
        let slower = coordinator.rate_limiter("api", 1, HOUR)?.margin(HOUR)?.paced();
        slower.reconfigure()?;
        assert!(slower.try_acquire(1)?.granted().is_none());
        coordinator.stop()
    }

    #[test]
    fn a_thread_does_a_job_once() -> Result<()> {
        let coordinator = Coordinator::connect("memory://blocking-once")?;
        let hourly = coordinator.once_per("report", HOUR)?.at_least(HOUR / 2);
        assert!(hourly.due()?.is_zero());
        assert!(wait(hourly.try_claim()?.expect("nobody has").done())?);
        assert!(hourly.try_claim()?.is_none() && hourly.reset()?);
        let guard = coordinator.lock("report")?.acquire(None)?;
        assert!(hourly.aligned().try_claim_under(&guard)?.is_some());
        release(guard)?;
        coordinator.stop()
    }

    #[test]
    fn a_thread_works_on_a_queue() -> Result<()> {
        let coordinator = Coordinator::connect("memory://blocking-work")?;
        let (jobs, failed) = (coordinator.queue("jobs")?, coordinator.queue("failed")?);
        jobs.set_dead_letters(3, &failed, None)?;
        let names = jobs.post(&[NewItem::new("a"), NewItem::new("b"), NewItem::new("c")])?;
        assert_eq!(jobs.list(ListOptions::default())?.len(), 3);
        let one = ClaimOptions::default().limit(1);
        let claim = jobs.claim(one.clone())?.expect("three are ready");
        assert_eq!(wait(claim.ack(names[0]))?, Ack::Done);
        release(claim)?;
        let claim = jobs.claim_wait(one.clone(), None)?.expect("two are ready");
        let id = wait(claim.detach())?;
        assert_eq!(jobs.get(id)?.items.len(), 1);
        jobs.renew(id, Some(HOUR), None)?;
        assert_eq!(jobs.nack(names[1], id, Duration::ZERO)?, Ack::Done);
        jobs.release(id)?;
        let id = ClaimId::random();
        assert!(jobs.claim_as(id, one)?.is_some());
        assert_eq!(jobs.ack_many(&[names[1]], id)?, 1);
        assert!(jobs.item(names[2])?.is_some() && jobs.delete(names[2])?);
        assert!(!jobs.force_delete(names[2])?);
        assert!(jobs.pop(1)?.is_empty() && jobs.stats()?.total() == 0);
        assert_eq!(jobs.gc(None)?.items, 0);
        jobs.delete_queue()?;
        coordinator.stop()
    }
}
