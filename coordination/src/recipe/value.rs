//! Shared values: compare-and-set by version, counters, and watches.

#[cfg(test)]
mod tests;

use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tokio::time::Instant;

use super::engine::data::{MAX_VALUE_BYTES, from_data, to_data};
use super::engine::queue::{Change, Queue, in_doubt};
use crate::Coordinator;
use crate::backend::{Data, Listing, Value, Write};
use crate::error::{Error, ErrorKind, Result};
use crate::retry::DecorrelatedJitter;
use crate::session::{Sight, Views, Written};

impl Coordinator {
    /// The shared value of this name, with the coordinator's prefix before it. No I/O.
    ///
    /// Names are as for [`lock`](Self::lock). All users of a name must use the same type, or types that can
    /// read each other's JSON.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Name`]: empty or too long.
    pub fn value<T: Serialize + DeserializeOwned>(
        &self,
        name: impl AsRef<str>,
    ) -> Result<SharedValue<T>> {
        Ok(SharedValue { queue: self.queue_of("value", name.as_ref())?, of: PhantomData })
    }

    /// A value in which the command `coordination` notes what operators have taken away.
    ///
    /// For that command, and no part of the promises of this library.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Name`]: with the coordinator's prefix it is too long.
    #[doc(hidden)]
    pub fn taken_away<T: Serialize + DeserializeOwned>(&self) -> Result<SharedValue<T>> {
        Ok(SharedValue { queue: self.queue_of("taken-away", "history")?, of: PhantomData })
    }

    /// A value in which the command `coordination` marks grants that were taken away and whose holders may go on. All coordinators of a
    /// namespace have the same, whatever their prefixes: names in it are whole.
    ///
    /// For that command, and no part of the promises of this library.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Name`]: the coordinator's prefix is too long for any name.
    #[doc(hidden)]
    pub fn broken<T: Serialize + DeserializeOwned>(&self) -> Result<SharedValue<T>> {
        let queue = self.queue_of("taken-away", "x")?.of_name("broken")?;
        Ok(SharedValue::of_queue(queue))
    }

    /// The counter of this name, with the coordinator's prefix before it. No I/O.
    ///
    /// It is zero until somebody adds to it. A counter and a value of the same name are different things.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Name`]: empty or too long.
    pub fn counter(&self, name: impl AsRef<str>) -> Result<Counter> {
        Ok(Counter { queue: self.queue_of("counter", name.as_ref())? })
    }

    /// The names of all values that there are and whose name begins with the coordinator's prefix, without the prefix, in order.
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
    /// coordinator.value("upload-limit")?.set(&100).await?;
    /// assert_eq!(coordinator.values().await?, ["upload-limit"]);
    /// # Ok(()) }
    /// ```
    pub async fn values(&self) -> Result<Vec<String>> {
        self.names("values", "value").await
    }

    /// The names of all counters to which somebody has added and whose name begins with the coordinator's prefix, without the prefix, in
    /// order.
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
    /// coordinator.counter("tickets")?.add(1).await?;
    /// assert_eq!(coordinator.counters().await?, ["tickets"]);
    /// # Ok(()) }
    /// ```
    pub async fn counters(&self) -> Result<Vec<String>> {
        self.names("counters", "counter").await
    }
}

/// The order of a value's writes: each write has a larger version than all before it, also across deletions.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
/// # let coordinator = coordination::Coordinator::connect("memory://").await?;
/// let limit = coordinator.value::<u32>("upload-limit")?;
/// let first = limit.set(&100).await?;
/// limit.delete().await?;
/// // Also after a deletion.
/// assert!(limit.set(&200).await? > first);
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Version(u64);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A value as it was written by one write.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
/// # let coordinator = coordination::Coordinator::connect("memory://").await?;
/// let limit = coordinator.value::<u32>("upload-limit")?;
/// limit.set(&100).await?;
///
/// let now = limit.read().await?.expect("it was set");
/// assert_eq!(now.value, 100);
/// // Nobody has written since.
/// assert!(limit.compare_and_set(Some(now.version), &200).await?.is_some());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Versioned<T> {
    /// The version of the write.
    pub version: Version,
    /// The value that was written.
    pub value: T,
}

