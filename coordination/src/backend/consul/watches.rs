//! Blocking queries: few of them, for everything that is waited for.
//!
//! A query that waits has a connection for itself, and Consul allows 200 from one address. So a process has a
//! handful of queries, each for one key or one queue; whoever comes when all are taken shares one over the names
//! of all keys of the namespace. A query that nobody waits for any longer is left until it is answered: the
//! server would not notice that its connection was closed, and count it.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::{oneshot, watch};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::client::{Answer, Connections, Request};
use super::keys;
use super::kv::{BATCH, Operation, Pair, names, pairs, read_together};
use crate::backend::server::hub::Hub;
use crate::error::{Error, Result};
use crate::retry::DecorrelatedJitter;

/// How many keys and queues have a query of their own.
const OWN_QUERIES: usize = 2;
/// How long a query that failed is left alone.
const PAUSE: Duration = Duration::from_millis(50);
/// The longest, when it is refused: somebody has to do something about that.
const LONGEST_PAUSE: Duration = Duration::from_secs(8);
/// The least time between two queries of all names. It is longer where they take long.
const LEAST_PACE: Duration = Duration::from_millis(10);
const PACE_PER_NAME: Duration = Duration::from_micros(50);
const LONGEST_PACE: Duration = Duration::from_millis(500);
/// How often it is looked whether a key that was there each time is still that of the same entry.
const RECHECK: Duration = Duration::from_secs(5);

/// What is waited for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Subject {
    /// A key.
    Key(String),
    /// All keys that begin with it.
    Prefix(String),
}

/// What a query answered last.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    /// Of the answer; 0: there was none yet, so nothing has changed since the query was begun.
    pub(super) index: u64,
    /// Of a key.
    pub(super) pair: Option<Pair>,
    /// How many answers there were, of which most tell nothing new.
    pub(super) answers: u64,
}

/// One who waits.
pub(super) enum Watch {
    /// By a query of its own.
    Own(watch::Receiver<Seen>),
    /// With all others: told when the key is gone.
    Shared(oneshot::Receiver<()>),
    /// All queries are taken, and names would not tell what is waited for.
    None,
}

/// All queries of this backend.
pub(super) struct Watches(Arc<Queries>);

struct Queries {
    connections: Arc<Connections>,
    /// Of the namespace, with a slash.
    prefix: String,
    /// How long a query waits.
    longest: Duration,
    /// What has a query of its own.
    own: Hub<Subject, Seen>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The tasks of queries of their own.
    own: HashMap<Subject, AbortHandle>,
    /// Those who share.
    shared: Vec<Sharer>,
    /// The task for those who share.
    sharing: Option<AbortHandle>,
    /// What it was told last.
    names: Option<HashSet<String>>,
}

/// One who shares, and the entry that is waited for.
struct Sharer {
    key: String,
    seq: u64,
    tell: oneshot::Sender<()>,
}

impl Watches {
    /// `prefix`: of all keys of the namespace; `longest`: how long a query may wait.
    pub(super) fn new(connections: Arc<Connections>, prefix: String, longest: Duration) -> Self {
        let (own, state) = (Hub::default(), Mutex::default());
        Self(Arc::new(Queries { connections, prefix, longest, own, state }))
    }

    /// Waits for a change after this index; of a key, that is the number of the entry that has it. `may_share`: the end of
    /// that entry is all that is waited for.
    pub(super) fn watch(&self, subject: Subject, index: u64, may_share: bool) -> Watch {
        let mut state = self.0.state();
        if let Some(seen) = self.0.own.find(&subject) {
            return Watch::Own(seen);
        }
        if self.0.own.keys().len() >= OWN_QUERIES {
            match self.0.own.end_idle() {
                Some(idle) => drop(state.own.remove(&idle).map(|task| task.abort())),
                None => return self.share(&mut state, subject, index, may_share),
            }
        }
        let (seen, _) = self.0.own.join(&subject);
        let task = tokio::spawn(Arc::clone(&self.0).follow(subject.clone(), index));
        state.own.insert(subject, task.abort_handle());
        Watch::Own(seen)
    }

