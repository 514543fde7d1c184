//! What a queue of work takes and answers.

use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use data_encoding::BASE64_NOPAD;
use serde::de::DeserializeOwned;
use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};

use super::claim::{Seen, SeenItem};
use super::draft::corrupt;
use super::ids::ItemId;
use super::layout::Micros;
use super::look::Counts;
use crate::duration;
use crate::error::{Error, ErrorKind, Result};
use crate::serialize;
use crate::token::FencingToken;

/// The most bytes of one body.
const MAX_BODY: usize = 256 * 1024;
/// The most bytes that are posted at once, as they are stored: every store takes them in one step.
const MAX_POST: usize = 352 * 1024;
/// How many bytes an item takes beside its body.
const BESIDE_BODY: usize = 160;
/// The most items of one call.
pub(super) const MOST: usize = 1_000;

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3_600);
const MS: Duration = Duration::from_millis(1);

/// Which arguments the calls of a [`WorkQueue`](crate::WorkQueue) of this process take. A call with one out of its range
/// changes nothing and fails with [`ErrorKind::Input`].
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// use coordination::{ClaimOptions, ErrorKind, WorkLimits};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
/// # let coordinator = coordination::Coordinator::connect("memory://").await?;
/// // No claim of this process takes more than five items.
/// let limits = WorkLimits { limit: 1..=5, ..WorkLimits::default() };
/// let jobs = coordinator.queue("resize-jobs")?.with_limits(limits);
/// let error = jobs.claim(ClaimOptions::default().limit(6)).await.unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::Input);
///
/// assert_eq!(WorkLimits::zaqar().claim_ttl.start(), &Duration::from_secs(60));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkLimits {
    /// How long a claim may last until it is renewed: 1 ms to 12 h.
    pub claim_ttl: RangeInclusive<Duration>,
    /// For how much longer than its claim an item lives: up to 12 h.
    pub grace: RangeInclusive<Duration>,
    /// How many items one claim takes: 1 to 1,000.
    pub limit: RangeInclusive<usize>,
    /// How long an item lives: 1 ms to 14 days.
    pub item_ttl: RangeInclusive<Duration>,
    /// For how long an item may not be claimed: up to 900 s, and shorter than it lives.
    pub delay: RangeInclusive<Duration>,
}

impl Default for WorkLimits {
    fn default() -> Self {
        Self {
            claim_ttl: MS..=12 * HOUR,
            grace: Duration::ZERO..=12 * HOUR,
            limit: 1..=MOST,
            item_ttl: MS..=14 * 24 * HOUR,
            delay: Duration::ZERO..=900 * SECOND,
        }
    }
}

impl WorkLimits {
    /// The same limits, narrowed to what a queue can do.
    pub(super) fn within_default(self) -> Self {
        let widest = Self::default();
        Self {
            claim_ttl: common(self.claim_ttl, widest.claim_ttl),
            grace: common(self.grace, widest.grace),
            limit: common(self.limit, widest.limit),
            item_ttl: common(self.item_ttl, widest.item_ttl),
            delay: common(self.delay, widest.delay),
        }
    }

    /// The limits of OpenStack's Zaqar.
    pub fn zaqar() -> Self {
        Self {
            claim_ttl: 60 * SECOND..=12 * HOUR,
            grace: 60 * SECOND..=12 * HOUR,
            limit: 1..=20,
            item_ttl: 60 * SECOND..=14 * 24 * HOUR,
            ..Self::default()
        }
    }
}

/// How to claim items.
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
/// jobs.post(&[NewItem::new("vol-7"), NewItem::new("vol-8")]).await?;
///
/// let options = ClaimOptions::default().limit(1).ttl(Duration::from_secs(60));
/// let claim = jobs.claim(options).await?.expect("two are ready");
/// assert_eq!(claim.items().len(), 1);
/// assert!(claim.remaining() <= Duration::from_secs(60));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimOptions {
    pub(super) limit: usize,
    pub(super) ttl: Duration,
    pub(super) grace: Duration,
}

impl Default for ClaimOptions {
    fn default() -> Self {
        Self { limit: 10, ttl: 300 * SECOND, grace: 60 * SECOND }
    }
}