impl<T: DeserializeOwned> Versioned<T> {
    fn parse(operation: &'static str, stored: &Value) -> Result<Self> {
        let value = from_data(operation, &stored.data)?;
        Ok(Self { version: Version(stored.version), value })
    }
}

/// A value that all processes share. Made by [`Coordinator::value`], without I/O; cheap to clone.
///
/// It belongs to nobody: it stays until it is deleted, also when the session that wrote it ends.
///
/// # A call whose answer was lost
///
/// The library repeats the request under the same id, and mostly learns what became of it. If it cannot, the
/// call fails with [`Effect::Unknown`](crate::Effect::Unknown): the write was carried out once, or not at
/// all, or is still in flight. [`read`](Self::read) the value before you repeat the call.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
/// let coordinator = coordination::Coordinator::connect("memory://").await?;
/// let limit = coordinator.value::<u32>("upload-limit")?;
/// let first = limit.set(&100).await?;
///
/// // Of several writers that replace the same version, one succeeds.
/// assert!(limit.compare_and_set(Some(first), &200).await?.is_some());
/// assert!(limit.compare_and_set(Some(first), &300).await?.is_none());
/// assert_eq!(limit.read().await?.expect("it was set").value, 200);
/// # Ok(()) }
/// ```
pub struct SharedValue<T> {
    queue: Queue,
    of: PhantomData<fn(T) -> T>,
}

impl<T: Serialize + DeserializeOwned> SharedValue<T> {
    /// The value's name, with the coordinator's prefix.
    pub fn name(&self) -> &str {
        self.queue.name()
    }

    /// Reads the value; `None` if there is none.
    ///
    /// It is at least as new as every write that was confirmed before the call, whoever wrote it.
    ///
    /// # Errors
    ///
    /// * [`ErrorKind::Corrupt`]: the stored value is of another type.
    /// * [`ErrorKind::Unavailable`] and the other kinds of a store that refuses or does not answer.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect: it only reads.
    pub async fn read(&self) -> Result<Option<Versioned<T>>> {
        self.read_for("read").await
    }

    /// Writes the value, whatever it was before, and returns its version.
    ///
    /// # Errors
    ///
    /// * [`ErrorKind::Value`]: it cannot be written as JSON, or has more than 256 KiB.
    /// * [`ErrorKind::Unavailable`] and the other kinds of a store that refuses or does not answer; with
    ///   [`Effect::Unknown`](crate::Effect::Unknown) it may have been written, or may still be.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the call goes on in the background, and may take effect after a later call.
    pub async fn set(&self, value: &T) -> Result<Version> {
        let data = self.data("set", value)?;
        let step = move |_: &_| Ok(Change::Write(Some(Data::clone(&data)), ()));
        Ok(Version(self.queue.modify_versioned("set", step).await?.1.unwrap_or_default()))
    }

    /// Writes the value if its present version is `expected`; with `None`, if there is no value.
    ///
    /// Returns the new version. If the present version is not `expected`, returns `None`, and nothing was written.
    ///
    /// # Errors
    ///
    /// Those of [`set`](Self::set).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the call goes on in the background: it is carried out once or not at all.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let limit = coordinator.value::<u32>("upload-limit")?;
    /// let first = limit.compare_and_set(None, &100).await?.expect("there was none");
    /// assert!(limit.compare_and_set(None, &200).await?.is_none(), "there is one");
    /// assert!(limit.compare_and_set(Some(first), &200).await?.is_some());
    /// # Ok(()) }
    /// ```
    pub async fn compare_and_set(
        &self,
        expected: Option<Version>,
        value: &T,
    ) -> Result<Option<Version>> {
        let data = self.data("compare and set", value)?;
        self.write("compare and set", expected, Some(data)).await
    }

