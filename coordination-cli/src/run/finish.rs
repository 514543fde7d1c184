//! The end of our session.

use std::time::Duration;

use coordination::{Coordinator, State};
use tokio::time::timeout;

use crate::exit::Outcome;

/// How long the store has to be told that we are gone whom a signal ends.
const LEAVING: Duration = Duration::from_millis(500);

/// Ends the session. What is left at the store ends with it in any case: whoever is ended by a signal waits for no store that is
/// away.
pub(super) async fn finish<T>(coordinator: &Coordinator, outcome: &Outcome<T>) {
    let is_by_signal = outcome.as_ref().is_err_and(|failure| failure.signal.is_some());
    let limit = match (is_by_signal, coordinator.state().current()) {
        (false, _) => Duration::MAX,
        (true, State::Connected) => LEAVING,
        (true, _) => return,
    };
    let _ = timeout(limit, coordinator.stop()).await;
}
