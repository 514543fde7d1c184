//! What is waited for, and the poll that asks the server for all waiters of this client, because the server has no notifications.
//!
//! The row of each queue has a number that changes with each change of the queue. The poll reads these numbers, for all queues
//! together. It reads entries only in queues whose number has changed, or when a lease has run out. It reads often while something
//! happens, and seldom while nothing does. It reads immediately after this client itself has changed a queue that it follows.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

use mysql_async::Row;
use tokio::sync::{Notify, watch};

use super::client::{Mysql, ask};
use super::database::NOW;
use super::statement::literal;
use crate::backend::Mode;
use crate::backend::server::in_time;
use crate::backend::server::shared_watches::SharedWatches;
use crate::backend::server::sql::{Connections, LITTLE, Row as _};
use crate::error::Result;

/// The pause between two polls while something happens: a lock changes hands within 50 ms.
const BUSY: Duration = Duration::from_millis(20);
/// For this long after a change, the pause stays [`BUSY`].
const STAYS_BUSY: Duration = Duration::from_secs(1);
/// The longest pause between two polls while nothing happens. An idle client, with its heartbeats and with the reads that
/// [`LONGEST_RECHECK`] demands, then sends at most four requests a second.
const IDLE: Duration = Duration::from_millis(400);
/// The shortest pause between two polls.
const APART: Duration = Duration::from_millis(5);
/// Each entry that is waited for is read again after this time at the latest, even if its queue's number has not changed: an
/// operator who deletes an entry may not change the number.
const LONGEST_RECHECK: Duration = Duration::from_secs(5);
/// How many queues or entries one query asks for. Larger queries would delay the heartbeats, which go over the same connection.
const PIECE: usize = 200;

/// What somebody waits for: that this entry is gone, or no longer blocks entries of this mode.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Wait {
    pub(super) path: String,
    pub(super) seq: u64,
    pub(super) mode: Mode,
}

/// What is known of an entry that is waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Waited {
    /// The server was not asked.
    #[default]
    Unknown,
    /// The entry blocks. `until`: when its lease ends, unless it is renewed; `again`: when it is read again at the latest.
    Blocks { until: Instant, again: Instant },
    /// The entry blocks no longer, or its session's lease has run out: the waiter asks the server itself.
    Over,
}

/// All entries that are waited for, and all queues that are followed.
pub(super) struct Polls {
    /// The followed queues by their paths, with the newest number of changes. Zero: there is no such queue, or the server was not
    /// asked.
    queues: SharedWatches<String, u64>,
    waits: SharedWatches<Wait, Waited>,
    wanted: Notify,
    state: Mutex<State>,
    /// An entry that is waited for is read again after this time at the latest.
    recheck: Duration,
}

#[derive(Default)]
struct State {
    is_running: bool,
    /// When the newest poll that got an answer was sent.
    asked: Option<Instant>,
}

/// A waiter for an entry. The last one to be dropped removes the entry from [`Polls`].
pub(super) struct Waiting<'a> {
    polls: &'a Polls,
    wait: Wait,
    waited: Option<watch::Receiver<Waited>>,
}

/// The task that polls, with what it knows from one poll to the next.
struct Poll {
    polls: Arc<Polls>,
    connections: Weak<Connections<Mysql>>,
    /// The queues as of the last poll, by path.
    seen: HashMap<String, Seen>,
    busy_until: Instant,
    pause: Duration,
}

/// A queue as of the last poll: its id, which changes if the queue is removed and created again, and its number of changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Seen {
    id: u64,
    changes: u64,
}

impl Polls {
    /// `lease`: the lease of the client's sessions.
    pub(super) fn new(lease: Duration) -> Self {
        Self {
            queues: SharedWatches::default(),
            waits: SharedWatches::default(),
            wanted: Notify::default(),
            state: Mutex::default(),
            recheck: lease.min(LONGEST_RECHECK),
        }
    }

