//! An empty library. The package exists only for its test `tests/drops.rs`, which has to be compiled in edition 2021.
