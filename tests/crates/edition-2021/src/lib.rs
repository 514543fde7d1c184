//! Nothing but a place for `tests/drops.rs`, which is compiled in edition 2021.
