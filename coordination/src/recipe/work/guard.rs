//! A claim that this process holds.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::AbortHandle;

use super::WorkQueue;
use super::claim::Renewed;
use super::ids::{ClaimId, ItemId};
use super::layout::Micros;
use super::precedence::COURTESY;
use super::types::{Ack, ClaimView, WorkItem, duration};
use crate::env::{OwnedFile, Process};
use crate::error::{Effect, Error, ErrorKind, LossReason, Result};
use crate::recipe::engine::grant::Grant;
use crate::session::{CutOff, HeldBeside, may_pass};
use crate::time::{BootInstant, sleep_until};
use crate::token::FencingToken;

/// The least time between two tries to renew.
const LEAST_PAUSE: Duration = Duration::from_millis(50);

/// Items that nobody else has until this claim is over. Returned by [`WorkQueue::claim`].
///
/// The claim is over when its ttl has passed without a renewal, or when the session of this process ends, whichever comes
/// first. [`keep_alive`](Self::keep_alive) renews the claim. Dropping the claim gives back what was not acknowledged, in the
/// background.
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
///
/// let mut claim = jobs.claim(ClaimOptions::default()).await?.expect("two are ready");
/// claim.keep_alive();
/// for item in claim.items() {
///     println!("{} under token {}", String::from_utf8_lossy(item.body()), claim.token());
///     claim.ack(item.id()).await?;
/// }
/// assert_eq!(jobs.stats().await?.total(), 0);
/// # Ok(()) }
/// ```
pub struct WorkClaim {
    queue: WorkQueue,
    id: ClaimId,
    token: FencingToken,
    items: Vec<WorkItem>,
    life: Arc<Life>,
    holder: Arc<Grant>,
    keeper: Option<AbortHandle>,
    /// On drop, nothing is to be given back.
    is_settled: bool,
    /// The caller has got the claim. If not, its items do not count as claimed.
    was_given: bool,
    /// Tells the coordinator, which may be about to stop, that it is held.
    _held: HeldBeside,
}

/// Until when a claim can be relied on.
struct Life {
    terms: watch::Sender<Terms>,
    /// Held during a renewal, so that the terms are those of the renewal that the store carried out last.
    renewing: tokio::sync::Mutex<()>,
}

#[derive(Clone, Copy)]
struct Terms {
    deadline: BootInstant,
    ttl: Duration,
    /// The store has said that there is no such claim.
    is_over: bool,
}

#[derive(Clone, Copy)]
enum Renewal {
    None,
    Done,
    Failed,
}

impl Terms {
    /// The terms of a claim that lasts for so long from `sent` on, a moment before the store got the request.
    fn of(sent: BootInstant, lasts: Duration) -> Self {
        let deadline = sent.saturating_add(relied_on(lasts));
        Self { deadline, ttl: lasts, is_over: false }
    }

    fn is_past(&self) -> bool {
        self.is_over || BootInstant::now() >= self.deadline
    }
}

impl Life {
    fn terms(&self) -> Terms {
        *self.terms.borrow()
    }

    /// Invariant: what is past stays past. Its holder may have been told of the loss, and what is answered after that does not undo
    /// it.
    fn set(&self, terms: Terms) {
        self.terms.send_if_modified(|current| {
            let is_past = current.is_past();
            if !is_past {
                *current = terms;
            }
            !is_past
        });
    }

