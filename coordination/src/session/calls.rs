//! Calls to the store on behalf of recipes: how long each may take, and which are repeated, and until when.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use backon::Retryable;
use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::failures::Failures;
use super::lease::Lease;
use super::{LONGEST_RETRY, LONGEST_STOP, Session};
use crate::backend::{Blocker, EntryRef, Mode, NewEntry, Value, Write};
use crate::canary::{Canary, sings};
use crate::env::Process;
use crate::error::{Effect, Error, ErrorKind, LossReason, Result};
use crate::key::QueueKey;
use crate::panics::{caught, on_purpose};
use crate::retry::DecorrelatedJitter;
use crate::time::BootInstant;

/// Whether an earlier try of the call, whose answer was lost, may have been carried out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Doubt(bool);

impl Doubt {
    /// The error of a call that ends with this one.
    fn told(self, error: Error) -> Error {
        if self.0 { error.with_effect(Effect::Unknown) } else { error }
    }
}

/// Which queues are to be listed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Having {
    /// Queues with a live entry.
    AnEntry,
    AValue,
}

/// A task that is aborted when its caller stops waiting.
struct AbortOnDrop(AbortHandle, Process);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        // In a forked child there is no task, and a mutex of its runtime may be locked for ever.
        if self.1.is_this() {
            self.0.abort();
        }
    }
}

/// The outcome of a compare-and-set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Written {
    /// The value has this version now, or was removed.
    Yes(u64),
    /// The value was not the expected one, so nothing was written.
    No,
    /// The value is not the expected one. Our write may have been carried out, and its value replaced by another write.
    Unknown,
}

impl Session {
    /// Makes one call to the store, bounded in time.
    pub(crate) async fn attempt<T>(
        &self,
        ttl: Option<Duration>,
        operation: &'static str,
        call: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let limit = match ttl {
            Some(ttl) => self.settings.call_timeout(ttl),
            None => self.settings.heartbeat.max(LONGEST_RETRY),
        };
        let sent = sings(Canary::DeadlineFromReads).then(BootInstant::now);
        let call = async {
            on_purpose(operation);
            call.await
        };
        let outcome = match tokio::time::timeout(limit, caught(operation, call)).await {
            Ok(answer) => {
                let answer = answer.flatten();
                if let (Some(sent), Some(lease), true) = (sent, self.lease_now(), answer.is_ok()) {
                    lease.extend(sent);
                }
                answer
            }
            Err(_) => Err(Error::new(
                ErrorKind::Unavailable,
                operation,
                format!("no answer within {limit:?}"),
            )
            .with_effect(Effect::Unknown)),
        };
        self.count(operation, &outcome);
        outcome.map_err(|error| error.on_backend(self.backend.scheme()))
    }

    /// Counts a request to the store.
    pub(crate) fn count<T>(&self, operation: &'static str, outcome: &Result<T>) {
        self.origin.meters.request(operation, outcome);
    }

    /// Removes one entry, on stores that can do so without waiting; false: it may be there still.
    fn leave_now(&self, entry: &EntryRef, seq: Option<u64>) -> bool {
        let Some(left) = self.backend.leave_now(entry, seq) else { return false };
        self.count("release", &left);
        left.is_ok()
    }

    /// Waits until an entry is gone, or no longer blocks entries of this mode. May return early.
    pub(crate) async fn gone(
        &self,
        entry: &EntryRef,
        seq: u64,
        mode: Mode,
        recheck: Duration,
    ) -> Result<()> {
        self.watch(self.backend.gone(entry, seq, mode, recheck)).await
    }

    /// Waits until the entry that blocks ours is gone, or no longer blocks it. May return early.
    pub(crate) async fn unblocked(
        &self,
        own: &NewEntry,
        blocker: &Blocker,
        recheck: Duration,
    ) -> Result<()> {
        self.watch(self.backend.unblocked(own, blocker, recheck)).await
    }

    async fn watch(&self, waiting: impl Future<Output = Result<()>>) -> Result<()> {
        let waiting = async {
            on_purpose("gone");
            waiting.await
        };
        let outcome = caught("watch", waiting).await.flatten();
        self.count("watch", &outcome);
        outcome
    }

