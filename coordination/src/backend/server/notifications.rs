//! Notifications on Redis and PostgreSQL, whose servers send to a connection every message that is published on the channels to
//! which the connection is subscribed.
//!
//! Each process has a channel of its own. Each entry that has to wait has a *blocker*: the newest of the entries for which it has
//! to wait. When an entry leaves a queue, the server publishes a message for each entry whose blocker it was, on the channel of the
//! process that has the waiting entry. The message says whether anything else blocks the waiting entry now.
//!
//! Each queue has a channel, too, on which every change of the queue is published. Only some processes subscribe to it: those that
//! observe the queue, and those that wait for the end of an entry that is not the blocker of an entry of theirs. When such an entry
//! leaves, no message comes on the process's own channel.
//!
//! Messages are lost when a connection breaks. So waiters ask the server again after each loss of a connection, and when the lease
//! of the entry that they wait for may be over.

use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::bounded_cache::BoundedCache;
use super::shared_watches;
use crate::backend::Mode;

/// A message may say that nothing blocks an entry of ours any more. If the message is not older than this, `position` believes it
/// and does not ask the server.
const FRESH: Duration = Duration::from_millis(500);
/// How long a channel stays subscribed after the last caller stopped listening to it. A caller does not listen while it reads the
/// queue, and this read may take seconds if 20,000 clients observe the queue. When the caller listens again after that, the channel
/// should still be subscribed.
const LINGER: Duration = Duration::from_secs(10);

/// What a caller waits for: that the entry with the number `seq` is gone, or no longer blocks entries of the mode `mode`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Wait {
    pub(crate) queue: String,
    pub(crate) seq: u64,
    pub(crate) mode: Mode,
}

/// A message on this process's channel: an entry no longer blocks one of our entries.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Passed {
    /// The wait that this message ends. It has the number of an entry, and a mode: the entry no longer blocks entries of this mode.
    pub(crate) wait: Wait,
    /// The number of our entry that was blocked.
    pub(crate) waiter: u64,
    /// Whether nothing else blocks our entry, so that its turn has come.
    pub(crate) is_turn: bool,
    /// The name of the record of the server that has published this, where servers have records (Redis). In a cluster, a connection
    /// to one server also gets what another one publishes, such as a master that was replaced and does not know it yet.
    pub(crate) record: Option<String>,
    /// The id of our entry that was blocked, where the server says so (Redis, if its turn has come). There, who may publish may have no
    /// other right, and does not know the id.
    pub(crate) entry: Option<String>,
}

/// A message on a queue's channel. `Some`: the number of an entry, with true if the entry is gone, and with false if the entry has
/// become shared. `None`: any other change of the queue.
pub(crate) type Happened = Option<(u64, bool)>;

/// The channels to which this process subscribes, and the entries for whose end it waits.
pub(crate) struct Subscriptions {
    /// The name of this process's own channel.
    own: String,
    /// The prefix of the names of queues' channels.
    queues: String,
    /// The queues to whose changes somebody in this process listens, each with what came on its channel.
    followed: shared_watches::SharedWatches<String, Followed>,
    /// What callers of this process wait for, each with what the server last said of it. If the message that ends a wait comes
    /// before the wait has begun, it is kept here for a moment.
    waits: shared_watches::SharedWatches<Wait, Waited>,
    /// Our entries that nothing blocks any more, each by its queue and its number, with the message that said so.
    turns: BoundedCache<(String, u64), Turn>,
}

/// A message that the turn of an entry of ours has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Turn {
    at: Instant,
    /// The epoch of the connection on which it came.
    pub(crate) epoch: u64,
    /// As in [`Passed`].
    pub(crate) record: Option<String>,
    /// As in [`Passed`].
    pub(crate) entry: Option<String>,
}

/// What is known of a wait.
#[derive(Clone, Copy, Default)]
pub(crate) enum Waited {
    /// The server was not asked yet. So it does not know that somebody waits for this, and will send no message.
    #[default]
    Unknown,
    /// The entry blocks one of our entries. The server will send a message on this process's channel when the entry no longer
    /// blocks ours.
    Blocks(Known),
    /// The entry is gone, or no longer blocks entries of the mode in question: the wait is over.
    Over(Said),
}

/// Keeps what is known of a wait that was noted for an entry of ours, for as long as this exists: the entry may wait for long before
/// anybody waits for the message.
#[derive(Clone)]
pub(crate) struct Expected {
    pub(crate) wait: Wait,
    kept: watch::Receiver<Waited>,
}

