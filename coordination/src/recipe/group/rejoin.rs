//! A membership that comes back after every loss.

use std::fmt;
use std::sync::Arc;

use serde::Serialize;
use tokio::sync::{Mutex, watch};

use super::Group;
use super::membership::Membership;
use crate::backend::Data;
use crate::error::{Effect, ErrorKind, LossReason, Result};
use crate::recipe::engine::data::{MAX_ENTRY_BYTES, to_data};
use crate::token::FencingToken;

/// The state of a [`RejoiningMembership`].
///
/// # Examples
///
/// ```
/// use coordination::Presence;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
/// # let coordinator = coordination::Coordinator::connect("memory://").await?;
/// let group = coordinator.group("backups")?;
/// let membership = group.join_or_create("ssd").await?.rejoining();
/// match membership.presence() {
///     Presence::Member(incarnation) => println!("in, as {incarnation}"),
///     Presence::Away(reason) => println!("out, and coming back: {reason}"),
///     Presence::Ended(kind) => println!("out for good: {kind}"),
///     _ => {}
/// }
/// membership.leave().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
#[serde(rename_all = "snake_case")]
pub enum Presence {
    /// In the group, as this incarnation.
    Member(FencingToken),
    /// Out of the group, for this reason; it will join again.
    Away(LossReason),
    /// Out of the group for good: it was deleted, or the coordinator was stopped, or this is a forked child.
    Ended(ErrorKind),
}

impl fmt::Display for Presence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Member(incarnation) => write!(f, "member, as incarnation {incarnation}"),
            Self::Away(reason) => write!(f, "away ({reason})"),
            Self::Ended(kind) => write!(f, "ended ({kind})"),
        }
    }
}

/// A membership that joins again after every loss; leaves the group when dropped.
///
/// Made by [`Membership::rejoining`]. Each time the member joins it is a new incarnation, and watchers see the old
/// incarnation leave first. It joins again as soon as there is a session and the store has removed the old entry.
/// While another session has the member id, it retries.
///
/// It has no [`is_held`](crate::Grant::is_held): code that depends on one incarnation uses a [`Membership`],
/// and joins again itself.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
/// use coordination::{Coordinator, Presence};
///
/// let coordinator = Coordinator::connect("memory://").await?;
/// let group = coordinator.group("backups")?;
/// let mut membership = group.join_or_create("ssd").await?.rejoining();
/// let Presence::Member(first) = membership.presence() else { panic!("it has just joined") };
///
/// group.remove(coordinator.member_id()).await?;
/// let mut now = membership.changed().await;
/// while let Some(Presence::Away(_)) = now {
///     now = membership.changed().await;
/// }
/// let Some(Presence::Member(second)) = now else { panic!("it comes back") };
/// assert!(second > first);
/// membership.leave().await?;
/// # Ok(()) }
/// ```
#[must_use = "dropping it leaves the group"]
pub struct RejoiningMembership {
    group: Group,
    member: Arc<str>,
    state: Arc<Mutex<State>>,
    /// Locked by a join while it is in flight, so that `leave` can wait for its end.
    joining: Arc<Mutex<()>>,
    // When this is dropped, the task ends.
    presence: watch::Receiver<Presence>,
    /// Whether `changed` has returned [`Presence::Ended`].
    is_over: bool,
}

struct State {
    /// The capabilities of the present incarnation, or of the next one while there is none.
    capabilities: Data,
    /// `None` while it is out of the group, and after it has left.
    current: Option<Arc<Membership>>,
}

impl Membership {
    /// Makes a membership that joins again after every loss, as a new incarnation.
    pub fn rejoining(self) -> RejoiningMembership {
        let (group, member) = (self.group.clone(), Arc::clone(&self.member));
        let capabilities = self.capabilities().clone();
        let (told, presence) = watch::channel(Presence::Member(self.incarnation()));
        let membership = Arc::new(self);
        let state = State { capabilities, current: Some(Arc::clone(&membership)) };
        let state = Arc::new(Mutex::new(state));
        let joining = Arc::<Mutex<()>>::default();
        let session = Arc::clone(&group.queue.session);
        let (keeping, rejoining) = (Arc::clone(&state), Arc::clone(&joining));
        session.spawn(async move {
            let gone = told.clone();
            tokio::select! {
                biased;
                () = gone.closed() => {}
                () = keep(membership, &keeping, &rejoining, &told) => {}
            }
            // If `leave` was called before this, it has taken the membership out already.
            drop(keeping.lock().await.current.take());
        });
        RejoiningMembership { group, member, state, joining, presence, is_over: false }
    }
}

