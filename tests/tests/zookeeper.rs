//! `zookeeper://` keeps the contract.
#![cfg(feature = "zookeeper")]

coordination_tests::conformance!(zookeeper);
