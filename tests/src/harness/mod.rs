//! Starts, pauses, cuts off and kills the servers and client processes that the tests run against.
//!
//! Faults are made from outside: signals for processes ([`child`]), a TCP proxy for the network ([`proxy`]),
//! administration commands for the store ([`Server`], and [`etcd`] for one). The library under test takes no part in
//! the faults. Its types appear in [`Server`], whose bounds and refusals are in the library's words; the clock
//! ([`log`]) is the one by which histories are written.
//!
//! Every process is on loopback, or in a network namespace that is removed with the test ([`netns`]), and has a
//! directory of its own. Every process ends with the test: it is killed on drop, and by the kernel if the test process
//! itself dies.

pub mod certs;
pub mod child;
mod connecting;
pub mod consul;
pub mod descriptors;
pub mod etcd;
mod http;
pub mod log;
mod mounted;
pub mod mysql;
mod named;
pub mod netns;
pub mod ports;
pub mod postgres;
mod process;
pub mod proxy;
pub mod redis;
mod rerun;
mod restless;
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
pub use mounted::Mounted;
pub use mysql::{Mysql, MysqlOptions};
pub use named::Named;
pub use postgres::{Pooler, Postgres, PostgresOptions};
pub use process::Node;
pub use proxy::{Direction, Mode, Protocol, Proxy, Unit};
pub use redis::Redis;
pub(crate) use rerun::note;
pub use rerun::{Outcome, on_threads, rerun_alone, rerun_if_starved, rerun_on_threads};
pub use scheduler_lag::{SchedulerLag, Withheld, waited, waited_between};
pub use scratch::Scratch;
pub use server::{Server, Setup};
pub use violation::violated;
pub use wait::{eventually, eventually_async, wait_until};
pub use wall_clock::WallClock;
pub use worker::Worker;
pub use zookeeper::{Zookeeper, ZookeeperOptions};
