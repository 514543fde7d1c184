//! Keys shared out among the members of a group, by a hash ring that follows the group.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};

use serde::Serialize;

use super::group::{Capabilities, Group, GroupEvent, GroupWatch, Member, Membership};
use super::ring::HashRing;
use crate::error::Result;

/// A larger weight counts as this: what a member says of itself must not cost others their memory.
const MAX_WEIGHT: u32 = 1_000;

/// What a member of a partitioned group says of itself.
#[derive(Serialize)]
struct Weighted {
    weight: u32,
}

impl Group {
    /// Shares out keys among the members; `partitions` as in
    /// [`HashRing::with_partitions`], the same in all processes: usually [`HashRing::PARTITIONS`].
    ///
    /// It follows the group from here on. A member's weight is the number `weight` of its capabilities, 0
    /// to 1,000; 1 if it says nothing else.
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

    /// Joins the group with this weight, creates it if need be, and shares out keys among the members.
    ///
    /// On return the ring has this member.
    ///
    /// # Errors
    ///
    /// Those of [`join`](Self::join) and [`watch`](Self::watch).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the group again.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let group = coordinator.group("pollers")?;
    /// let (membership, partitioner) = group.join_partitioned(1).await?;
    /// // Nobody else is there.
    /// assert!(partitioner.is_mine("vol-7")?);
    /// # drop(membership); Ok(()) }
    /// ```
    pub async fn join_partitioned(&self, weight: u32) -> Result<(Membership, Partitioner)> {
        let membership = self.join_or_create(&Weighted { weight }).await?;
        let mut partitioner = self.partitioner(HashRing::PARTITIONS).await?;
        while !partitioner.current()?.ring.contains(membership.member_id()) {
            tokio::select! {
                biased;
                reason = membership.lost() => return Err(membership.grant.loss("join", reason)),
                changed = partitioner.changed() => changed?,
            }
        }
        Ok((membership, partitioner))
    }
}

/// Says which member of a group a key belongs to. Made by [`Group::partitioner`].
///
/// Processes that see the same members place every key alike, and as Tooz does. Each question is answered by
/// what this process knows at that moment, without I/O. Between a join or leave and word of it two
/// processes may both think that a key is theirs, or neither: where that must not be, take a
/// [lock](crate::Coordinator::lock) besides.
///
/// While the store is out of reach it goes by what was last known. It keeps the session open, as a
/// [`Group`] does.
pub struct Partitioner {
    /// Who asks.
    member: Arc<str>,
    followed: Mutex<Followed>,
}

struct Followed {
    watch: GroupWatch,
    ring: HashRing,
}

impl Partitioner {
    /// The members that the key belongs to, the first one first: `replicas` of them, or all there are, but
    /// none that is to be ignored.
    ///
    /// # Errors
    ///
    /// * [`GroupMissing`](crate::ErrorKind::GroupMissing): the group was deleted.
    /// * [`Closed`](crate::ErrorKind::Closed): the coordinator was stopped.
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

    /// Whether the key belongs to this member. Nothing belongs to somebody who is not there.
    ///
    /// # Errors
    ///
    /// Those of [`members_for`](Self::members_for).
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

    /// Waits until the members are others, or weigh otherwise, than the last answer went by.
    ///
    /// # Errors
    ///
    /// Those of [`members_for`](Self::members_for).
    ///
    /// # Cancel safety
    ///
    /// No change is lost when the future is dropped.
    pub async fn changed(&mut self) -> Result<()> {
        let followed = self.followed.get_mut().unwrap_or_else(|poisoned| poisoned.into_inner());
        loop {
            let event = followed.watch.next().await?;
            if followed.apply(&event) {
                return Ok(());
            }
        }
    }

    /// With all that this process knows by now.
    fn current(&self) -> Result<MutexGuard<'_, Followed>> {
        // Nothing that panics runs under it.
        let mut followed = self.followed.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        while let Some(event) = followed.watch.try_next()? {
            followed.apply(&event);
        }
        Ok(followed)
    }
}

impl Followed {
    /// Brings the ring up to date; whether it is another one now.
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

/// Another program may have written anything; all must count it alike.
fn weight(capabilities: &Capabilities) -> u32 {
    let said = capabilities.parse::<serde_json::Value>().ok();
    let weight = said.and_then(|said| said.get("weight")?.as_u64());
    weight.map_or(1, |weight| u32::try_from(weight).unwrap_or(MAX_WEIGHT).min(MAX_WEIGHT))
}
