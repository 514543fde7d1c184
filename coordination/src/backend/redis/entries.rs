//! Entries: one script for each step.
//!
//! # The protocol
//!
//! A script is carried out as of one moment, and nothing comes between its commands. `enter` (`scripts/enter.lua`):
//!
//! ```text
//! tick      the server is the one that was greeted, and its data are not older than we were told   (1)
//! admit     the session lives; this connection is not older than its newest                          (2)
//! quarantine  the record reaches back for as long as is needed, or nothing is granted                (3)
//! if the session has the entry's text already: where it stands                                       (4)
//! number    one more than the last, and at least the time                                            (5)
//! ZADD exclusive:<queue> or shared:<queue>  number, entry
//! HSET session:<id>  entry:<queue>/<entry>, text                                                     (6)
//! standing  the newest before it that minds it and whose session lives                               (7)
//! ```
//!
//! 1. A server that restarted, took over from another or was given older data has a record of another name: `stranger`, and the
//!    client greets it, which decides what may have been forgotten.
//! 2. A call that was given up may arrive late, but only on a connection that was given up too. Each connection has a number,
//!    the *generation*, and the session keeps the highest it has heard of. So a late `enter` never takes effect after the
//!    `leave` of its entry: if that came on a newer connection the `enter` is refused, and on the same connection the `enter`
//!    came first.
//! 3. Another may hold what this server has forgotten.
//! 4. An earlier call got through, and its answer was lost.
//! 5. Rises for ever: it is the sequence number, and the fencing token.
//! 6. The text stands with the session, so that it ends with it. An entry without its text counts for nobody.
//! 7. Whoever finds one of a dead session removes it, and looks further. None: granted.
//!
//! `leave` notes the generation (2), so that late calls of older connections are refused from then on; then ZREM, HDEL, and a
//! message to those whom the entry alone kept waiting. `position` asks (1), (3), whether text and number are still there, and
//! (7). `update` asks (1) to (3) and moves the entry from `exclusive:` to `shared:` under its number.
//!
//! `enter_fast.lua` and `leave_fast.lua` do the same with fewer commands, in the usual case: a queue without shared entries.

use std::time::{Duration, Instant};

use async_trait::async_trait;

use super::Redis;
use super::entry::entry_of;
use super::script::{Answer, Call, Script, queue_path};
use super::values::{next_in, value_of};
use crate::backend::server::notifications::{Known, Told, Wait, word_for};
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
        self.confirmed(entry, position).await
    }

    async fn update(&self, entry: &NewEntry, seq: u64) -> Result<bool> {
        let call = Call::new("update", Script::Update)
            .of(entry.session)
            .with(queue_path(&entry.entry_ref.queue))
            .with(entry.entry_ref.id.as_str())
            .with(word_for(entry.mode))
            .with(self.text(entry)?)
            .with_number(seq)
            .quarantined(self.quarantine);
        let answer = self.connections.run(&call).await?;
        if answer.status == "exclusive" {
            let message = "a shared entry cannot become exclusive";
            return Err(Error::new(ErrorKind::Unsupported, "update", message));
        }
        // In another mode the entry may wait for another blocker.
        self.waits_for(&entry.entry_ref.id, None);
        Ok(answer.is_ok())
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
        if let Some(wait) = self.entries.remove(&entry.id).and_then(|own| own.known) {
            self.hub.forget(&wait);
        }
        Ok(())
    }

    async fn position(&self, entry: &NewEntry, seq: u64) -> Result<Option<Position>> {
        let queue = queue_path(&entry.entry_ref.queue);
        // The script by which the blocker left has told that it is this entry's turn; it looked at this entry then, under its
        // own live session. That counts unless this client wants the record to reach back further than others do.
        let is_out = self.quarantine.is_none_or(|length| self.connections.reaches(length));
        if self.hub.take_turn(&queue, seq) && is_out {
            self.waits_for(&entry.entry_ref.id, None);
            let position = Position { seq, blocker: None };
            return self.confirmed(entry, position).await.map(Some);
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
        self.confirmed(entry, position).await.map(Some)
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
        let mut listing = Listing { value, clock, ..Listing::default() };
        while !answer.is_at_end() {
            listing.entries.push(entry_of(queue, &mut answer)?);
        }
        listing.entries.sort_unstable_by_key(|entry| entry.seq);
        let shared = |entry: &Entry| entry.mode == Mode::Shared;
        let entries = listing.entries.iter();
        let entries =
            entries.map(|entry| (entry.seq, entry.id.as_str(), shared(entry), &*entry.data));
        // Its empty id tells the value from the entries.
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
    /// The position, after replicas have confirmed it where nothing blocks the entry.
    async fn confirmed(&self, entry: &NewEntry, position: Position) -> Result<Position> {
        if position.blocker.is_none() {
            self.sessions.confirm(entry.session, &entry.entry_ref).await?;
        }
        Ok(position)
    }

    /// What the answer says of where an entry stands. From here on its blocker's end is told to us.
    fn standing(&self, entry: &NewEntry, epoch: u64, answer: &mut Answer) -> Result<Position> {
        let queue = &entry.entry_ref.queue;
        let seq = answer.natural()?;
        let Some(id) = answer.optional_text()? else {
            self.waits_for(&entry.entry_ref.id, None);
            return Ok(Position { seq, blocker: None });
        };
        let before = answer.natural()?;
        let left = Duration::from_micros(answer.natural()?);
        // The entry has been entered all the same.
        let named = check_name(queue, &answer.bytes()?.unwrap_or_default());
        named.map_err(|error| error.with_effect(Effect::Unknown))?;
        let wait = Wait { queue: queue_path(queue), seq: before, mode: entry.mode };
        self.hub.expect(&wait, Known { epoch, until: Instant::now() + left });
        self.waits_for(&entry.entry_ref.id, Some(wait));
        Ok(Position { seq, blocker: Some(Blocker { id: EntryId::from_store(id), seq: before }) })
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
