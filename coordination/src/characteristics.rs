//! What a store can promise, as data.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::Serialize;

use crate::duration;
use crate::error::Error;
use crate::serialize::{shown_as_word, words};

/// How far exclusion reaches.
///
/// # Examples
///
/// ```
/// use coordination::Scope;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
/// # let coordinator = coordination::Coordinator::connect("memory://").await?;
/// // A service that runs on one host only may do with less than one of many hosts.
/// let scope = coordinator.characteristics().scope;
/// assert!(scope < Scope::Processes, "`memory://` reaches no other process");
/// assert_eq!(scope.as_str(), "threads");
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Scope {
    /// Tasks and threads of one process.
    Threads,
    /// Processes of one host.
    Processes,
    /// Processes of many hosts.
    Hosts,
}

words! { Scope:
    Threads = "threads",
    Processes = "processes",
    Hosts = "hosts",
}

/// What survives a fault of the store.
///
/// # Examples
///
/// ```
/// use coordination::Durability;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
/// # let coordinator = coordination::Coordinator::connect("memory://").await?;
/// // Nothing of `memory://` is left when its process ends, so that nobody could still hold a lock.
/// let restarted = coordinator.characteristics().survives_restart;
/// assert_ne!(restarted, Durability::Unknown);
/// println!("grants survive a restart of the store: {}", restarted.as_str());
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Durability {
    /// Grants survive.
    Yes,
    /// Grants do not survive.
    No,
    /// The store has nothing that could fail in this way.
    NotApplicable,
    /// It depends on the store's configuration, which the client cannot see.
    Unknown,
}

words! { Durability:
    Yes = "yes",
    No = "no",
    NotApplicable = "not_applicable",
    Unknown = "unknown",
}

/// What a holder's lock depends on.
///
/// # Examples
///
/// ```
/// use coordination::Liveness;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
/// # let coordinator = coordination::Coordinator::connect("memory://").await?;
/// // With a lease, a holder that is cut off loses its lock in time; else it has the lock as long as it lives.
/// match coordinator.characteristics().liveness {
///     Liveness::Lease => println!("a hanging process frees its locks by itself"),
///     Liveness::Process => println!("a hanging process has to be ended"),
///     _ => {}
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Liveness {
    /// A lease with a local deadline: a holder that is paused or cut off loses the lock in time.
    Lease,
    /// The process itself: it holds the lock until it releases it or dies, also while it is paused.
    Process,
}

words! { Liveness:
    Lease = "lease",
    Process = "process",
}

/// How a holder learns that somebody else took its lock away, or ended its session.
///
/// # Examples
///
/// ```
/// use coordination::LossDetection;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
/// # let coordinator = coordination::Coordinator::connect("memory://").await?;
/// // How long to wait after a lock was broken, before the next holder begins.
/// match coordinator.characteristics().loss_detection {
///     LossDetection::Watch => println!("the former holder is told at once"),
///     _ => println!("the former holder is told within {:?}", coordinator.loss_delay()),
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LossDetection {
    /// The store sends a notification at once.
    Watch,
    /// The answer to the holder's next heartbeat says so.
    Heartbeat,
}

words! { LossDetection:
    Watch = "watch",
    Heartbeat = "heartbeat",
}

shown_as_word! { Scope, Durability, Liveness, LossDetection }

/// What the connected store promises; see each backend's page for the reasons.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
/// use coordination::{Coordinator, Scope};
///
/// let coordinator = Coordinator::connect("memory://").await?;
/// assert_eq!(coordinator.characteristics().scope, Scope::Threads);
///
/// // State needs, not hopes: this fails, as memory does not reach other hosts.
/// assert!(Coordinator::connect("memory://?require=hosts").await.is_err());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Characteristics {
    /// How far exclusion reaches.
    pub scope: Scope,
    /// What a holder's lock depends on: a lease, or its process.
    pub liveness: Liveness,
    /// How soon a holder is told that its lock was taken away.
    pub loss_detection: LossDetection,
    /// Grants survive a restart of the store's process.
    pub survives_restart: Durability,
    /// Grants survive loss of power.
    pub survives_power_loss: Durability,
    /// Grants survive fail-over to another server.
    pub survives_failover: Durability,
    /// Waiters are served in the order in which they arrived at the store.
    pub fifo: bool,
    /// True: fencing tokens rise even after the store has lost its data. False: only as long as it keeps its
    /// data.
    pub fencing_survives_data_loss: bool,
    /// Why the store might end a session before its lease is over by this machine's clock; `None` if no reason is known.
    pub early_expiry: Option<&'static str>,
    /// Why two clients may hold a lock at once while servers of the store are cut off from each other, and what to do about it;
    /// `None` if no reason is known.
    pub partition_overlap: Option<&'static str>,
    /// Names longer than this many bytes, once encoded, are stored as a hash beside the full name.
    pub max_plain_name: usize,
    /// The shortest lease the store grants.
    #[serde(serialize_with = "duration::option::serialize")]
    pub min_ttl: Option<Duration>,
}

/// Why a lease may be over before the local deadline of a session, where the system has no clock that goes on in suspend.
const STANDS_STILL: &str = "this system's clocks stand still while the machine is suspended";

