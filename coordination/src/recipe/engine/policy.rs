//! Whose turn it is, for recipes in which that depends on the whole queue.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::own_entry::OwnEntry;
use super::turn::{Acquire, Turn};
use super::waiting::Waiting;
use crate::backend::{Blocker, Data, Entry, Listing, Mode, Write};
use crate::error::Result;
use crate::session::Sight;

/// Decides from the whole queue what one entry in it is to do.
///
/// The listing has all entries before that one. Of the entries after it, some that come or go may be missing.
///
/// The policy may be asked about a stale listing. If it then decides anything but [`Wait`](Decision::Wait), the queue is read
/// again, and only what the policy decides from the fresh listing is done.
pub(crate) trait Policy: Send + Sync {
    /// # Errors
    ///
    /// An error refuses the entry: it is removed, and the caller gets the error.
    fn decide(&self, listing: &Listing, own: &Entry) -> Result<Decision>;
}

/// What a [`Policy`] decides.
pub(crate) enum Decision {
    /// Wait until the queue changes, then ask again.
    Wait,
    /// Wait until this earlier entry has [decided](Decision::Publish) or is gone, then ask again.
    WaitFor(Blocker),
    /// Store this data with the entry and make the entry shared, then ask again. By becoming shared the entry tells the entries
    /// after it that it has decided.
    Publish(Data),
    /// The turn has come, as soon as this data is stored with the entry, which is made shared at the same time.
    Take(Data),
    /// The turn has come.
    Grant,
    /// Write this as the queue's value, because the queue has another value or none, then ask again.
    Initialize(Data),
}

/// Does what the policy decides, until it decides that the turn has come.
pub(in crate::recipe) async fn await_decision(
    acquire: &Acquire,
    own: &OwnEntry,
    policy: &dyn Policy,
) -> Result<Turn> {
    let (session, queue, lease) = (&acquire.session, &acquire.queue, own.lease());
    let seq = own.seq().unwrap_or_default();
    let mut views = None;
    loop {
        // Invariant (S6 in `docs/guarantees.md`): the queue is read anew for every decision, which also shows that our own entry
        // still exists.
        let read = || session.backend.read_standing(queue);
        let listing = match &views {
            None => session.retry_until_settled(lease, "acquire", read).await?,
            Some(_) => session.retry_while_waiting(lease, "acquire", read).await?,
        };
        let Some(listed) = listing.entry(seq) else { return Ok(Turn::EntryLost) };
        let verdict = policy.decide(&listing, listed)?;
        let has_to_wait = matches!(verdict, Decision::Wait | Decision::WaitFor(_));
        acquire.is_blocked.store(has_to_wait, Ordering::SeqCst);
        match verdict {
            _ if has_to_wait && acquire.waiting == Waiting::Never => return Ok(Turn::NotNow),
            Decision::Wait => {}
            Decision::WaitFor(before) => match acquire.await_gone(own, &before, Mode::Shared).await
            {
                true => continue,
                false => return Ok(Turn::EntryLost),
            },
            Decision::Grant => return Ok(Turn::Mine(None)),
            Decision::Publish(data) => {
                let room = own.entry().room.after_update();
                match own.update_for("acquire", Mode::Shared, data, room).await {
                    Err(error) if error.loss_reason().is_none() => return Err(error),
                    _ => continue,
                }
            }
            Decision::Take(data) => {
                return match own.update("acquire", Mode::Shared, Arc::clone(&data)).await {
                    Ok(()) => Ok(Turn::Mine(Some(data))),
                    Err(error) if error.loss_reason().is_some() => Ok(Turn::EntryLost),
                    Err(error) => Err(error),
                };
            }
            Decision::Initialize(data) => {
                let expected = listing.value.map(|value| value.version);
                let write = Write::new(queue, expected, Some(data));
                // Whether it was written or not, the next read shows the queue's value.
                session
                    .retry_until_settled(lease, "acquire", || session.backend.write(&write))
                    .await?;
                continue;
            }
        }
        let views = views.get_or_insert_with(|| session.observe(queue, Sight::Standing));
        loop {
            let view = tokio::select! {
                biased;
                _ = lease.ended() => return Ok(Turn::EntryLost),
                view = views.next() => view?,
            };
            // A view may be older than the listing that was read above. So a view only says when to read again, and not what to
            // do.
            let listed = view.listing.entry(seq);
            let now = listed.map(|listed| policy.decide(&view.listing, listed));
            if !matches!(now, Some(Ok(Decision::Wait))) {
                break;
            }
        }
    }
}
