//! Promises: a lease that outlives the instance which granted it.
//!
//! On `file://`, what a process holds is free as soon as that dies, and rdlm's clients have leases of minutes and never
//! renew. So beside such a lock stands a value that says how long its holder was promised to have it. Whoever is granted the
//! lock next, by another instance, and finds a promise of another grant, keeps the lock and waits until as much time
//! has passed as was promised, counted from when it first saw that promise, by its own clock. That needs no common clock, and
//! is never too short: the last renewal was before that.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use coordination::{BootInstant, Coordinator, Error, ErrorKind, Result, SharedValue, Version};
use serde::{Deserialize, Serialize};

use crate::text::{OWN, millis};

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

/// The promise of a lock, at the store.
#[derive(Debug)]
pub(crate) struct Promise {
    value: SharedValue<Promised>,
    /// What we wrote last, and as which version: renewals come one after the other.
    written: tokio::sync::Mutex<Option<(Version, Promised)>>,
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
/// without an answer of the store nobody knows whether there is a promise.
///
/// The caller holds the lock. Dropping the future has no effect: it only reads.
pub(crate) async fn sit_out(
    value: &SharedValue<Promised>,
    name: &str,
    sights: &Sights,
    patience: Duration,
) -> Result<SatOut> {
    let until = BootInstant::now().saturating_add(patience);
    loop {
        let Some(found) = value.read().await? else {
            sights.forget(name);
            return Ok(SatOut::Free(None));
        };
        let lease = Duration::from_millis(found.value.lease_ms);
        let left = sights.first(name, found.version).saturating_add(lease).remaining();
        if left.is_zero() {
            return Ok(SatOut::Free(Some(found.version)));
        }
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
                    Ok(Some(now)) if now.version <= found.version => {}
                    Err(error) if error.kind() == ErrorKind::Closed => return Err(error),
                    _ => return Ok::<_, Error>(()),
                }
            }
        };
        tokio::select! {
            biased;
            changed = changed => changed?,
            () = tokio::time::sleep(left.min(patience)) => {}
        }
    }
}

/// Deletes the promise of the grant of this fence, if it is still there.
pub(crate) async fn forget(value: &SharedValue<Promised>, fence: u64) -> Result<()> {
    if let Some(found) = value.read().await?
        && found.value.fence == fence
    {
        value.compare_and_delete(found.version).await?;
    }
    Ok(())
}

impl Promise {
    /// Writes a promise in place of one that is over, or of none.
    ///
    /// # Errors
    ///
    /// Those of the store; then nothing may be granted.
    pub(crate) async fn write(
        value: SharedValue<Promised>,
        over: Option<Version>,
        fence: u64,
        lease: Duration,
        handle: &str,
    ) -> Result<Option<Self>> {
        let instance = handle.split('.').next().unwrap_or_default().to_owned();
        let promised =
            Promised { fence, lease_ms: millis(lease), instance, handle: handle.to_owned() };
        let Some(version) = value.compare_and_set(over, &promised).await? else { return Ok(None) };
        let written = tokio::sync::Mutex::new(Some((version, promised)));
        Ok(Some(Self { value, written }))
    }

    /// Makes the promise at least as long as this; false if it is not ours any more.
    pub(crate) async fn extend(&self, lease: Duration) -> Result<bool> {
        let mut written = self.written.lock().await;
        let Some((version, promised)) = written.as_ref() else { return Ok(false) };
        if promised.lease_ms >= millis(lease) {
            return Ok(true);
        }
        let longer = Promised { lease_ms: millis(lease), ..promised.clone() };
        let Some(version) = self.value.compare_and_set(Some(*version), &longer).await? else {
            return Ok(false);
        };
        *written = Some((version, longer));
        Ok(true)
    }

    /// Deletes it, if it is still ours: before the lock is released.
    pub(crate) async fn delete(&self) -> Result<()> {
        let written = self.written.lock().await.take();
        if let Some((version, _)) = written {
            self.value.compare_and_delete(version).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn many_names_do_not_begin_a_wait_anew() {
        let coordinator = Coordinator::connect("memory://").await.expect("memory is there");
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
}
