//! The lock: one exclusive holder at a time, or several shared holders, in order of arrival.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use serde::{Serialize, de::DeserializeOwned};

use super::engine::grant::{Grant, guard};
use super::engine::label::labelled;
use super::engine::queue::Queue;
use super::engine::turn::Request;
use super::engine::waiting::Waiting;
use super::value::SharedValue;
use crate::backend::{Data, Entry, Mode};
use crate::coordinator::Coordinator;
use crate::error::{Effect, Result};
use crate::serialize;
use crate::template::Template;
use crate::token::FencingToken;

mod asked;
mod cohort;
mod requests;

pub use cohort::{Cohort, CohortGuard};
use requests::Requests;

/// A named lock. Made by [`Coordinator::lock`], without I/O; cheap to clone.
///
/// Not re-entrant: a task that acquires the lock twice waits for itself, as it would for any other holder.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
/// use std::time::Duration;
///
/// let coordinator = coordination::Coordinator::connect("memory://").await?;
/// let lock = coordinator.lock("vol-7")?;
/// let guard = lock.acquire(Some(Duration::from_secs(5))).await?;
/// assert!(guard.is_held());
/// assert!(lock.try_acquire().await?.is_none());
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Lock {
    queue: Queue,
}

impl Coordinator {
    /// The lock of this name, with the coordinator's prefix before it. No I/O.
    ///
    /// Any text of 1 to 1,024 bytes (see [`Config::max_name_bytes`](crate::Config::max_name_bytes)) is a name; different names are
    /// different locks, byte for byte.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Name`](crate::ErrorKind::Name): empty or too long.
    pub fn lock(&self, name: impl AsRef<str>) -> Result<Lock> {
        Ok(Lock { queue: self.queue_of("lock", name.as_ref())? })
    }

    /// The lock whose name the template gives for these values.
    ///
    /// If a template is used often, parse it once: see [`Template`].
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Name`](crate::ErrorKind::Name): the template is malformed, asks for a field that the values do not have, or
    /// gives a name that [`lock`](Self::lock) refuses.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let context = serde_json::json!({ "share": { "id": "1b8" }, "snap": { "name": "daily" } });
    /// assert_eq!(coordinator.lock_for("foo-<share.id>", &context)?.name(), "foo-1b8");
    /// assert_eq!(coordinator.lock_for("{snap[name]}", &context)?.name(), "daily");
    /// # Ok(()) }
    /// ```
    pub fn lock_for(&self, template: &str, values: &impl Serialize) -> Result<Lock> {
        let name = Template::parse(template)?.render(values)?;
        Ok(self.lock(name)?.of_template(template.to_owned().into()))
    }
}

impl Lock {
    /// Notes the template that the lock's name was made of, for the log.
    pub(crate) fn of_template(self, template: Cow<'static, str>) -> Self {
        Self { queue: self.queue.of_template(template) }
    }

    /// The lock's name, with the coordinator's prefix.
    pub fn name(&self) -> &str {
        self.queue.name()
    }

    /// Waits for the lock and returns the guard that holds it.
    ///
    /// `timeout` bounds the whole call. `None` waits for ever, also through an outage of the store; zero
    /// fails fast, like [`try_acquire`](Self::try_acquire), but with an error. On success the lock is held
    /// until the guard is released, dropped or [lost](crate::Grant::lost).
    ///
    /// If the session is lost while the call waits, the call queues again, at the end, under the next session.
    ///
    /// # Errors
    ///
    /// * [`ErrorKind::Timeout`](crate::ErrorKind::Timeout): the lock was not free within `timeout`. The call
    ///   may be repeated.
    /// * [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable): the store did not answer within
    ///   `timeout`, so that nobody knows whether the lock was free.
    /// * [`ErrorKind::Lost`](crate::ErrorKind::Lost): the lock was granted, but lost before the guard could
    ///   be returned.
    /// * [`ErrorKind::Closed`](crate::ErrorKind::Closed): the coordinator was stopped, or this is a forked child.
    /// * [`ErrorKind::Permission`](crate::ErrorKind::Permission), [`ErrorKind::Quota`](crate::ErrorKind::Quota), [`ErrorKind::Storage`](crate::ErrorKind::Storage),
    ///   [`ErrorKind::Auth`](crate::ErrorKind::Auth): the store refused; nothing is held.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future at any point gives up the place in the queue and leaves nothing behind at the
    /// store: if the lock is granted after that, it is released at once.
    ///
    /// # Fairness
    ///
    /// First come, first served, in the order of arrival at the store. Nobody overtakes, but tasks of a [`Cohort`], within bounds.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use coordination::ErrorKind;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let lock = coordinator.lock("vol-7")?;
    /// let guard = lock.acquire(Some(Duration::from_secs(5))).await?;
    ///
    /// let late = lock.acquire(Some(Duration::from_millis(10))).await.unwrap_err();
    /// assert_eq!(late.kind(), ErrorKind::Timeout);
    /// guard.release().await?;
    /// # Ok(()) }
    /// ```
    pub async fn acquire(&self, timeout: Option<Duration>) -> Result<LockGuard> {
        self.acquire_as(Mode::Exclusive, timeout).await
    }

