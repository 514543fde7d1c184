//! Entries. For each operation there is a function (PostgreSQL) or procedure (MySQL) in the database. A call of it is one statement
//! and one transaction, at the isolation level `READ COMMITTED`: what it reads after it has waited for a row includes the changes
//! of the transaction for which it has waited.
//!
//! # The protocol
//!
//! Which entry blocks which, and what a holder does when its lease ends, is the same on all stores: see `backend/mod.rs`.
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
//! 1. Until this transaction has ended, no other transaction adds an entry to this queue, or removes one from it. So the numbers of
//!    the entries are in the order of the commits, and if two entries are entered at the same time, the transaction that enters the
//!    later entry sees the earlier entry.
//! 2. The session's row is locked, and two checks are made:
//!    * If the session is over, or its lease has run out, `enter` is refused (`lost`). Because of the lock, no other client can end
//!      the session before this transaction has ended.
//!    * Each connection of a client has a number, its *generation*, which is higher than those of the client's earlier connections.
//!      The session's row has the highest generation of all connections on which calls of the session have come. If this call comes
//!      on a connection with a lower generation, it is refused (`stale`). If it comes on a connection with a higher generation,
//!      this generation is written to the row.
//!
//!    The second check is for calls that the server carries out late. If a client gives up an `enter` before the answer, it gives
//!    up the connection, too. Then it sends `leave` on a newer connection, to be sure that there is no entry. If the server carries
//!    out `enter` before `leave`, then `leave` removes the entry. If the server carries out `leave` before `enter`, then `leave`
//!    raises the generation in the row, and `enter` is refused. `enter` and `leave` cannot run at the same time, because both begin
//!    with the lock on the queue's row (1).
//!
//!    PostgreSQL takes weaker locks, `FOR NO KEY UPDATE` in (1) and `FOR KEY SHARE` in (2), which are sufficient for all of this. A
//!    heartbeat changes the session's row. On MySQL it waits for the lock in (2), on PostgreSQL it does not. So on MySQL, (2) is done
//!    last, when the transaction waits for nothing else, and the transaction is rolled back if (2) refuses it.
//! 3. The client chooses the entry's id, at random, and a repeated `enter` has the same id. If the queue has an entry with this id,
//!    an earlier call of this `enter` was carried out, and its answer was lost. Then no second entry is added, and the entry keeps
//!    its number.
//! 4. The number is larger than every number given before in this queue, for ever. (If the row of an unused queue is removed, its
//!    last number is kept in the table `floors`.) It is the entry's sequence number and its fencing token.
//! 5. If the lease of the found entry's session has run out, that session's row is locked, the session is marked as over, the entry
//!    is removed, and (5) is done again, which finds the next older entry. At the same time, a heartbeat of that session may be
//!    carried out. If the heartbeat locks the session's row first, the lease is extended, and the entry stays and blocks. If the
//!    heartbeat is second, it is refused (`lost`), because the session is over. If (5) finds no entry, nothing blocks the new
//!    entry. If the lease lasts for longer than the session has asked for, the server's clock was set back, and all such leases in
//!    the queue begin anew: so crashed clients, however many, keep nobody out for as long as the clock was set back.
//!
//! If the queue is empty, (3) and (5) would find nothing, and are left out. The queue's row says so itself: `first`, below which no
//! entry has a number, is larger than `last`. `leave` makes it so if the entry was the only one, that is if its number is both
//! `first` and `last`. An entry that finds the queue empty gets its number as `first` and `last`. The row is locked when it is read, so
//! this is as good as looking at the entries. On PostgreSQL, (1) and (4) are one statement then. If (2) refuses the entry, the queue is
//! marked as empty again, and the number is given to nobody. Where the row does not say that the queue is empty, it may be so all the
//! same, as after an entry was removed by hand, or with its session.
//!
//! `leave` does (1), checks the generation as in (2), and deletes the entry. For an entry of another client, `leave` does not check
//! the generation. It deletes the entry with this id; if the client gives a number, only if the entry has this number. No id is
//! used twice, so no newer entry is deleted.
//!
//! `update` does (1) and (2), checks that the entry exists, and changes its row. If an `update` was given up, a later one comes on
//! a newer connection, so (2) refuses the earlier one if it is carried out after the later one. The last `update` of each entry is
//! made again on each new connection (`updates.rs`), as a replica that took over may lack it. `position` checks that the entry
//! exists and that its session is alive, and does (5). `position` locks rows only if it has to remove entries of sessions whose
//! lease has run out.
//!
//! On PostgreSQL, the transaction of each change notifies the clients that the change concerns. MySQL has no notifications: each
//! change of a queue raises a number in the queue's row, and clients that wait for a change read that number again and again.
//!
//! A user who holds the lock can lock the row of its entry within a transaction of its own (`coordination_fence`). As long as that
//! row lock lasts, no operation removes the entry. A `leave` of the entry is refused (`fenced`), and the client repeats it. The
//! entries that have to wait for this entry stay blocked, even if the holder's session is over.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;

