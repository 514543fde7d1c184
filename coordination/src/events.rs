//! What the log says of a grant, from the wait for the grant to its end, with the same fields in each line.
//!
//! `name`, `template` and `recipe` say what the line is about; `store`, `namespace` and `member` say which client writes it;
//! `token` is the grant's fencing token. Names go through `Debug`, so that a line feed in a name forges no line.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::Instant;

use crate::backend::{Entry, SessionId};
use crate::env::Process;
use crate::error::{Error, ErrorKind, LossReason};
use crate::key::QueueKey;
use crate::metrics::{Meters, Outcome, Raised, may_be_heard};

/// The client that writes to the log: the same fields for everything that its session does.
pub(crate) struct Origin {
    pub(crate) store: &'static str,
    pub(crate) namespace: Arc<str>,
    pub(crate) member: Arc<str>,
    pub(crate) meters: Meters,
}

impl Origin {
    pub(crate) fn new(
        store: &'static str,
        namespace: &str,
        member: Arc<str>,
        process: Process,
    ) -> Self {
        Self { store, namespace: namespace.into(), member, meters: Meters::new(store, process) }
    }
}

/// What a line of the log is about: something with a name that a session acquires, waits for or holds.
#[derive(Clone, Copy)]
pub(crate) struct About<'a> {
    pub(crate) origin: &'a Origin,
    pub(crate) key: &'a QueueKey,
}

/// An entry that is ahead of a waiting one in the queue.
#[derive(Clone, Debug)]
pub(crate) struct Ahead {
    pub(crate) member: Arc<str>,
    pub(crate) label: Option<Arc<str>>,
    pub(crate) token: u64,
    /// Whether the entry belongs to the same session as the waiting one.
    pub(crate) is_ours: bool,
}

impl Ahead {
    pub(crate) fn new(entry: &Entry, session: SessionId) -> Self {
        Self {
            member: Arc::clone(&entry.member),
            label: entry.label.clone(),
            token: entry.seq,
            is_ours: entry.id.is_of(session),
        }
    }
}

macro_rules! tell {
    ($about:ident, $level:ident, $text:literal, $($fields:tt)*) => {{
        let About { origin, key } = $about;
        tracing::$level!(
            name = ?key.name(),
            template = key.template(),
            recipe = key.kind(),
            $($fields)*
            store = origin.store,
            namespace = %origin.namespace,
            member = ?origin.member,
            $text
        );
    }};
}

/// An acquire, from its call on. If it is dropped before its end, the caller does not wait any longer.
pub(crate) struct Acquiring<'a> {
    about: About<'a>,
    begun: Instant,
    is_over: bool,
}

impl Acquiring<'_> {
    /// The caller has it.
    pub(crate) fn acquired(mut self, token: Option<u64>) {
        let Self { about, begun, .. } = self;
        let waited = begun.elapsed();
        tell!(about, debug, "acquired", token, ?waited,);
        self.over(Outcome::Acquired, waited);
    }

    /// Somebody else has it, and the caller does not wait.
    pub(crate) fn not_free(mut self) {
        self.over(Outcome::NotFree, self.begun.elapsed());
    }

    pub(crate) fn failed(mut self, error: &Error) {
        let Self { about, begun, .. } = self;
        let waited = begun.elapsed();
        // A limiter's policy has refused at once: nobody's time is over.
        let is_refused = error.kind() == ErrorKind::Timeout && error.operation() == "enter";
        if is_refused {
            tell!(about, debug, "not acquired", ?waited, %error,);
            self.over(Outcome::NotFree, waited);
        } else if error.kind() == ErrorKind::Timeout {
            tell!(about, debug, "timed out", ?waited, %error,);
            self.over(Outcome::TimedOut, waited);
        } else {
            tell!(about, debug, "not acquired", ?waited, %error,);
            self.over(Outcome::Failed, waited);
        }
    }

    fn over(&mut self, outcome: Outcome, waited: Duration) {
        self.is_over = true;
        let About { origin, key } = self.about;
        origin.meters.acquire_ended(key, outcome, waited);
    }
}

impl Drop for Acquiring<'_> {
    fn drop(&mut self) {
        if !self.is_over && may_be_heard() && has_clock() {
            self.over(Outcome::Cancelled, self.begun.elapsed());
        }
    }
}

/// What a caller was given, until it is told that it is over.
pub(crate) struct Had {
    since: Instant,
    held: Raised,
    is_told: AtomicBool,
}

