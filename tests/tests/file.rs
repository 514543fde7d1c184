//! `file://` keeps the contract.

coordination_tests::conformance!(file);
