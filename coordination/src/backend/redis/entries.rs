//! The trait `Entries` for Redis: each of its steps is one Lua script.
//!
//! # The protocol
//!
//! Which entry blocks which, and what a holder does when its lease ends, is the same on all stores: see `backend/mod.rs`.
//!
//! A script is atomic: the server runs no other command between the commands of the script. This is what `enter` does
//! (`scripts/enter.lua`). The words on the left are functions in `scripts/prelude.lua`; the numbers on the right refer to the list
//! below.
//!
//! ```text
//! tick        the server has the record that the client knows, and its data are not older                (1)
//! admit       the session lives, and this call is not on an older connection than an earlier one         (2)
//! quarantine  the server cannot have forgotten a grant whose lease still runs                            (3)
//! if the session's hash has no text of this entry:                                                       (4)
//!     number  one more than the last, and at least the clock's time                                      (5)
//!     ZADD exclusive:<queue> or shared:<queue>  number, entry
//!     HSET session:<id>  entry:<queue>/<entry>, text                                                     (6)
//! standing    the newest entry with a smaller number that blocks this one                                (7)
//! ```
//!
//! 1. The server keeps a *record* of the namespace, a hash. A field of the hash is the record's name, which changes whenever grants
//!    may have been forgotten, that is when the server has restarted, has become the master, has lost its data or was given older
//!    data. Each call has the name of the record that the client knows, and the newest time in an answer that the client has
//!    received. If the server's record has another name than the call says, or the server's newest time is older than the one in
//!    the call, the answer is `stranger`. Then the client calls `greet.lua`, which finds out what may have been forgotten, and
//!    sends its call again.
//! 2. Two checks:
//!    * The session's hash has the time at which its lease ends, by the namespace's clock (`mod.rs`); each heartbeat moves that
//!      time on. Once the time has passed, the session is over, and `enter` is refused (`lost`).
//!    * Each connection of a client has a number, its *generation*, which is higher than those of the client's earlier connections.
//!      The session's hash has the highest generation with which a call of the session has arrived. If the call has a lower
//!      generation than the hash, it is refused (`stale`); if it has a higher one, the hash gets the generation of the call.
//!
//!    The second check is for calls that arrive late. If a client gives up an `enter` before it has the answer, it sends `leave`,
//!    so that no entry stays. Without the check, the `enter` could arrive after the `leave`, and nobody would remove the entry that
//!    it makes. There are two cases:
//!    * The client still uses the connection on which it has sent `enter`, and sends `leave` on it too. The server carries out the
//!      calls of one connection in the order in which they were sent: so `enter` comes first, and `leave` removes its entry.
//!    * The client has replaced that connection, and sends `leave` on the new one. If `leave` arrives first, it raises the
//!      generation, and `enter` is refused. (If a fail-over loses the raised generation, the record's name has changed, and (1)
//!      refuses `enter`.) If `enter` arrives first, `leave` removes its entry.
//! 3. After a restart or a fail-over the server may have forgotten grants whose leases still run. As long as such a lease can still
//!    run, nothing is granted, and the answer is `quarantine`. A master that was replaced may go on answering its clients
//!    meanwhile; `mod.rs` says when they notice that. If they do not, two clients may hold the same lock, and only the fencing
//!    token protects the resource.
//! 4. If the hash has a text of this entry, the client has sent this `enter` before, the server has carried it out, and the answer
//!    was lost. Then no new entry is made, and the entry keeps its number.
//! 5. The number is larger than all earlier numbers in the namespace, for ever. It gives the entry its place in the queue, and is
//!    the fencing token.
//! 6. The text is in the session's hash, so that it is removed together with the session. An entry in a sorted set whose text is
//!    missing counts as removed, and blocks no other entry.
//! 7. An exclusive entry looks into both sorted sets, a shared entry only into `exclusive:`. If the session of the found entry is
//!    over, or its hash has no text of that entry, the script removes that entry and looks at the next older one. If no entry is
//!    found, nothing blocks the new entry, so the lock is granted. Otherwise the answer says for how long the found entry's lease
//!    still runs. When a lease runs out, the server sends no message by itself; so a waiter asks again at that time.
//!
//! The other scripts use the same parts. `leave` does (1), compares and raises the generation as in (2), removes the entry (ZREM,
//! HDEL), and publishes a message to the owner of each entry whose nearest blocker the removed entry was. For an entry of another
//! client, `leave` neither compares nor raises a generation. It removes the entry with this id; if the client gives a number, only
//! if the entry has this number. Ids are random and never used again, so no newer entry is removed.
//!
//! `position` does (1), checks that the session lives and that the entry exists, and does (3) and (7). `update` does (1) to (3),
//! checks that the hash has a text of the entry and that the entry has the given number, and writes the new text; if the entry
//! becomes shared, it moves from `exclusive:` to `shared:` and keeps its number. An `update` that was given up has no effect after
//! a later one: on the same connection it comes before that one, and on an older connection (2) refuses it. The last `update` of an
//! entry that is held is made again when the record has a new name (`server/updates.rs`), as a replica that took over may lack it.
//!
//! `enter_fast.lua` and `leave_fast.lua` do the work of `enter` and `leave` with fewer commands in the usual case, a queue without
//! shared entries. The head of each file lists the checks that it leaves out, and why they are not needed.

