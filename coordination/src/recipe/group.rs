//! Groups: which processes are there, and with what capabilities.
//!
//! A group is a queue of kind `group`; it exists while the queue has a value. A member is an entry: its
//! member id, its capabilities as JSON, and its number, which is the *incarnation*. A group's value is removed
//! only while it has no entry, so nobody can join what is being deleted.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::Serialize;
use tokio::time::Instant;

use super::engine::data::{MAX_ENTRY_BYTES, to_data};
use super::engine::label::labelled;
use super::engine::own_entry::Contents;
use super::engine::policy::{Decision, Policy};
use super::engine::queue::Queue;
use super::engine::turn::Request;
use crate::backend::{Data, Entry, EntryRef, Listing, Write};
use crate::config::checked_member;
use crate::coordinator::Coordinator;
use crate::error::{Effect, Error, ErrorKind, Result};
use crate::key::QueueKey;
use crate::session::{Purpose, Session, Written};

mod members;
mod membership;
mod rejoin;
mod watch;

pub use members::{Capabilities, GroupEvent, Member, Members};
pub use membership::Membership;
pub use rejoin::{Presence, RejoiningMembership};
pub use watch::GroupWatch;

const KIND: &str = "group";
/// The value of every group: it has nothing to say but that the group exists.
const CREATED: &str = "{}";
/// The longest that joining and watching wait for the store, even if the lease is longer.
const LONGEST_JOIN: Duration = Duration::from_secs(5);

impl Coordinator {
    /// The group of this name, with the coordinator's prefix before it. No I/O.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Name`]: empty or too long, as for [`lock`](Self::lock).
    pub fn group(&self, name: impl AsRef<str>) -> Result<Group> {
        Ok(Group { queue: self.queue_of(KIND, name.as_ref())? })
    }

    /// The names of all existing groups that begin with the coordinator's prefix, without it, in order.
    ///
    /// # Errors
    ///
    /// The [kinds of error](crate::ErrorKind) of a store that refuses or does not answer.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect: it only reads.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// coordinator.group("backups")?.create().await?;
    /// coordinator.group("pollers")?.create().await?;
    /// assert_eq!(coordinator.groups().await?, ["backups", "pollers"]);
    /// # Ok(()) }
    /// ```
    pub async fn groups(&self) -> Result<Vec<String>> {
        self.names("groups", KIND).await
    }
}

/// A named group. Made by [`Coordinator::group`], without I/O; cheap to clone.
///
/// A group is created once, by the process that comes first, and stays until it is deleted. Each member stays until
/// it leaves, or until the session in which it joined has ended.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
/// let coordinator = coordination::Coordinator::builder().member_id("host-1").connect("memory://").await?;
/// let group = coordinator.group("backups")?;
/// let membership = group.join_or_create(&serde_json::json!({ "disks": 4 })).await?;
///
/// let member = group.member("host-1").await?;
/// assert_eq!(member.incarnation, membership.incarnation());
/// assert_eq!(member.capabilities.as_json(), r#"{"disks":4}"#);
///
/// membership.leave().await?;
/// assert!(group.members().await?.is_empty());
/// group.delete().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Group {
    pub(super) queue: Queue,
}

impl Group {
    /// The group's name, with the coordinator's prefix.
    pub fn name(&self) -> &str {
        self.queue.name()
    }

    /// Creates the group. It stays until it is [deleted](Self::delete), also when its creator ends.
    ///
    /// # Errors
    ///
    /// * [`ErrorKind::GroupExists`]: the group already exists. With [`Effect::Unknown`], this call may have
    ///   created it.
    /// * The [kinds of error](crate::ErrorKind) of a store that refuses or does not answer.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the call goes on in the background.
    ///
    /// # Examples
    ///
    /// ```
    /// use coordination::ErrorKind;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let group = coordinator.group("backups")?;
    /// group.create().await?;
    /// assert_eq!(group.create().await.unwrap_err().kind(), ErrorKind::GroupExists);
    /// assert!(group.exists().await?);
    /// # Ok(()) }
    /// ```
    pub async fn create(&self) -> Result<()> {
        let write = Write::new(&self.queue.key, None, Some(CREATED.into()));
        let exists = || self.queue.error(ErrorKind::GroupExists, "create", "the group exists");
        match self.queue.write("create", write).await? {
            Written::Yes(_) => Ok(()),
            Written::No => Err(exists()),
            Written::Unknown => Err(exists().with_effect(Effect::Unknown)),
        }
    }

