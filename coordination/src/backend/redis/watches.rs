//! Notifications: what the server tells by itself, on the one connection.
//!
//! Each process has a channel of its own, on which whoever leaves a queue tells exactly those whom he kept
//! waiting, and whether their turn has come by that. Who observes a queue, or waits for an entry that is not
//! the one right before his own, listens to the queue's channel, where everything that happens is told.
//! A message may be lost with its connection, so that waiters look again: after each loss of a connection, and
//! when the lease of what they wait for may be over.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use redis::Value;
use tokio::sync::watch;

use crate::backend::Mode;
use crate::backend::server::hub;

/// How long it is remembered that something has gone, for a waiter who is about to ask.
const REMEMBERED: Duration = Duration::from_secs(30);
/// How old a message may be that stands for an answer.
const FRESH: Duration = Duration::from_millis(500);

/// What somebody waits for: that this entry is gone, or no longer blocks entries of this mode.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Wait {
    pub(super) queue: String,
    pub(super) seq: u64,
    pub(super) shared: bool,
}

/// What was told on this process's channel.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Passed {
    pub(super) wait: Wait,
    /// The entry that waited.
    pub(super) waiter: u64,
    /// Nothing blocks it any more.
    pub(super) is_turn: bool,
}

/// What was told on a queue's channel: an entry that is gone, or has become shared; `None`: something else.
pub(super) type Happened = Option<(u64, bool)>;

/// All that is listened to.
pub(super) struct Hub {
    /// This process's channel.
    own: String,
    /// What the channels of queues begin with.
    queues: String,
    followed: hub::Hub<String, Followed>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    waits: HashMap<Wait, Waited>,
    /// Told before somebody asked.
    told: VecDeque<(Instant, Wait)>,
    /// Entries whose turn has come, with when that was told.
    turns: HashMap<(String, u64), Instant>,
}

struct Waited {
    over: watch::Sender<bool>,
    /// On which connection it was said, and until when what is waited for has its lease.
    known: Option<Known>,
}

/// As of when the server said that something blocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known {
    pub(super) epoch: u64,
    pub(super) until: Instant,
}

/// What was told of a queue on its channel.
#[derive(Default)]
struct Followed {
    /// The number of the last message: another one for each.
    count: u64,
    /// The connection on which the channel is subscribed to.
    epoch: Option<u64>,
}

/// What was told of a queue before it was read last.
#[derive(Clone, Copy)]
pub(super) struct Told {
    /// The number of the last message when it was asked for; `None`: nobody listened.
    pub(super) count: Option<u64>,
    /// When the first of its leases may be over.
    pub(super) expires: Option<Instant>,
}

/// Somebody who listens to a queue.
pub(super) struct Following(watch::Receiver<Followed>);

/// Somebody who waits.
pub(super) struct Waiting<'a> {
    hub: &'a Hub,
    wait: Wait,
    over: watch::Receiver<bool>,
    /// `None`: the server was not asked yet, and tells nothing by itself on our own channel.
    pub(super) known: Option<Known>,
}

impl Hub {
    /// `base`: what all keys of the namespace begin with.
    pub(super) fn new(base: &str, client: &str) -> Self {
        Self {
            own: format!("{base}client:{client}"),
            queues: format!("{base}queue:"),
            followed: hub::Hub::default(),
            state: Mutex::default(),
        }
    }

    /// What a new connection has to subscribe to.
    pub(super) fn channels(&self) -> Vec<String> {
        let followed = self.followed.keys();
        let queues = followed.iter().map(|queue| format!("{}{queue}", self.queues));
        std::iter::once(self.own.clone()).chain(queues).collect()
    }

    /// They are subscribed to on this connection: what was told before may have been missed.
    pub(super) fn subscribed(&self, channels: &[String], epoch: u64) {
        for queue in channels.iter().filter_map(|channel| channel.strip_prefix(&self.queues)) {
            self.followed.tell(&queue.to_owned(), |followed| {
                *followed = Followed { count: self.followed.next_number(), epoch: Some(epoch) };
                true
            });
        }
    }

    /// Listens to a queue; answers the channel, if it is not subscribed to on this connection.
    pub(super) fn follow(&self, queue: &str, epoch: u64) -> (Following, Option<String>) {
        let (followed, _) = self.followed.join(&queue.to_owned());
        let is_subscribed = followed.borrow().epoch == Some(epoch);
        let channel = (!is_subscribed).then(|| format!("{}{queue}", self.queues));
        (Following(followed), channel)
    }

    /// The number of the last message of the queue, if it is listened to on this connection.
    pub(super) fn count(&self, queue: &str, epoch: u64) -> Option<u64> {
        let followed = self.followed.find(&queue.to_owned())?;
        let followed = followed.borrow();
        (followed.epoch == Some(epoch)).then_some(followed.count)
    }

    /// A message came. Answers a channel to which nobody listens any more.
    pub(super) fn told(&self, message: &[Value]) -> Option<String> {
        let [Value::BulkString(channel), Value::BulkString(text)] = message else { return None };
        let (channel, text) = (str::from_utf8(channel).ok()?, str::from_utf8(text).ok()?);
        if channel == self.own {
            self.passed(Passed::read(text)?);
            return None;
        }
        let queue = channel.strip_prefix(&self.queues)?;
        self.happened(queue, happened(text)).then(|| channel.to_owned())
    }

