//! `consul://` keeps the contract.
#![cfg(feature = "consul")]

coordination_tests::conformance!(consul);
