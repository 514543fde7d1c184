//! `Idempotency-Key`: a request whose answer was lost is sent again, and gets the same hold, number or claim.

mod settled;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::http::HeaderMap;
use sha2::{Digest, Sha256};

use self::settled::{Answer, Settled};
use crate::acquire::place::{Place, Waiter};
use crate::acquire::undelivered::Undelivered;
use crate::problem::{Code, Problem};

/// So many keys are remembered that were granted something; those that wait are as many as there may be waits.
const REMEMBERED: usize = 10_000;
/// The longest key.
const LONGEST: usize = 128;

/// A principal and its key.
type Key = (String, String);
type Content = [u8; 32];

/// The keys of this instance.
#[derive(Default)]
pub(crate) struct Keys(Mutex<Table>);

#[derive(Default)]
struct Table {
    entries: HashMap<Key, Entry>,
    /// Those of each principal that were granted something, in that order.
    granted: HashMap<String, BTreeMap<u64, String>>,
    /// How many these are.
    granted_count: usize,
    settled: Settled,
    last: u64,
}

struct Entry {
    /// Of the request that has the key now.
    number: u64,
    content: Content,
    state: State,
}

enum State {
    /// Its request waits at this place, or nobody does and it is kept.
    Waiting(Arc<Place<Undelivered>>),
    /// The handle of what it was granted, and the number of that among all grants.
    Granted { handle: String, order: u64 },
    /// What its request was answered, as soon as that is known.
    Settled(Answer),
}

/// What a key says of a request.
pub(crate) enum Asked {
    /// It is the first.
    New(Ticket),
    /// It waits at the place of the one before from now on.
    Waiting(Waiter<Undelivered>),
    /// It was granted this.
    Granted(String),
    /// The key was used for something else.
    Reused,
}

/// The wait of a request that has a key. Dropped without a grant, the key means nothing any more.
pub(crate) struct Ticket {
    keys: Arc<Keys>,
    key: Key,
    number: u64,
    place: Arc<Place<Undelivered>>,
    /// Who waits there for the first request.
    waiter: Option<Waiter<Undelivered>>,
    is_granted: bool,
}

/// The key that these headers have: 1 to 128 visible characters, bare or quoted.
pub(crate) fn key(headers: &HeaderMap) -> Result<Option<String>, Problem> {
    let mut given = headers.get_all("idempotency-key").iter();
    let (Some(first), more) = (given.next(), given.next()) else { return Ok(None) };
    let text = first.to_str().unwrap_or_default();
    let bare = text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(text);
    let is_good = (1..=LONGEST).contains(&bare.len())
        && bare.bytes().all(|byte| byte.is_ascii_graphic())
        && more.is_none();
    let wrong = "an Idempotency-Key is one header of 1 to 128 visible ASCII characters";
    if is_good { Ok(Some(bare.to_owned())) } else { Err(Problem::new(Code::Invalid, wrong)) }
}

/// An error if there is a key: of this request it is not known what a repetition was answered, and it would be carried out twice.
pub(crate) fn refuse(headers: &HeaderMap) -> Result<(), Problem> {
    match headers.contains_key("idempotency-key") {
        true => Err(Problem::new(
            Code::Unsupported,
            "an Idempotency-Key is for what is held, for counters, and for jobs",
        )),
        false => Ok(()),
    }
}

/// What a request asks for, in short.
pub(crate) fn content(parts: &[&str]) -> Content {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part.len().to_le_bytes());
        hash.update(part.as_bytes());
    }
    hash.finalize().into()
}

impl Keys {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request with this key begins. Its place is kept for so long when it has gone.
    pub(crate) fn begin(
        self: &Arc<Self>,
        client: &str,
        key: &str,
        content: Content,
        keep: Duration,
    ) -> Asked {
        let key = (client.to_owned(), key.to_owned());
        let mut table = self.table();
        if let Some(entry) = table.entries.get(&key) {
            match &entry.state {
                _ if entry.content != content => return Asked::Reused,
                State::Granted { handle, .. } => return Asked::Granted(handle.clone()),
                // One that is given up at this moment is none.
                State::Waiting(place) => {
                    if let Some(waiter) = place.wait_at(keep) {
                        return Asked::Waiting(waiter);
                    }
                }
                // Invariant: what is held is never asked for with the content of a counter or a job.
                State::Settled(_) => return Asked::Reused,
            }
        }
        table.last += 1;
        let (number, place) = (table.last, Place::new());
        // Before anybody can repeat the request: who does has come later.
        let waiter = place.wait_at(keep);
        let state = State::Waiting(Arc::clone(&place));
        table.entries.insert(key.clone(), Entry { number, content, state });
        let keys = Arc::clone(self);
        Asked::New(Ticket { keys, key, number, place, waiter, is_granted: false })
    }

    /// What the key was granted is as if it had never been.
    pub(crate) fn forget(&self, client: &str, key: &str, handle: &str) {
        let key = (client.to_owned(), key.to_owned());
        let mut table = self.table();
        let is_it = |entry: &Entry| matches!(&entry.state, State::Granted { handle: of, .. } if of == handle);
        if table.entries.get(&key).is_some_and(is_it) {
            table.forget(&key);
        }
    }
}