    fn passed(&self, passed: Passed) {
        let mut state = self.state();
        let now = Instant::now();
        if passed.is_turn {
            state.turns.insert((passed.wait.queue.clone(), passed.waiter), now);
        }
        state.forget_old(now);
        if let Some(waited) = state.waits.get(&passed.wait) {
            waited.over.send_replace(true);
        } else {
            let waited = Waited { over: watch::Sender::new(true), known: None };
            state.waits.insert(passed.wait.clone(), waited);
        }
        state.told.push_back((now, passed.wait));
    }

    /// Answers whether nobody listens, and nobody did for a while.
    fn happened(&self, queue: &str, what: Happened) -> bool {
        if let Some((seq, is_gone)) = what {
            let state = self.state();
            let over = |shared| Wait { queue: queue.to_owned(), seq, shared };
            let waits = [Some(over(true)), is_gone.then(|| over(false))];
            for waited in waits.iter().flatten().filter_map(|wait| state.waits.get(wait)) {
                waited.over.send_replace(true);
            }
        }
        let queue = queue.to_owned();
        self.followed.tell(&queue, |followed| {
            followed.count = self.followed.next_number();
            true
        });
        self.followed.sweep_one(&queue)
    }

    /// The server said that this blocks an entry of ours, and will tell us when it does no more.
    pub(super) fn expect(&self, wait: &Wait, known: Known) {
        let mut state = self.state();
        let waited = state
            .waits
            .entry(wait.clone())
            .or_insert_with(|| Waited { over: watch::Sender::new(false), known: None });
        waited.known = Some(known);
    }

    /// No entry of ours waits for this any more.
    pub(super) fn forget(&self, wait: &Wait) {
        let mut state = self.state();
        if state.waits.get(wait).is_some_and(|waited| waited.over.receiver_count() == 0) {
            state.waits.remove(wait);
        }
    }

    pub(super) fn wait(&self, wait: Wait) -> Waiting<'_> {
        let mut state = self.state();
        let waited = state
            .waits
            .entry(wait.clone())
            .or_insert_with(|| Waited { over: watch::Sender::new(false), known: None });
        let (over, known) = (waited.over.subscribe(), waited.known);
        drop(state);
        Waiting { hub: self, wait, over, known }
    }

    /// Whether the server told just now that nothing blocks this entry.
    pub(super) fn take_turn(&self, queue: &str, seq: u64) -> bool {
        let told = self.state().turns.remove(&(queue.to_owned(), seq));
        told.is_some_and(|at| at.elapsed() < FRESH)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl State {
    fn forget_old(&mut self, now: Instant) {
        while let Some((at, _)) = self.told.front()
            && now.duration_since(*at) > REMEMBERED
        {
            let Some((_, wait)) = self.told.pop_front() else { break };
            if self.waits.get(&wait).is_some_and(|waited| waited.over.receiver_count() == 0) {
                self.waits.remove(&wait);
            }
        }
        if self.turns.len() > self.told.len() {
            self.turns.retain(|_, at| now.duration_since(*at) < FRESH);
        }
    }
}

impl Following {
    /// Resolves when there were other than this many messages.
    pub(super) async fn other_than(&mut self, count: u64) {
        // The sender stays while there is a receiver; were it gone, something has changed.
        let _ = self.0.wait_for(|followed| followed.count != count).await;
    }
}

impl Waiting<'_> {
    /// Resolves when it was told that the wait is over.
    pub(super) async fn over(&mut self) {
        // The sender stays in the map while there is a receiver; were it gone, looking again does no harm.
        let _ = self.over.wait_for(|over| *over).await;
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut state = self.hub.state();
        let waited = state.waits.get(&self.wait);
        // What is expected, or told and remembered, stays for as long as that.
        if waited.is_some_and(|waited| {
            waited.known.is_none() && !*waited.over.borrow() && waited.over.receiver_count() <= 1
        }) {
            state.waits.remove(&self.wait);
        }
    }
}

impl Passed {
    /// `queue gone mode waiter free|blocked`.
    pub(super) fn read(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        let mut word = || words.next();
        let (queue, gone, mode, waiter, turn) = (word()?, word()?, word()?, word()?, word()?);
        let wait =
            Wait { queue: queue.to_owned(), seq: gone.parse().ok()?, shared: is_shared(mode)? };
        Some(Self { wait, waiter: waiter.parse().ok()?, is_turn: turn == "free" })
    }
}

/// `gone 7` or `shared 7`; others are of no interest to those who wait for an entry.
pub(super) fn happened(text: &str) -> Happened {
    let (what, seq) = text.split_once(' ')?;
    let seq = seq.parse().ok()?;
    match what {
        "gone" => Some((seq, true)),
        "shared" => Some((seq, false)),
        _ => None,
    }
}

/// A mode as our scripts write it.
pub(super) fn word_for(mode: Mode) -> &'static str {
    match mode {
        Mode::Exclusive => "exclusive",
        Mode::Shared => "shared",
    }
}

pub(super) fn is_shared(word: &str) -> Option<bool> {
    match word {
        "shared" => Some(true),
        "exclusive" => Some(false),
        _ => None,
    }
}
