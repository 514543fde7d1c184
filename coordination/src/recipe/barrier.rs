//! The barrier: one process closes it, many wait at it, and opening it lets all of them go on at once.
//!
//! The barrier is closed while the queue has a value. Nobody owns the value, so a barrier stays closed when the process
//! that closed it is gone. Each `close` gives the value another version, by which a waiter sees that the barrier was open
//! in between.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::engine::data::{MAX_VALUE_BYTES, to_data};
use super::engine::queue::{Change, Queue, Seen};
use super::engine::rising::Rising;
use crate::backend::Listing;
use crate::coordinator::Coordinator;
use crate::error::Result;

impl Coordinator {
    /// The barrier of this name. No I/O. It is open until somebody closes it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Name`](crate::ErrorKind::Name): empty or too long.
    pub fn barrier(&self, name: impl AsRef<str>) -> Result<Barrier> {
        Ok(Barrier { queue: self.queue_of("barrier", name.as_ref())? })
    }
}

/// While a barrier is closed, all callers of [`wait`](Self::wait) wait. Made by [`Coordinator::barrier`], without
/// I/O; cheap to clone.
///
/// It belongs to nobody: any process can open and close it, and it stays open or closed when that process is gone.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
/// # let coordinator = coordination::Coordinator::connect("memory://").await?;
/// let barrier = coordinator.barrier("maintenance")?;
/// barrier.close().await?;
///
/// let waiting = tokio::spawn({
///     let barrier = barrier.clone();
///     async move { barrier.wait(None).await }
/// });
/// barrier.open().await?;
/// waiting.await.expect("no panic")?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Barrier {
    queue: Queue,
}

impl Barrier {
    /// The barrier's name, with the coordinator's prefix.
    pub fn name(&self) -> &str {
        self.queue.name()
    }

    /// Closes the barrier. False: it was closed already.
    ///
    /// # Errors
    ///
    /// The [kinds of error](crate::ErrorKind) of a store that refuses or does not answer; with
    /// [`Effect::Unknown`](crate::Effect::Unknown) it may be closed.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the call goes on in the background.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let barrier = coordinator.barrier("maintenance")?;
    /// assert!(barrier.is_open().await?);
    /// assert!(barrier.close().await?);
    /// assert!(!barrier.close().await?, "it is closed already");
    /// assert!(!barrier.is_open().await?);
    /// # Ok(()) }
    /// ```
    pub async fn close(&self) -> Result<bool> {
        let by = Arc::clone(&self.queue.session.settings.member);
        let step = move |listing: &Listing| match listing.value {
            Some(_) => Ok(Change::Keep(false)),
            // The text is for people who look into the store: the member that closed it.
            None => Ok(Change::Write(Some(to_data("close", &*by, MAX_VALUE_BYTES)?), true)),
        };
        self.queue.modify("close", step).await
    }

    /// Opens the barrier for all who wait. False: it was open already.
    ///
    /// # Errors
    ///
    /// Those of [`close`](Self::close).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the call goes on in the background.
    pub async fn open(&self) -> Result<bool> {
        let step = |listing: &Listing| match listing.value {
            Some(_) => Ok(Change::Write(None, true)),
            None => Ok(Change::Keep(false)),
        };
        self.queue.modify("open", step).await
    }

    /// Whether the barrier is open.
    ///
    /// # Errors
    ///
    /// The [kinds of error](crate::ErrorKind) of a store that does not answer.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect: it only reads.
    pub async fn is_open(&self) -> Result<bool> {
        Ok(self.queue.read("is_open").await?.value.is_none())
    }

    /// Waits until the barrier is open.
    ///
    /// On success the barrier was open at some moment during the call; it may be closed again on return. A caller that
    /// waits when the barrier is opened is let go, however soon the barrier is closed again.
    ///
    /// `timeout` bounds the whole call. `None` waits for ever, also through an outage of the store; zero
    /// reads once.
    ///
    /// # Errors
    ///
    /// * [`ErrorKind::Timeout`](crate::ErrorKind::Timeout): it was still closed when `timeout` was over.
    /// * [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable): the store did not answer.
    /// * [`ErrorKind::Closed`](crate::ErrorKind::Closed): the coordinator was stopped, or this is a forked child.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect: it only reads.
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
    /// let barrier = coordinator.barrier("maintenance")?;
    /// barrier.close().await?;
    /// let error = barrier.wait(Some(Duration::from_millis(10))).await.unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::Timeout);
    ///
    /// barrier.open().await?;
    /// barrier.wait(None).await?;
    /// # Ok(()) }
    /// ```
    pub async fn wait(&self, timeout: Option<Duration>) -> Result<()> {
        let mut closings = Rising::default();
        let find =
            |listing: &Listing, seen| Ok(was_open(listing, seen, &mut closings).then_some(()));
        self.queue.until("wait", timeout, find).await
    }
}

impl fmt::Debug for Barrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Barrier").field("name", &self.name()).finish_non_exhaustive()
    }
}

/// Whether the barrier is open, or was open during the call: by the version of the value, which each closing raises.
fn was_open(listing: &Listing, seen: Seen, closings: &mut Rising) -> bool {
    // A closed barrier cannot be closed again. So if the version has risen, the barrier was open in between.
    listing.value.as_ref().is_none_or(|closed| closings.has_risen(closed.version, seen))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::engine::data::stored;

    fn closed(version: u64) -> Listing {
        let mut listing = stored::value("\"host-1\"");
        listing.value.iter_mut().for_each(|value| value.version = version);
        listing
    }

    #[test]
    fn br1_a_barrier_that_was_closed_again_was_open() {
        let mut closings = Rising::default();
        assert!(!was_open(&closed(7), Seen::Read, &mut closings));
        assert!(was_open(&closed(9), Seen::Read, &mut closings));
        assert!(was_open(&Listing::default(), Seen::Read, &mut closings));
    }

    /// The store is restored from a snapshot from before this closing, in which the barrier is closed, too. Then it is opened and
    /// closed, and its version is still lower than at first.
    #[test]
    fn br1_a_barrier_that_was_open_after_a_restore() {
        let mut closings = Rising::default();
        assert!(!was_open(&closed(7), Seen::Read, &mut closings));
        assert!(!was_open(&closed(3), Seen::Read, &mut closings));
        assert!(was_open(&closed(5), Seen::Read, &mut closings));
    }
}
