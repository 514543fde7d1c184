//! The election: candidates wait in a queue, and the first of them leads until it leaves.

use std::fmt;
use std::time::{Duration, SystemTime};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::engine::data::{MAX_ENTRY_BYTES, from_data, to_data};
use super::engine::grant::{Grant, guard};
use super::engine::label::labelled;
use super::engine::own_entry::Contents;
use super::engine::queue::Queue;
use super::engine::turn::Request;
use super::engine::waiting::Waiting;
use crate::Coordinator;
use crate::backend::{Data, Entry, Listing, Mode};
use crate::canary::{Canary, sings};
use crate::error::Result;
use crate::serialize;
use crate::session::{Sight, Views};
use crate::token::FencingToken;

impl Coordinator {
    /// The election of this name, with the coordinator's prefix before it. No I/O.
    ///
    /// Names are as for [`lock`](Self::lock); a lock and an election of the same name are independent of
    /// each other.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Name`](crate::ErrorKind::Name): empty or too long.
    pub fn election(&self, name: impl AsRef<str>) -> Result<Election> {
        Ok(Election { queue: self.queue_of("election", name.as_ref())? })
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

    /// Becomes a candidate, waits to be elected, and returns the leadership.
    ///
    /// `value` is what observers see of the leader, such as its address: at most 4 KiB as JSON. It is also
    /// [listed](Self::candidates) while the candidate waits. [`Leadership::proclaim`] replaces it.
    ///
    /// `timeout` bounds the whole call. `None` waits for ever, also through an outage of the store; zero
    /// fails fast, like [`try_campaign`](Self::try_campaign), but with an error. On success the caller leads
    /// until it resigns, drops the leadership or [loses](Grant::lost) it.
    ///
    /// If the session is lost while the call waits, it becomes a candidate again, at the end, under the next
    /// session. A leader whose session is lost leads again only by a new campaign.
    ///
    /// # Errors
    ///
    /// * [`ErrorKind::Timeout`](crate::ErrorKind::Timeout): others led until `timeout` was over.
    /// * [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable): the store did not answer within `timeout`.
    /// * [`ErrorKind::Value`](crate::ErrorKind::Value): the value cannot be written as JSON, or is too large.
    /// * [`ErrorKind::Lost`](crate::ErrorKind::Lost): the caller was elected, but the session was lost before
    ///   the leadership could be returned.
    /// * [`ErrorKind::Closed`](crate::ErrorKind::Closed): the coordinator was stopped, or this is a forked child.
    /// * The kinds of a store that refuses: the caller is not a candidate.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future at any point withdraws the candidacy and leaves nothing behind at the store: if
    /// the caller is elected after that, it resigns at once.
    ///
    /// # Fairness
    ///
    /// First come, first served, in the order of arrival at the store. Nobody overtakes.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use coordination::ErrorKind;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let election = coordinator.election("scheduler")?;
    /// let leadership = election.campaign("http://host-1:8080", None).await?;
    ///
    /// let second = election.campaign("http://host-2:8080", Some(Duration::from_millis(10))).await;
    /// assert_eq!(second.unwrap_err().kind(), ErrorKind::Timeout);
    /// assert!(leadership.is_leader());
    /// # Ok(()) }
    /// ```
    pub async fn campaign(
        &self,
        value: &(impl Serialize + ?Sized),
        timeout: Option<Duration>,
    ) -> Result<Leadership> {
        self.stand(&self.request("campaign", value)?, timeout).await
    }

    pub(super) async fn stand(
        &self,
        request: &Request,
        timeout: Option<Duration>,
    ) -> Result<Leadership> {
        Ok(Leadership { grant: self.queue.acquire_within(request, timeout).await? })
    }

    /// Becomes the leader if nobody else leads or waits to lead. Otherwise it returns `None`, and the caller is
    /// not a candidate.
    ///
    /// # Errors
    ///
    /// Those of [`campaign`](Self::campaign) but `Timeout`.
    ///
    /// # Cancel safety
    ///
    /// As for [`campaign`](Self::campaign).
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let election = coordinator.election("scheduler")?;
    /// let leadership = election.try_campaign("host-1").await?.expect("nobody leads");
    /// assert!(election.try_campaign("host-2").await?.is_none());
    /// # drop(leadership);
    /// # Ok(()) }
    /// ```
    pub async fn try_campaign(
        &self,
        value: &(impl Serialize + ?Sized),
    ) -> Result<Option<Leadership>> {
        let request = self.request("campaign", value)?;
        let grant = self.queue.acquire(&request, Waiting::Never).await?;
        Ok(grant.map(|grant| Leadership { grant }))
    }

    /// The current leader; `None` if there is none.
    ///
    /// The store is read at some moment during the call: on return somebody else may lead. The result is the leader
    /// according to the store: a leader that was cut off stops leading at its own deadline, before the store
    /// knows it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) and the other kinds of a store that refuses or
    /// does not answer.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect: it only reads.
    pub async fn leader(&self) -> Result<Option<Term>> {
        Ok(self.queue.read("leader").await?.entries.first().and_then(Term::of))
    }

    /// All candidates: the leader first, then the candidates that wait, in the order in which they will lead.
    ///
    /// # Errors
    ///
    /// Those of [`leader`](Self::leader).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect: it only reads.
    pub async fn candidates(&self) -> Result<Vec<Candidate>> {
        Ok(listed(&self.queue.read("candidates").await?))
    }

    /// Takes the leadership of exactly this term away, or the place of a candidate that still waits for it, and returns whose it
    /// was; `None` if nobody has this term any more.
    ///
    /// For operators, when a leader hangs. The next candidate leads at once. The former leader learns of the loss through its
    /// [`Leadership`], at once or within a heartbeat; until then it may go on, and only fencing by the term stops its
    /// writes. A candidate that still waits queues again, at the end.
    ///
    /// # Errors
    ///
    /// The [kinds of error](crate::ErrorKind) of a store that refuses or does not answer;
    /// [`effect`](crate::Error::effect) says whether it may have been taken away.
    ///
    /// # Cancel safety
    ///
    /// A dropped call may or may not take it away. It never takes away a later term.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let election = coordinator.election("scheduler")?;
    /// let hanging = election.campaign("host-1", None).await?;
    ///
    /// assert!(election.break_grant(hanging.term()).await?.is_some());
    /// assert!(election.leader().await?.is_none());
    /// # Ok(()) }
    /// ```
    pub async fn break_grant(&self, term: FencingToken) -> Result<Option<Candidate>> {
        let listing = self.queue.read("break").await?;
        let Some(entry) = listing.entry(term.value()) else { return Ok(None) };
        let leads = listing.entries.first().is_some_and(|first| first.seq == entry.seq);
        self.queue.take_away(entry).await?;
        Ok(Candidate::of(entry, leads))
    }

    /// Follows the terms without being a candidate; the first [`next`](Terms::next) returns the current
    /// leader.
    ///
    /// All observers of one election in this process share one read for each change.
    ///
    /// # Examples
    ///
    /// ```
    /// use coordination::ElectionEvent;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let election = coordinator.election("scheduler")?;
    /// let mut terms = election.observe();
    /// assert_eq!(terms.next().await?, ElectionEvent::NoLeader);
    ///
    /// let leadership = election.campaign("host-1", None).await?;
    /// match terms.next().await? {
    ///     ElectionEvent::Leader(term) => assert_eq!(term.term, leadership.term()),
    ///     ElectionEvent::NoLeader => unreachable!("it leads as long as it is not dropped"),
    /// }
    /// # Ok(()) }
    /// ```
    pub fn observe(&self) -> Terms {
        Terms {
            views: self.queue.observe(Sight::Moment),
            queue: self.queue.clone(),
            told: Told::default(),
        }
    }

    pub(super) fn request(
        &self,
        operation: &'static str,
        value: &(impl Serialize + ?Sized),
    ) -> Result<Request> {
        let data = self.queue.named(to_data(operation, value, MAX_ENTRY_BYTES))?;
        Ok(Request { contents: Contents { data, ..self.queue.contents() }, policy: None })
    }
}

labelled!(Election, "the candidacies that are begun", "[`Election::candidates`]");

impl fmt::Debug for Election {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Election").field("name", &self.name()).finish_non_exhaustive()
    }
}

