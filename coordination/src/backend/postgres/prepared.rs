//! Which calls of a connection are sent as prepared statements, which the server need not parse and analyse each time.
//!
//! A prepared statement belongs to one connection at the server, and is known there by its name. The client crate counts the names
//! for each process: `s0`, `s1`, and so on. Behind a pooler that gives each transaction another connection to the server, a name may
//! be unknown there, or be that of another process's statement, and the server would carry out a wrong call. So statements are
//! prepared only where the connection is known to lead to the server itself (`Server::is_direct`); elsewhere all are unnamed.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// How many calls of a function are sent unnamed before the first one that uses a prepared statement. A process that soon ends, or
/// calls a function now and then, prepares nothing.
const UNNAMED: u32 = 4;

/// The name of a function in the database, and the number of the arguments in SQL. The types of the arguments follow from it,
/// because each function has one signature.
type Key = (&'static str, usize);

/// The prepared statements of a connection, of the client crate's type `S`: one for each function that is called often.
pub(super) struct Prepared<S> {
    /// Whether statements may be prepared on this connection.
    is_allowed: bool,
    states: Mutex<HashMap<Key, State<S>>>,
}

enum State<S> {
    /// So many calls were sent unnamed.
    Unnamed(u32),
    /// The statement is being prepared; or that has failed, which is not tried again on this connection.
    Preparing,
    Prepared(S),
}

/// How a call is to be sent.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Way<S> {
    Unnamed,
    /// Unnamed, and along with it the statement is to be prepared. Only one call is told so. Of two statements prepared at the same
    /// time, one would be dropped, and with it the client crate would send a request to close it.
    Preparing,
    Named(S),
}

impl<S: Clone> Prepared<S> {
    pub(super) fn new(is_allowed: bool) -> Self {
        Self { is_allowed, states: Mutex::default() }
    }

    /// Counts a call of this function, and says how it is to be sent.
    pub(super) fn way(&self, key: Key) -> Way<S> {
        if !self.is_allowed {
            return Way::Unnamed;
        }
        let mut all = self.all();
        let state = all.entry(key).or_insert(State::Unnamed(0));
        match state {
            State::Unnamed(sent) if *sent + 1 < UNNAMED => {
                *sent += 1;
                Way::Unnamed
            }
            State::Unnamed(_) => {
                *state = State::Preparing;
                Way::Preparing
            }
            State::Preparing => Way::Unnamed,
            State::Prepared(statement) => Way::Named(statement.clone()),
        }
    }

    /// Keeps the statement that was prepared for this function. The next calls of the function use it.
    pub(super) fn keep(&self, key: Key, statement: S) {
        self.all().insert(key, State::Prepared(statement));
    }

    fn all(&self) -> MutexGuard<'_, HashMap<Key, State<S>>> {
        self.states.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENTER: Key = ("enter", 6);

    #[test]
    fn the_last_of_the_first_calls_has_the_statement_prepared() {
        let prepared = Prepared::<&str>::new(true);
        for _ in 1..UNNAMED {
            assert_eq!(prepared.way(ENTER), Way::Unnamed);
        }
        assert_eq!(prepared.way(ENTER), Way::Preparing);
        assert_eq!(prepared.way(ENTER), Way::Unnamed, "it is not prepared yet, and only once");
        prepared.keep(ENTER, "s0");
        assert_eq!(prepared.way(ENTER), Way::Named("s0"));
        assert_eq!(prepared.way(("leave", 5)), Way::Unnamed, "another function");
        assert_eq!(prepared.way(("enter", 7)), Way::Unnamed, "another number of arguments");
    }

    #[test]
    fn nothing_is_prepared_where_the_server_may_be_another_one_each_time() {
        let prepared = Prepared::<&str>::new(false);
        assert!((0..3 * UNNAMED).all(|_| prepared.way(ENTER) == Way::Unnamed));
    }
}
