//! Which of a store's servers is used: one at a time, the next one when it fails or falls silent. A server is a host at one of
//! its addresses; see [`places`](super::places).
//!
//! Each connection, or pool of connections, has a number, its *epoch*. What is found out about it says the epoch
//! that it is about: of several calls that failed on one connection, only the first gives it up.

use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::places::{Place, Places};
use crate::config::Settings;
use crate::retry::DecorrelatedJitter;

/// While a session can still be saved, a server is tried at least this often.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// The servers of one URL, and the connection in use.
pub(crate) struct Rotation<C> {
    current: Mutex<Current<C>>,
    /// Rises whenever a connection is given up, for what lives on it.
    epoch: watch::Sender<u64>,
    /// A call that takes longer than this has found a silent connection.
    patience: Duration,
    /// Between rounds of tries, once all servers have failed, while a session can still be saved.
    hurry: DecorrelatedJitter,
    /// The same, when it is too late for that: nothing was heard for as long as the lease.
    calm: DecorrelatedJitter,
    lease: Duration,
}

struct Current<C> {
    connection: Option<C>,
    places: Places,
    /// When the last answer came on this connection.
    heard: Option<Instant>,
    /// Connections given up since an answer came, or since the last pause: with each place one round is over.
    failures: usize,
    /// When an answer came on any connection; at first, when it all began.
    last_heard: Instant,
    hurry: DecorrelatedJitter,
    calm: DecorrelatedJitter,
    /// No try before this.
    pause_until: Option<Instant>,
}

/// Whose turn it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turn {
    /// Which server's.
    pub(crate) place: Place,
    /// For the connection that is made.
    pub(crate) epoch: u64,
    /// Not before this moment: all have failed, and a server that is down, or coming up, is not stormed
    /// (`R4`).
    pub(crate) pause_until: Option<Instant>,
}

/// One use of a connection: dropped unfinished after too long a time, it condemns the connection.
pub(crate) struct Attempt<'a, C> {
    rotation: &'a Rotation<C>,
    epoch: u64,
    started: Instant,
    /// Whether the connection failed; `None`: not known, the call was dropped.
    failed: Option<bool>,
    /// Whether silence says something: not of a query that waits.
    is_prompt: bool,
}

impl<C> Rotation<C> {
    /// Of so many hosts; a call on them takes `patience` at the most.
    pub(crate) fn new(hosts: usize, settings: &Settings, patience: Duration) -> Self {
        let longest = settings.max_backoff.min(settings.heartbeat).min(LONGEST_PAUSE);
        let hurry = DecorrelatedJitter::new(settings.initial_backoff, longest);
        let longest = settings.max_backoff.min(settings.ttl);
        let calm = DecorrelatedJitter::new(settings.initial_backoff, longest);
        Self {
            current: Mutex::new(Current {
                connection: None,
                places: Places::new(hosts),
                heard: None,
                failures: 0,
                last_heard: Instant::now(),
                hurry,
                calm,
                pause_until: None,
            }),
            epoch: watch::Sender::new(1),
            patience,
            hurry,
            calm,
            lease: settings.ttl,
        }
    }

    /// How many servers there are, as far as their names were looked up.
    pub(crate) fn servers(&self) -> usize {
        self.current().places.count()
    }

    /// The connection in use, if there is one, and its epoch.
    pub(crate) fn connected(&self) -> Option<(C, u64)>
    where
        C: Clone,
    {
        let current = self.current();
        current.connection.clone().map(|connection| (connection, self.epoch()))
    }

    /// Where the next connection is to be made, and when.
    pub(crate) fn turn(&self) -> Turn {
        let current = self.current();
        let place = current.places.current();
        Turn { place, epoch: self.epoch(), pause_until: current.pause_until }
    }

    /// The name of the host whose turn it is has these addresses, each of which has its turn.
    pub(crate) fn found(&self, epoch: u64, addresses: &[SocketAddr]) {
        let mut current = self.current();
        if self.epoch() == epoch {
            current.places.found(addresses);
        }
    }

    /// Uses this connection from now on, unless it was given up already.
    pub(crate) fn install(&self, connection: C, epoch: u64) {
        let mut current = self.current();
        if self.epoch() == epoch {
            current.connection = Some(connection);
        }
    }

    pub(crate) fn epoch(&self) -> u64 {
        *self.epoch.borrow()
    }

    /// Told of every connection that is given up.
    pub(crate) fn epochs(&self) -> watch::Receiver<u64> {
        self.epoch.subscribe()
    }

