//! Queues that do not take the dead letters that go to them.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::error::{Error, ErrorKind};
use crate::session::may_pass;

/// For how long such a queue is not asked again. It takes letters again only once somebody has done something about it, and each claim
/// would have to wait for its answer.
pub(super) const REFUSED: Duration = Duration::from_secs(2);

/// Those queues, as this process has seen them.
#[derive(Debug, Default)]
pub(super) struct Refused(BTreeMap<String, Refusal>);

#[derive(Debug)]
struct Refusal {
    kind: ErrorKind,
    /// Until when the queue is not asked.
    until: Instant,
}

impl Refused {
    /// Notes that this queue has failed to take letters of another one, or to give its own. A warning is logged the first time, and
    /// when it fails in another way than before.
    pub(super) fn note(&mut self, queue: &str, from: &str, error: &Error) {
        let (now, kind) = (Instant::now(), error.kind());
        // What is out of reach is asked with the next claim.
        let until = if may_pass(error) { now } else { now + REFUSED };
        let before = self.0.insert(queue.to_owned(), Refusal { kind, until });
        if before.is_some_and(|before| before.kind == kind) {
            tracing::debug!(%error, queue = from, to = queue, "dead letters are not delivered yet");
        } else {
            tracing::warn!(
                %error,
                queue = from,
                to = queue,
                "dead letters are not delivered yet; it is tried again"
            );
        }
    }

    /// Whether letters of the queue `from` are to be delivered, which are on their way to these. A queue to which none are any more is
    /// forgotten: somebody else has delivered them, and it is warned of anew when it fails once more.
    pub(super) fn is_due(&mut self, from: &str, letters_to: &[String]) -> bool {
        let are_there = !letters_to.is_empty();
        self.0.retain(|queue, _| are_there && (queue == from || letters_to.contains(queue)));
        letters_to.iter().any(|queue| !self.is_put_off(queue))
    }

    /// Notes that it has taken some.
    pub(super) fn clear(&mut self, queue: &str) {
        self.0.remove(queue);
    }

    /// Whether it is not to be asked now.
    pub(super) fn is_put_off(&self, queue: &str) -> bool {
        self.0.get(queue).is_some_and(|refusal| Instant::now() < refusal.until)
    }
}