/// When the message came that a wait is over, and the epoch of the connection on which it came.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Said {
    at: Instant,
    epoch: u64,
}

/// The epoch of the connection on which the server said that an entry blocks, and until when that entry's lease lasts, unless it is
/// renewed. The waiter asks the server again when the connection is lost, or when the lease may be over.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known {
    pub(crate) epoch: u64,
    pub(crate) until: Instant,
}

/// What came on a queue's channel.
#[derive(Default)]
pub(crate) struct Followed {
    /// The number of the last message. This process numbers the messages as they come, with rising numbers.
    pub(crate) count: u64,
    /// The epoch of the connection on which the channel is subscribed; `None`: it is not subscribed yet.
    epoch: Option<u64>,
}

/// What was known of a queue when it was last read. `changed` waits until something newer is known.
#[derive(Clone, Copy)]
pub(crate) struct Told {
    /// The number of the last message before the read; `None`: the channel was not subscribed.
    pub(crate) count: Option<u64>,
    /// When the first of the leases of the queue's entries ends, unless it is renewed.
    pub(crate) expires: Option<Instant>,
}

impl Subscriptions {
    /// `base`: the prefix of all keys of the namespace.
    pub(crate) fn new(base: &str, client: &str) -> Self {
        Self {
            own: format!("{base}client:{client}"),
            queues: format!("{base}queue:"),
            followed: shared_watches::SharedWatches::lingering(LINGER),
            waits: shared_watches::SharedWatches::default(),
            turns: BoundedCache::default(),
        }
    }

    /// The channels to which a new connection has to subscribe: this process's own channel, and the channels of those queues to
    /// which somebody listens, or has listened within the last [`LINGER`].
    pub(crate) fn channels(&self) -> Vec<String> {
        self.followed.sweep();
        let followed = self.followed.keys();
        let queues = followed.iter().map(|queue| self.channel(queue));
        std::iter::once(self.own.clone()).chain(queues).collect()
    }

    fn channel(&self, queue: &str) -> String {
        format!("{}{queue}", self.queues)
    }

    /// Notes that these channels are subscribed on the connection of this epoch. Earlier messages may have been lost, so all
    /// callers who listen to these queues are woken, and read the queues again.
    pub(crate) fn subscribed(&self, channels: &[String], epoch: u64) {
        for queue in channels.iter().filter_map(|channel| channel.strip_prefix(&self.queues)) {
            self.followed.tell(&queue.to_owned(), |followed| {
                *followed = Followed { count: self.followed.next_number(), epoch: Some(epoch) };
                true
            });
        }
    }

    /// Begins to listen to the changes of a queue. If the queue's channel is not subscribed yet on the connection of this epoch,
    /// returns the channel too, so that the caller subscribes to it.
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

    /// The number of the queue's last message; `None`: the queue's channel is not subscribed on the connection of this epoch.
    pub(crate) fn count(&self, queue: &str, epoch: u64) -> Option<u64> {
        let followed = self.followed.find(&queue.to_owned())?;
        let followed = followed.borrow();
        (followed.epoch == Some(epoch)).then_some(followed.count)
    }

    /// Processes a message that has come on a channel, on the connection of this epoch.
    pub(crate) fn told(&self, epoch: u64, channel: &str, text: &str) {
        if channel == self.own {
            Passed::read(text).into_iter().for_each(|passed| self.passed(epoch, passed));
        } else if let Some(queue) = channel.strip_prefix(&self.queues) {
            self.happened(epoch, queue, happened(text));
        }
    }

    fn passed(&self, epoch: u64, passed: Passed) {
        if passed.is_turn {
            let (record, entry) = (passed.record, passed.entry);
            let turn = Turn { at: Instant::now(), epoch, record, entry };
            self.turns.note((passed.wait.queue.clone(), passed.waiter), turn);
        }
        // A caller may begin to wait only after this message has come, and then has to find that its wait is over. So the message
        // is kept even if nobody waits yet: the call of `join` creates the state in which it is kept.
        self.waits.join(&passed.wait);
        self.over(epoch, &passed.wait);
    }

    /// Processes a change of a queue: one that a message tells of, or one that this process has made itself over the connection of this
    /// epoch, where no messages come.
    pub(crate) fn happened(&self, epoch: u64, queue: &str, what: Happened) {
        if let Some((seq, is_gone)) = what {
            let wait = |mode| Wait { queue: queue.to_owned(), seq, mode };
            self.over(epoch, &wait(Mode::Shared));
            if is_gone {
                self.over(epoch, &wait(Mode::Exclusive));
            }
        }
        self.followed.tell(&queue.to_owned(), |followed| {
            followed.count = self.followed.next_number();
            true
        });
    }

