//! Whose turn it is, where the whole queue has to be looked at to say so.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::own_entry::OwnEntry;
use super::turn::{Acquire, Turn};
use super::waiting::Waiting;
use crate::backend::{Blocker, Data, Entry, Listing, Mode, Write};
use crate::error::Result;

/// Says by the whole queue what an entry in it is to do.
///
/// It may be asked about a listing that is no longer the newest; what it answers, unless it is
/// [`Wait`](Verdict::Wait), is done only after it said it again of a fresh one.
pub(crate) trait Judge: Send + Sync {
    /// # Errors
    ///
    /// Refuses the entry: it leaves, and the caller gets the error.
    fn judge(&self, listing: &Listing, own: &Entry) -> Result<Verdict>;
}

/// What a [`Judge`] says.
pub(crate) enum Verdict {
    /// Nothing, until the queue changes.
    Wait,
    /// Nothing, until this entry before it has [decided](Verdict::Note) or is gone.
    Behind(Blocker),
    /// Keep this with the entry, then ask again. It becomes a shared one by that: so those behind it are
    /// told that it has decided what to do.
    Note(Data),
    /// The turn has come, once this is kept with the entry, which becomes a shared one too.
    Take(Data),
    /// The turn has come.
    Grant,
    /// Make this the queue's value, which it has not got yet, then ask again.
    Found(Data),
}

/// Does what the judge says until it says that the turn has come.
pub(super) async fn await_verdict(
    acquire: &Acquire,
    own: &OwnEntry,
    judge: &dyn Judge,
) -> Result<Turn> {
    let (session, queue, lease) = (&acquire.session, &acquire.queue, own.lease());
    let seq = own.seq().unwrap_or_default();
    let mut views = None;
    loop {
        // Invariant (S6): read anew for every decision, which also shows that our own entry still stands.
        let listing = session.persist(lease, "acquire", || session.backend.read(queue)).await?;
        let Some(listed) = listing.entry(seq) else { return Ok(Turn::EntryLost) };
        let verdict = judge.judge(&listing, listed)?;
        let has_to_wait = matches!(verdict, Verdict::Wait | Verdict::Behind(_));
        acquire.is_blocked.store(has_to_wait, Ordering::SeqCst);
        match verdict {
            _ if has_to_wait && acquire.waiting == Waiting::Never => return Ok(Turn::NotNow),
            Verdict::Wait => {}
            Verdict::Behind(before) => match acquire.await_gone(own, &before, Mode::Shared).await {
                true => continue,
                false => return Ok(Turn::EntryLost),
            },
            Verdict::Grant => return Ok(Turn::Mine(None)),
            Verdict::Note(data) => match own.update("acquire", Mode::Shared, data).await {
                Err(error) if error.loss_reason().is_none() => return Err(error),
                _ => continue,
            },
            Verdict::Take(data) => {
                return match own.update("acquire", Mode::Shared, Arc::clone(&data)).await {
                    Ok(()) => Ok(Turn::Mine(Some(data))),
                    Err(error) if error.loss_reason().is_some() => Ok(Turn::EntryLost),
                    Err(error) => Err(error),
                };
            }
            Verdict::Found(data) => {
                let expected = listing.value.map(|value| value.version);
                let write = Write::new(queue, expected, Some(data));
                // Whatever came of it, the next look shows it.
                session.write("acquire", &write).await?;
                continue;
            }
        }
        let views = views.get_or_insert_with(|| session.observe(queue));
        loop {
            let view = tokio::select! {
                biased;
                _ = lease.ended() => return Ok(Turn::EntryLost),
                view = views.next() => view?,
            };
            // A view may be older than what was read above: it says when to look, not what to do.
            let listed = view.listing.entry(seq);
            let now = listed.map(|listed| judge.judge(&view.listing, listed));
            if !matches!(now, Some(Ok(Verdict::Wait))) {
                break;
            }
        }
    }
}