    /// Repeats a call until its outcome is known or the session is over.
    ///
    /// When an answer is lost, the call may have taken effect, and nothing else may be done under this session until it is known
    /// whether it has (S9 in `docs/guarantees.md`). The call must be idempotent.
    pub(crate) async fn retry_until_settled<T, C>(
        &self,
        lease: &Lease,
        operation: &'static str,
        call: impl Fn() -> C,
    ) -> Result<T>
    where
        C: Future<Output = Result<T>>,
    {
        self.persist_while(lease, operation, call, may_pass).await.map(|(answer, _)| answer)
    }

    /// [`write`](Self::write) on behalf of an entry that waits for its turn: repeated until its outcome is known or the session is over.
    ///
    /// It is not found out whether a write in doubt was carried out: who waits for its turn reads the queue next in any case. If another
    /// server is asked by then than the write is [for](Write::seen), that settles it, too: it is not repeated there.
    pub(crate) async fn write_until_settled(
        &self,
        lease: &Lease,
        operation: &'static str,
        write: &Write,
    ) -> Result<Written> {
        let write = || self.backend.write(write);
        let (version, doubt) = self.persist_while(lease, operation, write, may_pass).await?;
        Ok(match version {
            Some(version) => Written::Yes(version),
            None if doubt.0 => Written::Unknown,
            None => Written::No,
        })
    }

    /// Gives an entry that was entered its new mode and data. If the store has no such entry any more, the entry is lost.
    ///
    /// The effect of an error, also of a loss, is `Unknown` if the update may have been made before.
    pub(crate) async fn update(
        &self,
        lease: &Lease,
        operation: &'static str,
        entry: &NewEntry,
        seq: u64,
    ) -> Result<()> {
        let update = || self.backend.update(entry, seq);
        let (is_there, doubt) = self.persist_while(lease, operation, update, may_pass).await?;
        if is_there {
            return Ok(());
        }
        lease.entry_lost(&entry.entry_ref.id);
        Err(doubt.told(Error::lost(operation, LossReason::EntryDeleted)))
    }

    /// Repeats a call while its error `passes`.
    ///
    /// The error's effect is `Unknown` if the store may have carried out one of the tries. A loss says nothing of that: the session may
    /// end while a try is on its way.
    async fn persist_while<T, C>(
        &self,
        lease: &Lease,
        operation: &'static str,
        call: impl Fn() -> C,
        mut passes: impl FnMut(&Error) -> bool,
    ) -> Result<(T, Doubt)>
    where
        C: Future<Output = Result<T>>,
    {
        let in_doubt = AtomicBool::new(false);
        let tries = (|| async {
            // A try is in doubt from here on until its answer comes, and for good if its answer is lost.
            let before = in_doubt.swap(true, Ordering::Relaxed);
            let outcome = self.attempt(lease.ttl, operation, call()).await;
            let is_lost = outcome.as_ref().is_err_and(|error| error.effect() == Effect::Unknown);
            in_doubt.store(before || is_lost, Ordering::Relaxed);
            outcome
        })
        .retry(self.retry_delays(lease.ttl))
        .sleep(tokio::time::sleep)
        .when(|error| {
            let is_final = error.effect() == Effect::Unknown && sings(Canary::UnknownNotAsked);
            !is_final && passes(error)
        });
        let outcome = tokio::select! {
            biased;
            reason = lease.ended() => Err(Error::lost(operation, reason)),
            outcome = tries => outcome,
        };
        lose_with(lease, &outcome);
        let doubt = Doubt(in_doubt.load(Ordering::Relaxed));
        outcome.map(|answer| (answer, doubt)).map_err(|error| doubt.told(error))
    }

    /// [`retry_until_settled`](Self::retry_until_settled) for an entry that waits in the queue. That the store refuses our login,
    /// or a read of the queue, may pass as well (`F-56`), and that no file descriptor is left (`F-64`), so such calls are repeated too.
    pub(crate) async fn retry_while_waiting<T, C>(
        &self,
        lease: &Lease,
        operation: &'static str,
        call: impl Fn() -> C,
    ) -> Result<T>
    where
        C: Future<Output = Result<T>>,
    {
        let mut is_told = false;
        let passes = |error: &Error| {
            let is_refused = is_refusal(error) || self.backend.lacks_descriptors(error);
            if is_refused && !std::mem::replace(&mut is_told, true) {
                tracing::warn!(%error, "refused while it waits; it goes on waiting");
            }
            is_refused || may_pass(error)
        };
        self.persist_while(lease, operation, call, passes).await.map(|(answer, _)| answer)
    }