    /// Begins to wait for an entry.
    pub(super) fn wait(
        self: &Arc<Self>,
        wait: Wait,
        connections: &Arc<Connections<Mysql>>,
    ) -> Waiting<'_> {
        let (waited, _) = self.waits.join(&wait);
        self.run(connections);
        Waiting { polls: self, wait, waited: Some(waited) }
    }

    /// Begins to follow a queue.
    pub(super) fn follow(
        self: &Arc<Self>,
        path: &str,
        connections: &Arc<Connections<Mysql>>,
    ) -> watch::Receiver<u64> {
        let (followed, _) = self.queues.join(&path.to_owned());
        self.run(connections);
        followed
    }

    /// When the newest poll that got an answer was sent.
    pub(super) fn asked(&self) -> Option<Instant> {
        self.state().asked
    }

    /// Called after this client has changed a queue. `entry`: an entry that may block nothing any more. Wakes those who wait for
    /// the entry, and makes the poll read at once if the queue is followed.
    pub(super) fn touched(&self, path: &str, entry: Option<u64>) {
        for mode in [Mode::Exclusive, Mode::Shared] {
            let Some(seq) = entry else { break };
            self.waits.tell(&Wait { path: path.to_owned(), seq, mode }, |waited| {
                *waited = Waited::Over;
                true
            });
        }
        if self.queues.find(&path.to_owned()).is_some() {
            self.wanted.notify_one();
        }
    }

    fn run(self: &Arc<Self>, connections: &Arc<Connections<Mysql>>) {
        self.wanted.notify_one();
        if std::mem::replace(&mut self.state().is_running, true) {
            return;
        }
        let poll = Poll {
            polls: Arc::clone(self),
            connections: Arc::downgrade(connections),
            seen: HashMap::new(),
            busy_until: Instant::now(),
            pause: BUSY,
        };
        tokio::spawn(poll.run());
    }

    /// The queues and entries that are waited for; `None`: there are none, and the poll ends.
    fn wanted(&self) -> Option<(HashSet<String>, Vec<Wait>)> {
        let mut state = self.state();
        self.queues.sweep();
        self.waits.sweep();
        let waits = self.waits.keys();
        let mut paths: HashSet<_> = self.queues.keys().into_iter().collect();
        paths.extend(waits.iter().map(|wait| wait.path.clone()));
        // This is set under the mutex: a waiter who comes after this finds that no poll is running, and starts one.
        state.is_running = !paths.is_empty();
        state.is_running.then_some((paths, waits))
    }

    fn waited(&self, wait: &Wait) -> Waited {
        self.waits.find(wait).map(|waited| *waited.borrow()).unwrap_or_default()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Waiting<'_> {
    /// Resolves when the entry blocks no longer, or perhaps blocks no longer.
    pub(super) async fn over(&mut self) {
        if let Some(waited) = &mut self.waited {
            // If the watch has ended, something may have been missed, so this resolves, and the waiter asks the server.
            let _ = waited.wait_for(|waited| *waited == Waited::Over).await;
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.waited = None;
        self.polls.waits.end_if_idle(&self.wait);
    }
}

impl Poll {
    async fn run(mut self) {
        let _running = Running(Arc::clone(&self.polls));
        while let Some((paths, waits)) = self.polls.wanted() {
            let Some(connections) = self.connections.upgrade() else { return };
            let asked = Instant::now();
            // A change during this poll changes the number, so the next poll finds it.
            let polled = self.ask(&connections, &paths, &waits).await;
            drop(connections);
            match polled {
                Ok(has_changed) => {
                    self.polls.state().asked = Some(asked);
                    self.pause(has_changed, &waits).await;
                }
                // The waiters notice that no answer comes, ask the server themselves, and get the error.
                Err(_) => tokio::time::sleep(IDLE).await,
            }
        }
    }

    /// Makes one poll, and returns whether any queue has changed.
    async fn ask(
        &mut self,
        connections: &Arc<Connections<Mysql>>,
        paths: &HashSet<String>,
        waits: &[Wait],
    ) -> Result<bool> {
        let seen = self.changes(connections, paths).await?;
        let is_other = |path: &&String| self.seen.get(*path) != seen.get(*path);
        let changed: HashSet<_> = paths.iter().filter(is_other).cloned().collect();
        let due = self.due(waits, &changed);
        for piece in due.chunks(PIECE) {
            let asked = entries_of(piece, &seen);
            let found = match asked {
                Some(asked) => {
                    found(&in_time(connections.patience, ask(connections, &asked)).await?)?
                }
                None => Found::new(),
            };
            for wait in piece {
                let is_new = self.polls.waited(wait) == Waited::Unknown;
                let id = seen.get(&wait.path).map_or(0, |seen| seen.id);
                let waited = waited(wait, found.get(&(id, wait.seq)), is_new, self.polls.recheck);
                self.polls.waits.tell(wait, |known| {
                    *known = if *known == Waited::Over { Waited::Over } else { waited };
                    true
                });
            }
        }
        // `self.seen` is set only now: if a query above has failed, the next poll finds the same changes again.
        self.seen = seen;
        Ok(!changed.is_empty())
    }

    /// The waits whose entries this poll reads.
    fn due<'a>(&self, waits: &'a [Wait], changed: &HashSet<String>) -> Vec<&'a Wait> {
        let now = Instant::now();
        let is_due = |waited, soon| match waited {
            Waited::Unknown => true,
            Waited::Blocks { until, again } => until <= now || again <= soon,
            Waited::Over => false,
        };
        let waited: Vec<_> = waits.iter().map(|wait| self.polls.waited(wait)).collect();
        // If some entries are due, those that will be due soon are read with them, which saves queries.
        let some = waited.iter().any(|waited| is_due(*waited, now));
        let soon = if some { now + self.polls.recheck / 4 } else { now };
        let due = waits.iter().zip(&waited).filter(|(_, waited)| is_due(**waited, soon));
        let due: HashSet<_> = due.map(|(wait, _)| &wait.path).collect();
        let is_due = |wait: &&Wait| due.contains(&wait.path) || changed.contains(&wait.path);
        waits.iter().filter(is_due).collect()
    }

    /// Reads the numbers of changes, and wakes those who follow a queue whose number has changed.
    async fn changes(
        &self,
        connections: &Arc<Connections<Mysql>>,
        paths: &HashSet<String>,
    ) -> Result<HashMap<String, Seen>> {
        let mut seen = HashMap::with_capacity(paths.len());
        let paths: Vec<_> = paths.iter().collect();
        for piece in paths.chunks(PIECE) {
            let asked = changes_of(piece);
            let rows = in_time(connections.patience, ask(connections, &asked)).await?;
            for row in &rows {
                let path = row.bytes("watch", "path")?;
                let id = row.number("watch", "id")?;
                let changes = row.number("watch", "changes")?;
                seen.insert(String::from_utf8_lossy(&path).into_owned(), Seen { id, changes });
            }
        }
        for path in paths {
            let Seen { changes, .. } = *seen.entry(path.clone()).or_default();
            self.polls.queues.tell(path, |known| std::mem::replace(known, changes) != changes);
        }
        Ok(seen)
    }

    /// Waits until it is time for the next poll.
    async fn pause(&mut self, has_changed: bool, waits: &[Wait]) {
        tokio::time::sleep(APART).await;
        let now = Instant::now();
        if has_changed {
            self.busy_until = now + STAYS_BUSY;
        }
        self.pause = match now < self.busy_until {
            true => BUSY,
            false => (self.pause * 3 / 2).min(IDLE),
        };
        let ends = waits.iter().filter_map(|wait| match self.polls.waited(wait) {
            Waited::Blocks { until, .. } => Some(until + LITTLE),
            _ => None,
        });
        let until = ends.chain([now + self.pause - APART]).min().unwrap_or(now);
        tokio::select! {
            biased;
            () = self.polls.wanted.notified() => {}
            () = tokio::time::sleep_until(until.into()) => {}
        }
    }
}

