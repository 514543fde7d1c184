//! The list of what this client waits for, and the *poll*: a task that asks the server again and again for all waiters of this
//! client, because the server has no notifications.
//!
//! The row of each queue has a number that changes with each change of the queue. The poll reads these numbers for all queues
//! together. It reads entries only if the number of their queue has changed, or if a lease may have run out. It asks often while
//! queues change, and seldom while they do not. It asks immediately after this client itself has changed a queue that it follows.

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
use crate::panics::{caught, on_purpose};

/// The pause between two polls while queues change. With it, a waiter in another process gets a lock within 50 ms of its release.
const BUSY: Duration = Duration::from_millis(20);
/// For this long after the last change of a queue, the pause stays [`BUSY`]. After that, it grows.
const STAYS_BUSY: Duration = Duration::from_secs(1);
/// The longest pause between two polls, while no queue changes. With it, an idle client sends at most four requests a second,
/// including heartbeats and the reads that [`LONGEST_RECHECK`] demands.
const IDLE: Duration = Duration::from_millis(400);
/// The shortest pause between two polls, even if a waiter asks for a poll at once.
const APART: Duration = Duration::from_millis(5);
/// Each entry that somebody waits for is read again after this time at the latest, even if the number of its queue has not changed.
/// The reason is that an operator may delete an entry by hand without changing the number.
const LONGEST_RECHECK: Duration = Duration::from_secs(5);
/// How many queues or entries one query asks for. Queries with more would delay the heartbeats, which are sent on the same
/// connection.
const PIECE: usize = 200;

/// One thing that callers wait for: that the entry with the number `seq` in the queue `path` is gone, or no longer blocks entries
/// of the mode `mode`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Wait {
    pub(super) path: String,
    pub(super) seq: u64,
    pub(super) mode: Mode,
}

/// What the poll has found out about an entry that somebody waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Waited {
    /// The poll has not asked for the entry yet.
    #[default]
    Unknown,
    /// The entry blocks the waiters. `until`: when its lease ends, unless it is renewed; `again`: when the poll reads the entry
    /// again at the latest.
    Blocks { until: Instant, again: Instant },
    /// The entry no longer blocks the waiters; or it may no longer block them, because its session's lease has run out. So the
    /// waiters are woken, and ask the server for their own position.
    Over,
}

/// All entries for whose end this client waits, all queues whose changes it follows, and whether the poll runs.
pub(super) struct Polls {
    /// The queues that callers follow, by path, each with the newest number of changes that the poll has read. Zero: the queue does
    /// not exist, or the poll has not read it yet.
    queues: SharedWatches<String, u64>,
    waits: SharedWatches<Wait, Waited>,
    wanted: Notify,
    state: Mutex<State>,
    /// After this time at the latest, the poll reads an entry again for which somebody waits: the lease, or [`LONGEST_RECHECK`] if
    /// that is shorter.
    recheck: Duration,
}

#[derive(Default)]
struct State {
    is_running: bool,
    /// When the newest poll that was answered was sent; `None`: no poll was answered yet.
    asked: Option<Instant>,
}

/// A caller's wait for the end of an entry. When the last `Waiting` for the same entry and mode is dropped, the poll no longer asks
/// for the entry.
pub(super) struct Waiting<'a> {
    polls: &'a Polls,
    wait: Wait,
    waited: Option<watch::Receiver<Waited>>,
}

/// The state of the task that asks the server, from one poll to the next.
struct Poll {
    polls: Arc<Polls>,
    connections: Weak<Connections<Mysql>>,
    /// The queues as the last poll has read them, by path. A queue has changed if the next poll reads something else.
    seen: HashMap<String, Seen>,
    busy_until: Instant,
    pause: Duration,
    /// How long to wait before the next poll if this one panics.
    after_panic: Duration,
}

/// What a poll has read of a queue: its id, which is another one if the queue was removed and created again, and its number of
/// changes. Both are zero if the queue does not exist.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Seen {
    id: u64,
    changes: u64,
}

impl Polls {
    /// `lease` is the lease of the client's sessions: an entry is read again within that time.
    pub(super) fn new(lease: Duration) -> Self {
        Self {
            queues: SharedWatches::default(),
            waits: SharedWatches::default(),
            wanted: Notify::default(),
            state: Mutex::default(),
            recheck: lease.min(LONGEST_RECHECK),
        }
    }