    /// Deletes the group, which must be empty. Watchers are notified.
    ///
    /// # Errors
    ///
    /// * [`ErrorKind::GroupMissing`]: the group does not exist.
    /// * [`ErrorKind::GroupNotEmpty`]: the group has members, or a process is just joining. With [`Effect::Unknown`], a request of
    ///   this call is perhaps still on its way, and deletes the group if it is empty by then.
    /// * The [kinds of error](crate::ErrorKind) of a store that refuses or does not answer.
    ///
    /// # Cancel safety
    ///
    /// A dropped call may or may not delete the group.
    ///
    /// # Examples
    ///
    /// ```
    /// use coordination::ErrorKind;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let group = coordinator.group("backups")?;
    /// let membership = group.join_or_create("ssd").await?;
    /// assert_eq!(group.delete().await.unwrap_err().kind(), ErrorKind::GroupNotEmpty);
    ///
    /// membership.leave().await?;
    /// group.delete().await?;
    /// assert!(!group.exists().await?);
    /// # Ok(()) }
    /// ```
    pub async fn delete(&self) -> Result<()> {
        let mut in_doubt = None;
        loop {
            match self.try_to_delete(&mut in_doubt).await {
                Ok(true) => return Ok(()),
                // Somebody joined or deleted the group in between, or a try is in doubt: the next read shows which.
                Ok(false) => {}
                // A try whose answer was lost may still be on its way, and deletes the group if it is empty then.
                Err(error) if in_doubt.is_some() => return Err(error.with_effect(Effect::Unknown)),
                Err(error) => return Err(error),
            }
        }
    }

    /// Deletes the group if it is empty; true: the group that was read is gone. `in_doubt` is the version of the group that an
    /// earlier try may have deleted.
    async fn try_to_delete(&self, in_doubt: &mut Option<u64>) -> Result<bool> {
        let listing = self.queue.read("delete").await?;
        let version = listing.value.as_ref().map(|value| value.version);
        // Versions do not come again. So the group that an earlier try has read is gone, and it does not matter who deleted it.
        if in_doubt.is_some() && *in_doubt != version {
            return Ok(true);
        }
        if version.is_none() {
            return self.queue.named(Err(missing("delete")));
        }
        if !listing.entries.is_empty() {
            let message = "the group has members";
            return Err(self.queue.error(ErrorKind::GroupNotEmpty, "delete", message));
        }
        let mut write = Write::new(&self.queue.key, version, None);
        write.if_empty = true;
        let written = self.queue.write("delete", write).await?;
        if written == Written::Unknown {
            // The store refuses a write also if the queue is not empty, so the group may stand as it was.
            *in_doubt = version;
        }
        Ok(matches!(written, Written::Yes(_)))
    }

    /// Whether the group exists.
    ///
    /// # Errors
    ///
    /// The [kinds of error](crate::ErrorKind) of a store that refuses or does not answer.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect: it only reads.
    pub async fn exists(&self) -> Result<bool> {
        Ok(self.queue.read("exists").await?.value.is_some())
    }

    /// Joins the group as this process, under [`Coordinator::member_id`].
    ///
    /// From the return of `join` on, every process that asks sees the member, until the member leaves, or until its
    /// session has ended and the store has noticed (within the bound of L1 in `docs/guarantees.md`). `capabilities`
    /// is anything that serialises to at most 4 KiB of JSON; `&()` stands for no capabilities.
    ///
    /// # Errors
    ///
    /// * [`ErrorKind::GroupMissing`]: create the group first.
    /// * [`ErrorKind::AlreadyJoined`]: this session is already in the group under this member id.
    /// * [`ErrorKind::MemberExists`]: another live session is in the group under this member id.
    /// * [`ErrorKind::Value`]: the capabilities cannot be written as JSON, or are too large.
    /// * [`ErrorKind::Unavailable`]: the store did not answer within the shorter of the lease and five
    ///   seconds, or did not remove in that time what an earlier membership of this session has left.
    /// * [`ErrorKind::Lost`], [`ErrorKind::Closed`], and those of a store that refuses.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind; watchers may see a join and a leave.
    ///
    /// # Examples
    ///
    /// ```
    /// use coordination::ErrorKind;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let group = coordinator.group("backups")?;
    /// assert_eq!(group.join("ssd").await.unwrap_err().kind(), ErrorKind::GroupMissing);
    /// group.create().await?;
    /// let membership = group.join("ssd").await?;
    /// assert_eq!(group.join("ssd").await.unwrap_err().kind(), ErrorKind::AlreadyJoined);
    /// # drop(membership);
    /// # Ok(()) }
    /// ```
    pub async fn join(&self, capabilities: &(impl Serialize + ?Sized)) -> Result<Membership> {
        let member = Arc::clone(&self.queue.session.settings.member);
        let data = to_data("join", capabilities, MAX_ENTRY_BYTES)?;
        self.enter(member, data).await
    }