    /// A call begins on the connection of this epoch; see [`Attempt::ended`].
    pub(crate) fn attempt(&self, epoch: u64) -> Attempt<'_, C> {
        Attempt { rotation: self, epoch, started: Instant::now(), failed: None, is_prompt: true }
    }

    /// Gives up a connection, unless that was done already.
    pub(crate) fn give_up(&self, epoch: u64) {
        let mut current = self.current();
        if self.epoch() == epoch {
            current.connection = None;
            current.heard = None;
            current.failures += 1;
            current.places.failed();
            if current.failures >= current.places.count() {
                let is_too_late = current.last_heard.elapsed() > self.lease;
                let delays = if is_too_late { &mut current.calm } else { &mut current.hurry };
                let pause = delays.next_delay();
                current.pause_until = Some(Instant::now() + pause);
                current.failures = 0;
                current.places.forget();
            }
            self.epoch.send_modify(|epoch| *epoch += 1);
        }
    }

    /// Gives up a connection that has nothing wrong with it, but leads to the wrong server: the next is made at once.
    pub(crate) fn leave(&self, epoch: u64) {
        let mut current = self.current();
        if self.epoch() == epoch {
            current.connection = None;
            current.heard = None;
            self.epoch.send_modify(|epoch| *epoch += 1);
        }
    }

    /// An answer came, if only of an error.
    fn heard(&self, epoch: u64) {
        let mut current = self.current();
        if self.epoch() == epoch {
            let now = Instant::now();
            current.last_heard = now;
            if current.heard.replace(now).is_none() {
                current.places.answered();
            }
            if current.failures > 0 || current.pause_until.is_some() {
                current.failures = 0;
                (current.hurry, current.calm) = (self.hurry, self.calm);
                current.pause_until = None;
            }
        }
    }

    /// Whether nothing came for too long a time, while a call of this start was waiting.
    fn is_silent(&self, started: Instant) -> bool {
        // A little less: who gives up a call after that time has begun to count a moment earlier.
        let limit = self.patience * 9 / 10;
        let is_long_ago = |at: Instant| at.elapsed() >= limit;
        is_long_ago(started) && self.current().heard.is_none_or(is_long_ago)
    }

    fn current(&self) -> MutexGuard<'_, Current<C>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<C> Attempt<'_, C> {
    /// The server takes its time to answer, and silence says nothing.
    pub(crate) fn unhurried(mut self) -> Self {
        self.is_prompt = false;
        self
    }

    /// The call has ended: the connection failed, or an answer came.
    pub(crate) fn ended(mut self, failed: bool) {
        self.failed = Some(failed);
    }
}

impl<C> Drop for Attempt<'_, C> {
    fn drop(&mut self) {
        let rotation = self.rotation;
        match self.failed {
            Some(true) => rotation.give_up(self.epoch),
            Some(false) => rotation.heard(self.epoch),
            // A caller who lost interest early says nothing about the connection. One whose time ran
            // out does, unless others got answers meanwhile: then it is slow, and not silent.
            None if self.is_prompt && rotation.is_silent(self.started) => {
                rotation.give_up(self.epoch)
            }
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread::sleep;

    use super::*;
    use crate::Config;
    use crate::error::Result;
    use crate::url::Url;

    fn rotation(hosts: usize, patience: Duration) -> Result<Rotation<&'static str>> {
        let mut url = Url::parse("memory://")?;
        let settings = Settings::resolve(Config::default(), &mut url, None)?;
        Ok(Rotation::new(hosts, &settings, patience))
    }

    #[test]
    fn the_next_server_is_tried_and_when_all_have_failed_after_a_pause() -> Result<()> {
        let rotation = rotation(2, Duration::from_secs(1))?;
        let first = rotation.turn();
        rotation.install("first", first.epoch);
        assert_eq!(rotation.connected(), Some(("first", first.epoch)));
        // Two calls fail on one connection.
        let attempts = [rotation.attempt(first.epoch), rotation.attempt(first.epoch)];
        attempts.into_iter().for_each(|attempt| attempt.ended(true));
        let second = rotation.turn();
        assert_eq!((rotation.connected(), second.place.host), (None, 1));
        assert!(second.pause_until.is_none());
        // What comes late is not about this one.
        rotation.install("late", first.epoch);
        rotation.attempt(first.epoch).ended(false);
        assert!(rotation.connected().is_none());
        rotation.attempt(second.epoch).ended(true);
        let third = rotation.turn();
        assert!(third.place.host == 0 && third.pause_until.is_some());
        rotation.attempt(third.epoch).ended(false);
        assert!(rotation.turn().pause_until.is_none());
        Ok(())
    }

    #[test]
    fn r4_each_round_through_the_servers_has_one_pause() -> Result<()> {
        let rotation = rotation(1, Duration::from_secs(1))?;
        let addresses = [1, 2, 3].map(|last| SocketAddr::from(([10, 0, 0, last], 1)));
        let mut pause = None;
        for round in 0..4 {
            let mut tried = Vec::new();
            for _ in addresses {
                // The name is looked up anew in each round.
                if rotation.turn().place.address.is_none() {
                    rotation.found(rotation.epoch(), &addresses);
                }
                let turn = rotation.turn();
                assert_eq!(turn.pause_until, pause, "within round {round}");
                tried.extend(turn.place.address);
                rotation.give_up(turn.epoch);
            }
            tried.sort_unstable();
            assert_eq!(tried, addresses, "each has its turn in round {round}");
            let next = rotation.turn().pause_until;
            assert!(next.is_some() && next != pause, "after round {round}");
            pause = next;
        }
        rotation.attempt(rotation.epoch()).ended(false);
        assert!(rotation.turn().pause_until.is_none(), "an answer came");
        Ok(())
    }

    #[test]
    fn silence_condemns_a_connection_on_which_nobody_heard_anything() -> Result<()> {
        let patience = Duration::from_millis(20);
        let rotation = rotation(1, patience)?;
        let epoch = rotation.epoch();
        drop(rotation.attempt(epoch));
        assert_eq!(rotation.epoch(), epoch, "it was given up early");
        let attempt = rotation.attempt(epoch);
        sleep(patience);
        rotation.heard(epoch);
        drop(attempt);
        assert_eq!(rotation.epoch(), epoch, "others were answered");
        let attempt = rotation.attempt(epoch);
        sleep(patience);
        drop(attempt);
        assert_eq!(rotation.epoch(), epoch + 1);
        Ok(())
    }
}
