//! What all requests share.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use coordination::{Coordinator, State as SessionState};
use tokio::sync::watch;

use crate::auth::Auth;
use crate::bodies::Bodies;
use crate::claims::Claims;
use crate::finishing::{Finishing, UnderWay};
use crate::history::History;
use crate::holds::Holds;
use crate::ids;
use crate::keys::Keys;
use crate::metrics;
use crate::mirror::Mirror;
pub(crate) use crate::phase::Phase;
use crate::problem::{Code, Problem};
use crate::promise::Sights;
use crate::queued::Queued;
use crate::queues::Queues;
use crate::rates::Rates;
use crate::renewed_once;
use crate::settings::{Cover, Settings};
use crate::tls::Tls;
use crate::zaqar::Untold;

/// The most that is under way at a time: all that may wait, and as much again.
const UNDER_WAY: usize = 4_000;

/// The session at the store, as far as it is known.
#[derive(Clone, Debug)]
pub(crate) struct Session {
    pub(crate) state: SessionState,
    pub(crate) since: Instant,
}

/// One instance.
pub(crate) struct Service {
    pub(crate) settings: Settings,
    pub(crate) cover: Cover,
    pub(crate) scheme: String,
    pub(crate) tag: String,
    pub(crate) auth: Auth,
    /// What the listeners are encrypted with, but rdlm's and the Unix socket.
    pub(crate) tls: Option<Arc<Tls>>,
    pub(crate) holds: Arc<Holds>,
    pub(crate) waits: Arc<Waits>,
    pub(crate) queued: Arc<Queued>,
    pub(crate) keys: Arc<Keys>,
    pub(crate) sights: Sights,
    pub(crate) rates: Rates,
    pub(crate) claims: Claims,
    /// Claims of Zaqar's API that were not delivered yet.
    pub(crate) untold: Arc<Untold>,
    pub(crate) queues: Queues,
    pub(crate) bodies: Bodies,
    pub(crate) phase: watch::Sender<Phase>,
    pub(crate) under_way: UnderWay,
    /// None while the store has not answered yet.
    pub(crate) coordinator: watch::Sender<Option<Coordinator>>,
    pub(crate) session: watch::Sender<Option<Session>>,
    pub(crate) history: Arc<History>,
    pub(crate) mirror: Arc<Mirror>,
    /// Where we listen, with real ports.
    pub(crate) listening: Mutex<Vec<SocketAddr>>,
}

/// As handlers get it.
pub(crate) type Shared = Arc<Service>;

impl Service {
    pub(crate) fn new(
        settings: Settings,
        cover: Cover,
        scheme: String,
        auth: Auth,
        tls: Option<Tls>,
    ) -> Shared {
        let history = Arc::new(History::default());
        let told = Arc::clone(&history);
        let on_end = move |hold: &crate::holds::Hold, end| {
            told.add(hold, end);
            metrics::ended(hold.kind, hold.granted_at, end);
            renewed_once::has_ended(hold, end);
        };
        Arc::new(Self {
            settings,
            cover,
            scheme,
            tag: ids::tag(),
            auth,
            tls: tls.map(Arc::new),
            holds: Holds::new(on_end),
            waits: Arc::default(),
            queued: Arc::default(),
            keys: Arc::default(),
            sights: Sights::default(),
            rates: Rates::default(),
            claims: Claims::default(),
            untold: Arc::default(),
            queues: Queues::default(),
            bodies: Bodies::default(),
            phase: watch::Sender::new(Phase::Serving),
            under_way: UnderWay::default(),
            coordinator: watch::Sender::new(None),
            session: watch::Sender::new(None),
            history,
            mirror: Arc::default(),
            listening: Mutex::default(),
        })
    }

    /// The session, if the store has ever answered.
    pub(crate) fn coordinator(&self) -> Result<Coordinator, Problem> {
        let away = || Problem::new(Code::StoreAway, "the store has not answered yet");
        self.coordinator.borrow().clone().ok_or_else(away)
    }

    pub(crate) fn phase(&self) -> Phase {
        *self.phase.borrow()
    }

    /// Begins something that goes on though its client hangs up. A stop waits until what this returns is dropped.
    ///
    /// # Errors
    ///
    /// Too much is under way: clients that hang up at once are bounded by nothing else.
    pub(crate) fn begin_any(&self) -> Result<Finishing, Problem> {
        let finishing = self.under_way.begin();
        if self.under_way.count() <= UNDER_WAY {
            return Ok(finishing);
        }
        Err(Problem::new(Code::Overloaded, "too many requests are under way at the store"))
    }

    /// Begins something that gives or takes. A stop waits until what this returns is dropped.
    ///
    /// # Errors
    ///
    /// The service stops, and those of [`begin_any`](Self::begin_any).
    pub(crate) fn begin(&self) -> Result<Finishing, Problem> {
        // Invariant: it counts before the phase is looked at. A stop that begins in between finds it.
        let finishing = self.begin_any()?;
        if self.phase() == Phase::Serving { Ok(finishing) } else { Err(Problem::draining()) }
    }

    /// Whether promises keep the lock of this name, if it is acquired alone.
    pub(crate) fn promises(&self, name: &str) -> bool {
        match self.cover {
            Cover::Nothing => true,
            Cover::Any => false,
            Cover::Lease(_) => self.settings.long.iter().any(|prefix| name.starts_with(prefix)),
        }
    }
}

/// How many names are waited for, and by whom: one by most requests, and each of several locks.
#[derive(Debug, Default)]
pub(crate) struct Waits(Mutex<HashMap<String, usize>>);

/// A request that waits; not any more when it is dropped.
pub(crate) struct Waiting {
    waits: Arc<Waits>,
    client: String,
    count: usize,
}

impl Waits {
    /// So many more, if there may be.
    pub(crate) fn enter(
        self: &Arc<Self>,
        client: &str,
        count: usize,
        most: (usize, usize),
    ) -> Result<Waiting, Problem> {
        let mut waits = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let wait = Duration::from_secs(1);
        if waits.get(client).copied().unwrap_or_default() + count > most.1 {
            let problem = Problem::new(Code::TooMany, "too many requests of this caller wait");
            return Err(problem.retry_after(wait));
        }
        if waits.values().sum::<usize>() + count > most.0 {
            return Err(Problem::new(Code::Overloaded, "too many requests wait").retry_after(wait));
        }
        *waits.entry(client.to_owned()).or_default() += count;
        Ok(Waiting { waits: Arc::clone(self), client: client.to_owned(), count })
    }

    #[cfg(test)]
    pub(crate) fn count(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).values().sum()
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut waits = self.waits.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = waits.get_mut(&self.client) {
            *own -= self.count;
            if *own == 0 {
                waits.remove(&self.client);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::acquire::tests::instance;
    use crate::settings::Cover;

    /// H8: what clients that have hung up have begun is bounded as well.
    #[tokio::test]
    async fn h8_no_more_begins_than_there_is_room_for() {
        let (service, _other) = instance(Cover::Any).await;
        let begin = || service.begin().map_err(|problem| problem.code);
        let mut begun: Vec<_> = (0..UNDER_WAY).map(|_| begin().expect("there is room")).collect();
        assert_eq!(begin().map(drop), Err(Code::Overloaded));
        begun.pop();
        assert_eq!(begin().map(drop), Ok(()));
    }
}