    /// Like [`join`](Self::join), but under another member id of 1 to 255 bytes, to which no prefix is added.
    /// A process may have several members, for example one for each disk.
    ///
    /// # Errors
    ///
    /// Those of [`join`](Self::join), and [`ErrorKind::Name`]: the member id is empty or too long.
    ///
    /// # Cancel safety
    ///
    /// That of [`join`](Self::join).
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let group = coordinator.group("disks")?;
    /// group.create().await?;
    /// // One process, with a member for each of its disks.
    /// let disks = (group.join_as("host-1/sda", "ssd").await?, group.join_as("host-1/sdb", "hdd").await?);
    /// let members = group.members().await?;
    /// let ids: Vec<_> = members.iter().map(|member| &*member.id).collect();
    /// assert_eq!(ids, ["host-1/sda", "host-1/sdb"]);
    /// # drop(disks);
    /// # Ok(()) }
    /// ```
    pub async fn join_as(
        &self,
        member_id: impl AsRef<str>,
        capabilities: &(impl Serialize + ?Sized),
    ) -> Result<Membership> {
        let member = self.queue.named(checked_member(member_id.as_ref()))?;
        let data = to_data("join", capabilities, MAX_ENTRY_BYTES)?;
        self.enter(member, data).await
    }

    /// Like [`join`](Self::join), but creates the group if it does not exist.
    ///
    /// # Errors
    ///
    /// Those of [`join`](Self::join) but `GroupMissing`. With [`Effect::Unknown`] the group may have been created.
    ///
    /// # Cancel safety
    ///
    /// That of [`join`](Self::join); the group may have been created.
    pub async fn join_or_create(
        &self,
        capabilities: &(impl Serialize + ?Sized),
    ) -> Result<Membership> {
        self.or_create(|| self.join(capabilities)).await
    }

    /// Makes this call, and creates the group each time that the call says that the group is missing. If the call fails after that,
    /// the effect is `Unknown`, because the group stays.
    async fn or_create<T, C>(&self, call: impl Fn() -> C) -> Result<T>
    where
        C: Future<Output = Result<T>>,
    {
        let mut has_created = false;
        let outcome = loop {
            match call().await {
                Err(error) if error.kind() == ErrorKind::GroupMissing => {}
                outcome => break outcome,
            }
            if let Err(error) = self.create_if_missing().await {
                break Err(error);
            }
            has_created = true;
        };
        outcome.map_err(|error| match has_created {
            true => error.with_effect(Effect::Unknown),
            false => error,
        })
    }

    async fn create_if_missing(&self) -> Result<()> {
        match self.create().await {
            Err(error) if error.kind() != ErrorKind::GroupExists => Err(error),
            _ => Ok(()),
        }
    }

    async fn enter(&self, member: Arc<str>, data: Data) -> Result<Membership> {
        let contents = Contents {
            member: Arc::clone(&member),
            data: Arc::clone(&data),
            purpose: Purpose::Sign,
            ..self.queue.contents()
        };
        let (session, queue) = (Arc::clone(&self.queue.session), self.queue.key.clone());
        let limit = session.ttl().min(LONGEST_JOIN);
        let policy = Arc::new(Joining { session, queue, waits_for: AtomicU64::new(0) });
        let request = Request { contents, policy: Some(Arc::<Joining>::clone(&policy)) };
        match self.queue.acquire_within(&request, Some(limit)).await {
            Ok(grant) => Ok(Membership::new(grant, self.clone(), member, data)),
            Err(error) if error.kind() != ErrorKind::Timeout => Err(error),
            Err(_) if policy.has_joined() => self.queue.named(Err(already_joined())),
            // Nobody is in the group by that entry, and whoever was told so would go on without a membership.
            Err(error) if policy.waits_for.load(Ordering::SeqCst) != 0 => {
                let message = "an earlier join of this session is still being removed";
                let late = self.queue.session.late("join", message, None);
                self.queue.named(Err(late.with_effect(error.effect())))
            }
            Err(_) => {
                let message = "the store did not answer within the time given";
                let late = self.queue.session.late("join", message, None);
                self.queue.named(Err(late))
            }
        }
    }

