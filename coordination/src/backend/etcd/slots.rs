//! Which key each of our entries has.
//!
//! A key of its own for every acquire would be simplest, and slow: etcd keeps every key that ever was
//! in its index until the next compaction, and a read of the queue's prefix walks over them. So
//! the entries of a session in a queue use few keys again and again, `<lease>`, `<lease>-1`, …: a new
//! one only while all others are in use. Those of shared entries begin with an `r`, see
//! [`keys`](super::keys). A key belongs to one entry until it is known to be deleted. Every call about it has a
//! condition, so that none that comes late does anything: a delete the entry's revision, an update that of the
//! one before it, and a put the session's [admission](super::admission).

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};

use super::keys::SHARED;
use crate::backend::{EntryId, EntryRef, Mode, NewEntry, SessionId};
use crate::key::QueueKey;
use crate::time::unix_micros;

/// The keys in use.
#[derive(Default)]
pub(super) struct Slots(Mutex<State>);

#[derive(Default)]
struct State {
    by_entry: HashMap<EntryId, Slot>,
    /// Per session and queue, which numbers are taken.
    taken: HashMap<(SessionId, QueueKey), Vec<bool>>,
}

#[derive(Clone, Copy)]
struct Slot {
    session: SessionId,
    number: usize,
    /// How often a call that puts it was sent: once, if all goes well.
    puts: u32,
    /// The mode it was entered with, which its key tells.
    mode: Mode,
    since_ms: u64,
    /// The revision of its last update.
    updated: Option<i64>,
}

impl Slots {
    /// The last part of this entry's key; the same one until it is [freed](Self::free).
    pub(super) fn take(&self, entry: &NewEntry) -> String {
        let mut state = self.state();
        if let Some(slot) = state.by_entry.get(&entry.place.id) {
            return slot.name();
        }
        let taken = state.taken.entry((entry.session, entry.place.queue.clone())).or_default();
        let number = taken.iter().position(|taken| !taken).unwrap_or(taken.len());
        match taken.get_mut(number) {
            Some(free) => *free = true,
            None => taken.push(true),
        }
        let slot = Slot {
            session: entry.session,
            number,
            puts: 0,
            mode: entry.mode,
            since_ms: unix_micros() / 1000,
            updated: None,
        };
        state.by_entry.insert(entry.place.id.clone(), slot);
        slot.name()
    }

    /// The last part of an entry's key: of ours by its slot, of others as it was listed.
    pub(super) fn name(&self, entry: &EntryRef) -> String {
        let state = self.state();
        state
            .by_entry
            .get(&entry.id)
            .map_or_else(|| entry.id.as_str().to_owned(), |slot| slot.name())
    }

    /// The mode that the entry was entered with; `None`: it is not one that was put here.
    pub(super) fn mode(&self, entry: &EntryRef) -> Option<Mode> {
        self.state().by_entry.get(&entry.id).map(|slot| slot.mode)
    }

    /// When the entry was first to be put, in milliseconds of the wall clock.
    pub(super) fn since_ms(&self, entry: &EntryRef) -> u64 {
        self.state()
            .by_entry
            .get(&entry.id)
            .map_or_else(|| unix_micros() / 1000, |slot| slot.since_ms)
    }

    /// The revision of the entry's last update, as far as is known.
    pub(super) fn updated(&self, entry: &EntryRef) -> Option<i64> {
        self.state().by_entry.get(&entry.id)?.updated
    }

    pub(super) fn note_update(&self, entry: &EntryRef, revision: i64) {
        if let Some(slot) = self.state().by_entry.get_mut(&entry.id) {
            slot.updated = Some(revision);
        }
    }

    /// A call that puts the entry is being sent.
    pub(super) fn count(&self, entry: &EntryRef) {
        if let Some(slot) = self.state().by_entry.get_mut(&entry.id) {
            slot.puts += 1;
        }
    }

