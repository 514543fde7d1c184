//! The place of this process in a group.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};

use serde::Serialize;

use super::Group;
use crate::backend::Data;
use crate::error::{Effect, Result};
use crate::recipe::engine::data::{MAX_ENTRY_BYTES, to_data};
use crate::recipe::engine::grant::Grant;
use crate::token::FencingToken;

/// Membership in a group; leaves the group when dropped.
///
/// It dereferences to [`Grant`]: [`is_held`](Grant::is_held), [`lost`](Grant::lost) and the other methods say
/// whether the member is still in the group. When it is lost it stays lost: join again, or let
/// [`rejoining`](Self::rejoining) do that. It keeps the session open, as a [`Group`] does.
///
/// Dropping it never blocks. Leaving goes on in the background; if it cannot be sent, the member is gone when
/// the session ends.
///
/// # Examples
///
/// ```
/// use coordination::LossReason;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
/// # let coordinator = coordination::Coordinator::connect("memory://").await?;
/// let group = coordinator.group("backups")?;
/// let membership = group.join_or_create("ssd").await?;
/// assert!(membership.is_held());
///
/// // An operator takes the member out.
/// group.remove(membership.member_id()).await?;
/// assert_eq!(membership.lost().await, LossReason::EntryDeleted);
/// # Ok(()) }
/// ```
#[must_use = "dropping it leaves the group"]
pub struct Membership {
    // Dropped before `group`, which may be what keeps the session open.
    pub(in crate::recipe) grant: Grant,
    pub(super) group: Group,
    pub(super) member: Arc<str>,
    capabilities: Mutex<Data>,
}

impl Membership {
    pub(super) fn new(grant: Grant, group: Group, member: Arc<str>, capabilities: Data) -> Self {
        Self { grant, group, member, capabilities: Mutex::new(capabilities) }
    }

    pub(super) fn capabilities(&self) -> MutexGuard<'_, Data> {
        // Nothing that panics runs under this mutex.
        self.capabilities.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// The member id in the group.
    pub fn member_id(&self) -> &str {
        &self.member
    }

    /// The number of this incarnation: larger than that of every earlier join to this group.
    pub fn incarnation(&self) -> FencingToken {
        self.grant.token()
    }

    /// Replaces the member's capabilities. Readers see either the old or the new ones, whole. The incarnation
    /// stays the same.
    ///
    /// # Errors
    ///
    /// * [`ErrorKind::Value`](crate::ErrorKind::Value): the capabilities cannot be written as JSON, or are
    ///   too large.
    /// * [`ErrorKind::Lost`](crate::ErrorKind::Lost), [`ErrorKind::Closed`](crate::ErrorKind::Closed): the
    ///   member is no longer in the group. With [`Effect::Unknown`](crate::Effect::Unknown) it may have been seen with the new
    ///   capabilities before.
    /// * The [kinds of error](crate::ErrorKind) of a store that refuses. With [`Effect::Unknown`](crate::Effect::Unknown) the member may
    ///   have the new capabilities.
    ///
    /// # Fairness
    ///
    /// Updates take effect in the order in which they were asked for.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the update goes on in the background; but if another update was still in
    /// flight, it may not be made.
    ///
    /// # Examples
    ///
    /// ```
    /// use serde_json::json;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let group = coordinator.group("backups")?;
    /// let membership = group.join_or_create(&json!({ "disks": 4 })).await?;
    /// membership.update(&json!({ "disks": 5 })).await?;
    ///
    /// let member = group.member(membership.member_id()).await?;
    /// assert_eq!(member.capabilities.as_json(), r#"{"disks":5}"#);
    /// assert_eq!(member.incarnation, membership.incarnation());
    /// # Ok(()) }
    /// ```
    pub async fn update(&self, capabilities: &(impl Serialize + ?Sized)) -> Result<()> {
        self.put(to_data("update", capabilities, MAX_ENTRY_BYTES)?).await
    }