/// Holds the leadership of an election; resigns when dropped.
///
/// It can be lost: see [`Grant::lost`]. After a loss the caller leads again only by a new campaign: no leadership
/// is carried over to the next session.
///
/// Dropping it never blocks. The resignation goes on in the background; if it cannot be sent, the leadership
/// ends with the session. In a forked child a leadership is dead: dropping it does nothing.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
/// # let coordinator = coordination::Coordinator::connect("memory://").await?;
/// let election = coordinator.election("scheduler")?;
/// let leadership = election.campaign("http://host-1:8080", None).await?;
///
/// // One round of work, which ends at its next await if the leadership is lost.
/// let round = async { tokio::time::sleep(Duration::from_millis(1)).await };
/// leadership.protect(round).await?;
/// println!("writes carry the token {}", leadership.term());
/// leadership.resign().await?;
/// # Ok(()) }
/// ```
#[must_use = "the leadership is resigned when it is dropped"]
pub struct Leadership {
    grant: Grant,
}

guard!(Leadership, "the leadership");

impl Leadership {
    /// The number of this term, larger than that of every earlier term: the fencing token.
    pub fn term(&self) -> FencingToken {
        self.grant.token()
    }

    /// Whether the caller leads at this moment: see [`Grant::is_held`].
    pub fn is_leader(&self) -> bool {
        self.grant.is_held()
    }

