//! How far the stop has come.

/// What is still done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// All is done that is asked for.
    Serving,
    /// Nothing new is granted.
    Draining,
    /// Nothing is renewed either.
    Ending,
}
