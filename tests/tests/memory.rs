//! `memory://` keeps the contract.

coordination_tests::conformance!(memory);
