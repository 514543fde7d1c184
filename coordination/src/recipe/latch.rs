//! The latch: counts down to zero, once, and then lets all who wait go on.
//!
//! The count is the queue's value. It belongs to no session, so a count stays when the process that counted is gone.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::engine::data::{MAX_VALUE_BYTES, from_data, to_data};
use super::engine::queue::{Change, Queue};
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

/// Lets all who wait go on when it has been counted down to zero. Made by [`Coordinator::latch`], without
/// I/O; cheap to clone.
///
/// Counts belong to nobody: they stay when the process that counted is gone. If a process is gone before it
/// has counted, its count is missing for ever; if it counts twice, it is counted twice. The latch stays at
/// zero until it is [`reset`](Self::reset).
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
}

impl Stored {
    fn of(listing: &Listing, count: u32, operation: &'static str) -> Result<Self> {
        let Some(value) = &listing.value else { return Ok(Self { count, remaining: count }) };
        let stored: Self = from_data(operation, &value.data)?;
        if stored.remaining > stored.count {
            let message = "the store has a latch of which more remains than it counts from";
            return Err(Error::new(ErrorKind::Corrupt, operation, message));
        }
        if stored.count == count {
            return Ok(stored);
        }
        let message = format!("the latch counts from {}, and {count} was asked for", stored.count);
        Err(Error::new(ErrorKind::Mismatch, operation, message))
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

    /// Counts down by one, and returns what remains. At zero it stays zero.
    ///
    /// # Errors
    ///
    /// * [`ErrorKind::Mismatch`]: the latch is stored with another count.
    /// * Those of a store that refuses or does not answer. With
    ///   [`Effect::Unknown`](crate::Effect::Unknown) it may have been counted; never twice.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the call goes on in the background.
    pub async fn count_down(&self) -> Result<u32> {
        let count = self.count;
        let step = move |listing: &Listing| {
            let stored = Stored::of(listing, count, "count_down")?;
            let Some(remaining) = stored.remaining.checked_sub(1) else {
                return Ok(Change::Keep(0));
            };
            let data = Stored { remaining, ..stored }.data("count_down")?;
            Ok(Change::Write(Some(data), remaining))
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

    /// Waits until it has been counted down to zero.
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
    pub async fn wait(&self, timeout: Option<Duration>) -> Result<()> {
        let is_zero = |listing: &Listing| {
            let stored = Stored::of(listing, self.count, "wait")?;
            Ok((stored.remaining == 0).then_some(()))
        };
        self.queue.until("wait", timeout, is_zero).await
    }

    /// Sets it back to this handle's count, whatever is stored.
    ///
    /// Those who wait go on waiting. A waiter that has not seen the zero yet misses it.
    ///
    /// # Errors
    ///
    /// Those of [`count_down`](Self::count_down) but `Mismatch`.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the call goes on in the background.
    pub async fn reset(&self) -> Result<()> {
        let fresh = Stored { count: self.count, remaining: self.count };
        let step = move |_: &Listing| Ok(Change::Write(Some(fresh.data("reset")?), ()));
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
        assert_eq!(remaining(r#"{"count":3,"remaining":2}"#), Err(ErrorKind::Mismatch));
        for damaged in ["", "2", r#"{"count":2}"#, r#"{"count":2,"remaining":127}"#] {
            assert_eq!(remaining(damaged), Err(ErrorKind::Corrupt), "{damaged}");
        }
    }
}
