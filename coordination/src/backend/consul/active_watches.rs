//! The blocking queries of this process, which all waiters and observers share.
//!
//! A blocking query needs a connection of its own, and Consul allows 200 connections from one address. So a process has at most
//! [`OWN_QUERIES`] for single keys and queues. If all of these are taken, an exclusive waiter shares one further query, for the
//! names of all keys of the namespace. If nobody waits for a query any more, the query still goes on until the server answers it:
//! if its connection were closed earlier, the server would not notice, and would go on counting the connection.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::client::Connections;
use super::keys;
use super::kv::{BATCH, Operation, Pair, listed, read_together};
use super::request::{Answer, Request};
use crate::backend::server::shared_watches::SharedWatches;
use crate::error::Result;
use crate::panics::{caught, on_purpose};

/// How many keys and queues have a query of their own, at most.
const OWN_QUERIES: usize = 2;
/// The pause after a query has failed, before its waiters are woken and read the store themselves.
const PAUSE: Duration = Duration::from_millis(100);
/// The pause in place of [`PAUSE`] if the server refused the query for a reason that will not pass soon, for instance for missing
/// rights.
const LONG_PAUSE: Duration = Duration::from_secs(4);
/// The pause after each answer to the query for all names: [`LEAST_PACE`] plus [`PACE_PER_NAME`] for each name in the answer, but
/// at most [`LONGEST_PACE`]. The more names there are, the longer each answer takes the server and the client.
const LEAST_PACE: Duration = Duration::from_millis(10);
const PACE_PER_NAME: Duration = Duration::from_micros(50);
const LONGEST_PACE: Duration = Duration::from_millis(500);
/// For waiters who share the query for all names: the time after which their keys are themselves read again. Names alone are not
/// enough: if an entry has left and a later entry has the same key, the key's name is still in each answer.
const RECHECK: Duration = Duration::from_secs(5);

/// How long after its end the answer to a query for one key or one queue may come at most. If it is lost on its way, the waiters read
/// the store then, which is within 2 s of the change that they wait for (`L2`). The answer to the query for all names may take longer,
/// because it is long where there are many names.
const LATE_ANSWER: Duration = Duration::from_millis(700);

/// What a caller waits for: it waits until this key, or this set of names, changes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Subject {
    /// One key, for which there is a blocking query.
    Key(String),
    /// One key, for which there is no query: its waiters share the query for all names.
    Shared(String),
    /// The names of all keys that begin with this prefix, which is that of a queue or of the whole namespace.
    Names(String),
}

/// The last answer to a query. For [`Subject::Shared`]: what [`Queries::check`] read last.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// The index of the answer. 0: there was no answer yet, or the check found no such key, so no change is known.
    pub(super) index: u64,
    /// The key, if the query is for one; `None`: the key is absent, or the query is for names.
    pub(super) pair: Option<Pair>,
    /// The names, if the query is for names.
    pub(super) names: HashSet<String>,
}

/// All blocking queries of this backend. If a query fails, the receivers of the callers who wait for its answer fail too, and
/// these callers read the store.
pub(super) struct Watches(Arc<Queries>);

/// The two receivers of a waiter that has no blocking query for its key alone. The waiter waits for both at once, because either of
/// them may show that its wait is over.
pub(super) struct Shared<'a> {
    /// The answers to the query for all names.
    pub(super) all: watch::Receiver<Seen>,
    /// The key itself, which is read every [`RECHECK`].
    pub(super) seen: watch::Receiver<Seen>,
    // Declared after `seen`, and therefore dropped after it: `EndIfIdle` does not end a watch as long as a receiver of the watch
    // exists.
    _unwatched: EndIfIdle<'a>,
}

/// Ends, on drop, the watch of a key if nobody waits for the key any more. [`Queries::check`] ends such watches too, but it runs
/// only when the query for all names has gone on for the time [`RECHECK`], and that query stops when it has no waiter. So if every
/// waiter waits only for a moment, `check` never runs. Then, without `EndIfIdle`, the watches of these keys would stay in memory.
struct EndIfIdle<'a> {
    hub: &'a SharedWatches<Subject, Seen>,
    subject: Subject,
}

impl Drop for EndIfIdle<'_> {
    fn drop(&mut self) {
        self.hub.end_if_idle(&self.subject);
    }
}

