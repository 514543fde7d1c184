//! How a holder learns that it is asked to let go: it follows the number that `asked.rs` writes.

use std::future::pending;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use tokio::sync::Notify;

use crate::backend::{Value, Write};
use crate::error::{Effect, Result};
use crate::key::QueueKey;
use crate::recipe::engine::data::from_data;
use crate::recipe::engine::grant::Grant;
use crate::recipe::engine::loss::LossWatch;
use crate::session::{Session, Sight};

/// The kind of the queue whose value the number is.
pub(super) const KIND: &str = "asked";
pub(super) const ASK: &str = "ask";

/// Whether the holder of a grant is asked to let go. Nothing is followed until somebody wants to know.
#[derive(Default)]
pub(super) struct Requests {
    asked: OnceLock<Arc<Asked>>,
}

impl Requests {
    /// Waits until the holder of this grant is asked.
    pub(super) async fn wait(&self, grant: &Grant) -> Result<()> {
        let asked = self.follow(grant);
        if !asked.is_some_and(Asked::is_set) {
            let waits = grant.own_entry().session().check_thread("wait");
            grant.named(waits)?;
        }
        let told = async {
            match asked {
                Some(asked) => asked.wait().await,
                None => pending().await,
            }
        };
        tokio::select! {
            biased;
            () = told => Ok(()),
            reason = grant.lost() => Err(grant.loss_error("wait", reason, Effect::None)),
        }
    }

    /// Whether this process knows that the holder of this grant is asked.
    pub(super) fn is_made(&self, grant: &Grant) -> bool {
        self.follow(grant).is_some_and(Asked::is_set)
    }

    /// Whether this process knows that the holder is asked, because somebody wanted to know before.
    pub(super) fn is_known(&self) -> bool {
        self.asked.get().is_some_and(|asked| asked.is_set())
    }

    /// Follows the requests from now on, if nobody has wanted to know of them before.
    pub(super) fn begin(&self, grant: &Grant) {
        let _ = self.follow(grant);
    }

    /// What is known of requests, which are followed from the first call on; `None`: there will be none.
    fn follow(&self, grant: &Grant) -> Option<&Asked> {
        let session = grant.own_entry().session();
        // In a forked child every guard is lost. A thread of the parent may be about to set the cell, for ever as the child sees it.
        if !session.is_own_process() {
            return None;
        }
        let asked = self.asked.get_or_init(|| {
            let asked = Arc::new(Asked::default());
            let lock = grant.key();
            let queue = QueueKey::new(KIND, lock.name(), session.settings.max_name_bytes);
            // The name is that of the lock, so it is accepted.
            if let Ok(queue) = queue {
                let following = Following {
                    session: Arc::clone(session),
                    lock: lock.clone(),
                    queue,
                    token: grant.token().value(),
                    asked: Arc::clone(&asked),
                };
                session.spawn(following.run(grant.loss_watch()));
            }
            asked
        });
        Some(asked)
    }
}

/// Whether a holder was asked.
#[derive(Default)]
struct Asked {
    is_asked: AtomicBool,
    changed: Notify,
}

impl Asked {
    fn is_set(&self) -> bool {
        self.is_asked.load(Ordering::SeqCst)
    }

    fn set(&self) {
        self.is_asked.store(true, Ordering::SeqCst);
        self.changed.notify_waiters();
    }

    async fn wait(&self) {
        let changed = self.changed.notified();
        tokio::pin!(changed);
        // Listen before looking, so that a request that comes between the two is not missed.
        changed.as_mut().enable();
        if !self.is_set() {
            changed.await;
        }
    }
}

/// What follows the requests for a holder, until its hold is over.
struct Following {
    session: Arc<Session>,
    lock: QueueKey,
    queue: QueueKey,
    token: u64,
    asked: Arc<Asked>,
}

impl Following {
    async fn run(self, hold: LossWatch) {
        let mut views = self.session.observe(&self.queue, Sight::Standing);
        let mut newest = None;
        let over = hold.lost();
        tokio::pin!(over);
        loop {
            let view = tokio::select! {
                biased;
                _ = &mut over => break,
                view = views.next() => view,
            };
            // There are no more views when the coordinator has stopped.
            let Ok(view) = view else { return };
            newest.clone_from(&view.listing.value);
            if let Some(standing) = &newest {
                let newest = number(standing);
                if newest >= self.token {
                    self.asked.set();
                }
                // If it concerns a newer holder as well, that one looks, and of those who share the lock the last one when it lets go.
                if newest <= self.token {
                    self.clear(standing).await;
                }
            }
        }
        if let Some(standing) = &newest {
            self.clear(standing).await;
        }
    }

    /// Removes the number that the store has, unless it concerns somebody but this holder, who knows it by now.
    async fn clear(&self, standing: &Value) {
        if let Err(error) = self.try_to_clear(standing).await {
            // Whoever asks next removes it.
            tracing::debug!(%error, queue = ?self.queue, "cannot remove what was asked");
        }
    }

    async fn try_to_clear(&self, standing: &Value) -> Result<()> {
        if from_data::<u64>(ASK, &standing.data).is_err() {
            // A later version may have written it.
            return Ok(());
        }
        // Read after the number, as in `Lock::request_release`.
        let read = || self.session.read(&self.lock, Sight::Standing);
        let (listing, _) = self.session.retry_briefly(ASK, read).await?;
        let concerned = |seq: u64| seq <= number(standing) && seq != self.token;
        if !listing.entries.iter().any(|entry| concerned(entry.seq)) {
            let write = Write::new(&self.queue, Some(standing.version), None);
            self.session.write(ASK, &write).await?;
        }
        Ok(())
    }
}

/// The largest token that is asked. What cannot be read concerns nobody: it is not written by this version, and only a hint.
pub(super) fn number(standing: &Value) -> u64 {
    from_data(ASK, &standing.data).unwrap_or(0)
}