    /// Renews the claim, in a task of the session.
    async fn renew(
        &self,
        queue: &WorkQueue,
        (id, holder): (ClaimId, &Grant),
        asked: (Option<Micros>, Option<Micros>),
    ) -> Result<Duration> {
        let _renewing = self.renewing.lock().await;
        if let Some(reason) = holder.own_entry().loss_reason() {
            return Err(holder.loss_error("renew", reason, Effect::None));
        }
        let (sent, before) = (BootInstant::now(), self.terms());
        if let Some(ttl) = asked.0 {
            // By this ttl the claim may be shorter from now on, even if the answer is lost.
            let asked = Terms::of(sent, duration(ttl));
            self.set(Terms { deadline: asked.deadline.min(before.deadline), ..asked });
        }
        // Others go first for a quarter of what is left, so that there is time for three more tries.
        let courtesy = COURTESY.min(self.terms().deadline.remaining() / 4);
        let may_be_replaced = queue.session().backend.confirms();
        let renewed = match queue.renew_here(id, asked, courtesy).await {
            // Another server may be in use by now.
            Ok(Renewed { lasts, .. })
                if !may_be_replaced && !queue.session().backend.confirms() =>
            {
                Ok(duration(lasts))
            }
            Ok(Renewed { lasts, until }) => {
                queue.confirmed("renew", (id, until), holder).await.map(|()| duration(lasts))
            }
            Err(refused) => Err(refused),
        };
        self.renewed(before, sent, renewed)
    }

    /// Takes in what the store has said to a call under the claim: if there is no such claim, others may have its items.
    fn heard<T>(&self, answer: Result<T>) -> Result<T> {
        if answer.as_ref().is_err_and(|error| error.kind() == ErrorKind::NoSuchClaim) {
            self.set(Terms { is_over: true, ..self.terms() });
        }
        answer
    }

    /// Takes in what the store has said to a renewal that was sent at this moment, with these terms before it.
    fn renewed(
        &self,
        before: Terms,
        sent: BootInstant,
        answer: Result<Duration>,
    ) -> Result<Duration> {
        match &answer {
            Ok(lasts) => {
                self.set(Terms::of(sent, *lasts));
                if self.terms().is_past() {
                    let late = "its time was over before the answer to its renewal came";
                    let error = Error::new(ErrorKind::NoSuchClaim, "renew", late);
                    return Err(error.with_effect(Effect::Applied));
                }
            }
            Err(error) if error.kind() == ErrorKind::NoSuchClaim => {
                self.set(Terms { is_over: true, ..before });
            }
            Err(error) if error.effect() == Effect::None => self.set(before),
            Err(_) => {}
        }
        answer
    }

    /// Waits until the deadline has passed.
    async fn past(&self) {
        let mut terms = self.terms.subscribe();
        loop {
            let deadline = terms.borrow_and_update().deadline;
            if BootInstant::now() >= deadline {
                return;
            }
            tokio::select! {
                () = sleep_until(deadline) => {}
                _ = terms.changed() => {}
            }
        }
    }

    /// Waits until a third of its ttl is over, which may change meanwhile; after a renewal that failed, for a quarter of what is
    /// left.
    async fn until_renewal(&self, before: Renewal) {
        let mut terms = self.terms.subscribe();
        loop {
            let Terms { deadline, ttl, .. } = *terms.borrow_and_update();
            let left = deadline.remaining();
            let due = left.saturating_sub(ttl / 3 * 2);
            let pause = match before {
                Renewal::None => due,
                // If the ttl is very short, less than two thirds are left from the first: a pause, as each renewal would be due
                // at once.
                Renewal::Done => due.max(LEAST_PAUSE.min(left / 2)),
                Renewal::Failed => (left / 4).max(LEAST_PAUSE),
            };
            tokio::select! {
                () = tokio::time::sleep(pause) => return,
                _ = terms.wait_for(|terms| terms.ttl != ttl) => {}
            }
        }
    }
}

/// Whether no renewal can succeed any more. All else may be mended in time, as a full disk is, or a password.
fn is_over(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::NoSuchClaim | ErrorKind::Lost | ErrorKind::Closed)
}

/// For how long a claim can be relied on: a little shorter than it lasts, as for a lease, since clocks differ in rate.
fn relied_on(lasts: Duration) -> Duration {
    let margin = lasts / 200 + (lasts / 100).max(Duration::from_millis(10));
    lasts.saturating_sub(margin)
}

