//! Who is connected. If there is no place for one more, a connection that asks for nothing gives up its own.
//!
//! An address that has more than its share of all connections keeps none of them by asking now and then: else whoever asks once a second
//! on each of as many connections as there may be would keep everybody else out.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::around::Peer;

/// A connection keeps its place while a request of it is under way, and for so long after that.
const KEPT: Duration = Duration::from_secs(if cfg!(test) { 2 } else { 1 });
/// One that has had a request, of an address that has more than its share, keeps it for this part of that. Of a client that sends
/// one request after the other it is silent for a round trip, which is shorter most often.
const PART: u32 = 10;

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
    /// Told when somebody else needs it.
    needed: Notify,
}

/// How many are under way, and since when it is so many.
struct Requests {
    count: usize,
    since: Instant,
    /// Whether there has been one at all.
    is_used: bool,
}

/// A place that a connection has until this is dropped.
pub(crate) struct Own {
    places: Arc<Places>,
    number: u64,
    place: Arc<Place>,
}

/// A request that is under way.
pub(crate) struct UnderWay(Arc<Place>);

impl Default for Places {
    fn default() -> Self {
        Self::keeping(KEPT)
    }
}

impl Places {
    pub(crate) fn keeping(kept: Duration) -> Self {
        Self { taken: Mutex::default(), kept }
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
        let requests = Mutex::new(Requests { count: 0, since: Instant::now(), is_used: false });
        let place = Arc::new(Place { origin, kept: self.kept, requests, needed: Notify::new() });
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
        (requests.count == 0 && silent >= least).then_some(silent)
    }

    fn count(&self, change: impl Fn(usize) -> usize) {
        let mut requests = self.requests();
        let count = change(requests.count);
        *requests = Requests { count, since: Instant::now(), is_used: true };
    }
}

impl Own {
    /// A request begins.
    pub(crate) fn begin(&self) -> UnderWay {
        self.place.count(|count| count + 1);
        UnderWay(Arc::clone(&self.place))
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
    /// It is, until the connection has taken this.
    pub(crate) fn until_taken(self, body: Body) -> Answer {
        Answer { body, _under_way: self }
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.count(|count| count - 1);
    }
}

/// A body whose request is under way until it is dropped.
pub(crate) struct Answer {
    body: Body,
    _under_way: UnderWay,
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
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
        let asks = two[0].begin();
        drop(two[1].begin());
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

    /// H8: whoever asks now and then on each of many connections makes room, but not with one that waits for an answer, nor with one that
    /// is new; and whoever has no more than its share keeps what it uses.
    #[tokio::test(start_paused = true)]
    async fn whoever_has_more_than_its_share_makes_room_though_it_asks() {
        let places = Arc::<Places>::default();
        let use_of = |last| {
            let own = places.take(peer(last));
            drop(own.begin());
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
        let asks = two.begin();
        tokio::time::sleep(KEPT / PART).await;
        places.make_room();
        assert!(is_told(&more[0]).await, "it has been silent for longest");
        assert!(!is_told(&more[1]).await && !is_told(&new).await);
        assert!(!is_told(&one).await && !is_told(&two).await);
        drop(asks);
    }
}
