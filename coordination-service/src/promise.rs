//! Promises: a lease that outlives the instance which granted it.
//!
//! On `file://`, what a process holds is free as soon as that dies, and rdlm's clients have leases of minutes and never
//! renew. So beside such a lock stands a value that says how long its holder was promised to have it. Whoever is granted the
//! lock next, by another instance, and finds a promise of another grant, keeps the lock and waits until as much time
//! has passed as was promised, [by the slower clock](sat_out_for), counted from when it first saw that promise. That needs no
//! common clock, and is never too short: the last renewal was before that.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use coordination::{
    BootInstant, Coordinator, Effect, Error, ErrorKind, Result, SharedValue, ValueEvent, Version,
};
use serde::{Deserialize, Serialize};

use crate::text::{OWN, millis, millis_up};

/// The most first sights that are remembered.
const SIGHTS: usize = 10_000;

/// What is stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Promised {
    fence: u64,
    lease_ms: u64,
    instance: String,
    handle: String,
}

#[cfg(test)]
impl Promised {
    /// Whether it is of the grant of this fence, for so long.
    pub(crate) fn is_of(&self, fence: u64, lease: Duration) -> bool {
        (self.fence, self.lease_ms) == (fence, millis_up(lease))
    }
}

/// The promise of a lock, at the store.
#[derive(Debug)]
pub(crate) struct Promise {
    value: SharedValue<Promised>,
    /// The grant that it is of: no other promise has both.
    fence: u64,
    handle: String,
    /// Renewals come one after the other.
    written: tokio::sync::Mutex<Written>,
}

/// What is known of our writes.
#[derive(Debug, Default)]
enum Written {
    /// Only the store knows: nothing is written, or all is deleted, or the answer to a renewal was lost.
    #[default]
    Unknown,
    /// What is there by our last write, and as which version.
    There(Version, Promised),
    /// Nobody has confirmed the first write, in place of this version, and it may come to the store yet.
    InDoubt(Option<Version>),
}

impl Written {
    /// What is there. As it is taken, after an error, and if the call is dropped, only the store knows.
    fn take(&mut self) -> Option<(Version, Promised)> {
        match std::mem::take(self) {
            Self::There(version, promised) => Some((version, promised)),
            Self::Unknown | Self::InDoubt(_) => None,
        }
    }
}

/// When this instance first saw which promise: whoever gives up waiting has not waited in vain.
#[derive(Debug, Default)]
pub(crate) struct Sights(Mutex<HashMap<String, Sight>>);

#[derive(Debug)]
struct Sight {
    version: Version,
    first: BootInstant,
    last: BootInstant,
}

impl Sights {
    /// When this version of this name's promise was seen first; now, if never.
    fn first(&self, name: &str, version: Version) -> BootInstant {
        let mut sights = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = BootInstant::now();
        if sights.len() >= SIGHTS && !sights.contains_key(name) {
            // Who comes again and again keeps what was seen.
            let oldest = sights.iter().min_by_key(|(_, sight)| sight.last);
            if let Some(oldest) = oldest.map(|(name, _)| name.clone()) {
                sights.remove(&oldest);
            }
        }
        let new = || Sight { version, first: now, last: now };
        let sight = sights.entry(name.to_owned()).or_insert_with(new);
        if sight.version != version {
            *sight = new();
        }
        sight.last = now;
        sight.first
    }

    fn forget(&self, name: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
    }
}

/// Where the promise of the lock of this name is.
pub(crate) fn of(coordinator: &Coordinator, name: &str) -> Result<SharedValue<Promised>> {
    coordinator.value(format!("{OWN}promise/{name}"))
}

/// How the wait for a promise of another grant has ended.
pub(crate) enum SatOut {
    /// None is in the way; the version of one that is over, if there is one.
    Free(Option<Version>),
    /// One is, for longer than the time given.
    Promised,
}