use std::time::{Duration, Instant};

use async_trait::async_trait;

use super::Redis;
use super::entry::entry_of;
use super::script::{Answer, Call, Script, Source, queue_path};
use super::values::{next_in, value_of};
use crate::backend::server::notifications::{Expected, Known, Told, Wait, word_for};
use crate::backend::server::reads;
use crate::backend::server::stored::{StoredEntry, check_name, queue_name};
use crate::backend::{
    Blocker, Clock, Cursor, Entries, Entry, EntryId, EntryRef, Listing, Mode, NewEntry, Page,
    Position,
};
use crate::error::{Effect, Error, ErrorKind, Result};
use crate::key::QueueKey;

#[async_trait]
impl Entries for Redis {
    async fn enter(&self, entry: &NewEntry) -> Result<Position> {
        let epoch = self.epoch();
        let call = Call::new("enter", Script::Enter)
            .of(entry.session)
            .with(queue_path(&entry.entry_ref.queue))
            .with(entry.entry_ref.id.as_str())
            .with(word_for(entry.mode))
            .with(self.text(entry)?)
            .quarantined(self.quarantine);
        let mut answer = self.connections.run(&call).await?;
        let position = self.standing(entry, epoch, &mut answer)?;
        self.confirmed(entry, position, answer.source).await
    }

    async fn update(&self, entry: &NewEntry, seq: u64) -> Result<bool> {
        let id = &entry.entry_ref.id;
        let Some(call) = self.update_of(entry, seq)? else { return Ok(false) };
        let call = call.quarantined(self.quarantine);
        let making = async {
            let record = self.connections.record();
            let answer = self.connections.run(&call).await?;
            if answer.status == "exclusive" {
                let message = "a shared entry cannot become exclusive";
                return Err(Error::new(ErrorKind::Unsupported, "update", message));
            }
            // Forgets which entry blocked this entry before: in its new mode, another entry may block it, or none.
            self.waits_for(id, None);
            if answer.is_ok() && self.entries.own(id).is_some() {
                self.updates.note(id, entry.session, again(call), record);
            }
            Ok(answer.is_ok())
        };
        self.updates.make(id, || self.entries.own(id).is_some(), making).await
    }

    fn updated(&self, entry: &NewEntry, seq: u64) {
        // Nobody knows under which record it was made. So it is noted under none, and made again with the next heartbeat.
        if let Ok(Some(call)) = self.update_of(entry, seq) {
            self.updates.note(&entry.entry_ref.id, entry.session, again(call), None);
        }
    }

    async fn confirm(&self, entry: &NewEntry, seen: Option<Source>) -> Result<bool> {
        match seen {
            Some(seen) => self.sessions.confirm_grant(entry.session, &entry.entry_ref, seen).await,
            None => self.sessions.confirm(entry.session, &entry.entry_ref).await,
        }
    }

    fn confirms(&self) -> bool {
        self.connections.has_confirming()
    }

