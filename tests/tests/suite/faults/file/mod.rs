//! Faults of `file://`.

mod gate;
