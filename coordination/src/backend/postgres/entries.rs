//! Entries: a function in the database for each step, one statement and one transaction each.
//!
//! # The protocol
//!
//! `enter` (`schema.sql`):
//!
//! ```text
//! SELECT … FROM queues WHERE path = … FOR NO KEY UPDATE                             (1)
//! SELECT expires, generation FROM sessions WHERE id = … FOR KEY SHARE               (2)
//! if there is an entry of this id: where it stands                                  (3)
//! seq = greatest(last + 1, clock())                                                 (4)
//! UPDATE queues SET last = seq; INSERT INTO entries …
//! standing: the newest entry before it that it does not get along with              (5)
//! ```
//!
//! 1. Until the transaction has ended, nobody else enters this queue or leaves it. So numbers are in the order of commits, and
//!    none of two sees a queue without the other.
//! 2. The session lives, and cannot end before the transaction has; this connection is not older than its newest. A call that
//!    was given up may be carried out late, but on a connection that was given up too: a late `enter` after `leave`, which came
//!    on a newer connection or, on the same one, after it, is refused or came first.
//! 3. An earlier call got through, and its answer was lost.
//! 4. Rises for ever: it is the sequence number, and the fencing token.
//! 5. One whose session's time has passed is removed, once that session is written down to be over, under the lock of its row:
//!    a heartbeat that is on its way has the lock first, and the entry stays, or finds that it is too late. None: granted.
//!
//! `leave` is (1), notes the generation (2), deletes the entry, and tells those whom the entry alone kept waiting. `position`
//! asks whether entry and session are there, and (5), and locks nothing unless something dead is in the way. `update` is (1),
//! (2), and changes the row.
//!
//! `read` locks nothing, as a slow client is sent its answer before the transaction is over. What has to be written down for it,
//! that somebody listens and that others are dead, is a call of its own before it, `tend`, which is made where it is due.
//!
//! A row that a transaction of a holder's has locked (`coordination_fence`) is not removed: `leave` is refused, and comes again,
//! and everybody else waits behind it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;

use super::statement::{Answer, Argument, Call, corrupt, natural, value_in};
use super::values::next_after;
use super::{Postgres, text_of};
use crate::backend::server::notifications::{Known, Told, Wait};
use crate::backend::server::reads;
use crate::backend::server::stored::{StoredEntry, StoredValue, check_name, queue_name};
use crate::backend::{
    Blocker, Cursor, Entries, Entry, EntryId, EntryRef, Listing, Mode, NewEntry, PAGE, Page,
    Position,
};
use crate::error::{Effect, Error, ErrorKind, Result};
use crate::key::QueueKey;

#[async_trait]
impl Entries for Postgres {
    async fn enter(&self, entry: &NewEntry) -> Result<Position> {
        let epoch = self.epoch();
        let call = Call::new("enter", "enter")
            .of(entry.session)
            .bytes(self.path(&entry.entry_ref.queue))
            .bytes(entry.entry_ref.id.as_str())
            .flag(entry.mode == Mode::Shared)
            .bytes(self.text(entry)?);
        let answer = self.connections.run(&call).await?;
        self.standing(entry, epoch, &answer)
    }

    async fn update(&self, entry: &NewEntry, seq: u64) -> Result<bool> {
        let call = Call::new("update", "update")
            .of(entry.session)
            .bytes(self.path(&entry.entry_ref.queue))
            .bytes(entry.entry_ref.id.as_str())
            .flag(entry.mode == Mode::Shared)
            .bytes(self.text(entry)?)
            .number(seq);
        let answer = self.connections.run(&call).await?;
        if answer.status() == "exclusive" {
            let message = "a shared entry cannot become exclusive";
            return Err(Error::new(ErrorKind::Unsupported, "update", message));
        }
        // As another mode it may wait for another.
        self.waits_for(&entry.entry_ref.id, None);
        Ok(answer.is_ok())
    }

    async fn leave(&self, entry: &EntryRef, seq: Option<u64>) -> Result<()> {
        let call = Call::new("leave", "leave");
        let call = match self.sessions.owner(&entry.id) {
            Some(session) => call.of(session),
            None => call.with(Argument::Bytes(None)).with(Argument::Generation),
        };
        let call = call
            .bytes(self.path(&entry.queue))
            .bytes(entry.id.as_str())
            .with(Argument::Number(seq.map(u64::cast_signed)));
        self.connections.run(&call).await?;
        if let Some(wait) = self.entries.remove(&entry.id).and_then(|own| own.known) {
            self.hub.forget(&wait);
        }
        Ok(())
    }

    async fn position(&self, entry: &NewEntry, seq: u64) -> Result<Option<Position>> {
        let path = self.path(&entry.entry_ref.queue);
        // Told by whoever left, as of that moment, of this entry under its own live session.
        if self.hub.take_turn(&path, seq) {
            self.waits_for(&entry.entry_ref.id, None);
            return Ok(Some(Position { seq, blocker: None }));
        }
        let epoch = self.epoch();
        let call = Call::new("position", "position")
            .bytes(entry.session.to_string())
            .bytes(path)
            .bytes(entry.entry_ref.id.as_str())
            .flag(entry.mode == Mode::Shared)
            .number(seq);
        let answer = self.connections.run(&call).await?;
        if !answer.is_ok() {
            return Ok(None);
        }
        self.standing(entry, epoch, &answer).map(Some)
    }

