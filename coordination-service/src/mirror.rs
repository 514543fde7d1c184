//! What is held and waited for of all recipes that somebody looks at, under all names, as it was read last, and who looks at it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::sync::watch;

use crate::kind::Kind;

/// How long a new stream waits for rows that are as of now.
const FRESH: Duration = Duration::from_secs(2);
/// So many names that are gone are remembered, for streams that are behind.
const GONE: usize = 10_000;

/// The fields of an entry that do not change by the passing of time.
const STEADY: [&str; 5] = ["fence", "state", "slots", "value", "capabilities"];

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
    /// How many look at each recipe.
    kinds: Mutex<BTreeMap<Kind, usize>>,
}

/// The recipe and the name of a row.
pub(crate) type Of = (Kind, String);

#[derive(Debug, Default)]
struct Board {
    rows: BTreeMap<Of, (u64, Value)>,
    gone: VecDeque<(u64, Of)>,
    last: u64,
    as_of: Option<Instant>,
}

/// Somebody who looks; not any more when it is dropped.
pub(crate) struct Watching {
    mirror: Arc<Mirror>,
    kinds: Vec<Kind>,
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.mirror.count(&self.kinds, |count| count - 1);
        self.mirror.watchers.send_modify(|watchers| *watchers -= 1);
    }
}

/// What has changed since a number.
pub(crate) struct Changes {
    pub(crate) rows: Vec<(Of, Value)>,
    pub(crate) gone: Vec<Of>,
    pub(crate) last: u64,
}

impl Mirror {
    /// One more looks at these recipes, each given once, if there may be one more.
    pub(crate) fn watching(self: &Arc<Self>, most: usize, kinds: &[Kind]) -> Option<Watching> {
        let added = self.watchers.send_if_modified(|watchers| {
            let is_free = *watchers < most;
            *watchers += usize::from(is_free);
            is_free
        });
        added.then(|| {
            self.count(kinds, |count| count + 1);
            Watching { mirror: Arc::clone(self), kinds: kinds.to_owned() }
        })
    }

    fn count(&self, kinds: &[Kind], change: impl Fn(usize) -> usize) {
        let mut counts = self.kinds.lock().unwrap_or_else(PoisonError::into_inner);
        for kind in kinds {
            let count = counts.entry(*kind).or_default();
            *count = change(*count);
        }
    }

    /// Whether somebody looks at this recipe.
    pub(crate) fn shows(&self, kind: Kind) -> bool {
        let counts = self.kinds.lock().unwrap_or_else(PoisonError::into_inner);
        counts.get(&kind).is_some_and(|count| *count > 0)
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
        let rows = rows.map(|(of, (_, row))| (of.clone(), row.clone())).collect();
        let gone =
            board.gone.iter().filter(|(number, of)| *number > last && !board.rows.contains_key(of));
        let gone = gone.map(|(_, of)| of.clone()).collect();
        Some(Changes { rows, gone, last: board.last })
    }

    /// Puts the entries of a name in place of those before; none: the name is gone.
    pub(crate) fn put(&self, kind: Kind, name: &str, entries: &[Value]) {
        let of = (kind, name.to_owned());
        let mut board = self.board();
        let is_there = board.rows.contains_key(&of);
        if entries.is_empty() && !is_there {
            return;
        }
        board.last += 1;
        let number = board.last;
        if entries.is_empty() {
            board.rows.remove(&of);
            if board.gone.len() >= GONE {
                board.gone.pop_front();
            }
            board.gone.push_back((number, of));
        } else {
            let row = json!({ "kind": kind.text(), "name": name, "entries": entries });
            board.rows.insert(of, (number, row));
        }
        drop(board);
        self.changed.send_replace(number);
    }

    /// Forgets all rows of this recipe.
    pub(crate) fn clear(&self, kind: Kind) {
        for name in self.names(kind) {
            self.put(kind, &name, &[]);
        }
    }

    /// The names of this recipe that have rows.
    pub(crate) fn names(&self, kind: Kind) -> BTreeSet<String> {
        let board = self.board();
        let own = board.rows.keys().filter(|of| of.0 == kind);
        own.map(|(_, name)| name.clone()).collect()
    }

    /// Whether this is the row of a name but for what only time changes; a renewal is told by itself.
    pub(crate) fn has(&self, kind: Kind, name: &str, entries: &[Value]) -> bool {
        let of_entry = |entry: &Value| STEADY.map(|field| entry.get(field).cloned());
        let steady = |entries: &[Value]| entries.iter().map(of_entry).collect::<Vec<_>>();
        self.board().rows.get(&(kind, name.to_owned())).is_some_and(|(_, row)| {
            row["entries"].as_array().is_some_and(|before| steady(before) == steady(entries))
        })
    }

    /// All names were read.
    pub(crate) fn completed(&self) {
        self.board().as_of = Some(Instant::now());
        self.rounds.send_modify(|rounds| *rounds += 1);
    }
}