    /// Acquires the lock if nobody holds it or waits for it; returns `None` otherwise.
    ///
    /// It asks the store once, and takes at most the shorter of the heartbeat interval and a sixth of the
    /// lease.
    ///
    /// # Errors
    ///
    /// Those of [`acquire`](Self::acquire) but `Timeout`.
    ///
    /// # Cancel safety
    ///
    /// As for [`acquire`](Self::acquire).
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let lock = coordinator.lock("vol-7")?;
    /// match lock.try_acquire().await? {
    ///     Some(guard) => guard.release().await?,
    ///     None => println!("somebody else is busy with it"),
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn try_acquire(&self) -> Result<Option<LockGuard>> {
        self.try_acquire_as(Mode::Exclusive).await
    }

    /// Waits for the lock as a shared holder: others may hold it shared at the same time, and nobody holds it
    /// exclusively.
    ///
    /// `timeout` and what is true on return are as for [`acquire`](Self::acquire). The token is larger than
    /// that of every exclusive grant before it, and smaller than that of every exclusive grant after it.
    ///
    /// A shared hold cannot be upgraded, because two shared holders that both wait for an upgrade would deadlock:
    /// release it, then acquire the lock exclusively. The opposite direction is [`LockGuard::downgrade`].
    ///
    /// # Errors
    ///
    /// Those of [`acquire`](Self::acquire).
    ///
    /// # Cancel safety
    ///
    /// As for [`acquire`](Self::acquire).
    ///
    /// # Fairness
    ///
    /// First come, first served: a waiting exclusive contender blocks shared contenders that arrive after it,
    /// so that readers do not starve writers.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let lock = coordinator.lock("catalogue")?;
    /// let (one, other) = (lock.acquire_shared(None).await?, lock.acquire_shared(None).await?);
    /// assert!(lock.try_acquire().await?.is_none());
    /// # drop((one, other));
    /// # Ok(()) }
    /// ```
    pub async fn acquire_shared(&self, timeout: Option<Duration>) -> Result<LockGuard> {
        self.acquire_as(Mode::Shared, timeout).await
    }

    /// Acquires the lock as a shared holder if nobody holds it exclusively or waits to do so; returns `None`
    /// otherwise.
    ///
    /// # Errors
    ///
    /// Those of [`try_acquire`](Self::try_acquire).
    ///
    /// # Cancel safety
    ///
    /// As for [`acquire`](Self::acquire).
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let lock = coordinator.lock("catalogue")?;
    /// let reading = lock.try_acquire_shared().await?.expect("nobody writes");
    /// assert!(reading.is_shared());
    /// assert!(lock.try_acquire_shared().await?.is_some());
    /// assert!(lock.try_acquire().await?.is_none());
    /// # Ok(()) }
    /// ```
    pub async fn try_acquire_shared(&self) -> Result<Option<LockGuard>> {
        self.try_acquire_as(Mode::Shared).await
    }

    async fn acquire_as(&self, mode: Mode, timeout: Option<Duration>) -> Result<LockGuard> {
        let grant = self.queue.acquire_within(&self.request(mode), timeout).await?;
        Ok(LockGuard::new(grant, mode == Mode::Shared))
    }

    async fn try_acquire_as(&self, mode: Mode) -> Result<Option<LockGuard>> {
        let grant = self.queue.acquire(&self.request(mode), Waiting::Never).await?;
        Ok(grant.map(|grant| LockGuard::new(grant, mode == Mode::Shared)))
    }

    fn request(&self, mode: Mode) -> Request {
        let contents = super::engine::own_entry::Contents { mode, ..self.queue.contents() };
        Request { contents, policy: None }
    }

    /// A second lock of the same name, which `break_lock` does not touch. While a process holds the second lock, it has not yet
    /// ended what it ran under the first.
    ///
    /// For the command `coordination`, and no part of the promises of this library.
    #[doc(hidden)]
    pub fn aftermath(&self) -> Result<Self> {
        Ok(Self { queue: self.queue.of_kind("aftermath")? })
    }

