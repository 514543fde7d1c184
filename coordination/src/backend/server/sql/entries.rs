//! Entries: a function or procedure in the database for each step, one statement and one transaction each.
//!
//! # The protocol
//!
//! `enter` (`schema.sql`):
//!
//! ```text
//! SELECT … FROM queues WHERE path = … FOR UPDATE                                    (1)
//! SELECT expires, generation FROM sessions WHERE id = … FOR UPDATE                  (2)
//! if there is an entry of this id: where it stands                                  (3)
//! seq = greatest(last + 1, now)                                                     (4)
//! UPDATE queues SET last = seq; INSERT INTO entries …
//! standing: the newest entry before it that it does not get along with              (5)
//! ```
//!
//! 1. Until the transaction has ended, nobody else enters this queue or leaves it. So numbers are in the order of commits, and
//!    none of two sees a queue without the other.
//! 2. The session lives, and cannot end before the transaction has; this connection is not older than its newest. A call that
//!    was given up may be carried out late, but on a connection that was given up too: a late `enter` after `leave`, which came
//!    on a newer connection or, on the same one, after it, is refused or came first. PostgreSQL has weaker locks that do for that.
//! 3. An earlier call got through, and its answer was lost.
//! 4. Rises for ever: it is the sequence number, and the fencing token.
//! 5. One whose session's time has passed is removed, once that session is written down to be over, under the lock of its row:
//!    a heartbeat that is on its way has the lock first, and the entry stays, or finds that it is too late. None: granted.
//!
//! `leave` is (1), notes the generation (2), and deletes the entry. `position` asks whether entry and session are there, and (5),
//! and locks nothing unless something dead is in the way. `update` is (1), (2), and changes the row. Those whom a change concerns
//! are told where the server can do that; where it cannot, each change of a queue counts up a number in its row, by which those
//! who wait find that there was one.
//!
//! A row that a transaction of a holder's has locked (`coordination_fence`) is not removed: `leave` is refused, and comes again,
//! and everybody else waits behind it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;

use super::{Answer, Argument, Before, Call, Dialect, Row, Seen, SqlStore};
use crate::backend::server::reads;
use crate::backend::server::stored::{StoredEntry, StoredValue, check_name, queue_name};
use crate::backend::{
    Blocker, Cursor, Entries, Entry, EntryId, EntryRef, Listing, Mode, NewEntry, PAGE, Page,
    Position, Value,
};
use crate::error::{Effect, Error, ErrorKind, Result};
use crate::key::QueueKey;

#[async_trait]
impl<D: Dialect> Entries for SqlStore<D> {
    async fn enter(&self, entry: &NewEntry) -> Result<Position> {
        let epoch = self.epoch();
        let path = self.path(&entry.entry_ref.queue);
        let call = Call::new("enter", "enter")
            .of(entry.session)
            .bytes(path.as_str())
            .bytes(entry.entry_ref.id.as_str())
            .flag(entry.mode == Mode::Shared)
            .bytes(self.text(entry)?);
        let answer = self.connections.run(&call).await?;
        self.dialect().touched(&path, None);
        self.standing(entry, epoch, &answer)
    }

    async fn update(&self, entry: &NewEntry, seq: u64) -> Result<bool> {
        let path = self.path(&entry.entry_ref.queue);
        let call = Call::new("update", "update")
            .of(entry.session)
            .bytes(path.as_str())
            .bytes(entry.entry_ref.id.as_str())
            .flag(entry.mode == Mode::Shared)
            .bytes(self.text(entry)?)
            .number(seq);
        let answer = self.connections.run(&call).await?;
        if answer.status() == "exclusive" {
            let message = "a shared entry cannot become exclusive";
            return Err(Error::new(ErrorKind::Unsupported, "update", message));
        }
        self.dialect().touched(&path, Some(seq));
        // As another mode it may wait for another.
        D::waits(self, &entry.entry_ref.id, None);
        Ok(answer.is_ok())
    }

    async fn leave(&self, entry: &EntryRef, seq: Option<u64>) -> Result<()> {
        let path = self.path(&entry.queue);
        let call = Call::new("leave", "leave");
        let call = match self.sessions.owner(&entry.id) {
            Some(session) => call.of(session),
            None => call.with(Argument::Bytes(None)).with(Argument::Generation),
        };
        let call = call.bytes(path.as_str()).bytes(entry.id.as_str()).number_or_null(seq);
        self.connections.run(&call).await?;
        self.dialect().touched(&path, seq);
        self.forget(&entry.id);
        Ok(())
    }