    async fn leave(&self, entry: &EntryRef, seq: Option<u64>) -> Result<()> {
        let call = Call::new("leave", Script::Leave);
        let call = match self.sessions.owner(&entry.id) {
            Some(session) => call.of(session),
            None => call.with("").with(""),
        };
        let call = call
            .with(queue_path(&entry.queue))
            .with(entry.id.as_str())
            .with(seq.map(|seq| seq.to_string()).unwrap_or_default());
        self.connections.run(&call).await?;
        self.updates.forget(&entry.id);
        if let Some(known) = self.entries.remove(&entry.id).and_then(|own| own.known) {
            self.hub.forget(known);
        }
        Ok(())
    }

    async fn position(&self, entry: &NewEntry, seq: u64) -> Result<Option<Position>> {
        let queue = queue_path(&entry.entry_ref.queue);
        // If a script that removed the blocker has just sent this client the message that nothing else blocks this entry, that
        // message is used as the answer, and no request is sent. The script has checked that the entry exists and its session
        // lives, and that no lease that the server may have forgotten can still run. But this client's URL may ask for a longer
        // quarantine than the script has checked. So `is_out` says whether the server has forgotten nothing for as long as the URL
        // asks. If the message came on an earlier connection, or (in a cluster) was published by a server with another record, another
        // server may be in use, which is asked. So it is if the message lacks the entry's id: anybody may have published it.
        let is_out = self.quarantine.is_none_or(|length| self.connections.reaches(length));
        let told = self.hub.take_turn(&queue, seq);
        let told = told.filter(|turn| turn.entry.as_deref() == Some(entry.entry_ref.id.as_str()));
        let told = told.filter(|turn| turn.record == self.connections.record());
        if let Some(source) = told.and_then(|turn| self.connections.source(turn.epoch))
            && is_out
        {
            self.waits_for(&entry.entry_ref.id, None);
            let position = Position { seq, blocker: None };
            return self.confirmed(entry, position, source).await.map(Some);
        }
        let epoch = self.epoch();
        let call = Call::new("position", Script::Position)
            .with(entry.session.to_string())
            .with(queue)
            .with(entry.entry_ref.id.as_str())
            .with(word_for(entry.mode))
            .with_number(seq)
            .quarantined(self.quarantine);
        let mut answer = self.connections.run(&call).await?;
        if !answer.is_ok() {
            return Ok(None);
        }
        let position = self.standing(entry, epoch, &mut answer)?;
        self.confirmed(entry, position, answer.source).await.map(Some)
    }

    async fn read(&self, queue: &QueueKey) -> Result<Listing> {
        let path = queue_path(queue);
        let count = self.hub.count(&path, self.epoch());
        let call =
            Call::new("list", Script::Read).with(path).with(queue.kind()).with(queue.encoded());
        let mut answer = self.connections.run(&call).await?;
        let now = Duration::from_micros(answer.natural()?);
        let epoch = answer.natural()?;
        let left = u64::try_from(answer.number()?).ok();
        let value = value_of(queue, &mut answer)?;
        let value = value.map(|(version, stored)| stored.into_value(version));
        let clock = Some(Clock { epoch, now });
        let source = Some(answer.source);
        let mut listing = Listing { value, clock, source, ..Listing::default() };
        while !answer.is_at_end() {
            listing.entries.push(entry_of(queue, &mut answer)?);
        }
        listing.entries.sort_unstable_by_key(|entry| entry.seq);
        let shared = |entry: &Entry| entry.mode == Mode::Shared;
        let entries = listing.entries.iter();
        let entries =
            entries.map(|entry| (entry.seq, entry.id.as_str(), shared(entry), &*entry.data));
        // The revision is a hash of all entries and of the value. In it, the value has an empty id. No entry has an empty id, so a
        // value and an entry are never mistaken for each other.
        let value = listing.value.iter().map(|value| (value.version, "", false, ""));
        listing.revision = reads::revision_of(entries.chain(value));
        let expires = left.map(|left| Instant::now() + Duration::from_micros(left));
        self.reads.note(queue, listing.revision, Told { count, expires });
        Ok(listing)
    }

