//! The clock of all events that several processes record.

/// Nanoseconds on the clock shared by all processes of this machine.
pub use coordination_history::now as now_ns;
