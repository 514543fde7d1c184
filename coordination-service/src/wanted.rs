//! What clients ask for, and how the library is asked for it.

use std::sync::Arc;
use std::time::Duration;

use coordination::{Admission, Coordinator, Error, ErrorKind, Limiter, Patience, Refusal};
use serde_json::Value;

use crate::auth::Principal;
use crate::guard::Guard;
use crate::kind::Kind;
use crate::problem::{Code, Problem};

/// What is asked for.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(crate) what: What,
    /// The library's name of it; of several, the first.
    pub(crate) name: String,
    /// How long to wait; zero is one try.
    pub(crate) wait: Duration,
    /// For how long its place, or what it was granted, is kept for a repetition when nobody waits for it.
    pub(crate) keep: Duration,
    pub(crate) lease: Duration,
    /// Whether its client goes by the whole lease, also when it is renewed, and not by what it is told is left of it. Then a promise keeps
    /// that, if there may be one, as less may be left of our session while the store is away.
    pub(crate) relies_on_lease: bool,
    /// What the store keeps as its label.
    pub(crate) title: String,
    /// What the hold belongs to: the principal's name.
    pub(crate) client: String,
    /// By whose right it is waited for.
    pub(crate) who: Arc<Principal>,
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
    Limiter {
        places: Places,
    },
    Election {
        value: Value,
    },
    /// With `create` the group is made, if there is none.
    Group {
        member: String,
        capabilities: Value,
        create: bool,
    },
}

/// How many places a limiter has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Places {
    pub(crate) slots: u32,
    pub(crate) standby: u32,
    pub(crate) latest_wins: bool,
}

impl Places {
    /// The limiter of this name that has these.
    pub(crate) fn of(self, coordinator: &Coordinator, name: &str) -> Result<Limiter, Error> {
        let limiter = coordinator.limiter(name)?;
        Ok(match self.latest_wins {
            true => limiter.latest_wins(),
            false => limiter.slots(self.slots).standby(self.standby),
        })
    }
}

impl Wanted {
    /// The names of the locks, if it is of locks: promises are of such names.
    pub(crate) fn locks(&self) -> Vec<&str> {
        match &self.what {
            What::Lock { .. } => vec![&self.name],
            What::Locks { names, .. } => names.iter().map(String::as_str).collect(),
            _ => Vec::new(),
        }
    }

    /// The recipe and the name of each that it is of.
    pub(crate) fn all(&self) -> Vec<(Kind, String)> {
        let kind = match &self.what {
            What::Lock { .. } => Kind::Lock,
            What::Locks { names, .. } => {
                return names.iter().map(|name| (Kind::Lock, name.clone())).collect();
            }
            What::Semaphore { .. } => Kind::Semaphore,
            What::Limiter { .. } => Kind::Limiter,
            What::Election { .. } => Kind::Election,
            What::Group { .. } => Kind::Group,
        };
        vec![(kind, self.name.clone())]
    }

    /// How many names it is of.
    pub(crate) fn part_count(&self) -> usize {
        match &self.what {
            What::Locks { names, .. } => names.len(),
            _ => 1,
        }
    }
}

impl What {
    /// Whether there are places in a queue for it.
    pub(crate) fn is_waited_for(&self) -> bool {
        !matches!(self, Self::Group { .. } | Self::Limiter { places: Places { standby: 0, .. } })
    }

    /// Whether one client has it alone, so that promises may keep it.
    pub(crate) fn is_exclusive_lock(&self) -> bool {
        matches!(self, Self::Lock { shared: false } | Self::Locks { shared: false, .. })
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
    let (wait, title) = ((!wanted.wait.is_zero()).then_some(wanted.wait), &wanted.title);
    match &wanted.what {
        What::Lock { shared } => {
            let lock = coordinator.lock(&wanted.name)?.label(title)?;
            one(match (wait, shared) {
                (None, false) => lock.try_acquire().await,
                (None, true) => lock.try_acquire_shared().await,
                (wait, false) => lock.acquire(wait).await.map(Some),
                (wait, true) => lock.acquire_shared(wait).await.map(Some),
            })
        }
        What::Locks { names, shared } => {
            let locks = coordinator.locks(names)?.label(title)?;
            one(match (wait, shared) {
                (None, false) => locks.try_acquire().await,
                (None, true) => locks.try_acquire_shared().await,
                (wait, false) => locks.acquire(wait).await.map(Some),
                (wait, true) => locks.acquire_shared(wait).await.map(Some),
            })
        }
        What::Semaphore { permits, count } => {
            let semaphore = coordinator.semaphore(&wanted.name, *permits)?.label(title)?;
            one(match wait {
                None => semaphore.try_acquire_many(*count).await,
                wait => semaphore.acquire_many(*count, wait).await.map(Some),
            })
        }
        What::Limiter { places } => {
            let limiter = places.of(coordinator, &wanted.name)?.label(title)?;
            let patience = wait.map_or(Patience::Never, Patience::Timeout);
            match limiter.patience(patience).enter().await? {
                Admission::Working(slot) => Ok(slot.into()),
                Admission::Refused(why) => Err(refused(why)),
            }
        }
        What::Election { value } => {
            let election = coordinator.election(&wanted.name)?.label(title)?;
            one(match wait {
                None => election.try_campaign(value).await,
                wait => election.campaign(value, wait).await.map(Some),
            })
        }
        What::Group { member, capabilities, create } => {
            let group = coordinator.group(&wanted.name)?.label(title)?;
            loop {
                match group.join_as(member, capabilities).await {
                    Err(error) if *create && error.kind() == ErrorKind::GroupMissing => {}
                    joined => return one(joined.map(Some)),
                }
                // Whoever made it meanwhile has done it for us.
                match group.create().await {
                    Err(error) if error.kind() != ErrorKind::GroupExists => {
                        return Err(error.into());
                    }
                    _ => {}
                }
            }
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

/// Why a limiter has no place for the caller.
fn refused(why: Refusal) -> Problem {
    match why {
        Refusal::StandbyFull => {
            Problem::new(Code::StandbyFull, "all slots are taken, and all places on standby")
        }
        Refusal::Replaced => {
            Problem::new(Code::Replaced, "somebody who came later stands by in its place")
        }
        _ => Problem::new(Code::Busy, "all slots are taken"),
    }
}