    async fn queues(&self, kind: &'static str, from: Option<&Cursor>) -> Result<Page> {
        let call = Call::new("list", Script::Queues).with(kind).with(Cursor::place(from));
        let mut answer = self.connections.run(&call).await?;
        let next = next_in(&mut answer)?;
        let mut names = Vec::new();
        while !answer.is_at_end() {
            let queue = answer.text()?;
            names.extend(queue_name(&queue, &answer.bytes()?.unwrap_or_default()));
        }
        Ok(Page { names, next })
    }
}

impl Redis {
    /// Returns `position`, which the `source` has answered. If it says that nothing blocks the entry, returning it grants the lock. In
    /// this case, if the server requires that replicas confirm writes, waits first until they have confirmed the entry.
    async fn confirmed(
        &self,
        entry: &NewEntry,
        position: Position,
        source: Source,
    ) -> Result<Position> {
        let confirm = || self.sessions.confirm_grant(entry.session, &entry.entry_ref, source);
        if position.blocker.is_none() && !confirm().await? {
            let gone = Error::new(ErrorKind::Unavailable, "enter", "the entry was removed again");
            return Err(gone.with_effect(Effect::Unknown));
        }
        Ok(position)
    }

    /// Reads the position of our own entry from a script's answer. If another entry blocks ours, notes that ours waits for that
    /// entry: the server will send a message to this client when the blocking entry goes.
    fn standing(&self, entry: &NewEntry, epoch: u64, answer: &mut Answer) -> Result<Position> {
        let queue = &entry.entry_ref.queue;
        let seq = answer.natural()?;
        let Some(id) = answer.optional_text()? else {
            self.waits_for(&entry.entry_ref.id, None);
            return Ok(Position { seq, blocker: None });
        };
        let before = answer.natural()?;
        let left = Duration::from_micros(answer.natural()?);
        // If the blocker's text belongs to another name with the same hash, this call fails. But the script may have entered our
        // entry already, so the error's effect is `Unknown`.
        let named = check_name(queue, &answer.bytes()?.unwrap_or_default());
        named.map_err(|error| error.with_effect(Effect::Unknown))?;
        let wait = Wait { queue: queue_path(queue), seq: before, mode: entry.mode };
        let expected = self.hub.expect(wait, Known { epoch, until: Instant::now() + left });
        self.waits_for(&entry.entry_ref.id, Some(expected));
        Ok(Position { seq, blocker: Some(Blocker { id: EntryId::from_store(id), seq: before }) })
    }

    /// The call that updates our entry, to be [quarantined](Call::quarantined); `None`: the entry has left. It must not be remembered
    /// again: after a fail-over it would count as known, and stay in its queue.
    fn update_of(&self, entry: &NewEntry, seq: u64) -> Result<Option<Call>> {
        let id = &entry.entry_ref.id;
        let Some(own) = self.entries.own(id) else { return Ok(None) };
        let call = Call::new("update", Script::Update)
            .of(entry.session)
            .with(queue_path(&entry.entry_ref.queue))
            .with(id.as_str())
            .with(word_for(entry.mode))
            .with(StoredEntry::new(entry, own.since_ms).to_bytes()?)
            .with_number(seq);
        Ok(Some(call))
    }

    fn waits_for(&self, id: &EntryId, now: Option<Expected>) {
        let wait = now.as_ref().map(|now| now.wait.clone());
        let before = self.entries.change(id, |own| std::mem::replace(&mut own.known, now));
        if let Some(before) = before.flatten().filter(|before| Some(&before.wait) != wait.as_ref())
        {
            self.hub.forget(before);
        }
    }

    /// The text of an entry that is about to be entered, which is remembered from here on.
    fn text(&self, entry: &NewEntry) -> Result<Vec<u8>> {
        StoredEntry::new(entry, self.entries.begin(entry, || None).0.since_ms).to_bytes()
    }
}

/// An update that is made again. It need not wait for the end of quarantine: nothing is granted by it.
fn again(update: Call) -> Call {
    update.quarantined(Some(Duration::ZERO))
}