    /// Deletes the value. Returns whether there was one.
    ///
    /// # Errors
    ///
    /// Those of [`set`](Self::set) but `Value`.
    ///
    /// # Cancel safety
    ///
    /// As for [`set`](Self::set).
    pub async fn delete(&self) -> Result<bool> {
        let step = |listing: &Listing| {
            let is_there = listing.value.is_some();
            Ok(if is_there { Change::Write(None, true) } else { Change::Keep(false) })
        };
        self.queue.modify("delete", step).await
    }

    /// Deletes the value if it has this version. Returns whether it had.
    ///
    /// # Errors
    ///
    /// Those of [`delete`](Self::delete).
    ///
    /// # Cancel safety
    ///
    /// As for [`compare_and_set`](Self::compare_and_set).
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let limit = coordinator.value::<u32>("upload-limit")?;
    /// let first = limit.set(&100).await?;
    /// let second = limit.set(&200).await?;
    /// assert!(!limit.compare_and_delete(first).await?);
    /// assert!(limit.compare_and_delete(second).await?);
    /// assert!(limit.read().await?.is_none());
    /// # Ok(()) }
    /// ```
    pub async fn compare_and_delete(&self, expected: Version) -> Result<bool> {
        Ok(self.write("compare and delete", Some(expected), None).await?.is_some())
    }

    /// Replaces the value by what `change` makes of it, and returns the new value.
    ///
    /// It reads the value and writes the result. If somebody else wrote in between, it begins again. `change`
    /// is called once in each round, and only the result of its last call is written.
    ///
    /// # Errors
    ///
    /// Those of [`read`](Self::read) and [`set`](Self::set).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the result of the last call of `change` is written or not.
    ///
    /// # Fairness
    ///
    /// None: of several callers that contend, any may succeed first.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let servers = coordinator.value::<Vec<String>>("servers")?;
    /// let now = servers.update(|servers| {
    ///     let mut servers = servers.unwrap_or_default();
    ///     servers.push("host-1".to_owned());
    ///     servers
    /// });
    /// assert_eq!(now.await?.value, ["host-1"]);
    /// # Ok(()) }
    /// ```
    pub async fn update(&self, mut change: impl FnMut(Option<T>) -> T) -> Result<Versioned<T>> {
        let mut delays =
            DecorrelatedJitter::new(Duration::from_millis(1), Duration::from_millis(50));
        loop {
            let present = self.read_for("update").await?;
            let expected = present.as_ref().map(|present| present.version);
            let value = change(present.map(|present| present.value));
            let data = self.data("update", &value)?;
            if let Some(version) = self.write("update", expected, Some(data)).await? {
                return Ok(Versioned { version, value });
            }
            let delay = delays.next_delay();
            // Sleeps on the session's runtime, because the caller may have none.
            let pause = self.queue.session.spawn(async move { tokio::time::sleep(delay).await });
            drop(pause.await);
        }
    }

    /// Follows the value; the first [`next`](ValueWatch::next) returns the present one.
    ///
    /// All watches of one value in this process share one read for each change.
    ///
    /// # Examples
    ///
    /// ```
    /// use coordination::ValueEvent;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let limit = coordinator.value::<u32>("limit")?;
    /// let mut events = limit.watch();
    /// assert_eq!(events.next().await?, ValueEvent::NoValue);
    ///
    /// let version = limit.set(&100).await?;
    /// match events.next().await? {
    ///     ValueEvent::Value(now) => assert_eq!((now.version, now.value), (version, 100)),
    ///     ValueEvent::NoValue => unreachable!("nobody deletes it"),
    /// }
    /// # Ok(()) }
    /// ```
    pub fn watch(&self) -> ValueWatch<T> {
        let views = self.queue.observe(Sight::Standing).telling_unreadable();
        let queue = self.queue.clone();
        ValueWatch { queue, views, told: Told::default(), of: PhantomData }
    }

    /// The value that a queue of another recipe has.
    pub(super) fn of_queue(queue: Queue) -> Self {
        Self { queue, of: PhantomData }
    }

    async fn read_for(&self, operation: &'static str) -> Result<Option<Versioned<T>>> {
        let stored = self.queue.read(operation).await?.value;
        let value = stored.map(|stored| Versioned::parse(operation, &stored));
        self.queue.named(value.transpose())
    }

