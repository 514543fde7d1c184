//! The calls of a queue of work and of its items: each checks its arguments, and makes its step. Those with a claim are in
//! `claiming.rs`.

use std::sync::Arc;
use std::time::Duration;

use rand::RngExt;

use super::claim::bring_back_then;
use super::delivery::DELIVERY;
use super::draft::{Draft, Outcome, Step};
use super::layout::Poison;
use super::look::{self, Which};
use super::post::{self, New};
use super::types::{
    Collected, ListOptions, MOST, NewItem, WorkItem, WorkStats, encoded, in_range, micros,
};
use super::{ItemId, WorkQueue, clear, items};
use crate::env;
use crate::error::{Effect, Error, ErrorKind, Result};

/// To how many other queues letters may be on their way when the queue of dead letters changes: the head has the names of all.
const MOST_OUTBOXES: usize = 8;
/// How many dead items and claims that are over `gc` removes if no budget is given.
const BUDGET: usize = 100;

impl WorkQueue {
    /// Sets for all processes what becomes of items that were claimed `max_claims` times without being acknowledged: the next
    /// call that would hand out such an item moves it to the queue `dead_letters`. There it lives for `ttl`; without one, for
    /// what is left of its life.
    ///
    /// An item that has left this queue when the setting is changed goes where it was to go. What `dead_letters` refuses to take stays on
    /// its way, as one of the [`letters`](WorkStats::letters), and is tried again; items that go to another queue do not wait for that.
    ///
    /// It keeps the number of its claims there. So two queues are not to be each other's queue of dead letters: an item that was
    /// claimed often enough for both would go to and fro between them.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Input`]: `max_claims` is zero, `dead_letters` is this queue or one of another coordinator, the ttl is
    /// not in the limits, or letters are on their way to eight other queues that do not take them. Or those of a store that refuses or does not answer.
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
            let others = draft.head.outboxes.keys().filter(|other| **other != poison.queue);
            let others = others.count();
            if others >= MOST_OUTBOXES {
                let message = format!("dead letters are still on their way to {others} queues");
                return Err(Error::new(ErrorKind::Input, "set_dead_letters", message).into());
            }
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
    ///   [`Effect::Unknown`] they may have been posted.
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
    /// * [`ErrorKind::Input`]: `limit` is not in the limits.
    /// * [`ErrorKind::Corrupt`] with [`Effect::Applied`]: somebody has changed an item at the store, so that it cannot be read. The
    ///   message has its name, and no item is removed. That one is put aside: it is not ready for five minutes, so that the next call
    ///   takes those behind it, and counts as claimed once more, so that it becomes a [dead letter](Self::set_dead_letters) in the end
    ///   where there are any. [`force_delete`](Self::force_delete) removes it.
    /// * Those of a store that refuses or does not answer; with [`Effect::Unknown`] items may be gone.
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
                bring_back_then(draft, entries, |draft| items::pop(draft, limit, WorkItem::of))
            };
            let popped = queue.engine.run_here("pop", step).await?;
            queue.engine.follow();
            queue.deliver_briefly(DELIVERY).await;
            // Nothing was removed, but what cannot be read was put aside.
            let popped = popped.map_err(|error| error.with_effect(Effect::Applied))?;
            if popped.is_empty() {
                // As for a claim: whoever comes next on this host may not know what time it is.
                queue.engine.attest("pop").await?;
            }
            Ok(popped)
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
        let (queue, budget) = (self.clone(), budget.unwrap_or(BUDGET));
        let collecting = async move {
            let step = |draft: &mut Draft<'_>, _: &[u64]| clear::gc(draft, budget);
            let removed = queue.engine.run_here("gc", step).await?;
            queue.engine.follow();
            if removed.items == 0 {
                // Items may be dead by now, and nobody on this host would ever know.
                queue.engine.attest("gc").await?;
            }
            Ok(Collected { items: removed.items, claims: removed.claims })
        };
        self.engine.queue.run("gc", collecting).await
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

    pub(super) fn input(&self, operation: &'static str, outcome: Result<(), String>) -> Result<()> {
        outcome.map_err(|message| self.refused(operation, message))
    }

    pub(super) fn refused(&self, operation: &'static str, message: String) -> Error {
        self.engine.queue.error(ErrorKind::Input, operation, message)
    }
}