impl Table {
    /// One more key stands for a grant. If there are too many of those, the oldest one of the principal that has most is forgotten:
    /// each keeps its share.
    fn remember(&mut self, (client, key): &Key, order: u64) {
        self.granted.entry(client.clone()).or_default().insert(order, key.clone());
        self.granted_count += 1;
        if self.granted_count <= REMEMBERED {
            return;
        }
        let most = self.granted.iter().max_by_key(|(_, own)| own.len());
        let oldest = most.and_then(|(client, own)| Some((client, own.values().next()?)));
        if let Some((client, key)) = oldest {
            let oldest = (client.clone(), key.clone());
            self.forget(&oldest);
        }
    }

    /// The key means nothing any more, if it still is that of the request of this number.
    fn remove(&mut self, key: &Key, number: u64) {
        if self.entries.get(key).is_some_and(|entry| entry.number == number) {
            self.forget(key);
        }
    }

    fn forget(&mut self, key: &Key) {
        let Some(Entry { state: State::Granted { order, .. }, .. }) = self.entries.remove(key)
        else {
            return;
        };
        self.granted_count -= 1;
        if let Some(own) = self.granted.get_mut(&key.0) {
            own.remove(&order);
            if own.is_empty() {
                self.granted.remove(&key.0);
            }
        }
    }
}

impl Ticket {
    /// Where it waits.
    pub(crate) fn place(&self) -> Arc<Place<Undelivered>> {
        Arc::clone(&self.place)
    }

    /// Who waits there. Once.
    pub(crate) fn waiter(&mut self) -> Option<Waiter<Undelivered>> {
        self.waiter.take()
    }

    /// From now on the key stands for this grant.
    pub(crate) fn granted(&mut self, handle: &str) {
        let mut table = self.keys.table();
        table.last += 1;
        let order = table.last;
        let own = table.entries.get_mut(&self.key).filter(|entry| entry.number == self.number);
        if let Some(entry) = own {
            entry.state = State::Granted { handle: handle.to_owned(), order };
            self.is_granted = true;
            table.remember(&self.key, order);
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if !self.is_granted {
            self.keys.table().remove(&self.key, self.number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_stands_for_one_grant() {
        let keys = Arc::new(Keys::default());
        let (this, other) = (content(&["a", "b"]), content(&["ab", ""]));
        let begin =
            |client: &str, key: &str, content| keys.begin(client, key, content, Duration::ZERO);
        let ticket = |asked| match asked {
            Asked::New(ticket) => ticket,
            _ => panic!("it is not new"),
        };
        let granted = |asked, handle: &str| {
            let mut ticket = ticket(asked);
            ticket.granted(handle);
            assert!(ticket.is_granted);
        };
        let first = ticket(begin("me", "k", this));
        assert!(matches!(begin("me", "k", other), Asked::Reused));
        drop(ticket(begin("you", "k", other)));
        assert!(matches!(begin("me", "k", this), Asked::Waiting(_)));
        // What comes late takes nothing from who has the key now.
        first.place.end(Err(Problem::new(Code::Busy, "it is over")));
        let mut second = ticket(begin("me", "k", this));
        drop(first);
        second.granted("h");
        drop(second);
        assert!(matches!(begin("me", "k", this), Asked::Granted(handle) if handle == "h"));
        keys.forget("me", "k", "another");
        assert!(matches!(begin("me", "k", this), Asked::Granted(_)));
        keys.forget("me", "k", "h");
        granted(begin("you", "k", other), "theirs");
        // One that is granted something again and again, which nobody receives, is one all the same.
        for _ in 0..2 * REMEMBERED {
            granted(begin("me", "again", this), "nobody's");
            keys.forget("me", "again", "nobody's");
        }
        assert_eq!(keys.table().granted_count, 1);
        let mut now = ticket(begin("me", "k", this));
        for number in 0..2 * REMEMBERED {
            granted(begin("me", &number.to_string(), this), "h");
        }
        // One that still waits is none of those that are forgotten, and neither is that of another principal.
        let asked = begin("you", "k", other);
        assert!(matches!(asked, Asked::Granted(handle) if handle == "theirs"));
        assert_eq!(keys.table().entries.len(), REMEMBERED + 1);
        now.granted("now");
        assert!(matches!(begin("me", "k", this), Asked::Granted(handle) if handle == "now"));
        assert_eq!(keys.table().entries.len(), REMEMBERED);
    }

    #[test]
    fn keys_are_bare_or_quoted() {
        let read = |text: &str| {
            let value = text.parse().expect("a header");
            key(&HeaderMap::from_iter([("idempotency-key".parse().expect("a name"), value)]))
        };
        assert_eq!(read("a-1").ok().flatten().as_deref(), Some("a-1"));
        assert_eq!(read("\"a-1\"").ok().flatten().as_deref(), Some("a-1"));
        for wrong in ["", "\"\"", "a b", &"x".repeat(129)] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
        assert!(key(&HeaderMap::new()).is_ok_and(|key| key.is_none()));
    }
}
