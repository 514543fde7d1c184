//! Who is connected. If there is no place for one more, a connection that asks for nothing gives up its own.
//!
//! An address that has more than its share of all connections keeps none of them by asking now and then: else whoever asks once a second
//! on each of as many connections as there may be would keep everybody else out.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use crate::peer::Peer;

/// A connection keeps its place while a request of it is worked on, and for so long after that.
const KEPT: Duration = Duration::from_secs(if cfg!(test) { 2 } else { 1 });
/// One that has had a request, of an address that has more than its share, keeps it for this part of that. Of a client that sends
/// one request after the other it is silent for a round trip, which is shorter most often.
const PART: u32 = 10;
/// How many requests all connections may have at a time, and how many each may have however many others have: in HTTP/2 a connection has many,
/// and what each of them takes is bounded by nothing else while it does not arrive, or its answer is not taken.
pub(crate) const REQUESTS: (usize, usize) = (if cfg!(test) { 500 } else { 16_384 }, 8);
/// In HTTP/2 an answer of more bytes than that takes room until it is taken, and all connections have so much. Each may have one in any case,
/// as in HTTP/1.1: else whoever takes nothing would keep others from being answered.
pub(crate) const ANSWERS: (usize, usize) =
    (16 * 1024, if cfg!(test) { 256 * 1024 } else { 64 * 1024 * 1024 });

/// Where connections come from that are taken for one client's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Origin {
    Address(IpAddr),
    User(u32),
}

/// All connections.
pub(crate) struct Places {
    taken: Mutex<Taken>,
    /// For how long one keeps its place after its last request.
    kept: Duration,
    /// How many requests are under way.
    requests: AtomicUsize,
    /// The room for large answers.
    answers: Arc<Semaphore>,
}

#[derive(Default)]
struct Taken {
    /// The number of the last one.
    last: u64,
    all: BTreeMap<u64, Arc<Place>>,
}

/// That of one connection.
struct Place {
    origin: Origin,
    kept: Duration,
    requests: Mutex<Requests>,
    /// For the one large answer that it may have in any case.
    answer: Arc<Semaphore>,
    /// Told when somebody else needs it.
    needed: Notify,
}

/// How many there are, and since when it is so many.
struct Requests {
    /// With those that have not arrived, and those whose answers are not taken: what a client does not send or does not take costs it
    /// nothing, so it keeps no place by that.
    all: usize,
    worked_on: usize,
    since: Instant,
    /// Whether there has been one at all.
    is_used: bool,
}

impl Requests {
    /// How long it takes at least until nothing was asked for in so long.
    fn left(&self, time: Duration) -> Duration {
        if self.all == 0 { time.saturating_sub(self.since.elapsed()) } else { time }
    }
}

/// A place that a connection has until this is dropped.
pub(crate) struct Own {
    places: Arc<Places>,
    number: u64,
    place: Arc<Place>,
}

/// A request that is under way, until this is dropped.
pub(crate) struct UnderWay {
    places: Arc<Places>,
    place: Arc<Place>,
    step: Mutex<Step>,
    /// What its answer takes.
    room: OnceLock<OwnedSemaphorePermit>,
}

/// How far a request is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Arrives,
    IsWorkedOn,
    IsAnswered,
}

impl Default for Places {
    fn default() -> Self {
        Self::keeping(KEPT)
    }
}

impl Places {
    pub(crate) fn keeping(kept: Duration) -> Self {
        let (requests, answers) = (AtomicUsize::default(), Arc::new(Semaphore::new(ANSWERS.1)));
        Self { taken: Mutex::default(), kept, requests, answers }
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more is connected.
    pub(crate) fn take(self: &Arc<Self>, peer: Peer) -> Own {
        let origin = match peer {
            Peer::Address(address) => Origin::Address(address.ip().to_canonical()),
            Peer::User(user) => Origin::User(user),
        };
        let (since, is_used) = (Instant::now(), false);
        let requests = Mutex::new(Requests { all: 0, worked_on: 0, since, is_used });
        let (kept, answer, needed) = (self.kept, Arc::new(Semaphore::new(1)), Notify::new());
        let place = Arc::new(Place { origin, kept, requests, answer, needed });
        let mut taken = self.taken();
        taken.last += 1;
        let number = taken.last;
        taken.all.insert(number, Arc::clone(&place));
        drop(taken);
        Own { places: Arc::clone(self), number, place }
    }

    /// Has one end that asks for nothing, if there is one: of whoever has most of all connections, that which is silent for longest.
    pub(crate) fn make_room(&self) {
        let taken = self.taken();
        let mut counts = HashMap::<Origin, usize>::new();
        for place in taken.all.values() {
            *counts.entry(place.origin).or_default() += 1;
        }
        // With whoever is to have the room. Rounded up: nobody has more than its share with one connection.
        let share = taken.all.len().div_ceil(counts.len() + 1);
        // One moment for all: those that are looked at later are not silent for longer.
        let now = Instant::now();
        let silent = taken.all.values().filter_map(|place| {
            let count = counts.get(&place.origin).copied().unwrap_or_default();
            Some((count, place.silent(now, count > share)?, place))
        });
        if let Some((_, _, place)) = silent.max_by_key(|(count, silent, _)| (*count, *silent)) {
            place.needed.notify_one();
        }
    }
}

impl Place {
    fn requests(&self) -> MutexGuard<'_, Requests> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For how long it has asked for nothing by now, if that is long enough for whoever has more than its share, or for others.
    fn silent(&self, now: Instant, has_more: bool) -> Option<Duration> {
        let requests = self.requests();
        let silent = now.saturating_duration_since(requests.since);
        // One that is new may need its time to ask at all.
        let least = if has_more && requests.is_used { self.kept / PART } else { self.kept };
        (requests.worked_on == 0 && silent >= least).then_some(silent)
    }

