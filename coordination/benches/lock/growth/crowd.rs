//! Tasks that want one lock, of one session or spread over several; or of one session that are a cohort.
//!
//! They take turns as fast as they can while they are let, and stand still, one with the lock and the others waiting, while they are not.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use coordination::{Cohort, Coordinator, Lock, Place, Result};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::idle::{Idle, WINDOW};
use super::{Curve, Figure, Subject};
use crate::Outcome;

/// How long turns are taken, and how long those are that make one value.
const TURNS: Duration = Duration::from_millis(2_000);
const SLICE: Duration = Duration::from_millis(400);
/// How much longer than turns are taken a wait of the other session may take.
const LONGER: Duration = Duration::from_secs(3);
/// How long nothing happens while requests are counted: in this time each waiter that looks again does so once.
const IDLE: Duration = Duration::from_secs(5);
/// So long that no session is lost while all wait for the processor.
const LEASE: Duration = Duration::from_secs(60);
/// How long it may take until the one whose turn it is has noticed that they are to stand still.
const LATEST: Duration = Duration::from_secs(10);

/// So many waiters, of `SESSIONS` sessions. If that is one, another session wants the lock as well, and the waiters may be a cohort.
pub(super) struct Crowd<const SESSIONS: usize, const IS_COHORT: bool> {
    idle: Idle,
    sessions: Vec<Coordinator>,
    other: Coordinator,
    cohort: Option<Cohort>,
    size: usize,
    tasks: JoinSet<()>,
    turns: Arc<AtomicUsize>,
    /// Whether they are let.
    open: watch::Sender<bool>,
    /// What tasks say: that they stand still with the lock, or why they have ended.
    tell: mpsc::UnboundedSender<Result<()>>,
    told: mpsc::UnboundedReceiver<Result<()>>,
}

impl<const SESSIONS: usize, const IS_COHORT: bool> Curve for Crowd<SESSIONS, IS_COHORT> {
    const NAME: &'static str = match (SESSIONS, IS_COHORT) {
        (_, true) => "cohort",
        (1, false) => "tasks",
        _ => "waiters",
    };
    const SIZES: &'static [usize] = &[1, 10, 100, 1_000, 10_000];

    async fn start(subject: &Subject) -> Outcome<Self> {
        let mut sessions = Vec::new();
        for _ in 0..SESSIONS {
            sessions.push(connect(&subject.url).await?);
        }
        let (tell, told) = mpsc::unbounded_channel();
        let cohort = match IS_COHORT {
            true => Some(sessions[0].lock("crowd")?.cohort()),
            false => None,
        };
        Ok(Self {
            other: connect(&subject.url).await?,
            idle: Idle::begin(subject)?,
            cohort,
            sessions,
            size: 0,
            tasks: JoinSet::new(),
            turns: Arc::default(),
            open: watch::Sender::new(false),
            tell,
            told,
        })
    }

    fn size(&self) -> usize {
        self.size
    }

    async fn grow(&mut self, size: usize, until: Instant) -> Outcome {
        if self.tasks.is_empty() {
            self.begin(0)?;
            self.stand_still().await?;
        }
        let places: Vec<Place> =
            (self.size..size).map(|number| self.begin(number + 1)).collect::<Outcome<_>>()?;
        if IS_COHORT {
            // Its tasks wait in memory as soon as they have run. `Place` tells nothing of them.
            sleep(Duration::from_millis(20)).await;
            self.size = size;
            return Ok(());
        }
        loop {
            let standing = places.iter().filter(|place| place.is_blocked()).count();
            if standing == places.len() || Instant::now() > until {
                self.size += standing;
                return Ok(());
            }
            sleep(Duration::from_millis(20)).await;
        }
    }

    async fn measure(&mut self) -> Outcome<Vec<Figure>> {
        let idle = if SESSIONS == 1 { WINDOW } else { IDLE };
        let mut figures = self.idle.figures_within(idle, self.size).await?;
        self.open.send_replace(true);
        let until = Instant::now() + TURNS;
        let (turns, longest) = if SESSIONS == 1 {
            let (turns, longest) = tokio::join!(self.count(until), self.waits(until));
            (turns, Some(longest?))
        } else {
            (self.count(until).await, None)
        };
        self.open.send_replace(false);
        self.stand_still().await?;
        figures.push(Figure::new("turn", "µs", turns));
        if let Some(longest) = longest {
            let longest = vec![longest.as_secs_f64() * 1e3];
            figures.push(Figure::new("longest wait of another session", "ms", longest));
        }
        Ok(figures)
    }
}