struct Queries {
    connections: Arc<Connections>,
    /// The names of all keys of the namespace.
    all: Subject,
    /// How long a query waits at the server.
    longest: Duration,
    hub: SharedWatches<Subject, Seen>,
}

impl Watches {
    /// `prefix`: the prefix of all keys of the namespace; `longest`: how long a query may wait.
    pub(super) fn new(connections: Arc<Connections>, prefix: String, longest: Duration) -> Self {
        let (all, hub) = (Subject::Names(prefix), SharedWatches::default());
        Self(Arc::new(Queries { connections, all, longest, hub }))
    }

    /// Waits for a change of `subject` after this index, by a blocking query for this subject alone. `None`: [`OWN_QUERIES`]
    /// other subjects have such queries already.
    pub(super) fn own(&self, subject: Subject, index: u64) -> Option<watch::Receiver<Seen>> {
        let is_other = |taken: &Subject| match taken {
            Subject::Shared(_) => false,
            Subject::Key(_) | Subject::Names(_) => *taken != subject && *taken != self.0.all,
        };
        let others = self.0.hub.count(is_other);
        (others < OWN_QUERIES).then(|| self.join(subject, index))
    }

    /// Waits for a change of a key without a query for this key alone: for the answers to the query for all names, and for what
    /// [`Queries::check`] reads of this key.
    pub(super) fn shared(&self, key: &str) -> Shared<'_> {
        let subject = Subject::Shared(key.to_owned());
        let (seen, _) = self.0.hub.join(&subject);
        let all = self.join(self.0.all.clone(), 0);
        Shared { all, seen, _unwatched: EndIfIdle { hub: &self.0.hub, subject } }
    }

    /// To be called only when this process knows that the entry with the number `seq` is gone. Wakes the callers in this process
    /// who wait for the end of that entry, so that they need not wait until the server reports it.
    pub(super) fn tell_gone(&self, key: &str, seq: Option<u64>) {
        self.0.hub.end(&Subject::Shared(key.to_owned()));
        self.0.hub.tell(&Subject::Key(key.to_owned()), |seen| {
            *seen = Seen { index: seq.unwrap_or(u64::MAX), ..Seen::default() };
            true
        });
    }

    fn join(&self, subject: Subject, index: u64) -> watch::Receiver<Seen> {
        let (seen, is_new) = self.0.hub.join(&subject);
        if is_new {
            let queries = Arc::clone(&self.0);
            tokio::spawn(async move {
                let following = async {
                    on_purpose("watching");
                    queries.follow(&subject, index).await;
                };
                if caught("watch", following).await.is_err() {
                    // The query has panicked. Its waiters read the store themselves, and the next waiter starts a new query.
                    tokio::time::sleep(PAUSE).await;
                    queries.hub.end(&subject);
                }
            });
        }
        seen
    }
}

impl Queries {
    /// Sends the blocking queries for one subject, one after the other, until nobody waits for their answers.
    async fn follow(&self, subject: &Subject, mut index: u64) {
        let mut checked = Instant::now();
        let mut nothing_until = None;
        let late = if *subject == self.all { Duration::MAX } else { LATE_ANSWER };
        while !self.hub.end_if_idle(subject) {
            if *subject == self.all && checked.elapsed() > RECHECK {
                self.check().await;
                checked = Instant::now();
            }
            let mut epochs = self.connections.epochs();
            let answer = tokio::select! {
                answer = self.connections.wait(|| subject.query(), index, (self.longest, late)) => answer,
                // This process has connected anew: the query is sent again on the new connections.
                _ = epochs.changed() => continue,
            };
            match answer.and_then(|answer| subject.seen(answer)) {
                Ok(seen) if seen.index >= index => {
                    index = seen.index;
                    let is_nothing = subject.is_of_names() && seen.names.is_empty();
                    let names = u32::try_from(seen.names.len()).unwrap_or(u32::MAX);
                    // If the index is the same as before, the server has answered because the query's time was over, and nothing
                    // has changed: nobody is woken.
                    self.hub.tell(subject, |told| std::mem::replace(told, seen).index != index);
                    if *subject == self.all {
                        let pace = LEAST_PACE + PACE_PER_NAME * names;
                        tokio::time::sleep(pace.min(LONGEST_PACE)).await;
                    }
                    // If no key begins with the prefix, Consul answers with the index of all keys, so it answers at each write of
                    // any other key. Therefore we leave at least [`LONGEST_PACE`] between two such answers. A query for a single
                    // key that is absent is also answered at each write of any other key, but after an answer to such a query we
                    // make no pause. The first answer without the key ends the wait of all who wait for the end of the key's entry.
                    // Later the key may get a new entry, and a pause would delay the answer to those who wait for the end of the
                    // new entry.
                    if let Some(moment) = nothing_until.filter(|_| is_nothing) {
                        tokio::time::sleep_until(moment).await;
                    }
                    nothing_until = is_nothing.then(|| Instant::now() + LONGEST_PACE);
                }
                // The query failed, or the index is lower than before, as it is after the server's data was restored.
                other => {
                    let error = other.err();
                    tracing::debug!(?error, "a query ends");
                    let is_refused = error.is_some_and(|error| !error.is_transient());
                    tokio::time::sleep(if is_refused { LONG_PAUSE } else { PAUSE }).await;
                    return self.hub.end(subject);
                }
            }
        }
    }