    /// The session of an entry which a call may still put that was given up: one without an answer, which would
    /// have told its number, or one that was repeated. `None`: there is no such call.
    pub(super) fn in_doubt(&self, entry: &EntryRef, seq: Option<u64>) -> Option<SessionId> {
        let state = self.state();
        let slot = state.by_entry.get(&entry.id)?;
        (seq.is_none() || slot.puts > 1).then_some(slot.session)
    }

    /// The entry is known to be gone: its key may be used again.
    pub(super) fn free(&self, entry: &EntryRef) {
        let mut state = self.state();
        let Some(slot) = state.by_entry.remove(&entry.id) else { return };
        let queue = (slot.session, entry.queue.clone());
        let Some(taken) = state.taken.get_mut(&queue) else { return };
        if let Some(taken) = taken.get_mut(slot.number) {
            *taken = false;
        }
        if taken.iter().all(|taken| !taken) {
            state.taken.remove(&queue);
        }
    }

    /// The session is over, and its keys with it.
    pub(super) fn forget(&self, session: SessionId) {
        let mut state = self.state();
        state.by_entry.retain(|_, slot| slot.session != session);
        state.taken.retain(|(owner, _), _| *owner != session);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Slot {
    fn name(self) -> String {
        let prefix = if self.mode == Mode::Shared { SHARED } else { "" };
        match self.number {
            0 => format!("{prefix}{}", self.session),
            number => format!("{prefix}{}-{number}", self.session),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(session: SessionId) -> NewEntry {
        let queue = QueueKey::new("lock", "a", 10).expect("a valid name");
        let place = EntryRef { queue, id: EntryId::random(session) };
        NewEntry { place, session, member: "m".into(), mode: Mode::Exclusive, data: "".into() }
    }

    #[test]
    fn keys_are_used_again_once_they_are_free() {
        let (slots, session) = (Slots::default(), SessionId::random());
        let (first, second, third) = (entry(session), entry(session), entry(session));
        assert_eq!(slots.take(&first), session.to_string());
        assert_eq!(slots.take(&second), format!("{session}-1"));
        assert_eq!(slots.take(&first), session.to_string(), "a repeated call");
        slots.count(&first.place);
        assert_eq!(slots.in_doubt(&first.place, Some(7)), None, "put and answered");
        assert_eq!(slots.in_doubt(&first.place, None), Some(session), "put, and not answered");
        slots.count(&first.place);
        assert_eq!(slots.in_doubt(&first.place, Some(7)), Some(session), "put twice");
        assert_eq!(slots.in_doubt(&second.place, Some(8)), None);
        slots.free(&first.place);
        slots.free(&first.place);
        assert_eq!(slots.take(&third), session.to_string());
        assert_eq!(slots.name(&second.place), format!("{session}-1"));
    }

    #[test]
    fn the_key_of_a_shared_entry_says_so_until_it_is_gone() {
        let (slots, session) = (Slots::default(), SessionId::random());
        let shared = NewEntry { mode: Mode::Shared, ..entry(session) };
        assert_eq!(slots.take(&shared), format!("r{session}"));
        assert_eq!(slots.take(&entry(session)), format!("{session}-1"));
        let updated = NewEntry { mode: Mode::Exclusive, ..shared };
        assert_eq!(slots.take(&updated), format!("r{session}"));
        assert_eq!(slots.name(&updated.place), format!("r{session}"));
    }

    #[test]
    fn a_listed_entry_of_another_has_the_key_it_was_listed_with() {
        let listed =
            EntryRef { id: EntryId::from_store("6c2f"), ..entry(SessionId::random()).place };
        assert_eq!(Slots::default().name(&listed), "6c2f");
        assert_eq!(Slots::default().in_doubt(&listed, None), None);
    }

    #[test]
    fn nothing_is_kept_of_what_is_over() {
        let (slots, session) = (Slots::default(), SessionId::random());
        let (first, second) = (entry(session), entry(session));
        slots.take(&first);
        slots.take(&second);
        slots.free(&first.place);
        slots.forget(session);
        let state = slots.state();
        assert!(state.by_entry.is_empty() && state.taken.is_empty());
    }
}
