//! What is counted and measured, for a recorder of the `metrics` facade; nothing without the feature of that name.
//!
//! All numbers pass through here, and what calls this reads the same with the feature and without it. The metrics stand in
//! `names.rs`, and the page `docs/metrics.md` explains each of them.
//!
//! * **No label has a name.** There may be millions of names; of templates there are as many as the program has, and beyond
//!   a limit they count as one.
//! * **A gauge goes down as often as it went up**, and at the same recorder: a [`Raised`] remembers where it was raised, and
//!   lowers it once, at the latest when it is dropped.
//! * **A recorder is the program's own code.** It is called when the store has been told, and under no mutex of ours. A panic in
//!   it goes no further. One that blocks holds up who calls it, heartbeats among them.
//! * **A forked child records nothing** of what its parent did: a mutex of the recorder may be locked for ever there.

#[cfg(feature = "metrics")]
mod heard;
#[cfg(feature = "metrics")]
mod names;
#[cfg(not(feature = "metrics"))]
mod silent;

#[cfg(feature = "metrics")]
pub(crate) use heard::{Meters, Raised, SessionGauge, may_be_heard};
#[cfg(not(feature = "metrics"))]
pub(crate) use silent::{Meters, Raised, SessionGauge, may_be_heard};

/// How an acquire ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The caller has the guard.
    Acquired,
    /// Somebody else had it, and the caller did not wait.
    NotFree,
    /// Somebody else had it until the caller's time was over.
    TimedOut,
    /// The store refused or did not answer, or the session ended for good.
    Failed,
    /// The caller dropped the future.
    Cancelled,
}