impl Drop for RejoiningMembership {
    fn drop(&mut self) {
        if !self.group.queue.session.is_own_process() {
            // When the last receiver is dropped, it notifies the sender. In a forked child this could wait for ever for a mutex,
            // and the sender's task is the parent's. So one receiver is never dropped.
            std::mem::forget(self.presence.clone());
        }
    }
}

impl RejoiningMembership {
    /// The group's name, with the coordinator's prefix.
    pub fn name(&self) -> &str {
        self.group.name()
    }

    /// The member id in the group.
    pub fn member_id(&self) -> &str {
        &self.member
    }

    /// The current state, as far as this process knows.
    pub fn presence(&self) -> Presence {
        // A forked child is no member, and what the parent knows may be locked there for ever.
        if !self.group.queue.session.is_own_process() {
            return Presence::Ended(ErrorKind::Closed);
        }
        match *self.presence.borrow() {
            ended @ Presence::Ended(_) => ended,
            // The task has ended with the session's runtime.
            _ if self.presence.has_changed().is_err() => Presence::Ended(ErrorKind::Closed),
            now => now,
        }
    }

    /// Waits until the state differs from the one returned last, and returns it; changes in between may be
    /// skipped. `None` after [`Presence::Ended`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future never loses the latest change.
    ///
    /// # Examples
    ///
    /// ```
    /// use coordination::{ErrorKind, Presence};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let group = coordinator.group("backups")?;
    /// let mut membership = group.join_or_create("ssd").await?.rejoining();
    /// let following = tokio::spawn(async move {
    ///     let mut last = membership.presence();
    ///     while let Some(now) = membership.changed().await {
    ///         println!("it was {last:?}, and is {now:?}");
    ///         last = now;
    ///     }
    ///     last
    /// });
    /// coordinator.stop().await?;
    /// assert_eq!(following.await.expect("no panic"), Presence::Ended(ErrorKind::Closed));
    /// # Ok(()) }
    /// ```
    pub async fn changed(&mut self) -> Option<Presence> {
        if self.is_over {
            return None;
        }
        let is_own_process = self.group.queue.session.is_own_process();
        let now = match is_own_process && self.presence.changed().await.is_ok() {
            true => *self.presence.borrow_and_update(),
            // The task has ended, or this is a forked child, which has no task.
            false => self.presence(),
        };
        self.is_over = matches!(now, Presence::Ended(_));
        Some(now)
    }

    /// Replaces the member's capabilities. While the member is out of the group, this sets the capabilities of its next
    /// incarnation.
    ///
    /// # Errors
    ///
    /// * [`ErrorKind::Value`]: the capabilities cannot be written as JSON, or are too large.
    /// * [`ErrorKind::Closed`], [`ErrorKind::GroupMissing`]: it has [ended](Presence::Ended).
    /// * The [kinds of error](crate::ErrorKind) of a store that refuses. With [`Effect::Unknown`] the member may have the new
    ///   capabilities, and its next incarnation has them.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the update may or may not take effect.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let group = coordinator.group("backups")?;
    /// let membership = group.join_or_create("ssd").await?.rejoining();
    /// membership.update("hdd").await?;
    /// let member = group.member(membership.member_id()).await?;
    /// assert_eq!(member.capabilities.parse::<String>()?, "hdd");
    /// membership.leave().await?;
    /// # Ok(()) }
    /// ```
    pub async fn update(&self, capabilities: &(impl Serialize + ?Sized)) -> Result<()> {
        let data = to_data("update", capabilities, MAX_ENTRY_BYTES)?;
        if let Presence::Ended(kind) = self.presence() {
            let message = "it is out of the group for good";
            return Err(self.group.queue.error(kind, "update", message));
        }
        let state = Arc::clone(&self.state);
        // Locked before the task starts if it is free, because tasks may start in another order than they were spawned.
        let locked = Arc::clone(&self.state).try_lock_owned().ok();
        // A task has the lock, and not this future: the member could not come back while the caller does not poll.
        let updating = self.group.queue.run("update", async move {
            let mut state = match locked {
                Some(state) => state,
                None => state.lock_owned().await,
            };
            // Set before the store is asked, so that an incarnation that begins during the call has the new capabilities.
            let before = std::mem::replace(&mut state.capabilities, Arc::clone(&data));
            let Some(membership) = state.current.clone() else { return Ok(()) };
            match membership.put(data).await {
                // The next incarnation joins with the new capabilities.
                Err(error) if error.kind() == ErrorKind::Lost => Ok(()),
                Err(error) => {
                    if error.effect() == Effect::None {
                        state.capabilities = before;
                    }
                    Err(error)
                }
                Ok(()) => Ok(()),
            }
        });
        updating.await
    }

