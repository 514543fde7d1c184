//! The clock by which all processes of a test record events.

/// The time in nanoseconds on a clock that all processes of this machine share.
pub use coordination_history::now as now_ns;
