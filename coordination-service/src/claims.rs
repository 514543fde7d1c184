//! Claims of jobs that are done once per period, for as long as they can be given back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use coordination::{Claim, ErrorKind};
use serde_json::{Value, json};

use crate::holds::End;
use crate::ids::{self, Secret};
use crate::kept::Kept;
use crate::text::rfc3339;

/// The most claims that can be given back; whoever has most of them loses those first that were made first.
const MOST: usize = 10_000;
/// How long it is tried to give one back of which nobody knows.
const TRIED: Duration = Duration::from_secs(86_400);
/// From one try to the next, at first; each is twice as long as the one before, up to the last.
const PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// Somebody's claim.
pub(crate) struct Claimed {
    handle: String,
    pub(crate) secret: Secret,
    pub(crate) name: String,
    pub(crate) client: String,
    pub(crate) fence: u64,
    claim: Claim,
    is_given_back: AtomicBool,
}

impl Claimed {
    /// As its client is told of it.
    pub(crate) fn shown(&self) -> Value {
        json!({
            "id": self.secret.id(&self.handle), "kind": "once", "name": self.name, "fence": self.fence,
            "at": rfc3339(self.claim.at()), "next_at": rfc3339(self.claim.next()), "client": self.client,
        })
    }

    /// How it has ended, if it has, as far as this instance knows.
    pub(crate) fn end(&self) -> Option<End> {
        if self.is_given_back.load(Ordering::Acquire) {
            return Some(End::Released);
        }
        (SystemTime::now() >= self.claim.next()).then_some(End::Expired)
    }

    /// Gives it back. False: somebody has made the next claim. After an error it can be tried again.
    pub(crate) async fn give_back(&self) -> coordination::Result<bool> {
        let is_done = self.claim.give_back().await?;
        self.is_given_back.fetch_or(is_done, Ordering::AcqRel);
        Ok(is_done)
    }

    /// Gives it back as soon as the store lets us, unless its period is over before: nobody knows of it.
    pub(crate) async fn give_back_unknown(&self) {
        let (begun, mut pause) = (SystemTime::now(), PAUSE);
        while let Err(error) = self.give_back().await {
            let is_late = begun.elapsed().is_ok_and(|tried| tried > TRIED);
            // Nothing changes that: the session was stopped, or what stands there was never written by us.
            let is_final = matches!(error.kind(), ErrorKind::Closed | ErrorKind::Corrupt);
            if is_late || is_final || self.end().is_some() {
                tracing::warn!(name = self.name, %error, "nobody does a job of which nobody was told that it is theirs");
                return;
            }
            tokio::time::sleep(pause).await;
            pause = (2 * pause).min(LONGEST_PAUSE);
        }
    }
}

/// By handle.
pub(crate) struct Claims(Kept<String, Arc<Claimed>>);

impl Default for Claims {
    fn default() -> Self {
        Self(Kept::new(MOST))
    }
}

impl Claims {
    /// One more, which this client has made through the instance with this tag.
    pub(crate) fn add(&self, tag: &str, client: &str, name: &str, claim: Claim) -> Arc<Claimed> {
        let handle = ids::handle(tag);
        let claimed = Arc::new(Claimed {
            handle: handle.clone(),
            secret: Secret::new(),
            name: name.to_owned(),
            client: client.to_owned(),
            fence: claim.token().value(),
            claim,
            is_given_back: AtomicBool::new(false),
        });
        self.0.keep(client, handle, &claimed);
        claimed
    }

    /// The one of this handle.
    pub(crate) fn find(&self, handle: &str) -> Option<Arc<Claimed>> {
        self.0.get(&handle.to_owned(), || Err(())).ok()
    }
}
