//! The end of our session.

use std::time::Duration;

use coordination::{Coordinator, State};
use tokio::time::timeout;

use crate::exit::Outcome;

/// How long the store has to be told that we are gone whom a signal ends, or who have waited in vain.
const LEAVING: Duration = Duration::from_millis(500);

/// What comes to its end with our session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum After {
    /// A wait: at most a place in a queue is left at the store.
    Wait,
    /// All else.
    Work,
}

/// Ends the session. What is left at the store ends with it in any case: whoever is ended by a signal, or was to wait for so long only,
/// does not wait for a store that is away.
pub(super) async fn finish<T>(coordinator: &Coordinator, outcome: &Outcome<T>, after: After) {
    let is_by_signal = outcome.as_ref().is_err_and(|failure| failure.signal.is_some());
    let is_short = is_by_signal || after == After::Wait;
    let limit = match (is_short, coordinator.state().current()) {
        (false, _) => Duration::MAX,
        (true, State::Connected) => LEAVING,
        (true, _) => return,
    };
    let _ = timeout(limit, coordinator.stop()).await;
}

#[cfg(all(test, coordination_internals))]
mod tests {
    use coordination::Error;
    use coordination::simulation::{Clocks, Run, Traits, Weather, World};
    use tokio::time::Instant;

    use super::*;

    /// The session is `Connected`, for all that it knows.
    #[tokio::test(start_paused = true)]
    async fn whoever_has_waited_in_vain_does_not_wait_for_a_store_that_has_fallen_silent()
    -> Result<(), Error> {
        let _run = Run::begin(1);
        for (after, is_short) in [(After::Wait, true), (After::Work, false)] {
            let world = World::new(1, Traits::SERVER);
            let settings = Coordinator::builder().ttl(Duration::from_secs(60));
            let coordinator = world.client(Clocks::default()).connect(settings.into()).await?;
            world.set_weather(Weather { lost_request: 1_000_000, ..Weather::calm() });
            let begun = Instant::now();
            finish(&coordinator, &Ok(()), after).await;
            let took = begun.elapsed();
            assert_eq!(took <= LEAVING + LEAVING / 10, is_short, "{after:?}: {took:?}");
        }
        Ok(())
    }
}
