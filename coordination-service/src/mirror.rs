//! What is held and waited for of all recipes that somebody looks at, under all names, as it was read last, and who looks at it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use axum::body::Bytes;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::sync::watch;

use crate::kind::Kind;
use crate::text::rfc3339;

/// How long a new stream waits for rows that are as of now; from then on for rows at all.
const FRESH: Duration = Duration::from_secs(2);
/// So many names that are gone are remembered, for streams that are behind.
const GONE: usize = 10_000;

/// The fields of an entry that do not change by the passing of time.
const STEADY: [&str; 8] =
    ["fence", "state", "slots", "value", "capabilities", "lease_ms", "of", "sitting_out"];

/// The rows as they were read last.
#[derive(Debug, Default)]
pub(crate) struct Mirror {
    board: Mutex<Board>,
    /// The number of the last change.
    changed: watch::Sender<u64>,
    rounds: watch::Sender<Rounds>,
    /// How many look.
    watchers: watch::Sender<usize>,
    /// How many look at each recipe.
    kinds: Mutex<BTreeMap<Kind, usize>>,
}

/// The entries of a name, as they were read last.
#[derive(Debug)]
struct Row {
    /// Of the change that has put it there.
    number: u64,
    /// What does not change by the passing of time, in short.
    steady: Steady,
    /// As it is told: written once, and shared by all streams.
    text: Bytes,
}

pub(crate) type Steady = [u8; 32];

/// Rounds, each of which reads all names of one or more recipes. They have numbers from 1 on.
#[derive(Debug, Default)]
struct Rounds {
    /// How many were begun.
    begun: u64,
    /// The last one of each recipe that is over, whether or not it could read all names.
    over: BTreeMap<Kind, u64>,
}

impl Rounds {
    /// Whether a round of this recipe is over that was begun after this one.
    fn is_after(&self, round: u64, kind: Kind) -> bool {
        self.over.get(&kind).is_some_and(|last| *last > round)
    }
}

/// The recipe and the name of a row.
pub(crate) type Of = (Kind, String);

#[derive(Debug, Default)]
struct Board {
    rows: BTreeMap<Of, Row>,
    gone: VecDeque<(u64, Of)>,
    /// Of each name that is gone and has not come back, when that was, as long as it is remembered.
    gone_at: BTreeMap<Of, u64>,
    last: u64,
    /// The recipes of which all names were read since their rows were forgotten, and when that was so last.
    read: BTreeMap<Kind, Instant>,
    /// The recipes of which the store does not tell all names, though it answers.
    failing: BTreeSet<Kind>,
}

impl Board {
    /// Whether this row was put there or taken away after this change.
    fn has_changed(&self, of: &Of, since: u64) -> bool {
        self.rows.get(of).is_some_and(|row| row.number > since)
            || self.gone_at.get(of).is_some_and(|number| *number > since)
    }

    /// Takes a row away, by the change of this number.
    fn remove(&mut self, number: u64, of: Of) {
        self.rows.remove(&of);
        if self.gone.len() >= GONE
            && let Some((oldest, forgotten)) = self.gone.pop_front()
            && self.gone_at.get(&forgotten) == Some(&oldest)
        {
            self.gone_at.remove(&forgotten);
        }
        self.gone_at.insert(of.clone(), number);
        self.gone.push_back((number, of));
    }
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
    pub(crate) rows: Vec<(Of, Bytes)>,
    pub(crate) gone: Vec<Of>,
    pub(crate) last: u64,
}

