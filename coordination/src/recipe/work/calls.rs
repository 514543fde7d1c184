//! The calls of a queue of work: each checks its arguments, and makes its step.

use std::sync::Arc;
use std::time::Duration;

use rand::RngExt;

use super::claim::Renewed;
use super::draft::{Draft, Outcome, Step};
use super::layout::{Micros, Poison};
use super::look::{self, Which};
use super::post::{self, New};
use super::precedence::SHORT_COURTESY;
use super::types::{
    Ack, ClaimOptions, ClaimView, Collected, ListOptions, MOST, NewItem, WorkItem, WorkStats,
    duration, encoded, in_range, micros,
};
use super::{ClaimId, ItemId, WorkClaim, WorkQueue, ask, bring_back_then, claim, clear, items};
use crate::env;
use crate::env::Unforked;
use crate::error::{ErrorKind, Result};
use crate::session::{Purpose, Sight, is_refusal, may_pass};
use crate::time::BootInstant;

/// How many dead items and claims that are over `gc` removes if no budget is given.
const BUDGET: usize = 100;

impl WorkQueue {
    /// Sets for all processes what becomes of items that were claimed `max_claims` times without being acknowledged: the next
    /// call that would hand out such an item moves it to the queue `dead_letters`. There it lives for `ttl`; without one, for
    /// what is left of its life.
    ///
    /// It keeps the number of its claims there. So two queues are not to be each other's queue of dead letters: an item that was
    /// claimed often enough for both would go to and fro between them.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Input`]: `max_claims` is zero, `dead_letters` is this queue or one of another coordinator, or the ttl is
    /// not in the limits. Or those of a store that refuses or does not answer.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the call goes on in the background.
    ///
    /// # Examples
    ///
    /// ```
    /// use coordination::{ClaimOptions, ListOptions, NewItem};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let (jobs, failed) = (coordinator.queue("jobs")?, coordinator.queue("failed-jobs")?);
    /// jobs.set_dead_letters(1, &failed, None).await?;
    /// jobs.post(&[NewItem::new("vol-7")]).await?;
    ///
    /// // Claimed once, and not acknowledged.
    /// let claim = jobs.claim(ClaimOptions::default()).await?.expect("an item is ready");
    /// claim.release().await?;
    /// assert!(jobs.claim(ClaimOptions::default()).await?.is_none());
    /// let letters = failed.list(ListOptions::default()).await?;
    /// assert_eq!(letters[0].body(), b"vol-7");
    /// # Ok(()) }
    /// ```
    pub async fn set_dead_letters(
        &self,
        max_claims: u32,
        dead_letters: &WorkQueue,
        ttl: Option<Duration>,
    ) -> Result<()> {
        let mut outcome = in_range("max_claims", &max_claims, &(1..=u32::MAX));
        if dead_letters.name() == self.name() {
            outcome = outcome.and(Err("a queue cannot be its own dead letter queue".to_owned()));
        }
        // Letters go by the queue's name alone, and to a queue of this store and namespace.
        if !Arc::ptr_eq(dead_letters.session(), self.session()) {
            let message = "the dead letter queue has to be of the same coordinator";
            outcome = outcome.and(Err(message.to_owned()));
        }
        let in_limits = |ttl| in_range("dead_letter_ttl", &ttl, &self.limits.item_ttl);
        self.input("set_dead_letters", outcome.and(ttl.map_or(Ok(()), in_limits)))?;
        let queue = dead_letters.name().to_owned();
        let poison = Poison { max_claims, queue, ttl: ttl.map(micros) };
        self.run("set_dead_letters", move |draft| {
            draft.adds = true;
            draft.change().poison = Some(poison.clone());
            Ok(Outcome::Done(()))
        })
        .await
    }