    /// Waits until no entry is left that this session had under this member id and has given up.
    async fn until_removed(&self, member: &str) -> Result<()> {
        let session = &self.queue.session;
        let mut delays = session.retry_delays(Some(session.ttl()));
        let deadline = Instant::now() + session.ttl().min(LONGEST_JOIN);
        while let Some(lease) = session.lease_now() {
            let listing = self.queue.read("leave").await?;
            let is_given_up = |entry: &Entry| {
                *entry.member == *member
                    && entry.id.is_of(lease.id)
                    && !lease.holds_number(&self.queue.key, entry.seq)
            };
            if !listing.entries.iter().any(is_given_up) {
                break;
            }
            if Instant::now() >= deadline {
                let message = "an earlier join is still being removed";
                let error = self.queue.error(ErrorKind::Unavailable, "leave", message);
                return Err(error.with_effect(Effect::Unknown));
            }
            self.queue.sleep_until("leave", Instant::now() + delays.next_delay()).await?;
        }
        Ok(())
    }

    /// The members with their capabilities, in the order of joining. One read of the store.
    ///
    /// # Errors
    ///
    /// * [`ErrorKind::GroupMissing`]: the group does not exist.
    /// * The [kinds of error](crate::ErrorKind) of a store that refuses or does not answer.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect: it only reads.
    pub async fn members(&self) -> Result<Members> {
        Ok(Members::of(&self.existing("members").await?))
    }

    /// The member of this id.
    ///
    /// # Errors
    ///
    /// Those of [`members`](Self::members), and [`ErrorKind::NotJoined`]: there is no such member.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect: it only reads.
    pub async fn member(&self, id: &str) -> Result<Member> {
        let members = self.members().await?;
        members.get(id).cloned().ok_or_else(|| self.not_joined("member"))
    }

    /// Removes the member of this id from the group, and returns it.
    ///
    /// For operators. The member learns of it like a holder whose lock was broken. A
    /// [rejoining](Membership::rejoining) member comes back.
    ///
    /// # Errors
    ///
    /// Those of [`member`](Self::member); [`effect`](Error::effect) says whether the member may have been
    /// removed.
    ///
    /// # Cancel safety
    ///
    /// A dropped call may or may not remove the member. It never removes a later incarnation.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let group = coordinator.group("backups")?;
    /// let membership = group.join_or_create("ssd").await?;
    /// let removed = group.remove(membership.member_id()).await?;
    /// assert_eq!(removed.incarnation, membership.incarnation());
    /// assert!(group.members().await?.is_empty());
    /// # Ok(()) }
    /// ```
    pub async fn remove(&self, id: &str) -> Result<Member> {
        let listing = self.existing("remove").await?;
        let entry = listing.entries.iter().find(|entry| *entry.member == *id);
        let (entry, member) = entry
            .and_then(|entry| Some((entry, Member::of(entry)?)))
            .ok_or_else(|| self.not_joined("remove"))?;
        let entry_ref = EntryRef { queue: self.queue.key.clone(), id: entry.id.clone() };
        let (session, seq) = (Arc::clone(&self.queue.session), Some(entry.seq));
        self.queue
            .call("remove", async move { session.backend.leave(&entry_ref, seq).await })
            .await?;
        Ok(member)
    }

    async fn existing(&self, operation: &'static str) -> Result<Listing> {
        let listing = self.queue.read(operation).await?;
        let missing = || Err(missing(operation));
        self.queue.named(if listing.value.is_some() { Ok(listing) } else { missing() })
    }

    fn not_joined(&self, operation: &'static str) -> Error {
        self.queue.error(ErrorKind::NotJoined, operation, "the group has no such member")
    }
}

labelled!(Group, "the memberships that are begun", "[`Group::members`]");

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Group").field("name", &self.name()).finish_non_exhaustive()
    }
}

/// Lets an entry in if the group exists and no entry before it has its member id.
struct Joining {
    session: Arc<Session>,
    queue: QueueKey,
    /// The number of the earlier entry of the same session for which the joining entry waits, to go away or to reach the caller of
    /// another join; zero: there was none.
    waits_for: AtomicU64,
}

impl Joining {
    /// Whether the join that was waited for has reached its caller by now.
    fn has_joined(&self) -> bool {
        let number = self.waits_for.load(Ordering::SeqCst);
        let lease = self.session.lease_now();
        number != 0 && lease.is_some_and(|lease| lease.holds_number(&self.queue, number))
    }
}