impl Mirror {
    /// One more looks at these recipes, each given once, if there may be one more.
    pub(crate) fn watching(self: &Arc<Self>, most: usize, kinds: &[Kind]) -> Option<Watching> {
        // Before it is told that somebody looks: the first round reads what they look at.
        self.count(kinds, |count| count + 1);
        let added = self.watchers.send_if_modified(|watchers| {
            let is_free = *watchers < most;
            *watchers += usize::from(is_free);
            is_free
        });
        if !added {
            self.count(kinds, |count| count - 1);
            return None;
        }
        Some(Watching { mirror: Arc::clone(self), kinds: kinds.to_owned() })
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

    /// How old the rows of these recipes are: those that were read least lately, of the recipes that were read at all.
    pub(crate) fn age(&self, kinds: &[Kind]) -> Option<Duration> {
        let board = self.board();
        kinds.iter().filter_map(|kind| board.read.get(kind)).map(Instant::elapsed).max()
    }

    /// Waits until all names of these recipes were read after now, or could not be. If that takes long, until they were read at all: what
    /// was not read is not told as empty.
    pub(crate) async fn fresh(&self, kinds: &[Kind]) {
        let mut rounds = self.rounds.subscribe();
        // A round that is under way may have begun when nobody looked at these.
        let now = rounds.borrow_and_update().begun;
        let all = |rounds: &Rounds| kinds.iter().all(|kind| rounds.is_after(now, *kind));
        if tokio::time::timeout(FRESH, rounds.wait_for(all)).await.is_ok() {
            return;
        }
        let is_known = |rounds: &Rounds| {
            let unread = self.unread(kinds);
            unread.into_iter().all(|kind| rounds.is_after(now, kind))
        };
        drop(rounds.wait_for(is_known).await);
    }

    /// Those of these recipes of which not all names were read yet, or cannot be: there may be more than their rows.
    pub(crate) fn unread(&self, kinds: &[Kind]) -> Vec<Kind> {
        let board = self.board();
        let is_unread =
            |kind: &&Kind| !board.read.contains_key(kind) || board.failing.contains(kind);
        kinds.iter().filter(is_unread).copied().collect()
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
        let rows = board.rows.iter().filter(|(_, row)| row.number > last);
        let rows = rows.map(|(of, row)| (of.clone(), row.text.clone())).collect();
        let gone =
            board.gone.iter().filter(|(number, of)| *number > last && !board.rows.contains_key(of));
        let gone = gone.map(|(_, of)| of.clone()).collect();
        Some(Changes { rows, gone, last: board.last })
    }

    /// The number of the last change.
    pub(crate) fn last(&self) -> u64 {
        self.board().last
    }

    /// Waits until the row of this name changes after this change.
    pub(crate) async fn changed(&self, kind: Kind, name: &str, since: u64) {
        let (of, mut changes) = ((kind, name.to_owned()), self.changed.subscribe());
        while !self.board().has_changed(&of, since) {
            // It ends with us.
            drop(changes.changed().await);
        }
    }

    /// Puts the entries of a name in place of those before; none: the name is gone.
    pub(crate) fn put(&self, kind: Kind, name: &str, entries: &[Value]) {
        self.put_since(u64::MAX, kind, name, entries);
    }

    /// The same with what was read after this change. False: another one of this row came while it was read, and stays.
    pub(crate) fn put_since(&self, since: u64, kind: Kind, name: &str, entries: &[Value]) -> bool {
        let of = (kind, name.to_owned());
        let mut board = self.board();
        if board.has_changed(&of, since) {
            return false;
        }
        let is_there = board.rows.contains_key(&of);
        if entries.is_empty() && !is_there {
            return true;
        }
        board.last += 1;
        let number = board.last;
        if entries.is_empty() {
            board.remove(number, of);
        } else {
            // It may be told to somebody much later, and what only time changes in it is of now.
            let (kind, as_of) = (kind.text(), rfc3339(SystemTime::now()));
            let row = json!({ "kind": kind, "name": name, "as_of": as_of, "entries": entries });
            let (steady, text) = (steady(entries), Bytes::from(row.to_string()));
            board.gone_at.remove(&of);
            board.rows.insert(of, Row { number, steady, text });
        }
        drop(board);
        self.changed.send_replace(number);
        true
    }

    /// Forgets all rows of this recipe.
    pub(crate) fn clear(&self, kind: Kind) {
        let mut board = self.board();
        board.read.remove(&kind);
        board.failing.remove(&kind);
        drop(board);
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

    /// How many names of this recipe have rows.
    pub(crate) fn row_count(&self, kind: Kind) -> usize {
        self.board().rows.keys().filter(|of| of.0 == kind).count()
    }

    /// Whether this is the row of a name but for what only time changes; a renewal is told by itself.
    pub(crate) fn has(&self, kind: Kind, name: &str, entries: &[Value]) -> bool {
        let row_of = (kind, name.to_owned());
        let steady = steady(entries);
        self.board().rows.get(&row_of).is_some_and(|row| row.steady == steady)
    }

    /// A round begins, before it is asked who looks at what; its number.
    pub(crate) fn begin_round(&self) -> u64 {
        self.rounds.send_modify(|rounds| rounds.begun += 1);
        self.rounds.borrow().begun
    }

    /// The round of this number has read all names of these recipes.
    pub(crate) fn completed(&self, round: u64, kinds: &[Kind]) {
        let now = Instant::now();
        let mut board = self.board();
        board.read.extend(kinds.iter().map(|kind| (*kind, now)));
        board.failing.retain(|kind| !kinds.contains(kind));
        drop(board);
        self.over(round, kinds);
    }

    /// The round of this number could not read all names of this recipe, though the store answers. True: that is new.
    pub(crate) fn failed(&self, round: u64, kind: Kind) -> bool {
        let is_new = self.board().failing.insert(kind);
        self.over(round, &[kind]);
        is_new
    }

    /// The round of this number is over, of these recipes, whatever it has read.
    pub(crate) fn over(&self, round: u64, kinds: &[Kind]) {
        let over = kinds.iter().map(|kind| (*kind, round));
        self.rounds.send_modify(|rounds| rounds.over.extend(over));
    }
}

/// What of these entries does not change by the passing of time, in short.
pub(crate) fn steady(entries: &[Value]) -> Steady {
    let mut hash = Sha256::new();
    for entry in entries {
        let fields = STEADY.map(|field| entry.get(field));
        hash.update(json!(fields).to_string());
    }
    hash.finalize().into()
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;

    use super::*;

    /// Whether this is not over after a moment.
    async fn is_pending(waiting: impl Future) -> bool {
        tokio::time::timeout(Duration::from_millis(50), waiting).await.is_err()
    }

    /// A round that began before somebody looked at a recipe has not read it, though it ends afterwards.
    #[tokio::test]
    async fn rows_are_fresh_when_a_round_was_begun_for_them() {
        let mirror = Arc::new(Mirror::default());
        let _locks = mirror.watching(9, &[Kind::Lock]).expect("there is room");
        let of_locks = mirror.begin_round();
        let _semaphores = mirror.watching(9, &[Kind::Semaphore]).expect("there is room");
        let mut fresh = pin!(mirror.fresh(&[Kind::Semaphore]));
        assert!(is_pending(fresh.as_mut()).await);
        mirror.completed(of_locks, &[Kind::Lock]);
        assert!(is_pending(fresh.as_mut()).await, "semaphores were not read");
        mirror.completed(mirror.begin_round(), &[Kind::Lock, Kind::Semaphore]);
        fresh.await;
    }

    /// A store that is slow or away: rows that were read before are shown, but none is not the same as not read.
    #[tokio::test]
    async fn what_was_not_read_is_waited_for() {
        let mirror = Arc::new(Mirror::default());
        let kinds = [Kind::Lock, Kind::Semaphore];
        let _both = mirror.watching(9, &kinds).expect("there is room");
        mirror.completed(mirror.begin_round(), &[Kind::Lock]);
        let begun = Instant::now();
        let (mut locks, mut both) = (pin!(mirror.fresh(&[Kind::Lock])), pin!(mirror.fresh(&kinds)));
        assert!(is_pending(both.as_mut()).await && is_pending(locks.as_mut()).await);
        locks.await;
        assert!(begun.elapsed() >= FRESH);
        assert!(is_pending(both.as_mut()).await, "semaphores were never read");
        mirror.completed(mirror.begin_round(), &kinds);
        both.await;
        mirror.clear(Kind::Lock);
        let mut locks = pin!(mirror.fresh(&[Kind::Lock]));
        assert!(tokio::time::timeout(FRESH + FRESH / 2, locks.as_mut()).await.is_err());
    }

    /// A recipe that cannot be read is waited for until that is known, and is not taken for one of which nothing is held.
    #[tokio::test]
    async fn what_cannot_be_read_is_not_waited_for() {
        let mirror = Arc::new(Mirror::default());
        let kinds = [Kind::Lock, Kind::Semaphore];
        let _both = mirror.watching(9, &kinds).expect("there is room");
        let mut both = pin!(mirror.fresh(&kinds));
        assert!(is_pending(both.as_mut()).await);
        let round = mirror.begin_round();
        mirror.completed(round, &[Kind::Lock]);
        assert!(is_pending(both.as_mut()).await);
        assert!(mirror.failed(round, Kind::Semaphore) && !mirror.failed(round, Kind::Semaphore));
        both.await;
        assert_eq!(mirror.unread(&kinds), [Kind::Semaphore]);
        mirror.completed(mirror.begin_round(), &kinds);
        assert!(mirror.unread(&kinds).is_empty());
    }

    /// What was read while the row changed may be of before that.
    #[test]
    fn what_changes_while_it_is_read_stays() {
        let mirror = Mirror::default();
        let (kind, entries) = (Kind::Lock, |fence| [json!({ "fence": fence })]);
        mirror.put(kind, "x", &entries(1));
        let since = mirror.last();
        assert!(mirror.put_since(since, kind, "x", &entries(2)));
        assert!(mirror.has(kind, "x", &entries(2)));
        assert!(!mirror.put_since(since, kind, "x", &[]));
        assert!(mirror.has(kind, "x", &entries(2)));
        mirror.put(kind, "x", &[]);
        assert!(!mirror.put_since(since, kind, "x", &entries(2)));
        assert!(mirror.names(kind).is_empty());
        // What comes back is no longer gone.
        let since = mirror.last();
        assert!(mirror.put_since(since, kind, "x", &entries(3)));
        assert!(mirror.has(kind, "x", &entries(3)) && mirror.board().gone_at.is_empty());
    }

    /// However many names go, no more of them are remembered than is told.
    #[test]
    fn so_many_names_that_are_gone_are_remembered() {
        let mirror = Mirror::default();
        for number in 0..GONE + 2 {
            let name = number.to_string();
            mirror.put(Kind::Lock, &name, &[json!({ "fence": 1 })]);
            mirror.put(Kind::Lock, &name, &[]);
        }
        let board = mirror.board();
        assert_eq!((board.gone.len(), board.gone_at.len()), (GONE, GONE));
        let of = |number: usize| (Kind::Lock, number.to_string());
        assert!(!board.has_changed(&of(1), 0) && board.has_changed(&of(2), 0));
    }

    #[test]
    fn a_row_is_written_once_for_all_who_follow() {
        let mirror = Mirror::default();
        let entries =
            |value: u8, age: u8| [json!({ "fence": 1, "value": value, "waiting_ms": age })];
        mirror.put(Kind::Election, "x", &entries(1, 1));
        assert!(mirror.has(Kind::Election, "x", &entries(1, 2)), "only time has passed");
        assert!(!mirror.has(Kind::Election, "x", &entries(2, 2)));
        let mut other_lease = entries(1, 1);
        other_lease[0]["lease_ms"] = 1.into();
        assert!(!mirror.has(Kind::Election, "x", &other_lease));
        assert!(!mirror.has(Kind::Election, "y", &entries(1, 1)));
        assert!(!mirror.has(Kind::Election, "x", &[]));
        let row = || mirror.since(0).expect("nothing was forgotten").rows.remove(0).1;
        assert_eq!(row().as_ptr(), row().as_ptr(), "none of them has a copy");
    }

    /// Whoever comes later is told the same text, and by it as of when its times are.
    #[test]
    fn a_row_says_when_it_was_read() {
        let (mirror, now) = (Mirror::default(), || rfc3339(SystemTime::now()));
        let before = now();
        mirror.put(Kind::Lock, "x", &[json!({ "fence": 1, "expires_in_ms": 9 })]);
        let after = now();
        let row = mirror.since(0).expect("nothing was forgotten").rows.remove(0).1;
        let row: Value = serde_json::from_slice(&row).expect("it is JSON");
        let as_of = row["as_of"].as_str().expect("a text");
        // A clock that is set back meanwhile says nothing.
        assert!(before > after || (before.as_str()..=after.as_str()).contains(&as_of), "{row}");
    }

    #[tokio::test]
    async fn whoever_finds_no_room_looks_at_nothing() {
        let mirror = Arc::new(Mirror::default());
        let one = mirror.watching(1, &[Kind::Lock]).expect("there is room");
        assert!(mirror.watching(1, &[Kind::Lock, Kind::Group]).is_none());
        assert!(mirror.shows(Kind::Lock) && !mirror.shows(Kind::Group));
        drop(one);
        assert!(!mirror.shows(Kind::Lock) && mirror.watchers() == 0);
    }
}