impl Had {
    /// How long the caller has had what is now lost for this reason, or released; `None`: nobody is to be told, or there is no
    /// clock.
    pub(crate) fn held_for(&self, lost: Option<LossReason>) -> Option<Duration> {
        let is_logged = match lost {
            None => tracing::enabled!(tracing::Level::DEBUG),
            Some(_) => tracing::enabled!(tracing::Level::WARN),
        };
        ((is_logged || self.held.may_be_heard()) && has_clock()).then(|| self.since.elapsed())
    }
}

/// Whether somebody listens to what is told at `WARN`.
pub(crate) fn hears_warnings() -> bool {
    tracing::enabled!(tracing::Level::WARN) && has_clock()
}

/// A guard may be dropped together with what its thread keeps for itself. Then tokio's clock is gone, if it is one that a test can
/// pause, and asking for the time would end the process.
pub(crate) fn has_clock() -> bool {
    !Handle::try_current().is_err_and(|error| error.is_thread_local_destroyed())
}

impl<'a> About<'a> {
    /// An acquire begins.
    pub(crate) fn begin(self) -> Acquiring<'a> {
        Acquiring { about: self, begun: Instant::now(), is_over: false }
    }

    /// Counts an acquire that waits, until what is returned is dropped.
    pub(crate) fn waiting(self) -> Raised {
        self.origin.meters.waiting(self.key)
    }

    /// The span of an acquire.
    pub(crate) fn acquiring(self) -> tracing::Span {
        let Self { origin, key } = self;
        tracing::debug_span!(
            "acquire",
            name = ?key.name(),
            template = key.template(),
            recipe = key.kind(),
            store = origin.store,
            namespace = %origin.namespace,
            member = ?origin.member,
        )
    }

    /// It still waits, after longer than is usual.
    ///
    /// `contenders`: how many entries the queue has, the caller's own among them; `None`: the store did not say.
    pub(crate) fn still_waits(
        self,
        waited: Duration,
        ahead: Option<&Ahead>,
        contenders: Option<usize>,
    ) {
        let holder = ahead.map(|ahead| tracing::field::debug(&ahead.member));
        let holder_label = ahead.and_then(|ahead| ahead.label.as_ref()).map(tracing::field::debug);
        let holder_token = ahead.map(|ahead| ahead.token);
        let own_session = ahead.map(|ahead| ahead.is_ours);
        tell!(
            self,
            warn,
            "still waiting",
            ?waited,
            holder,
            holder_label,
            holder_token,
            own_session,
            contenders,
        );
    }

    /// Warns that a caller waits for something that its own task holds.
    pub(crate) fn waits_for_itself(self, holder_token: u64) {
        tell!(
            self,
            warn,
            "a task waits for what it has taken itself; if nothing else releases that, this never ends",
            holder_token,
        );
    }

    /// Warns that this client takes the lock away from its `holder`.
    pub(crate) fn breaks(self, holder: &str, holder_token: u64) {
        tell!(self, warn, "taking a grant away", ?holder, holder_token,);
    }

    /// A caller is given it.
    pub(crate) fn had(self) -> Had {
        let held = self.origin.meters.held(self.key);
        Had { since: Instant::now(), held, is_told: AtomicBool::new(false) }
    }

    /// What a caller had is over: released, or lost for this `reason`. The first call tells it.
    ///
    /// `held`: what [`Had::held_for`] answered.
    pub(crate) fn over(
        self,
        had: &Had,
        token: Option<u64>,
        held: Option<Duration>,
        reason: Option<LossReason>,
    ) {
        if had.is_told.swap(true, Ordering::SeqCst) {
            return;
        }
        had.held.lower();
        let Self { origin, key } = self;
        match reason {
            None => origin.meters.released(key, held),
            Some(reason) => origin.meters.lost(key, held, reason),
        }
        match (reason, held) {
            (_, None) => {}
            (None, Some(held)) => tell!(self, debug, "released", token, ?held,),
            (Some(reason), Some(held)) => self.lost(token, held, reason),
        }
    }

    fn lost(self, token: Option<u64>, held: Duration, reason: LossReason) {
        match reason {
            // A coordinator that is stopped gives up what it holds on purpose, so this is not a warning.
            LossReason::Closed => tell!(self, debug, "lost", token, ?held, %reason,),
            _ => tell!(self, warn, "lost", token, ?held, %reason,),
        }
    }
}