    /// Leaves the group for good and waits for the store to confirm. If a join is in flight, the call first waits for its end,
    /// which takes as long as [`Group::join`] may take, and removes what the join left: nobody sees the member afterwards.
    ///
    /// # Errors
    ///
    /// Those of [`Membership::leave`], except a loss: a member that is out of the group need not leave it. In a forked child it is
    /// [`ErrorKind::Closed`].
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, leaving goes on in the background.
    pub async fn leave(self) -> Result<()> {
        // In a forked child, what is locked here may be locked for ever.
        self.group.queue.named(self.group.queue.session.check_process("leave"))?;
        let joining = Arc::clone(&self.joining);
        let _no_join = match joining.try_lock() {
            Ok(no_join) => no_join,
            Err(_) => {
                let waits = self.group.queue.session.check_thread("leave");
                self.group
                    .queue
                    .named(waits.map_err(|error| error.with_effect(Effect::Unknown)))?;
                joining.lock().await
            }
        };
        let current = self.state.lock().await.current.take();
        let (group, member) = (self.group.clone(), Arc::clone(&self.member));
        // This ends the task, before it joins again.
        drop(self);
        let outcome = match current {
            Some(membership) => membership.grant.release().await,
            None => group.until_removed(&member).await,
        };
        match outcome {
            Err(error) if error.loss_reason().is_some() => Ok(()),
            outcome => outcome,
        }
    }
}

impl fmt::Debug for RejoiningMembership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RejoiningMembership")
            .field("group", &self.name())
            .field("member_id", &self.member)
            .field("presence", &self.presence())
            .finish()
    }
}

/// Joins again after every loss, as long as that is possible.
async fn keep(
    mut membership: Arc<Membership>,
    state: &Mutex<State>,
    joining: &Mutex<()>,
    told: &watch::Sender<Presence>,
) {
    loop {
        let reason = membership.lost().await;
        state.lock().await.current = None;
        told.send_replace(Presence::Away(reason));
        match rejoin(&membership, state, joining).await {
            Ok(next) => membership = next,
            Err(kind) => {
                told.send_replace(Presence::Ended(kind));
                return;
            }
        }
        told.send_replace(Presence::Member(membership.incarnation()));
    }
}

async fn rejoin(
    last: &Membership,
    state: &Mutex<State>,
    joining: &Mutex<()>,
) -> Result<Arc<Membership>, ErrorKind> {
    let (group, session) = (&last.group, &last.group.queue.session);
    let mut delays = session.retry_delays(Some(session.ttl()));
    loop {
        // Waits for a session first, so that capabilities that are set during this wait are those of the next incarnation.
        session.lease("join").await.map_err(|error| error.kind())?;
        let data = Arc::clone(&state.lock().await.capabilities);
        let in_flight = joining.lock().await;
        match group.enter(Arc::clone(&last.member), Arc::clone(&data)).await {
            Ok(membership) => {
                let mut state = state.lock().await;
                // The capabilities may have been updated during the join.
                let newer = Arc::clone(&state.capabilities);
                if newer == data || membership.put(newer).await.is_ok() {
                    let membership = Arc::new(membership);
                    state.current = Some(Arc::clone(&membership));
                    return Ok(membership);
                }
            }
            Err(error) if matches!(error.kind(), ErrorKind::Closed | ErrorKind::GroupMissing) => {
                return Err(error.kind());
            }
            Err(error) => {
                tracing::debug!(%error, group = ?group.name(), "not back in the group yet")
            }
        }
        drop(in_flight);
        tokio::time::sleep(delays.next_delay()).await;
    }
}

#[cfg(all(test, feature = "memory"))]
mod tests {
    use std::future::poll_fn;
    use std::pin::pin;
    use std::task::Poll;
    use std::time::Duration;

    use super::*;
    use crate::Coordinator;

    /// The caller does something else, and does not poll its update.
    #[tokio::test]
    async fn an_update_that_is_left_alone_does_not_keep_the_member_out() -> Result<()> {
        let coordinator = Coordinator::connect("memory://left-alone-update").await?;
        let group = coordinator.group("backups")?;
        let membership = group.join_or_create("ssd").await?.rejoining();
        let Presence::Member(first) = membership.presence() else { panic!("it has just joined") };
        let mut updating = pin!(membership.update("hdd"));
        let begun = poll_fn(|context| Poll::Ready(updating.as_mut().poll(context)));
        assert!(begun.await.is_pending());
        group.remove(membership.member_id()).await?;
        let back = async {
            while !matches!(membership.presence(), Presence::Member(now) if now > first) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), back).await.expect("it comes back");
        let member = group.member(membership.member_id()).await?;
        assert_eq!(member.capabilities.parse::<String>()?, "hdd");
        Ok(())
    }
}
