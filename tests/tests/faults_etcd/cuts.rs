//! F-14: the connection is cut after, and before, every single message of a conversation.
//!
//! Each cut ends in a grant or in an error; never in an entry left behind, in two holders, or in a
//! lock that nobody can have.

use std::time::{Duration, Instant};

use coordination::{Coordinator, Lock, State, StateWatch};
use coordination_tests::faults::Site;
use coordination_tests::harness::{Direction, Etcd, Proxy, Unit};

use super::{cluster_with, contenders};

const LOCK: &str = "cut";
/// Contract L2.
const SOON: Duration = Duration::from_secs(2);
/// Longer than the test, so that a session is never lost to a slow machine: a cut must not end one.
const LEASE: Duration = Duration::from_secs(10);

/// Where the connection ends: at a message, this one being the last that goes through or not.
#[derive(Clone, Copy, Debug)]
struct Place {
    direction: Direction,
    unit: Unit,
    is_after: bool,
}

const PLACES: [Place; 10] = [
    Place { direction: Direction::ToServer, unit: Unit::Messages, is_after: true },
    Place { direction: Direction::ToServer, unit: Unit::Messages, is_after: false },
    Place { direction: Direction::ToClient, unit: Unit::Messages, is_after: true },
    Place { direction: Direction::ToClient, unit: Unit::Messages, is_after: false },
    Place { direction: Direction::ToServer, unit: Unit::Requests, is_after: true },
    Place { direction: Direction::ToServer, unit: Unit::Requests, is_after: false },
    Place { direction: Direction::ToServer, unit: Unit::Frames, is_after: true },
    Place { direction: Direction::ToServer, unit: Unit::Frames, is_after: false },
    Place { direction: Direction::ToClient, unit: Unit::Frames, is_after: true },
    Place { direction: Direction::ToClient, unit: Unit::Frames, is_after: false },
];

impl Place {
    fn cut(self, proxy: &Proxy, count: u64) {
        if self.is_after {
            proxy.cut_after(self.direction, self.unit, count);
        } else {
            proxy.cut_before(self.direction, self.unit, count);
        }
    }
}

/// A client whose connection is cut, and one who sees the store as it is.
struct Conversation {
    etcd: Etcd,
    proxy: Proxy,
    _session: Coordinator,
    states: StateWatch,
    cut: Lock,
    other: Lock,
    last_token: u64,
    grants: u32,
    errors: u32,
}

impl Conversation {
    async fn new() -> Self {
        let (etcd, site) = tokio::task::spawn_blocking(|| cluster_with(1, LEASE))
            .await
            .expect("the server starts");
        let proxy = Proxy::start(etcd.node(0).address());
        let cut_site: Site = site.at(proxy.address());
        // Heartbeats are messages too: none in the middle of a conversation.
        let quiet = Duration::from_secs(3);
        let session = cut_site.builder("cut").heartbeat(quiet).connect(&cut_site.url);
        let session = session.await.expect("the store is there");
        Self {
            states: session.state(),
            cut: session.lock(LOCK).expect("a good name"),
            other: site.client("other").await.lock(LOCK).expect("a good name"),
            etcd,
            proxy,
            _session: session,
            last_token: 0,
            grants: 0,
            errors: 0,
        }
    }

    /// Acquires and releases; what comes of it is a grant or an error.
    async fn uncontended(&mut self, hold: Duration) {
        match self.cut.acquire(Some(SOON)).await {
            Ok(guard) => {
                self.granted(guard.token().value());
                tokio::time::sleep(hold).await;
                assert!(guard.is_held(), "a cut connection is not a lost session");
                let released = guard.release().await;
                self.errors += u32::from(released.is_err());
            }
            Err(error) => {
                assert!(error.is_transient(), "{error:?}");
                self.errors += 1;
            }
        }
    }

