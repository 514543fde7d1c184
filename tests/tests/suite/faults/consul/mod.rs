//! Faults of `consul://`.

mod soak;
