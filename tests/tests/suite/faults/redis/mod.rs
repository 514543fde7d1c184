//! Faults of `redis://`.

mod soak;
