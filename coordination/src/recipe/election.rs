//! The election: candidates stand in a queue, and the first of them leads until it leaves.

use std::fmt;
use std::time::{Duration, SystemTime};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::data::{MAX_ENTRY_BYTES, from_data, to_data};
use super::grant::{Grant, guard};
use super::place::Contents;
use super::queue::Queue;
use super::turn::{Patience, Request};
use crate::Coordinator;
use crate::backend::{Data, Entry, Mode};
use crate::error::Result;
use crate::session::Views;
use crate::token::FencingToken;

impl Coordinator {
    /// The election of this name, with the coordinator's prefix before it. No I/O.
    ///
    /// Names are as for [`lock`](Self::lock); a lock and an election of one name have nothing to do
    /// with each other.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Name`](crate::ErrorKind::Name): empty or too long.
    pub fn election(&self, name: impl AsRef<str>) -> Result<Election> {
        Ok(Election { queue: self.queue("election", name.as_ref())? })
    }
}

/// A named election. Made by [`Coordinator::election`], without I/O; cheap to clone.
///
/// At most one candidate leads at a time, in the sense in which a lock has one holder. Each leadership is a
/// *term*, and its number is the fencing token: a later term has the larger one.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
/// let coordinator = coordination::Coordinator::connect("memory://").await?;
/// let election = coordinator.election("scheduler")?;
/// assert!(election.leader().await?.is_none());
///
/// let leadership = election.campaign("http://host-1:8080", None).await?;
/// assert!(leadership.is_leader());
///
/// let term = election.leader().await?.expect("somebody leads");
/// assert_eq!(term.term, leadership.term());
/// assert_eq!(term.value::<String>()?, "http://host-1:8080");
/// leadership.resign().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Election {
    queue: Queue,
}

impl Election {
    /// The election's name, with the coordinator's prefix.
    pub fn name(&self) -> &str {
        self.queue.name()
    }

    /// Stands for election, waits to be elected, and returns the leadership.
    ///
    /// `value` is what observers are told of the leader, such as its address: at most 4 KiB as JSON. It is
    /// [listed](Self::candidates) while the candidate waits, and [`Leadership::proclaim`] replaces it.
    ///
    /// `timeout` bounds the whole call; `None` waits for ever, also through an outage of the store; zero asks
    /// once, like [`try_campaign`](Self::try_campaign). On return the caller leads until it resigns, drops the
    /// leadership, or it is [lost](Grant::lost).
    ///
    /// A candidate whose session is lost while it waits stands again, at the end, under the next session. A
    /// leader whose session is lost is out until it campaigns anew.
    ///
    /// # Errors
    ///
    /// * [`ErrorKind::Timeout`](crate::ErrorKind::Timeout): others led all the time.
    /// * [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable): the store did not answer within `timeout`.
    /// * [`ErrorKind::Value`](crate::ErrorKind::Value): the value cannot be written as JSON, or is too large.
    /// * [`ErrorKind::Lost`](crate::ErrorKind::Lost): elected, and the session was lost before the leadership
    ///   could be made.
    /// * [`ErrorKind::Closed`](crate::ErrorKind::Closed): the coordinator was stopped, or this is a forked child.
    /// * The kinds of a store that refuses: the caller does not stand.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future at any point withdraws the candidacy; nothing is left behind at the store, and a
    /// leadership won meanwhile is resigned at once.
    ///
    /// # Fairness
    ///
    /// First come, first served, by the order of arrival at the store. Nobody overtakes.
    pub async fn campaign(
        &self,
        value: &(impl Serialize + ?Sized),
        timeout: Option<Duration>,
    ) -> Result<Leadership> {
        let request = self.request("campaign", value)?;
        Ok(Leadership { grant: self.queue.acquire_within(&request, timeout).await? })
    }

    /// Leads if nobody else does or waits to; `None` otherwise, and the caller does not stand.
    ///
    /// # Errors
    ///
    /// Those of [`campaign`](Self::campaign) but `Timeout`.
    ///
    /// # Cancel safety
    ///
    /// As for [`campaign`](Self::campaign).
    pub async fn try_campaign(
        &self,
        value: &(impl Serialize + ?Sized),
    ) -> Result<Option<Leadership>> {
        let request = self.request("campaign", value)?;
        let grant = self.queue.acquire(&request, Patience::Never).await?;
        Ok(grant.map(|grant| Leadership { grant }))
    }

