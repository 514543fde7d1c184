//! Faults of `mysql://`.

mod soak;
