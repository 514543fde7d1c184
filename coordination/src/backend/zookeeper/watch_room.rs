//! Limits how much a session watches at the same time.
//!
//! On a new connection, the client crate sets all watches again, in requests with up to 128 KiB of paths each. All of these
//! requests have the same number, by which the crate finds the request for an answer (`resend_watches` and `Depot::pop_request` in
//! 0.11.2). So if a second request is needed, its answer breaks the connection, and the same happens on every later connection.
//! Therefore the paths of all watches of a session must fit into one request: this is the room for watches.
//!
//! If there is no room for the watch of a waiter, a task of the session reads the waiter's node again and again (`unwatched.rs`).
//! If there is no room for the watches of an observer, the observer reads its queue again and again. When other callers give up
//! their watches, the callers without a watch get one in the order in which they came.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use rand::RngExt;
use tokio::sync::Notify;

use crate::env;

/// How many bytes the paths of all watches may have together. The rest of the 128 KiB is for watches that were given up, but which
/// the crate still has for a moment.
const ROOM: usize = 96 * 1024;
/// How many of these bytes may be paths of the session's own entries. A session may watch its own entries for a long time. The
/// other half is left for waiters, who watch entries of other sessions.
const OWN: usize = ROOM / 2;
/// The longest pause between two reads of the nodes of waiters without a watch. An observer without a watch reads a whole queue. It
/// pauses longer if many callers have no watch: see `LISTINGS`.
pub(super) const PAUSE: Duration = Duration::from_secs(1);
/// About how many queues of callers without a watch a session reads in one second. If there are more such queues, each of them is
/// read less often than every [`PAUSE`].
const LISTINGS: u32 = 200;

/// The paths that one session watches, and the callers that wait for room.
///
/// A caller's *node* is the node for whose change the caller waits.
#[derive(Default)]
pub(super) struct WatchRoom {
    state: Mutex<State>,
    /// Wakes the session's task that reads nodes again and again (`unwatched.rs`). It is notified when a caller without a watch has
    /// read its node: from then on, only that task notices a change of the node before the caller's next own read.
    wanted: Notify,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Whose {
    /// The nodes of entries of other sessions, or the nodes of a whole queue.
    Others,
    /// The nodes of entries of this session. The holder of an entry watches the entry's node. A waiter of the same session that is
    /// behind the entry may watch this node too.
    Own,
}

/// The number of a [`Place`]. Among the callers of one [`Whose`], those that came earlier have lower numbers.
pub(super) type Number = (Whose, u64);

#[derive(Default)]
struct State {
    watched: HashMap<String, Watched>,
    bytes: usize,
    own_bytes: usize,
    /// The callers for which there is no room, in the order of their numbers.
    unwatched: BTreeMap<Number, Unwatched>,
    next: u64,
}

/// A watched path. The crate sets one watch for it, however many callers want to watch it.
struct Watched {
    count: usize,
    whose: Whose,
}

struct Unwatched {
    paths: Vec<String>,
    /// The transaction that had last written the node when the caller read it, so that a later read shows whether the node has
    /// changed. `None`: the caller has not read the node yet, or it observes a whole queue.
    seen: Option<i64>,
    stirred: Arc<Notify>,
}

/// A caller's claim to watch these paths, whether there is room for them yet or not. When the claim is dropped, its room goes to
/// other callers. So the claim must be dropped only after the watch.
pub(super) struct Place {
    room: Arc<WatchRoom>,
    number: Number,
    paths: Vec<String>,
    stirred: Arc<Notify>,
}

impl WatchRoom {
    pub(super) fn place(self: &Arc<Self>, whose: Whose, paths: &[&str]) -> Place {
        let paths: Vec<_> = paths.iter().map(|path| (*path).to_owned()).collect();
        let stirred = Arc::<Notify>::default();
        let mut state = self.state();
        let number = (whose, state.next);
        state.next += 1;
        // If callers that came earlier still have no watch, they go first.
        if state.first(whose).is_some() || !state.take(whose, &paths) {
            let unwatched =
                Unwatched { paths: paths.clone(), seen: None, stirred: Arc::clone(&stirred) };
            state.unwatched.insert(number, unwatched);
        }
        drop(state);
        Place { room: Arc::clone(self), number, paths, stirred }
    }

