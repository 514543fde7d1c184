//! The latch: counts down to zero, once, and then lets all who wait go on.
//!
//! The count is the queue's value. It belongs to no session, so a count stays when the process that counted is gone. The value also
//! says how often zero was reached. By this number a waiter notices a zero that was reset before the waiter could read it.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::engine::data::{MAX_VALUE_BYTES, from_data, to_data};
use super::engine::queue::{Change, Queue};
use super::engine::rising::Rising;
use crate::backend::{Data, Listing};
use crate::coordinator::Coordinator;
use crate::error::{Error, ErrorKind, Result};

impl Coordinator {
    /// The latch of this name, which has to be counted down `count` times. No I/O.
    ///
    /// The count is stored on first use; see [`Latch`].
    ///
    /// # Errors
    ///
    /// * [`ErrorKind::Name`]: empty or too long.
    /// * [`ErrorKind::Input`]: the count is zero.
    pub fn latch(&self, name: impl AsRef<str>, count: u32) -> Result<Latch> {
        let queue = self.queue_of("latch", name.as_ref())?;
        if count == 0 {
            let message = "a latch counts down from one at least";
            return Err(queue.error(ErrorKind::Input, "latch", message));
        }
        Ok(Latch { queue, count })
    }
}

/// A latch lets all waiters go on when it has been counted down to zero. Made by [`Coordinator::latch`], without
/// I/O; cheap to clone.
///
/// Counts belong to nobody: they stay when the process that counted is gone. If a process ends before it
/// has counted, its count is missing for ever; if a process counts twice, both counts count. The latch stays at
/// zero until it is [`reset`](Self::reset); it may be reset at once, for the next round.
///
/// A handle with another count gets [`ErrorKind::Mismatch`].
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
/// # let coordinator = coordination::Coordinator::connect("memory://").await?;
/// let ready = coordinator.latch("workers-ready", 2)?;
/// assert_eq!(ready.count_down().await?, 1);
/// assert_eq!(ready.count_down().await?, 0);
/// ready.wait(None).await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Latch {
    queue: Queue,
    count: u32,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
struct Stored {
    count: u32,
    remaining: u32,
    /// How often zero was reached. A reset leaves this number as it is.
    #[serde(default)]
    zeros: u64,
}

impl Stored {
    fn of(listing: &Listing, count: u32, operation: &'static str) -> Result<Self> {
        Self::any(listing, count, operation)?.counting_from(count, operation)
    }

    /// What is stored, whatever count it started from; a new latch of `count` if nothing is stored.
    fn any(listing: &Listing, count: u32, operation: &'static str) -> Result<Self> {
        let fresh = Self { count, remaining: count, zeros: 0 };
        let Some(value) = &listing.value else { return Ok(fresh) };
        let stored: Self = from_data(operation, &value.data)?;
        if stored.remaining > stored.count {
            let message = "the store has a latch of which more remains than it counts from";
            return Err(Error::new(ErrorKind::Corrupt, operation, message));
        }
        Ok(stored)
    }

    fn counting_from(self, count: u32, operation: &'static str) -> Result<Self> {
        if self.count == count {
            return Ok(self);
        }
        let message = format!("the latch counts from {}, and {count} was asked for", self.count);
        Err(Error::new(ErrorKind::Mismatch, operation, message))
    }

    fn counted_down(self) -> Option<Self> {
        let remaining = self.remaining.checked_sub(1)?;
        let zeros = self.zeros.saturating_add(u64::from(remaining == 0));
        Some(Self { remaining, zeros, ..self })
    }

    fn data(self, operation: &'static str) -> Result<Data> {
        to_data(operation, &self, MAX_VALUE_BYTES)
    }
}

impl Latch {
    /// The latch's name, with the coordinator's prefix.
    pub fn name(&self) -> &str {
        self.queue.name()
    }

    /// Counts down by one, and returns the number that remains. A latch at zero stays at zero.
    ///
    /// # Errors
    ///
    /// * [`ErrorKind::Mismatch`]: the latch is stored with another count.
    /// * The [kinds of error](crate::ErrorKind) of a store that refuses or does not answer. With
    ///   [`Effect::Unknown`](crate::Effect::Unknown) it may have been counted; never twice.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the call goes on in the background.
    pub async fn count_down(&self) -> Result<u32> {
        let count = self.count;
        let step = move |listing: &Listing| {
            let stored = Stored::of(listing, count, "count_down")?;
            Ok(match stored.counted_down() {
                Some(next) => Change::Write(Some(next.data("count_down")?), next.remaining),
                None => Change::Keep(0),
            })
        };
        self.queue.modify("count_down", step).await
    }

    /// The number of counts that are still missing.
    ///
    /// # Errors
    ///
    /// Those of [`count_down`](Self::count_down).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect: it only reads.
    pub async fn remaining(&self) -> Result<u32> {
        let listing = self.queue.read("remaining").await?;
        let stored = self.queue.named(Stored::of(&listing, self.count, "remaining"))?;
        Ok(stored.remaining)
    }