impl Characteristics {
    /// What the store promises to a client whose clock goes on in suspend, or stands still (A4). A reason of the store itself is
    /// told before that.
    pub(crate) fn by_clock(self, counts_suspend: bool) -> Self {
        let stands_still = self.liveness == Liveness::Lease && !counts_suspend;
        Self { early_expiry: self.early_expiry.or(stands_still.then_some(STANDS_STILL)), ..self }
    }
}

/// What a store's server said of itself when this process first connected. Later connections may lead to another server.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
/// # let coordinator = coordination::Coordinator::connect("memory://").await?;
/// let server = coordinator.server_info();
/// match server.version {
///     Some(version) => println!("the server's version is {version}"),
///     None => println!("there is no server, or it does not tell its version"),
/// }
/// assert_eq!(server.clock_ahead_ms, None, "`memory://` has no clock of its own");
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ServerInfo {
    /// Its version, in its own words. `None`: there is no server, or it does not say, as `ZooKeeper`.
    pub version: Option<String>,
    /// By how many milliseconds its wall clock is ahead of this host's; negative: behind. It may be wrong by the time that a request took.
    /// `None`: there is no server, or connecting does not tell: etcd, `ZooKeeper` and Consul.
    pub clock_ahead_ms: Option<i64>,
}

/// By how many milliseconds a server's wall clock is ahead of ours that shows this now, in microseconds since 1970.
#[cfg(any(feature = "redis", feature = "postgres", feature = "mysql"))]
pub(crate) fn ahead_ms(server_micros: u64) -> i64 {
    let signed = |micros: u64| i64::try_from(micros).unwrap_or(i64::MAX);
    signed(server_micros).saturating_sub(signed(crate::env::unix_micros())) / 1_000
}

/// Whether a store meets a requirement.
type Test = fn(&Characteristics) -> bool;

/// The names that `require=` takes, with their tests.
const REQUIREMENTS: [(&str, Test); 9] = [
    ("processes", |c| c.scope >= Scope::Processes),
    ("hosts", |c| c.scope >= Scope::Hosts),
    ("lease", |c| c.liveness == Liveness::Lease),
    ("restart_safe", |c| {
        c.survives_restart != Durability::No && c.survives_restart != Durability::Unknown
    }),
    ("power_loss_safe", |c| c.survives_power_loss == Durability::Yes),
    ("failover_safe", |c| c.survives_failover == Durability::Yes),
    ("fifo", |c| c.fifo),
    ("no_early_expiry", |c| c.early_expiry.is_none()),
    ("no_partition_overlap", |c| c.partition_overlap.is_none()),
];

/// One thing a program needs of its store: an item of `require=`.
///
/// # Examples
///
/// ```
/// use coordination::Requirement;
///
/// let requirement: Requirement = "power_loss_safe".parse()?;
/// assert_eq!(requirement.name(), "power_loss_safe");
///
/// // The error lists those that are known.
/// let error = "fast".parse::<Requirement>().unwrap_err();
/// assert!(error.to_string().contains("power_loss_safe"));
/// # Ok::<_, coordination::Error>(())
/// ```
#[derive(Clone, Copy)]
pub struct Requirement {
    name: &'static str,
    holds: Test,
}

impl Requirement {
    /// The requirement's name, as in `require=`.
    pub fn name(&self) -> &'static str {
        self.name
    }

    pub(crate) fn holds(&self, characteristics: &Characteristics) -> bool {
        (self.holds)(characteristics)
    }
}

impl fmt::Debug for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl FromStr for Requirement {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        REQUIREMENTS
            .iter()
            .find(|(name, _)| *name == text)
            .map(|&(name, holds)| Self { name, holds })
            .ok_or_else(|| {
                let known = REQUIREMENTS.map(|(name, _)| name).join(", ");
                Error::config(format!(
                    "unknown characteristic {text:?} in `require`; known are {known}"
                ))
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STORE: Characteristics = Characteristics {
        scope: Scope::Hosts,
        liveness: Liveness::Lease,
        loss_detection: LossDetection::Watch,
        survives_restart: Durability::Yes,
        survives_power_loss: Durability::Yes,
        survives_failover: Durability::Yes,
        fifo: true,
        fencing_survives_data_loss: true,
        early_expiry: None,
        partition_overlap: None,
        max_plain_name: 200,
        min_ttl: None,
    };

    #[test]
    fn a_clock_that_stands_still_in_suspend_is_told_of_where_there_are_leases() {
        let process = Characteristics { liveness: Liveness::Process, ..STORE };
        let early = Characteristics { early_expiry: Some("of the store"), ..STORE };
        for store in [&STORE, &process, &early] {
            assert_eq!(store.clone().by_clock(true), *store);
        }
        assert_eq!(STORE.by_clock(false).early_expiry, Some(STANDS_STILL));
        assert_eq!(process.clone().by_clock(false), process);
        assert_eq!(early.clone().by_clock(false), early);
        let asked: Requirement = "no_early_expiry".parse().expect("it is known");
        assert!(asked.holds(&STORE) && !asked.holds(&STORE.by_clock(false)));
    }
}
