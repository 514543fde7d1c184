//! Faults of `postgres://`.

mod soak;