/// Waits until no promise of another grant is in the way, but for no longer than `patience`. That does not bound the reading:
/// without an answer of the store nobody knows whether there is a promise. `is_in_the_way` says whether one is known to be.
///
/// The caller holds the lock. Dropping the future has no effect: it only reads.
pub(crate) async fn sit_out(
    value: &SharedValue<Promised>,
    name: &str,
    sights: &Sights,
    patience: Duration,
    is_in_the_way: &AtomicBool,
) -> Result<SatOut> {
    let until = BootInstant::now().saturating_add(patience);
    loop {
        is_in_the_way.store(false, Ordering::SeqCst);
        let Some(found) = value.read().await? else {
            sights.forget(name);
            return Ok(SatOut::Free(None));
        };
        let over = sat_out_for(Duration::from_millis(found.value.lease_ms));
        let left = sights.first(name, found.version).saturating_add(over).remaining();
        if left.is_zero() {
            return Ok(SatOut::Free(Some(found.version)));
        }
        is_in_the_way.store(true, Ordering::SeqCst);
        let patience = until.remaining();
        if patience.is_zero() {
            return Ok(SatOut::Promised);
        }
        tracing::info!(name, left_ms = millis(left), "sitting out a promise of another grant");
        let mut watch = value.watch();
        let changed = async {
            loop {
                match watch.next().await {
                    // What is told first may be older than what was read.
                    Ok(ValueEvent::Value(now)) if now.version <= found.version => {}
                    Err(error) if error.kind() == ErrorKind::Closed => return Err(error),
                    _ => return Ok::<_, Error>(()),
                }
            }
        };
        tokio::select! {
            biased;
            changed = changed => changed?,
            // Another look would take as long as the store does.
            () = tokio::time::sleep(left.min(patience)) => if patience < left {
                return Ok(SatOut::Promised);
            },
        }
    }
}

