//! Keys distributed over the members of a group, by a hash ring that follows the group.

pub(crate) mod ring;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};

use serde::Serialize;

use self::ring::HashRing;
use super::group::{Capabilities, Group, GroupEvent, GroupWatch, Member, Membership};
use crate::error::{Effect, Result};

/// A larger weight counts as this one, so that a member's capabilities cannot use up the memory of others.
const MAX_WEIGHT: u32 = 1_000;

/// The capabilities of a member that joined by `join_partitioned`.
#[derive(Serialize)]
struct Weighted {
    weight: u32,
}

impl Group {
    /// A partitioner that distributes keys over the members of this group. `partitions` is that of
    /// [`HashRing::with_partitions`]: usually [`HashRing::PARTITIONS`], and the same in all processes.
    ///
    /// It follows the group from now on. A member's weight is the number `weight` in its capabilities, 0 to
    /// 1,000; 1 if there is none.
    ///
    /// # Errors
    ///
    /// Those of [`watch`](Self::watch).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind.
    pub async fn partitioner(&self, partitions: u32) -> Result<Partitioner> {
        let watch = self.watch().await?;
        let mut ring = HashRing::with_partitions(partitions);
        ring.extend(watch.members().iter().map(weighted));
        let member = Arc::clone(&self.queue.session.settings.member);
        Ok(Partitioner { member, followed: Mutex::new(Followed { watch, ring }) })
    }

    /// Joins the group with this weight, creating the group if it does not exist, and makes a partitioner.
    ///
    /// On return this member is on the ring.
    ///
    /// # Errors
    ///
    /// Those of [`join`](Self::join) and [`watch`](Self::watch). Unless the effect is [`Effect::None`], the member may have been in the group,
    /// which it leaves again.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the member leaves the group again.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let group = coordinator.group("pollers")?;
    /// let (membership, partitioner) = group.join_partitioned(1).await?;
    /// // There is no other member.
    /// assert!(partitioner.is_mine("vol-7")?);
    /// # drop(membership); Ok(()) }
    /// ```
    pub async fn join_partitioned(&self, weight: u32) -> Result<(Membership, Partitioner)> {
        let membership = self.join_or_create(&Weighted { weight }).await?;
        // The member is in the group from here on, and leaves it in the background if this fails.
        let partitioner = self.partitioner_with(&membership).await;
        let partitioner = partitioner.map_err(|error| match error.effect() {
            Effect::Applied => error,
            _ => error.with_effect(Effect::Unknown),
        })?;
        Ok((membership, partitioner))
    }

    /// A partitioner that has this member on its ring.
    async fn partitioner_with(&self, membership: &Membership) -> Result<Partitioner> {
        let mut partitioner = self.partitioner(HashRing::PARTITIONS).await?;
        while !partitioner.current()?.ring.contains(membership.member_id()) {
            tokio::select! {
                biased;
                reason = membership.lost() => {
                    return Err(membership.grant.loss_error("join", reason, Effect::Applied));
                }
                changed = partitioner.changed() => changed?,
            }
        }
        Ok(partitioner)
    }
}

/// Says which member of a group a key belongs to. Made by [`Group::partitioner`].
///
/// Processes that see the same members place every key on the same members, as Tooz does. Each call uses
/// the members that this process knows at that moment, without I/O. Until all processes have heard of a join or
/// leave, two of them may both think that a key is theirs, or neither may. Where that must not happen, acquire a
/// [lock](crate::Coordinator::lock) as well.
///
/// While the store cannot be reached, the partitioner uses the last known members. It keeps the session open, as a
/// [`Group`] does.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
/// # let coordinator = coordination::Coordinator::connect("memory://").await?;
/// let group = coordinator.group("pollers")?;
/// let (membership, mut partitioner) = group.join_partitioned(1).await?;
/// assert!(partitioner.is_mine("vol-7")?);
///
/// // Another member takes some of the keys over.
/// let other = group.join_as("other", &()).await?;
/// partitioner.changed().await?;
/// let mine = (0..100).filter(|n| partitioner.is_mine(format!("vol-{n}")).unwrap_or(false));
/// let mine = mine.count();
/// assert!(0 < mine && mine < 100, "{mine} of 100");
/// # drop((membership, other));
/// # Ok(()) }
/// ```
pub struct Partitioner {
    /// The member id of this process.
    member: Arc<str>,
    followed: Mutex<Followed>,
}

struct Followed {
    watch: GroupWatch,
    ring: HashRing,
}