/// Held by the running poll. If the poll panics, the drop of this notes that no poll is running, and the next waiter starts another
/// one.
struct Running(Arc<Polls>);

impl Drop for Running {
    fn drop(&mut self) {
        // If the poll ended because nobody waited, another one may be running by now, and `is_running` is about that one.
        if std::thread::panicking() {
            self.0.state().is_running = false;
        }
    }
}

fn changes_of(paths: &[&String]) -> String {
    let paths: Vec<_> = paths.iter().map(literal).collect();
    let paths = paths.join(", ");
    format!("SELECT path, id, changes FROM coordination_queues WHERE path IN ({paths})")
}

/// The query for the entries that are waited for, by the ids of their queues; `None`: none of the queues exists.
fn entries_of(waits: &[&Wait], seen: &HashMap<String, Seen>) -> Option<String> {
    let mut of: HashMap<u64, Vec<String>> = HashMap::new();
    for wait in waits {
        if let Some(Seen { id: id @ 1.., .. }) = seen.get(&wait.path) {
            of.entry(*id).or_default().push(wait.seq.cast_signed().to_string());
        }
    }
    let of_queue = |(id, seqs): (&u64, &Vec<String>)| {
        format!("(e.queue = {id} AND e.seq IN ({}))", seqs.join(", "))
    };
    let all: Vec<_> = of.iter().map(of_queue).collect();
    (!all.is_empty()).then(|| {
        format!(
            "SELECT e.queue AS queue, e.seq AS seq, e.shared AS shared, \
               GREATEST(COALESCE(s.expires, 0) - {NOW}, 0) AS remaining \
             FROM coordination_entries e FORCE INDEX (PRIMARY) \
             LEFT JOIN coordination_sessions s ON s.id = e.session WHERE {}",
            all.join(" OR ")
        )
    })
}