/// For how long a promise of this lease is sat out. On another host the clock of the instance that promised it may be slower than ours
/// by 0.5 % (A1), and clients of the APIs of others rely on the whole lease. While such a clock counts 0.995 s, ours counts one.
fn sat_out_for(lease: Duration) -> Duration {
    let nanos = (lease.as_nanos() * 1_000).div_ceil(995);
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

impl Promise {
    /// That of the grant of this fence, which is not written yet.
    pub(crate) fn new(value: SharedValue<Promised>, fence: u64, handle: &str) -> Self {
        Self { value, fence, handle: handle.to_owned(), written: tokio::sync::Mutex::default() }
    }

    /// That of the grant of this fence, if it is at the store, whoever has written it.
    pub(crate) async fn find(value: SharedValue<Promised>, fence: u64) -> Result<Option<Self>> {
        let found = match value.read().await {
            // What stands there promises nothing.
            Err(error) if error.kind() == ErrorKind::Corrupt => None,
            found => found?.filter(|found| found.value.fence == fence),
        };
        Ok(found.map(|found| Self::new(value, fence, &found.value.handle)))
    }

    /// Writes it in place of one that is over, or of none; false: another one is there by now.
    ///
    /// # Errors
    ///
    /// Those of the store; then nothing may be granted, and as it may be there all the same, it is to be
    /// [deleted](Self::delete).
    pub(crate) async fn write(&self, over: Option<Version>, lease: Duration) -> Result<bool> {
        let mut written = self.written.lock().await;
        let promised = self.promised(lease);
        *written = Written::InDoubt(over);
        let answer = self.value.compare_and_set(over, &promised).await;
        if !matches!(&answer, Err(error) if error.effect() == Effect::Unknown) {
            *written = Written::Unknown;
        }
        let Some(version) = answer? else { return Ok(false) };
        *written = Written::There(version, promised);
        Ok(true)
    }

    fn promised(&self, lease: Duration) -> Promised {
        let instance = self.handle.split('.').next().unwrap_or_default().to_owned();
        // Leases of rdlm's API may have parts of a millisecond, on which their clients rely, too.
        let (lease_ms, handle) = (millis_up(lease), self.handle.clone());
        Promised { fence: self.fence, lease_ms, instance, handle }
    }

    /// Makes the promise at least as long as this; false if it is not ours any more.
    pub(crate) async fn extend(&self, lease: Duration) -> Result<bool> {
        let mut written = self.written.lock().await;
        loop {
            let known = match written.take() {
                Some(known) => Some(known),
                None => self.stored().await?,
            };
            let Some((version, promised)) = known else { return Ok(false) };
            if promised.lease_ms >= millis_up(lease) {
                *written = Written::There(version, promised);
                return Ok(true);
            }
            let longer = Promised { lease_ms: millis_up(lease), ..promised };
            let version = self.value.compare_and_set(Some(version), &longer).await?;
            // Of another version: perhaps by a write of ours whose answer was lost.
            if let Some(version) = version {
                *written = Written::There(version, longer);
                return Ok(true);
            }
        }
    }

    /// Deletes it, if it is still ours: before the lock is released. May be called again, after an error above all.
    ///
    /// A first write that nobody has confirmed has no effect after that, however late it comes to the store.
    pub(crate) async fn delete(&self) -> Result<()> {
        let mut written = self.written.lock().await;
        if let Written::InDoubt(over) = *written {
            self.shut_out(over).await?;
        }
        let mut known = written.take();
        loop {
            if let Some((version, _)) = known
                && self.value.compare_and_delete(version).await?
            {
                return Ok(());
            }
            // What we know may be older than a write of ours whose answer was lost.
            known = self.stored().await?;
            if known.is_none() {
                return Ok(());
            }
        }
    }

    /// Sees to it that what a first write would take the place of is not there any more, unless that write has come.
    async fn shut_out(&self, over: Option<Version>) -> Result<()> {
        match over {
            // It was sat out.
            Some(over) => self.value.compare_and_delete(over).await.map(drop),
            // One that is over from the beginning stays, until another promise takes its place: nobody waits for it.
            None => {
                self.value.compare_and_set(None, &self.promised(Duration::ZERO)).await.map(drop)
            }
        }
    }

    /// What is at the store, if it is ours and promises anything.
    async fn stored(&self) -> Result<Option<(Version, Promised)>> {
        let is_ours = |promised: &Promised| {
            (promised.fence, promised.handle.as_str()) == (self.fence, self.handle.as_str())
        };
        let found = self.value.read().await?;
        let found = found.filter(|found| is_ours(&found.value) && found.value.lease_ms > 0);
        Ok(found.map(|found| (found.version, found.value)))
    }

    /// What no other promise has: its hold's handle, and the name of the value.
    pub(crate) fn key(&self) -> (String, String) {
        (self.handle.clone(), self.value.name().to_owned())
    }

    /// Keeps all calls of it from coming to an end, until what is answered is dropped.
    #[cfg(test)]
    pub(crate) async fn hang(&self) -> impl Drop {
        self.written.lock().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn many_names_do_not_begin_a_wait_anew() {
        let coordinator =
            Coordinator::connect("memory://promise-1").await.expect("memory is there");
        let value = coordinator.value::<u8>("x").expect("a name");
        let written = value.compare_and_set(None, &1).await.expect("memory answers");
        let (version, sights) = (written.expect("nobody else writes"), Sights::default());
        let first = sights.first("x", version);
        for number in 0..SIGHTS + 500 {
            sights.first(&number.to_string(), version);
            if number % 100 == 0 {
                assert_eq!(sights.first("x", version), first);
            }
        }
        assert_eq!(sights.0.lock().expect("no panic").len(), SIGHTS);
    }

    /// A write that was carried out, and whose answer was lost, is a write of this promise all the same.
    #[tokio::test]
    async fn a_promise_whose_last_write_nobody_confirmed_is_extended_and_deleted() {
        let coordinator =
            Coordinator::connect("memory://promise-2").await.expect("memory is there");
        let value = of(&coordinator, "x").expect("a name");
        let again = async |lease_ms| {
            let found = value.read().await.expect("memory answers").expect("it was written");
            let longer = Promised { lease_ms, ..found.value };
            let written = value.compare_and_set(Some(found.version), &longer).await;
            written.expect("memory answers").expect("nobody else writes");
        };
        let promise = write(&value, 1, "tag.one").await;
        again(60_000).await;
        assert!(promise.extend(Duration::from_secs(50)).await.expect("memory answers"));
        again(60_000).await;
        assert!(promise.extend(Duration::from_micros(69_999_001)).await.expect("memory answers"));
        let found = value.read().await.expect("memory answers").expect("it is there");
        assert_eq!(found.value.lease_ms, 70_000, "rounded up");
        assert_eq!(promise.promised(Duration::from_micros(1)).lease_ms, 1, "rounded up");
        again(80_000).await;
        promise.delete().await.expect("memory answers");
        assert!(value.read().await.expect("memory answers").is_none());
        // And that of another grant is let alone.
        let other = write(&value, 2, "tag.two").await;
        promise.delete().await.expect("memory answers");
        assert!(!promise.extend(Duration::from_secs(90)).await.expect("memory answers"));
        assert!(other.extend(Duration::from_secs(90)).await.expect("memory answers"));
    }

    /// A first write that comes to the store after its promise was deleted keeps nobody out.
    #[tokio::test]
    async fn a_promise_that_comes_late_is_not_written() {
        let coordinator =
            Coordinator::connect("memory://promise-3").await.expect("memory is there");
        let value = of(&coordinator, "x").expect("a name");
        for is_over_another in [false, true] {
            let over = match is_over_another {
                true => value.read().await.expect("memory answers").map(|found| found.version),
                false => None,
            };
            assert_eq!(over.is_some(), is_over_another);
            let promise = Promise::new(value.clone(), 7, "tag.seven");
            *promise.written.lock().await = Written::InDoubt(over);
            promise.delete().await.expect("memory answers");
            let late = promise.promised(Duration::from_secs(3_600));
            let late = value.compare_and_set(over, &late).await.expect("memory answers");
            assert!(late.is_none(), "it was deleted");
            let sights = Sights::default();
            let free = sit_out(&value, "x", &sights, Duration::ZERO, &AtomicBool::new(true)).await;
            let SatOut::Free(over) = free.expect("memory answers") else {
                panic!("nobody was promised it")
            };
            let next = Promise::new(value.clone(), 8, "tag.eight");
            assert!(next.write(over, Duration::from_secs(9)).await.expect("memory answers"));
        }
    }

    /// And one that has come is deleted, and leaves nothing.
    #[tokio::test]
    async fn a_promise_whose_first_write_nobody_confirmed_is_deleted() {
        let coordinator =
            Coordinator::connect("memory://promise-4").await.expect("memory is there");
        let value = of(&coordinator, "x").expect("a name");
        let promise = write(&value, 7, "tag.seven").await;
        *promise.written.lock().await = Written::InDoubt(None);
        promise.delete().await.expect("memory answers");
        assert!(value.read().await.expect("memory answers").is_none());
    }

    /// H5: by a clock that is slower than ours by as much as A1 allows, too.
    #[tokio::test]
    async fn h5_a_promise_is_kept_by_a_slow_clock() {
        let coordinator =
            Coordinator::connect("memory://promise-5").await.expect("memory is there");
        let value = of(&coordinator, "x").expect("a name");
        let (lease, sights) = (Duration::from_secs(2), Sights::default());
        let promise = Promise::new(value.clone(), 7, "tag.seven");
        assert!(promise.write(None, lease).await.expect("memory answers"), "nobody else writes");
        let begun = BootInstant::now();
        let is_in_the_way = AtomicBool::default();
        let free = sit_out(&value, "x", &sights, 60 * lease, &is_in_the_way).await;
        let took = BootInstant::now().saturating_duration_since(begun);
        assert!(matches!(free, Ok(SatOut::Free(Some(_)))), "it was sat out");
        assert!(took >= Duration::from_micros(2_010_050), "{took:?}");
        assert_eq!(sat_out_for(Duration::from_secs(199)), Duration::from_secs(200));
        assert_eq!(sat_out_for(Duration::from_nanos(1)), Duration::from_nanos(2), "rounded up");
        assert_eq!(sat_out_for(Duration::ZERO), Duration::ZERO, "one for no time");
    }

    async fn write(value: &SharedValue<Promised>, fence: u64, handle: &str) -> Promise {
        let promise = Promise::new(value.clone(), fence, handle);
        let written = promise.write(None, Duration::from_secs(1)).await;
        assert!(written.expect("memory answers"), "nobody else writes");
        promise
    }
}