    /// Repeats a call that is not about an entry of ours, for as long as a caller may be kept waiting.
    ///
    /// Fails with the last error. Its effect is `Unknown` if the store may have carried out one of the tries.
    pub(crate) async fn retry_briefly<T, C>(
        &self,
        operation: &'static str,
        call: impl Fn() -> C,
    ) -> Result<(T, Doubt)>
    where
        C: Future<Output = Result<T>>,
    {
        let ttl = self.ttl();
        let limit = Instant::now() + ttl.min(LONGEST_STOP);
        let mut delays = self.retry_delays(Some(ttl));
        let mut doubt = Doubt(false);
        loop {
            let error = match self.attempt(Some(ttl), operation, call()).await {
                Ok(answer) => return Ok((answer, doubt)),
                Err(error) => error,
            };
            doubt.0 |= error.effect() == Effect::Unknown;
            let next = Instant::now() + delays.next_delay();
            if !may_pass(&error) || next > limit {
                return Err(doubt.told(error));
            }
            tokio::time::sleep_until(next).await;
        }
    }

    /// Writes a queue's value if it is as expected.
    pub(crate) async fn write(&self, operation: &'static str, write: &Write) -> Result<Written> {
        let (version, doubt) = self.retry_briefly(operation, || self.backend.write(write)).await?;
        Ok(match version {
            Some(version) => Written::Yes(version),
            None if doubt.0 => self.settle(operation, write).await,
            None => Written::No,
        })
    }

    /// Finds out what became of a write that is in doubt: the value may show which write made it, and which version that replaced.
    async fn settle(&self, operation: &'static str, write: &Write) -> Written {
        match self.retry_briefly(operation, || self.backend.read_standing(&write.queue)).await {
            Ok((listing, _)) => judge(write, listing.value.as_ref()),
            Err(_) => Written::Unknown,
        }
    }

    /// The names of the queues of this kind, in order.
    pub(crate) async fn names(
        self: &Arc<Self>,
        operation: &'static str,
        kind: &'static str,
        which: Having,
    ) -> Result<Vec<String>> {
        self.check_open(operation)?;
        let session = Arc::clone(self);
        let listing = async move {
            let (mut names, mut from) = (Vec::new(), None);
            loop {
                let page = || match which {
                    Having::AnEntry => session.backend.queues(kind, from.as_ref()),
                    Having::AValue => session.backend.names(kind, from.as_ref()),
                };
                let (page, _) = session.retry_briefly(operation, page).await?;
                names.extend(page.names);
                from = match page.next {
                    None => break,
                    next => next,
                };
            }
            names.sort_unstable();
            names.dedup();
            Ok(names)
        };
        // A read has no effect, whether its answer came or not.
        let names = self.run_for_caller(operation, listing).await;
        names.map_err(|error| error.with_effect(Effect::None))
    }

