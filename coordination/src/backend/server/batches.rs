//! The entries that a heartbeat asks after, in batches: a call of its own for each.
//!
//! The call of the first batch extends the lease, and what follows must not make the heartbeat fail. So if the time for a heartbeat is
//! not enough for all batches, or the call of a later one fails, the next heartbeats ask after the rest.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use crate::backend::EntryRef;
use crate::error::Result;

/// How many entries one call asks after, so that no call keeps the server busy for long.
const BATCH: usize = 500;

/// Which batch comes first in the next heartbeat.
#[derive(Default)]
pub(crate) struct Batches {
    next: AtomicUsize,
}

/// The batches of one heartbeat.
pub(crate) struct Round<'a> {
    all: &'a Batches,
    held: &'a [EntryRef],
    /// The index of the batch with which this heartbeat began.
    first: usize,
    done: usize,
    begun: Instant,
    /// How long the heartbeat may take.
    patience: Duration,
}

impl Batches {
    /// Begins a heartbeat that may take as long as `patience`. It goes on where the last one stopped.
    pub(crate) fn round<'a>(&'a self, held: &'a [EntryRef], patience: Duration) -> Round<'a> {
        let first = self.next.load(Ordering::Relaxed);
        Round { all: self, held, first, done: 0, begun: Instant::now(), patience }
    }
}

impl<'a> Round<'a> {
    /// The next batch to ask after; `None`: there are no more, or the time that is left is too short for another call. If nothing is
    /// held, there is one empty batch, because its call also extends the lease.
    pub(crate) fn next(&mut self) -> Option<&'a [EntryRef]> {
        let count = self.held.len().div_ceil(BATCH).max(1);
        let is_late = self.done > 0 && self.begun.elapsed() > self.patience / 4;
        if self.done == count || is_late {
            return None;
        }
        let nth = (self.first + self.done) % count;
        self.done += 1;
        // Noted before the call, so that the next heartbeat begins with another batch even if this call fails. Otherwise a batch whose
        // call always fails would keep the other batches from being asked after.
        self.all.next.store(nth + 1, Ordering::Relaxed);
        Some(self.held.chunks(BATCH).nth(nth).unwrap_or_default())
    }

    /// Makes the call of the batch that [`next`](Self::next) has returned. `None`: a later call than the first has failed, or was given
    /// up in time before the whole heartbeat would be; the lease is extended all the same.
    pub(crate) async fn ask<T>(&self, call: impl Future<Output = Result<T>>) -> Result<Option<T>> {
        if self.done == 1 {
            return call.await.map(Some);
        }
        match timeout_at(self.begun + self.patience * 3 / 4, call).await {
            Ok(Err(error)) if error.loss_reason().is_some() => Err(error),
            answer => Ok(answer.ok().and_then(Result::ok)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use tokio::time::advance;

    use super::*;
    use crate::backend::{EntryId, SessionId};
    use crate::error::{Error, ErrorKind, LossReason};
    use crate::key::QueueKey;

    const PATIENCE: Duration = Duration::from_secs(1);

    /// Entries for this many full batches and one entry more.
    fn held(batches: usize) -> Vec<EntryRef> {
        let (queue, session) =
            (QueueKey::new("lock", "a", 10).expect("a valid name"), SessionId::random());
        let entry = |_| EntryRef { queue: queue.clone(), id: EntryId::random(session) };
        (0..=batches * BATCH).map(entry).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_later_batch_does_not_fail_the_heartbeat() -> Result<()> {
        let (batches, held) = (Batches::default(), held(2));
        let mut round = batches.round(&held, PATIENCE);
        assert_eq!(round.next().map(<[_]>::len), Some(BATCH));
        advance(PATIENCE / 5).await;
        assert_eq!(round.ask(ready(Ok(1))).await?, Some(1));
        assert_eq!(round.next().map(<[_]>::len), Some(BATCH));
        let begun = Instant::now();
        assert_eq!(round.ask(pending::<Result<()>>()).await?, None);
        assert!(begun.elapsed() < PATIENCE * 3 / 5);
        assert!(round.next().is_none(), "it is late");
        // The next heartbeat begins with the batch after the one that was too slow.
        let mut round = batches.round(&held, PATIENCE);
        let lengths = [(); 4].map(|()| round.next().map(<[_]>::len));
        assert_eq!(lengths, [Some(1), Some(BATCH), Some(BATCH), None]);
        Ok(())
    }

    #[tokio::test(start_paused = true)]
    async fn only_the_first_call_and_a_loss_fail_the_heartbeat() -> Result<()> {
        let (batches, held) = (Batches::default(), held(1));
        let fails = || ready(Err::<(), _>(Error::new(ErrorKind::Unavailable, "renew", "no")));
        let mut round = batches.round(&held, PATIENCE);
        round.next();
        assert!(round.ask(fails()).await.is_err());
        round.next();
        assert_eq!(round.ask(fails()).await?, None);
        let lost = Error::lost("renew", LossReason::ExpiredByServer);
        assert!(round.ask(ready(Err::<(), _>(lost))).await.is_err());
        // If nothing is held, there is one call.
        let mut round = batches.round(&[], PATIENCE);
        assert_eq!(
            [round.next(), round.next()].map(|batch| batch.map(<[_]>::len)),
            [Some(0), None]
        );
        Ok(())
    }
}
