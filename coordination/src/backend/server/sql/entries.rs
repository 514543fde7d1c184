//! Entries: a function (PostgreSQL) or procedure (MySQL) in the database for each step, one statement and one transaction each.
//!
//! # The protocol
//!
//! `enter` (`schema.sql`):
//!
//! ```text
//! SELECT … FROM queues WHERE path = … FOR UPDATE                                          (1)
//! SELECT expires, generation FROM sessions WHERE id = … FOR UPDATE                        (2)
//! if the queue has no entry with this id:                                                 (3)
//!     seq = greatest(last + 1, now)                                                       (4)
//!     UPDATE queues SET last = seq; INSERT INTO entries …
//! SELECT … FROM entries: the newest one with a smaller number that blocks this entry      (5)
//! ```
//!
//! 1. Until this transaction has ended, no other one adds an entry to this queue, or removes one. So the numbers of entries are in
//!    the order of the commits, and of two entries that are entered at the same time, the later one sees the earlier one.
//! 2. Two checks, and the lock on the session's row:
//!    * If the session is over, or its lease has run out, `enter` is refused (`lost`). The lock keeps other clients from ending the
//!      session before this transaction has ended.
//!    * Each connection of a client has a number that is higher than those before, its *generation*. The session's row has the
//!      highest generation that any call of the session came on. If this call comes on a lower one, it is refused (`stale`); if it
//!      comes on a higher one, that one is written to the row.
//!
//!    The second check is for calls that are carried out late. A client that gives up an `enter` before its answer sends `leave`,
//!    to be sure that there is no entry, and sends it on a newer connection, because it gives up the connection with the call. If
//!    `enter` is carried out first, `leave` removes its entry. If `leave` is carried out first, it raises the generation, and
//!    `enter` is refused. Both lock the queue's row first (1), so one of them is the first.
//!
//!    PostgreSQL takes weaker locks, `FOR NO KEY UPDATE` in (1) and `FOR KEY SHARE` in (2), which exclude the same steps. A
//!    heartbeat, which changes the session's row, waits for the lock in (2) on MySQL, and not on PostgreSQL.
//! 3. If there is an entry with this id, an earlier call of this `enter` was carried out, and its answer was lost. The entry keeps
//!    its number.
//! 4. The number is larger than all before in this queue, for ever. It is the sequence number, and the fencing token.
//! 5. If the lease of the found entry's session has run out, the session's row is locked, the session is marked as over, the entry
//!    is removed, and the next older one is looked at. A heartbeat that is carried out at the same time either locks the row first,
//!    and then the entry stays and blocks; or it comes second, and is told that the session is over. If no entry blocks, the lock
//!    is granted.
//!
//! `leave` does (1), compares and raises the generation as in (2), and deletes the entry. `update` does (1) and (2), and changes
//! the entry's row. `position` checks that the entry exists and that its session is alive, and does (5); it takes a lock only to
//! remove entries of sessions whose lease has run out. On PostgreSQL, each change notifies the clients that it concerns. MySQL has
//! no notifications: each change of a queue raises a number in its row, and waiting clients ask for that number again and again.
//!
//! A holder's own transaction can lock the row of its entry (`coordination_fence`). No step removes the entry as long as that
//! lock lasts: `leave` is refused (`fenced`), and the client repeats it; and the entries behind it stay blocked, even if the
//! holder's session is over.

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
        // Forgets which entry blocked this one: in its new mode, another entry may block it.
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
        // A notification has come from the transaction that removed the blocker. It says that nothing else blocks this entry, and
        // that the entry's session is alive.
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
            // The row of the queue itself has the value and no entry's id. It is missing if there is no such queue.
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
        // The value is distinguished from the entries by its empty id.
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

/// The longest time for which `prune` can ask whether a queue was unused, in microseconds: the server subtracts the time from its
/// clock, and the difference has to fit into a `BIGINT`.
const LONGEST_MICROS: u64 = i64::MAX as u64 / 2;

impl<D: Dialect> SqlStore<D> {
    /// Reads the position of our own entry from an answer, and notes which entry blocks it.
    fn standing(&self, entry: &NewEntry, epoch: u64, answer: &Answer<D::Row>) -> Result<Position> {
        let queue = &entry.entry_ref.queue;
        let row = answer.row()?;
        let seq = row.number("enter", "seq")?;
        let Some(before) = row.number_or_null("enter", "before_seq")? else {
            D::waits(self, &entry.entry_ref.id, None);
            return Ok(Position { seq, blocker: None });
        };
        // Although this call fails, the entry has been entered.
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

    /// A page of the queues of this kind, in the order of their paths, including those that have neither entry nor value.
    pub(super) async fn page(
        &self,
        kind: &'static str,
        from: Option<&Cursor>,
    ) -> Result<Answer<D::Row>> {
        let prefix = format!("{}/{kind}/", self.namespace);
        self.connections.run(&between(Call::new("list", "list"), &prefix, from)).await
    }

    /// The names of those queues of a page whose column `column` is not NULL: `entry` or `value`.
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

/// Adds the arguments of a page: the paths that begin with this prefix and come after the cursor.
fn between(call: Call, prefix: &str, from: Option<&Cursor>) -> Call {
    let after = Cursor::place(from).max(prefix.as_bytes());
    // No path has the byte 0xff, so this is larger than every path with the prefix.
    let upto = [prefix.as_bytes(), &[0xff]].concat();
    call.bytes(after).bytes(upto).number(PAGE as u64)
}

/// Where the next page begins. `None`: a page that is not full is the last one.
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
    // The mode is that of the row. The text has the mode as well, but only as of when the text was written.
    Ok(Entry { mode, ..StoredEntry::entry(id, seq, mode, &text) })
}
