//! `etcd://` keeps the contract.
#![cfg(feature = "etcd")]

coordination_tests::conformance!(etcd);