use super::{Answer, Argument, Before, Call, Dialect, Freed, Row, Seen, SqlStore, Update};
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
        self.dialect().touched(&path, epoch, None);
        self.standing(entry, epoch, &answer)
    }

    async fn update(&self, entry: &NewEntry, seq: u64) -> Result<bool> {
        let (id, session) = (&entry.entry_ref.id, entry.session);
        let Some(update) = self.update_of(entry, seq)? else { return Ok(false) };
        let making = async {
            let epoch = self.epoch();
            let answer = self.connections.run(&update.call(id)).await?;
            if answer.status() == "exclusive" {
                let message = "a shared entry cannot become exclusive";
                return Err(Error::new(ErrorKind::Unsupported, "update", message));
            }
            let freed = match answer.is_ok() {
                true => update.is_shared.then_some(Freed::Shared(seq)),
                false => Some(Freed::Gone(seq)),
            };
            self.dialect().touched(&update.path, epoch, freed);
            // Forgets which entry blocked this one: in the new mode, another entry may block it, or none.
            D::waits(self, id, None);
            if answer.is_ok() && self.entries.own(id).is_some() {
                self.updates.note(id, session, update, epoch);
            }
            Ok(answer.is_ok())
        };
        self.updates.make(id, || self.entries.own(id).is_some(), making).await
    }

    fn updated(&self, entry: &NewEntry, seq: u64) {
        // Nobody knows on which connection it was made. So it is noted as made on none, and made again with the next heartbeat.
        if let Ok(Some(update)) = self.update_of(entry, seq) {
            self.updates.note(&entry.entry_ref.id, entry.session, update, 0);
        }
    }

    async fn leave(&self, entry: &EntryRef, seq: Option<u64>) -> Result<()> {
        let path = self.path(&entry.queue);
        let call = Call::new("leave", "leave");
        let call = match self.sessions.owner(&entry.id) {
            Some(session) => call.of(session),
            None => call.with(Argument::Bytes(None)).with(Argument::Generation),
        };
        let call = call.bytes(path.as_str()).bytes(entry.id.as_str()).number_or_null(seq);
        let epoch = self.epoch();
        self.connections.run(&call).await?;
        self.dialect().touched(&path, epoch, seq.map(Freed::Gone));
        self.forget(&entry.id);
        Ok(())
    }

    async fn position(&self, entry: &NewEntry, seq: u64) -> Result<Option<Position>> {
        let path = self.path(&entry.entry_ref.queue);
        let epoch = self.epoch();
        // If `is_turn` is true, a notification has come from the transaction that removed the entry's blocker. That transaction has
        // found that nothing else blocks this entry, and that the entry's session is alive. So the server need not be asked.
        if self.dialect().is_turn(&path, seq, epoch) {
            D::waits(self, &entry.entry_ref.id, None);
            return Ok(Some(Position { seq, blocker: None }));
        }
        let call = Call::new("position", "position")
            .bytes(entry.session.to_string())
            .bytes(path)
            .bytes(entry.entry_ref.id.as_str())
            .flag(entry.mode == Mode::Shared)
            .number(seq);
        // Carried out late, it only removes entries of sessions that are over, and shortens leases that last too long.
        let answer = self.connections.run_to_end(call).await?;
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
            // One row is that of the queue itself: it has the value, and no entry's id. This row is missing if the queue does not
            // exist.
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
        // In the hash, the value has the form of an entry, with an empty id. No real entry has an empty id.
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

    async fn prune_queue(&self, queue: &QueueKey) -> Result<()> {
        let (after, upto) = around(&self.path(queue));
        let call = Call::new("prune", "prune").bytes(self.namespace.as_str()).number(0);
        let call = call.bytes(after).bytes(upto).number(1);
        self.connections.run(&call).await.map(drop)
    }
}