    async fn read(&self, queue: &QueueKey) -> Result<Listing> {
        let path = self.path(queue);
        let read = Call::new("list", "read").bytes(path.as_str());
        let mut count = self.hub.count(&path, self.epoch());
        let mut answer = self.connections.run(&read).await?;
        if answer.column("is_due")? {
            self.connections.run(&Call::new("list", "tend").bytes(path.as_str())).await?;
            count = self.hub.count(&path, self.epoch());
            answer = self.connections.run(&read).await?;
        }
        let mut listing = Listing { entries: entries_in(queue, &answer)?, ..Listing::default() };
        if let Some(version) = answer.number("version")? {
            let text: Vec<u8> = answer.column("value")?;
            check_name(queue, &text)?;
            listing.value = Some(StoredValue::read(&text)?.into_value(version));
        }
        let shared = |entry: &Entry| entry.mode == Mode::Shared;
        let entries = listing.entries.iter();
        let entries =
            entries.map(|entry| (entry.seq, entry.id.as_str(), shared(entry), &*entry.data));
        // No entry is without an id.
        let value = listing.value.iter().map(|value| (value.version, "", false, ""));
        listing.revision = reads::revision_of(entries.chain(value));
        let left = answer.number("remaining")?.filter(|_| !listing.entries.is_empty());
        let expires = left.map(|left| Instant::now() + Duration::from_micros(left));
        self.reads.note(queue, listing.revision, Told { count, expires });
        Ok(listing)
    }

    async fn queues(&self, kind: &'static str, from: Option<&Cursor>) -> Result<Page> {
        let answer = self.page(kind, from).await?;
        let mut names = Vec::new();
        for row in &answer.rows {
            let path: Vec<u8> = value_in("list", row, "path")?;
            let text: Option<Vec<u8>> = value_in("list", row, "entry")?;
            names.extend(text.and_then(|text| queue_name(&self.segment(&path), &text)));
        }
        Ok(Page { names, next: next_after(&answer)? })
    }

    async fn prune(
        &self,
        unused: Duration,
        from: Option<&Cursor>,
        removed: &AtomicU64,
    ) -> Result<Option<Cursor>> {
        let unused = u64::try_from(unused.as_micros()).unwrap_or(u64::MAX).min(LONGEST_MICROS);
        let call = Call::new("prune", "prune")
            .bytes(self.namespace.as_str())
            .number(unused)
            .bytes(Cursor::place(from))
            .number(PAGE as u64);
        let answer = self.connections.run(&call).await?;
        removed.fetch_add(answer.number("removed")?.unwrap_or_default(), Ordering::Relaxed);
        let upto: Option<Vec<u8>> = answer.column("upto")?;
        Ok(upto.map(|upto| Cursor::to(&upto)))
    }
}

/// So that the server can subtract it from the time.
const LONGEST_MICROS: u64 = i64::MAX as u64 / 2;

impl Postgres {
    /// What the answer says of where an entry stands. From here on its blocker's end is told to us.
    fn standing(&self, entry: &NewEntry, epoch: u64, answer: &Answer) -> Result<Position> {
        let queue = &entry.entry_ref.queue;
        let seq = answer.number("seq")?.ok_or_else(|| corrupt("enter"))?;
        let Some(before) = answer.number("before")? else {
            self.waits_for(&entry.entry_ref.id, None);
            return Ok(Position { seq, blocker: None });
        };
        let left = Duration::from_micros(answer.number("remaining")?.unwrap_or_default());
        let (id, text) = (answer.column("blocker")?, answer.column::<Vec<u8>>("blocker_text")?);
        // The entry stands there all the same.
        let named = check_name(queue, &text);
        named.map_err(|error| error.with_effect(Effect::Unknown))?;
        let wait = Wait { queue: self.path(queue), seq: before, mode: entry.mode };
        self.hub.expect(&wait, Known { epoch, until: Instant::now() + left });
        self.waits_for(&entry.entry_ref.id, Some(wait));
        Ok(Position { seq, blocker: Some(Blocker { id: id_of(id)?, seq: before }) })
    }

    fn waits_for(&self, id: &EntryId, wait: Option<Wait>) {
        let before = self
            .entries
            .change(id, |own| std::mem::replace(&mut own.known, wait.clone()))
            .flatten();
        if let Some(before) = before.filter(|before| Some(before) != wait.as_ref()) {
            self.hub.forget(&before);
        }
    }

    fn text(&self, entry: &NewEntry) -> Result<Vec<u8>> {
        StoredEntry::new(entry, self.entries.begin(entry, || None).0.since_ms).to_bytes()
    }
}

fn entries_in(queue: &QueueKey, answer: &Answer) -> Result<Vec<Entry>> {
    let ids = answer.column::<Option<Vec<Vec<u8>>>>("ids")?.unwrap_or_default();
    let seqs = answer.column::<Option<Vec<i64>>>("seqs")?.unwrap_or_default();
    let shared = answer.column::<Option<Vec<bool>>>("shareds")?.unwrap_or_default();
    let texts = answer.column::<Option<Vec<Vec<u8>>>>("texts")?.unwrap_or_default();
    let mut entries = Vec::with_capacity(ids.len());
    for (((id, seq), shared), text) in ids.into_iter().zip(seqs).zip(shared).zip(texts) {
        check_name(queue, &text)?;
        let mode = if shared { Mode::Shared } else { Mode::Exclusive };
        let entry = StoredEntry::entry(text_of(id)?, natural("list", seq)?, mode, &text);
        // An entry's row tells its mode, and its text what that was when the text was written.
        entries.push(Entry { mode, ..entry });
    }
    Ok(entries)
}

fn id_of(id: Vec<u8>) -> Result<EntryId> {
    text_of(id).map(EntryId::from_store)
}