    pub(super) async fn put(&self, data: Data) -> Result<()> {
        // Noted before the store is asked: if this future is dropped, the update goes on, and the next incarnation is to say the same.
        let before = std::mem::replace(&mut *self.capabilities(), Arc::clone(&data));
        let update = self.grant.own_entry().update("update", Default::default(), Arc::clone(&data));
        let updated = self.grant.named(update.await);
        if updated.as_ref().is_err_and(|error| error.effect() == Effect::None) {
            let mut noted = self.capabilities();
            let is_noted = |noted: &Data| Arc::ptr_eq(noted, &data);
            // A later update may have been asked for meanwhile.
            if is_noted(&noted) {
                *noted = before;
            }
        }
        updated
    }

    /// Leaves the group and waits for the store to confirm.
    ///
    /// # Errors
    ///
    /// * [`ErrorKind::Lost`](crate::ErrorKind::Lost), [`ErrorKind::Closed`](crate::ErrorKind::Closed): it was
    ///   no longer in the group.
    /// * Others, with [`Effect::Unknown`](crate::Effect::Unknown): the store has not confirmed. The library
    ///   goes on trying in the background until the session ends.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, leaving goes on in the background.
    pub async fn leave(self) -> Result<()> {
        self.grant.release().await
    }
}

impl std::ops::Deref for Membership {
    type Target = Grant;

    fn deref(&self) -> &Grant {
        &self.grant
    }
}

impl fmt::Debug for Membership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Membership")
            .field("group", &self.name())
            .field("member_id", &self.member)
            .field("incarnation", &self.incarnation())
            .field("is_held", &self.is_held())
            .finish()
    }
}

#[cfg(all(test, feature = "memory"))]
mod tests {
    use std::future::poll_fn;
    use std::pin::pin;
    use std::task::Poll;
    use std::time::Duration;

    use crate::{Coordinator, Presence, Result};

    /// Whoever gives up waiting for an update does not take it back.
    #[tokio::test]
    async fn the_next_incarnation_says_what_an_update_said_that_nobody_waited_for() -> Result<()> {
        let coordinator = Coordinator::connect("memory://nobody-waited").await?;
        let group = coordinator.group("backups")?;
        let membership = group.join_or_create("ssd").await?;
        let id = membership.member_id().to_owned();
        {
            let mut updating = pin!(membership.update("hdd"));
            let begun = poll_fn(|context| Poll::Ready(updating.as_mut().poll(context)));
            assert!(begun.await.is_pending(), "it is carried out by a task");
        }
        let says = async || group.member(&id).await?.capabilities.parse::<String>();
        let carried_out = async {
            while says().await? != "hdd" {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            Ok::<_, crate::Error>(())
        };
        tokio::time::timeout(Duration::from_secs(10), carried_out).await.expect("it goes on")?;
        let mut membership = membership.rejoining();
        group.remove(&id).await?;
        let mut now = membership.changed().await;
        while let Some(Presence::Away(_)) = now {
            now = membership.changed().await;
        }
        assert!(matches!(now, Some(Presence::Member(_))), "{now:?}");
        assert_eq!(says().await?, "hdd");
        membership.leave().await
    }

    /// One update is on its way, one waits for that, and the caller does something else and polls neither.
    #[tokio::test]
    async fn an_update_that_is_left_alone_keeps_no_other_one_waiting() -> Result<()> {
        let coordinator = Coordinator::connect("memory://left-alone-in-line").await?;
        let group = coordinator.group("backups")?;
        let membership = group.join_or_create("ssd").await?;
        let mut first = pin!(membership.update("hdd"));
        let mut second = pin!(membership.update("tape"));
        assert!(poll_fn(|context| Poll::Ready(first.as_mut().poll(context))).await.is_pending());
        assert!(poll_fn(|context| Poll::Ready(second.as_mut().poll(context))).await.is_pending());
        let third = tokio::time::timeout(Duration::from_secs(10), membership.update("disk")).await;
        third.expect("nobody keeps it waiting")?;
        let member = group.member(membership.member_id()).await?;
        assert_eq!(member.capabilities.parse::<String>()?, "disk");
        Ok(())
    }
}