    fn over(&self, epoch: u64, wait: &Wait) {
        self.waits.tell(wait, |waited| {
            // The server of a newer connection has said that the entry blocks ours. A message of an earlier one does not end that.
            let is_outdated = matches!(waited, Waited::Blocks(known) if known.epoch > epoch);
            if !is_outdated {
                *waited = Waited::Over(Said { at: Instant::now(), epoch });
            }
            !is_outdated
        });
    }

    /// Notes that the server has answered that this entry blocks one of our entries. The server will send a message when this entry
    /// no longer blocks ours.
    pub(crate) fn expect(&self, wait: Wait, known: Known) -> Expected {
        let (kept, _) = self.waits.join(&wait);
        self.waits.tell(&wait, |waited| {
            // The server's message that the entry no longer blocks ours may have overtaken the server's answer that it does. The
            // message tells of the later state, so it is kept. But if it came on an earlier connection, another server may have
            // answered since, at which the entry still blocks ours.
            if !matches!(waited, Waited::Over(said) if said.epoch >= known.epoch) {
                *waited = Waited::Blocks(known);
            }
            false
        });
        Expected { wait, kept }
    }

    /// Forgets this wait, because the entry of ours for which it was noted does not wait any more. If another caller still waits
    /// for the same entry in the same mode, the wait is kept.
    pub(crate) fn forget(&self, expected: Expected) {
        let Expected { wait, kept } = expected;
        drop(kept);
        self.waits.end_if_idle(&wait);
    }

    /// Begins to wait; `epoch`: that of the connection in use. If the receiver has [`Waited::Unknown`], the caller has to ask the
    /// server, because the server sends a message only to those who have asked.
    ///
    /// That the wait is over is believed only of a message of the last moment, on the connection in use. Somebody who begins to wait
    /// has just read that the entry still blocks his: if an earlier message were believed, which another server may have sent, he
    /// would read again and again without a pause.
    pub(crate) fn wait(&self, wait: &Wait, epoch: u64) -> watch::Receiver<Waited> {
        let waiting = self.waits.join(wait).0;
        self.waits.tell(wait, |waited| {
            if let Waited::Over(said) = waited
                && (said.epoch < epoch || said.at.elapsed() >= FRESH)
            {
                *waited = Waited::Unknown;
            }
            false
        });
        waiting
    }

    /// Forgets the waits, and the queues' channels, that no caller has used during their linger times. Returns those channels, so
    /// that the caller unsubscribes from them.
    pub(crate) fn sweep(&self) -> Vec<String> {
        self.waits.sweep();
        self.followed.sweep().iter().map(|queue| self.channel(queue)).collect()
    }

    /// The message within the last [`FRESH`] that nothing blocks this entry of ours. It is forgotten, so that it is used only once.
    pub(crate) fn take_turn(&self, queue: &str, seq: u64) -> Option<Turn> {
        let told = self.turns.update((queue.to_owned(), seq), Option::take);
        told.filter(|turn| turn.at.elapsed() < FRESH)
    }
}

impl Waited {
    pub(crate) fn is_over(&self) -> bool {
        matches!(self, Self::Over(_))
    }
}

impl Passed {
    /// Parses five words: the queue; the number of the entry that no longer blocks ours; the mode of our entry; the number of our
    /// entry; and `free` if nothing else blocks our entry, otherwise `blocked`. A sixth one is the name of the server's record, and a
    /// seventh one the id of our entry.
    pub(crate) fn read(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        let mut word = || words.next();
        let (queue, gone, mode, waiter, turn) = (word()?, word()?, word()?, word()?, word()?);
        let wait = Wait { queue: queue.to_owned(), seq: gone.parse().ok()?, mode: mode_of(mode)? };
        let (record, entry) = (word().map(str::to_owned), word().map(str::to_owned));
        Some(Self { wait, waiter: waiter.parse().ok()?, is_turn: turn == "free", record, entry })
    }
}

/// Parses `gone 7` or `shared 7`. For all other messages returns `None`: they concern nobody who waits for an entry.
pub(crate) fn happened(text: &str) -> Happened {
    let (what, seq) = text.split_once(' ')?;
    let seq = seq.parse().ok()?;
    match what {
        "gone" => Some((seq, true)),
        "shared" => Some((seq, false)),
        _ => None,
    }
}

