//! A hold: what a client was granted, with a lease that the client renews.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use coordination::BootInstant;
use tokio::sync::watch;

use crate::ends::{Covered, End};
use crate::guard::Guard;
use crate::ids::Secret;
use crate::kind::Kind;
use crate::promise::Promise;

/// How slow a client's clock may be beside ours (A1).
const SLOWEST: f64 = 0.995;

/// What is held, and until when.
pub(crate) struct Held {
    /// The library's.
    pub(crate) guard: Arc<Guard>,
    pub(crate) lease: Duration,
    pub(crate) end: BootInstant,
}

pub(crate) enum State {
    Held(Held),
    Ended(End),
}

/// Something that a client was granted.
pub(crate) struct Hold {
    pub(crate) handle: String,
    pub(crate) secret: Secret,
    pub(crate) kind: Kind,
    /// Of several locks, the first.
    pub(crate) name: String,
    pub(crate) fence: u64,
    /// Each name with its fence, if several locks were acquired together.
    pub(crate) several: Option<Vec<(String, u64)>>,
    /// The numbers of the permits or of the slot, if it is of such a recipe.
    pub(crate) slots: Vec<u32>,
    /// The id of the member, if it is a membership.
    pub(crate) member: Option<String>,
    pub(crate) title: String,
    /// The principal to whom it was granted.
    pub(crate) client: String,
    pub(crate) granted_at: SystemTime,
    pub(crate) asked_at: SystemTime,
    /// What it was granted with: [`Now::covered`] is what clients are told.
    pub(crate) covered: Covered,
    /// The longest lease that the store covers; none: it covers any.
    covered_for: Option<Duration>,
    /// One for each lock, or none.
    pub(crate) promises: Vec<Arc<Promise>>,
    /// As the client of another API gave it, which wants it back.
    pub(crate) wait: Duration,
    /// Whether anybody was told of it: a connection has taken the answer, a repetition of its request was answered, or somebody has asked by
    /// its id.
    is_told: AtomicBool,
    /// How often it was renewed.
    renewals: AtomicU32,
    state: Mutex<State>,
    /// Whoever changes at the store what is held has it meanwhile, and it is not released before that is over.
    pub(crate) changing: Arc<tokio::sync::Mutex<()>>,
    /// What a renewal and an end tell: the timer, and who follows it.
    pub(crate) changed: watch::Sender<()>,
}

/// What is so at this moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Now {
    pub(crate) lease: Duration,
    pub(crate) expires_in: Duration,
    pub(crate) shared: bool,
    /// Whom it keeps out until its lease is over.
    pub(crate) covered: Covered,
}

/// What a hold begins with.
pub(crate) struct Begun {
    pub(crate) handle: String,
    pub(crate) name: String,
    /// The names in order, if several locks were acquired together.
    pub(crate) several: Option<Vec<String>>,
    pub(crate) title: String,
    pub(crate) client: String,
    pub(crate) asked_at: SystemTime,
    pub(crate) covered: Covered,
    pub(crate) covered_for: Option<Duration>,
    pub(crate) promises: Vec<Arc<Promise>>,
    pub(crate) wait: Duration,
    pub(crate) lease: Duration,
    pub(crate) guard: Guard,
}

impl Hold {
    pub(crate) fn new(begun: Begun) -> Self {
        let end = BootInstant::now().saturating_add(begun.lease);
        let (kind, fence) = (begun.guard.kind(), begun.guard.fence());
        let several =
            begun.several.map(|names| names.into_iter().zip(begun.guard.fences()).collect());
        Self {
            handle: begun.handle,
            secret: Secret::new(),
            kind,
            name: begun.name,
            fence,
            several,
            slots: begun.guard.slots(),
            member: begun.guard.member().map(str::to_owned),
            title: begun.title,
            client: begun.client,
            granted_at: SystemTime::now(),
            asked_at: begun.asked_at,
            covered: begun.covered,
            covered_for: begun.covered_for,
            promises: begun.promises,
            wait: begun.wait,
            is_told: AtomicBool::new(false),
            renewals: AtomicU32::new(0),
            state: Mutex::new(State::Held(Held {
                guard: Arc::new(begun.guard),
                lease: begun.lease,
                end,
            })),
            changing: Arc::default(),
            changed: watch::Sender::new(()),
        }
    }