impl WorkClaim {
    pub(super) fn new(
        queue: WorkQueue,
        id: ClaimId,
        view: ClaimView,
        holder: Arc<Grant>,
        sent: BootInstant,
    ) -> Self {
        let terms = Terms { ttl: view.ttl, ..Terms::of(sent, view.expires_in) };
        let life = Life { terms: watch::Sender::new(terms), renewing: Default::default() };
        let (token, items, life) = (view.token, view.items, Arc::new(life));
        let (keeper, is_settled, was_given) = (None, false, false);
        let (recipe, name) = (queue.engine.queue.key.kind(), queue.name().to_owned());
        let of = holder.own_entry().lease().id;
        let (ending, entry) = (Arc::clone(&life), holder.loss_watch());
        // Not the end of the session: what that cuts off is told.
        let is_deleted = move || entry.loss_reason() == Some(LossReason::EntryDeleted);
        let is_over = move || ending.terms().is_past() || is_deleted();
        let _held = queue.session().hold_beside(of, CutOff { recipe, name, token }, is_over);
        Self { queue, id, token, items, life, holder, keeper, is_settled, was_given, _held }
    }

    /// Notes that the caller gets the claim.
    pub(super) fn had(self) -> Self {
        let mut claim = self;
        claim.was_given = true;
        claim
    }

    /// The claim's name, by which any process can renew, release and acknowledge. Give it to nobody who may release the claim while
    /// this process works: see [`is_held`](Self::is_held).
    pub fn id(&self) -> ClaimId {
        self.id
    }

    /// Larger than that of every claim before it in this queue: send it with each write that an item leads to. Let the resource
    /// keep, for each item, the token under which its work was done, and refuse every other one: a worker that is late has a
    /// smaller one, and a worker that repeats what is done has a larger one.
    pub fn token(&self) -> FencingToken {
        self.token
    }

    /// What was claimed, in the order of the queue.
    pub fn items(&self) -> &[WorkItem] {
        &self.items
    }

    /// The name of its queue, with the coordinator's prefix.
    pub fn name(&self) -> &str {
        self.queue.name()
    }

    /// The time until which the claim can be relied on if nothing more is heard from the store: until its ttl is over, or its
    /// session.
    ///
    /// Each renewal moves the deadline on, and each confirmed heartbeat.
    pub fn deadline(&self) -> BootInstant {
        let of_ttl = self.life.terms().deadline;
        self.holder.deadline().map_or(of_ttl, |of_session| of_session.min(of_ttl))
    }

    /// How long it is until the [`deadline`](Self::deadline): zero when that has passed, and when the claim is not held any more.
    pub fn remaining(&self) -> Duration {
        if self.is_held() { self.deadline().remaining() } else { Duration::ZERO }
    }

    /// A file that keeps the claim's session alive when this process dies, as [`Grant::session_file`]: as long as it is open,
    /// the items do not come back before the claim's ttl is over.
    ///
    /// # Errors
    ///
    /// Those of [`Grant::session_file`].
    pub fn session_file(&self) -> Result<Option<OwnedFile>> {
        self.holder.session_file()
    }

    /// Whether the claim can be relied on at this moment, by this machine's clock: nobody else has been given its items.
    ///
    /// Others can end a claim at once: an operator [takes it away](WorkQueue::break_claim), or somebody who has its
    /// [id](Self::id) [releases](WorkQueue::release) it. This process is told when it next asks the store for something under the
    /// claim, at the latest with the next renewal by [`keep_alive`](Self::keep_alive), after a third of the ttl. Until then this is
    /// true and [`lost`](Self::lost) waits, although others may have been given the items, and only the [token](Self::token) stops
    /// this worker's writes.
    ///
    /// # Examples
    ///
    /// ```
    /// use coordination::{ClaimOptions, ErrorKind, NewItem};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let jobs = coordinator.queue("resize-jobs")?;
    /// jobs.post(&[NewItem::new("vol-7")]).await?;
    /// let claim = jobs.claim(ClaimOptions::default()).await?.expect("one is ready");
    /// // Somebody else, who was told its id.
    /// assert_eq!(jobs.release(claim.id()).await?, 1);
    /// assert!(claim.is_held(), "nothing was asked since");
    ///
    /// let over = claim.renew(None, None).await.unwrap_err();
    /// assert_eq!(over.kind(), ErrorKind::NoSuchClaim);
    /// assert!(!claim.is_held());
    /// # Ok(()) }
    /// ```
    pub fn is_held(&self) -> bool {
        !self.is_over()
    }