    /// Ends this term, so that the next candidate leads: the same as [`release`](Self::release).
    ///
    /// It ends no other term, however late it arrives at the store.
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

    /// Replaces the value that observers see of the leader. The term stays the same.
    ///
    /// Of several calls the last one wins.
    ///
    /// # Errors
    ///
    /// * [`ErrorKind::Value`](crate::ErrorKind::Value): it cannot be written as JSON, or has more than 4 KiB.
    /// * [`ErrorKind::Lost`](crate::ErrorKind::Lost), [`ErrorKind::Closed`](crate::ErrorKind::Closed): the
    ///   leadership was lost; the next leader's value was not touched. With [`Effect::Unknown`](crate::Effect::Unknown) observers may
    ///   have seen the new value before.
    /// * The [kinds of error](crate::ErrorKind) of a store that refuses; the value is unchanged, unless the effect is
    ///   [`Effect::Unknown`](crate::Effect::Unknown).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the value may or may not be proclaimed; a later call still wins.
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
        let update = self.grant.own_entry().update("proclaim", Mode::Exclusive, data).await;
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

/// A term of a leader, as others see it.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
/// # let coordinator = coordination::Coordinator::connect("memory://").await?;
/// let election = coordinator.election("scheduler")?;
/// let leadership = election.campaign("http://host-1:8080", None).await?;
///
/// let term = election.leader().await?.expect("somebody leads");
/// assert_eq!(term.leader, coordinator.member_id());
/// let address: String = term.value()?;
/// println!("{} at {address}, with token {}", term.leader, term.term);
/// # drop(leadership);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Term {
    /// Its number, which is the leader's fencing token.
    pub term: FencingToken,
    /// The leader's member id; empty for a program that uses another library on the same store.
    pub leader: String,
    #[serde(rename = "value", serialize_with = "serialize::stored::serialize")]
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
    /// [`ErrorKind::Corrupt`](crate::ErrorKind::Corrupt): the value is of another type.
    pub fn value<T: DeserializeOwned>(&self) -> Result<T> {
        from_data("value", &self.data)
    }
}

/// A leader, or a candidate that waits to lead, as listed by [`Election::candidates`].
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
/// # let coordinator = coordination::Coordinator::connect("memory://").await?;
/// let election = coordinator.election("scheduler")?;
/// let leadership = election.campaign("http://host-1:8080", None).await?;
///
/// for candidate in election.candidates().await? {
///     let does = if candidate.leading { "leads" } else { "waits" };
///     println!("{} {does}: {}", candidate.member, candidate.value::<String>()?);
/// }
/// # drop(leadership);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Candidate {
    /// Its member id; empty for a program that uses another library on the same store.
    pub member: String,
    /// The [label](Election::label) that it was given; empty if it was given none.
    pub label: String,
    /// When its campaign began, by the wall clock of its own host: for people to read, not to be compared.
    /// Written with serde, it is a number of seconds since 1970.
    #[serde(serialize_with = "serialize::since::serialize")]
    pub since: Option<SystemTime>,
    /// The term that it has, or will have.
    pub term: FencingToken,
    /// Whether it leads; it waits otherwise.
    pub leading: bool,
    #[serde(rename = "value", serialize_with = "serialize::stored::serialize")]
    data: Data,
}

/// The candidates that this listing of an election has.
pub(super) fn listed(listing: &Listing) -> Vec<Candidate> {
    let candidate = |(place, entry)| Candidate::of(entry, place == 0);
    listing.entries.iter().enumerate().filter_map(candidate).collect()
}

impl Candidate {
    fn of(entry: &Entry, leading: bool) -> Option<Self> {
        let Term { term, leader, data } = Term::of(entry)?;
        let (label, since) = (entry.label(), entry.since);
        Some(Self { member: leader, label, since, term, leading, data })
    }

    /// The value given to its campaign, or proclaimed since.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Corrupt`](crate::ErrorKind::Corrupt): the value is of another type.
    pub fn value<T: DeserializeOwned>(&self) -> Result<T> {
        from_data("value", &self.data)
    }
}

