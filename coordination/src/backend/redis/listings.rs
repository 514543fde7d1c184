//! The connection that listings are asked for on, as their answers may be larger than what a server keeps for a subscriber.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use super::raw_connection::RawConnection;
use super::silence::Silence;
use crate::backend::server::connections::Failure;

type Connecting<'a> = Pin<Box<dyn Future<Output = Result<Listing, Failure>> + Send + 'a>>;

/// The connection for listings. It is made when there is a listing, and made anew if the last one is over or has fallen silent.
///
/// Nothing but listings would notice that silence, as heartbeats are on another connection. So silence here is not held against
/// that one, and answers here do not speak for it.
pub(super) struct Listings {
    open: Mutex<Option<Arc<Open>>>,
    /// Held by who makes one, so that it is one for all who come meanwhile.
    opening: tokio::sync::Mutex<()>,
    /// How long nothing may be answered: several times what a call may take, as thousands at once are answered late.
    patience: Duration,
}

pub(super) struct Listing {
    pub(super) redis: RawConnection,
    /// The server has closed it, be it for being idle.
    pub(super) is_over: Arc<AtomicBool>,
}

/// The connection in use.
struct Open {
    listing: Listing,
    silence: Silence,
}

/// A listing on its way. Where it is given up, and nothing was answered for too long, the connection is given up as well.
pub(super) struct Asked<'a> {
    listings: &'a Listings,
    open: Arc<Open>,
}

impl Listings {
    pub(super) fn new(patience: Duration) -> Self {
        Self { open: Mutex::default(), opening: tokio::sync::Mutex::default(), patience }
    }

    /// To be called before a listing is asked for; `None`: there is no connection.
    pub(super) fn asked(&self) -> Option<Asked<'_>> {
        let open = locked(&self.open).clone();
        let open = open.filter(|open| !open.listing.is_over.load(Ordering::Relaxed))?;
        open.silence.asked();
        Some(Asked { listings: self, open })
    }

    /// [`asked`](Self::asked) where there is no connection: `connecting` makes it, if nobody else has meanwhile.
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

    /// The next listing is asked for on another connection, which may be there already.
    pub(super) fn give_up(&self) {
        locked(&self.listings.open).take_if(|open| Arc::ptr_eq(open, &self.open));
    }

    /// The listing was answered, be it by an error.
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