    fn data(&self, operation: &'static str, value: &T) -> Result<Data> {
        self.queue.named(to_data(operation, value, MAX_VALUE_BYTES))
    }

    async fn write(
        &self,
        operation: &'static str,
        expected: Option<Version>,
        data: Option<Data>,
    ) -> Result<Option<Version>> {
        let expected = expected.map(|version| version.0);
        match self.queue.write(operation, Write::new(&self.queue.key, expected, data)).await? {
            Written::Yes(version) => Ok(Some(Version(version))),
            Written::No => Ok(None),
            Written::Unknown => self.queue.named(Err(in_doubt(operation))),
        }
    }
}

impl<T> Clone for SharedValue<T> {
    fn clone(&self) -> Self {
        Self { queue: self.queue.clone(), of: PhantomData }
    }
}

impl<T> fmt::Debug for SharedValue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedValue").field("name", &self.queue.name()).finish_non_exhaustive()
    }
}

/// What a watch of a value is told by [`ValueWatch::next`].
///
/// # Examples
///
/// ```
/// use coordination::ValueEvent;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
/// # let coordinator = coordination::Coordinator::connect("memory://").await?;
/// let limit = coordinator.value::<u32>("upload-limit")?;
/// limit.set(&100).await?;
/// let now = match limit.watch().next().await? {
///     ValueEvent::Value(now) => now.value,
///     ValueEvent::NoValue => 50,
/// };
/// assert_eq!(now, 100);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ValueEvent<T> {
    /// This is the value.
    Value(Versioned<T>),
    /// There is no value: none was written so far, or it was deleted. More events follow.
    NoValue,
}

impl<T> ValueEvent<T> {
    /// The value; `None` if there is none.
    pub fn into_value(self) -> Option<Versioned<T>> {
        match self {
            Self::Value(value) => Some(value),
            Self::NoValue => None,
        }
    }
}

/// Follows a value; returned by [`SharedValue::watch`].
///
/// As long as it lives, it keeps the coordinator's session open, unless the coordinator is stopped.
///
/// # Examples
///
/// ```
/// use coordination::{ErrorKind, ValueEvent};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
/// # let coordinator = coordination::Coordinator::connect("memory://").await?;
/// let limit = coordinator.value::<u32>("upload-limit")?;
/// limit.set(&100).await?;
/// let mut events = limit.watch();
/// let following = tokio::spawn(async move {
///     loop {
///         match events.next().await {
///             Ok(ValueEvent::Value(now)) => println!("at most {} uploads", now.value),
///             Ok(ValueEvent::NoValue) => println!("no limit"),
///             // It cannot be read, and the one before counts.
///             Err(error) if error.kind() == ErrorKind::Corrupt => eprintln!("{error}"),
///             Err(error) => return error.kind(),
///         }
///     }
/// });
/// coordinator.stop().await?;
/// assert_eq!(following.await.expect("no panic"), ErrorKind::Closed);
/// # Ok(()) }
/// ```
pub struct ValueWatch<T> {
    queue: Queue,
    views: Views,
    told: Told,
    of: PhantomData<fn() -> T>,
}

