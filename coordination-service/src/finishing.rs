//! What has begun and has to come to an end before the session ends: a stop waits for it.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::problem::{Code, Problem};

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

    /// How much has begun and is not over.
    pub(crate) fn count(&self) -> usize {
        self.0.load(Ordering::Acquire)
    }

    /// Whether nothing has begun that is not over.
    pub(crate) fn is_over(&self) -> bool {
        self.count() == 0
    }
}

/// Does this in a task of its own, which has these until it is over: the library goes on with what has begun though the client hangs
/// up, and it counts for as long.
pub(crate) async fn finished<T: Send + 'static>(
    these: impl Send + 'static,
    work: impl Future<Output = T> + Send + 'static,
) -> Result<T, Problem> {
    let task = tokio::spawn(async move {
        let done = work.await;
        drop(these);
        done
    });
    task.await.map_err(|_| Problem::new(Code::Internal, "it ended without an answer"))
}

impl Drop for Finishing {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}
