//! Members and their capabilities.

use std::collections::{BTreeMap, HashSet, btree_map};
use std::sync::Arc;
use std::time::SystemTime;

use serde::de::DeserializeOwned;
use serde::{Serialize, Serializer};

use crate::backend::{Data, Entry, Listing};
use crate::error::Result;
use crate::recipe::engine::data::from_data;
use crate::serialize;
use crate::token::FencingToken;

/// A member of a group, as [`Group::members`](crate::Group::members) lists it.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
/// # let coordinator = coordination::Coordinator::connect("memory://").await?;
/// let group = coordinator.group("backups")?;
/// let membership = group.join_or_create("ssd").await?;
///
/// for member in &group.members().await? {
///     let disk: String = member.capabilities.parse()?;
///     println!("{} has an {disk}, since {:?}", member.id, member.since);
/// }
/// # drop(membership);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Member {
    /// Its member id: unique in the group.
    #[serde(serialize_with = "serialize::text")]
    pub id: Arc<str>,
    /// The number of this join, larger than that of every earlier join: a member that left and came back has a larger one.
    pub incarnation: FencingToken,
    /// When the member joined, by the wall clock of its own host: for people to read, not to be compared.
    /// Written with serde, it is a number of seconds since 1970.
    #[serde(serialize_with = "serialize::since::serialize")]
    pub since: Option<SystemTime>,
    /// The [label](crate::Group::label) that it joined with; empty if it was given none.
    #[serde(serialize_with = "serialize::text")]
    pub label: Arc<str>,
    /// The capabilities: what the member says about itself.
    pub capabilities: Capabilities,
}

impl Member {
    pub(super) fn of(entry: &Entry) -> Option<Self> {
        Some(Self {
            id: Arc::clone(&entry.member),
            incarnation: FencingToken::new(entry.seq)?,
            since: entry.since,
            label: entry.label.clone().unwrap_or_default(),
            capabilities: Capabilities(Arc::clone(&entry.data)),
        })
    }
}

/// What a member says about itself: JSON, always read as a whole.
///
/// # Examples
///
/// ```
/// use serde::{Deserialize, Serialize};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
/// # let coordinator = coordination::Coordinator::connect("memory://").await?;
/// #[derive(Debug, PartialEq, Serialize, Deserialize)]
/// struct Host {
///     disks: u32,
/// }
///
/// let group = coordinator.group("backups")?;
/// let membership = group.join_or_create(&Host { disks: 4 }).await?;
///
/// let member = group.member(membership.member_id()).await?;
/// assert_eq!(member.capabilities.as_json(), r#"{"disks":4}"#);
/// assert_eq!(member.capabilities.parse::<Host>()?, Host { disks: 4 });
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities(Data);

impl Capabilities {
    /// The text as stored. If another program stored it, it need not be JSON.
    pub fn as_json(&self) -> &str {
        &self.0
    }

    /// The value.
    ///
    /// # Errors
    ///
    /// [`Corrupt`](crate::ErrorKind::Corrupt): the value is not a `T`.
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T> {
        from_data("parse", &self.0)
    }
}

/// The members of a group at one moment, in the order of joining.
///
/// # Examples
///
/// Kept up to date by hand:
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
/// # let coordinator = coordination::Coordinator::connect("memory://").await?;
/// let group = coordinator.group("backups")?;
/// group.create().await?;
/// let mut watch = group.watch().await?;
/// let mut members = watch.members();
///
/// let membership = group.join(&()).await?;
/// members.apply(&watch.next().await?);
/// assert_eq!(members, group.members().await?);
/// # drop(membership); Ok(()) }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Members(BTreeMap<FencingToken, Member>);

/// A list of the members, in the order in which they joined.
impl Serialize for Members {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(self)
    }
}

/// The value itself, or text if another program stored something that is no JSON.
impl Serialize for Capabilities {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        serialize::stored::serialize(&self.0, to)
    }
}

impl Members {
    pub(in crate::recipe) fn of(listing: &Listing) -> Self {
        let members = present(listing).into_iter().filter_map(Member::of);
        Self(members.map(|member| (member.incarnation, member)).collect())
    }

    /// The member of this id.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let group = coordinator.group("backups")?;
    /// let membership = group.join_or_create("ssd").await?;
    /// let members = group.members().await?;
    /// let me = members.get(membership.member_id()).expect("it has joined");
    /// assert_eq!(me.incarnation, membership.incarnation());
    /// assert!(members.get("nobody").is_none());
    /// # Ok(()) }
    /// ```
    pub fn get(&self, id: &str) -> Option<&Member> {
        self.iter().find(|member| *member.id == *id)
    }

    /// The members in the order of joining.
    pub fn iter(&self) -> btree_map::Values<'_, FencingToken, Member> {
        self.0.values()
    }

    /// The number of members.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Applies an event, so that these are the members after it.
    pub fn apply(&mut self, event: &GroupEvent) {
        match event {
            GroupEvent::Joined(member) | GroupEvent::Updated(member) => {
                self.0.insert(member.incarnation, member.clone());
            }
            GroupEvent::Left(member) => drop(self.0.remove(&member.incarnation)),
            GroupEvent::Resync(members) => self.clone_from(members),
            GroupEvent::Deleted => self.0.clear(),
        }
    }
}

/// What has changed in a group.
///
/// # Examples
///
/// ```
/// use coordination::GroupEvent;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
/// # let coordinator = coordination::Coordinator::connect("memory://").await?;
/// let group = coordinator.group("backups")?;
/// let mut watch = group.watch_or_create().await?;
/// group.join("ssd").await?.leave().await?;
/// group.delete().await?;
/// loop {
///     match watch.next().await? {
///         GroupEvent::Joined(member) => println!("{} has come", member.id),
///         GroupEvent::Left(member) => println!("{} has gone", member.id),
///         GroupEvent::Updated(member) => println!("{} has changed", member.id),
///         GroupEvent::Resync(members) => println!("after an outage there are {}", members.len()),
///         GroupEvent::Deleted => break,
///         _ => {}
///     }
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
#[serde(rename_all = "snake_case")]
pub enum GroupEvent {
    /// A member joined. If it was lost and came back, its old incarnation has left before.
    Joined(Member),
    /// A member left, or its session ended; this is what was last known of the member.
    Left(Member),
    /// A member has replaced its capabilities.
    Updated(Member),
    /// The store could not be read for a while, so that the changes in that time are unknown. These are the members now.
    Resync(Members),
    /// The group was deleted; all its members were reported as left before. This is the last event.
    Deleted,
}

impl<'a> IntoIterator for &'a Members {
    type Item = &'a Member;
    type IntoIter = btree_map::Values<'a, FencingToken, Member>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl IntoIterator for Members {
    type Item = Member;
    type IntoIter = btree_map::IntoValues<FencingToken, Member>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_values()
    }
}

/// The entries that are members, in order. Of two entries with one member id only the first is a member, because the second is
/// about to be refused.
pub(super) fn present(listing: &Listing) -> Vec<&Entry> {
    let mut ids = HashSet::with_capacity(listing.entries.len());
    let members = listing.entries.iter().filter(|entry| !entry.member.is_empty());
    members.fold(Vec::new(), |mut present, entry| {
        if ids.insert(&*entry.member) {
            present.push(entry);
        }
        present
    })
}
