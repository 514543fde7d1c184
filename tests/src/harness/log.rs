//! The clock of everything that several processes tell of.

/// Nanoseconds on the clock shared by all processes of this machine.
pub use coordination_history::now as now_ns;
