//! Looks for all entries that a session holds, in one request: whether one is gone, and no notification of that has come.
//!
//! On a store that can [list](crate::backend::Entries::missing) what a session has, one task for all holders asks for this list, once
//! in each interval. A holder whose entry the list lacks is told to look for the entry itself, and the entry is lost only if it is not
//! found then: a server that lags behind may have answered, which did not know the entry yet. So a thousand held entries cost the
//! store no more requests than one.
//!
//! No holder relies on this task. If the store has given no list for as long as a holder may go without a look (the answer would be too
//! long, or the store refuses it), each holder looks for its own entry. The lists come a little more often than that, so that each
//! entry is looked for as often as if its holder were alone.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::{Lease, Session, may_pass};
use crate::backend::EntryId;
use crate::canary::{Canary, sings};
use crate::error::Error;

/// The shares of the longest interval after which a session asks for the next list.
const LISTS: RangeInclusive<f64> = 0.7..=0.8;
/// The shares of the longest interval after which a holder looks for its own entry, if the store has given no list. They are larger
/// than those of lists, so that a list may take a tenth of the interval.
const OWN_LOOKS: RangeInclusive<f64> = 0.9..=1.0;

impl Session {
    /// Sees to it that all entries that are held under this lease are looked for together, as long as there are any.
    pub(crate) fn look_for_all(self: &Arc<Self>, lease: &Arc<Lease>) {
        if !lease.begin_looks() {
            return;
        }
        let (session, lease) = (Arc::clone(self), Arc::clone(lease));
        self.spawn(async move {
            tokio::select! {
                biased;
                _ = lease.ended() => {}
                () = session.ask_for_lists(&lease) => {}
            }
        });
    }

    /// How long the holder of this entry goes without a look, if the store gives no list of all held entries.
    pub(crate) fn own_look_interval(&self, lease: &Lease, entry: &EntryId) -> Duration {
        self.interval_of(lease, &OWN_LOOKS, entry)
    }

    async fn ask_for_lists(&self, lease: &Lease) {
        let interval = self.interval_of(lease, &LISTS, &lease.id);
        let mut delays = self.retry_delays(lease.ttl);
        let mut pause = interval;
        loop {
            tokio::time::sleep(pause).await;
            let Some(held) = lease.held_or_end_looks() else { return };
            pause = interval;
            let asked = Instant::now();
            let listing = self.backend.missing(lease.id, &held);
            match self.attempt(lease.ttl, "watch", listing).await {
                Ok(Some(missing)) => {
                    delays = self.retry_delays(lease.ttl);
                    if sings(Canary::UnlistedIsLost) {
                        missing.iter().for_each(|id| lease.entry_lost(id));
                    }
                    lease.listed(asked, &missing);
                }
                // Each holder looks for its own entry.
                Ok(None) => {}
                Err(error) => {
                    if let Some(reason) = error.loss_reason() {
                        return lease.lose(reason);
                    }
                    tracing::debug!(%error, "no list of what is held");
                    if is_asked_again_soon(&error, asked.elapsed(), interval) {
                        pause = delays.next_delay();
                    }
                }
            }
        }
    }
}

/// Whether a list is asked for again soon that has failed with this error, after so long.
///
/// If no answer came in time, the answer may be long, and the connection slow. It may still be on its way: on ZooKeeper a request cannot
/// be taken back, and heartbeats wait behind its answer. If the next one were asked for at once, there would soon be no answer to a
/// heartbeat in time, and the session would be lost. So the holders look for themselves, one after the other.
fn is_asked_again_soon(error: &Error, took: Duration, interval: Duration) -> bool {
    may_pass(error) && took < interval / 10
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn a_list_that_is_late_is_not_asked_for_again_at_once() {
        let (moment, interval) = (Duration::from_millis(100), Duration::from_millis(3_500));
        let error = |kind| Error::new(kind, "watch", "no answer");
        let is_soon = |kind, took| is_asked_again_soon(&error(kind), took, interval);
        assert!(is_soon(ErrorKind::Unavailable, moment));
        assert!(!is_soon(ErrorKind::Unavailable, 10 * moment));
        assert!(!is_soon(ErrorKind::Permission, moment));
    }
}
