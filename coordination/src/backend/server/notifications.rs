//! Notifications, on stores whose server tells by itself, on the one connection, whatever somebody publishes: Redis and
//! PostgreSQL.
//!
//! Each process has a channel of its own, on which whoever leaves a queue tells exactly those whom he kept
//! waiting, and whether their turn has come by that. Who observes a queue, or waits for an entry that is not
//! the one right before his own, listens to the queue's channel, where everything that happens is told.
//! A message may be lost with its connection, so that waiters look again: after each loss of a connection, and
//! when the lease of what they wait for may be over.

use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::bounded_cache::BoundedCache;
use super::shared_watches;
use crate::backend::Mode;

/// How old a message may be that stands for an answer.
const FRESH: Duration = Duration::from_millis(500);
/// How long a channel is subscribed to after its last follower has gone. Followers go and come back for each read of
/// their queue: with 20,000 of them a read may take seconds.
const LINGER: Duration = Duration::from_secs(10);

/// What somebody waits for: that this entry is gone, or no longer blocks entries of this mode.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Wait {
    pub(crate) queue: String,
    pub(crate) seq: u64,
    pub(crate) mode: Mode,
}

/// What was told on this process's channel.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Passed {
    pub(crate) wait: Wait,
    /// The entry that waited.
    pub(crate) waiter: u64,
    /// Nothing blocks it any more.
    pub(crate) is_turn: bool,
}

/// What was told on a queue's channel: an entry that is gone, or has become shared; `None`: something else.
pub(crate) type Happened = Option<(u64, bool)>;

/// All that is listened to.
pub(crate) struct Subscriptions {
    /// This process's channel.
    own: String,
    /// What the channels of queues begin with.
    queues: String,
    followed: shared_watches::SharedWatches<String, Followed>,
    /// What is waited for, or was told a moment ago.
    waits: shared_watches::SharedWatches<Wait, Waited>,
    /// Entries whose turn has come, with when that was told.
    turns: BoundedCache<(String, u64), Instant>,
}

/// What was told of something that is waited for.
#[derive(Clone, Copy, Default)]
pub(crate) enum Waited {
    /// Nothing: the server was not asked, and does not know that somebody waits.
    #[default]
    Unknown,
    /// It blocks an entry of ours, and the server tells us on our own channel when it does no more.
    Blocks(Known),
    /// It blocks nothing of ours any more.
    Over,
}

/// On which connection the server said that something blocks, and until when that has its lease.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known {
    pub(crate) epoch: u64,
    pub(crate) until: Instant,
}

/// What was told of a queue on its channel.
#[derive(Default)]
pub(crate) struct Followed {
    /// The number of the last message: another one for each.
    pub(crate) count: u64,
    /// The connection on which the channel is subscribed to.
    epoch: Option<u64>,
}

/// What was told of a queue before it was read last.
#[derive(Clone, Copy)]
pub(crate) struct Told {
    /// The number of the last message when it was asked for; `None`: nobody listened.
    pub(crate) count: Option<u64>,
    /// When the first of its leases may be over.
    pub(crate) expires: Option<Instant>,
}

impl Subscriptions {
    /// `base`: what all keys of the namespace begin with.
    pub(crate) fn new(base: &str, client: &str) -> Self {
        Self {
            own: format!("{base}client:{client}"),
            queues: format!("{base}queue:"),
            followed: shared_watches::SharedWatches::lingering(LINGER),
            waits: shared_watches::SharedWatches::default(),
            turns: BoundedCache::default(),
        }
    }

    /// What a new connection has to subscribe to: what somebody listens to, or did a moment ago.
    pub(crate) fn channels(&self) -> Vec<String> {
        self.followed.sweep();
        let followed = self.followed.keys();
        let queues = followed.iter().map(|queue| self.channel(queue));
        std::iter::once(self.own.clone()).chain(queues).collect()
    }

    fn channel(&self, queue: &str) -> String {
        format!("{}{queue}", self.queues)
    }

    /// They are subscribed to on this connection: what was told before may have been missed.
    pub(crate) fn subscribed(&self, channels: &[String], epoch: u64) {
        for queue in channels.iter().filter_map(|channel| channel.strip_prefix(&self.queues)) {
            self.followed.tell(&queue.to_owned(), |followed| {
                *followed = Followed { count: self.followed.next_number(), epoch: Some(epoch) };
                true
            });
        }
    }

    /// Listens to a queue; answers the channel, if it is not subscribed to on this connection.
    pub(crate) fn follow(
        &self,
        queue: &str,
        epoch: u64,
    ) -> (watch::Receiver<Followed>, Option<String>) {
        let (followed, _) = self.followed.join(&queue.to_owned());
        let is_subscribed = followed.borrow().epoch == Some(epoch);
        let channel = (!is_subscribed).then(|| self.channel(queue));
        (followed, channel)
    }

    /// The number of the last message of the queue, if it is listened to on this connection.
    pub(crate) fn count(&self, queue: &str, epoch: u64) -> Option<u64> {
        let followed = self.followed.find(&queue.to_owned())?;
        let followed = followed.borrow();
        (followed.epoch == Some(epoch)).then_some(followed.count)
    }

    /// A message came.
    pub(crate) fn told(&self, channel: &str, text: &str) {
        if channel == self.own {
            Passed::read(text).into_iter().for_each(|passed| self.passed(passed));
        } else if let Some(queue) = channel.strip_prefix(&self.queues) {
            self.happened(queue, happened(text));
        }
    }