    /// To be called when this session has removed an entry. Wakes the callers without a watch that wait for this entry's node, so
    /// that they need not wait for the next read.
    pub(super) fn left(&self, path: &str) {
        let state = self.state();
        let waiting = state.unwatched.values().filter(|unwatched| unwatched.paths[0] == path);
        waiting.for_each(|unwatched| unwatched.stirred.notify_one());
    }

    /// For the session's task: resolves when there may be a caller without a watch whose node has to be read again and again.
    pub(super) async fn wanted(&self) {
        if self.unwatched().is_empty() {
            self.wanted.notified().await;
        }
    }

    /// The callers without a watch that have read their node and wait for a change of it, each with the path of its node.
    pub(super) fn unwatched(&self) -> Vec<(Number, String)> {
        let state = self.state();
        let waiting = state.unwatched.iter().filter(|(_, unwatched)| unwatched.seen.is_some());
        waiting.map(|(number, unwatched)| (*number, unwatched.paths[0].clone())).collect()
    }

    /// Wakes those callers whose nodes have changed since the callers read them. `written`: for each of `looked`, the transaction
    /// that has last written the node; `None`: the node is gone.
    pub(super) fn compare(&self, looked: &[(Number, String)], written: &[Option<i64>]) {
        let state = self.state();
        for ((number, _), written) in looked.iter().zip(written) {
            let Some(unwatched) = state.unwatched.get(number) else { continue };
            if unwatched.seen != *written {
                unwatched.stirred.notify_one();
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl State {
    /// Of the callers of this `Whose` that have no watch: the number of the one that came first; `None`: there is no such caller.
    fn first(&self, whose: Whose) -> Option<Number> {
        let mut all = self.unwatched.range((whose, 0)..=(whose, u64::MAX));
        all.next().map(|(number, _)| *number)
    }

    /// Takes room for the paths. Returns false if there is not enough.
    fn take(&mut self, whose: Whose, paths: &[String]) -> bool {
        let new = paths.iter().filter(|path| !self.watched.contains_key(*path));
        let bytes = new.map(String::len).sum::<usize>();
        let is_full = self.bytes + bytes > ROOM;
        if bytes > 0 && (is_full || whose == Whose::Own && self.own_bytes + bytes > OWN) {
            return false;
        }
        for path in paths {
            if let Some(watched) = self.watched.get_mut(path) {
                watched.count += 1;
                continue;
            }
            self.bytes += path.len();
            if whose == Whose::Own {
                self.own_bytes += path.len();
            }
            self.watched.insert(path.clone(), Watched { count: 1, whose });
        }
        true
    }

    fn give_back(&mut self, paths: &[String]) {
        for path in paths {
            let Some(watched) = self.watched.get_mut(path) else { continue };
            watched.count -= 1;
            if watched.count > 0 {
                continue;
            }
            self.bytes -= path.len();
            if watched.whose == Whose::Own {
                self.own_bytes -= path.len();
            }
            self.watched.remove(path);
        }
    }

    /// Gives room that has become free to the callers that came first.
    fn admit(&mut self) {
        for whose in [Whose::Others, Whose::Own] {
            while let Some(first) = self.first(whose)
                && let Some(unwatched) = self.unwatched.remove(&first)
            {
                if !self.take(whose, &unwatched.paths) {
                    self.unwatched.insert(first, unwatched);
                    break;
                }
                unwatched.stirred.notify_one();
            }
        }
    }
}

impl Place {
    /// Whether there is room for the watches of this caller by now.
    pub(super) fn is_watched(&self) -> bool {
        !self.room.state().unwatched.contains_key(&self.number)
    }

    /// Notes that the caller has read its node. `written`: the transaction that had last written the node when it was read.
    pub(super) fn saw(&self, written: i64) {
        if let Some(unwatched) = self.room.state().unwatched.get_mut(&self.number) {
            unwatched.seen = Some(written);
            self.room.wanted.notify_one();
        }
    }

    /// For a caller without a watch. Resolves when the caller's node has changed, or when there is room for the caller's watch.
    pub(super) async fn stirred(&self) {
        self.stirred.notified().await;
    }

    /// How long an observer without a watch waits before it reads its queue again. If many callers have no watch, it waits longer.
    pub(super) fn pause(&self) -> Duration {
        let count = u32::try_from(self.room.state().unwatched.len()).unwrap_or(u32::MAX);
        let pause = (Duration::from_secs(1) * count / LISTINGS).max(PAUSE);
        env::rng().random_range(pause / 2..=pause)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.room.state();
        if state.unwatched.remove(&self.number).is_none() {
            state.give_back(&self.paths);
        }
        state.admit();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(number: usize, bytes: usize) -> String {
        let name = format!("/{number}");
        let rest = "-".repeat(bytes - name.len());
        name + &rest
    }

    fn place(room: &Arc<WatchRoom>, whose: Whose, path: &str) -> Place {
        room.place(whose, &[path])
    }

    fn are_watched(places: &[Place]) -> Vec<bool> {
        places.iter().map(Place::is_watched).collect()
    }

    #[test]
    fn room_is_taken_and_given_back() {
        let room = Arc::<WatchRoom>::default();
        let mut places: Vec<_> = (0..ROOM / 1024)
            .map(|number| place(&room, Whose::Others, &path(number, 1024)))
            .collect();
        assert!(places.iter().all(Place::is_watched));
        let same = place(&room, Whose::Others, &path(0, 1024));
        assert!(same.is_watched(), "it is watched already");
        let late = place(&room, Whose::Others, "/late");
        assert!(!late.is_watched());
        places.remove(0);
        assert!(!late.is_watched(), "another one has it watched");
        drop(same);
        assert!(late.is_watched());
        drop((late, places));
        let state = room.state();
        let left = (state.watched.len(), state.bytes, state.own_bytes, state.unwatched.len());
        assert_eq!(left, (0, 0, 0, 0));
    }

    #[test]
    fn who_came_first_is_watched_first() {
        let room = Arc::<WatchRoom>::default();
        let full = place(&room, Whose::Others, &path(0, ROOM));
        let half = ROOM / 2 - 10;
        let mut late: Vec<_> =
            (1..4).map(|number| place(&room, Whose::Others, &path(number, half))).collect();
        assert_eq!(are_watched(&late), [false, false, false]);
        drop(full);
        assert_eq!(are_watched(&late), [true, true, false]);
        let short = place(&room, Whose::Others, "/short");
        assert!(!short.is_watched(), "there is room, but another one came first");
        late.remove(1);
        assert_eq!(are_watched(&late), [true, true]);
        assert!(short.is_watched());
    }

    #[test]
    fn own_entries_leave_room_for_others() {
        let room = Arc::<WatchRoom>::default();
        let own = [path(0, OWN), path(1, 100)].map(|path| place(&room, Whose::Own, &path));
        assert_eq!(are_watched(&own), [true, false]);
        let others = [path(2, OWN), path(3, 100)].map(|path| place(&room, Whose::Others, &path));
        assert_eq!(are_watched(&others), [true, false]);
        drop(own);
        assert!(others[1].is_watched());
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_behind_an_entry_that_leaves_is_told() {
        let room = Arc::<WatchRoom>::default();
        let _full = place(&room, Whose::Others, &path(0, ROOM));
        let late = ["/one", "/two"].map(|path| place(&room, Whose::Own, path));
        late.iter().for_each(|place| place.saw(1));
        assert_eq!(room.unwatched().len(), 2);
        room.left("/two");
        late[1].stirred().await;
        room.compare(&room.unwatched(), &[None, None]);
        late[0].stirred().await;
    }
}