    fn change(&self, change: impl FnOnce(&mut Requests)) {
        let mut requests = self.requests();
        change(&mut requests);
        (requests.since, requests.is_used) = (Instant::now(), true);
    }
}

impl Own {
    /// Whether there may be one more request.
    pub(crate) fn has_room(&self) -> bool {
        let (all, own) = REQUESTS;
        self.place.requests().all < own || self.places.requests.load(Ordering::Relaxed) < all
    }

    /// A request begins, which is worked on from now on, or only when it has arrived.
    pub(crate) fn begin(&self, has_arrived: bool) -> UnderWay {
        self.place.change(|requests| requests.all += 1);
        let (places, place) = (Arc::clone(&self.places), Arc::clone(&self.place));
        places.requests.fetch_add(1, Ordering::Relaxed);
        let (step, room) = (Mutex::new(Step::Arrives), OnceLock::new());
        let under_way = UnderWay { places, place, step, room };
        if has_arrived {
            under_way.arrive();
        }
        under_way
    }

    /// Waits until nothing has been asked for in so long, and nothing is under way.
    pub(crate) async fn silent_for(&self, time: Duration) {
        loop {
            let left = self.place.requests().left(time);
            if left.is_zero() {
                return;
            }
            tokio::time::sleep(left).await;
        }
    }

    /// Waits until somebody else needs the place, and nothing is asked for.
    pub(crate) async fn needed(&self) {
        loop {
            self.place.needed.notified().await;
            // A request may have come meanwhile: then another one is told.
            if self.place.silent(Instant::now(), true).is_some() {
                return;
            }
        }
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        self.places.taken().all.remove(&self.number);
    }
}

impl UnderWay {
    /// All of it has arrived.
    pub(crate) fn arrive(&self) {
        self.reach(Step::IsWorkedOn);
    }

    /// Its answer is there, for its client to take.
    pub(crate) fn answer(&self) {
        self.reach(Step::IsAnswered);
    }

    /// Has room for an answer of so many bytes until that is taken. False: there is none.
    pub(crate) fn takes_room(&self, bytes: u64) -> bool {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        if usize::try_from(bytes).is_ok_and(|bytes| bytes <= ANSWERS.0) {
            return true;
        }
        let own = Arc::clone(&self.place.answer).try_acquire_owned();
        let shared = |_| Arc::clone(&self.places.answers).try_acquire_many_owned(bytes);
        let room = own.or_else(shared);
        room.is_ok_and(|room| self.room.set(room).is_ok())
    }