    /// The entry of this number was deleted from here: those of this process who wait for that need no word from the
    /// server.
    pub(super) fn tell_gone(&self, key: &str, seq: Option<u64>) {
        let mut state = self.0.state();
        state.tell(|sharer| sharer.key == key);
        drop(state);
        self.0.own.tell(&Subject::Key(key.to_owned()), |seen| {
            *seen = Seen { index: seq.unwrap_or(u64::MAX), ..Seen::default() };
            true
        });
    }

    fn share(&self, state: &mut State, subject: Subject, seq: u64, may_share: bool) -> Watch {
        let Subject::Key(key) = subject else { return Watch::None };
        if !may_share {
            return Watch::None;
        }
        let (tell, told) = oneshot::channel();
        if state.names.as_ref().is_some_and(|names| !names.contains(&key)) {
            // That was answered before, and perhaps before the key was made: the caller looks.
            let _ = tell.send(());
            return Watch::Shared(told);
        }
        state.shared.push(Sharer { key, seq, tell });
        if state.sharing.as_ref().is_none_or(AbortHandle::is_finished) {
            let queries = Arc::clone(&self.0);
            state.sharing = Some(tokio::spawn(queries.follow_all()).abort_handle());
        }
        Watch::Shared(told)
    }
}

impl Drop for Watches {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.own.drain().for_each(|(_, task)| task.abort());
        if let Some(task) = state.sharing.take() {
            task.abort();
        }
    }
}

impl State {
    /// Tells those of whom this holds.
    fn tell(&mut self, is_told: impl Fn(&Sharer) -> bool) {
        for sharer in self.shared.extract_if(.., |sharer| is_told(sharer)) {
            // One who is gone needs no answer.
            drop((sharer.key, sharer.tell.send(())));
        }
    }
}

impl Queries {
    /// The queries about one key or queue, until nobody waits for their answers.
    async fn follow(self: Arc<Self>, subject: Subject, index: u64) {
        let (mut index, pauses) = (index, Pauses::new(self.longest));
        let mut pause = pauses;
        loop {
            let request = match &subject {
                Subject::Key(key) => Request::get(format!("kv/{}", keys::path(key))),
                Subject::Prefix(prefix) => {
                    Request::get(format!("kv/{}", keys::path(prefix))).with("keys")
                }
            };
            let answer = match self.query(request, index).await {
                Some(answer) => answer,
                None => continue,
            };
            let answered = answer.and_then(|answer| told(&subject, answer));
            match answered {
                // A server that was restored: those who wait look for themselves, and begin anew.
                Ok(found) if found.index < index => {
                    let mut state = self.state();
                    self.own.end(&subject);
                    state.own.remove(&subject);
                    return;
                }
                Ok(found) => {
                    pause = pauses;
                    index = found.index;
                    // The same index: nothing changed in all that time.
                    self.own.tell(&subject, |seen| {
                        *seen = Seen { answers: seen.answers + 1, ..found };
                        true
                    });
                }
                Err(error) => {
                    tracing::debug!(%error, "a query failed");
                    tokio::time::sleep(pause.after(&error)).await;
                }
            }
            let mut state = self.state();
            // Under the mutex: nobody begins to wait in between.
            if self.own.end_if_idle(&subject) {
                state.own.remove(&subject);
                return;
            }
        }
    }