    /// Waits until the latch has been counted down to zero. A caller that waits when that happens is let go, even if the
    /// latch is [`reset`](Self::reset) at once.
    ///
    /// `timeout` bounds the whole call. `None` waits for ever, also through an outage of the store; zero
    /// reads once.
    ///
    /// # Errors
    ///
    /// * [`ErrorKind::Timeout`]: it was not at zero when `timeout` was over.
    /// * [`ErrorKind::Mismatch`]: the latch is stored with another count.
    /// * [`ErrorKind::Unavailable`]: the store did not answer.
    /// * [`ErrorKind::Closed`]: the coordinator was stopped, or this is a forked child.
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
    /// let ready = coordinator.latch("workers-ready", 2)?;
    /// ready.count_down().await?;
    /// let waiting = ready.wait(Some(Duration::from_millis(10)));
    /// assert_eq!(waiting.await.unwrap_err().kind(), ErrorKind::Timeout);
    /// assert_eq!(ready.remaining().await?, 1);
    /// # Ok(()) }
    /// ```
    pub async fn wait(&self, timeout: Option<Duration>) -> Result<()> {
        let mut zeros = Rising::default();
        let has_been_zero = |listing: &Listing, seen| {
            let stored = Stored::any(listing, self.count, "wait")?;
            if zeros.has_risen(stored.zeros, seen) {
                return Ok(Some(()));
            }
            let stored = stored.counting_from(self.count, "wait")?;
            Ok((stored.remaining == 0).then_some(()))
        };
        self.queue.until("wait", timeout, has_been_zero).await
    }

    /// Sets the latch back to this handle's count, whatever is stored.
    ///
    /// If the latch was at zero, callers that were waiting are let go all the same. Otherwise they go on waiting.
    ///
    /// # Errors
    ///
    /// Those of [`count_down`](Self::count_down) but `Mismatch`.
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
    /// let ready = coordinator.latch("workers-ready", 1)?;
    /// ready.count_down().await?;
    /// ready.wait(None).await?;
    ///
    /// // For the next round.
    /// ready.reset().await?;
    /// assert_eq!(ready.remaining().await?, 1);
    /// # Ok(()) }
    /// ```
    pub async fn reset(&self) -> Result<()> {
        let count = self.count;
        let step = move |listing: &Listing| {
            // A damaged value is reset as well.
            let zeros = Stored::any(listing, count, "reset").map_or(0, |stored| stored.zeros);
            let fresh = Stored { count, remaining: count, zeros };
            Ok(Change::Write(Some(fresh.data("reset")?), ()))
        };
        self.queue.modify("reset", step).await
    }
}

impl fmt::Debug for Latch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Latch")
            .field("name", &self.name())
            .field("count", &self.count)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::engine::data::stored;

    #[test]
    fn what_the_store_has_is_a_latch_or_damage() {
        let remaining = |data: &str| {
            let latch = Stored::of(&stored::value(data), 2, "remaining");
            latch.map(|latch| latch.remaining).map_err(|error| error.kind())
        };
        assert_eq!(remaining(r#"{"count":2,"remaining":2}"#), Ok(2));
        assert_eq!(remaining(r#"{"count":2,"remaining":0,"zeros":7}"#), Ok(0));
        assert_eq!(remaining(r#"{"count":3,"remaining":2}"#), Err(ErrorKind::Mismatch));
        for damaged in ["", "2", r#"{"count":2}"#, r#"{"count":2,"remaining":127}"#] {
            assert_eq!(remaining(damaged), Err(ErrorKind::Corrupt), "{damaged}");
        }
    }

    /// The store loses what it has, and with it the number of zeros. Then the latch is counted down and reset before the waiter reads.
    #[cfg(all(coordination_internals, feature = "memory"))]
    #[tokio::test(start_paused = true)]
    async fn br3_a_zero_is_noticed_though_the_store_has_lost_those_before() -> Result<()> {
        use tokio::time::{sleep, timeout};

        use crate::Config;
        use crate::simulation::{Clocks, Run, World};

        const TTL: Duration = Duration::from_secs(30);
        let _run = Run::begin(1);
        let (world, client, coordinator) = World::with_one_client(TTL).await?;
        let config = Config { ttl: Some(TTL), ..Config::default() };
        let other = world.client(Clocks::default()).connect(config).await?;
        let (ready, theirs) = (coordinator.latch("ready", 1)?, other.latch("ready", 1)?);
        for _ in 0..2 {
            theirs.count_down().await?;
            theirs.reset().await?;
        }
        let waiting = client.spawn(async move { ready.wait(None).await });
        sleep(TTL / 2).await;
        world.wipe();
        sleep(TTL / 2).await;
        assert!(!waiting.is_finished(), "it was not counted down");
        client.pause();
        theirs.count_down().await?;
        theirs.reset().await?;
        client.resume();
        timeout(TTL, waiting).await.expect("it is let go").expect("no panic")
    }
}