    /// Reads the keys whose waiters share the query for all names. If the entry that a waiter waits for has left and a later entry
    /// has the same key, the query shows no change, because the key's name is in all answers. Only this read shows such a waiter
    /// that its wait is over. The case is rare, because a key is used again only after a while.
    async fn check(&self) {
        let mut waited = self.hub.keys();
        waited.retain(|subject| {
            matches!(subject, Subject::Shared(_)) && !self.hub.end_if_idle(subject)
        });
        for batch in waited.chunks(BATCH) {
            let reads: Vec<_> = batch.iter().map(|one| Operation::read(one.name())).collect();
            // If the read fails, the next check reads again.
            let Ok(found) = read_together(&self.connections, "watch", &reads).await else { return };
            for subject in batch {
                let pair = found.iter().find(|pair| pair.key == subject.name()).cloned();
                // For an absent key the index is 0, which wakes nobody here. The waiters are woken by the query for all names, in
                // whose answers the key is missing.
                let index = pair.as_ref().map_or(0, |pair| pair.modify_index);
                self.hub.tell(subject, |seen| {
                    *seen = Seen { index, pair, ..Seen::default() };
                    true
                });
            }
        }
    }
}

impl Subject {
    fn name(&self) -> &str {
        let (Self::Key(name) | Self::Shared(name) | Self::Names(name)) = self;
        name
    }

    fn is_of_names(&self) -> bool {
        matches!(self, Self::Names(_))
    }

    fn query(&self) -> Request {
        let query = Request::get(format!("kv/{}", keys::path(self.name())));
        if let Self::Names(_) = self { query.with("keys") } else { query }
    }

    fn seen(&self, answer: Answer) -> Result<Seen> {
        let seen = Seen { index: answer.index, ..Seen::default() };
        Ok(match self {
            Self::Names(_) => {
                Seen { names: listed("watch", answer)?.into_iter().collect(), ..seen }
            }
            Self::Key(key) | Self::Shared(key) => {
                let pairs: Vec<Pair> = listed("watch", answer)?;
                Seen { pair: pairs.into_iter().find(|pair| pair.key == *key), ..seen }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config as Options;
    use crate::backend::consul::client::Agents;
    use crate::backend::consul::config::Config;
    use crate::config::Settings;
    use crate::url::Url;

    #[tokio::test]
    async fn what_nobody_waits_for_is_not_watched() -> Result<()> {
        let mut url = Url::parse_by_scheme("consul://127.0.0.1:1")?;
        let config = Config::parse(&mut url)?;
        let settings = Settings::resolve(Options::default(), &mut url, None)?;
        let agents = Agents::new(&config);
        let connections = Arc::new(Connections::new(agents, &settings, settings.heartbeat));
        let watches = Watches::new(connections, "ns/".to_owned(), settings.heartbeat);
        let stays = watches.shared("ns/lock/stays");
        for number in 0..1_000 {
            drop(watches.shared(&format!("ns/lock/{number}")));
        }
        let others = watches.shared("ns/lock/stays");
        // One watch is for the key that is still waited for, the other for the names of all keys.
        assert_eq!(watches.0.hub.keys().len(), 2);
        drop((stays, others));
        Ok(())
    }
}
