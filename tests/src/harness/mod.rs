//! Starts, pauses, cuts off and kills the servers and client processes that the tests use.
//!
//! Faults are caused from outside: processes get signals ([`child`]), the network has a TCP proxy ([`proxy`]), and
//! stores get commands of an administrator ([`Server`], for instance [`etcd`]). The library under test does not cause
//! faults itself. Only its types appear here: in [`Server`], which gives bounds and refusals as the library has them,
//! and in [`log`], whose clock histories use.
//!
//! All processes are on loopback, or in a network namespace that is removed with the test ([`netns`]), and each has a
//! directory of its own. All processes end with the test: they are killed on drop, and by the kernel if the test
//! process itself dies.

pub mod certs;
pub mod child;
mod connecting;
pub mod consul;
pub mod descriptors;
pub mod etcd;
mod executable;
mod http;
pub mod log;
mod mounted;
pub mod mysql;
mod named;
pub mod netns;
pub mod once_more;
pub mod ports;
pub mod postgres;
mod process;
pub mod proxy;
pub mod redis;
mod rerun;
mod restless;
mod rights;
mod room;
mod scheduler_lag;
pub mod scratch;
mod server;
mod violation;
pub mod wait;
mod wall_clock;
pub mod worker;
pub mod zookeeper;

pub use certs::{Certificates, Identity};
pub use child::{Child, Launch};
pub use connecting::Connecting;
pub use consul::{Consul, ConsulOptions, ConsulTls};
pub use etcd::{Etcd, EtcdOptions, Tls};
pub use executable::{copy_program, write_script};
pub use mounted::Mounted;
pub use mysql::{Mysql, MysqlOptions};
pub use named::Named;
pub use postgres::{Pooler, Postgres, PostgresOptions};
pub use process::Node;
pub use proxy::{Direction, Mode, Protocol, Proxy, Unit};
pub use redis::Redis;
pub(crate) use rerun::note;
pub use rerun::{Outcome, on_threads, rerun_alone, rerun_if_starved, rerun_on_threads};
pub use scheduler_lag::{SchedulerLag, SessionThreads, Withheld, waited, waited_between};
pub use scratch::Scratch;
pub use server::{Server, Setup};
pub use violation::{violated, violated_unless_starved};
pub use wait::{eventually, eventually_async, wait_until};
pub use wall_clock::WallClock;
pub use worker::Worker;
pub use zookeeper::{Zookeeper, ZookeeperOptions};
