//! What a session knows of its end in two steps: whether it has begun, and what is held or being released beside entries.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use serde::Serialize;
use tokio::sync::{Notify, watch};

use crate::backend::SessionId;
use crate::error::{Error, ErrorKind, Result};
use crate::token::FencingToken;

/// What an entry is for, as far as a stop is concerned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Somebody works under it: nobody new gets one, and the stop waits for those that are held.
    #[default]
    Work,
    /// It says that this process is there: nobody new gets one, and the stop does not wait.
    Sign,
    /// A step of something else, which may have to be finished: the stop neither refuses it nor waits.
    Step,
}

/// Something that was held when its coordinator stopped.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
/// let coordinator = coordination::Coordinator::connect("memory://").await?;
/// let _hanging = coordinator.lock("vol-7")?.acquire(None).await?;
///
/// let stopped = coordinator.stop_within(Duration::ZERO).await;
/// let cut_off = &stopped.cut_off[0];
/// assert_eq!((cut_off.recipe, &*cut_off.name), ("lock", "vol-7"));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct CutOff {
    /// The recipe, in the word that events use: `lock`, `semaphore`, `election`.
    pub recipe: &'static str,
    /// The name, with the coordinator's prefix.
    pub name: String,
    /// The fencing token of the grant. Resources that have seen a larger one refuse it.
    pub token: FencingToken,
}

/// How far a session's end has come.
#[derive(Default)]
pub(crate) struct Drain {
    is_begun: AtomicBool,
    /// For those who wait.
    begun: watch::Sender<bool>,
    /// Calls that wait for the store to confirm a release, and claims that are being made or taken back.
    releases: AtomicUsize,
    /// What is held beside entries, by a number of its own.
    beside: Mutex<Beside>,
    /// When something has ended that the stop waits for and that tells nobody else.
    pub(super) ended: Notify,
    /// What was held when the session was closed.
    pub(super) cut_off: OnceLock<Vec<CutOff>>,
}

#[derive(Default)]
pub(super) struct Beside {
    last: u64,
    held: BTreeMap<u64, Aside>,
}

/// Something that is held beside entries.
struct Aside {
    of: SessionId,
    held: CutOff,
    is_over: Box<dyn Fn() -> bool + Send>,
}

impl Drain {
    /// From here on nothing more is given out.
    pub(super) fn begin(&self) {
        self.is_begun.store(true, Ordering::SeqCst);
        self.begun.send_replace(true);
    }

    /// Fails if nothing more is given out for this purpose.
    pub(super) fn admit(&self, operation: &'static str, purpose: Purpose) -> Result<()> {
        match purpose != Purpose::Step && self.is_begun.load(Ordering::SeqCst) {
            true => Err(refused(operation)),
            false => Ok(()),
        }
    }

    /// Resolves with the error when nothing more is given out for this purpose.
    pub(super) async fn refuses(&self, operation: &'static str, purpose: Purpose) -> Error {
        self.begun().await;
        match purpose {
            Purpose::Step => std::future::pending().await,
            Purpose::Work | Purpose::Sign => refused(operation),
        }
    }

    /// Resolves when nothing more is given out.
    pub(super) async fn begun(&self) {
        let mut begun = self.begun.subscribe();
        // This fails only without the sender, and `self` has it.
        let _ = begun.wait_for(|begun| *begun).await;
    }

    /// Notes something that a stop waits for.
    pub(super) fn finishes(&self) {
        self.releases.fetch_add(1, Ordering::SeqCst);
    }

    /// What [`finishes`](Self::finishes) has noted is finished.
    ///
    /// A forked child, which `is_own_process` tells, has a count of its own, and must wake nobody. It is asked only while a stop
    /// goes on, as asking may cost a system call and releases are many.
    pub(super) fn has_finished(&self, is_own_process: impl FnOnce() -> bool) {
        self.releases.fetch_sub(1, Ordering::SeqCst);
        if self.is_begun.load(Ordering::SeqCst) && is_own_process() {
            self.ended.notify_waiters();
        }
    }

    /// Something has ended that a stop may wait for.
    pub(super) fn ended(&self) {
        if self.is_begun.load(Ordering::SeqCst) {
            self.ended.notify_waiters();
        }
    }

    pub(super) fn is_released(&self) -> bool {
        self.releases.load(Ordering::SeqCst) == 0
    }

    pub(super) fn beside(&self) -> MutexGuard<'_, Beside> {
        self.beside.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn refused(operation: &'static str) -> Error {
    let message = "the coordinator is being stopped, and gives out nothing new";
    Error::new(ErrorKind::Closed, operation, message)
}

impl Beside {
    /// Notes something that ends with this session, and returns its number.
    pub(super) fn add(
        &mut self,
        of: SessionId,
        held: CutOff,
        is_over: Box<dyn Fn() -> bool + Send>,
    ) -> u64 {
        self.last += 1;
        self.held.insert(self.last, Aside { of, held, is_over });
        self.last
    }

    pub(super) fn remove(&mut self, number: u64) {
        self.held.remove(&number);
    }

    /// What is held in this session, and was not lost.
    pub(super) fn of(&self, session: SessionId) -> impl Iterator<Item = &CutOff> {
        let held = self.held.values().filter(move |aside| aside.of == session);
        held.filter(|aside| !(aside.is_over)()).map(|aside| &aside.held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn which_process_this_is_is_asked_only_while_a_stop_goes_on() {
        let drain = Drain::default();
        drain.finishes();
        drain.has_finished(|| panic!("nobody waits"));
        assert!(drain.is_released());
        drain.begin();
        drain.finishes();
        let mut is_asked = false;
        drain.has_finished(|| std::mem::replace(&mut is_asked, true));
        assert!(is_asked && drain.is_released());
    }
}
