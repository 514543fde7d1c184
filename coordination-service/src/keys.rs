//! `Idempotency-Key`: a request whose answer was lost is sent again, and gets the same hold, or the same number.

mod settled;

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::http::HeaderMap;
use sha2::{Digest, Sha256};
use tokio::sync::Notify;

use self::settled::{Number, Settled};
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
    /// Those that were granted something, in that order; some are gone, or there anew.
    order: VecDeque<(Key, u64)>,
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
    /// Its request waits; told when another takes the key over.
    Waiting(Arc<Notify>),
    /// The handle of what it was granted.
    Granted(String),
    /// What its request was answered, as soon as that is known.
    Settled(Number),
}

/// What a key says of a request.
pub(crate) enum Asked {
    /// It is the first, or takes over from one that waits.
    New(Ticket),
    /// It was granted this.
    Granted(String),
    /// The key was used for something else.
    Reused,
}

/// A request that has its key, until another takes that over. Dropped without a grant, the key means nothing any more.
pub(crate) struct Ticket {
    keys: Arc<Keys>,
    key: Key,
    number: u64,
    superseded: Arc<Notify>,
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
            "an Idempotency-Key is for what is held, and for counters",
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

    /// A request with this key begins.
    pub(crate) fn begin(self: &Arc<Self>, client: &str, key: &str, content: Content) -> Asked {
        let key = (client.to_owned(), key.to_owned());
        let mut table = self.table();
        if let Some(entry) = table.entries.get(&key) {
            match &entry.state {
                _ if entry.content != content => return Asked::Reused,
                State::Granted(handle) => return Asked::Granted(handle.clone()),
                State::Waiting(before) => before.notify_one(),
                // Invariant: what is held is never asked for with the content of a counter.
                State::Settled(_) => return Asked::Reused,
            }
        }
        table.last += 1;
        let (number, superseded) = (table.last, Arc::new(Notify::new()));
        let state = State::Waiting(Arc::clone(&superseded));
        table.entries.insert(key.clone(), Entry { number, content, state });
        Asked::New(Ticket { keys: Arc::clone(self), key, number, superseded, is_granted: false })
    }

    /// What the key was granted is as if it had never been.
    pub(crate) fn forget(&self, client: &str, key: &str, handle: &str) {
        let key = (client.to_owned(), key.to_owned());
        let mut table = self.table();
        let is_it = |entry: &Entry| matches!(&entry.state, State::Granted(of) if of == handle);
        if table.entries.get(&key).is_some_and(is_it) {
            table.entries.remove(&key);
        }
    }
}

impl Table {
    /// It was granted something; the oldest of those is forgotten, if there are too many.
    fn remember(&mut self, key: &Key, number: u64) {
        self.order.push_back((key.clone(), number));
        if self.order.len() > REMEMBERED
            && let Some((oldest, number)) = self.order.pop_front()
        {
            self.remove(&oldest, number);
        }
    }

    fn remove(&mut self, key: &Key, number: u64) {
        if self.entries.get(key).is_some_and(|entry| entry.number == number) {
            self.entries.remove(key);
        }
    }
}

impl Ticket {
    /// Waits until another request has the key.
    pub(crate) async fn superseded(&self) {
        self.superseded.notified().await;
    }

    /// From now on the key stands for this grant; false: another request has it.
    pub(crate) fn granted(&mut self, handle: &str) -> bool {
        let mut table = self.keys.table();
        let own = table.entries.get_mut(&self.key).filter(|entry| entry.number == self.number);
        if let Some(entry) = own {
            entry.state = State::Granted(handle.to_owned());
            self.is_granted = true;
            table.remember(&self.key, self.number);
        }
        self.is_granted
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
        let ticket = |asked| match asked {
            Asked::New(ticket) => ticket,
            _ => panic!("it is not new"),
        };
        let first = ticket(keys.begin("me", "k", this));
        assert!(matches!(keys.begin("me", "k", other), Asked::Reused));
        drop(ticket(keys.begin("you", "k", other)));
        let mut second = ticket(keys.begin("me", "k", this));
        // What comes late takes nothing from who has the key now.
        drop(first);
        assert!(second.granted("h"));
        drop(second);
        assert!(matches!(keys.begin("me", "k", this), Asked::Granted(handle) if handle == "h"));
        keys.forget("me", "k", "another");
        assert!(matches!(keys.begin("me", "k", this), Asked::Granted(_)));
        keys.forget("me", "k", "h");
        let mut late = ticket(keys.begin("me", "k", this));
        let mut now = ticket(keys.begin("me", "k", this));
        assert!(!late.granted("late"));
        for number in 0..2 * REMEMBERED {
            assert!(ticket(keys.begin("me", &number.to_string(), this)).granted("h"));
        }
        // One that still waits is none of those that are forgotten.
        assert_eq!(keys.table().entries.len(), REMEMBERED + 1);
        assert!(now.granted("now"));
        assert!(matches!(keys.begin("me", "k", this), Asked::Granted(handle) if handle == "now"));
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
