//! The connection for listings of queues and names. Their answers may be so large that the server would close a connection that
//! subscribes to channels, so they have a connection of their own.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use super::raw_connection::RawConnection;
use super::silence::Silence;
use crate::backend::server::connections::Failure;

/// If the connection was not used for longer than this, the next listing makes a new one. On the way to the server there may be a box
/// that forgets idle connections and tells neither side (load balancers do, after some minutes). Heartbeats keep the other
/// connections alive.
const IDLE: Duration = Duration::from_secs(60);

type Connecting<'a> = Pin<Box<dyn Future<Output = Result<Listing, Failure>> + Send + 'a>>;

/// The connection for listings. It is made for the first listing. A listing makes a new one if the connection was closed, or was
/// given up because the server did not answer on it.
///
/// Heartbeats go over the main connection. So the time without an answer is measured separately for the two connections: if the
/// server does not answer here, only this connection is given up, and answers here do not prove that the main connection works.
pub(super) struct Listings {
    open: Mutex<Option<Arc<Open>>>,
    /// Locked by a caller while it makes the connection. Other callers who need a connection wait for the mutex, and then use the
    /// connection that the first one has made.
    opening: tokio::sync::Mutex<()>,
    /// If callers have waited for longer than this without any answer on the connection, it is given up. This is several times what
    /// a call may take, because the server may need long for thousands of simultaneous listings.
    patience: Duration,
}

pub(super) struct Listing {
    pub(super) redis: RawConnection,
    /// Set when the connection ends, for instance because the server closes idle connections. The next listing then makes a new
    /// one.
    pub(super) is_over: Arc<AtomicBool>,
}

/// The connection in use, and for how long callers have waited on it without an answer.
struct Open {
    listing: Listing,
    silence: Silence,
    /// When the server last answered on the connection.
    answered: Mutex<Instant>,
}

impl Open {
    fn is_usable(&self) -> bool {
        self.may_be_usable() && locked(&self.answered).elapsed() < IDLE
    }

    /// Whether the connection may still deliver answers, however long it was idle.
    fn may_be_usable(&self) -> bool {
        !self.listing.is_over.load(Ordering::Relaxed)
    }
}

/// A listing in flight. When it is dropped, because it was answered or its caller gave up, it checks for how long no answer has
/// come on the connection. If that is longer than `patience`, it gives up the connection.
pub(super) struct Asked<'a> {
    listings: &'a Listings,
    open: Arc<Open>,
}

impl Listings {
    pub(super) fn new(patience: Duration) -> Self {
        Self { open: Mutex::default(), opening: tokio::sync::Mutex::default(), patience }
    }

    /// Begins a listing on the open connection; `None`: no connection is open, and the caller has to use `asked_on`.
    pub(super) fn asked(&self) -> Option<Asked<'_>> {
        self.asked_if(Open::is_usable)
    }

    fn asked_if(&self, is_good: impl Fn(&Open) -> bool) -> Option<Asked<'_>> {
        let open = locked(&self.open).clone();
        let open = open.filter(|open| is_good(open))?;
        open.silence.asked();
        Some(Asked { listings: self, open })
    }

    /// Begins a listing when no connection is open. `connecting` makes one, unless another caller has made one while this caller
    /// waited for the mutex `opening`. If that fails, for instance because the server has no room for another connection, the one that
    /// was idle for long is used.
    pub(super) async fn asked_on(&self, connecting: Connecting<'_>) -> Result<Asked<'_>, Failure> {
        let _turn = self.opening.lock().await;
        if let Some(asked) = self.asked() {
            return Ok(asked);
        }
        let listing = match connecting.await {
            Ok(listing) => listing,
            Err(failure) => return self.asked_if(Open::may_be_usable).ok_or(failure),
        };
        let answered = Mutex::new(Instant::now());
        let open = Arc::new(Open { listing, silence: Silence::default(), answered });
        open.silence.asked();
        *locked(&self.open) = Some(Arc::clone(&open));
        Ok(Asked { listings: self, open })
    }
}

impl Asked<'_> {
    pub(super) fn redis(&self) -> &RawConnection {
        &self.open.listing.redis
    }

    /// Gives up the connection of this listing, so that the next listing makes a new one. If a new one is in use already, that one
    /// stays.
    pub(super) fn give_up(&self) {
        locked(&self.listings.open).take_if(|open| Arc::ptr_eq(open, &self.open));
    }

    /// Notes that the server has answered this listing, perhaps by an error. So the time without an answer is counted from now.
    pub(super) fn is_answered(&self) {
        self.open.silence.ended();
        *locked(&self.open.answered) = Instant::now();
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        self.open.silence.left();
        if self.open.silence.is_longer(self.listings.patience) {
            self.give_up();
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
