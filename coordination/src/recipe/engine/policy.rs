//! Whose turn it is, for recipes in which that depends on the whole queue.

use crate::backend::{Blocker, Data, Entry, Listing};
use crate::error::{Error, Result};

/// Decides from the whole queue what one entry in it is to do.
///
/// The listing has all entries before that one. Of the entries after it, some that come or go may be missing.
///
/// The policy may be asked about a stale listing. If it then decides anything but [`Wait`](Decision::Wait), the queue is read
/// again, and only what the policy decides from the fresh listing is done.
pub(crate) trait Policy: Send + Sync {
    /// # Errors
    ///
    /// An error refuses the entry: it is removed, and the caller gets the error.
    fn decide(&self, listing: &Listing, own: &Entry) -> Result<Decision>;

    /// Whether what the entry has [taken](Decision::Take), or that it was [granted](Decision::Grant), is right at a server that was not
    /// asked when that was decided: whether it would be right if it were decided there.
    fn stands(&self, listing: &Listing, own: &Entry) -> Result<bool> {
        Ok(matches!(self.decide(listing, own)?, Decision::Grant))
    }

    /// Whether its caller waits while the store refuses for now to keep what was decided: not if he wants to be told at once.
    fn is_patient(&self) -> bool {
        true
    }

    /// Hears why the store refuses what was decided, while the entry waits on; `None`: the store refuses no longer.
    fn refused(&self, _by_store: Option<&Error>) {}
}

/// What a [`Policy`] decides.
pub(crate) enum Decision {
    /// Wait until the queue changes, then ask again.
    Wait,
    /// Wait until this earlier entry has [decided](Decision::Publish) or is gone, then ask again.
    WaitFor(Blocker),
    /// Store this data with the entry and make the entry shared, then ask again. By becoming shared the entry tells the entries
    /// after it that it has decided.
    Publish(Data),
    /// The turn has come, as soon as this data is stored with the entry, which is made shared at the same time.
    Take(Data),
    /// The turn has come.
    Grant,
    /// Write this as the queue's value, because the queue has another value or none, then ask again.
    Initialize(Data),
}