    /// The queries about all names, until nobody shares them.
    async fn follow_all(self: Arc<Self>) {
        let (mut index, pauses) = (0, Pauses::new(self.longest));
        let (mut pause, mut checked) = (pauses, Instant::now());
        loop {
            if checked.elapsed() > RECHECK {
                self.check().await;
                checked = Instant::now();
            }
            let request = Request::get(format!("kv/{}", keys::path(&self.prefix))).with("keys");
            let answer = match self.query(request, index).await {
                Some(answer) => answer,
                None => {
                    self.leave_to_themselves();
                    continue;
                }
            };
            let answered = answer.and_then(|answer| Ok((answer.index, names("watch", answer)?)));
            let delay = match answered {
                Ok((answered, names)) => {
                    pause = pauses;
                    let pace =
                        LEAST_PACE + PACE_PER_NAME * u32::try_from(names.len()).unwrap_or(u32::MAX);
                    self.tell(names);
                    index = next_index(index, answered);
                    pace.min(LONGEST_PACE)
                }
                Err(error) => {
                    tracing::debug!(%error, "a query failed");
                    self.leave_to_themselves();
                    pause.after(&error)
                }
            };
            tokio::time::sleep(delay).await;
            let mut state = self.state();
            state.shared.retain(|sharer| !sharer.tell.is_closed());
            if state.shared.is_empty() {
                (state.sharing, state.names) = (None, None);
                return;
            }
        }
    }

    /// Tells those whose key is not there.
    fn tell(&self, names: Vec<String>) {
        let names: HashSet<_> = names.into_iter().collect();
        let mut state = self.state();
        state.tell(|sharer| !names.contains(&sharer.key));
        state.names = Some(names);
    }

    /// The server may be silent, or gone: those who share look for themselves.
    fn leave_to_themselves(&self) {
        self.state().tell(|_| true);
    }

    /// Tells those whose key is that of another entry by now. Keys are used again only after a while, so that the names
    /// tell nearly always.
    async fn check(&self) {
        let waited: Vec<_> =
            self.state().shared.iter().map(|sharer| (sharer.key.clone(), sharer.seq)).collect();
        for batch in waited.chunks(BATCH) {
            let reads: Vec<_> = batch.iter().map(|(key, _)| Operation::read(&**key)).collect();
            // Of what cannot be read there is nothing to tell: the next time, then.
            let Ok(found) = read_together(&self.connections, "watch", &reads).await else { return };
            let is_there = |key: &str, seq| {
                found.iter().any(|pair| pair.create_index == seq && pair.key == key)
            };
            let was_asked = |sharer: &Sharer| {
                batch.iter().any(|(key, seq)| *seq == sharer.seq && *key == sharer.key)
            };
            self.state().tell(|sharer| was_asked(sharer) && !is_there(&sharer.key, sharer.seq));
        }
    }

    /// One query; `None`: the connections were given up meanwhile.
    async fn query(&self, request: Request, index: u64) -> Option<Result<Answer>> {
        let mut epochs = self.connections.epochs();
        let request = if index > 0 { request.with(format!("index={index}")) } else { request };
        tokio::select! {
            answer = self.connections.wait(request, self.longest) => Some(answer),
            _ = epochs.changed() => None,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// How long to leave a query alone that fails again and again.
#[derive(Clone, Copy)]
struct Pauses {
    broken: DecorrelatedJitter,
    refused: DecorrelatedJitter,
}

impl Pauses {
    fn new(longest: Duration) -> Self {
        let refused = DecorrelatedJitter::new(LONGEST_PAUSE / 8, LONGEST_PAUSE);
        Self { broken: DecorrelatedJitter::new(PAUSE, longest), refused }
    }

    fn after(&mut self, error: &Error) -> Duration {
        let pauses = if error.is_transient() { &mut self.broken } else { &mut self.refused };
        pauses.next_delay()
    }
}

/// The index to ask after next. One that went back is that of a server that was restored: from the beginning.
fn next_index(asked: u64, answered: u64) -> u64 {
    if answered < asked { 0 } else { answered }
}

/// What an answer tells.
fn told(subject: &Subject, answer: Answer) -> Result<Seen> {
    let index = answer.index;
    let pair = match subject {
        Subject::Key(key) => pairs("watch", answer)?.into_iter().find(|pair| pair.key == *key),
        Subject::Prefix(_) => {
            names("watch", answer)?;
            None
        }
    };
    Ok(Seen { index, pair, answers: 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_that_went_back_begins_again() {
        assert_eq!(next_index(5, 7), 7);
        assert_eq!(next_index(5, 5), 5);
        assert_eq!(next_index(5, 4), 0);
        assert_eq!(next_index(5, 0), 0);
    }
}