/// The entries that a poll has read. The key is the queue and the number of an entry; the value is its mode, and how long its lease
/// still lasts.
type Found = HashMap<(u64, u64), (Mode, Duration)>;

fn found(rows: &[Row]) -> Result<Found> {
    let mut found = HashMap::with_capacity(rows.len());
    for row in rows {
        let queue = row.number("watch", "queue")?;
        let seq = row.number("watch", "seq")?;
        let mode = if row.flag("watch", "shared")? { Mode::Shared } else { Mode::Exclusive };
        let left = row.number("watch", "remaining")?;
        found.insert((queue, seq), (mode, Duration::from_micros(left)));
    }
    Ok(found)
}

/// What a wait knows of its entry after a poll. `is_new`: this is its first poll.
///
/// A waiter has asked the server itself just before it begins to wait. So if the lease has run out by then, the entry could not be
/// removed, because the holder's own transaction has locked its row. Then the waiter waits a little before it asks again, as
/// otherwise it would ask without any pause.
fn waited(
    wait: &Wait,
    found: Option<&(Mode, Duration)>,
    is_new: bool,
    recheck: Duration,
) -> Waited {
    match found {
        Some((mode, left)) if mode.blocks(wait.mode) && (is_new || !left.is_zero()) => {
            let left = if left.is_zero() { BUSY } else { *left };
            let now = Instant::now();
            Waited::Blocks { until: now + left, again: now + recheck }
        }
        _ => Waited::Over,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wait(path: &str, seq: u64, mode: Mode) -> Wait {
        Wait { path: path.to_owned(), seq, mode }
    }

    #[test]
    fn what_blocks_and_lives_is_waited_for() {
        let second = Duration::from_secs(1);
        let of = |blocker, left, waiter, is_new| {
            waited(&wait("a", 1, waiter), Some(&(blocker, left)), is_new, second)
        };
        let blocks = |blocker, left, waiter| {
            matches!(of(blocker, left, waiter, false), Waited::Blocks { .. })
        };
        assert!(blocks(Mode::Exclusive, second, Mode::Shared));
        assert!(blocks(Mode::Shared, second, Mode::Exclusive));
        assert!(!blocks(Mode::Shared, second, Mode::Shared));
        assert!(!blocks(Mode::Exclusive, Duration::ZERO, Mode::Shared));
        assert_eq!(waited(&wait("b", 1, Mode::Exclusive), None, true, second), Waited::Over);
        let stuck = of(Mode::Exclusive, Duration::ZERO, Mode::Exclusive, true);
        assert!(matches!(stuck, Waited::Blocks { .. }), "its waiter has just looked");
    }

    #[test]
    fn each_queue_is_asked_for_its_entries_only() {
        let waits =
            [wait("a", 1, Mode::Shared), wait("b", 2, Mode::Shared), wait("a", 3, Mode::Shared)];
        let seen = |id| Seen { id, changes: 9 };
        let all = HashMap::from([("a".to_owned(), seen(7)), ("b".to_owned(), seen(8))]);
        let text = entries_of(&waits.each_ref(), &all).expect("there are queues");
        assert_eq!(text.matches("SELECT").count(), 1);
        assert!(text.contains("(e.queue = 7 AND e.seq IN (1, 3))"), "{text}");
        assert!(text.contains("(e.queue = 8 AND e.seq IN (2))"), "{text}");
        let gone = HashMap::from([("a".to_owned(), Seen::default())]);
        assert_eq!(entries_of(&waits.each_ref(), &gone), None, "there are no such queues");
        assert!(changes_of(&[&"a".to_owned()]).ends_with("WHERE path IN (X'61')"));
    }

    #[test]
    fn nothing_is_kept_of_what_nobody_waits_for() {
        let polls = Polls::new(Duration::from_secs(1));
        let wait = wait("a", 1, Mode::Exclusive);
        let waited = Some(polls.waits.join(&wait).0);
        let waiting = Waiting { polls: &polls, wait, waited };
        assert_eq!(polls.wanted().map(|(paths, waits)| (paths.len(), waits.len())), Some((1, 1)));
        drop(waiting);
        assert!(polls.wanted().is_none());
    }
}
