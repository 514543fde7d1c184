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

mod memory {
    coordination_tests::conformance!(gate memory);
}

mod file {
    coordination_tests::conformance!(gate file);
}

#[cfg(feature = "etcd")]
mod etcd {
    coordination_tests::conformance!(gate etcd);
}

#[cfg(feature = "zookeeper")]
mod zookeeper {
    coordination_tests::conformance!(gate zookeeper);
}

#[cfg(feature = "consul")]
mod consul {
    coordination_tests::conformance!(gate consul);
}

#[cfg(feature = "redis")]
mod redis {
    coordination_tests::conformance!(gate redis);
}
