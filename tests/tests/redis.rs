//! `redis://` keeps the contract.
#![cfg(feature = "redis")]

coordination_tests::conformance!(redis);
