//! The blocking queries of this process: a few, for everything that its callers wait for.
//!
//! A blocking query needs a connection of its own, and Consul allows 200 from one address. So a process has at most [`OWN_QUERIES`]
//! for single keys and queues. A caller that comes when all are taken shares one query for the names of all keys of the namespace.
//! If nobody waits for a query any more, it still goes on until it is answered: if its connection were closed, the server would not
//! notice, and would go on counting it.

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
/// The pause after a query has failed, before its waiters are woken. They then read the store themselves.
const PAUSE: Duration = Duration::from_millis(100);
/// The pause in place of [`PAUSE`] after a refusal, for missing rights for instance, which will not end soon.
const LONG_PAUSE: Duration = Duration::from_secs(4);
/// The pause between two queries for all names is this, and [`PACE_PER_NAME`] for each name, but no longer than [`LONGEST_PACE`].
const LEAST_PACE: Duration = Duration::from_millis(10);
const PACE_PER_NAME: Duration = Duration::from_micros(50);
const LONGEST_PACE: Duration = Duration::from_millis(500);
/// How often the keys of waiters who share the query for all names are read. Names alone are not enough: if an entry has left and a
/// later entry has the same key, the key's name is still in each answer.
const RECHECK: Duration = Duration::from_secs(5);

/// What a caller watches: it waits until this changes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Subject {
    /// A key.
    Key(String),
    /// A key that has no query of its own: its waiters share the query for all names.
    Shared(String),
    /// The names of all keys that begin with this prefix.
    Names(String),
}

/// What a query answered last.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// The index of the answer; 0: there was no answer yet, so no change is known.
    pub(super) index: u64,
    /// The key, if the query is for one; `None`: the key is absent, or the query is for names.
    pub(super) pair: Option<Pair>,
    /// The names, if the query is for names.
    pub(super) names: HashSet<String>,
}

/// All queries of this backend. If one of them fails, the receivers of its waiters fail, and their callers read the store.
pub(super) struct Watches(Arc<Queries>);

/// What a waiter without a query of its own waits for.
pub(super) struct Shared<'a> {
    /// The answers to the query for all names.
    pub(super) all: watch::Receiver<Seen>,
    /// What the key itself had when it was read, which is done every [`RECHECK`].
    pub(super) seen: watch::Receiver<Seen>,
    // Declared, and so dropped, after `seen`: as long as that receiver exists, the watch has a waiter and is not ended.
    _unwatched: EndIfIdle<'a>,
}

/// Ends, on drop, a watch that has no waiter any more. [`Queries::check`] does that too, but only once the query for all names
/// has gone on for [`RECHECK`]. That query ends whenever nobody waits. So if all waiters wait for moments only, there is never a
/// check, and idle watches would pile up.
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

    /// Waits for a change after this index by a query of its own; `None`: all [`OWN_QUERIES`] are taken.
    pub(super) fn own(&self, subject: Subject, index: u64) -> Option<watch::Receiver<Seen>> {
        let is_other = |taken: &Subject| match taken {
            Subject::Shared(_) => false,
            Subject::Key(_) | Subject::Names(_) => *taken != subject && *taken != self.0.all,
        };
        let others = self.0.hub.count(is_other);
        (others < OWN_QUERIES).then(|| self.join(subject, index))
    }

    /// Waits without a query of its own: for the answers to the query for all names, and for what [`Queries::check`] reads of
    /// this key.
    pub(super) fn shared(&self, key: &str) -> Shared<'_> {
        let subject = Subject::Shared(key.to_owned());
        let (seen, _) = self.0.hub.join(&subject);
        let all = self.join(self.0.all.clone(), 0);
        Shared { all, seen, _unwatched: EndIfIdle { hub: &self.0.hub, subject } }
    }

    /// Wakes the waiters in this process for the entry with this number, which this process has deleted. So they need not wait
    /// for the server.
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
    /// Sends the queries about one subject, one after the other, until nobody waits for their answers.
    async fn follow(&self, subject: &Subject, mut index: u64) {
        let mut checked = Instant::now();
        let mut nothing_until = None;
        while !self.hub.end_if_idle(subject) {
            if *subject == self.all && checked.elapsed() > RECHECK {
                self.check().await;
                checked = Instant::now();
            }
            let mut epochs = self.connections.epochs();
            let answer = tokio::select! {
                answer = self.connections.wait(|| subject.query(), index, self.longest) => answer,
                // The connections were replaced: ask on the new ones.
                _ = epochs.changed() => continue,
            };
            match answer.and_then(|answer| subject.seen(answer)) {
                Ok(seen) if seen.index >= index => {
                    index = seen.index;
                    let is_nothing = subject.is_of_names() && seen.names.is_empty();
                    let names = u32::try_from(seen.names.len()).unwrap_or(u32::MAX);
                    // If the index is the same, the time of the query was over and nothing has changed: nobody is woken.
                    self.hub.tell(subject, |told| std::mem::replace(told, seen).index != index);
                    if *subject == self.all {
                        let pace = LEAST_PACE + PACE_PER_NAME * names;
                        tokio::time::sleep(pace.min(LONGEST_PACE)).await;
                    }
                    // If no key begins with the prefix, Consul answers with the index of all keys, and so at each write of any key:
                    // so there is a pause. The same happens with a query for a single key that is absent, but there is no pause
                    // then: all who wait for the end of its entry are woken by this answer, and those who wait for a later entry
                    // with the same key must not wait longer.
                    if let Some(moment) = nothing_until.filter(|_| is_nothing) {
                        tokio::time::sleep_until(moment).await;
                    }
                    nothing_until = is_nothing.then(|| Instant::now() + LONGEST_PACE);
                }
                // The query failed, or the index went back, as it does when a server was restored.
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

    /// Reads the keys of the waiters who share the query for all names. This finds keys that belong to later entries by now. That
    /// is rare, because a key is used again only after a while.
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
                // An absent key wakes nobody here (index 0): the query for all names reports it.
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
