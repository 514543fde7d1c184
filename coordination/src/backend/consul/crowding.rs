//! What gives way while the agent takes no more connections from this address.
//!
//! Consul takes 200 of them (`limits.http_max_conns_per_client`) and closes each one beyond that at once; newer releases say why,
//! with status 429. A session lives by its heartbeats, which keep a connection of their own. When another connection is refused,
//! here or in some other process of this host a heartbeat may need one as well. So whoever is refused gives way: for a while he
//! makes no blocking query, looks instead, and keeps no connection between calls.
//!
//! An agent that is gone, behind a proxy that is not, looks the same at first. So for calls, too, connections are made one at a
//! time, after pauses, until one of them is answered (`R4`): whoever waits, and whatever it was that refused the first.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use rand::RngExt;
use tokio::sync::Notify;

use crate::config::Settings;
use crate::env;
use crate::retry::DecorrelatedJitter;

/// What is said of a refusal.
pub(super) const FULL: &str = "it may have all connections that it takes from one address (`limits.http_max_conns_per_client`)";
/// How long one gives way at first.
const SHORTEST: Duration = Duration::from_secs(1);
/// And at most: then it is tried whether there are connections again.
const LONGEST: Duration = Duration::from_secs(5);
/// The longest pause between two connections for calls.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// How often one looks meanwhile. A waiter is to be served within two seconds (`L2`).
const PACE: std::ops::Range<Duration> = Duration::from_millis(500)..Duration::from_secs(1);
/// It is longer where many look.
const PACE_PER_LOOK: Duration = Duration::from_millis(20);

/// Whether this process gives way.
pub(super) struct Crowding {
    state: Mutex<State>,
    /// Told when calls need not wait for their turn any longer.
    is_over: Notify,
    /// How many wait for their next look.
    looking: AtomicU32,
    /// Between two connections for calls.
    pauses: DecorrelatedJitter,
}

struct State {
    /// No blocking query is made before.
    until: Option<Instant>,
    lengths: DecorrelatedJitter,
    /// When the last connection was refused.
    refused: Option<Instant>,
    /// The next call is not made before; `None`: calls are made at any time.
    next: Option<Instant>,
    pauses: DecorrelatedJitter,
}

impl Crowding {
    pub(super) fn new(settings: &Settings) -> Self {
        let longest = settings.max_backoff.min(settings.heartbeat).min(LONGEST_PAUSE);
        let pauses = DecorrelatedJitter::new(settings.initial_backoff, longest);
        let state = State { until: None, lengths: lengths(), refused: None, next: None, pauses };
        let (is_over, looking) = (Notify::new(), AtomicU32::new(0));
        Self { state: Mutex::new(state), is_over, looking, pauses }
    }

    /// A connection was refused.
    pub(super) fn refused(&self) {
        let (mut state, now) = (self.state(), Instant::now());
        state.give_way(now);
        state.refused = Some(now);
        // Of those that are refused at the same time the first one counts.
        if state.next.is_none_or(|next| next <= now) {
            state.next = Some(now + state.pauses.next_delay());
        }
    }

    /// No blocking query is made for a while.
    pub(super) fn give_way(&self) {
        self.state().give_way(Instant::now());
    }

    /// A call was answered that was sent at this moment.
    pub(super) fn answered(&self, sent: Instant) {
        let mut state = self.state();
        // One that has its connection since before the refusal says nothing of new ones.
        if state.next.is_some() && state.refused.is_none_or(|refused| refused <= sent) {
            (state.next, state.pauses) = (None, self.pauses);
            drop(state);
            self.is_over.notify_waiters();
        }
    }

    /// A blocking query was answered.
    pub(super) fn queried(&self) {
        let mut state = self.state();
        if !state.gives_way() {
            (state.until, state.lengths) = (None, lengths());
        }
    }

    pub(super) fn gives_way(&self) -> bool {
        self.state().gives_way()
    }

