//! How long a connection has been silent: for the connections that are made in addition to the main one. An answer on one of these
//! says nothing about the main one.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// For how long callers have waited for an answer since the last one came. Time in which nobody waits does not count.
#[derive(Default)]
pub(super) struct Silence(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    /// How many callers wait.
    count: usize,
    /// When the first of these callers began to wait, or when the last answer came after that; `None`: nobody waits.
    since: Option<Instant>,
    /// How long earlier callers waited without an answer before they gave up.
    before: Duration,
}

impl Silence {
    /// A caller begins to wait. [`left`](Self::left) has to follow.
    pub(super) fn asked(&self) {
        let mut waiting = self.lock();
        waiting.count += 1;
        waiting.since.get_or_insert_with(Instant::now);
    }

    /// An answer has come, perhaps an error.
    pub(super) fn ended(&self) {
        let mut waiting = self.lock();
        waiting.before = Duration::ZERO;
        waiting.since = waiting.since.map(|_| Instant::now());
    }

    /// A caller waits no longer, whether or not it got an answer.
    pub(super) fn left(&self) {
        let mut waiting = self.lock();
        waiting.count = waiting.count.saturating_sub(1);
        if waiting.count == 0 {
            waiting.before = waiting.length();
            waiting.since = None;
        }
    }

    /// Whether the silence has lasted for longer than this.
    pub(super) fn is_longer(&self, than: Duration) -> bool {
        self.lock().length() > than
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting {
    fn length(&self) -> Duration {
        self.before + self.since.map(|since| since.elapsed()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use std::thread::sleep;

    use super::*;

    const MOMENT: Duration = Duration::from_millis(50);

    #[test]
    fn time_in_which_nobody_waits_is_not_silence() {
        let silence = Silence::default();
        silence.asked();
        silence.left();
        sleep(MOMENT);
        silence.asked();
        assert!(!silence.is_longer(MOMENT / 2));
    }

    #[test]
    fn silence_goes_on_over_those_who_give_up() {
        let silence = Silence::default();
        for _ in 0..2 {
            silence.asked();
            sleep(MOMENT);
            silence.left();
        }
        assert!(silence.is_longer(2 * MOMENT - MOMENT / 2));
        silence.asked();
        silence.ended();
        silence.left();
        assert!(!silence.is_longer(MOMENT));
    }

    #[test]
    fn an_answer_to_one_begins_the_silence_for_the_others() {
        let silence = Silence::default();
        silence.asked();
        silence.asked();
        sleep(MOMENT);
        silence.ended();
        silence.left();
        assert!(!silence.is_longer(MOMENT / 2));
        sleep(MOMENT);
        assert!(silence.is_longer(MOMENT / 2));
    }
}
