//! Locks, semaphores, elections, groups and more, shared by the processes of a distributed service.
//!
//! A process opens a *session* on a store that a URL chooses: its own memory, a directory of one host, etcd,
//! ZooKeeper, Consul, Redis, PostgreSQL or MySQL. It acquires locks by name. A holder has a *guard*, which knows whether the
//! lock is still held, reports when it is lost, and carries a *fencing token* that rises with every grant.
//! Permits, leaderships and memberships are guards of the same kind.
//!
//! # Quick start
//!
//! ```
//! use std::time::Duration;
//!
//! use coordination::{Coordinator, synchronized};
//!
//! /// One at a time for each volume, in all processes that use the same store.
//! #[synchronized("vol-<id>")]
//! async fn resize(id: u32, gib: u64) -> coordination::Result<u64> {
//!     Ok(gib)
//! }
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
//! // At process boot. `file:///var/lib/app/locks` reaches all processes of a host.
//! let coordinator = Coordinator::connect("memory://").await?;
//! coordinator.install()?;
//!
//! assert_eq!(resize(7, 20).await?, 20);
//!
//! // The same by hand.
//! let lock = coordinator.lock("vol-7")?;
//! let guard = lock.acquire(Some(Duration::from_secs(5))).await?;
//! println!("writes carry the token {}", guard.token());
//! guard.release().await?;
//!
//! // At shutdown: everything held is freed at once. `stop_within` lets it be finished first.
//! coordinator.stop().await?;
//! # Ok(()) }
//! ```
//!
//! # Stores
//!
//! | URL | store | excludes | feature |
//! | --- | --- | --- | --- |
//! | `memory://[name]` | a map in this process, for tests | tasks and threads | `memory` |
//! | `file:///dir` | a directory on a local file system | processes of one host | `file` |
//! | `etcd://h1:2379,h2:2379/namespace` | etcd 3.4 or newer | processes of many hosts | `etcd` |
//! | `etcds://…` | the same by TLS | processes of many hosts | `etcd`, `tls` |
//! | `zookeeper://h1:2181,h2:2181/namespace` | ZooKeeper 3.6 or newer | processes of many hosts | `zookeeper` |
//! | `zookeeper+tls://…` | the same by TLS | processes of many hosts | `zookeeper`, `tls` |
//! | `consul://h1:8500,h2:8500/namespace` | Consul 1.8 or newer | processes of many hosts | `consul` |
//! | `consul+https://…` | the same by TLS | processes of many hosts | `consul`, `tls` |
//! | `redis://host/0`, `redis+unix:///path` | Redis 6 or newer | processes of many hosts | `redis` |
//! | `rediss://…` | the same by TLS | processes of many hosts | `redis`, `tls` |
//! | `postgres://user@h1,h2/database`, `postgresql://…` | PostgreSQL 13 or newer | processes of many hosts | `postgres` |
//! | `mysql://user@h1,h2/database`, `mariadb://…` | MariaDB 10.6, MySQL 8.0 or newer | processes of many hosts | `mysql` |
//!
//! PostgreSQL and MySQL on another host than this need `tls`, too, unless the URL turns TLS off.
//!
//! `etcd3+http` and `etcd3+https` are other names of `etcd` and `etcds`, `zk` and `kazoo` of `zookeeper`. A user
//! and a password go before the hosts: `etcd://user:password@host/namespace`. In them, `/`, `?`, `#` and `%` are
//! written percent-encoded.
//!
//! # URL options
//!
//! Every store takes these. A field of [`Config`] wins over the option of its name.
//!
//! | option | default | |
//! | --- | --- | --- |
//! | `namespace` | `coordination` | what the store's keys begin with; on etcd, ZooKeeper and Consul also the URL's path |
//! | `ttl` | `10s` | the lease asked for, 100 ms to 24 h; stores without leases ignore it |
//! | `heartbeat` | `1s` | time between heartbeats; at most a third of the granted lease |
//! | `initial_reconnect_backoff` | `0.1` | shortest delay before another try |
//! | `max_reconnect_backoff` | `60` | longest delay before another try; never more than twice the lease |
//! | `long_wait` | `30s` | whoever waits longer than this for a lock is warned of once, in the log |
//! | `require` | none | what the store must be able to do, separated by commas |
//!
//! `require` takes `processes`, `hosts`, `lease`, `restart_safe`, `power_loss_safe`, `failover_safe`,
//! `fifo`, `no_early_expiry` and `no_partition_overlap`; see [`Characteristics`]. Durations are numbers of seconds, or numbers
//! with `ms`, `s`, `m`, `h` or `d`, as in `1h30m`. An unknown option is an error that lists the known ones.
//!
//! | store | option | default | |
//! | --- | --- | --- | --- |
//! | `file` | `durable` | `false` | `true`: a grant is returned only when its token is on the disk |
//! | `file` | `network_filesystem` | `refuse` | `allow`: accept NFS and its like, at your own risk |
//! | `file` | `mode` | `0700` | `0770`: users of the directory's group share it |
//! | `etcds` | `ca`, `cert`, `key` | the system's certificates, none, none | PEM files |
//! | `etcds` | `server_name` | the host | what the server's certificate says |
//! | `etcd`, `etcds` | `password_file` | none | a file with the password, instead of one in the URL |
//! | `zookeeper+tls` | `ca`, `cert`, `key` | the system's certificates, none, none | PEM files |
//! | `zookeeper`, `zookeeper+tls` | `password_file` | none | a file with the password, instead of one in the URL |
//! | `zookeeper`, `zookeeper+tls` | `acl` | `creator` with a user, else `open` | who may use the nodes |
//! | `zookeeper`, `zookeeper+tls` | `nodes` | `kazoo` | or `curator`: whose naming of nodes is used |
//! | `consul+https` | `ca`, `cert`, `key`, `server_name` | as for `etcds` | |
//! | `consul`, `consul+https` | `token_file` | none | a file with the ACL token, instead of the URL's password |
//! | `consul`, `consul+https` | `dc` | the agent's | the datacenter |
//! | `consul`, `consul+https` | `lock_delay` | `0` | 0 to 60 s: after a session's lease ran out or an operator ended the session, how long nobody else is granted what it held |
//! | `redis` | `sentinel`, `quarantine`, `db`, `password_file` | none, the longest lease, `0`, none | see its page |
//! | `rediss` | `ca`, `cert`, `key`, `server_name` | as for `etcds` | |
//! | `postgres` | `schema`, `password_file`, `target_session_attrs` | `coordination`, none, `read-write` | see its page |
//! | `postgres` | `sslmode` | `disable` on this host, else `verify-full` | no other mode |
//! | `postgres` | `ca`, `cert`, `key`, `server_name` | as for `etcds` | |
//! | `mysql` | `password_file` | none | see its page |
//! | `mysql` | `ssl-mode` | `disabled` on this host, else `verify_identity` | no other mode |
//! | `mysql` | `ca`, `cert`, `key`, `server_name` | as for `etcds` | |
//!
//! # Features
//!
//! `memory`, `file` and `macros` (the attribute) are on by default. `testing` gives each test a coordinator of its own, which can be
//! broken on demand: the module of that name, and `docs/testing-your-code.md` in the repository. `etcd`, `zookeeper`, `consul`, `redis`, `postgres` and `mysql` are
//! off by default, because each brings the crate of a client, and building `etcd` needs the program `protoc` (Debian:
//! `protobuf-compiler` and `libprotobuf-dev`).
//!
//! `tls` brings TLS for these stores, with aws-lc-rs as the provider of cryptography, and `tls-ring` with ring, also where both are on.
//! Building either needs a C compiler, so both are off by default. Without them a URL that asks for TLS is refused
//! ([`ErrorKind::Unsupported`]), and so is PostgreSQL or MySQL on another host whose URL does not turn TLS off: nothing falls back to
//! plain text. ZooKeeper's client crate brings aws-lc-rs with `tls-ring`, too. The client crates of etcd, MySQL and ZooKeeper use the
//! process's default provider of `rustls` where the program has set one; for the last two the library sets it if nobody has. With `consul`
//! and `tls-ring` alone, a program that uses `reqwest` itself, and without its feature `rustls` or `native-tls`, has to set one: each
//! `reqwest::Client` panics otherwise, also one for plain HTTP.
//!
//! With `metrics`, off by default too, the library counts and measures what it does
//! for the recorder of the `metrics` facade that the program has installed, such as an exporter for Prometheus; see
//! `docs/metrics.md` in the repository. With `stream`, what is watched is also a stream: [`Terms`], [`ValueWatch`], [`GroupWatch`],
//! [`RejoiningMembership`] and [`StateWatch`] have `into_stream`.
//!
//! # Systems
//!
//! The library is tested on Linux. For macOS, FreeBSD and Windows it is compiled, not run, with all features; on Windows
//! `file://` and `redis+unix://` are not there, and connecting fails with [`ErrorKind::Unsupported`].
//!
//! # Where to look
//!
//! * [`Coordinator`]: connect, install as the global one, make locks, stop. [`Config`] has the same settings
//!   as data, for a service's configuration file.
//! * [`Lock`]: acquire exclusively or shared, wait or fail fast, list holders, break. [`MultiLock`]: several
//!   at once. [`Cohort`]: many tasks of one process that pass a lock on in memory. [`Grant`]: what all other guards have in common.
//!   [`Lock::with`]: a block under a lock, as [`synchronized`] has a function under it.
//! * [`Semaphore`], [`Limiter`]: at most N at a time. [`RateLimiter`], [`OncePer`]: at most N in a period.
//! * [`Group`] and [`Partitioner`]: who is there, and who has which keys. [`Election`]: who leads.
//! * [`Barrier`], [`DoubleBarrier`], [`Latch`]: wait for each other. [`SharedValue`], [`Counter`]: small
//!   values.
//! * [`Coordinator::in_use`]: the names under which somebody holds or waits, for each [`Recipe`]; [`Overview`]: and who they are.
//! * [`Coordinator::prune`]: removes what unused names have left at the store.
//! * [`synchronized`]: the attribute. [`Template`]: templates of names that are known only at run time.
//! * [`FencingToken`], [`TurnToken`] and [`Fence`]: how a resource refuses the late writes of a former holder.
//! * [`Error`], [`ErrorKind`], [`Effect`]: what went wrong, and whether it may have taken effect.
//! * [`LossWatch`]: tells a task whether a grant was lost, without keeping the grant. [`Place`]: tells how many are ahead of a call
//!   that waits.
//! * [`State`] and [`StateWatch`]: the state of the session, for health checks.
//! * [`blocking`]: the same calls for programs without async code.
//!
//! # What a lock cannot do
//!
//! A holder that is paused, or whose request is in flight, can write after its lock went to somebody else.
//! [`Grant::is_held`] and [`Grant::protect`] make such late writes rare. Only the resource can exclude them, by
//! refusing tokens smaller than the largest it has seen. Locks are **not re-entrant**. The session stays open as
//! long as the [`Coordinator`], a clone of it, a [`Lock`] or a guard is alive; [`Coordinator::stop`] ends it even
//! while guards are alive, and loses them, and [`Coordinator::stop_within`] lets them be finished first.
//!
//! `docs/guarantees.md` in the repository states what is promised, clause by clause.
#![forbid(unsafe_code)]
// Where the documentation is published, each item says which feature it needs.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(
    not(any(feature = "_local", feature = "_network")),
    expect(unused, reason = "a build without a store only says which feature to turn on")
)]