    /// Goes on to this step, unless it was reached before.
    fn reach(&self, next: Step) {
        let mut step = self.step.lock().unwrap_or_else(PoisonError::into_inner);
        if *step >= next {
            return;
        }
        let (was, is) = (*step == Step::IsWorkedOn, next == Step::IsWorkedOn);
        *step = next;
        self.place.change(|requests| {
            requests.worked_on = requests.worked_on + usize::from(is) - usize::from(was);
        });
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.answer();
        self.place.change(|requests| requests.all -= 1);
        self.places.requests.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(last: u8) -> Peer {
        Peer::Address(([127, 0, 0, last], 1).into())
    }

    /// Whoever has many connections makes room for others, with that which it has used least lately.
    #[tokio::test(start_paused = true)]
    async fn whoever_has_most_makes_room() {
        let places = Arc::<Places>::default();
        let one = places.take(peer(1));
        let two = [places.take(peer(2)), places.take(peer(2)), places.take(peer(2))];
        let is_told = async |own: &Own| {
            tokio::time::timeout(Duration::from_millis(50), own.needed()).await.is_ok()
        };
        places.make_room();
        assert!(!is_told(&two[0]).await, "they are new");
        let asks = two[0].begin(true);
        drop(two[1].begin(true));
        tokio::time::sleep(KEPT).await;
        places.make_room();
        assert!(is_told(&two[2]).await, "it has never asked for anything");
        assert!(!is_told(&two[0]).await && !is_told(&two[1]).await && !is_told(&one).await);
        drop((asks, two));
        places.make_room();
        assert!(is_told(&one).await, "nobody else is there");
        drop(one);
        assert!(places.taken().all.is_empty());
    }

    /// However long a request is under way, its connection is not silent meanwhile.
    #[tokio::test(start_paused = true)]
    async fn a_connection_is_silent_after_its_last_request() {
        let places = Arc::<Places>::default();
        let own = places.take(peer(1));
        let (time, more) = (Duration::from_secs(30), Duration::from_secs(1));
        let is_silent =
            async |within| tokio::time::timeout(within, own.silent_for(time)).await.is_ok();
        assert!(is_silent(time + more).await, "it has never asked for anything");
        let asks = own.begin(true);
        assert!(!is_silent(3 * time).await);
        drop(asks);
        assert!(!is_silent(time - more).await);
        assert!(is_silent(2 * more).await);
    }

    /// H8: a request keeps its connection's place as long as we work on it, and not while its client does not send or take the rest; but for
    /// as long as there is one, its connection is not silent.
    #[tokio::test(start_paused = true)]
    async fn h8_only_what_is_worked_on_keeps_a_place() {
        let places = Arc::<Places>::default();
        let own = places.take(peer(1));
        let is_told = async || {
            tokio::time::sleep(KEPT).await;
            places.make_room();
            tokio::time::timeout(Duration::from_millis(50), own.needed()).await.is_ok()
        };
        let asks = own.begin(false);
        assert!(is_told().await, "it does not arrive");
        asks.arrive();
        assert!(!is_told().await);
        asks.answer();
        assert!(is_told().await, "its answer is not taken");
        asks.arrive();
        assert!(is_told().await, "that was before");
        let silent = own.silent_for(Duration::from_secs(1));
        assert!(tokio::time::timeout(Duration::from_secs(60), silent).await.is_err());
        drop(asks);
        assert!(is_told().await);
        own.silent_for(Duration::from_secs(1)).await;
    }

    /// H8: whoever asks now and then on each of many connections makes room, but not with one that waits for an answer, nor with one that
    /// is new; and whoever has no more than its share keeps what it uses.
    #[tokio::test(start_paused = true)]
    async fn whoever_has_more_than_its_share_makes_room_though_it_asks() {
        let places = Arc::<Places>::default();
        let use_of = |last| {
            let own = places.take(peer(last));
            drop(own.begin(true));
            own
        };
        let is_told = async |own: &Own| {
            tokio::time::timeout(Duration::from_millis(50), own.needed()).await.is_ok()
        };
        let (one, two) = (use_of(1), use_of(2));
        tokio::time::sleep(KEPT / PART).await;
        places.make_room();
        assert!(!is_told(&one).await && !is_told(&two).await, "each has its share");
        let first = use_of(2);
        tokio::time::sleep(Duration::from_millis(1)).await;
        let more = [first, use_of(2)];
        let new = places.take(peer(2));
        let asks = two.begin(true);
        tokio::time::sleep(KEPT / PART).await;
        places.make_room();
        assert!(is_told(&more[0]).await, "it has been silent for longest");
        assert!(!is_told(&more[1]).await && !is_told(&new).await);
        assert!(!is_told(&one).await && !is_told(&two).await);
        drop(asks);
    }

    /// H8: what large answers take until their clients take them has a bound, however many requests a connection has; and each connection may
    /// have one.
    #[tokio::test]
    async fn h8_answers_take_no_more_room_than_there_is() {
        let places = Arc::<Places>::default();
        let (own, other) = (places.take(peer(1)), places.take(peer(1)));
        let (small, large) = (ANSWERS.0 as u64, ANSWERS.1 as u64 / 4);
        let mut all: Vec<_> = (0..5).map(|_| own.begin(true)).collect();
        assert!(all.iter().all(|asks| asks.takes_room(large)), "its own one, and four");
        let asks = own.begin(true);
        assert!(!asks.takes_room(large) && asks.takes_room(small));
        assert!(other.begin(true).takes_room(large), "it has one of its own");
        drop(all.pop());
        assert!(asks.takes_room(large), "one was taken");
    }
}