    /// A value of the same name, in which commands that run under the lock note that they do.
    ///
    /// For the command `coordination`, and no part of the promises of this library.
    ///
    /// # Errors
    ///
    /// None: the name is that of the lock.
    #[doc(hidden)]
    pub fn command<T: Serialize + DeserializeOwned>(&self) -> Result<SharedValue<T>> {
        Ok(SharedValue::of_queue(self.queue.of_kind("command")?))
    }

    /// The holders of the lock and the contenders that wait for it, in order; empty when the lock is free.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) and the other kinds of a store that refuses or does not answer.
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
    /// let lock = coordinator.lock("vol-7")?;
    /// let guard = lock.acquire(None).await?;
    ///
    /// let contenders = lock.holders().await?;
    /// assert_eq!(contenders[0].member, coordinator.member_id());
    /// assert_eq!(contenders[0].token, guard.token());
    /// assert!(contenders[0].holding && !contenders[0].shared);
    /// # Ok(()) }
    /// ```
    pub async fn holders(&self) -> Result<Vec<Contender>> {
        Ok(self.contenders("list").await?.into_iter().map(|(_, contender)| contender).collect())
    }

    /// Takes the lock away from its holder, and returns the former holder; `None` if the lock was free.
    ///
    /// For operators, when a holder hangs. The next waiter is granted the lock at once. The former holder
    /// learns of the loss through its guard, at once or within a heartbeat. Until then it may go on writing, and only
    /// fencing stops its writes. Of several shared holders only the first loses the lock.
    ///
    /// # Errors
    ///
    /// As for [`holders`](Self::holders); [`effect`](crate::Error::effect) says whether the lock may have
    /// been broken.
    ///
    /// # Cancel safety
    ///
    /// A dropped call may or may not break the lock. It never breaks a later grant.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let lock = coordinator.lock("vol-7")?;
    /// let hanging = lock.acquire(None).await?;
    ///
    /// let former = lock.break_lock().await?.expect("it was held");
    /// assert_eq!(former.token, hanging.token());
    /// // It is free at once, and the resource refuses the smaller token.
    /// let next = lock.try_acquire().await?.expect("it is free");
    /// assert!(next.token() > former.token);
    /// # Ok(()) }
    /// ```
    pub async fn break_lock(&self) -> Result<Option<Contender>> {
        let first = self.contenders("break").await?.into_iter().next();
        self.take_away(first).await
    }

    /// Takes away exactly the grant with this token, or the place of a contender that still waits, and returns the former
    /// holder or contender; `None` if nobody has this token any more.
    ///
    /// For operators who have seen in [`holders`](Self::holders) which grant to take away: if somebody else holds the lock by
    /// now, that holder keeps it. The former holder learns of the loss as after [`break_lock`](Self::break_lock). A contender
    /// of this library that still waits queues again, at the end.
    ///
    /// # Errors
    ///
    /// Those of [`break_lock`](Self::break_lock).
    ///
    /// # Cancel safety
    ///
    /// As for [`break_lock`](Self::break_lock).
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let lock = coordinator.lock("vol-7")?;
    /// let (one, other) = (lock.acquire_shared(None).await?, lock.acquire_shared(None).await?);
    ///
    /// let broken = lock.break_grant(other.token()).await?.expect("it is held");
    /// assert_eq!(broken.token, other.token());
    /// assert!(lock.break_grant(other.token()).await?.is_none());
    /// assert!(one.is_held());
    /// # Ok(()) }
    /// ```
    pub async fn break_grant(&self, token: FencingToken) -> Result<Option<Contender>> {
        let mut contenders = self.contenders("break").await?.into_iter();
        let meant = contenders.find(|(_, contender)| contender.token == token);
        self.take_away(meant).await
    }

    async fn take_away(&self, meant: Option<(Entry, Contender)>) -> Result<Option<Contender>> {
        let Some((entry, contender)) = meant else { return Ok(None) };
        self.queue.take_away(&entry).await?;
        Ok(Some(contender))
    }

    /// All contenders, each with its entry.
    async fn contenders(&self, operation: &'static str) -> Result<Vec<(Entry, Contender)>> {
        let (session, key) = (Arc::clone(&self.queue.session), self.queue.key.clone());
        // Asked once: who looks at a lock or breaks it is told soon that the store does not answer.
        let read =
            self.queue.call(operation, async move { session.backend.read(&key).await }).await;
        let read = read.map_err(|error| error.with_effect(Effect::None))?;
        Ok(listed(read.entries))
    }
}

