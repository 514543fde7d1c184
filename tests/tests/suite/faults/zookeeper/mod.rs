//! Faults of `zookeeper://`.

mod soak;
