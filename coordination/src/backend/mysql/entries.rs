//! Entries: a procedure in the database for each step, one statement and one transaction each.
//!
//! # The protocol
//!
//! `enter` (`schema.sql`):
//!
//! ```text
//! SELECT … FROM queues WHERE path = … FOR UPDATE                                    (1)
//! SELECT expires, generation FROM sessions WHERE id = … FOR UPDATE                  (2)
//! if there is an entry of this id: where it stands                                  (3)
//! seq = GREATEST(last + 1, now)                                                     (4)
//! UPDATE queues SET last = seq, changes = changes + 1; INSERT INTO entries …
//! standing: the newest entry before it that it does not get along with              (5)
//! ```
//!
//! 1. Until the transaction has ended, nobody else enters this queue or leaves it. So numbers are in the order of commits, and
//!    none of two sees a queue without the other.
//! 2. The session lives, and cannot end before the transaction has; this connection is not older than its newest. A call that
//!    was given up may be carried out late, but on a connection that was given up too: a late `enter` after `leave`, which came
//!    on a newer connection, is refused or came first.
//! 3. An earlier call got through, and its answer was lost.
//! 4. Rises for ever: it is the sequence number, and the fencing token.
//! 5. One whose session's time has passed is removed, once that session is written down to be over, under the lock of its row:
//!    a heartbeat that is on its way has the lock first, and the entry stays, or finds that it is too late. None: granted.
//!
//! `leave` is (1), notes the generation (2), and deletes the entry. `position` asks whether entry and session are there, and (5),
//! and locks nothing unless something dead is in the way. `update` is (1), (2), and changes the row. Each change of a queue
//! counts up its `changes`, by which those who wait find that there was one.
//!
//! A row that a transaction of a holder's has locked (`coordination_fence`) is not removed: `leave` is refused, and comes again,
//! and everybody else waits behind it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;

use super::statement::{Answer, Call, corrupt, number_in, value_in};
use super::values::{after, next_after};
use super::{Mysql, text_of};
use crate::backend::server::reads;
use crate::backend::server::stored::{StoredEntry, StoredValue, check_name, queue_name};
use crate::backend::{
    Blocker, Cursor, Entries, Entry, EntryId, EntryRef, Listing, Mode, NewEntry, PAGE, Page,
    Position, Value,
};
use crate::error::{Effect, Error, ErrorKind, Result};
use crate::key::QueueKey;

#[async_trait]
impl Entries for Mysql {
    async fn enter(&self, entry: &NewEntry) -> Result<Position> {
        let path = self.path(&entry.entry_ref.queue);
        let call = Call::new("enter", "enter")
            .of(entry.session)
            .bytes(&path)
            .bytes(entry.entry_ref.id.as_str())
            .flag(entry.mode == Mode::Shared)
            .bytes(self.text(entry)?);
        let answer = self.connections.run(&call).await?;
        self.polls.touched(&path, None);
        standing(entry, &answer)
    }

    async fn update(&self, entry: &NewEntry, seq: u64) -> Result<bool> {
        let path = self.path(&entry.entry_ref.queue);
        let call = Call::new("update", "update")
            .of(entry.session)
            .bytes(&path)
            .bytes(entry.entry_ref.id.as_str())
            .flag(entry.mode == Mode::Shared)
            .bytes(self.text(entry)?)
            .number(seq);
        let answer = self.connections.run(&call).await?;
        if answer.status() == "exclusive" {
            let message = "a shared entry cannot become exclusive";
            return Err(Error::new(ErrorKind::Unsupported, "update", message));
        }
        self.polls.touched(&path, Some(seq));
        Ok(answer.is_ok())
    }

    async fn leave(&self, entry: &EntryRef, seq: Option<u64>) -> Result<()> {
        let path = self.path(&entry.queue);
        let call = Call::new("leave", "leave");
        let call = match self.sessions.owner(&entry.id) {
            Some(session) => call.of(session),
            None => call.bytes_or_null(None::<&str>).generation(),
        };
        let call = call.bytes(&path).bytes(entry.id.as_str()).number_or_null(seq);
        self.connections.run(&call).await?;
        self.polls.touched(&path, seq);
        self.entries.remove(&entry.id);
        Ok(())
    }