impl<const SESSIONS: usize, const IS_COHORT: bool> Crowd<SESSIONS, IS_COHORT> {
    /// Starts a task.
    fn begin(&mut self, number: usize) -> Outcome<Place> {
        let lock = self.sessions[number % SESSIONS].lock("crowd")?;
        let place = Place::new();
        let task = Task {
            lock,
            cohort: self.cohort.clone(),
            place: place.clone(),
            turns: Arc::clone(&self.turns),
            open: self.open.subscribe(),
            tell: self.tell.clone(),
        };
        self.tasks.spawn(task.run());
        Ok(place)
    }

    /// Waits until one has the lock and keeps it.
    async fn stand_still(&mut self) -> Outcome {
        Ok(timeout(LATEST, self.told.recv()).await?.ok_or("nobody is there")??)
    }

    /// Microseconds per turn.
    async fn count(&self, until: Instant) -> Vec<f64> {
        let mut values = Vec::new();
        let mut before = (Instant::now(), self.turns.load(Ordering::Relaxed));
        while Instant::now() < until {
            sleep(SLICE).await;
            let now = (Instant::now(), self.turns.load(Ordering::Relaxed));
            // Turns that take long are counted over several slices.
            if now.1 > before.1 {
                let turns = (now.1 - before.1) as f64;
                values.push((now.0 - before.0).as_secs_f64() * 1e6 / turns);
                before = now;
            }
        }
        values
    }

    /// How long another session had to wait at most. A wait that is not over at the end counts too: for [`LONGER`] than that, at most.
    async fn waits(&self, until: Instant) -> Outcome<Duration> {
        let lock = self.other.lock("crowd")?;
        let mut longest = Duration::ZERO;
        while Instant::now() < until {
            let begun = Instant::now();
            let acquired = timeout(until + LONGER - begun, lock.acquire(None)).await;
            longest = longest.max(begun.elapsed());
            match acquired {
                Ok(guard) => guard?.release().await?,
                Err(_) => break,
            }
        }
        Ok(longest)
    }
}

struct Task {
    lock: Lock,
    cohort: Option<Cohort>,
    place: Place,
    turns: Arc<AtomicUsize>,
    open: watch::Receiver<bool>,
    tell: mpsc::UnboundedSender<Result<()>>,
}

impl Task {
    async fn run(mut self) {
        loop {
            if let Err(error) = self.turn().await {
                // Nobody may listen any more.
                let _ = self.tell.send(Err(error));
                return;
            }
        }
    }

    async fn turn(&mut self) -> Result<()> {
        if let Some(cohort) = &self.cohort {
            let guard = cohort.acquire(None).await?;
            self.keep_turn().await;
            return guard.release().await;
        }
        let guard = self.place.of(self.lock.acquire(None)).await?;
        self.keep_turn().await;
        guard.release().await
    }

    /// Counts the turn, and keeps it while turns are not let.
    async fn keep_turn(&mut self) {
        self.turns.fetch_add(1, Ordering::Relaxed);
        let is_open = *self.open.borrow();
        if !is_open {
            let _ = self.tell.send(Ok(()));
            let _ = self.open.wait_for(|is_open| *is_open).await;
        }
    }
}

async fn connect(url: &str) -> Result<Coordinator> {
    Coordinator::builder().heartbeat_on_current_runtime(true).ttl(LEASE).connect(url).await
}
