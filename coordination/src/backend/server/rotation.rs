//! Which of a store's servers is used: one server at a time, and the next one when that server fails or stops answering. Here a
//! server is a host at one of its addresses; see [`places`](super::places).
//!
//! Each connection, or pool of connections, has a number, its *epoch*. Every success or failure on a connection is reported with
//! its epoch: if several calls fail on one connection, only the first report gives the connection up, and a late report does not
//! give up the next connection. The epoch and the state that belongs to it change together, under one mutex.

use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::places::{Place, Places};
use crate::config::Settings;
use crate::retry::DecorrelatedJitter;

/// After all servers have failed, a pause begins before the next try. This is the longest pause as long as a session of this
/// process may still be alive.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// The servers of one URL, and the connection in use.
pub(crate) struct Rotation<C> {
    current: Mutex<Current<C>>,
    /// The epoch of the connection in use, or of the next one if there is none. It rises when a connection is given up. The tasks
    /// that keep watches on a connection wait for this rise, to begin the watches anew on the next connection.
    epoch: watch::Sender<u64>,
    /// How long a call may wait for its answer. If a caller drops a call after at least this time, and no answer to any call came
    /// on the connection in this time, the connection is given up.
    patience: Duration,
    /// Makes short pauses after all servers have failed. It is used as long as the last answer is not older than the lease: until
    /// then, a session may still be alive. This field keeps the initial state, and [`Current`] has the state in use.
    hurry: DecorrelatedJitter,
    /// Like `hurry`, but with longer pauses. Used once the last answer is older than the lease: every session has expired by then,
    /// so that there is no hurry.
    calm: DecorrelatedJitter,
    lease: Duration,
}

struct Current<C> {
    connection: Option<C>,
    places: Places,
    /// When the last answer came on the connection in use; `None`: no answer has come on it yet.
    heard: Option<Instant>,
    /// How many connections were given up since the last answer, or since the last pause began. When this number reaches the number
    /// of places, all servers have failed, and a pause begins.
    failures: usize,
    /// When an answer last came on any connection; before the first answer, when this was created.
    last_heard: Instant,
    /// Makes the next short pause. Each pause changes its state, and an answer resets it to [`Rotation::hurry`].
    hurry: DecorrelatedJitter,
    /// Makes the next long pause. Each pause changes its state, and an answer resets it to [`Rotation::calm`].
    calm: DecorrelatedJitter,
    /// The end of the pause, before which no connection is tried; `None`: there is no pause.
    pause_until: Option<Instant>,
    /// Whether the last connection was left with a call that was not answered, so that its server may have fallen silent.
    is_in_doubt: bool,
}

/// The server to connect to next.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turn {
    /// The server's host and address.
    pub(crate) place: Place,
    /// The epoch of the connection that is to be made.
    pub(crate) epoch: u64,
    /// `Some` if all servers have failed: no connection is tried before this moment. Without this pause, many clients that retry at
    /// the same time would flood a server that is down or starting (`R4`).
    pub(crate) pause_until: Option<Instant>,
    /// Whether nobody should wait for long for a server that does not answer, because there is another one. Either the last connection
    /// to it was left with a call that was not answered, so that it may have fallen silent. Or a session may still be alive, which
    /// the other one may save.
    pub(crate) is_urgent: bool,
}

/// One call on a connection. Its drop reports to the rotation how the call ended. If the call was dropped after at least
/// [`patience`](Rotation::patience), and no answer to any call came on the connection in that time, the connection is given up.
pub(crate) struct Attempt<'a, C> {
    rotation: &'a Rotation<C>,
    epoch: u64,
    started: Instant,
    /// Whether the connection failed. `None`: the call was dropped before it ended, so it is not known whether the connection
    /// failed.
    failed: Option<bool>,
    /// Whether the server should answer soon, so that the connection is given up if no answer comes. False for queries that the
    /// server answers only when something changes.
    is_prompt: bool,
}