/// All contenders of a lock that has these entries, each with its entry.
pub(super) fn listed(entries: Vec<Entry>) -> Vec<(Entry, Contender)> {
    let mut before = None;
    let contenders = entries.into_iter().filter_map(|entry| {
        // An entry holds the lock if no entry is before it, or if it is shared and so are all entries before it.
        let holding = before.is_none_or(|before: Mode| !before.blocks(entry.mode));
        if entry.mode == Mode::Exclusive || before.is_none() {
            before = Some(entry.mode);
        }
        let contender = Contender {
            member: entry.member.to_string(),
            label: entry.label(),
            since: entry.since,
            token: FencingToken::new(entry.seq)?,
            holding,
            shared: entry.mode == Mode::Shared,
        };
        Some((entry, contender))
    });
    contenders.collect()
}

labelled! {
    Lock, "what is acquired", "[`Lock::holders`]",
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let lock = coordinator.lock("backup")?.label("nightly dump, job 4711")?;
    /// let guard = lock.acquire(None).await?;
    /// assert_eq!(lock.holders().await?[0].label, "nightly dump, job 4711");
    /// # drop(guard); Ok(()) }
    /// ```
}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock").field("name", &self.name()).finish_non_exhaustive()
    }
}

/// A holder of a lock, or a contender that waits for it, as listed by [`Lock::holders`].
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
/// # let coordinator = coordination::Coordinator::connect("memory://").await?;
/// let lock = coordinator.lock("vol-7")?;
/// let _guard = lock.acquire_shared(None).await?;
///
/// for contender in lock.holders().await? {
///     let does = if contender.holding { "holds" } else { "waits for" };
///     let how = if contender.shared { "shared" } else { "alone" };
///     println!("{} {does} it {how}, with token {}", contender.member, contender.token);
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Contender {
    /// Its member id; empty for a program that uses another library on the same store.
    pub member: String,
    /// The [label](Lock::label) that it was given; empty if it was given none, and for a program that uses another library.
    pub label: String,
    /// When it asked, by the wall clock of its own host: for people to read, not to be compared.
    /// Written with serde, it is a number of seconds since 1970.
    #[serde(serialize_with = "serialize::since::serialize")]
    pub since: Option<SystemTime>,
    /// The token that it has, or will have.
    pub token: FencingToken,
    /// Whether it holds the lock, exclusively or shared; otherwise it waits.
    pub holding: bool,
    /// Whether it holds or wants the lock shared.
    pub shared: bool,
}

/// Holds a lock, exclusively or shared; releases it when dropped.
///
/// It can be lost: see [`Grant::lost`].
///
/// Dropping it never blocks. The release goes on in the background; if it cannot be sent, the lock is free
/// when the session ends. In a forked child a guard is dead: dropping it does nothing.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
/// # let coordinator = coordination::Coordinator::connect("memory://").await?;
/// let lock = coordinator.lock("vol-7")?;
/// let guard = lock.acquire(None).await?;
///
/// // The token goes with each write, for the volume to refuse a former holder.
/// let write = async { format!("written with token {}", guard.token()) };
/// let written = guard.protect(write).await?;
/// assert!(guard.is_held() && written.ends_with(&guard.token().to_string()));
///
/// guard.release().await?;
/// assert!(lock.try_acquire().await?.is_some());
/// # Ok(()) }
/// ```
#[must_use = "the lock is released when the guard is dropped"]
pub struct LockGuard {
    grant: Grant,
    /// How many calls may have made the lock shared; an acquire of a share counts as one.
    shared_by: AtomicUsize,
    /// Whether somebody asks for the lock.
    requests: Requests,
}

guard!(LockGuard, "the lock");

impl LockGuard {
    fn new(grant: Grant, is_shared: bool) -> Self {
        Self { grant, shared_by: AtomicUsize::new(is_shared.into()), requests: Requests::default() }
    }

    pub(super) fn into_grant(self) -> Grant {
        self.grant
    }

    /// Whether the lock is held shared, so that others may hold it at the same time.
    pub fn is_shared(&self) -> bool {
        self.shared_by.load(Ordering::SeqCst) > 0
    }