    /// Who leads; `None`: nobody does.
    ///
    /// As of one moment of the call: by the time of the answer somebody else may lead. And it is who leads
    /// at the store: a leader that was cut off knows by its own deadline that it is out before the store does.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) and the other kinds of a store that refuses or
    /// does not answer.
    ///
    /// # Cancel safety
    ///
    /// Only reads.
    pub async fn leader(&self) -> Result<Option<Term>> {
        Ok(self.queue.read("leader").await?.entries.first().and_then(Term::of))
    }

    /// Who stands: the leader first, then those who wait, in the order in which they are to lead.
    ///
    /// # Errors
    ///
    /// Those of [`leader`](Self::leader).
    ///
    /// # Cancel safety
    ///
    /// Only reads.
    pub async fn candidates(&self) -> Result<Vec<Candidate>> {
        let listing = self.queue.read("candidates").await?;
        let candidate = |(place, entry): (usize, &Entry)| {
            let Term { term, leader, data } = Term::of(entry)?;
            Some(Candidate { member: leader, since: entry.since, term, leading: place == 0, data })
        };
        Ok(listing.entries.iter().enumerate().filter_map(candidate).collect())
    }

    /// Follows the terms without standing; the first [`next`](Terms::next) tells who leads.
    ///
    /// All observers in this process of one election share what is read of it.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let election = coordinator.election("scheduler")?;
    /// let mut terms = election.observe();
    /// assert!(terms.next().await?.is_none(), "nobody leads yet");
    ///
    /// let leadership = election.campaign("host-1", None).await?;
    /// let term = terms.next().await?.expect("somebody leads");
    /// assert_eq!(term.term, leadership.term());
    /// # Ok(()) }
    /// ```
    pub fn observe(&self) -> Terms {
        Terms { views: self.queue.observe(), queue: self.queue.clone(), told: Told::default() }
    }

    fn request(
        &self,
        operation: &'static str,
        value: &(impl Serialize + ?Sized),
    ) -> Result<Request> {
        let data = self.queue.named(to_data(operation, value, MAX_ENTRY_BYTES))?;
        Ok(Request { contents: Contents { data, ..self.queue.contents() }, judge: None })
    }
}

impl fmt::Debug for Election {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Election").field("name", &self.name()).finish_non_exhaustive()
    }
}

/// Leads; resigns when dropped.
///
/// It can be lost: see [`Grant::lost`]. Then the caller is out, and leads again only by a new campaign: no
/// leadership is carried over to the next session.
///
/// Dropping it never blocks: the resignation goes on in the background, and if it cannot be sent, the
/// leadership ends with the session. In a forked child a leadership is dead and dropping it does nothing.
#[must_use = "the leadership is resigned when it is dropped"]
pub struct Leadership {
    grant: Grant,
}

guard!(Leadership, "the leadership");

impl Leadership {
    /// The number of this term: the fencing token, larger than that of every term before.
    pub fn term(&self) -> FencingToken {
        self.grant.token()
    }

    /// Whether the caller leads at this very moment: [`Grant::is_held`].
    pub fn is_leader(&self) -> bool {
        self.grant.is_held()
    }

    /// Lets others lead: [`release`](Self::release) by the name that it has in an election.
    ///
    /// Ends this term and no other, however late it comes.
    ///
    /// # Errors
    ///
    /// Those of [`release`](Self::release).
    ///
    /// # Cancel safety
    ///
    /// That of [`release`](Self::release).
    pub async fn resign(self) -> Result<()> {
        self.release().await
    }

    /// Makes this the value that observers are told of the leader. The term stays the same.
    ///
    /// Of several calls the last one counts.
    ///
    /// # Errors
    ///
    /// * [`ErrorKind::Value`](crate::ErrorKind::Value): it cannot be written as JSON, or has more than 4 KiB.
    /// * [`ErrorKind::Lost`](crate::ErrorKind::Lost), [`ErrorKind::Closed`](crate::ErrorKind::Closed): the
    ///   leadership was lost; the next leader's value was not touched.
    /// * Those of a store that refuses; the value is the one before.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves it open whether the value is proclaimed; a later call still counts.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let election = coordinator.election("scheduler")?;
    /// let leadership = election.campaign("starting", None).await?;
    /// leadership.proclaim("ready").await?;
    /// let term = election.leader().await?.expect("somebody leads");
    /// assert_eq!(term.value::<String>()?, "ready");
    /// # Ok(()) }
    /// ```
    pub async fn proclaim(&self, value: &(impl Serialize + ?Sized)) -> Result<()> {
        let data = self.grant.named(to_data("proclaim", value, MAX_ENTRY_BYTES))?;
        let update = self.grant.place().update("proclaim", Mode::Exclusive, data).await;
        self.grant.named(update)
    }
}

