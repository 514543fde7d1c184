//! How an entry is entered: how it gets its key, and with the key its place in the queue.
//!
//! One transaction puts the key. It has two conditions: the key does not exist, and the session's [write fence](super::write_fence)
//! holds. The answer of the transaction may be lost, and the request may arrive much later. So each step of the loop in
//! [`enter`](TxnKv::enter) rules out a race:
//!
//! 1. First, a slot among the calls in flight is taken. If the caller gives up while it waits for a slot, nothing has been sent,
//!    and nothing has to be undone.
//! 2. The write fence is read, and its version is one of the call's conditions. If another task ends this fence afterwards, the
//!    store refuses the call, whenever it arrives, and `enter` makes another try under the next fence.
//! 3. The call is noted before it is sent. If the caller drops the future after that, [`leave`](TxnKv::leave) finds the note of a
//!    call that was not answered, and ends the write fence before it returns that the entry is gone.
//! 4. When an answer comes after which the call cannot take effect any more, the note is taken back.
//! 5. If the key exists already, an earlier call of this entry has put it. Then the entry exists, and is not entered a second time.

use std::sync::Arc;

use super::TxnKv;
use super::txn::{Kept, Transact, WriteFence};
use crate::backend::server::stored::StoredEntry;
use crate::backend::{NewEntry, Position};
use crate::error::{Effect, Error, ErrorKind, Result};

/// One try to enter.
pub(crate) struct Attempt {
    /// The last part of the entry's key.
    pub(crate) name: Arc<str>,
    pub(crate) key: String,
    /// The entry's text, which is the value of the key.
    pub(crate) value: Vec<u8>,
    /// The put has two conditions: the key does not exist, and this write fence holds.
    pub(crate) write_fence: WriteFence,
}

/// What became of a try to enter.
pub(crate) enum Entered {
    /// The entry has this position: it was entered by this try, or by an earlier try whose answer was lost.
    At(Position),
    /// The put was refused, because the write fence did not hold. The field is the member's key as it was read after that. Its
    /// version is the next write fence.
    Fenced(Option<Kept>),
    /// The put was refused for a reason that only Consul has. [`understand`](Enter::understand) has noted what the next try has to
    /// do.
    #[cfg(feature = "consul")]
    Again,
}

/// The error of an `enter` that fails after the entry was put: the caller has to remove the entry.
pub(crate) fn is_there(error: Error) -> Error {
    error.with_effect(Effect::Unknown)
}

/// How a store makes one try to enter an entry.
pub(crate) trait Enter: Send {
    /// A slot among the calls in flight.
    type Ready: Send;
    type Answer: Send;

    fn ready(&self) -> impl Future<Output = Result<Self::Ready>> + Send;

    /// Sends the transaction, and returns the server's answer without judging it.
    fn send(
        &mut self,
        ready: Self::Ready,
        attempt: &Attempt,
    ) -> impl Future<Output = Result<Self::Answer>> + Send;

    /// Finds out what the answer means. For this it may send one more request.
    fn understand(
        &mut self,
        attempt: &Attempt,
        answer: Self::Answer,
    ) -> impl Future<Output = Result<Entered>> + Send;
}

impl<T: Transact> TxnKv<T> {
    /// See [`Entries::enter`](crate::backend::Entries::enter).
    pub(crate) async fn enter(&self, entry: &NewEntry, mut store: impl Enter) -> Result<Position> {
        loop {
            let ready = store.ready().await?;
            let write_fence = self.write_fences.of(entry.session)?;
            let own = self.key_pool.sent(entry, write_fence.version);
            let attempt = Attempt {
                key: self.keys(&entry.entry_ref.queue).key(&own.known.name),
                name: own.known.name,
                value: StoredEntry::new(entry, own.since_ms).to_bytes()?,
                write_fence,
            };
            let answer = store.send(ready, &attempt).await;
            if !answer.as_ref().is_err_and(is_under_way) {
                self.key_pool.answered(&entry.entry_ref);
            }
            match store.understand(&attempt, answer?).await? {
                Entered::At(position) => return Ok(position),
                Entered::Fenced(found) => self.learn(&attempt.write_fence, found.as_ref())?,
                #[cfg(feature = "consul")]
                Entered::Again => {}
            }
        }
    }
}

/// Whether a call that failed may still take effect later. If the store refused a call for lack of space (`Quota`), the call may
/// have taken effect before the store sent this answer, but it cannot take effect later.
fn is_under_way(error: &Error) -> bool {
    error.effect() == Effect::Unknown && error.kind() != ErrorKind::Quota
}