    async fn position(&self, entry: &NewEntry, seq: u64) -> Result<Option<Position>> {
        let call = Call::new("position", "position")
            .bytes(entry.session.to_string())
            .bytes(self.path(&entry.entry_ref.queue))
            .bytes(entry.entry_ref.id.as_str())
            .flag(entry.mode == Mode::Shared)
            .number(seq);
        let answer = self.connections.run(&call).await?;
        if !answer.is_ok() {
            return Ok(None);
        }
        standing(entry, &answer).map(Some)
    }

    async fn read(&self, queue: &QueueKey) -> Result<Listing> {
        let answer =
            self.connections.run(&Call::new("list", "read").bytes(self.path(queue))).await?;
        let mut listing = Listing::default();
        let mut changes = 0;
        let mut first_end: Option<u64> = None;
        for row in &answer.rows {
            // The queue's own row is one without an entry's id; without it there is no queue.
            if value_in::<Option<Vec<u8>>>("list", row, "id")?.is_none() {
                changes = number_in("list", row, "changes")?.ok_or_else(|| corrupt("list"))?;
                listing.value = value_of(queue, row)?;
                continue;
            }
            let left = number_in("list", row, "remaining")?.unwrap_or_default();
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
        self.reads.note(queue, listing.revision, (changes, expires));
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
        let (after, upto) = after(&format!("{}/", self.namespace), from);
        let call = Call::new("prune", "prune")
            .bytes(&self.namespace)
            .number(unused)
            .bytes(after)
            .bytes(upto)
            .number(PAGE as u64);
        let answer = self.connections.run(&call).await?;
        removed.fetch_add(answer.number("removed")?.unwrap_or_default(), Ordering::Relaxed);
        let upto: Option<Vec<u8>> = answer.column("upto")?;
        Ok(upto.map(|upto| Cursor::to(&upto)))
    }
}

/// So that the server can subtract it from the time.
const LONGEST_MICROS: u64 = i64::MAX as u64 / 2;

impl Mysql {
    fn text(&self, entry: &NewEntry) -> Result<Vec<u8>> {
        StoredEntry::new(entry, self.entries.begin(entry, || ()).0.since_ms).to_bytes()
    }
}

/// What the answer says of where an entry stands.
fn standing(entry: &NewEntry, answer: &Answer) -> Result<Position> {
    let seq = answer.number("seq")?.ok_or_else(|| corrupt("enter"))?;
    let Some(before) = answer.number("before_seq")? else {
        return Ok(Position { seq, blocker: None });
    };
    let (id, text) = (answer.column("blocker")?, answer.column::<Vec<u8>>("blocker_text")?);
    // The entry stands there all the same.
    let named = check_name(&entry.entry_ref.queue, &text);
    named.map_err(|error| error.with_effect(Effect::Unknown))?;
    let id = EntryId::from_store(text_of(id)?);
    Ok(Position { seq, blocker: Some(Blocker { id, seq: before }) })
}

fn value_of(queue: &QueueKey, row: &mysql_async::Row) -> Result<Option<Value>> {
    let Some(version) = number_in("list", row, "version")? else { return Ok(None) };
    let text: Vec<u8> = value_in("list", row, "value")?;
    check_name(queue, &text)?;
    Ok(Some(StoredValue::read(&text)?.into_value(version)))
}

fn entry_in(queue: &QueueKey, row: &mysql_async::Row) -> Result<Entry> {
    let text: Vec<u8> = value_in("list", row, "text")?;
    check_name(queue, &text)?;
    let mode = if value_in("list", row, "shared")? { Mode::Shared } else { Mode::Exclusive };
    let seq = number_in("list", row, "seq")?.ok_or_else(|| corrupt("list"))?;
    let entry = StoredEntry::entry(text_of(value_in("list", row, "id")?)?, seq, mode, &text);
    // An entry's row tells its mode, and its text what that was when the text was written.
    Ok(Entry { mode, ..entry })
}