    /// Makes an exclusive hold a shared one, without releasing the lock in between. The token stays the same.
    ///
    /// Shared contenders that wait are granted the lock, up to the first exclusive contender in the queue.
    ///
    /// # Errors
    ///
    /// * [`ErrorKind::Lost`](crate::ErrorKind::Lost), [`ErrorKind::Closed`](crate::ErrorKind::Closed):
    ///   the lock was lost before, or with [`Effect::Unknown`](crate::Effect::Unknown) during the call: others may have shared it by
    ///   then.
    /// * The [kinds of error](crate::ErrorKind) of a store that refuses; then the lock is released.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future releases the lock.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let lock = coordinator.lock("catalogue")?;
    /// let writing = lock.acquire(None).await?;
    /// let reading = writing.downgrade().await?;
    /// assert!(reading.is_shared());
    ///
    /// let other = lock.try_acquire_shared().await?.expect("readers do not exclude each other");
    /// assert!(lock.try_acquire().await?.is_none());
    /// # drop(other);
    /// # Ok(()) }
    /// ```
    pub async fn downgrade(self) -> Result<Self> {
        self.share().await?;
        Ok(self)
    }

    /// Does what [`downgrade`](Self::downgrade) does, and keeps the guard whatever comes of that: for a guard that is used elsewhere,
    /// too.
    ///
    /// From the beginning of the call on [`is_shared`](Self::is_shared) is true, because others may hold the lock as soon as the
    /// store knows of it; it is false again only if the call fails and certainly had no effect.
    ///
    /// # Errors
    ///
    /// Those of [`downgrade`](Self::downgrade), but the lock is held still, unless it was lost. With
    /// [`Effect::Unknown`](crate::Effect::Unknown) others may share it by now, or have shared it before it was lost. The call may be
    /// repeated.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the call goes on in the background, and the lock may become shared.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let lock = coordinator.lock("catalogue")?;
    /// let guard = lock.acquire(None).await?;
    /// guard.share().await?;
    /// assert!(guard.is_held() && guard.is_shared());
    /// assert!(lock.try_acquire_shared().await?.is_some());
    /// # Ok(()) }
    /// ```
    pub async fn share(&self) -> Result<()> {
        // Counted, so that of two calls at a time one that fails does not take back what the other one has done.
        self.shared_by.fetch_add(1, Ordering::SeqCst);
        let update = self.grant.own_entry().update("downgrade", Mode::Shared, Data::default());
        let shared = self.grant.named(update.await);
        if shared.as_ref().is_err_and(|error| error.effect() == Effect::None) {
            self.shared_by.fetch_sub(1, Ordering::SeqCst);
        }
        shared
    }
}

impl fmt::Debug for LockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockGuard")
            .field("name", &self.name())
            .field("token", &self.token())
            .field("is_held", &self.is_held())
            .field("is_shared", &self.is_shared())
            .finish()
    }
}

#[cfg(all(test, coordination_internals, feature = "memory"))]
mod tests {
    use tokio::time::sleep;

    use super::*;
    use crate::ErrorKind;
    use crate::simulation::{Link, Room, Run, World};

    const TTL: Duration = Duration::from_secs(1);

    /// Only what the store certainly has not done leaves the lock exclusive.
    #[tokio::test(start_paused = true)]
    async fn a_share_that_fails_says_whether_others_may_hold_the_lock() {
        let _run = Run::begin(1);
        let (world, _client, coordinator) =
            World::with_one_client(TTL).await.expect("the store is there");
        let guard = coordinator.lock("a").expect("a name").acquire(None).await.expect("free");
        let cases = [(Room::None, false), (Room::NoneInDoubt, true), (Room::None, true)];
        for (room, is_shared) in cases {
            world.set_room(room);
            let refused = guard.share().await.expect_err("there is no room");
            assert_eq!(refused.kind(), ErrorKind::Quota);
            assert!(guard.is_held());
            assert_eq!(guard.is_shared(), is_shared);
        }
        world.set_room(Room::Enough);
        guard.share().await.expect("there is room");
        assert!(guard.is_held() && guard.is_shared());
    }

    /// The store makes it a share, and is not heard of any more: others had the lock before it was lost.
    #[tokio::test(start_paused = true)]
    async fn a_share_that_ends_with_a_loss_may_have_let_others_in() {
        let _run = Run::begin(1);
        let (_world, client, coordinator) =
            World::with_one_client(TTL).await.expect("the store is there");
        let guard = coordinator.lock("a").expect("a name").acquire(None).await.expect("free");
        sleep(TTL / 10).await;
        client.set_link(Link { replies_cut: true, ..Link::default() });
        let lost = guard.share().await.expect_err("nothing is heard");
        assert_eq!(lost.kind(), ErrorKind::Lost);
        assert!(!guard.is_held() && guard.is_shared());
    }
}