    /// Waits for the turn of a call that is no heartbeat: since a connection was refused, and none answered, there is one in each
    /// pause.
    pub(super) async fn turn(&self) {
        loop {
            // From here on it is told.
            let is_over = self.is_over.notified();
            let Some(next) = self.state().turn(Instant::now()) else { return };
            tokio::select! {
                biased;
                () = is_over => {}
                () = tokio::time::sleep_until(next.into()) => {}
            }
        }
    }

    /// Waits until the time has come to look, in place of a query.
    pub(super) async fn next_look(&self) {
        let _one = Looking::new(&self.looking);
        let others = self.looking.load(Ordering::Relaxed);
        let pace = env::rng().random_range(PACE).max(PACE_PER_LOOK * others);
        tokio::time::sleep(pace.min(LONGEST)).await;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl State {
    fn give_way(&mut self, now: Instant) {
        if self.until.is_none_or(|until| until <= now) {
            self.until = Some(now + self.lengths.next_delay());
        }
    }

    /// Queries come after calls.
    fn gives_way(&self) -> bool {
        self.next.is_some() || self.until.is_some_and(|until| Instant::now() < until)
    }

    /// Takes the turn, if it has come; otherwise, the moment at which it may have.
    fn turn(&mut self, now: Instant) -> Option<Instant> {
        let next = self.next?;
        if next <= now {
            self.next = Some(now + self.pauses.next_delay());
            return None;
        }
        Some(next)
    }
}

fn lengths() -> DecorrelatedJitter {
    DecorrelatedJitter::new(SHORTEST, LONGEST)
}

/// One who waits for his next look, until this is dropped.
struct Looking<'a>(&'a AtomicU32);

impl<'a> Looking<'a> {
    fn new(count: &'a AtomicU32) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Looking<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::Config;
    use crate::error::Result;
    use crate::url::Url;

    fn crowding() -> Result<Crowding> {
        let mut url = Url::parse("memory://")?;
        Ok(Crowding::new(&Settings::resolve(Config::default(), &mut url, None)?))
    }

    #[test]
    fn who_is_refused_gives_way_for_a_while() -> Result<()> {
        let crowding = crowding()?;
        assert!(!crowding.gives_way());
        let sent = Instant::now();
        crowding.refused();
        let until = crowding.state().until;
        assert!(
            crowding.gives_way() && until.is_some_and(|until| until <= Instant::now() + LONGEST)
        );
        // What was sent before is answered, and refused, too.
        crowding.answered(sent);
        crowding.queried();
        crowding.refused();
        assert_eq!(crowding.state().until, until);
        crowding.state().until = Some(Instant::now());
        assert!(crowding.gives_way(), "no call was answered yet");
        crowding.answered(Instant::now());
        assert!(!crowding.gives_way());
        crowding.queried();
        assert_eq!(crowding.state().until, None);
        Ok(())
    }

    #[tokio::test]
    async fn r4_after_a_refusal_one_call_is_made_in_each_pause() -> Result<()> {
        let crowding = Arc::new(crowding()?);
        crowding.turn().await;
        crowding.refused();
        let made = Arc::new(AtomicU32::new(0));
        let calls: Vec<_> = (0..100)
            .map(|_| {
                let (crowding, made) = (Arc::clone(&crowding), Arc::clone(&made));
                tokio::spawn(async move {
                    crowding.turn().await;
                    made.fetch_add(1, Ordering::SeqCst);
                    crowding.refused();
                })
            })
            .collect();
        let began = Instant::now();
        tokio::time::sleep(Duration::from_secs(1)).await;
        let (count, took) = (made.load(Ordering::SeqCst), began.elapsed());
        // The shortest pause is of 100 ms.
        assert!((1..=took.as_millis() / 100 + 1).contains(&count.into()), "{count} in {took:?}");
        calls.iter().for_each(tokio::task::JoinHandle::abort);
        crowding.answered(Instant::now());
        let began = Instant::now();
        crowding.turn().await;
        assert!(began.elapsed() < LONGEST_PAUSE, "whoever comes later waits for nothing");
        Ok(())
    }
}