    /// Appends 1 to 1,000 items, all or none, and answers their names in the same order.
    ///
    /// # Errors
    ///
    /// * [`ErrorKind::Input`]: there is no item or too many, a body is larger than 256 KiB, all together are larger than
    ///   352 KiB as they are stored (in base64, and 160 bytes for each), or a ttl or a delay is not in the limits.
    /// * [`ErrorKind::Unavailable`] and the other kinds of a store that refuses or does not answer. With
    ///   [`Effect::Unknown`](crate::Effect::Unknown) they may have been posted.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the call goes on in the background.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use coordination::NewItem;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let jobs = coordinator.queue("resize-jobs")?;
    /// let later = NewItem::new("vol-8").delay(Duration::from_secs(60));
    /// let names = jobs.post(&[NewItem::new("vol-7"), later]).await?;
    /// assert_eq!(names.len(), 2);
    ///
    /// let stats = jobs.stats().await?;
    /// assert_eq!((stats.ready, stats.delayed), (1, 1));
    /// # Ok(()) }
    /// ```
    pub async fn post(&self, items: &[NewItem]) -> Result<Vec<ItemId>> {
        self.input("post", in_range("the number of items", &items.len(), &(1..=MOST)))?;
        items.iter().try_for_each(|item| self.input("post", self.check(item)))?;
        let bodies = encoded(items).map_err(|message| self.refused("post", message))?;
        let new = |(item, body): (&NewItem, String)| New {
            body,
            ttl: micros(item.ttl),
            delay: micros(item.delay),
            claims: 0,
            mark: env::rng().random(),
        };
        let new: Vec<_> = items.iter().zip(bodies).map(new).collect();
        let step = move |draft: &mut Draft<'_>| -> Step<_> {
            let posted = post::post(draft, &new)?;
            let left = post::left_to_tidy(draft, &new);
            Ok(posted.map(|ids| (ids, left)))
        };
        let (ids, left) = self.run("post", step).await?;
        self.engine.tidy_later(left);
        Ok(ids)
    }

    fn check(&self, item: &NewItem) -> Result<(), String> {
        in_range("ttl", &item.ttl, &self.limits.item_ttl)?;
        in_range("delay", &item.delay, &self.limits.delay)?;
        match item.delay < item.ttl {
            true => Ok(()),
            false => Err(format!("delay is {:?}, and must be less than ttl", item.delay)),
        }
    }

    /// Claims ready items, the oldest first; `None`: none is ready.
    ///
    /// The claim ends with the session of this process. The bodies of its items have 1 MiB together at the most, in base64. If
    /// ready items are few and far between, or more than 500 are asked for, the claim may have fewer items than are ready.
    ///
    /// # Errors
    ///
    /// * [`ErrorKind::Input`]: an option is not in the limits, or this process has 1,000 claims of the queue.
    /// * [`ErrorKind::Lost`]: the session ended meanwhile.
    /// * [`ErrorKind::Unavailable`] and the other kinds of a store that refuses or does not answer. What may have been
    ///   claimed is given back.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, what is claimed after that is given back.
    ///
    /// # Examples
    ///
    /// ```
    /// use coordination::{ClaimOptions, NewItem};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let jobs = coordinator.queue("resize-jobs")?;
    /// assert!(jobs.claim(ClaimOptions::default()).await?.is_none());
    /// jobs.post(&[NewItem::new("vol-7"), NewItem::new("vol-8")]).await?;
    ///
    /// let first = jobs.claim(ClaimOptions::default().limit(1)).await?.expect("two are ready");
    /// let second = jobs.claim(ClaimOptions::default()).await?.expect("one is left");
    /// assert_eq!(second.items()[0].body(), b"vol-8");
    /// assert!(second.token() > first.token());
    /// # Ok(()) }
    /// ```
    pub async fn claim(&self, options: ClaimOptions) -> Result<Option<WorkClaim>> {
        self.check_claim(&options)?;
        let queue = self.clone();
        let (caller, gone) = tokio::sync::oneshot::channel::<()>();
        // Dropping it wakes the task, which a forked child must not do.
        let caller = Unforked::new(caller);
        // All of it in a task: a caller that is no longer polled must not keep others waiting for the entry of this process. And
        // if the caller is gone before there is an entry, nothing is claimed.
        let claim = async move {
            let holder = tokio::select! {
                biased;
                _ = gone => return Ok(None),
                holder = queue.holder() => holder?,
            };
            // A stop waits until the claim is held, or was taken back: otherwise it would count against the items' `max_claims`.
            let _claiming = queue.session().finishing();
            // After it is noted: a stop that has begun before is seen here, and one that begins later waits.
            queue.session().admit("claim", Purpose::Work)?;
            queue.claim_here(&options, holder).await
        };
        let claimed = self.engine.queue.run("claim", claim).await;
        drop(caller);
        let claimed = claimed?;
        Ok(claimed.map(WorkClaim::had))
    }

    /// [`claim`](Self::claim) that waits until an item is ready, for at most `timeout`; `None` waits for ever, zero tries
    /// once.
    ///
    /// Answers `None` when the time is over. Of those who wait, any may be first.
    ///
    /// # Errors
    ///
    /// Those of [`claim`](Self::claim). The call waits through an outage of the store. Once it has found nothing ready, it also
    /// goes on waiting while the store refuses the credentials, or denies a right. If such a failure lasts until the time is
    /// over, the call fails with it.
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
        let mut failed = None;
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
                        failed = Some(error);
                        // Tries again without waiting for a change: items may have been ready all the time.
                        self.engine.queue.out_of_time(Some(pauses.next_delay())).await;
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
            claimed = claiming => Some(claimed?),
            refused = refused => {
                return self.engine.queue.named(Err(refused));
            }
            () = self.engine.queue.out_of_time(timeout) => None,
        };
        match (claimed, failed) {
            (None, Some(error)) => Err(error),
            (claimed, _) => Ok(claimed),
        }
    }

    /// Claims items under an id that the caller has chosen. The id is a capability: whoever has it can use the claim, which
    /// does not end with the session of this process. For services that claim for their own callers.
    ///
    /// A call with the same id answers the claim that the first one made, as long as that is live.
    ///
    /// # Errors
    ///
    /// Those of [`claim`](Self::claim), and [`ErrorKind::ClaimIdReused`]: a claim of this id is over. [`ErrorKind::Input`] also
    /// where the id was read from text that is no name of a claim.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the call goes on in the background.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use coordination::{Ack, ClaimId, ClaimOptions, NewItem};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let jobs = coordinator.queue("resize-jobs")?;
    /// jobs.post(&[NewItem::new("vol-7")]).await?;
    /// let id = ClaimId::random();
    /// let claim = jobs.claim_as(id, ClaimOptions::default()).await?.expect("one is ready");
    /// // Asked for again, as after a lost answer.
    /// let again = jobs.claim_as(id, ClaimOptions::default()).await?.expect("it is the same");
    /// assert_eq!(again.token, claim.token);
    ///
    /// jobs.renew(id, Some(Duration::from_secs(60)), None).await?;
    /// assert_eq!(jobs.ack(claim.items[0].id(), id).await?, Ack::Done);
    /// # Ok(()) }
    /// ```
    pub async fn claim_as(&self, id: ClaimId, options: ClaimOptions) -> Result<Option<ClaimView>> {
        self.check_claim(&options)?;
        if id.is_nothing() {
            return Err(self.refused("claim", "this is no name of a claim".to_owned()));
        }
        let queue = self.clone();
        let claim = async move {
            queue.take(&ask(id, &options, None), None, &mut BootInstant::now()).await
        };
        let taken = self.engine.queue.run("claim", claim).await?;
        taken.map(ClaimView::of).transpose()
    }

    /// Takes a claim back that was made by [`claim_as`](Self::claim_as) and that its caller never got, as if it had not been made:
    /// the items are free, and this claim does not count for [`set_dead_letters`](Self::set_dead_letters). If the store has
    /// not made the claim yet, it refuses it when it comes. For services whose own caller is gone.
    ///
    /// Returns at once, and may be called in `Drop`. The call goes on in the background, also if what is returned is dropped, for ten
    /// minutes if the store does not answer. [`Coordinator::stop_within`](crate::Coordinator::stop_within) waits for it.
    /// [`Coordinator::stop`](crate::Coordinator::stop) does not: await what is returned before, which resolves when the call is over.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect.
    ///
    /// # Examples
    ///
    /// ```
    /// use coordination::{ClaimId, ClaimOptions, NewItem};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let jobs = coordinator.queue("resize-jobs")?;
    /// jobs.post(&[NewItem::new("vol-7")]).await?;
    /// let id = ClaimId::random();
    /// jobs.claim_as(id, ClaimOptions::default()).await?;
    /// jobs.undo_claim(id).await;
    /// let again = jobs.claim(ClaimOptions::default()).await?.expect("it is ready again");
    /// assert_eq!(again.items()[0].claims(), 1);
    /// # Ok(()) }
    /// ```
    pub fn undo_claim(&self, id: ClaimId) -> impl Future<Output = ()> + Send + use<> {
        let undoing = self.release_later(id, Duration::ZERO, None, false);
        // If its runtime has ended, nobody goes on with it.
        async move { undoing.await.unwrap_or(()) }
    }

    /// The claim of this name, with the items that it still has.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NoSuchClaim`]: there never was such a claim, or it is over. Or those of a store that refuses or does not
    /// answer.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future ends the call. It changes no item and no claim, and may have an entry in the queue for a moment where
    /// many write.
    ///
    /// # Examples
    ///
    /// ```
    /// use coordination::{ClaimId, ClaimOptions, ErrorKind, NewItem};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let jobs = coordinator.queue("resize-jobs")?;
    /// jobs.post(&[NewItem::new("vol-7")]).await?;
    /// let id = ClaimId::random();
    /// jobs.claim_as(id, ClaimOptions::default()).await?;
    /// assert_eq!(jobs.get(id).await?.items[0].body(), b"vol-7");
    ///
    /// assert_eq!(jobs.release(id).await?, 1);
    /// assert_eq!(jobs.get(id).await.unwrap_err().kind(), ErrorKind::NoSuchClaim);
    /// # Ok(()) }
    /// ```
    pub async fn get(&self, id: ClaimId) -> Result<ClaimView> {
        let seen = self.look("get", move |draft| claim::seen(draft, id)).await?;
        ClaimView::of(seen)
    }

    /// Renews a claim, as [`WorkClaim::renew`].
    ///
    /// # Errors
    ///
    /// Those of [`WorkClaim::renew`].
    ///
    /// # Cancel safety
    ///
    /// As for [`WorkClaim::renew`].
    pub async fn renew(
        &self,
        id: ClaimId,
        ttl: Option<Duration>,
        grace: Option<Duration>,
    ) -> Result<Duration> {
        let terms = self.check_renewal(ttl, grace)?;
        let queue = self.clone();
        let renewing = async move {
            let renewed = queue.renew_here(id, terms, SHORT_COURTESY).await?;
            Ok(duration(renewed.lasts))
        };
        self.engine.queue.run("renew", renewing).await
    }

    pub(super) fn check_renewal(
        &self,
        ttl: Option<Duration>,
        grace: Option<Duration>,
    ) -> Result<(Option<Micros>, Option<Micros>)> {
        let of_ttl = ttl.map_or(Ok(()), |ttl| in_range("ttl", &ttl, &self.limits.claim_ttl));
        let of_grace = grace.map_or(Ok(()), |grace| in_range("grace", &grace, &self.limits.grace));
        self.input("renew", of_ttl.and(of_grace))?;
        Ok((ttl.map(micros), grace.map(micros)))
    }

    /// [`renew`](Self::renew) for callers that are in a task of the session. It goes before other calls of this process, and
    /// lets other processes go first for `courtesy` at the most.
    pub(super) async fn renew_here(
        &self,
        id: ClaimId,
        (ttl, grace): (Option<Micros>, Option<Micros>),
        courtesy: Duration,
    ) -> Result<Renewed> {
        let step = move |draft: &mut Draft<'_>, _: &[u64]| claim::renew(draft, id, ttl, grace);
        let renewed = self.engine.run_first("renew", courtesy, step).await;
        self.engine.follow();
        renewed
    }

    /// Ends a claim and answers how many items are free by that: none, if there is no such claim.
    ///
    /// # Errors
    ///
    /// The [kinds of error](crate::ErrorKind) of a store that refuses or does not answer.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the call goes on in the background.
    pub async fn release(&self, id: ClaimId) -> Result<usize> {
        self.run("release", move |draft| claim::release(draft, id)).await
    }

    pub(super) async fn detach(&self, id: ClaimId) -> Result<()> {
        self.run("detach", move |draft| claim::detach(draft, id)).await
    }

    /// Removes an item that this claim has, as [`WorkClaim::ack`].
    ///
    /// # Errors
    ///
    /// Those of [`WorkClaim::ack`].
    ///
    /// # Cancel safety
    ///
    /// As for [`WorkClaim::ack`].
    pub async fn ack(&self, item: ItemId, claim: ClaimId) -> Result<Ack> {
        Ok(if self.ack_many(&[item], claim).await? > 0 { Ack::Done } else { Ack::AlreadyGone })
    }

    /// Removes items that this claim has, all or none; those that are gone are passed over. Answers how many it removed.
    ///
    /// # Errors
    ///
    /// Those of [`WorkClaim::ack`], of the first item that has one, and [`ErrorKind::Input`]: there are more than 1,000.
    ///
    /// # Cancel safety
    ///
    /// As for [`WorkClaim::ack`].
    pub async fn ack_many(&self, items: &[ItemId], claim: ClaimId) -> Result<usize> {
        self.input("ack", in_range("the number of items", &items.len(), &(0..=MOST)))?;
        let items = items.to_vec();
        self.run("ack", move |draft| items::ack(draft, &items, claim)).await
    }

    /// Removes those of these items that the claim still has.
    pub(super) async fn ack_left(&self, items: Vec<ItemId>, claim: ClaimId) -> Result<usize> {
        self.run("ack", move |draft| items::ack_left(draft, &items, claim)).await
    }

    /// Gives an item back that this claim has, as [`WorkClaim::nack`].
    ///
    /// # Errors
    ///
    /// Those of [`WorkClaim::nack`], also for a call that is repeated.
    ///
    /// # Cancel safety
    ///
    /// As for [`WorkClaim::nack`].
    pub async fn nack(&self, item: ItemId, claim: ClaimId, delay: Duration) -> Result<Ack> {
        self.input("nack", in_range("delay", &delay, &self.limits.delay))?;
        let delay = micros(delay);
        let done = self.run("nack", move |draft| items::nack(draft, item, claim, delay)).await?;
        Ok(if done { Ack::Done } else { Ack::AlreadyGone })
    }

    /// Removes an item that no claim has; false: it was gone.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::IsClaimed`]: a claim has it. Or those of a store that refuses or does not answer.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the call goes on in the background.
    ///
    /// # Examples
    ///
    /// ```
    /// use coordination::{ClaimOptions, ErrorKind, NewItem};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let jobs = coordinator.queue("resize-jobs")?;
    /// let names = jobs.post(&[NewItem::new("vol-7")]).await?;
    /// let claim = jobs.claim(ClaimOptions::default()).await?;
    /// assert_eq!(jobs.delete(names[0]).await.unwrap_err().kind(), ErrorKind::IsClaimed);
    /// // An operator removes it all the same.
    /// assert!(jobs.force_delete(names[0]).await?);
    /// # drop(claim);
    /// # Ok(()) }
    /// ```
    pub async fn delete(&self, item: ItemId) -> Result<bool> {
        self.run("delete", move |draft| items::delete(draft, item, false)).await
    }

    /// Removes an item, also one that a claim has: for operators. False: it was gone.
    ///
    /// # Errors
    ///
    /// The [kinds of error](crate::ErrorKind) of a store that refuses or does not answer.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the call goes on in the background.
    pub async fn force_delete(&self, item: ItemId) -> Result<bool> {
        self.run("delete", move |draft| items::delete(draft, item, true)).await
    }

    /// Removes ready items and answers them, in one step: each item is handed out once at most, and is lost if the answer is
    /// lost.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Input`]: `limit` is not in the limits. Or those of a store that refuses or does not answer; with
    /// [`Effect::Unknown`](crate::Effect::Unknown) items may be gone.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the items may be gone.
    ///
    /// # Examples
    ///
    /// ```
    /// use coordination::NewItem;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// // For items that may be lost, such as hints: one call, and no claim.
    /// let hints = coordinator.queue("cache-hints")?;
    /// hints.post(&[NewItem::new("vol-7"), NewItem::new("vol-8")]).await?;
    /// let popped = hints.pop(10).await?;
    /// assert_eq!((popped[0].body(), popped[1].body()), (&b"vol-7"[..], &b"vol-8"[..]));
    /// assert_eq!(hints.stats().await?.total(), 0);
    /// # Ok(()) }
    /// ```
    pub async fn pop(&self, limit: usize) -> Result<Vec<WorkItem>> {
        self.input("pop", in_range("limit", &limit, &self.limits.limit))?;
        let queue = self.clone();
        let popping = async move {
            let step = |draft: &mut Draft<'_>, entries: &[u64]| {
                bring_back_then(draft, entries, |draft| items::pop(draft, limit))
            };
            let popped = queue.engine.run_here("pop", step).await?;
            queue.engine.follow();
            queue.deliver_briefly(super::DELIVERY).await;
            popped.into_iter().map(WorkItem::of).collect()
        };
        self.engine.queue.run("pop", popping).await
    }

    /// How many items there are. Those of a worker that died count as claimed until somebody claims.
    ///
    /// The head of the queue has the counts, unless items have changed by time alone since the last write to their pages: such
    /// pages are read, with each call, until somebody claims or calls [`gc`](Self::gc).
    ///
    /// # Errors
    ///
    /// The [kinds of error](crate::ErrorKind) of a store that refuses or does not answer.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future ends the call. It changes no item and no claim, and may have an entry in the queue for a moment where
    /// many write.
    ///
    /// # Examples
    ///
    /// ```
    /// use coordination::{ClaimOptions, NewItem};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let jobs = coordinator.queue("resize-jobs")?;
    /// jobs.post(&[NewItem::new("vol-7"), NewItem::new("vol-8")]).await?;
    /// let claim = jobs.claim(ClaimOptions::default().limit(1)).await?;
    ///
    /// let stats = jobs.stats().await?;
    /// assert_eq!((stats.ready, stats.claimed, stats.total()), (1, 1, 2));
    /// # drop(claim);
    /// # Ok(()) }
    /// ```
    pub async fn stats(&self) -> Result<WorkStats> {
        Ok(WorkStats::of(self.look("stats", look::stats).await?))
    }

    /// Lists items in the order of the queue, without claiming them; none, if the item that the list is to begin after is not
    /// there.
    ///
    /// Their bodies have about 1 MiB together at the most, in base64.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Input`]: the limit is not 1 to 1,000. Or those of a store that refuses or does not answer.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future ends the call. It changes no item and no claim, and may have an entry in the queue for a moment where
    /// many write.
    ///
    /// # Examples
    ///
    /// ```
    /// use coordination::{ListOptions, NewItem};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let jobs = coordinator.queue("resize-jobs")?;
    /// jobs.post(&[NewItem::new("vol-7"), NewItem::new("vol-8")]).await?;
    ///
    /// // Page by page: each begins after the last item of the one before.
    /// let options = ListOptions { limit: 1, ..ListOptions::default() };
    /// let first = jobs.list(options.clone()).await?;
    /// let second = jobs.list(ListOptions { after: Some(first[0].id()), ..options }).await?;
    /// assert_eq!((first[0].body(), second[0].body()), (&b"vol-7"[..], &b"vol-8"[..]));
    /// # Ok(()) }
    /// ```
    pub async fn list(&self, options: ListOptions) -> Result<Vec<WorkItem>> {
        self.input("list", in_range("limit", &options.limit, &(1..=MOST)))?;
        let which = Which {
            after: options.after,
            limit: options.limit,
            claimed: options.include_claimed,
            delayed: options.include_delayed,
        };
        let listed = self.look("list", move |draft| look::list(draft, which)).await?;
        listed.into_iter().map(WorkItem::of).collect()
    }

    /// The item of this name, whoever has it; `None`: it was acknowledged or deleted, or it has died.
    ///
    /// # Errors
    ///
    /// The [kinds of error](crate::ErrorKind) of a store that refuses or does not answer.
    ///
    /// # Cancel safety
    ///
    /// As for [`list`](Self::list).
    pub async fn item(&self, id: ItemId) -> Result<Option<WorkItem>> {
        let seen = self.look("look at an item", move |draft| items::seen(draft, id)).await?;
        seen.map(WorkItem::of).transpose()
    }

    /// Removes what nobody can see any more, in one step: dead items, and claims that were over a minute ago; `budget` at the
    /// most, or 100, and fewer where that is too much for one step: nothing is left once nothing is removed. Claims remove dead
    /// items on their way, and posts whole pages of them, so this is needed only where nobody does either.
    ///
    /// # Errors
    ///
    /// The [kinds of error](crate::ErrorKind) of a store that refuses or does not answer.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the call goes on in the background.
    pub async fn gc(&self, budget: Option<usize>) -> Result<Collected> {
        let budget = budget.unwrap_or(BUDGET);
        let removed = self.run("gc", move |draft| clear::gc(draft, budget)).await?;
        Ok(Collected { items: removed.items, claims: removed.claims })
    }

    /// Removes the queue, with its items, its claims and its settings, all at once, and then what is left of it at the store.
    ///
    /// # Errors
    ///
    /// The [kinds of error](crate::ErrorKind) of a store that refuses or does not answer.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the call goes on in the background.
    ///
    /// # Examples
    ///
    /// ```
    /// use coordination::NewItem;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let jobs = coordinator.queue("resize-jobs")?;
    /// jobs.post(&[NewItem::new("vol-7")]).await?;
    /// jobs.delete_queue().await?;
    /// assert_eq!(jobs.stats().await?.total(), 0);
    /// # Ok(()) }
    /// ```
    pub async fn delete_queue(&self) -> Result<()> {
        let queue = self.clone();
        let deleting = async move {
            queue.engine.run_here("delete", |draft, _| clear::delete_queue(draft)).await?;
            if let Err(error) =
                queue.engine.run_here("delete", |draft, _| clear::clean(draft)).await
            {
                tracing::debug!(%error, "what a deleted queue has left is removed later");
            }
            Ok(())
        };
        self.engine.queue.run("delete", deleting).await
    }
}
