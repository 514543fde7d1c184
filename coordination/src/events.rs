//! What the log says of a grant, from the wait for it to its end, with the same fields in each line.
//!
//! `name`, `template` and `recipe` say what it is, `store`, `namespace` and `member` who we are, `token` is its fencing
//! token. Names go through `Debug`, so that a line feed in a name forges no line.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;

use crate::backend::{Entry, SessionId};
use crate::error::{Error, ErrorKind, LossReason};
use crate::key::QueueKey;

/// Who we are: the same for all that a session does.
pub(crate) struct Origin {
    pub(crate) store: &'static str,
    pub(crate) namespace: Arc<str>,
    pub(crate) member: Arc<str>,
}

/// Something with a name that a session takes, waits for or has.
#[derive(Clone, Copy)]
pub(crate) struct About<'a> {
    pub(crate) origin: &'a Origin,
    pub(crate) key: &'a QueueKey,
}

/// An entry that stands before one that waits.
#[derive(Clone, Debug)]
pub(crate) struct Ahead {
    pub(crate) member: Arc<str>,
    pub(crate) token: u64,
    /// Whether it is this very session's.
    pub(crate) is_ours: bool,
}

impl Ahead {
    pub(crate) fn new(entry: &Entry, session: SessionId) -> Self {
        Self {
            member: Arc::clone(&entry.member),
            token: entry.seq,
            is_ours: entry.id.is_of(session),
        }
    }
}

/// Whether somebody listens to what is told at `DEBUG`.
pub(crate) fn hears_debug() -> bool {
    tracing::enabled!(tracing::Level::DEBUG) && has_clock()
}

/// Whether somebody listens to what is told at `WARN`.
pub(crate) fn hears_warnings() -> bool {
    tracing::enabled!(tracing::Level::WARN) && has_clock()
}

/// A guard may be dropped together with what its thread keeps for itself. Then tokio's clock is gone, if it is one that a test can
/// pause, and asking for the time would end the process.
fn has_clock() -> bool {
    !Handle::try_current().is_err_and(|error| error.is_thread_local_destroyed())
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

impl About<'_> {
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

    pub(crate) fn acquired(self, token: Option<u64>, waited: Duration) {
        tell!(self, debug, "acquired", token, ?waited,);
    }

    pub(crate) fn not_acquired(self, waited: Duration, error: &Error) {
        match error.kind() {
            ErrorKind::Timeout => tell!(self, debug, "timed out", ?waited, %error,),
            _ => tell!(self, debug, "not acquired", ?waited, %error,),
        }
    }

    /// It still waits, after longer than is usual.
    ///
    /// `contenders`, how many stand in the queue, ourselves among them; `None`: the store did not say.
    pub(crate) fn still_waits(
        self,
        waited: Duration,
        ahead: Option<&Ahead>,
        contenders: Option<usize>,
    ) {
        let holder = ahead.map(|ahead| tracing::field::debug(&ahead.member));
        let holder_token = ahead.map(|ahead| ahead.token);
        let own_session = ahead.map(|ahead| ahead.is_ours);
        tell!(self, warn, "still waiting", ?waited, holder, holder_token, own_session, contenders,);
    }

    /// It waits for what the same task has taken.
    pub(crate) fn waits_for_itself(self, holder_token: u64) {
        tell!(
            self,
            warn,
            "a task waits for what it has taken itself; if nothing else releases that, this never ends",
            holder_token,
        );
    }

    /// Somebody, the `member`, takes it away from its `holder`.
    pub(crate) fn breaks(self, holder: &str, holder_token: u64) {
        tell!(self, warn, "breaking a lock", ?holder, holder_token,);
    }

    pub(crate) fn released(self, token: Option<u64>, held: Duration) {
        tell!(self, debug, "released", token, ?held,);
    }

    pub(crate) fn lost(self, token: Option<u64>, held: Duration, reason: LossReason) {
        match reason {
            // Whoever stops a coordinator gives up what it has.
            LossReason::Closed => tell!(self, debug, "lost", token, ?held, %reason,),
            _ => tell!(self, warn, "lost", token, ?held, %reason,),
        }
    }
}