impl fmt::Debug for Leadership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leadership")
            .field("name", &self.name())
            .field("term", &self.term())
            .field("is_leader", &self.is_leader())
            .finish()
    }
}

/// Somebody's leadership, as others see it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Term {
    /// Its number, which is the leader's fencing token.
    pub term: FencingToken,
    /// The leader's member id; empty for a program that uses another library on the same store.
    pub leader: String,
    data: Data,
}

impl Term {
    fn of(entry: &Entry) -> Option<Self> {
        let (leader, data) = (entry.member.to_string(), Data::clone(&entry.data));
        Some(Self { term: FencingToken::new(entry.seq)?, leader, data })
    }

    /// The value that the leader proclaimed.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Corrupt`](crate::ErrorKind::Corrupt): it is of another type.
    pub fn value<T: DeserializeOwned>(&self) -> Result<T> {
        from_data("value", &self.data)
    }
}

/// Somebody who leads or waits to, as [`Election::candidates`] lists them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Candidate {
    /// Its member id; empty for a program that uses another library on the same store.
    pub member: String,
    /// When it stood, by its own wall clock: for people to read, not to compare.
    pub since: Option<SystemTime>,
    /// The term that it has, or will have.
    pub term: FencingToken,
    /// Whether it leads; it waits otherwise.
    pub leading: bool,
    data: Data,
}

impl Candidate {
    /// The value that it stands with.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Corrupt`](crate::ErrorKind::Corrupt): it is of another type.
    pub fn value<T: DeserializeOwned>(&self) -> Result<T> {
        from_data("value", &self.data)
    }
}

/// Follows the terms of an election, as [`Election::observe`] gives it.
///
/// While it lives, the coordinator's session stays open, unless it is stopped.
pub struct Terms {
    queue: Queue,
    views: Views,
    told: Told,
}

impl Terms {
    /// Who leads: at first as this process knows it, then after every change. `None`: nobody does, for now.
    ///
    /// What is told may be older than the answer to [`Election::leader`] by the time that word of a change takes.
    /// Terms rise. A leader that proclaims another value is told again, under the same term. Terms, values and
    /// times without a leader may be left out when they follow each other quickly, or when the store was out
    /// of reach; the last is always told. While the store is out of reach nothing is told at all:
    /// [`Coordinator::state`] tells of that.
    ///
    /// Where the store lost its data, and its tokens do not survive that (see
    /// [`Characteristics`](crate::Characteristics)), terms start anew, and are told once they are higher than
    /// those before.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Closed`](crate::ErrorKind::Closed): the coordinator was stopped. Final.
    ///
    /// # Cancel safety
    ///
    /// Nothing is left out for a future that was dropped.
    pub async fn next(&mut self) -> Result<Option<Term>> {
        loop {
            let view = self.queue.named(self.views.next().await)?;
            let now = view.listing.entries.first().and_then(Term::of);
            if self.told.is_news(&now) {
                return Ok(now);
            }
        }
    }
}

impl fmt::Debug for Terms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Terms").field("name", &self.queue.name()).finish_non_exhaustive()
    }
}

/// What an observer was told.
#[derive(Default)]
struct Told {
    /// The last, if anything was told: who led, or that nobody did.
    last: Option<Option<Term>>,
    /// The highest term.
    highest: Option<FencingToken>,
}

impl Told {
    /// Whether this is to be told, which it counts as then.
    fn is_news(&mut self, now: &Option<Term>) -> bool {
        let term = now.as_ref().map(|now| now.term);
        let goes_back = term.is_some() && term < self.highest;
        if goes_back || self.last.as_ref() == Some(now) {
            return false;
        }
        self.highest = term.or(self.highest);
        self.last = Some(now.clone());
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_observer_is_told_of_changes_and_terms_never_go_back() {
        let term = |number, value: &str| {
            let term = FencingToken::new(number)?;
            Some(Term { term, leader: "host-1".to_owned(), data: value.into() })
        };
        let mut told = Told::default();
        for (now, is_news) in [
            (None, true),
            (None, false),
            (term(3, "a"), true),
            (term(3, "a"), false),
            (term(3, "b"), true),
            (term(2, "c"), false),
            (None, true),
            (None, false),
            (term(2, "c"), false),
            (term(7, "a"), true),
        ] {
            assert_eq!(told.is_news(&now), is_news, "{now:?}");
        }
    }
}