    fn is_over(&self) -> bool {
        // In this order: a thread of the parent may have locked the terms for ever when a child was forked, which holds nothing.
        !self.holder.is_held() || self.life.terms().is_past()
    }

    /// Waits until the claim cannot be relied on any more, and returns the reason.
    ///
    /// [`LossReason::DeadlinePassed`]: the claim's ttl is over, as far as this process knows. [`LossReason::EntryDeleted`]: the
    /// store says that the claim is over. Others are those of the session.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect: it only listens.
    pub async fn lost(&self) -> LossReason {
        // A forked child has no tasks.
        if let Some(reason) = self.holder.own_entry().loss_reason() {
            return reason;
        }
        let mut terms = self.life.terms.subscribe();
        let life = Arc::clone(&self.life);
        let deadline = self.queue.session().spawn(async move { life.past().await });
        let deadline = AbortOnDrop(deadline, self.queue.session().process());
        tokio::select! {
            biased;
            reason = self.holder.lost() => reason,
            _ = terms.wait_for(|terms| terms.is_over) => LossReason::EntryDeleted,
            _ = deadline => LossReason::DeadlinePassed,
        }
    }

    /// Renews the claim now and answers how long it lasts from now on; `ttl` and `grace` replace those that it has.
    ///
    /// # Errors
    ///
    /// * [`ErrorKind::NoSuchClaim`]: it is over, and others may have its items; also where its time was over when the answer came.
    /// * [`ErrorKind::Lost`]: the session that it was made in has ended, and with it the claim.
    /// * [`ErrorKind::Closed`]: the same, as the coordinator was stopped or its runtime has ended.
    /// * [`ErrorKind::Input`], and those of a store that refuses or does not answer.
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
    /// use coordination::{ClaimOptions, NewItem};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let jobs = coordinator.queue("resize-jobs")?;
    /// jobs.post(&[NewItem::new("vol-7")]).await?;
    /// let options = ClaimOptions::default().ttl(Duration::from_secs(60));
    /// let claim = jobs.claim(options).await?.expect("one is ready");
    /// // It takes longer than was thought.
    /// let lasts = claim.renew(Some(Duration::from_secs(600)), None).await?;
    /// assert!(lasts > Duration::from_secs(500) && claim.is_held());
    /// # Ok(()) }
    /// ```
    pub async fn renew(&self, ttl: Option<Duration>, grace: Option<Duration>) -> Result<Duration> {
        let asked = self.queue.check_renewal(ttl, grace)?;
        let (queue, id, life) = (self.queue.clone(), self.id, Arc::clone(&self.life));
        let holder = Arc::clone(&self.holder);
        let renewing = async move { life.renew(&queue, (id, &holder), asked).await };
        self.queue.engine.queue.run("renew", renewing).await
    }