impl ClaimOptions {
    /// How many items to claim at the most; 10 by default.
    #[must_use]
    pub fn limit(self, limit: usize) -> Self {
        Self { limit, ..self }
    }

    /// How long the claim lasts until it is renewed; 300 s by default.
    #[must_use]
    pub fn ttl(self, ttl: Duration) -> Self {
        Self { ttl, ..self }
    }

    /// For how much longer than the claim its items live at least; 60 s by default.
    #[must_use]
    pub fn grace(self, grace: Duration) -> Self {
        Self { grace, ..self }
    }
}

/// An item to be posted.
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
/// let item = NewItem::json(&("vol-7", 20))?.ttl(Duration::from_secs(600));
/// jobs.post(&[item]).await?;
///
/// let popped = jobs.pop(1).await?;
/// let (volume, gib): (String, u32) = popped[0].json()?;
/// assert_eq!((volume.as_str(), gib), ("vol-7", 20));
/// assert!(popped[0].expires_in() <= Duration::from_secs(600));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewItem {
    pub(super) body: Vec<u8>,
    pub(super) ttl: Duration,
    pub(super) delay: Duration,
}

impl NewItem {
    /// An item with this body, of at most 256 KiB, which lives for an hour and can be claimed at once.
    pub fn new(body: impl Into<Vec<u8>>) -> Self {
        Self { body: body.into(), ttl: HOUR, delay: Duration::ZERO }
    }

    /// An item whose body is this value as JSON.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Value`]: it cannot be written as JSON.
    pub fn json(value: &(impl Serialize + ?Sized)) -> Result<Self> {
        let body = serde_json::to_vec(value).map_err(|error| {
            let message = "it cannot be written as JSON";
            Error::new(ErrorKind::Value, "post", message).with_source(error)
        })?;
        Ok(Self::new(body))
    }

    /// How long it lives.
    #[must_use]
    pub fn ttl(self, ttl: Duration) -> Self {
        Self { ttl, ..self }
    }

    /// For how long the item may not be claimed.
    #[must_use]
    pub fn delay(self, delay: Duration) -> Self {
        Self { delay, ..self }
    }
}

/// An item as it was when it was read.
///
/// # Examples
///
/// ```
/// use coordination::{ListOptions, NewItem};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
/// # let coordinator = coordination::Coordinator::connect("memory://").await?;
/// let jobs = coordinator.queue("resize-jobs")?;
/// jobs.post(&[NewItem::json(&("vol-7", 20))?]).await?;
///
/// let items = jobs.list(ListOptions::default()).await?;
/// let (volume, gib): (String, u32) = items[0].json()?;
/// println!("{volume} to {gib} GiB, posted {:?} ago, claimed {} times", items[0].age(), items[0].claims());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkItem {
    id: ItemId,
    body: Vec<u8>,
    age: Duration,
    claims: u32,
    expires_in: Duration,
}

impl WorkItem {
    pub(super) fn of(seen: SeenItem) -> Result<Self> {
        let body = BASE64_NOPAD.decode(seen.body.as_bytes()).map_err(|_| {
            let message = format!("the body of the item {} is not as it was posted", seen.id);
            Error::new(ErrorKind::Corrupt, "read", message)
        })?;
        let (age, expires_in) = (duration(seen.age), duration(seen.expires_in));
        Ok(Self { id: seen.id, body, age, claims: seen.claims, expires_in })
    }

    /// The item's name.
    pub fn id(&self) -> ItemId {
        self.id
    }

    /// The body that was posted.
    pub fn body(&self) -> &[u8] {
        &self.body
    }

    /// The body that was posted, read as JSON.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Corrupt`]: the body is not of this type.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T> {
        serde_json::from_slice(&self.body).map_err(|error| {
            let message = "the item is not of the type that is expected";
            Error::new(ErrorKind::Corrupt, "claim", message).with_source(error)
        })
    }

    /// How long ago the item was posted.
    pub fn age(&self) -> Duration {
        self.age
    }

    /// How often the item was claimed, this claim included.
    pub fn claims(&self) -> u32 {
        self.claims
    }

    /// How long it lives.
    pub fn expires_in(&self) -> Duration {
        self.expires_in
    }
}

