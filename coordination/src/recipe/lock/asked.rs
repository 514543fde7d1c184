//! Holders of a lock are asked to let go of it.
//!
//! What is asked is the value of a second queue of the lock's name: a number. Whoever holds the lock with a token up to that
//! number is asked. The holders of a lock are the first entries of its queue, and whoever comes later has a larger number. So one
//! number stands for all present holders and for nobody who follows, and of two numbers the larger one stands for both. A number
//! that concerns nobody any more is removed.
//!
//! The lock's own queue is not touched, because it may be shared with other libraries. Nobody reads the second queue but who asks,
//! and holders that call [`LockGuard::release_requested`] or [`LockGuard::is_release_requested`]; and cohorts.

use std::time::Duration;

use tokio::time::Instant;

use super::requests::{ASK, KIND, number};
use super::{Contender, Lock, LockGuard};
use crate::backend::Write;
use crate::error::{Effect, Result};
use crate::retry::DecorrelatedJitter;
use crate::session::Written;

impl Lock {
    /// Asks all present holders to let go of the lock, and returns them; empty if nobody holds it.
    ///
    /// A request is a hint, and takes nothing away: a holder learns of it through
    /// [`LockGuard::release_requested`], and keeps the lock for as long as it likes. A holder that does not call that, or is of
    /// another library or of an older version of this one, learns of nothing. [`break_lock`](Self::break_lock) takes the lock
    /// away from a holder that does not answer. A [cohort](crate::Cohort) that is asked lets go after the turn: see
    /// [`CohortGuard::release_requested`](crate::CohortGuard::release_requested).
    ///
    /// A request concerns those who hold the lock while this call runs, by their tokens, and nobody who holds it later. To ask again
    /// changes nothing. The store keeps a request until its holders have gone, that of a single holder until the holder has learned
    /// of it. If they end without having listened, it keeps the request until the next call for this lock, or until the next
    /// holder listens.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable), [`ErrorKind::Quota`](crate::ErrorKind::Quota) and the other kinds of
    /// a store that refuses or does not answer; [`effect`](crate::Error::effect) says whether the holders may have been asked.
    /// The call may be repeated.
    ///
    /// # Cancel safety
    ///
    /// A dropped call may or may not ask the holders. It never asks a later holder.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let lock = coordinator.lock("vol-7")?;
    /// let guard = lock.acquire(None).await?;
    ///
    /// let asked = lock.request_release().await?;
    /// assert_eq!(asked[0].token, guard.token());
    /// guard.release_requested().await?;
    /// guard.release().await?;
    /// assert!(lock.request_release().await?.is_empty());
    /// # Ok(()) }
    /// ```
    pub async fn request_release(&self) -> Result<Vec<Contender>> {
        let mut in_doubt = false;
        let asked = self.ask_holders(&mut in_doubt).await;
        asked.map_err(|error| match in_doubt {
            true => error.with_effect(Effect::Unknown),
            false => error,
        })
    }

    /// As [`request_release`](Self::request_release). `in_doubt`: whether the holders may have been asked by a write whose answer was
    /// lost.
    async fn ask_holders(&self, in_doubt: &mut bool) -> Result<Vec<Contender>> {
        let asked = self.queue.of_kind(KIND)?;
        let mut delays =
            DecorrelatedJitter::new(Duration::from_millis(1), Duration::from_millis(50));
        loop {
            // Invariant: the number is read before the lock's queue. An entry up to that number is in the queue by then, or never
            // will be. So if nobody is in the queue, the number concerns nobody.
            let standing = asked.read(ASK).await?.value;
            let mut holders = self.holders().await?;
            holders.retain(|contender| contender.holding);
            let newest = holders.iter().map(|holder| holder.token.value()).max();
            let data = match (newest, &standing) {
                (Some(newest), Some(standing)) if newest <= number(standing) => return Ok(holders),
                (Some(newest), _) => Some(newest.to_string().into()),
                (None, Some(_)) => None,
                (None, None) => return Ok(holders),
            };
            let version = standing.map(|standing| standing.version);
            let write = Write::new(&asked.key, version, data);
            match asked.write(ASK, write).await? {
                Written::Yes(_) => return Ok(holders),
                Written::Unknown => *in_doubt = true,
                Written::No => {}
            }
            asked.sleep_until(ASK, Instant::now() + delays.next_delay()).await?;
        }
    }
}