    /// Waits for the other one, who releases when the waiting has begun.
    async fn contended(&mut self) {
        let held = self.other.acquire(Some(SOON)).await.expect("it is free");
        let token = held.token().value();
        self.granted(token);
        let waiting = self.cut.acquire(Some(2 * SOON));
        let releasing = async {
            let began = Instant::now();
            while began.elapsed() < SOON / 2
                && self.other.holders().await.is_ok_and(|all| all.len() < 2)
            {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            // Time to begin to watch.
            tokio::time::sleep(Duration::from_millis(30)).await;
            assert!(held.is_held());
            let released = Instant::now();
            held.release().await.expect("its connection is good");
            released
        };
        let (outcome, released) = tokio::join!(waiting, releasing);
        match outcome {
            Ok(guard) => {
                let took = released.elapsed();
                assert!(took <= SOON, "served only {took:?} after the release");
                assert!(guard.is_held());
                self.granted(guard.token().value());
                self.errors += u32::from(guard.release().await.is_err());
            }
            Err(error) => {
                assert!(error.is_transient(), "{error:?}");
                self.errors += 1;
            }
        }
    }

    fn granted(&mut self, token: u64) {
        assert!(token > self.last_token, "{token} after {}", self.last_token);
        self.last_token = token;
        self.grants += 1;
    }

    /// Whatever was cut: the lock is free soon, nothing is left behind, and the session lives.
    async fn settles(&mut self) {
        let guard = self.other.acquire(Some(SOON)).await.expect("free soon");
        self.granted(guard.token().value());
        guard.release().await.expect("its connection is good");
        assert_eq!(self.other.holders().await.expect("the store answers").len(), 0);
        while let Ok(Some(state)) =
            tokio::time::timeout(Duration::ZERO, self.states.changed()).await
        {
            assert!(matches!(state, State::Connected | State::Suspended), "{state:?}");
        }
    }
}

/// Cuts at the first, the second, … message, until the conversation ends before the cut.
async fn every_cut(name: &str, talk: impl AsyncFn(&mut Conversation)) {
    let mut conversation = Conversation::new().await;
    let mut cuts = 0;
    for place in PLACES {
        for count in 1.. {
            assert!(count < 200, "the conversation does not end");
            place.cut(&conversation.proxy, count);
            talk(&mut conversation).await;
            let is_over = conversation.proxy.is_cut_pending();
            conversation.proxy.heal();
            conversation.settles().await;
            if is_over {
                println!("F-14 etcd, {name}: {} cuts at {place:?}", count - 1);
                break;
            }
            cuts += 1;
        }
    }
    let left = tokio::task::block_in_place(|| contenders(&conversation.etcd));
    assert_eq!(left, [""; 0], "an orphan");
    println!(
        "F-14 etcd, {name}: {cuts} cuts, {} grants, {} errors",
        conversation.grants, conversation.errors
    );
    assert!(cuts > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn f14_every_cut_uncontended() {
    every_cut("uncontended", async |talk| talk.uncontended(Duration::ZERO).await).await;
}

/// Held long enough for the watch on one's own entry.
#[tokio::test(flavor = "multi_thread")]
async fn f14_every_cut_held_for_a_while() {
    every_cut("held", async |talk| talk.uncontended(Duration::from_millis(60)).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn f14_every_cut_contended() {
    every_cut("contended", async |talk| talk.contended().await).await;
}

impl Conversation {
    /// Downgrades, and another who waits for a shared lock gets it.
    async fn downgrades(&mut self) {
        let guard = match self.cut.acquire(Some(SOON)).await {
            Ok(guard) => guard,
            Err(error) => {
                assert!(error.is_transient(), "{error:?}");
                self.errors += 1;
                return;
            }
        };
        self.granted(guard.token().value());
        let waiting = self.other.acquire_shared(Some(2 * SOON));
        let downgrading = async {
            tokio::time::sleep(Duration::from_millis(30)).await;
            let shared = guard.downgrade().await;
            let shared = shared.expect("a cut connection is not a lost session");
            assert!(shared.is_held() && shared.is_shared());
            (shared, Instant::now())
        };
        let (outcome, (shared, done)) = tokio::join!(waiting, downgrading);
        let outcome = outcome.expect("it is shared now");
        assert!(done.elapsed() < SOON);
        self.granted(outcome.token().value());
        self.errors += u32::from(shared.release().await.is_err());
        outcome.release().await.expect("its connection is good");
    }

    /// Waits for a shared lock until the other one downgrades.
    async fn waits_for_downgrade(&mut self) {
        let held = self.other.acquire(Some(SOON)).await.expect("it is free");
        let token = held.token().value();
        self.granted(token);
        let waiting = self.cut.acquire_shared(Some(2 * SOON));
        let downgrading = async {
            let began = Instant::now();
            while began.elapsed() < SOON / 2
                && self.other.holders().await.is_ok_and(|all| all.len() < 2)
            {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            tokio::time::sleep(Duration::from_millis(30)).await;
            (held.downgrade().await.expect("its connection is good"), Instant::now())
        };
        let (outcome, (held, done)) = tokio::join!(waiting, downgrading);
        match outcome {
            Ok(guard) => {
                assert!(done.elapsed() <= SOON, "served only after {:?}", done.elapsed());
                assert!(guard.is_held() && held.is_held());
                self.granted(guard.token().value());
                self.errors += u32::from(guard.release().await.is_err());
            }
            Err(error) => {
                assert!(error.is_transient(), "{error:?}");
                self.errors += 1;
            }
        }
        held.release().await.expect("its connection is good");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn f14_every_cut_downgrading() {
    every_cut("downgrading", async |talk| talk.downgrades().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn f14_every_cut_waiting_for_a_downgrade() {
    every_cut("waiting for a downgrade", async |talk| talk.waits_for_downgrade().await).await;
}