/// All that is known of it, with times in seconds: the body as the JSON that it is, or as text, or in base64 as `body_base64` if it
/// is neither.
impl Serialize for WorkItem {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut fields = to.serialize_struct("WorkItem", 5)?;
        fields.serialize_field("id", &self.id)?;
        match std::str::from_utf8(&self.body) {
            Ok(text) => fields.serialize_field("body", &serialize::stored::Written(text))?,
            Err(_) => fields.serialize_field("body_base64", &BASE64_NOPAD.encode(&self.body))?,
        }
        fields.serialize_field("age", &self.age.as_secs_f64())?;
        fields.serialize_field("claims", &self.claims)?;
        fields.serialize_field("expires_in", &self.expires_in.as_secs_f64())?;
        fields.end()
    }
}

/// A claim as it was when it was read.
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
///
/// // A service claims for a caller of its own, who has the id then.
/// let id = ClaimId::random();
/// let view = jobs.claim_as(id, ClaimOptions::default()).await?.expect("one is ready");
/// assert_eq!(view.items.len(), 1);
/// println!("{id} with token {}, for {:?}", view.token, view.expires_in);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ClaimView {
    /// How long the claim lasts from each renewal on.
    #[serde(serialize_with = "serialize::seconds::serialize")]
    pub ttl: Duration,
    /// For how much longer than the claim its items live at least.
    #[serde(serialize_with = "serialize::seconds::serialize")]
    pub grace: Duration,
    /// How long ago the claim was made or last renewed.
    #[serde(serialize_with = "serialize::seconds::serialize")]
    pub age: Duration,
    /// How long the claim still lasts unless it is renewed.
    #[serde(serialize_with = "serialize::seconds::serialize")]
    pub expires_in: Duration,
    /// The fencing token: larger than that of every claim before in the queue.
    pub token: FencingToken,
    /// The items that the claim still has, in order.
    pub items: Vec<WorkItem>,
}

impl ClaimView {
    pub(super) fn of(seen: Seen) -> Result<Self> {
        Ok(Self {
            ttl: duration(seen.ttl),
            grace: duration(seen.grace),
            age: duration(seen.age),
            expires_in: duration(seen.expires_in),
            token: FencingToken::new(seen.fence).ok_or_else(corrupt)?,
            items: seen.items.into_iter().map(WorkItem::of).collect::<Result<_>>()?,
        })
    }
}

/// How many items a queue has.
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
///
/// let stats = jobs.stats().await?;
/// println!("{} ready, {} at work, the oldest for {:?}", stats.ready, stats.claimed, stats.oldest);
/// assert_eq!(stats.total(), 1);
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct WorkStats {
    /// Items that can be claimed.
    pub ready: u64,
    /// Items that a claim has.
    pub claimed: u64,
    /// Items that can be claimed only later.
    pub delayed: u64,
    /// Items whose life is over and that were not removed yet; they count in no other number.
    pub dead: u64,
    /// Items that were claimed too often and are on their way to the queue of [dead letters](crate::WorkQueue::set_dead_letters):
    /// they count in no other number, and in no number of that queue. If they stay, that queue does not take them; a warning in the
    /// log says why.
    pub letters: u64,
    /// The age of the oldest item that is not dead.
    #[serde(serialize_with = "duration::option::serialize")]
    pub oldest: Option<Duration>,
    /// The age of the newest item that is not dead.
    #[serde(serialize_with = "duration::option::serialize")]
    pub newest: Option<Duration>,
}

impl WorkStats {
    pub(super) fn of(counts: Counts) -> Self {
        Self {
            ready: counts.ready,
            claimed: counts.claimed,
            delayed: counts.delayed,
            dead: counts.dead,
            letters: counts.letters,
            oldest: counts.oldest.map(duration),
            newest: counts.newest.map(duration),
        }
    }

    /// How many items are not dead, without [letters](Self::letters).
    pub fn total(&self) -> u64 {
        self.ready + self.claimed + self.delayed
    }
}

