//! What clients ask for, and how the library is asked for it.

use std::time::Duration;

use coordination::{Coordinator, Error, ErrorKind};
use serde_json::Value;

use crate::guard::Guard;
use crate::problem::{Code, Problem};

/// What is asked for.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(crate) what: What,
    /// The library's name of it; of several, the first.
    pub(crate) name: String,
    /// How long to wait; zero is one try.
    pub(crate) wait: Duration,
    pub(crate) lease: Duration,
    pub(crate) title: String,
    /// What the hold belongs to: the principal's name.
    pub(crate) client: String,
}

/// What of the recipe, and on which terms.
#[derive(Clone, Debug)]
pub(crate) enum What {
    Lock {
        shared: bool,
    },
    /// All of these, each once and in the order of their bytes.
    Locks {
        names: Vec<String>,
        shared: bool,
    },
    Semaphore {
        permits: u32,
        count: u32,
    },
    Election {
        value: Value,
    },
}

impl Wanted {
    /// The name of the lock, or of the share, if it is one lock: promises are of such names.
    pub(crate) fn lock_name(&self) -> Option<&str> {
        matches!(self.what, What::Lock { .. }).then_some(&self.name)
    }
}

impl What {
    /// Whether one client has it alone, so that a promise may keep it.
    pub(crate) fn is_exclusive_lock(&self) -> bool {
        matches!(self, Self::Lock { shared: false })
    }
}

/// Waits for it.
///
/// # Errors
///
/// [`Code::Busy`], if others have it for longer than is waited, and those of the library.
///
/// # Cancel safety
///
/// Dropping the future leaves nothing behind.
pub(crate) async fn granted(coordinator: &Coordinator, wanted: &Wanted) -> Result<Guard, Problem> {
    let wait = (!wanted.wait.is_zero()).then_some(wanted.wait);
    match &wanted.what {
        What::Lock { shared } => {
            let lock = coordinator.lock(&wanted.name)?;
            one(match (wait, shared) {
                (None, false) => lock.try_acquire().await,
                (None, true) => lock.try_acquire_shared().await,
                (wait, false) => lock.acquire(wait).await.map(Some),
                (wait, true) => lock.acquire_shared(wait).await.map(Some),
            })
        }
        What::Locks { names, shared } => {
            let locks = coordinator.locks(names)?;
            one(match (wait, shared) {
                (None, false) => locks.try_acquire().await,
                (None, true) => locks.try_acquire_shared().await,
                (wait, false) => locks.acquire(wait).await.map(Some),
                (wait, true) => locks.acquire_shared(wait).await.map(Some),
            })
        }
        What::Semaphore { permits, count } => {
            let semaphore = coordinator.semaphore(&wanted.name, *permits)?;
            one(match wait {
                None => semaphore.try_acquire_many(*count).await,
                wait => semaphore.acquire_many(*count, wait).await.map(Some),
            })
        }
        What::Election { value } => {
            let election = coordinator.election(&wanted.name)?;
            one(match wait {
                None => election.try_campaign(value).await,
                wait => election.campaign(value, wait).await.map(Some),
            })
        }
    }
}

/// What the library answers when others have it already: nothing, or that the time is over.
fn one<G: Into<Guard>>(granted: Result<Option<G>, Error>) -> Result<Guard, Problem> {
    let others = || Problem::new(Code::Busy, "somebody else holds it");
    match granted {
        Ok(Some(guard)) => Ok(guard.into()),
        Ok(None) => Err(others()),
        Err(error) if error.kind() == ErrorKind::Timeout => Err(others()),
        Err(error) => Err(error.into()),
    }
}
