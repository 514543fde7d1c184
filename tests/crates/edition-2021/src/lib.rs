//! An empty library. The package exists for `tests/drops.rs`, which has to be compiled in edition 2021.
