//! What `tests/run` runs: every clause on every store, and the fault rows on `file://` and on one etcd server.

mod descriptors;
mod events;
pub(crate) mod examples;
#[cfg(feature = "redis")]
mod full_redis;
mod harness;
#[cfg(feature = "etcd")]
mod interop_etcd;
#[cfg(feature = "zookeeper")]
mod interop_zookeeper;
mod listed;
mod macros;
mod metrics;
#[cfg(feature = "zookeeper")]
mod name_server_zookeeper;
mod names;
pub(crate) mod panics;
mod performance;
#[cfg(feature = "postgres")]
mod postgres_only;
mod postgres_operators;
#[cfg(feature = "postgres")]
mod prepared_postgres;
#[cfg(feature = "redis")]
mod publishing_redis;
#[cfg(feature = "redis")]
mod quarantine_redis;
mod requests;
mod settings;
#[cfg(feature = "redis")]
mod settling_redis;
#[cfg(feature = "redis")]
mod short_ways_redis;
#[cfg(feature = "zookeeper")]
mod shorter_leases_zookeeper;
mod store_suite;
pub(crate) mod testing;
pub(crate) mod work_model;
mod work_times;

coordination_tests::conformance!(gate);
