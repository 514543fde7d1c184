//! Without the feature `metrics`: nothing, in the same words.

use std::time::Duration;

use super::Outcome;
use crate::env::Process;
use crate::error::{LossReason, Result};
use crate::key::QueueKey;
use crate::session::State;

pub(crate) fn may_be_heard() -> bool {
    false
}

pub(crate) struct Meters;

pub(crate) struct Raised;

pub(crate) struct Beat;

// Not of the same shape as the others: `default` makes it, with the feature and without.
#[derive(Default)]
pub(crate) struct SessionGauge(());

impl Meters {
    pub(crate) fn new(_store: &'static str, _process: Process) -> Self {
        Self
    }

    pub(crate) fn acquire_ended(&self, _key: &QueueKey, _outcome: Outcome, _took: Duration) {}

    pub(crate) fn waiting(&self, _key: &QueueKey) -> Raised {
        Raised
    }

    pub(crate) fn held(&self, _key: &QueueKey) -> Raised {
        Raised
    }

    pub(crate) fn released(&self, _key: &QueueKey, _held: Option<Duration>) {}

    pub(crate) fn lost(&self, _key: &QueueKey, _held: Option<Duration>, _reason: LossReason) {}

    pub(crate) fn beat(&self) -> Beat {
        Beat
    }

    pub(crate) fn request<T>(&self, _operation: &'static str, _outcome: &Result<T>) {}
}

impl Raised {
    pub(crate) fn may_be_heard(&self) -> bool {
        false
    }

    pub(crate) fn lower(&self) {}
}

impl Beat {
    pub(crate) fn ended(self, _outcome: &Result<()>) {}
}

impl SessionGauge {
    pub(crate) fn show(&self, _meters: &Meters, _state: State) {}
}