    /// Begins to wait for the end of an entry, and starts the poll if it does not run.
    pub(super) fn wait(
        self: &Arc<Self>,
        wait: Wait,
        connections: &Arc<Connections<Mysql>>,
    ) -> Waiting<'_> {
        let (waited, _) = self.waits.join(&wait);
        self.run(connections);
        Waiting { polls: self, wait, waited: Some(waited) }
    }

    /// Begins to follow the changes of a queue, and starts the poll if it does not run. The receiver gets the queue's number of
    /// changes whenever the poll finds that this number has changed.
    pub(super) fn follow(
        self: &Arc<Self>,
        path: &str,
        connections: &Arc<Connections<Mysql>>,
    ) -> watch::Receiver<u64> {
        let (followed, _) = self.queues.join(&path.to_owned());
        self.run(connections);
        followed
    }

    /// The time at which a poll was sent: the newest poll among those that were answered. If this time stays the same, a waiter
    /// notices that polls get no answers. `None`: no poll was answered yet.
    pub(super) fn asked(&self) -> Option<Instant> {
        self.state().asked
    }

    /// Called after this client itself has changed a queue. `entry` is the number of an entry that was removed or updated, and so
    /// may not block others any more: callers in this process who wait for its end are woken. If somebody follows the queue, the
    /// poll asks the server at once.
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
            after_panic: IDLE,
        };
        tokio::spawn(poll.run());
    }

    /// The paths of all queues that the poll has to read, and the entries for whose end callers wait. `None`: nobody waits, and the
    /// poll has to end.
    fn wanted(&self) -> Option<(HashSet<String>, Vec<Wait>)> {
        let mut state = self.state();
        self.queues.sweep();
        self.waits.sweep();
        let waits = self.waits.keys();
        let mut paths: HashSet<_> = self.queues.keys().into_iter().collect();
        paths.extend(waits.iter().map(|wait| wait.path.clone()));
        // The mutex is still locked here. So no waiter can come between the check and this assignment: a waiter who comes later
        // finds that no poll runs, and starts one.
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
    /// Resolves when the entry no longer blocks, or when that is possible, so that the caller has to ask the server.
    pub(super) async fn over(&mut self) {
        if let Some(waited) = &mut self.waited {
            // If the watch has ended, `wait_for` returns an error. Something may have been missed then, so this resolves too, and
            // the waiter asks the server.
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
            // If a queue changes after this poll has read its number, this poll does not see the change. No change is missed: the
            // next poll finds another number than this one.
            let asking = async {
                on_purpose("watching");
                self.ask(&connections, &paths, &waits).await
            };
            // If a poll panics, the next one is sent all the same. Otherwise the waiters would be told nothing until one of them
            // noticed that no poll is answered.
            let polled = caught("watch", asking).await;
            drop(connections);
            match polled {
                Ok(Ok(has_changed)) => {
                    self.polls.state().asked = Some(asked);
                    self.after_panic = IDLE;
                    self.pause(has_changed, &waits).await;
                }
                // The error is not passed on here: the waiters notice that no poll is answered (`Polls::asked`), ask the server
                // themselves, and get the error.
                Ok(Err(_)) => tokio::time::sleep(IDLE).await,
                // Each panic costs the connections that the poll was using. So if each poll panics, they come less and less often.
                Err(_) => {
                    tokio::time::sleep(self.after_panic).await;
                    self.after_panic = (2 * self.after_panic).min(LONGEST_RECHECK);
                }
            }
        }
    }

    /// Makes one poll: reads the numbers of changes, then the entries that may have changed, and wakes the waiters. Returns whether
    /// any queue has changed.
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
        // `self.seen` is set only now, when all queries have succeeded. If one of them fails, the next poll finds the same changes
        // again, and no waiter misses them.
        self.seen = seen;
        Ok(!changed.is_empty())
    }

    /// The waits whose entries this poll has to read: those in queues that have changed, and those in queues with an entry that was
    /// not read yet or has to be read again by now.
    fn due<'a>(&self, waits: &'a [Wait], changed: &HashSet<String>) -> Vec<&'a Wait> {
        let now = Instant::now();
        let is_due = |waited, soon| match waited {
            Waited::Unknown => true,
            Waited::Blocks { until, again } => until <= now || again <= soon,
            Waited::Over => false,
        };
        let waited: Vec<_> = waits.iter().map(|wait| self.polls.waited(wait)).collect();
        // If at least one entry has to be read now, entries that would have to be read soon are read in the same query, which saves
        // queries.
        let some = waited.iter().any(|waited| is_due(*waited, now));
        let soon = if some { now + self.polls.recheck / 4 } else { now };
        let due = waits.iter().zip(&waited).filter(|(_, waited)| is_due(**waited, soon));
        let due: HashSet<_> = due.map(|(wait, _)| &wait.path).collect();
        let is_due = |wait: &&Wait| due.contains(&wait.path) || changed.contains(&wait.path);
        waits.iter().filter(is_due).collect()
    }

    /// Reads the numbers of changes of all these queues. If the number of a queue is another one than before, wakes the callers who
    /// follow the queue.
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

    /// Waits until it is time for the next poll: until the pause is over, a lease may have run out, or a caller asks for a poll.
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

/// The task of the poll owns this value. If the task panics, this is dropped, and notes that no poll runs, so that the next waiter
/// starts another one.
struct Running(Arc<Polls>);

impl Drop for Running {
    fn drop(&mut self) {
        // If the poll ended without a panic, `wanted` has cleared `is_running` already. Another poll may have been started since,
        // so `is_running` must not be cleared again.
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

/// The query that reads the entries of `waits`. It finds them by the ids of their queues, which `seen` has; `None`: none of the
/// queues exists, so there is nothing to read. A lease that lasts for longer than its session has asked for, by more than a second,
/// counts as run out, so that the waiter asks the server, which shortens it.
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
               IF(s.expires > {NOW} + s.lease + 1000000, 0, GREATEST(COALESCE(s.expires, 0) - {NOW}, 0)) AS remaining \
             FROM coordination_entries e FORCE INDEX (PRIMARY) \
             LEFT JOIN coordination_sessions s ON s.id = e.session WHERE {}",
            all.join(" OR ")
        )
    })
}

/// The entries that a poll has read. The key is the id of the queue and the number of the entry; the value is the entry's mode, and
/// for how long its lease still lasts.
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

/// What is known of the entry of `wait` after a poll. `found` is what the poll has read of the entry; `None`: the entry is gone.
/// `is_new`: this is the first poll for this wait.
///
/// Usually an entry whose lease has run out is `Over`: the waiter then asks the server, which removes the entry. But just before a
/// wait begins, its waiter has asked the server already. So if the first poll for the wait finds that the lease has run out, the
/// server may have been unable to remove the entry, because the holder's own transaction has locked its row. In this case the entry
/// counts as blocking for a moment (`BUSY`). Otherwise the waiter would ask the server again without any pause.
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