    /// Renews the claim in the background, after each third of its ttl, until it is given up or lost; at once if a third is
    /// over.
    ///
    /// A renewal that failed is tried again as long as the claim has time left, whatever the store said: a full disk, for one,
    /// may have room again by then.
    ///
    /// # Examples
    ///
    /// ```
    /// use coordination::{ClaimOptions, WorkItem};
    ///
    /// /// May take longer than the claim's ttl.
    /// async fn resize(items: &[WorkItem]) {
    ///     for item in items {
    ///         println!("resizing {}", String::from_utf8_lossy(item.body()));
    ///     }
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// # let jobs = coordinator.queue("resize-jobs")?;
    /// # jobs.post(&[coordination::NewItem::new("vol-7")]).await?;
    /// let mut claim = jobs.claim(ClaimOptions::default()).await?.expect("an item is ready");
    /// claim.keep_alive();
    /// tokio::select! {
    ///     () = resize(claim.items()) => {}
    ///     reason = claim.lost() => panic!("others may have its items: {reason}"),
    /// }
    /// assert_eq!(claim.ack_all().await?, 1);
    /// # Ok(()) }
    /// ```
    pub fn keep_alive(&mut self) {
        if self.keeper.is_some() || !self.queue.session().is_own_process() {
            return;
        }
        let (queue, id, life) = (self.queue.clone(), self.id, Arc::clone(&self.life));
        let holder = Arc::clone(&self.holder);
        let task = self.queue.session().spawn(async move {
            let mut before = Renewal::None;
            while !life.terms().is_past() {
                life.until_renewal(before).await;
                before = match life.renew(&queue, (id, &holder), (None, None)).await {
                    Err(error) if is_over(&error) => {
                        return tracing::debug!(%error, "a claim is over");
                    }
                    Err(error) => {
                        if !may_pass(&error) && !matches!(before, Renewal::Failed) {
                            tracing::warn!(%error, "a claim cannot be renewed; it is tried again");
                        }
                        Renewal::Failed
                    }
                    Ok(_) => Renewal::Done,
                }
            }
        });
        self.keeper = Some(task.abort_handle());
    }

    /// Removes an item that is done.
    ///
    /// # Errors
    ///
    /// The item is untouched, and whoever worked on it must take its work for repeated:
    ///
    /// * [`ErrorKind::NoSuchClaim`]: the claim is over.
    /// * [`ErrorKind::NotClaimed`], [`ErrorKind::NotClaimedBy`]: the item was given back, or another claim has it.
    ///
    /// Or those of a store that refuses or does not answer. After [`Effect::Unknown`](crate::Effect::Unknown) the call
    /// can be repeated: if it had been carried out, the item is [`AlreadyGone`](Ack::AlreadyGone).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the call goes on in the background.
    ///
    /// # Examples
    ///
    /// ```
    /// use coordination::{Ack, ClaimOptions};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// # let jobs = coordinator.queue("resize-jobs")?;
    /// # jobs.post(&[coordination::NewItem::new("vol-7")]).await?;
    /// let claim = jobs.claim(ClaimOptions::default()).await?.expect("an item is ready");
    /// let item = claim.items()[0].id();
    /// assert_eq!(claim.ack(item).await?, Ack::Done);
    /// // It may be repeated, as after a lost answer.
    /// assert_eq!(claim.ack(item).await?, Ack::AlreadyGone);
    /// # Ok(()) }
    /// ```
    pub async fn ack(&self, item: ItemId) -> Result<Ack> {
        self.life.heard(self.queue.ack(item, self.id).await)
    }

    /// Removes all items that are left, or none, and ends the claim. Answers how many were removed. Those that were given back
    /// before are not among them. If it fails, the items are given back, as when the claim is dropped.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NoSuchClaim`]: the claim is over. Or those of a store that refuses or does not answer.
    ///
    /// # Cancel safety
    ///
    /// As for [`ack`](Self::ack).
    pub async fn ack_all(self) -> Result<usize> {
        let items = self.items.iter().map(WorkItem::id).collect();
        self.queue.ack_left(items, self.id).await
    }