/// The word for a mode in the scripts on the server and in the messages.
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

    /// Otherwise a waiter would ask the new server again and again without a pause, as long as the entry blocks it there.
    #[test]
    fn a_message_of_an_earlier_connection_does_not_end_a_wait() {
        let hub = Subscriptions::new("{a}:", "own");
        let wait = Wait { queue: "lock/a".to_owned(), seq: 7, mode: Mode::Exclusive };
        let expect = |epoch| {
            hub.expect(wait.clone(), Known { epoch, until: Instant::now() });
        };
        let told = |epoch| hub.told(epoch, "{a}:client:own", "lock/a 7 exclusive 9 free");
        let is_over = || hub.waits.join(&wait).0.borrow().is_over();
        expect(1);
        told(1);
        assert!(is_over(), "told on the connection on which it was asked for");
        expect(1);
        assert!(is_over(), "the message has overtaken the answer");
        expect(2);
        assert!(!is_over(), "the answer of the new server is later than the old one's message");
        told(1);
        hub.told(1, "{a}:queue:lock/a", "gone 7");
        assert!(!is_over(), "a late message of the old server");
        told(2);
        assert!(is_over());
        told(3);
        expect(2);
        assert!(is_over(), "an answer to a question of before the message");
    }

    /// As above, of a wait for an entry of which the server was never asked.
    #[test]
    fn who_begins_to_wait_believes_no_message_of_an_earlier_connection_or_of_long_ago() {
        let hub = Subscriptions::new("{a}:", "own");
        let wait = Wait { queue: "lock/a".to_owned(), seq: 7, mode: Mode::Shared };
        let is_over = |epoch| hub.wait(&wait, epoch).borrow().is_over();
        assert!(!is_over(1));
        hub.told(1, "{a}:queue:lock/a", "shared 7");
        assert!(is_over(1), "it was told just now");
        assert!(!is_over(2), "another server may be in use, at which the entry is as it was");
        hub.told(2, "{a}:queue:lock/a", "shared 7");
        assert!(is_over(2));
        sleep(FRESH);
        assert!(!is_over(2), "whoever still finds the entry has read later");
    }

    #[test]
    fn a_turn_names_the_record_of_the_server_that_has_told_of_it_and_the_entry() {
        let hub = Subscriptions::new("{a}:", "own");
        for (text, record, entry) in [
            ("lock/a 7 exclusive 9 free", None, None),
            ("lock/a 7 exclusive 9 free f00:5", Some("f00:5"), None),
            ("lock/a 7 exclusive 9 free f00:5 e-1", Some("f00:5"), Some("e-1")),
        ] {
            hub.told(3, "{a}:client:own", text);
            let turn = hub.take_turn("lock/a", 9).expect("it was told just now");
            assert_eq!((turn.epoch, turn.record.as_deref()), (3, record));
            assert_eq!(turn.entry.as_deref(), entry);
            assert_eq!(hub.take_turn("lock/a", 9), None, "once only");
        }
    }

    /// An entry of ours that rests waits for nothing yet, and is to be told without a request when it does.
    #[test]
    fn what_an_entry_of_ours_waits_for_is_known_until_it_is_forgotten() {
        let hub = Subscriptions::new("{a}:", "own");
        let wait = Wait { queue: "lock/a".to_owned(), seq: 7, mode: Mode::Exclusive };
        let expected = hub.expect(wait.clone(), Known { epoch: 1, until: Instant::now() });
        for _ in 0..2 {
            hub.sweep();
            sleep(MOMENT);
        }
        hub.sweep();
        assert!(matches!(*hub.wait(&wait, 1).borrow(), Waited::Blocks(_)));
        hub.forget(expected);
        assert!(hub.waits.keys().is_empty());
    }

    #[test]
    fn what_nobody_waits_for_is_forgotten() {
        let followed = shared_watches::SharedWatches::lingering(MOMENT / 2);
        let hub = Subscriptions { followed, ..Subscriptions::new("{a}:", "own") };
        let wait = Wait { queue: "lock/a".to_owned(), seq: 7, mode: Mode::Exclusive };
        let waiting = hub.wait(&wait, 1);
        let expected = hub.expect(wait, Known { epoch: 1, until: Instant::now() });
        // Our entry is lost with its session. Another caller still waits for the end of the same blocking entry.
        hub.forget(expected);
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
