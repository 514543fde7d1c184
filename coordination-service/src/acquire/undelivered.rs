//! A grant whose client may not know of it yet.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::delivery::{self, Deliver};
use crate::holds::{End, Hold, Holds};
use crate::phase::Phase;
use crate::problem::{Code, Problem};

/// A hold whose client may not know of it yet: given up when this is dropped before it was delivered.
pub(crate) struct Undelivered {
    holds: Arc<Holds>,
    hold: Option<Arc<Hold>>,
    /// For how long it is kept first, for a repetition of its request.
    keep: Duration,
    phases: watch::Receiver<Phase>,
}

impl Undelivered {
    /// One that is not kept.
    pub(super) fn new(holds: Arc<Holds>, hold: Arc<Hold>, phases: watch::Receiver<Phase>) -> Self {
        Self { holds, hold: Some(hold), keep: Duration::ZERO, phases }
    }

    /// It is kept for so long before it is given up.
    pub(super) fn keep(&mut self, keep: Duration) {
        self.keep = keep;
    }

    /// The hold, for the answer's text.
    pub(crate) fn hold(&self) -> Result<&Arc<Hold>, Problem> {
        self.hold.as_ref().ok_or_else(|| Problem::new(Code::Internal, "it was delivered before"))
    }

    /// A body that delivers it when the connection has taken it.
    pub(crate) fn body(self, text: String) -> Body {
        delivery::body(text, self)
    }
}

impl Deliver for Undelivered {
    fn deliver(&mut self) {
        if let Some(hold) = self.hold.take() {
            hold.tell();
        }
    }
}

impl Drop for Undelivered {
    fn drop(&mut self) {
        let Some(hold) = self.hold.take() else { return };
        match Handle::try_current() {
            Ok(runtime) if !self.keep.is_zero() => {
                self.holds.keep(&hold, self.keep);
                let (holds, keep, phases) =
                    (Arc::clone(&self.holds), self.keep, self.phases.clone());
                runtime.spawn(taken_back_later(holds, hold, keep, phases));
            }
            _ => taken_back(&self.holds, &hold),
        }
    }
}

/// Ends a hold that nobody was told of.
fn taken_back(holds: &Arc<Holds>, hold: &Arc<Hold>) {
    holds.end_in_background(hold, End::Undelivered);
    // Where it was lost before: nobody was told of its promise either. Whoever is told after this look sees the end.
    let has_ended = holds.now(hold).is_err();
    if has_ended && !hold.was_told() {
        holds.take_back(hold);
    }
}

/// The same when its time is over, or the service stops: nobody is to wait for one that nobody knows of. No longer than until somebody is
/// told of it, or it has ended.
async fn taken_back_later(
    holds: Arc<Holds>,
    hold: Arc<Hold>,
    keep: Duration,
    mut phases: watch::Receiver<Phase>,
) {
    let mut changes = hold.changes();
    let mut over = pin!(tokio::time::sleep(keep));
    while !hold.was_told() && holds.now(&hold).is_ok() {
        tokio::select! {
            biased;
            _ = phases.wait_for(|phase| *phase != Phase::Serving) => break,
            () = &mut over => break,
            _ = changes.changed() => {}
        }
    }
    taken_back(&holds, &hold);
}
