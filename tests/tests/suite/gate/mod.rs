//! What `tests/run` runs: every clause on every store, and one fault at a time on file and on one server of etcd.

mod examples;
#[cfg(feature = "etcd")]
mod faults_etcd;
mod faults_file;
mod harness;
#[cfg(feature = "etcd")]
mod interop_etcd;
#[cfg(feature = "zookeeper")]
mod interop_zookeeper;
mod macros;
mod names;
mod requests;
mod store_suite;

coordination_tests::conformance!(gate);