impl Partitioner {
    /// The first `replicas` members that the key belongs to, in the order of the ring, without those in
    /// `ignore`; fewer, if there are not as many.
    ///
    /// # Errors
    ///
    /// * [`GroupMissing`](crate::ErrorKind::GroupMissing): the group was deleted.
    /// * [`Closed`](crate::ErrorKind::Closed): the coordinator was stopped.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let group = coordinator.group("pollers")?;
    /// let (membership, partitioner) = group.join_partitioned(1).await?;
    /// let me = membership.member_id();
    /// assert_eq!(partitioner.members_for("vol-7", 2, &[])?, [me]);
    /// assert!(partitioner.members_for("vol-7", 2, &[me])?.is_empty());
    /// # Ok(()) }
    /// ```
    pub fn members_for(
        &self,
        key: impl AsRef<[u8]>,
        replicas: usize,
        ignore: &[&str],
    ) -> Result<Vec<String>> {
        let followed = self.current()?;
        let members = followed.ring.nodes(key, replicas, ignore);
        Ok(members.into_iter().map(str::to_owned).collect())
    }

    /// Whether the key belongs to this member. No key belongs to a process that is not a member.
    ///
    /// # Errors
    ///
    /// Those of [`members_for`](Self::members_for).
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let group = coordinator.group("pollers")?;
    /// let (membership, partitioner) = group.join_partitioned(1).await?;
    /// assert!(partitioner.belongs_to(membership.member_id(), "vol-7")?);
    /// assert!(!partitioner.belongs_to("another", "vol-7")?);
    /// # Ok(()) }
    /// ```
    pub fn belongs_to(&self, member_id: &str, key: impl AsRef<[u8]>) -> Result<bool> {
        Ok(self.current()?.ring.node(key) == Some(member_id))
    }

    /// Whether the key belongs to this process, under [`member_id`](crate::Coordinator::member_id).
    ///
    /// # Errors
    ///
    /// Those of [`members_for`](Self::members_for).
    pub fn is_mine(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        self.belongs_to(&self.member, key)
    }

    /// The ring as it is now.
    ///
    /// # Errors
    ///
    /// Those of [`members_for`](Self::members_for).
    pub fn ring(&self) -> Result<HashRing> {
        Ok(self.current()?.ring.clone())
    }

    /// Waits until the members or their weights differ from those that the last call used.
    ///
    /// # Errors
    ///
    /// Those of [`members_for`](Self::members_for).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses no change.
    pub async fn changed(&mut self) -> Result<()> {
        let followed = self.followed.get_mut().unwrap_or_else(|poisoned| poisoned.into_inner());
        loop {
            let event = followed.watch.next().await?;
            if followed.apply(&event) {
                return Ok(());
            }
        }
    }

    /// The ring and the members, brought up to date with what this process knows.
    fn current(&self) -> Result<MutexGuard<'_, Followed>> {
        // Nothing that panics runs under this mutex.
        let mut followed = self.followed.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        while let Some(event) = followed.watch.try_next()? {
            followed.apply(&event);
        }
        Ok(followed)
    }
}

impl Followed {
    /// Changes the ring by an event; returns whether the ring has changed.
    fn apply(&mut self, event: &GroupEvent) -> bool {
        match event {
            GroupEvent::Joined(member) | GroupEvent::Updated(member) => {
                let (id, weight) = weighted(member);
                let is_new = self.ring.weight(&id) != Some(weight);
                if is_new {
                    self.ring.add(id, weight);
                }
                is_new
            }
            GroupEvent::Left(member) => self.ring.remove(&member.id).is_ok(),
            GroupEvent::Resync(members) => {
                let mut ring = HashRing::with_partitions(self.ring.partitions());
                ring.extend(members.iter().map(weighted));
                let is_new = !ring.weights().eq(self.ring.weights());
                self.ring = ring;
                is_new
            }
            GroupEvent::Deleted => false,
        }
    }
}

impl fmt::Debug for Partitioner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Partitioner").field("member", &self.member).finish_non_exhaustive()
    }
}

fn weighted(member: &Member) -> (Arc<str>, u32) {
    (Arc::clone(&member.id), weight(&member.capabilities))
}

/// The weight in a member's capabilities. Other programs may have written anything there, and all processes must read
/// it alike.
fn weight(capabilities: &Capabilities) -> u32 {
    let said = capabilities.parse::<serde_json::Value>().ok();
    let weight = said.and_then(|said| said.get("weight")?.as_u64());
    weight.map_or(1, |weight| u32::try_from(weight).unwrap_or(MAX_WEIGHT).min(MAX_WEIGHT))
}