impl<C> Rotation<C> {
    /// Makes a rotation over this number of hosts. `patience`: how long a call may wait for its answer.
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
                is_in_doubt: false,
            }),
            epoch: watch::Sender::new(1),
            patience,
            hurry,
            calm,
            lease: settings.ttl,
        }
    }

    /// How many servers are known: one for each address, and one for each host whose name is not looked up yet.
    pub(crate) fn servers(&self) -> usize {
        self.current().places.count()
    }

    /// Whether `is_so` is true for all servers that are known.
    pub(crate) fn all(&self, is_so: impl Fn(&Place) -> bool) -> bool {
        self.current().places.all(is_so)
    }

    /// The connection in use and its epoch, if there is one.
    pub(crate) fn connected(&self) -> Option<(C, u64)>
    where
        C: Clone,
    {
        // The connection and the epoch are read under one mutex, which is held also when the epoch is raised. Otherwise this
        // connection could be returned with the epoch of the next connection, and then a failure on this connection would give up
        // the next one.
        let current = self.current();
        current.connection.clone().map(|connection| (connection, self.epoch()))
    }

    /// Where the next connection is to be made, and when.
    pub(crate) fn turn(&self) -> Turn {
        let current = self.current();
        let place = current.places.current();
        let may_be_saved = !self.is_too_late(&current);
        let is_urgent = current.places.count() > 1 && (current.is_in_doubt || may_be_saved);
        Turn { place, epoch: self.epoch(), pause_until: current.pause_until, is_urgent }
    }

    /// Notes the addresses of the current host, whose name was looked up for the connection of this epoch. From now on each address
    /// counts as a server of its own. Does nothing if this epoch was given up during the lookup.
    pub(crate) fn found(&self, epoch: u64, addresses: &[SocketAddr]) {
        let mut current = self.current();
        if self.epoch() == epoch {
            current.places.found(addresses);
        }
    }

    /// Makes this the connection in use, unless its epoch was given up while it was made.
    pub(crate) fn install(&self, connection: C, epoch: u64) {
        // If the epoch was given up while the connection was made, the next connection is made to another server, under the next
        // epoch. This connection must not replace that next one.
        let mut current = self.current();
        if self.epoch() == epoch {
            current.connection = Some(connection);
            current.is_in_doubt = false;
        }
    }

    pub(crate) fn epoch(&self) -> u64 {
        *self.epoch.borrow()
    }

    /// A receiver of the epoch, which changes whenever a connection is given up.
    pub(crate) fn epochs(&self) -> watch::Receiver<u64> {
        self.epoch.subscribe()
    }

    /// Begins a call on the connection of this epoch. The call's end is reported by [`Attempt::ended`] or by the drop of the
    /// attempt.
    pub(crate) fn attempt(&self, epoch: u64) -> Attempt<'_, C> {
        Attempt { rotation: self, epoch, started: Instant::now(), failed: None, is_prompt: true }
    }

    /// Gives up the connection of this epoch, unless it was given up already, and goes on to the next server.
    pub(crate) fn give_up(&self, epoch: u64) {
        // If several calls fail on one connection, the first report raises the epoch. The later reports have the old epoch, and do
        // nothing. Without this check, each of them would skip one more server, and the pause would begin after a single failure.
        let mut current = self.current();
        if self.epoch() == epoch {
            current.connection = None;
            current.heard = None;
            current.failures += 1;
            current.is_in_doubt = false;
            current.places.failed();
            if current.failures >= current.places.count() {
                let is_too_late = self.is_too_late(&current);
                let delays = if is_too_late { &mut current.calm } else { &mut current.hurry };
                let pause = delays.next_delay();
                current.pause_until = Some(Instant::now() + pause);
                current.failures = 0;
                current.places.forget();
            }
            self.epoch.send_modify(|epoch| *epoch += 1);
        }
    }

    /// Gives up a connection that is not to be used any more, although its server has not failed. So no failure is counted, and the
    /// next connection is made to the same place at once, without a pause.
    pub(crate) fn leave(&self, epoch: u64) {
        self.leave_for(epoch, false);
    }

    /// [`leave`](Self::leave) with a call that was not answered. The caller did not wait for long enough to say that the server has
    /// failed. But it may have, so the next connection has less time to be made than others.
    pub(crate) fn leave_unanswered(&self, epoch: u64) {
        self.leave_for(epoch, true);
    }

    fn leave_for(&self, epoch: u64, is_in_doubt: bool) {
        let mut current = self.current();
        if self.epoch() == epoch {
            current.connection = None;
            current.heard = None;
            current.is_in_doubt = is_in_doubt;
            self.epoch.send_modify(|epoch| *epoch += 1);
        }
    }

    /// Notes that an answer came on the connection of this epoch, even if the answer is an error.
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

    /// Whether a call that began at `started` has waited for all its time, and no answer to any call came on the connection in that
    /// time.
    fn is_silent(&self, started: Instant) -> bool {
        // The caller drops the call after `patience`, counted from a moment before `started`. So less than `patience` may have
        // passed since `started`, and a little less has to be enough here.
        let limit = self.patience * 9 / 10;
        let is_long_ago = |at: Instant| at.elapsed() >= limit;
        is_long_ago(started) && self.current().heard.is_none_or(is_long_ago)
    }

    /// Whether the last answer is older than the lease, so that every session has expired.
    fn is_too_late(&self, current: &Current<C>) -> bool {
        current.last_heard.elapsed() > self.lease
    }

    fn current(&self) -> MutexGuard<'_, Current<C>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<C> Attempt<'_, C> {
    /// Marks a call to which the server may answer late. If such a call is dropped, the connection is kept, even if no answer came
    /// on it.
    pub(crate) fn unhurried(mut self) -> Self {
        self.is_prompt = false;
        self
    }

    /// Reports that the call has ended: the connection failed, or an answer came.
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
            // If a call is dropped early, nothing is known about the connection. If a call is dropped after its time ran out, the
            // connection is given up, unless another call got an answer on it in that time: such an answer shows that the server is
            // only slow.
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
        let mut url = Url::parse_by_scheme("memory://")?;
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
        // A connection and an answer that come late, with the first epoch, change nothing in the second epoch.
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

    /// Time that another server needs to save a session is not spent on one that does not answer.
    #[test]
    fn a_connection_is_urgent_as_long_as_another_server_may_save_a_session() -> Result<()> {
        let patience = Duration::from_secs(1);
        let urgent = |rotation: &Rotation<_>| rotation.turn().is_urgent;
        assert!(!urgent(&rotation(1, patience)?), "there is no other server");
        let two = rotation(2, patience)?;
        assert!(urgent(&two));
        two.current().last_heard = Instant::now() - two.lease - patience;
        assert!(!urgent(&two), "each session has ended");
        two.leave_unanswered(two.epoch());
        assert!(urgent(&two), "it may have fallen silent");
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
                // Before each round through the addresses, the name is looked up anew.
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
        // Ten times what a busy machine withholds between two lines.
        let patience = Duration::from_millis(500);
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
