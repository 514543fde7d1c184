//! The connection for listings, whose answers may be larger than what a server buffers for a subscriber.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use super::raw_connection::RawConnection;
use super::silence::Silence;
use crate::backend::server::connections::Failure;

type Connecting<'a> = Pin<Box<dyn Future<Output = Result<Listing, Failure>> + Send + 'a>>;

/// The connection for listings. It is made for the first listing, and made again when it was closed or has gone silent.
///
/// Heartbeats go over another connection. So silence is measured for each of the two separately: silence here does not give up the
/// other connection, and answers here do not prove that the other one works.
pub(super) struct Listings {
    open: Mutex<Option<Arc<Open>>>,
    /// Held while the connection is made, so that other callers who need a connection at that time wait, and share this one.
    opening: tokio::sync::Mutex<()>,
    /// For how long no answer may come: several times what a call may take, because the answers to thousands of simultaneous
    /// listings take long.
    patience: Duration,
}

pub(super) struct Listing {
    pub(super) redis: RawConnection,
    /// Whether the connection was closed, for instance by the server because it was idle.
    pub(super) is_over: Arc<AtomicBool>,
}

/// The connection in use.
struct Open {
    listing: Listing,
    silence: Silence,
}

/// A listing in flight. When it is dropped and the connection has been silent for too long, the connection is given up.
pub(super) struct Asked<'a> {
    listings: &'a Listings,
    open: Arc<Open>,
}

impl Listings {
    pub(super) fn new(patience: Duration) -> Self {
        Self { open: Mutex::default(), opening: tokio::sync::Mutex::default(), patience }
    }

    /// Begins a listing on the open connection; `None`: no connection is open.
    pub(super) fn asked(&self) -> Option<Asked<'_>> {
        let open = locked(&self.open).clone();
        let open = open.filter(|open| !open.listing.is_over.load(Ordering::Relaxed))?;
        open.silence.asked();
        Some(Asked { listings: self, open })
    }

    /// Begins a listing if there is no connection: `connecting` makes one, unless another caller has made one while this one
    /// waited.
    pub(super) async fn asked_on(&self, connecting: Connecting<'_>) -> Result<Asked<'_>, Failure> {
        let _turn = self.opening.lock().await;
        if let Some(asked) = self.asked() {
            return Ok(asked);
        }
        let listing = connecting.await?;
        let open = Arc::new(Open { listing, silence: Silence::default() });
        open.silence.asked();
        *locked(&self.open) = Some(Arc::clone(&open));
        Ok(Asked { listings: self, open })
    }
}

impl Asked<'_> {
    pub(super) fn redis(&self) -> &RawConnection {
        &self.open.listing.redis
    }

    /// Gives up this connection, so that the next listing uses another one. Nothing happens if another one is in use already.
    pub(super) fn give_up(&self) {
        locked(&self.listings.open).take_if(|open| Arc::ptr_eq(open, &self.open));
    }

    /// The listing was answered, perhaps by an error.
    pub(super) fn is_answered(&self) {
        self.open.silence.ended();
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
