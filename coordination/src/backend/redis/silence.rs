//! Measures for how long no answer has come on a connection. It is used for the connections besides the main one (for listings, and
//! for calls that wait for replicas). The main connection has its own measurement in the rotation, because an answer on one
//! connection does not prove that another one works.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// For how long callers have waited without any answer on the connection: the *silence*. Each answer sets it to zero. Time in which
/// no caller waits does not count.
#[derive(Default)]
pub(super) struct Silence(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    /// How many callers wait for an answer now.
    count: usize,
    /// The moment from which the silence of the callers who wait now is counted: when the first of them began to wait, or when the
    /// last answer came if that is later. `None`: no caller waits.
    since: Option<Instant>,
    /// The silence up to the moment when the last caller stopped waiting: if all callers gave up without an answer, the silence
    /// goes on from this length when the next caller comes.
    before: Duration,
}

impl Silence {
    /// To be called when a caller begins to wait. [`left`](Self::left) has to be called when it stops.
    pub(super) fn asked(&self) {
        let mut waiting = self.lock();
        waiting.count += 1;
        waiting.since.get_or_insert_with(Instant::now);
    }

    /// To be called when an answer has come, perhaps an error: the silence begins anew.
    pub(super) fn ended(&self) {
        let mut waiting = self.lock();
        waiting.before = Duration::ZERO;
        waiting.since = waiting.since.map(|_| Instant::now());
    }

    /// To be called when a caller stops waiting, whether or not it got an answer.
    pub(super) fn left(&self) {
        let mut waiting = self.lock();
        waiting.count = waiting.count.saturating_sub(1);
        if waiting.count == 0 {
            waiting.before = waiting.length();
            waiting.since = None;
        }
    }

    /// Whether callers have waited for longer than this without any answer.
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

    /// Half of it is ten times what a busy machine withholds between two lines.
    const MOMENT: Duration = Duration::from_millis(500);

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