impl<T: DeserializeOwned> ValueWatch<T> {
    /// Waits for the next event: the value, or that there is none. The first call returns what this process knows,
    /// later calls return after a change.
    ///
    /// What it returns may lag behind [`SharedValue::read`] by the time that a notification takes. Versions
    /// rise, unless the store is restored from older data: then the value that the store has now is returned,
    /// whatever its version. When values follow each other quickly, or the store could not be reached, some may
    /// be skipped; the last one is always returned. While the store cannot be reached nothing is returned:
    /// [`Coordinator::state`] reports that.
    ///
    /// # Errors
    ///
    /// * [`ErrorKind::Corrupt`]: the last value is of another type, or not written by this library. The next call waits for the
    ///   next value.
    /// * [`ErrorKind::Closed`]: the coordinator was stopped. Final.
    ///
    /// A store that refuses is waited for, too; the log has one warning of each time.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the newest value is not skipped: the next call returns it.
    ///
    /// # Examples
    ///
    /// ```
    /// use coordination::ValueEvent;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let limit = coordinator.value::<u32>("upload-limit")?;
    /// let mut events = limit.watch();
    /// limit.set(&100).await?;
    /// limit.set(&200).await?;
    ///
    /// // Until this value has come. Others may have been skipped.
    /// loop {
    ///     match events.next().await? {
    ///         ValueEvent::Value(now) if now.value == 200 => break,
    ///         ValueEvent::Value(_) | ValueEvent::NoValue => {}
    ///     }
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn next(&mut self) -> Result<ValueEvent<T>> {
        let mut delays = self.queue.session.retry_delays(None);
        loop {
            if self.told.is_behind {
                match self.queue.read("watch").await {
                    Ok(listing) if self.told.is_news_now(version_of(&listing)) => {
                        return self.parsed(&listing);
                    }
                    Ok(_) => {}
                    Err(error) if error.kind() == ErrorKind::Corrupt => {
                        // It is told once; the value that the store has is read again later, as no view may come.
                        if !std::mem::replace(&mut self.told.has_told_corrupt, true) {
                            return Err(error);
                        }
                        self.queue
                            .sleep_until("watch", Instant::now() + delays.next_delay())
                            .await?;
                    }
                    Err(error)
                        if matches!(error.kind(), ErrorKind::Closed | ErrorKind::Unsupported) =>
                    {
                        return Err(error);
                    }
                    // The store does not answer, so it is asked again. Nothing is forgotten meanwhile if the future is dropped.
                    Err(_) => {
                        self.queue
                            .sleep_until("watch", Instant::now() + delays.next_delay())
                            .await?
                    }
                }
                continue;
            }
            let view = self.queue.next_view(&mut self.views).await?;
            if self.told.is_news(version_of(&view.listing)) {
                return self.parsed(&view.listing);
            }
        }
    }

    fn parsed(&self, listing: &Listing) -> Result<ValueEvent<T>> {
        let Some(stored) = &listing.value else { return Ok(ValueEvent::NoValue) };
        self.queue.named(Versioned::parse("watch", stored).map(ValueEvent::Value))
    }
}

fn version_of(listing: &Listing) -> Option<u64> {
    listing.value.as_ref().map(|stored| stored.version)
}

impl<T> fmt::Debug for ValueWatch<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ValueWatch").field("name", &self.queue.name()).finish_non_exhaustive()
    }
}

/// What a watch has returned so far.
#[derive(Default)]
struct Told {
    /// What was returned last: a value's version, or `None` if there was no value. The outer `None`: nothing was returned so far.
    last: Option<Option<u64>>,
    /// The highest version so far, since the store was last restored.
    highest: u64,
    /// Whether the newest view has a lower version than `highest`, or a version that is gone. Either this view is late, or the store was
    /// restored from older data, and numbers its values anew. Only a read, which is never late, shows which.
    is_behind: bool,
    /// Whether the caller was told that the value that the store has cannot be read.
    has_told_corrupt: bool,
}

impl Told {
    /// Whether `version`, which was read just now, is to be returned. If the version is lower than one before, or was gone before, the
    /// store was restored.
    fn is_news_now(&mut self, version: Option<u64>) -> bool {
        if self.is_past(version) {
            self.highest = 0;
        }
        self.is_news(version)
    }

    /// Whether `version`, which a view has, is to be returned. If so, it is remembered as the last.
    fn is_news(&mut self, version: Option<u64>) -> bool {
        self.is_behind = self.is_past(version);
        let is_news = match version {
            Some(version) => version > self.highest,
            None => self.last != Some(None),
        };
        if is_news {
            self.has_told_corrupt = false;
            self.last = Some(version);
            self.highest = version.unwrap_or(self.highest);
        }
        is_news
    }

    /// Whether a higher version was returned than this one, or that this one is gone.
    fn is_past(&self, version: Option<u64>) -> bool {
        let is_gone = self.last == Some(None);
        version.is_some_and(|version| version < self.highest || is_gone && version == self.highest)
    }
}