impl Policy for Joining {
    fn decide(&self, listing: &Listing, own: &Entry) -> Result<Decision> {
        if listing.value.is_none() {
            return Err(missing("join"));
        }
        let mut before = listing.entries.iter().take_while(|entry| entry.seq < own.seq);
        let Some(other) = before.find(|entry| entry.member == own.member) else {
            return Ok(Decision::Grant);
        };
        match self.session.lease_now() {
            Some(lease) if !other.id.is_of(lease.id) => {
                let message = "another session is in the group under this member id";
                Err(Error::new(ErrorKind::MemberExists, "join", message))
            }
            Some(lease) if lease.holds_number(&self.queue, other.seq) => Err(already_joined()),
            // The other entry is of this session, but no guard holds it any more: it is being removed.
            _ => {
                self.waits_for.store(other.seq, Ordering::SeqCst);
                Ok(Decision::Wait)
            }
        }
    }
}

fn missing(operation: &'static str) -> Error {
    Error::new(ErrorKind::GroupMissing, operation, "there is no such group")
}

fn already_joined() -> Error {
    let message = "this session is in the group under this member id already";
    Error::new(ErrorKind::AlreadyJoined, "join", message)
}

#[cfg(all(test, feature = "memory"))]
mod tests {
    use std::future::poll_fn;
    use std::task::Poll;

    use super::*;
    use crate::Config;
    use crate::backend::{EntryId, NewEntry};
    use crate::blocking::{self, wait};

    /// An earlier join is never removed here, and the caller has no runtime.
    #[test]
    fn waiting_for_a_removal_needs_no_runtime() {
        let config = Config { ttl: Some(Duration::from_secs(1)), ..Config::default() };
        let config = Config { url: Some("memory://no-runtime".to_owned()), ..config };
        let coordinator = blocking::Coordinator::connect_with(config).expect("it is in memory");
        let group = coordinator.as_async().group("backups").expect("a good name");
        let member = given_up(&group);
        let error = wait(group.until_removed(&member)).expect_err("it is still there");
        assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::Unknown));
    }

    /// Whoever is told that it has joined already takes itself for a member. Here nobody is one.
    #[test]
    fn what_is_not_removed_in_time_is_no_membership() {
        let config = Config { ttl: Some(Duration::from_secs(1)), ..Config::default() };
        let config = Config { url: Some("memory://not-removed".to_owned()), ..config };
        let coordinator = blocking::Coordinator::connect_with(config).expect("it is in memory");
        let group = coordinator.as_async().group("backups").expect("a good name");
        wait(group.create()).expect("there is none");
        given_up(&group);
        let error = wait(group.join("ssd")).expect_err("it is still there");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        let membership = wait(group.join_as("another", "ssd")).expect("it has another id");
        let error = wait(group.join_as("another", "ssd")).expect_err("it is a member");
        assert_eq!(error.kind(), ErrorKind::AlreadyJoined);
        drop(membership);
    }

    /// A watch only reads: it has done nothing, whenever it ends.
    #[test]
    fn x1_a_watch_that_ends_with_its_runtime_has_done_nothing() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("a runtime");
        let connecting = Coordinator::connect("memory://watch-ended");
        let coordinator = runtime.block_on(connecting).expect("it is in memory");
        let group = coordinator.group("backups").expect("a good name");
        let mut watching = Box::pin(async move { group.watch().await });
        let begun = poll_fn(|context| Poll::Ready(watching.as_mut().poll(context)));
        assert!(runtime.block_on(begun).is_pending(), "its task has not run");
        drop(runtime);
        let error = wait(watching).expect_err("its runtime has ended");
        assert_eq!((error.kind(), error.effect()), (ErrorKind::Closed, Effect::None), "{error}");
        assert!(error.to_string().contains("the runtime on which the session lived"), "{error}");
    }

    /// Enters an entry of this session that no guard holds and nobody removes; returns its member id.
    fn given_up(group: &Group) -> Arc<str> {
        let session = &group.queue.session;
        let lease = session.lease_now().expect("it has just connected");
        let Contents { member, label, mode, data, room, .. } = group.queue.contents();
        let entry_ref = EntryRef { queue: group.queue.key.clone(), id: EntryId::random(lease.id) };
        let own = member.clone();
        let entry = NewEntry { entry_ref, session: lease.id, member: own, label, mode, data, room };
        let entered = session.backend.enter_now(&entry).expect("memory answers at once");
        entered.expect("there is room");
        member
    }
}