    async fn position(&self, entry: &NewEntry, seq: u64) -> Result<Option<Position>> {
        let path = self.path(&entry.entry_ref.queue);
        // Told by whoever left, as of that moment, of this entry under its own live session.
        if self.dialect().is_turn(&path, seq) {
            D::waits(self, &entry.entry_ref.id, None);
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
        let (answer, count) = D::read(self, &self.path(queue)).await?;
        let mut listing = Listing::default();
        let mut first_end: Option<u64> = None;
        for row in &answer.rows {
            // The queue's own row is one without an entry's id; without it there is no queue.
            if row.bytes_or_null("list", "id")?.is_none() {
                listing.value = value_of(queue, row)?;
                continue;
            }
            let left = row.number("list", "remaining")?;
            first_end = Some(first_end.map_or(left, |first| first.min(left)));
            listing.entries.push(entry_in(queue, row)?);
        }
        listing.entries.sort_by_key(|entry| entry.seq);
        let shared = |entry: &Entry| entry.mode == Mode::Shared;
        let entries = listing.entries.iter();
        let entries =
            entries.map(|entry| (entry.seq, entry.id.as_str(), shared(entry), &*entry.data));
        // No entry is without an id.
        let value = listing.value.iter().map(|value| (value.version, "", false, ""));
        listing.revision = reads::revision_of(entries.chain(value));
        let expires = first_end.map(|left| Instant::now() + Duration::from_micros(left));
        self.reads.note(queue, listing.revision, Seen { count, expires });
        Ok(listing)
    }

    async fn queues(&self, kind: &'static str, from: Option<&Cursor>) -> Result<Page> {
        let answer = self.page(kind, from).await?;
        Ok(Page { names: Self::names_in(&answer, "entry")?, next: next_after(&answer)? })
    }

    async fn prune(
        &self,
        unused: Duration,
        from: Option<&Cursor>,
        removed: &AtomicU64,
    ) -> Result<Option<Cursor>> {
        let unused = u64::try_from(unused.as_micros()).unwrap_or(u64::MAX).min(LONGEST_MICROS);
        let call = Call::new("prune", "prune").bytes(self.namespace.as_str()).number(unused);
        let call = between(call, &format!("{}/", self.namespace), from);
        let answer = self.connections.run(&call).await?;
        removed.fetch_add(answer.number("removed")?.unwrap_or_default(), Ordering::Relaxed);
        Ok(answer.bytes("upto")?.map(|upto| Cursor::to(&upto)))
    }
}

/// So that the server can subtract it from the time.
const LONGEST_MICROS: u64 = i64::MAX as u64 / 2;

impl<D: Dialect> SqlStore<D> {
    /// What the answer says of where an entry stands.
    fn standing(&self, entry: &NewEntry, epoch: u64, answer: &Answer<D::Row>) -> Result<Position> {
        let queue = &entry.entry_ref.queue;
        let row = answer.row()?;
        let seq = row.number("enter", "seq")?;
        let Some(before) = row.number_or_null("enter", "before_seq")? else {
            D::waits(self, &entry.entry_ref.id, None);
            return Ok(Position { seq, blocker: None });
        };
        // The entry stands there all the same.
        let named = check_name(queue, &row.bytes("enter", "blocker_text")?);
        named.map_err(|error| error.with_effect(Effect::Unknown))?;
        let left = row.number_or_null("enter", "remaining")?.unwrap_or_default();
        let (path, mode) = (self.path(queue), entry.mode);
        let until = Instant::now() + Duration::from_micros(left);
        let behind = Before { path, seq: before, mode, epoch, until };
        D::waits(self, &entry.entry_ref.id, Some(behind));
        let id = EntryId::from_store(row.text("enter", "blocker")?);
        Ok(Position { seq, blocker: Some(Blocker { id, seq: before }) })
    }

    fn text(&self, entry: &NewEntry) -> Result<Vec<u8>> {
        let since_ms = self.entries.begin(entry, D::Known::default).0.since_ms;
        StoredEntry::new(entry, since_ms).to_bytes()
    }

    /// Queues of this kind, used or not, in the order of their paths.
    pub(super) async fn page(
        &self,
        kind: &'static str,
        from: Option<&Cursor>,
    ) -> Result<Answer<D::Row>> {
        let prefix = format!("{}/{kind}/", self.namespace);
        self.connections.run(&between(Call::new("list", "list"), &prefix, from)).await
    }

    /// The names of those queues of a page that have something in this column.
    pub(super) fn names_in(answer: &Answer<D::Row>, column: &str) -> Result<Vec<String>> {
        let mut names = Vec::new();
        for row in &answer.rows {
            let path = row.bytes("list", "path")?;
            let path = String::from_utf8_lossy(&path);
            let segment = path.rsplit('/').next().unwrap_or_default();
            let text = row.bytes_or_null("list", column)?;
            names.extend(text.and_then(|text| queue_name(segment, &text)));
        }
        Ok(names)
    }
}

/// A page of the paths that begin so, after what the cursor names.
fn between(call: Call, prefix: &str, from: Option<&Cursor>) -> Call {
    let after = Cursor::place(from).max(prefix.as_bytes());
    // No path has this byte.
    let upto = [prefix.as_bytes(), &[0xff]].concat();
    call.bytes(after).bytes(upto).number(PAGE as u64)
}

/// Where the list goes on after these; a page that is not full is the last one.
pub(super) fn next_after<R: Row>(answer: &Answer<R>) -> Result<Option<Cursor>> {
    let last = answer.rows.last().filter(|_| answer.rows.len() >= PAGE);
    last.map(|row| Ok(Cursor::to(&row.bytes("list", "path")?))).transpose()
}

fn value_of(queue: &QueueKey, row: &impl Row) -> Result<Option<Value>> {
    let Some(version) = row.number_or_null("list", "version")? else { return Ok(None) };
    let text = row.bytes("list", "value")?;
    check_name(queue, &text)?;
    Ok(Some(StoredValue::read(&text)?.into_value(version)))
}

fn entry_in(queue: &QueueKey, row: &impl Row) -> Result<Entry> {
    let text = row.bytes("list", "text")?;
    check_name(queue, &text)?;
    let mode = if row.flag("list", "shared")? { Mode::Shared } else { Mode::Exclusive };
    let (id, seq) = (row.text("list", "id")?, row.number("list", "seq")?);
    // An entry's row tells its mode, and its text what that was when the text was written.
    Ok(Entry { mode, ..StoredEntry::entry(id, seq, mode, &text) })
}