/// A number that processes add to. Made by [`Coordinator::counter`], without I/O; cheap to clone.
///
/// It belongs to nobody, and stays when all sessions have ended.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
/// let coordinator = coordination::Coordinator::connect("memory://").await?;
/// let tickets = coordinator.counter("tickets")?;
/// assert_eq!(tickets.add(1).await?, 1);
/// assert_eq!(tickets.add(9).await?, 10);
/// assert_eq!(tickets.read().await?, 10);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Counter {
    queue: Queue,
}

impl Counter {
    /// The counter's name, with the coordinator's prefix.
    pub fn name(&self) -> &str {
        self.queue.name()
    }

    /// Adds `amount`, which may be negative, and returns the sum that includes it. So all callers that count upwards
    /// get different numbers.
    ///
    /// No confirmed addition is lost or counted twice.
    ///
    /// # Errors
    ///
    /// * [`ErrorKind::Value`]: the sum does not fit into an `i64`; nothing was added.
    /// * [`ErrorKind::Corrupt`]: what is stored under this name is not a number.
    /// * [`ErrorKind::Unavailable`] and the other kinds of a store that refuses or does not answer. With
    ///   [`Effect::Unknown`](crate::Effect::Unknown) it was added once, or not at all, or may still be: a
    ///   caller that adds again may count twice.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the call goes on in the background: `amount` is added once or not at all.
    ///
    /// # Fairness
    ///
    /// None: of several callers that contend, any may succeed first.
    ///
    /// # Examples
    ///
    /// ```
    /// use coordination::ErrorKind;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let free = coordinator.counter("free-gib")?;
    /// free.add(100).await?;
    /// assert_eq!(free.add(-30).await?, 70);
    ///
    /// let error = free.add(i64::MAX).await.unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::Value);
    /// assert_eq!(free.read().await?, 70);
    /// # Ok(()) }
    /// ```
    pub async fn add(&self, amount: i64) -> Result<i64> {
        let step = move |listing: &Listing| {
            let present = number("add", listing.value.as_ref())?;
            let sum = present.checked_add(amount).ok_or_else(|| {
                let message = format!("{present} and {amount} are more than a 64-bit number holds");
                Error::new(ErrorKind::Value, "add", message)
            })?;
            Ok(Change::Write(Some(sum.to_string().into()), sum))
        };
        self.queue.modify("add", step).await
    }

    /// Reads the number. It includes every addition that was confirmed before the call.
    ///
    /// # Errors
    ///
    /// Those of [`add`](Self::add) but `Value`.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect: it only reads.
    pub async fn read(&self) -> Result<i64> {
        self.queue.named(number("read", self.queue.read("read").await?.value.as_ref()))
    }

    /// Waits until the number is another one than `known`, and reads it. If it is another one already, this returns at once; a number
    /// that has come back to `known` by the time that a notification takes is not told.
    ///
    /// # Errors
    ///
    /// Those of [`read`](Self::read), and [`ErrorKind::Closed`] when the coordinator is stopped. While the store does not answer, it waits.
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
    /// let done = coordinator.counter("done")?;
    /// let seen = done.read().await?;
    /// done.add(1).await?;
    /// assert_eq!(done.changed(seen).await?, 1);
    /// # Ok(()) }
    /// ```
    pub async fn changed(&self, known: i64) -> Result<i64> {
        let mut watch = SharedValue::<i64>::of_queue(self.queue.clone()).watch();
        loop {
            let told = watch.next().await?.into_value().map_or(0, |told| told.value);
            // A view may be older than what the caller has read.
            if told != known {
                let now = self.read().await?;
                if now != known {
                    return Ok(now);
                }
            }
        }
    }
}

impl fmt::Debug for Counter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Counter").field("name", &self.name()).finish_non_exhaustive()
    }
}

fn number(operation: &'static str, stored: Option<&Value>) -> Result<i64> {
    stored.map_or(Ok(0), |stored| from_data(operation, &stored.data))
}
