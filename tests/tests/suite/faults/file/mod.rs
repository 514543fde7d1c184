//! Faults of `file://`.

mod gate;
mod soak;
