//! Texts that people, files and stores give us, and that may be anything. What is private to a store is fuzzed
//! in its folder.
//!
//! A new target is a test named `fuzz_<parser>`: `tests/fuzz` finds it by that.

mod name;
#[cfg(feature = "memory")]
mod recipes;
mod template;
mod url;