    /// Each name with its fence.
    pub(crate) fn parts(&self) -> Vec<(&str, u64)> {
        match &self.several {
            Some(several) => several.iter().map(|(name, fence)| (name.as_str(), *fence)).collect(),
            None => vec![(&self.name, self.fence)],
        }
    }

    /// How many parts it has: each is a name that is held.
    pub(crate) fn part_count(&self) -> usize {
        self.several.as_ref().map_or(1, Vec::len)
    }

    /// Its names, if it is of locks: promises are of such names.
    pub(crate) fn locks(&self) -> Vec<&str> {
        match self.kind {
            Kind::Lock => self.parts().into_iter().map(|(name, _)| name).collect(),
            _ => Vec::new(),
        }
    }

    /// Its id: for the answer to its client, and for nobody else.
    pub(crate) fn id(&self) -> String {
        self.secret.id(&self.handle)
    }

    /// Somebody is told of it, and it lives on though that answer may be lost; whether it is the first one.
    ///
    /// Invariant: a repetition is told with the state's lock held, and whoever has the grant itself before it is dropped. So it is not
    /// ended as one of which nobody was told, or that end is seen.
    pub(crate) fn tell(&self) -> bool {
        !self.is_told.swap(true, Ordering::AcqRel)
    }

    /// Whether that was so.
    pub(crate) fn was_told(&self) -> bool {
        self.is_told.load(Ordering::Acquire)
    }

    /// It was renewed once more.
    pub(crate) fn count_renewal(&self) {
        self.renewals.fetch_add(1, Ordering::Relaxed);
    }

    /// How often it was renewed.
    pub(crate) fn renewals(&self) -> u32 {
        self.renewals.load(Ordering::Relaxed)
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Told after each renewal and at the end.
    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// How it would have to end at this moment, if it would: judged by the clock, and not by a timer.
    pub(crate) fn due(held: &Held) -> Option<End> {
        if let Some(reason) = held.guard.loss() {
            return Some(End::Lost(reason));
        }
        (BootInstant::now() >= held.end).then_some(End::Expired)
    }

    /// The lease that it has, for as long as it is held.
    pub(crate) fn lease(&self) -> Option<Duration> {
        match &*self.state() {
            State::Held(held) => Some(held.lease),
            State::Ended(_) => None,
        }
    }

    /// How long it is still good if nothing more is heard from the store.
    pub(crate) fn good_for(&self) -> Option<Duration> {
        match &*self.state() {
            State::Held(held) => held.guard.remaining(),
            State::Ended(_) => None,
        }
    }

    /// What is so at this moment.
    pub(crate) fn now(&self, held: &Held) -> Now {
        Now {
            lease: held.lease,
            expires_in: self.left(held),
            shared: held.guard.is_shared(),
            covered: self.covered_now(held),
        }
    }

    /// The store may keep what a promise keeps, too: as long as its own lease is longer than what is left of the client's.
    fn covered_now(&self, held: &Held) -> Covered {
        let is_covered = self.covered_for.is_none_or(|longest| held.lease <= longest);
        let left = held.end.remaining();
        match self.covered {
            Covered::Http if is_covered && held.guard.remaining().is_none_or(|own| left <= own) => {
                Covered::All
            }
            covered => covered,
        }
    }

    /// For how long its client may rely on it, by its own clock; with a promise that is of the lease alone.
    fn left(&self, held: &Held) -> Duration {
        let lease = held.end.remaining();
        let left = match (self.covered, held.guard.remaining()) {
            (Covered::All, Some(session)) => lease.min(session),
            _ => lease,
        };
        left.mul_f64(SLOWEST)
    }
}