/// Which items are listed, see [`WorkQueue::list`](crate::WorkQueue::list).
///
/// # Examples
///
/// ```
/// use coordination::{ClaimOptions, ListOptions, NewItem};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
/// # let coordinator = coordination::Coordinator::connect("memory://").await?;
/// let jobs = coordinator.queue("resize-jobs")?;
/// jobs.post(&[NewItem::new("vol-7"), NewItem::new("vol-8")]).await?;
/// let _claim = jobs.claim(ClaimOptions::default().limit(1)).await?;
///
/// assert_eq!(jobs.list(ListOptions::default()).await?.len(), 1);
/// let all = ListOptions { include_claimed: true, ..ListOptions::default() };
/// assert_eq!(jobs.list(all).await?.len(), 2);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListOptions {
    /// Only items after this one; `None`: from the first on.
    pub after: Option<ItemId>,
    /// How many items at the most.
    pub limit: usize,
    /// Whether items that a claim has are listed too.
    pub include_claimed: bool,
    /// Whether items that can be claimed only later are listed too.
    pub include_delayed: bool,
}

impl Default for ListOptions {
    fn default() -> Self {
        Self { after: None, limit: 10, include_claimed: false, include_delayed: false }
    }
}

/// What [`WorkQueue::gc`](crate::WorkQueue::gc) has removed.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
/// # let coordinator = coordination::Coordinator::connect("memory://").await?;
/// let jobs = coordinator.queue("resize-jobs")?;
/// let removed = jobs.gc(None).await?;
/// assert_eq!((removed.items, removed.claims), (0, 0));
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Collected {
    /// Items that were dead.
    pub items: usize,
    /// Claims that were over.
    pub claims: usize,
}

/// What became of an acknowledgement.
///
/// # Examples
///
/// ```
/// use coordination::{Ack, ClaimOptions, NewItem};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
/// # let coordinator = coordination::Coordinator::connect("memory://").await?;
/// let jobs = coordinator.queue("resize-jobs")?;
/// jobs.post(&[NewItem::new("vol-7")]).await?;
/// let claim = jobs.claim(ClaimOptions::default()).await?.expect("one is ready");
/// match claim.ack(claim.items()[0].id()).await? {
///     Ack::Done => println!("done"),
///     Ack::AlreadyGone => println!("it was done before, or has died"),
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ack {
    /// The item is done, by this call.
    Done,
    /// The item was gone: it was acknowledged before, perhaps by this claim, or deleted, or it has died.
    AlreadyGone,
}

impl fmt::Display for Ack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Done => "done",
            Self::AlreadyGone => "already gone",
        })
    }
}

pub(super) fn duration(micros: Micros) -> Duration {
    Duration::from_micros(micros)
}

pub(super) fn micros(duration: Duration) -> Micros {
    u64::try_from(duration.as_micros()).unwrap_or(Micros::MAX)
}

/// The bodies as they are stored, if they may be posted together.
pub(super) fn encoded(items: &[NewItem]) -> Result<Vec<String>, String> {
    if let Some(long) = items.iter().find(|item| item.body.len() > MAX_BODY) {
        return Err(format!("a body has {} bytes, and may have {MAX_BODY}", long.body.len()));
    }
    let bodies: Vec<_> = items.iter().map(|item| BASE64_NOPAD.encode(&item.body)).collect();
    let together = bodies.iter().map(|body| body.len() + BESIDE_BODY).sum::<usize>();
    match together <= MAX_POST {
        true => Ok(bodies),
        false => Err(format!("the items take {together} bytes together, and may take {MAX_POST}")),
    }
}

/// What is in both ranges.
fn common<T: Ord>(one: RangeInclusive<T>, other: RangeInclusive<T>) -> RangeInclusive<T> {
    let ((from, to), (least, most)) = (one.into_inner(), other.into_inner());
    from.max(least)..=to.min(most)
}

/// Whether a setting is in its range.
pub(super) fn in_range<T: PartialOrd + std::fmt::Debug>(
    field: &str,
    value: &T,
    range: &RangeInclusive<T>,
) -> Result<(), String> {
    match range.contains(value) {
        true => Ok(()),
        false => Err(format!(
            "{field} is {value:?}, and may be {:?} to {:?}",
            range.start(),
            range.end()
        )),
    }
}