/// The largest `unused` that can be sent to `prune`, in microseconds. The server subtracts it from its clock, and the difference
/// has to fit into a `BIGINT`.
const LONGEST_MICROS: u64 = i64::MAX as u64 / 2;

impl<D: Dialect> SqlStore<D> {
    /// Reads the position of our own entry from the server's answer, and notes which entry blocks ours.
    fn standing(&self, entry: &NewEntry, epoch: u64, answer: &Answer<D::Row>) -> Result<Position> {
        let queue = &entry.entry_ref.queue;
        let row = answer.row()?;
        let seq = row.number("enter", "seq")?;
        let Some(before) = row.number_or_null("enter", "before_seq")? else {
            D::waits(self, &entry.entry_ref.id, None);
            return Ok(Position { seq, blocker: None });
        };
        // If this check fails, the whole call fails, although the server has entered the entry.
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

    /// An update of our entry; `None`: the entry has left. It must not be remembered again: after a fail-over it would count as known,
    /// and stay in its queue.
    fn update_of(&self, entry: &NewEntry, seq: u64) -> Result<Option<Update>> {
        let Some(own) = self.entries.own(&entry.entry_ref.id) else { return Ok(None) };
        let (session, path) = (entry.session, self.path(&entry.entry_ref.queue));
        let is_shared = entry.mode == Mode::Shared;
        let text = StoredEntry::new(entry, own.since_ms).to_bytes()?;
        Ok(Some(Update { session, path, seq, is_shared, text }))
    }

    /// The text of an entry that is about to be entered, which is remembered from here on.
    fn text(&self, entry: &NewEntry) -> Result<Vec<u8>> {
        let since_ms = self.entries.begin(entry, D::Known::default).0.since_ms;
        StoredEntry::new(entry, since_ms).to_bytes()
    }

    /// A page of the queues of this kind, in the order of their paths. The page also has queues that have neither an entry nor a
    /// value.
    pub(super) async fn page(
        &self,
        kind: &'static str,
        from: Option<&Cursor>,
    ) -> Result<Answer<D::Row>> {
        let prefix = format!("{}/{kind}/", self.namespace);
        self.connections.run_to_end(between(Call::new("list", "list"), &prefix, from)).await
    }

    /// The names of those queues of a page that have an entry, if `column` is `entry`, or a value, if `column` is `value`. In the
    /// rows of other queues, this column is NULL.
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

/// Two places in the order of paths, between which there is this path and no other.
fn around(path: &str) -> (Vec<u8>, Vec<u8>) {
    let path = path.as_bytes();
    let mut after = path.to_vec();
    if let Some(last) = after.last_mut() {
        // No path has the byte 0xff, so what follows is larger than every path that begins with the smaller byte.
        *last = last.saturating_sub(1);
        after.push(0xff);
    }
    // No path has the byte 1, or a smaller one.
    (after, [path, &[1]].concat())
}

/// Adds to a call the arguments that select a page: of the paths that begin with this prefix, the first [`PAGE`] after the cursor.
fn between(call: Call, prefix: &str, from: Option<&Cursor>) -> Call {
    let after = Cursor::place(from).max(prefix.as_bytes());
    // No path has the byte 0xff, so this is larger than every path with the prefix.
    let upto = [prefix.as_bytes(), &[0xff]].concat();
    call.bytes(after).bytes(upto).number(PAGE as u64)
}

/// Where the next page begins. `None`: this page is not full, so it is the last one.
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
    // The mode is taken from the row. The text has a mode as well, but the server decides by the row's mode what blocks what.
    Ok(Entry { mode, ..StoredEntry::entry(id, seq, mode, &text) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn between_two_places_there_is_one_path() {
        let path = "app/lock/vol-7";
        let (after, upto) = around(path);
        let is_between = |path: &str| path.as_bytes() > &after[..] && path.as_bytes() < &upto[..];
        assert!(is_between(path));
        for other in ["vol-", "vol-0", "vol-6", "vol-6z", "vol-6~", "vol-70", "vol-7%20", "vol-8"] {
            assert!(!is_between(&format!("app/lock/{other}")), "{other}");
        }
    }
}