mod backend;
mod builder;
mod canary;
mod characteristics;
mod config;
mod coordinator;
mod duration;
mod env;
mod error;
mod events;
#[cfg(all(test, coordination_internals))]
mod fuzz;
mod global;
mod key;
mod metrics;
#[cfg(coordination_internals)]
#[doc(hidden)]
pub mod panics;
#[cfg(not(coordination_internals))]
mod panics;
mod recipe;
mod retry;
mod serialize;
mod session;
#[cfg(all(coordination_internals, feature = "memory"))]
#[doc(hidden)]
pub mod simulation;
#[cfg(feature = "stream")]
mod stream;
#[cfg(all(coordination_internals, feature = "memory"))]
#[doc(hidden)]
pub mod suite;
mod template;
mod time;
mod token;
mod url;

#[cfg(feature = "macros")]
#[doc(hidden)]
#[path = "private.rs"]
pub mod __private;
pub mod blocking;
#[cfg(feature = "testing")]
pub mod testing;

#[cfg(feature = "macros")]
/// Runs a function under a lock whose name is made from the function's arguments, or under several locks.
///
/// # Examples
///
/// With the global coordinator:
///
/// ```
/// use coordination::{Coordinator, synchronized};
///
/// struct Share {
///     id: String,
/// }
///
/// #[synchronized("<f_name>-{share.id}")]
/// async fn extend(share: &Share, gib: u64) -> coordination::Result<u64> {
///     // Nobody else extends this share.
///     Ok(gib + 1)
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
/// Coordinator::connect("memory://").await?.install()?;
/// assert_eq!(extend(&Share { id: "1b8".into() }, 20).await?, 21);
/// # Ok(()) }
/// ```
///
/// With a coordinator of its own, a timeout, and the guard for its token:
///
/// ```
/// use coordination::{Coordinator, ErrorKind, FencingToken, synchronized};
///
/// struct Service {
///     coordinator: Coordinator,
/// }
///
/// impl Service {
///     #[synchronized("vol-{id:04}", coordinator = self.coordinator, timeout = "50ms", guard = guard)]
///     async fn format(&self, id: u32) -> coordination::Result<FencingToken> {
///         assert_eq!(guard.name(), "vol-0007");
///         Ok(guard.token())
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
/// let service = Service { coordinator: Coordinator::connect("memory://").await? };
/// let other = Coordinator::connect("memory://").await?;
///
/// let held = other.lock("vol-0007")?.acquire(None).await?;
/// let error = service.format(7).await.unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::Timeout);
///
/// let before = held.token();
/// held.release().await?;
/// assert!(service.format(7).await? > before);
/// # Ok(()) }
/// ```
///
/// Several locks, and an error type of one's own:
///
/// ```
/// use coordination::{Coordinator, synchronized};
///
/// #[derive(Debug)]
/// enum BankError {
///     Lock(coordination::Error),
///     SameAccount,
/// }
///
/// impl From<coordination::Error> for BankError {
///     fn from(error: coordination::Error) -> Self {
///         Self::Lock(error)
///     }
/// }
///
/// // Acquired in the order of their names, so that two transfers cannot deadlock.
/// #[synchronized("account-<from>", "account-<to>", guard = guards)]
/// async fn transfer(from: u32, to: u32) -> Result<Vec<String>, BankError> {
///     if from == to {
///         return Err(BankError::SameAccount);
///     }
///     Ok(guards.iter().map(|guard| guard.name().to_owned()).collect())
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), BankError> {
/// Coordinator::connect("memory://").await?.install()?;
/// assert_eq!(transfer(2, 1).await?, ["account-1", "account-2"]);
/// assert!(matches!(transfer(1, 1).await, Err(BankError::SameAccount)));
/// # Ok(()) }
/// ```
///
/// A function without `async` waits on its thread:
///
/// ```
/// use coordination::{blocking, synchronized};
///
/// #[synchronized("counter-<id>", timeout = "5s")]
/// fn count(id: u32) -> coordination::Result<u32> {
///     Ok(id + 1)
/// }
///
/// fn main() -> coordination::Result<()> {
///     let coordinator = blocking::Coordinator::connect("memory://")?;
///     coordinator.install()?;
///     assert_eq!(count(7)?, 8);
///     coordinator.stop()
/// }
/// ```
///
/// # Reference
///
pub use coordination_macros::synchronized;

/// The examples of [`synchronized`], which its own crate cannot run, as it does not depend on this one.
#[cfg(all(doctest, feature = "macros"))]
#[doc = include_str!("synchronized.md")]
struct Synchronized;

/// The example of the page that is published with the crate.
#[cfg(all(doctest, feature = "macros", feature = "memory"))]
#[doc = include_str!("../README.md")]
struct Readme;

pub use builder::Builder;
pub use characteristics::{
    Characteristics, Durability, Liveness, LossDetection, Requirement, Scope, ServerInfo,
};
pub use config::Config;
pub use coordinator::{Coordinator, Stopped};
pub use duration::parse_duration;
pub use error::{Effect, Error, ErrorKind, LossReason, NameError, Result};
pub use recipe::barrier::Barrier;
pub use recipe::double_barrier::{DoubleBarrier, Inside};
pub use recipe::election::{Candidate, Election, ElectionEvent, Leadership, Term, Terms};
pub use recipe::engine::grant::{Grant, TimedRelease};
pub use recipe::engine::loss::LossWatch;
pub use recipe::engine::place::Place;
pub use recipe::engine::slots::Occupant;
pub use recipe::group::{
    Capabilities, Group, GroupEvent, GroupWatch, Member, Members, Membership, Presence,
    RejoiningMembership,
};
pub use recipe::in_use::Recipe;
pub use recipe::latch::Latch;
pub use recipe::limiter::{Admission, Limiter, Patience, Refusal, Standing, WorkSlot};
pub use recipe::lock::{Cohort, CohortGuard, Contender, Lock, LockGuard};
pub use recipe::multi::{MultiGuard, MultiLock};
pub use recipe::once::{Claim, LastClaim, OncePer};
pub use recipe::overview::{InUse, Overview, Usage};
pub use recipe::partition::Partitioner;
pub use recipe::partition::ring::{HashRing, UnknownNode};
pub use recipe::rate_limiter::{Attempt, RateLimiter, RatePermit, RateSettings};
pub use recipe::semaphore::{Permit, Semaphore};
pub use recipe::value::{Counter, SharedValue, ValueEvent, ValueWatch, Version, Versioned};
pub use recipe::work::{
    Ack, ClaimId, ClaimOptions, ClaimView, Claimant, Collected, ItemId, ListOptions, NewItem,
    WorkClaim, WorkItem, WorkLimits, WorkQueue, WorkStats,
};
pub use session::{CutOff, State, StateWatch};
pub use template::Template;
pub use time::BootInstant;
pub use token::{Fence, FencingToken, Stale, TurnToken};
