//! What has begun and has to come to an end before the session ends: a stop waits for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How much has begun and is not over.
#[derive(Debug, Default)]
pub(crate) struct UnderWay(Arc<AtomicUsize>);

/// Something that has begun; over when this is dropped.
#[derive(Debug)]
pub(crate) struct Finishing(Arc<AtomicUsize>);

impl UnderWay {
    /// One more begins.
    pub(crate) fn begin(&self) -> Finishing {
        self.0.fetch_add(1, Ordering::AcqRel);
        Finishing(Arc::clone(&self.0))
    }

    /// Whether nothing has begun that is not over.
    pub(crate) fn is_over(&self) -> bool {
        self.0.load(Ordering::Acquire) == 0
    }
}

impl Drop for Finishing {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}