    /// Gives an item back, to be claimed again after `delay`. It lives until then, and for the claim's
    /// [grace](crate::ClaimOptions::grace) after that, even if its life is over before.
    ///
    /// # Errors
    ///
    /// Those of [`ack`](Self::ack), and [`ErrorKind::Input`]. But a call that is repeated after
    /// [`Effect::Unknown`](crate::Effect::Unknown) fails if the first one had been carried out: with
    /// [`ErrorKind::NotClaimed`], or with [`ErrorKind::NotClaimedBy`] if another claim has the item by then.
    ///
    /// # Cancel safety
    ///
    /// As for [`ack`](Self::ack).
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use coordination::{Ack, ClaimOptions, ErrorKind};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// # let jobs = coordinator.queue("resize-jobs")?;
    /// # jobs.post(&[coordination::NewItem::new("vol-7")]).await?;
    /// let claim = jobs.claim(ClaimOptions::default()).await?.expect("an item is ready");
    /// let item = claim.items()[0].id();
    /// assert_eq!(claim.nack(item, Duration::from_secs(10)).await?, Ack::Done);
    /// assert_eq!(jobs.stats().await?.delayed, 1);
    /// // The claim has it no longer.
    /// assert_eq!(claim.ack(item).await.unwrap_err().kind(), ErrorKind::NotClaimed);
    /// # Ok(()) }
    /// ```
    pub async fn nack(&self, item: ItemId, delay: Duration) -> Result<Ack> {
        self.life.heard(self.queue.nack(item, self.id, delay).await)
    }

    /// Gives back all items that are left, and answers how many those are.
    ///
    /// # Errors
    ///
    /// The [kinds of error](crate::ErrorKind) of a store that refuses or does not answer: the items are given back in the
    /// background, or come back when the session ends.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the call goes on in the background.
    ///
    /// # Examples
    ///
    /// ```
    /// use coordination::{ClaimOptions, NewItem};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let jobs = coordinator.queue("resize-jobs")?;
    /// jobs.post(&[NewItem::new("vol-7")]).await?;
    /// let claim = jobs.claim(ClaimOptions::default()).await?.expect("one is ready");
    /// // This worker cannot do it; the next one may try.
    /// assert_eq!(claim.release().await?, 1);
    /// let next = jobs.claim(ClaimOptions::default()).await?.expect("it is ready again");
    /// assert_eq!(next.items()[0].claims(), 2);
    /// # Ok(()) }
    /// ```
    pub async fn release(mut self) -> Result<usize> {
        let released = self.queue.release(self.id).await;
        self.is_settled = released.is_ok();
        released
    }

    /// Hands the claim on: from now on it ends by its ttl only, and whoever has its name renews, releases and acknowledges.
    ///
    /// # Errors
    ///
    /// * [`ErrorKind::NoSuchClaim`]: the claim is over.
    /// * [`ErrorKind::Lost`]: the session that it was made in has ended, and with it the claim.
    /// * [`ErrorKind::Closed`]: the same, as the coordinator was stopped or its runtime has ended. Hand claims on before that, for
    ///   instance once [`stopping`](crate::Coordinator::stopping) tells of a stop that waits.
    /// * Those of a store that refuses or does not answer: the claim is given back.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the claim is given back.
    ///
    /// # Examples
    ///
    /// ```
    /// use coordination::{Ack, ClaimId, ClaimOptions};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// # let jobs = coordinator.queue("resize-jobs")?;
    /// # jobs.post(&[coordination::NewItem::new("vol-7")]).await?;
    /// let claim = jobs.claim(ClaimOptions::default()).await?.expect("an item is ready");
    /// let item = claim.items()[0].id();
    /// let name = claim.detach().await?.to_string();
    ///
    /// // In another process, which was told the names of the claim and of the item.
    /// let id: ClaimId = name.parse().expect("any text can be read");
    /// assert_eq!(jobs.ack(item, id).await?, Ack::Done);
    /// # Ok(()) }
    /// ```
    pub async fn detach(mut self) -> Result<ClaimId> {
        if let Some(reason) = self.holder.own_entry().loss_reason() {
            return Err(self.holder.loss_error("detach", reason, Effect::None));
        }
        self.queue.detach(self.id).await?;
        self.is_settled = true;
        Ok(self.id)
    }
}