impl LockGuard {
    /// Waits until somebody [asks](Lock::request_release) this holder to let go of the lock.
    ///
    /// It returns at once if that has happened before, also before the first call. From the first call on, the session follows
    /// what is asked until the lock is released or lost, at the cost of [a watch](crate::SharedValue::watch). A request of
    /// which the store's notification was lost is seen later, with the next look at the store. Nothing happens to the lock by itself.
    ///
    /// # Errors
    ///
    /// * [`ErrorKind::Lost`](crate::ErrorKind::Lost), [`ErrorKind::Closed`](crate::ErrorKind::Closed): the lock was lost before
    ///   anybody asked.
    /// * [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported): a [blocking](crate::blocking) call on the thread that would have to
    ///   hear of it.
    ///
    /// # Cancel safety
    ///
    /// No request is forgotten when the future is dropped: the next call returns at once.
    ///
    /// # Examples
    ///
    /// ```
    /// # async fn next_part() { tokio::task::yield_now().await }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let lock = coordinator.lock("reindex")?;
    /// let guard = lock.acquire(None).await?;
    /// # lock.request_release().await?;
    /// loop {
    ///     tokio::select! {
    ///         biased;
    ///         asked = guard.release_requested() => break asked?,
    ///         () = next_part() => {}
    ///     }
    /// }
    /// guard.release().await?;
    /// # Ok(()) }
    /// ```
    pub async fn release_requested(&self) -> Result<()> {
        self.requests.wait(&self.grant).await
    }

    /// Whether this process knows that somebody has [asked](Lock::request_release) this holder to let go of the lock.
    ///
    /// It does not wait for the store. The first call begins to follow what is asked, as
    /// [`release_requested`](Self::release_requested) does, so it returns false.
    pub fn is_release_requested(&self) -> bool {
        self.requests.is_made(&self.grant)
    }
}

#[cfg(all(test, feature = "memory"))]
mod tests {
    use super::*;
    use crate::Coordinator;

    /// What the store has of requests for this lock.
    async fn standing(lock: &Lock) -> Option<u64> {
        let queue = lock.queue.of_kind(KIND).expect("the name of a lock");
        queue.read(ASK).await.expect("memory answers").value.as_ref().map(number)
    }

    async fn until_cleared(lock: &Lock) {
        let cleared = async {
            while standing(lock).await.is_some() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), cleared).await.expect("it is cleared");
    }

    async fn lock(store: &str) -> Lock {
        let coordinator = Coordinator::connect(store).await.expect("it is in memory");
        coordinator.lock("vol-7").expect("a good name")
    }

    #[tokio::test]
    async fn a_request_is_removed_when_it_concerns_nobody_any_more() -> Result<()> {
        let lock = lock("memory://asked").await;
        let guard = lock.acquire(None).await?;
        lock.request_release().await?;
        assert_eq!(standing(&lock).await, Some(guard.token().value()));
        guard.release_requested().await?;
        until_cleared(&lock).await;
        // Asked once more, and told already.
        lock.request_release().await?;
        until_cleared(&lock).await;
        guard.release().await?;

        let (one, other) = (lock.acquire_shared(None).await?, lock.acquire_shared(None).await?);
        let newest = Some(other.token().value());
        lock.request_release().await?;
        other.release_requested().await?;
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(standing(&lock).await, newest, "the first one does not know it yet");
        one.release_requested().await?;
        other.release().await?;
        assert_eq!(standing(&lock).await, newest, "whether the other one knew it, nobody can tell");
        one.release().await?;
        until_cleared(&lock).await;
        Ok(())
    }

    #[tokio::test]
    async fn a_request_for_holders_that_are_gone_is_removed_by_who_looks_next() -> Result<()> {
        let lock = lock("memory://gone").await;
        let ask_in_vain = async || -> Result<Option<u64>> {
            let guard = lock.acquire(None).await?;
            lock.request_release().await?;
            guard.release().await?;
            Ok(standing(&lock).await)
        };
        assert!(ask_in_vain().await?.is_some());
        assert!(lock.request_release().await?.is_empty());
        assert_eq!(standing(&lock).await, None);

        assert!(ask_in_vain().await?.is_some());
        let next = lock.acquire(None).await?;
        assert!(!next.is_release_requested());
        until_cleared(&lock).await;
        assert!(!next.is_release_requested());
        next.release().await
    }

    /// Two who ask at once may have seen different holders.
    #[tokio::test]
    async fn of_two_requests_the_later_holders_count() -> Result<()> {
        let lock = lock("memory://two").await;
        let queue = lock.queue.of_kind(KIND)?;
        let guard = lock.acquire(None).await?;
        let later = guard.token().value() + 5;
        queue.write(ASK, Write::new(&queue.key, None, Some(later.to_string().into()))).await?;
        lock.request_release().await?;
        assert_eq!(standing(&lock).await, Some(later));
        guard.release_requested().await
    }

    #[tokio::test]
    async fn what_cannot_be_read_asks_nobody_and_is_replaced() -> Result<()> {
        let lock = lock("memory://unread").await;
        let queue = lock.queue.of_kind(KIND)?;
        let guard = lock.acquire(None).await?;
        queue.write(ASK, Write::new(&queue.key, None, Some("{}".into()))).await?;
        assert_eq!(standing(&lock).await, Some(0));
        lock.request_release().await?;
        assert_eq!(standing(&lock).await, Some(guard.token().value()));
        guard.release().await
    }
}
