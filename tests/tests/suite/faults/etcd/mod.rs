//! Faults of `etcd://`.

mod gate;
mod soak;