/// What an observer of an election is told by [`Terms::next`].
///
/// # Examples
///
/// ```
/// use coordination::ElectionEvent;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
/// # let coordinator = coordination::Coordinator::connect("memory://").await?;
/// let election = coordinator.election("scheduler")?;
/// let leadership = election.campaign("http://host-1:8080", None).await?;
///
/// let mut terms = election.observe();
/// let address = match terms.next().await? {
///     ElectionEvent::Leader(term) => Some(term.value::<String>()?),
///     ElectionEvent::NoLeader => None,
/// };
/// assert_eq!(address.as_deref(), Some("http://host-1:8080"));
/// # drop(leadership);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ElectionEvent {
    /// This term has begun, or its leader has proclaimed another value.
    Leader(Term),
    /// Nobody leads for now. More events follow.
    NoLeader,
}

impl ElectionEvent {
    /// The leader's term; `None` if nobody leads.
    pub fn into_term(self) -> Option<Term> {
        match self {
            Self::Leader(term) => Some(term),
            Self::NoLeader => None,
        }
    }
}

/// Follows the terms of an election; returned by [`Election::observe`].
///
/// As long as it lives, it keeps the coordinator's session open, unless the coordinator is stopped.
///
/// # Examples
///
/// ```
/// use coordination::{ElectionEvent, ErrorKind};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
/// # let coordinator = coordination::Coordinator::connect("memory://").await?;
/// let election = coordinator.election("scheduler")?;
/// let leadership = election.campaign("http://host-1:8080", None).await?;
/// let mut terms = election.observe();
/// let following = tokio::spawn(async move {
///     loop {
///         match terms.next().await {
///             Ok(ElectionEvent::Leader(term)) => println!("{} leads", term.leader),
///             Ok(ElectionEvent::NoLeader) => println!("nobody leads"),
///             Err(error) => return error.kind(),
///         }
///     }
/// });
/// leadership.resign().await?;
/// coordinator.stop().await?;
/// assert_eq!(following.await.expect("no panic"), ErrorKind::Closed);
/// # Ok(()) }
/// ```
pub struct Terms {
    queue: Queue,
    views: Views,
    told: Told,
}

impl Terms {
    /// Waits for the next event: who leads, or that nobody leads. The first call returns what this process knows,
    /// later calls return after a change.
    ///
    /// What it returns may lag behind [`Election::leader`] by the time that a notification takes. Terms rise.
    /// When a leader proclaims another value, the leader is returned again, with the same term. When changes follow
    /// each other quickly, or the store could not be reached, terms, values and times without a leader may be
    /// skipped; the last one is always returned. While the store cannot be reached nothing is returned:
    /// [`Coordinator::state`] reports that.
    ///
    /// If the store lost its data, and its tokens do not survive such a loss (see
    /// [`Characteristics`](crate::Characteristics)), terms start again at a low number. They are returned only when
    /// they are higher than the highest term before the loss.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Closed`](crate::ErrorKind::Closed): the coordinator was stopped. Final.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, no term is skipped: the next call returns what this one would have returned, or something newer.
    ///
    /// # Examples
    ///
    /// ```
    /// use coordination::ElectionEvent;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let election = coordinator.election("scheduler")?;
    /// let mut terms = election.observe();
    /// let leadership = election.campaign("starting", None).await?;
    /// leadership.proclaim("ready").await?;
    ///
    /// // Until the leader says that it is ready. Terms and values may have been skipped.
    /// loop {
    ///     match terms.next().await? {
    ///         ElectionEvent::Leader(term) if term.value::<String>()? == "ready" => break,
    ///         ElectionEvent::Leader(_) | ElectionEvent::NoLeader => {}
    ///     }
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn next(&mut self) -> Result<ElectionEvent> {
        loop {
            let view = self.queue.next_view(&mut self.views).await?;
            let now = view.listing.entries.first().and_then(Term::of);
            if self.told.is_news(&now) {
                return Ok(now.map_or(ElectionEvent::NoLeader, ElectionEvent::Leader));
            }
        }
    }
}

impl fmt::Debug for Terms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Terms").field("name", &self.queue.name()).finish_non_exhaustive()
    }
}

/// What an observer has returned so far.
#[derive(Default)]
struct Told {
    /// What was returned last: a leader's term, or `None` if nobody led. The outer `None`: nothing was returned so far.
    last: Option<Option<Term>>,
    /// The highest term so far.
    highest: Option<FencingToken>,
}

impl Told {
    /// Whether `now` is to be returned. If so, it is remembered as the last.
    fn is_news(&mut self, now: &Option<Term>) -> bool {
        let term = now.as_ref().map(|now| now.term);
        let goes_back = term.is_some() && term < self.highest && !sings(Canary::TermsGoBack);
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