    /// Runs a task on the session's runtime that ends with its caller: for what nobody needs once this future is dropped.
    pub(crate) async fn run_for_caller<T: Send + 'static>(
        &self,
        operation: &'static str,
        task: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let task = self.spawn(task);
        let _task = AbortOnDrop(task.abort_handle(), self.process());
        // What the task had sent may have been carried out.
        let ended = |ended| Err(self.unanswered(operation, ended).with_effect(Effect::Unknown));
        task.await.unwrap_or_else(ended)
    }

    /// Removes what unused queues have left at the store; returns the number of queues.
    pub(crate) async fn prune(self: &Arc<Self>, unused: Duration) -> Result<u64> {
        self.check_open("prune")?;
        let session = Arc::clone(self);
        let pruning = async move {
            // Outside of the loop: what a call has removed counts even if the call took too long and is repeated.
            let (removed, mut from) = (AtomicU64::new(0), None);
            loop {
                let page = || session.backend.prune(unused, from.as_ref(), &removed);
                let answer = session.retry_briefly("prune", page).await;
                // What was removed before stays removed.
                let doubt = Doubt(removed.load(Ordering::Relaxed) > 0);
                let (next, _) = answer.map_err(|error| doubt.told(error))?;
                from = match next {
                    None => return Ok(removed.into_inner()),
                    next => next,
                };
            }
        };
        self.run_for_caller("prune", pruning).await
    }

    /// The same for one queue, however recently it was used.
    pub(crate) async fn prune_queue(self: &Arc<Self>, queue: &QueueKey) -> Result<()> {
        self.check_open("prune")?;
        let (session, queue) = (Arc::clone(self), queue.clone());
        let pruning = async move {
            let prune = || session.backend.prune_queue(&queue);
            session.retry_briefly("prune", prune).await.map(drop)
        };
        self.run_for_caller("prune", pruning).await
    }

    /// Removes one entry: repeats the call until the store has confirmed it, or until the session has ended, which removes the
    /// entry too.
    ///
    /// Failures are noted in `failed`.
    async fn leave(
        &self,
        lease: &Lease,
        entry: &EntryRef,
        seq: Option<u64>,
        failed: &Failures,
    ) -> Result<()> {
        let delays = DecorrelatedJitter::new(self.settings.initial_backoff, LONGEST_RETRY);
        let in_doubt = AtomicBool::new(false);
        let tries = (|| self.attempt(lease.ttl, "release", self.backend.leave(entry, seq)))
            .retry(delays)
            .sleep(tokio::time::sleep)
            .when(|error| {
                failed.note(error);
                in_doubt.fetch_or(error.effect() == Effect::Unknown, Ordering::Relaxed);
                error.loss_reason().is_none() && !sings(Canary::OwnerForgottenBeforeRelease)
            });
        let outcome = tokio::select! {
            biased;
            // The entry was held when the release began, and the store may have removed it before the session ended.
            reason = lease.ended() => {
                Err(Error::lost("release", reason).with_effect(Effect::Unknown))
            }
            // The store says that the session is over: an earlier try may have removed the entry before that.
            outcome = tries => {
                outcome.map_err(|error| Doubt(in_doubt.load(Ordering::Relaxed)).told(error))
            }
        };
        lose_with(lease, &outcome);
        outcome
    }

    /// Removes one entry, and waits for the store to confirm it, but no longer than `stop_timeout`.
    ///
    /// The removal goes on in the background when the future is dropped, when the time is over, and after a blocking call that would
    /// wait for itself.
    pub(crate) async fn leave_confirmed(
        self: &Arc<Self>,
        lease: &Arc<Lease>,
        entry: &EntryRef,
        seq: Option<u64>,
    ) -> Result<()> {
        if self.leave_now(entry, seq) {
            return Ok(());
        }
        if let Err(error) = self.check_thread("release") {
            self.leave_by_task(lease, entry.clone(), seq);
            return Err(error.with_effect(Effect::Unknown));
        }
        let (answer, answered) = oneshot::channel();
        let (session, lease, entry) = (Arc::clone(self), Arc::clone(lease), entry.clone());
        self.spawn(async move {
            let failed = Failures::default();
            let leaving = session.leave(&lease, &entry, seq, &failed);
            tokio::pin!(leaving);
            let limit = session.stop_timeout(&lease);
            match tokio::time::timeout(limit, &mut leaving).await {
                Ok(outcome) => drop(answer.send(outcome)),
                Err(_) => {
                    let message = format!("the store did not confirm within {limit:?}");
                    let error = session.late("release", &message, failed.last());
                    drop(answer.send(Err(error.with_effect(Effect::Unknown))));
                    drop(leaving.await);
                }
            }
        });
        let ended = |_| Err(self.ended("release").with_effect(Effect::Unknown));
        answered.await.unwrap_or_else(ended)
    }

    /// [`leave`](Self::leave) in the background. It may be called in `Drop`, on any thread, and in any state of the
    /// session.
    pub(crate) fn leave_in_background(
        self: &Arc<Self>,
        lease: &Arc<Lease>,
        entry: EntryRef,
        seq: Option<u64>,
    ) {
        if lease.loss_reason().is_some() {
            return;
        }
        if !self.leave_now(&entry, seq) {
            self.leave_by_task(lease, entry, seq);
        }
    }

    /// [`leave`](Self::leave) in a task of its own, for which nobody waits.
    fn leave_by_task(self: &Arc<Self>, lease: &Arc<Lease>, entry: EntryRef, seq: Option<u64>) {
        let (session, lease) = (Arc::clone(self), Arc::clone(lease));
        self.spawn(async move {
            let left = session.leave(&lease, &entry, seq, &Failures::default()).await;
            if let Err(error) = left {
                tracing::debug!(%error, "entry ends with its session");
            }
        });
    }
}

