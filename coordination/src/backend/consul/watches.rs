//! Blocking queries: few of them, for everything that is waited for.
//!
//! A query that waits has a connection for itself, and Consul allows 200 from one address. So a process has a
//! handful of queries, each for one key or one queue; whoever comes when all are taken shares one over the names
//! of all keys of the namespace. A query that nobody waits for any longer is left until it is answered: the
//! server would not notice that its connection was closed, and count it.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::client::{Answer, Connections, Request};
use super::keys;
use super::kv::{Pair, listed};
use crate::backend::server::hub::Hub;
use crate::error::Result;

/// How many keys and queues have a query of their own.
const OWN_QUERIES: usize = 2;
/// How long a query that failed is left alone.
const PAUSE: Duration = Duration::from_millis(100);
/// The least time between two queries of all names. It is longer where they take long.
const LEAST_PACE: Duration = Duration::from_millis(10);
const PACE_PER_NAME: Duration = Duration::from_micros(50);
const LONGEST_PACE: Duration = Duration::from_millis(500);

/// What is waited for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Subject {
    /// A key.
    Key(String),
    /// The names of all keys that begin with it.
    Names(String),
}

/// What a query answered last.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// Of the answer; 0: there was none yet, so nothing has changed since the query was begun.
    pub(super) index: u64,
    /// Of a key.
    pub(super) pair: Option<Pair>,
    pub(super) names: HashSet<String>,
}

/// All queries of this backend. Each is answered in time, or ends with an error: then those who wait look for themselves.
pub(super) struct Watches(Arc<Queries>);

struct Queries {
    connections: Arc<Connections>,
    /// The names of all keys of the namespace.
    all: Subject,
    /// How long a query waits.
    longest: Duration,
    hub: Hub<Subject, Seen>,
}

impl Watches {
    /// `prefix`: of all keys of the namespace; `longest`: how long a query may wait.
    pub(super) fn new(connections: Arc<Connections>, prefix: String, longest: Duration) -> Self {
        let (all, hub) = (Subject::Names(prefix), Hub::default());
        Self(Arc::new(Queries { connections, all, longest, hub }))
    }

    /// Waits for a change after this index by a query of its own; `None`: all are taken.
    pub(super) fn own(&self, subject: Subject, index: u64) -> Option<watch::Receiver<Seen>> {
        let taken = self.0.hub.keys().into_iter().filter(|taken| *taken != self.0.all);
        let others = taken.filter(|taken| *taken != subject).count();
        (others < OWN_QUERIES).then(|| self.join(subject, index))
    }

    /// Waits with all others, by the names of all keys.
    pub(super) fn shared(&self) -> watch::Receiver<Seen> {
        self.join(self.0.all.clone(), 0)
    }

    fn join(&self, subject: Subject, index: u64) -> watch::Receiver<Seen> {
        let (seen, is_new) = self.0.hub.join(&subject);
        if is_new {
            tokio::spawn(Arc::clone(&self.0).follow(subject, index));
        }
        seen
    }
}

impl Queries {
    /// The queries about one subject, until nobody waits for their answers.
    async fn follow(self: Arc<Self>, subject: Subject, mut index: u64) {
        while !self.hub.end_if_idle(&subject) {
            let mut epochs = self.connections.epochs();
            let answer = tokio::select! {
                answer = self.connections.wait(subject.request(index), self.longest) => answer,
                // By another connection, then.
                _ = epochs.changed() => continue,
            };
            match answer.and_then(|answer| subject.seen(answer)) {
                Ok(seen) if seen.index >= index => {
                    index = seen.index;
                    let names = u32::try_from(seen.names.len()).unwrap_or(u32::MAX);
                    // The same index: nothing has changed in all that time.
                    self.hub.tell(&subject, |told| std::mem::replace(told, seen).index != index);
                    if subject == self.all {
                        let pace = LEAST_PACE + PACE_PER_NAME * names;
                        tokio::time::sleep(pace.min(LONGEST_PACE)).await;
                    }
                }
                // It failed, or the index went back: that is a server that was restored.
                other => {
                    tracing::debug!(error = ?other.err(), "a query ends");
                    tokio::time::sleep(PAUSE).await;
                    return self.hub.end(&subject);
                }
            }
        }
    }
}

impl Subject {
    fn request(&self, index: u64) -> Request {
        let request = match self {
            Self::Key(key) => Request::get(format!("kv/{}", keys::path(key))),
            Self::Names(prefix) => Request::get(format!("kv/{}", keys::path(prefix))).with("keys"),
        };
        if index > 0 { request.with(&format!("index={index}")) } else { request }
    }

    /// What an answer tells.
    fn seen(&self, answer: Answer) -> Result<Seen> {
        let seen = Seen { index: answer.index, ..Seen::default() };
        Ok(match self {
            Self::Key(key) => {
                let pairs: Vec<Pair> = listed("watch", answer)?;
                Seen { pair: pairs.into_iter().find(|pair| pair.key == *key), ..seen }
            }
            Self::Names(_) => {
                Seen { names: listed("watch", answer)?.into_iter().collect(), ..seen }
            }
        })
    }
}