impl Drop for WorkClaim {
    fn drop(&mut self) {
        if !self.queue.session().is_own_process() {
            return;
        }
        if let Some(keeper) = &self.keeper {
            keeper.abort();
        }
        if !self.is_settled {
            let holder = Arc::clone(&self.holder);
            let ttl = self.life.terms().ttl;
            drop(self.queue.release_later(self.id, ttl, Some(holder), self.was_given));
        }
    }
}

impl fmt::Debug for WorkClaim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The name is a capability.
        f.debug_struct("WorkClaim")
            .field("queue", &self.queue.name())
            .field("token", &self.token)
            .field("items", &self.items.len())
            .field("is_held", &self.is_held())
            .finish_non_exhaustive()
    }
}

/// A task that ends with whoever waits for it.
struct AbortOnDrop(tokio::task::JoinHandle<()>, Process);

impl std::future::Future for AbortOnDrop {
    type Output = ();

    fn poll(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<()> {
        std::pin::Pin::new(&mut self.0).poll(context).map(drop)
    }
}

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        // In a forked child there is no task, and a mutex of its runtime may be locked for ever.
        if self.1.is_this() {
            self.0.abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// S4: a renewal whose answer comes when the claim was told as lost does not bring it back, whatever the answer is.
    #[tokio::test]
    async fn s4_a_claim_whose_time_is_over_is_not_held_again() {
        let sent = BootInstant::now();
        let longer = Terms::of(sent, Duration::from_secs(60));
        let refused = Error::new(ErrorKind::Quota, "renew", "full");
        for answer in [Ok(Duration::from_secs(60)), Err(refused)] {
            let terms = Terms::of(sent, Duration::from_millis(40));
            let life = Life { terms: watch::Sender::new(terms), renewing: Default::default() };
            life.past().await;
            assert!(life.terms().is_past());
            let is_renewed = answer.is_ok();
            let told = life.renewed(longer, sent, answer).expect_err("it was told as lost");
            assert!(life.terms().is_past(), "it was told as lost");
            assert!(!is_renewed || told.kind() == ErrorKind::NoSuchClaim);
            life.past().await;
        }
    }

    #[test]
    fn a_claim_of_which_the_store_does_not_know_is_over() {
        let terms = Terms::of(BootInstant::now(), Duration::from_secs(60));
        let life = Life { terms: watch::Sender::new(terms), renewing: Default::default() };
        let error = |kind| Error::new(kind, "ack", "refused");
        assert_eq!(life.heard(Ok(7)).expect("it is answered"), 7);
        life.heard(Err::<(), _>(error(ErrorKind::NotClaimedBy))).expect_err("the store says so");
        assert!(!life.terms().is_past(), "that is about one item");
        life.heard(Err::<(), _>(error(ErrorKind::NoSuchClaim))).expect_err("the store says so");
        assert!(life.terms().is_over && life.terms().is_past());
    }

    #[test]
    fn a_claim_that_has_time_left_is_renewed() {
        let sent = BootInstant::now();
        let terms = Terms::of(sent, Duration::from_secs(60));
        let life = Life { terms: watch::Sender::new(terms), renewing: Default::default() };
        let lasts = Duration::from_secs(90);
        assert_eq!(life.renewed(terms, sent, Ok(lasts)).expect("it has time left"), lasts);
        assert!(life.terms().deadline > terms.deadline && !life.terms().is_past());
        let unknown = Error::new(ErrorKind::Unavailable, "renew", "another server has taken over");
        let unknown = unknown.with_effect(Effect::Unknown);
        life.renewed(terms, sent, Err(unknown)).expect_err("the store says so");
        assert!(!life.terms().is_past(), "it can be renewed at the new server");
        let over = Error::new(ErrorKind::NoSuchClaim, "renew", "over");
        life.renewed(terms, sent, Err(over)).expect_err("the store says so");
        assert!(life.terms().is_over && life.terms().is_past());
    }
}
