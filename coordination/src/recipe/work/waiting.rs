//! Claims that wait until an item is ready.

use std::time::Duration;

use tokio::time::Instant;

use super::clock::longer;
use super::delivery::DELIVERY;
use super::engine::Look;
use super::layout::Micros;
use super::types::{ClaimOptions, duration};
use super::{WorkClaim, WorkQueue};
use crate::env::Unforked;
use crate::error::{Effect, ErrorKind, Result};
use crate::session::{Purpose, Sight, Views, is_refusal, may_pass};

/// How long one who waits relies on being told of changes, where it has reason to ask itself.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// How long one who waits for an item leaves letters that are not delivered to other processes, before it tries to deliver them. All
/// who wait in one process try no more often together.
const LETTERS_AGAIN: Duration = Duration::from_secs(5);

impl WorkQueue {
    /// [`claim`](Self::claim) that waits until an item is ready, for at most `timeout`; `None` waits for ever, zero tries
    /// once.
    ///
    /// Answers `None` when the time is over. Of those who wait, any may be first.
    ///
    /// # Errors
    ///
    /// Those of [`claim`](Self::claim). The call waits through an outage of the store. Once it has found nothing ready, it also
    /// goes on waiting while the store refuses the credentials, or denies a right. If such a failure lasts until the time is
    /// over, the call fails with it. With [`Effect::Unknown`] one of the tries may have claimed items, which are given back.
    ///
    /// # Cancel safety
    ///
    /// As for [`claim`](Self::claim).
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use coordination::{ClaimOptions, NewItem};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let jobs = coordinator.queue("resize-jobs")?;
    /// let items = [NewItem::new("vol-7")];
    /// let waiting = jobs.claim_wait(ClaimOptions::default(), Some(Duration::from_secs(5)));
    /// let (claim, _) = tokio::try_join!(waiting, jobs.post(&items))?;
    /// assert_eq!(claim.expect("an item was posted").items().len(), 1);
    /// # Ok(()) }
    /// ```
    pub async fn claim_wait(
        &self,
        options: ClaimOptions,
        timeout: Option<Duration>,
    ) -> Result<Option<WorkClaim>> {
        self.check_claim(&options)?;
        if timeout.is_some_and(|timeout| timeout.is_zero()) {
            return self.claim(options).await;
        }
        let (mut failed, mut in_doubt) = (None, false);
        let claiming = async {
            let (mut views, delays) = (None, || self.session().retry_delays(None));
            let mut pauses = delays();
            loop {
                match self.claim(options.clone()).await {
                    Ok(Some(claim)) => return Ok(claim),
                    Ok(None) => (failed, pauses) = (None, delays()),
                    // Goes on waiting after the same errors as those who wait with an entry, for a lock for instance.
                    Err(error)
                        if may_pass(&error)
                            || error.kind() == ErrorKind::Lost
                            || views.is_some() && is_refusal(&error) =>
                    {
                        let is_told = failed.as_ref().is_some_and(is_refusal);
                        if is_refusal(&error) && !is_told {
                            tracing::warn!(%error, "refused while it waits; it goes on waiting");
                        }
                        in_doubt |= error.effect() == Effect::Unknown;
                        failed = Some(error);
                        // Tries again without waiting for a change: items may have been ready all the time.
                        let next = Instant::now() + pauses.next_delay();
                        self.engine.queue.sleep_until("claim", next).await?;
                        continue;
                    }
                    Err(error) => return Err(error),
                }
                let views = views.get_or_insert_with(|| self.engine.queue.observe(Sight::Standing));
                self.until_ready(views).await?;
            }
        };
        // Dropped in a forked child, it would wait for a mutex that a thread of the parent may have locked.
        let refused = Unforked::new(Box::pin(self.session().refuses("claim", Purpose::Work)));
        let claimed = tokio::select! {
            biased;
            claimed = claiming => Some(claimed),
            refused = refused => Some(self.engine.queue.named(Err(refused))),
            () = self.engine.queue.out_of_time(timeout) => None,
        };
        let claimed = match claimed {
            Some(claimed) => claimed.map(Some),
            None => failed.map_or(Ok(None), Err),
        };
        // What an earlier try may have claimed is given back in the background.
        claimed.map_err(|error| match in_doubt {
            true => error.with_effect(Effect::Unknown),
            false => error,
        })
    }

    /// Waits until an item may be ready, or what was known is old.
    async fn until_ready(&self, views: &mut Views) -> Result<()> {
        let mut view = tokio::select! {
            next = views.next() => self.engine.queue.named(next)?,
            // The queue is as it was: perhaps it was looked at too soon, by another clock.
            () = self.engine.queue.out_of_time(Some(LOOK_AGAIN)) => return Ok(()),
        };
        let mut letters_at = Instant::now() + LETTERS_AGAIN;
        loop {
            let look = self.engine.read("claim", &view.listing, view.came.elapsed());
            let look = self.engine.queue.named(look)?;
            let wake = match is_ready(&look) {
                Ok(()) if self.engine.is_new(&look) => return Ok(()),
                // It is told of late, or the store was given back older data.
                Ok(()) => Some(LOOK_AGAIN),
                Err(wake) => wake.map(|wake| wait_for(wake, &look)),
            };
            let until = letters_at.saturating_duration_since(Instant::now());
            let letters_in = look.head.has_letters().then_some(until);
            tokio::select! {
                next = views.next() => view = self.engine.queue.named(next)?,
                () = self.engine.queue.out_of_time(wake), if wake.is_some() => return Ok(()),
                // Nobody else may come who would deliver the letters. Whatever else happens in the queue puts this off no longer.
                () = self.engine.queue.out_of_time(letters_in), if letters_in.is_some() => {
                    letters_at = Instant::now() + LETTERS_AGAIN;
                    if self.engine.is_delivery_due(LETTERS_AGAIN) {
                        self.engine.note_letters(&look.head);
                        let queue = self.clone();
                        // On the session's runtime, as the caller may have none.
                        let delivering = async move {
                            queue.deliver_briefly(DELIVERY).await;
                            Ok(())
                        };
                        self.engine.queue.run("claim", delivering).await?;
                    }
                }
            }
        }
    }
}

/// Whether an item may be ready; if not, when the next one may be by time alone.
fn is_ready(look: &Look) -> Result<(), Option<Micros>> {
    let (now, live) = (look.moment.now, &look.head.live);
    let is_dead = |holder: &u64| look.entries.binary_search(holder).is_err();
    let groups = live.groups.values().filter(|group| group.is_alive(now));
    match live.holders.iter().any(is_dead) || groups.clone().any(|group| group.may_be_ready(now)) {
        true => Ok(()),
        false => Err(groups.map(|group| group.wake).min().filter(|wake| *wake < Micros::MAX)),
    }
}

/// How long to wait by our own clock until then.
fn wait_for(wake: Micros, look: &Look) -> Duration {
    let left = wake.saturating_sub(look.moment.now);
    // As long as nobody writes, the clock of this host is the queue's, if one of its processes has written last.
    let is_of_host = look.moment.is_witnessed && look.moment.is_exact;
    duration(if look.has_clock || is_of_host { left } else { longer(left) })
}
