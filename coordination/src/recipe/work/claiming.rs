//! The calls with claims: to make, renew and end one, and to do with its items. Each checks its arguments, and makes its step.

use std::time::Duration;

use super::claim::{self, Renewed};
use super::draft::Draft;
use super::layout::Micros;
use super::precedence::SHORT_COURTESY;
use super::taking::ask;
use super::types::{Ack, ClaimOptions, ClaimView, MOST, duration, in_range, micros};
use super::{ClaimId, ItemId, WorkClaim, WorkQueue, items};
use crate::env::Unforked;
use crate::error::{Effect, Result};
use crate::session::Purpose;
use crate::time::BootInstant;

impl WorkQueue {
    /// Claims ready items, the oldest first; `None`: none is ready.
    ///
    /// The claim ends with the session of this process. The bodies of its items have 1 MiB together at the most, in base64. If
    /// ready items are few and far between, or more than 500 are asked for, the claim may have fewer items than are ready.
    ///
    /// # Errors
    ///
    /// * [`ErrorKind::Input`](crate::ErrorKind::Input): an option is not in the limits, or this process has 1,000 claims of the queue.
    /// * [`ErrorKind::Lost`](crate::ErrorKind::Lost): the session ended meanwhile.
    /// * [`ErrorKind::Corrupt`](crate::ErrorKind::Corrupt) with [`Effect::Applied`](crate::Effect::Applied): somebody has changed an item at the store, so
    ///   that it cannot be read. It is claimed for the ttl, and so are those that were claimed with it. The message has its name;
    ///   [`force_delete`](Self::force_delete) removes that one.
    /// * [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) and the other kinds of a store that refuses or does not answer. What may have been
    ///   claimed is given back.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped before the claim is sent, nothing is claimed; what is claimed after that is given back, and does not
    /// count for [`set_dead_letters`](Self::set_dead_letters) unless the session is lost first.
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
        let (caller, mut gone) = tokio::sync::oneshot::channel::<()>();
        // Dropping it wakes the task, which a forked child must not do.
        let caller = Unforked::new(caller);
        // All of it in a task: a caller that is no longer polled must not keep others waiting for the entry of this process. And
        // if the caller is gone before the claim is sent, nothing is claimed.
        let claim = async move {
            let holder = tokio::select! {
                biased;
                _ = &mut gone => return Ok(None),
                holder = queue.holder() => holder?,
            };
            // A stop waits until the claim is held, or was taken back: otherwise it would count against the items' `max_claims`.
            let _claiming = queue.session().finishing();
            // After it is noted: a stop that has begun before is seen here, and one that begins later waits.
            queue.session().admit("claim", Purpose::Work)?;
            queue.claim_here(&options, holder, gone).await
        };
        let claimed = self.engine.queue.run("claim", claim).await;
        drop(caller);
        let claimed = claimed?;
        Ok(claimed.map(WorkClaim::had))
    }

    /// Claims items under an id that the caller has chosen. The id is a capability: whoever has it can use the claim, which
    /// does not end with the session of this process. For services that claim for their own callers.
    ///
    /// A call with the same id answers the claim that the first one made, as long as that is live.
    ///
    /// # Errors
    ///
    /// Those of [`claim`](Self::claim), and [`ErrorKind::ClaimIdReused`](crate::ErrorKind::ClaimIdReused): a claim of this id is over. [`ErrorKind::Input`](crate::ErrorKind::Input) also
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
        let view = taken.map(ClaimView::of).transpose();
        view.map_err(|error| error.with_effect(Effect::Applied))
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
        // A forked child has no tasks: what is its parent's stays so.
        let is_ours = self.session().is_own_process();
        let undoing = is_ours.then(|| self.release_later(id, Duration::ZERO, None, false));
        async move {
            if let Some(undoing) = undoing {
                // If its runtime has ended, nobody goes on with it.
                undoing.await.unwrap_or(());
            }
        }
    }

    /// The claim of this name, with the items that it still has.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NoSuchClaim`](crate::ErrorKind::NoSuchClaim): there never was such a claim, or it is over. Or those of a store that refuses or does not
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

    /// Ends a claim and answers how many items are free by that: none, if there is no such claim. If a process has it as a
    /// [`WorkClaim`], that process is not told at once: see [`WorkClaim::is_held`].
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
    /// Those of [`WorkClaim::ack`], of the first item that has one, and [`ErrorKind::Input`](crate::ErrorKind::Input): there are more than 1,000.
    ///
    /// # Cancel safety
    ///
    /// As for [`WorkClaim::ack`].
    pub async fn ack_many(&self, items: &[ItemId], claim: ClaimId) -> Result<usize> {
        self.input("ack", in_range("the number of items", &items.len(), &(0..=MOST)))?;
        let items = items.to_vec();
        self.run("ack", move |draft| items::ack(draft, &items, claim)).await
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

    /// Removes those of these items that the claim still has.
    pub(super) async fn ack_left(&self, items: Vec<ItemId>, claim: ClaimId) -> Result<usize> {
        self.run("ack", move |draft| items::ack_left(draft, &items, claim)).await
    }

    pub(super) async fn detach(&self, id: ClaimId) -> Result<()> {
        self.run("detach", move |draft| claim::detach(draft, id)).await
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

    pub(super) fn check_claim(&self, options: &ClaimOptions) -> Result<()> {
        self.engine.queue.named(self.session().admit("claim", Purpose::Work))?;
        let of_ttl = in_range("ttl", &options.ttl, &self.limits.claim_ttl);
        let of_grace = in_range("grace", &options.grace, &self.limits.grace);
        let of_limit = in_range("limit", &options.limit, &self.limits.limit);
        self.input("claim", of_ttl.and(of_grace).and(of_limit))
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
}
