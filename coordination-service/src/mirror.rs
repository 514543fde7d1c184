//! What is held and waited for under all names, as it was read last, and who looks at it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::sync::watch;

/// How long a new stream waits for rows that are as of now.
const FRESH: Duration = Duration::from_secs(2);
/// So many names that are gone are remembered, for streams that are behind.
const GONE: usize = 10_000;

/// The rows as they were read last.
#[derive(Debug, Default)]
pub(crate) struct Mirror {
    board: Mutex<Board>,
    /// The number of the last change.
    changed: watch::Sender<u64>,
    /// The number of rounds that were completed.
    rounds: watch::Sender<u64>,
    /// How many look.
    watchers: watch::Sender<usize>,
}

#[derive(Debug, Default)]
struct Board {
    rows: BTreeMap<String, (u64, Value)>,
    gone: VecDeque<(u64, String)>,
    last: u64,
    as_of: Option<Instant>,
}

/// Somebody who looks; not any more when it is dropped.
pub(crate) struct Watching(Arc<Mirror>);

impl Drop for Watching {
    fn drop(&mut self) {
        self.0.watchers.send_modify(|watchers| *watchers -= 1);
    }
}

/// What has changed since a number.
pub(crate) struct Changes {
    pub(crate) rows: Vec<(String, Value)>,
    pub(crate) gone: Vec<String>,
    pub(crate) last: u64,
}

impl Mirror {
    /// One more looks, if there may be.
    pub(crate) fn watching(self: &Arc<Self>, most: usize) -> Option<Watching> {
        let added = self.watchers.send_if_modified(|watchers| {
            let is_free = *watchers < most;
            *watchers += usize::from(is_free);
            is_free
        });
        added.then(|| Watching(Arc::clone(self)))
    }

    /// Waits until somebody looks; false: nobody ever will.
    pub(crate) async fn watched(&self) -> bool {
        let mut watchers = self.watchers.subscribe();
        watchers.wait_for(|watchers| *watchers > 0).await.is_ok()
    }

    pub(crate) fn watchers(&self) -> usize {
        *self.watchers.borrow()
    }

    /// How old the rows are.
    pub(crate) fn age(&self) -> Option<Duration> {
        self.board().as_of.map(|at| at.elapsed())
    }

    /// Waits until all names were read after now, or for a little while.
    pub(crate) async fn fresh(&self) {
        let mut rounds = self.rounds.subscribe();
        let now = *rounds.borrow_and_update();
        let fresh = rounds.wait_for(|round| *round > now);
        drop(tokio::time::timeout(FRESH, fresh).await);
    }

    /// Told of each change.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    fn board(&self) -> MutexGuard<'_, Board> {
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What has changed since this number; everything, if that is too long ago.
    pub(crate) fn since(&self, last: u64) -> Option<Changes> {
        let board = self.board();
        let oldest = board.gone.front().map_or(0, |(number, _)| *number);
        if last > 0 && last < oldest && board.gone.len() >= GONE {
            return None;
        }
        let rows = board.rows.iter().filter(|(_, (number, _))| *number > last);
        let rows = rows.map(|(name, (_, row))| (name.clone(), row.clone())).collect();
        let gone = board
            .gone
            .iter()
            .filter(|(number, name)| *number > last && !board.rows.contains_key(name));
        let gone = gone.map(|(_, name)| name.clone()).collect();
        Some(Changes { rows, gone, last: board.last })
    }

    /// Puts the entries of a name in place of those before; none: the name is gone.
    pub(crate) fn put(&self, name: &str, entries: &[Value]) {
        let mut board = self.board();
        let is_there = board.rows.contains_key(name);
        if entries.is_empty() && !is_there {
            return;
        }
        board.last += 1;
        let number = board.last;
        if entries.is_empty() {
            board.rows.remove(name);
            if board.gone.len() >= GONE {
                board.gone.pop_front();
            }
            board.gone.push_back((number, name.to_owned()));
        } else {
            let row = json!({ "kind": "lock", "name": name, "entries": entries });
            board.rows.insert(name.to_owned(), (number, row));
        }
        drop(board);
        self.changed.send_replace(number);
    }

    /// Forgets all rows.
    pub(crate) fn clear(&self) {
        for name in self.names() {
            self.put(&name, &[]);
        }
    }

    /// The names that have rows.
    pub(crate) fn names(&self) -> BTreeSet<String> {
        self.board().rows.keys().cloned().collect()
    }

    /// Whether this is the row of a name but for what only time changes; a renewal is told by itself.
    pub(crate) fn has(&self, name: &str, entries: &[Value]) -> bool {
        let steady = |entries: &[Value]| -> Vec<_> {
            entries.iter().map(|entry| (entry["fence"].clone(), entry["state"].clone())).collect()
        };
        self.board().rows.get(name).is_some_and(|(_, row)| {
            row["entries"].as_array().is_some_and(|before| steady(before) == steady(entries))
        })
    }

    /// All names were read.
    pub(crate) fn completed(&self) {
        self.board().as_of = Some(Instant::now());
        self.rounds.send_modify(|rounds| *rounds += 1);
    }
}