/// The outcome of a write that is in doubt, by the value that was found after it.
fn judge(write: &Write, found: Option<&Value>) -> Written {
    match (found.and_then(|value| value.writer), found) {
        (Some(writer), Some(value)) if writer.id == write.id => Written::Yes(value.version),
        // Invariant: of the writes that replace one version only one is carried out, and versions do not come again.
        (Some(writer), _) if Some(writer.replaced) == write.expected => Written::No,
        _ => Written::Unknown,
    }
}

/// If the answer to any call says that the session is over, the lease ends, as it does after such an answer to a heartbeat.
fn lose_with<T>(lease: &Lease, outcome: &Result<T>) {
    if let Err(error) = outcome
        && let Some(reason) = error.loss_reason()
    {
        lease.lose(reason);
    }
}

/// Whether the same call may succeed later, because the store could not be reached or did not answer. Errors of TLS are among
/// them: the server's certificate was valid when the session was opened.
pub(crate) fn may_pass(error: &Error) -> bool {
    use ErrorKind::{Dns, Refused, Tls, Unavailable};
    matches!(error.kind(), Unavailable | Refused | Dns | Tls)
}

/// Whether the store refuses our login, or does not allow the call. For an entry that waits already, this may pass as well.
pub(crate) fn is_refusal(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Auth | ErrorKind::Permission)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Writer;

    /// The files are removed in any order, and one of them cannot be.
    #[cfg(feature = "file")]
    #[tokio::test]
    async fn x1_a_prune_that_fails_tells_of_what_it_has_removed() -> Result<()> {
        const NAMES: usize = 50;
        let directory = tempfile::tempdir().expect("a directory");
        let url = format!("file://{}/locks?network_filesystem=allow", directory.path().display());
        let coordinator = crate::Coordinator::builder().namespace("test").connect(&url).await?;
        for number in 0..NAMES {
            coordinator.lock(number.to_string())?.acquire(None).await?.release().await?;
        }
        let queues = directory.path().join("locks/test/queues");
        std::fs::create_dir(queues.join("lock.directory")).expect("it is ours");
        let refused = coordinator.prune(Duration::ZERO).await.expect_err("it is no file");
        let is_there = |number| queues.join(format!("lock.{number}")).exists();
        let is_untouched = (0..NAMES).all(is_there);
        assert!(is_untouched || refused.effect() == Effect::Unknown, "{refused}");
        Ok(())
    }

    #[test]
    fn a_write_in_doubt_is_settled_by_what_came_after() {
        let queue = QueueKey::new("counter", "hits", 1_024).expect("a name");
        let write = Write { id: 7, ..Write::new(&queue, Some(40), None) };
        let judged = |writer: Option<Writer>| {
            judge(&write, Some(&Value { version: 50, data: "1".into(), writer }))
        };
        assert_eq!(judged(Some(Writer { id: 7, replaced: 40 })), Written::Yes(50));
        assert_eq!(judged(Some(Writer { id: 8, replaced: 40 })), Written::No);
        // Ours may have been written in between, and replaced.
        assert_eq!(judged(Some(Writer { id: 8, replaced: 45 })), Written::Unknown);
        assert_eq!((judged(None), judge(&write, None)), (Written::Unknown, Written::Unknown));
        // The value that our write created may have been removed, and another one created since.
        let creates = Write { id: 7, ..Write::new(&queue, None, None) };
        let other = Some(Writer { id: 8, replaced: 40 });
        let found = Value { version: 50, data: "1".into(), writer: other };
        assert_eq!(judge(&creates, Some(&found)), Written::Unknown);
    }
}