    fn passed(&self, passed: Passed) {
        if passed.is_turn {
            self.turns.note((passed.wait.queue.clone(), passed.waiter), Instant::now());
        }
        // Somebody may be about to ask.
        drop(self.wait(&passed.wait));
        self.over(&passed.wait);
    }

    fn happened(&self, queue: &str, what: Happened) {
        if let Some((seq, is_gone)) = what {
            let wait = |mode| Wait { queue: queue.to_owned(), seq, mode };
            self.over(&wait(Mode::Shared));
            if is_gone {
                self.over(&wait(Mode::Exclusive));
            }
        }
        self.followed.tell(&queue.to_owned(), |followed| {
            followed.count = self.followed.next_number();
            true
        });
    }

    fn over(&self, wait: &Wait) {
        self.waits.tell(wait, |waited| {
            *waited = Waited::Over;
            true
        });
    }

    /// The server said that this blocks an entry of ours, and will tell us when it does no more.
    pub(crate) fn expect(&self, wait: &Wait, known: Known) {
        self.waits.join(wait);
        self.waits.tell(wait, |waited| {
            // Its end may have been told before this answer came.
            if !waited.is_over() {
                *waited = Waited::Blocks(known);
            }
            false
        });
    }

    /// No entry of ours waits for this any more.
    pub(crate) fn forget(&self, wait: &Wait) {
        self.waits.end_if_idle(wait);
    }

    /// Waits for what the server may not have been asked about.
    pub(crate) fn wait(&self, wait: &Wait) -> watch::Receiver<Waited> {
        self.waits.join(wait).0
    }

    /// Forgets what nobody has waited for during a moment. Answers the channels that nobody listens to any more.
    pub(crate) fn sweep(&self) -> Vec<String> {
        self.waits.sweep();
        self.followed.sweep().iter().map(|queue| self.channel(queue)).collect()
    }

    /// Whether the server told just now that nothing blocks this entry.
    pub(crate) fn take_turn(&self, queue: &str, seq: u64) -> bool {
        let told = self.turns.update((queue.to_owned(), seq), Option::take);
        told.is_some_and(|at| at.elapsed() < FRESH)
    }
}

impl Waited {
    pub(crate) fn is_over(&self) -> bool {
        matches!(self, Self::Over)
    }
}

impl Passed {
    /// `queue gone mode waiter free|blocked`.
    pub(crate) fn read(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        let mut word = || words.next();
        let (queue, gone, mode, waiter, turn) = (word()?, word()?, word()?, word()?, word()?);
        let wait = Wait { queue: queue.to_owned(), seq: gone.parse().ok()?, mode: mode_of(mode)? };
        Some(Self { wait, waiter: waiter.parse().ok()?, is_turn: turn == "free" })
    }
}

/// `gone 7` or `shared 7`; others are of no interest to those who wait for an entry.
pub(crate) fn happened(text: &str) -> Happened {
    let (what, seq) = text.split_once(' ')?;
    let seq = seq.parse().ok()?;
    match what {
        "gone" => Some((seq, true)),
        "shared" => Some((seq, false)),
        _ => None,
    }
}

/// A mode as our scripts write it.
pub(crate) fn word_for(mode: Mode) -> &'static str {
    match mode {
        Mode::Exclusive => "exclusive",
        Mode::Shared => "shared",
    }
}

pub(crate) fn mode_of(word: &str) -> Option<Mode> {
    [Mode::Exclusive, Mode::Shared].into_iter().find(|mode| word_for(*mode) == word)
}

#[cfg(test)]
mod tests {
    use std::thread::sleep;

    use super::*;

    /// Longer than a watch lingers.
    const MOMENT: Duration = Duration::from_millis(1_100);

    #[test]
    fn what_happened_to_an_entry_is_told() {
        assert_eq!(happened("gone 7"), Some((7, true)));
        assert_eq!(happened("shared 7"), Some((7, false)));
        for other in ["", "entered", "updated", "written 7", "gone", "gone x", "gone 7 8"] {
            assert_eq!(happened(other), None, "{other:?}");
        }
    }

    #[test]
    fn what_nobody_waits_for_is_forgotten() {
        let followed = shared_watches::SharedWatches::lingering(MOMENT / 2);
        let hub = Subscriptions { followed, ..Subscriptions::new("{a}:", "own") };
        let wait = Wait { queue: "lock/a".to_owned(), seq: 7, mode: Mode::Exclusive };
        let waiting = hub.wait(&wait);
        hub.expect(&wait, Known { epoch: 1, until: Instant::now() });
        // Its session is lost while somebody waits for it yet.
        hub.forget(&wait);
        let (following, channel) = hub.follow("lock/a", 1);
        assert_eq!(channel.as_deref(), Some("{a}:queue:lock/a"));
        for _ in 0..2 {
            assert!(hub.sweep().is_empty());
            sleep(MOMENT);
        }
        assert_eq!((hub.waits.keys().len(), hub.channels().len()), (1, 2), "somebody waits");
        drop((waiting, following));
        assert!(hub.sweep().is_empty(), "nobody has waited for no time");
        sleep(MOMENT);
        assert_eq!(hub.sweep(), ["{a}:queue:lock/a"]);
        assert_eq!(
            (hub.waits.keys().len(), hub.channels()),
            (0, vec!["{a}:client:own".to_owned()])
        );
    }
}
