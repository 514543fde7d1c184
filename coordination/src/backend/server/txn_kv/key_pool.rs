//! Which key each of our entries gets, on stores where deleted keys have a cost.
//!
//! A new key for every entry would be simplest, but slow. etcd keeps every deleted key in its index until the next compaction, and
//! Consul keeps a tombstone of every deleted key for fifteen minutes. A read of all keys of a queue walks over all of these. So the
//! entries that a session enters in a queue use a few keys again and again. These keys are numbered from 0. A key belongs to one
//! entry until it is known that the key is deleted.
//!
//! However late a call about an entry arrives, it must not change the next entry with the same key. So calls have conditions. A put
//! has the condition that the session's write fence holds. An update has the condition that the key still has the version from the
//! entry's last update, or, if there was no update, from the entry's put. The delete of another client's entry has the condition
//! that the version in which the key was created is that entry's number. The delete of our own entry has no condition, because that
//! is fastest. If such a delete was not answered, the key is not used again in this session.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use crate::backend::server::bounded_cache::BoundedCache;
use crate::backend::server::own_entries::{Own, OwnEntries};
use crate::backend::{EntryRef, Mode, NewEntry, SessionId};
use crate::key::QueueKey;

/// Makes the last part of an entry's key from the entry's session, its mode and the number of the key.
pub(crate) type Naming = fn(SessionId, Mode, usize) -> String;

/// For how many queues the number of the key that was given last is remembered.
const REMEMBERED: usize = 16 * 1024;

/// Gives a key to each of our entries, and knows which keys are in use.
pub(crate) struct KeyPool {
    naming: Naming,
    /// At least this many keys are used in rotation. On some stores, a notification only says which keys exist. On such a store,
    /// this has to be more than one: if an entry left, and the next entry got the same key at once, waiters would not notice that
    /// the first entry has left.
    in_turn: usize,
    own_entries: OwnEntries<Slot>,
    numbers: Mutex<Numbers>,
    /// For each queue, the number of the key that was given last. The next entry gets another key. Otherwise a client that waits
    /// for the end of an entry, and has not been notified yet, would take a new entry with the same key for the entry that it waits
    /// for.
    last: BoundedCache<QueueKey, usize>,
}

#[derive(Default)]
struct Numbers {
    /// For each session and queue, whether the key with this number (the index) is in use.
    taken: HashMap<(SessionId, QueueKey), Vec<bool>>,
    /// How many keys were given in all. In a queue whose last key is not remembered, the search for a free number begins at this
    /// count.
    turn: usize,
}

/// The key of an entry of ours, and what is known of the calls that put, update or delete the key.
#[derive(Clone)]
pub(crate) struct Slot {
    /// The last part of the entry's key.
    pub(crate) name: Arc<str>,
    /// The version that the last update of the entry gave to the key, if its answer has come; `None`: no update is known.
    pub(crate) updated: Option<u64>,
    /// The number of the key, from which the name was made.
    number: usize,
    /// The version of the write fence under which the entry's last put was sent.
    write_fence: u64,
    /// How many puts that were sent under this write fence are not answered. The store refuses puts that were sent under earlier
    /// write fences, so they are not counted.
    pending_creates: u32,
    /// How many deletes without a condition were sent. Deletes that are known to have no effect, now or later, are not counted.
    deletes: u32,
}

impl KeyPool {
    pub(crate) fn new(naming: Naming, in_turn: usize) -> Self {
        let (own_entries, numbers) = (OwnEntries::default(), Mutex::default());
        Self { naming, in_turn, own_entries, numbers, last: BoundedCache::of_at_most(REMEMBERED) }
    }

    /// Called before a call that puts the entry is sent, under the write fence of this version. Returns the entry with its key. The
    /// entry gets a key at the first call of this function, and keeps this key until it is [freed](Self::free).
    pub(crate) fn sent(&self, entry: &NewEntry, write_fence: u64) -> Own<Slot> {
        let (own, _) = self.own_entries.begin(entry, || {
            let number = self.take_number(entry);
            let name = (self.naming)(entry.session, entry.mode, number).into();
            Slot { name, updated: None, number, write_fence, pending_creates: 0, deletes: 0 }
        });
        // The store refuses all calls that were sent under an older write fence, so only the calls under the newest fence have to
        // be counted. The caller has read the fence's version before it calls this function. If the fence was ended since, the call
        // still has the old version, and the store refuses the call.
        self.change(&entry.entry_ref, |own| {
            let known = &mut own.known;
            if known.write_fence < write_fence {
                (known.write_fence, known.pending_creates) = (write_fence, 0);
            }
            known.pending_creates += 1;
        });
        own
    }

    fn take_number(&self, entry: &NewEntry) -> usize {
        let mut guard = self.numbers();
        let numbers = &mut *guard;
        let queue = &entry.entry_ref.queue;
        let taken = numbers.taken.entry((entry.session, queue.clone())).or_default();
        // If the last number of this queue is not remembered any more, that key was given long ago, so any free number may be used.
        let turn = self.last.get(queue, |last| last.wrapping_add(1)).unwrap_or(numbers.turn);
        let number = free_number(taken, turn, self.in_turn);
        taken.resize(taken.len().max(number + 1), false);
        if let Some(free) = taken.get_mut(number) {
            *free = true;
        }
        numbers.turn = numbers.turn.wrapping_add(1);
        // If `in_turn` is one, the lowest free number is used, and the last number is not needed.
        if self.in_turn > 1 {
            self.last.note(queue.clone(), number);
        }
        number
    }

    /// Notes that a call that puts the entry was answered, so that this call cannot take effect later.
    pub(crate) fn answered(&self, entry: &EntryRef) {
        self.change(entry, |own| {
            own.known.pending_creates = own.known.pending_creates.saturating_sub(1)
        });
    }

    /// If a call that puts this entry was sent and not answered, returns the entry's session, and the version of the write fence
    /// under which that call was sent. The call may take effect as long as the session's write fence has this version. `None`:
    /// there is no such call.
    pub(crate) fn in_doubt(&self, entry: &EntryRef) -> Option<(SessionId, u64)> {
        let own = self.own(entry).filter(|own| own.known.pending_creates > 0)?;
        Some((own.session, own.known.write_fence))
    }

    pub(crate) fn own(&self, entry: &EntryRef) -> Option<Own<Slot>> {
        self.own_entries.own(&entry.id)
    }

    /// The last part of an entry's key. For an entry of ours, the entry's slot has it. For another client's entry, it is the id
    /// that the entry has in a listing.
    pub(crate) fn name(&self, entry: &EntryRef) -> Arc<str> {
        self.own(entry).map_or_else(|| entry.id.as_str().into(), |own| own.known.name)
    }

    /// Notes that the entry was updated. `number`: the version that the key has now. `mode`: the entry's mode now.
    pub(crate) fn updated(&self, entry: &EntryRef, number: u64, mode: Mode) {
        self.change(entry, |own| (own.known.updated, own.mode) = (Some(number), mode));
    }

    /// Notes that a delete of the entry's key is sent now, without a condition. False: the entry is not ours, and such a delete
    /// must not be sent.
    pub(crate) fn delete(&self, entry: &EntryRef) -> bool {
        self.change(entry, |own| own.known.deletes += 1).is_some()
    }

    /// Notes that a delete that was counted has no effect, now or later: it was not sent, or it was refused.
    pub(crate) fn not_deleted(&self, entry: &EntryRef) {
        self.change(entry, |own| own.known.deletes = own.known.deletes.saturating_sub(1));
    }

    /// Forgets an entry that is known to be gone. Another entry may get its key, unless a delete of the key may still arrive.
    pub(crate) fn free(&self, entry: &EntryRef) {
        // If one delete was counted, it was answered, and the answer said that the entry is gone. If two deletes were counted, the
        // earlier one may not have been answered. It may arrive after the next entry was put under the same key, and delete that
        // entry. So if two deletes were counted, the number stays in use until the session ends. The entry is removed here before
        // its number is given back. Otherwise two entries would have the same number for a moment.
        let own = self.own_entries.remove(&entry.id).filter(|own| own.known.deletes < 2);
        let Some(own) = own else { return };
        let mut numbers = self.numbers();
        let queue = (own.session, entry.queue.clone());
        let Some(taken) = numbers.taken.get_mut(&queue) else { return };
        if let Some(taken) = taken.get_mut(own.known.number) {
            *taken = false;
        }
        if taken.iter().all(|taken| !taken) {
            numbers.taken.remove(&queue);
        }
    }

    /// Forgets a session that is over. The store deletes its keys, so none of them has to be remembered.
    pub(crate) fn forget(&self, session: SessionId) {
        self.own_entries.forget(session);
        self.numbers().taken.retain(|(owner, _), _| *owner != session);
    }

    /// How many entries, and how many pairs of a session and a queue, are remembered.
    #[cfg(all(coordination_internals, feature = "memory"))]
    pub(crate) fn kept(&self) -> usize {
        self.own_entries.count() + self.numbers().taken.len()
    }

    fn change<R>(&self, entry: &EntryRef, change: impl FnOnce(&mut Own<Slot>) -> R) -> Option<R> {
        self.own_entries.change(&entry.id, change)
    }

    fn numbers(&self) -> MutexGuard<'_, Numbers> {
        self.numbers.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// Finds a number that is not in use. If `in_turn` is less than two, this is the lowest one. Otherwise the numbers are used in
/// rotation, and this is the first free one from `turn` on. The rotation has `in_turn` numbers, or more than twice as many as are
/// in use, whichever is larger. So a number that was just given back is not used again immediately.
fn free_number(taken: &[bool], turn: usize, in_turn: usize) -> usize {
    let is_free = |number: &usize| !taken.get(*number).copied().unwrap_or_default();
    if in_turn < 2 {
        return (0..taken.len()).find(is_free).unwrap_or(taken.len());
    }
    let among = in_turn.max(2 * taken.iter().filter(|taken| **taken).count() + 2);
    let first = turn % among;
    (first..among).chain(0..first).find(is_free).unwrap_or(taken.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::{EntryId, Room};

    fn key_pool() -> KeyPool {
        KeyPool::new(naming, 1)
    }

    fn naming(session: SessionId, mode: Mode, number: usize) -> String {
        let prefix = if mode == Mode::Shared { "r" } else { "" };
        format!("{prefix}{session}-{number}")
    }

    fn entry(session: SessionId) -> NewEntry {
        let queue = QueueKey::new("lock", "a", 10).expect("a valid name");
        let entry_ref = EntryRef { queue, id: EntryId::random(session) };
        NewEntry {
            entry_ref,
            session,
            member: "m".into(),
            label: None,
            mode: Mode::Exclusive,
            data: "".into(),
            room: Room::default(),
        }
    }

    fn name(key_pool: &KeyPool, entry: &NewEntry) -> String {
        key_pool.sent(entry, 1).known.name.to_string()
    }

    #[test]
    fn keys_are_used_again_once_they_are_free() {
        let (key_pool, session) = (key_pool(), SessionId::random());
        let (first, second, third) = (entry(session), entry(session), entry(session));
        assert_eq!(name(&key_pool, &first), format!("{session}-0"));
        assert_eq!(name(&key_pool, &second), format!("{session}-1"));
        assert_eq!(name(&key_pool, &first), format!("{session}-0"), "a repeated call");
        assert_eq!(key_pool.in_doubt(&first.entry_ref), Some((session, 1)));
        key_pool.answered(&first.entry_ref);
        assert_eq!(
            key_pool.in_doubt(&first.entry_ref),
            Some((session, 1)),
            "one of two was answered"
        );
        key_pool.sent(&first, 2);
        assert_eq!(key_pool.in_doubt(&first.entry_ref), Some((session, 2)));
        key_pool.answered(&first.entry_ref);
        assert_eq!(key_pool.in_doubt(&first.entry_ref), None, "what was sent before is over");
        assert!(key_pool.delete(&first.entry_ref));
        key_pool.free(&first.entry_ref);
        key_pool.free(&first.entry_ref);
        assert_eq!(name(&key_pool, &third), format!("{session}-0"));
        assert_eq!(&*key_pool.name(&second.entry_ref), format!("{session}-1"));
    }

    #[test]
    fn a_key_that_may_still_be_deleted_is_not_used_again() {
        let (key_pool, session) = (key_pool(), SessionId::random());
        let (first, second) = (entry(session), entry(session));
        key_pool.sent(&first, 1);
        // The first delete was given up, so a second one was sent.
        assert!(key_pool.delete(&first.entry_ref) && key_pool.delete(&first.entry_ref));
        key_pool.free(&first.entry_ref);
        assert_eq!(name(&key_pool, &second), format!("{session}-1"));
        assert!(!key_pool.delete(&first.entry_ref), "it is none of ours any longer");
    }

    #[test]
    fn a_key_whose_delete_was_not_sent_is_used_again() {
        let (key_pool, session) = (key_pool(), SessionId::random());
        let (first, second) = (entry(session), entry(session));
        key_pool.sent(&first, 1);
        assert!(key_pool.delete(&first.entry_ref));
        key_pool.not_deleted(&first.entry_ref);
        assert!(key_pool.delete(&first.entry_ref));
        key_pool.free(&first.entry_ref);
        assert_eq!(name(&key_pool, &second), format!("{session}-0"));
    }

    #[test]
    fn keys_are_used_in_turn() {
        let (key_pool, session) =
            (KeyPool::new(|_, _, number| number.to_string(), 3), SessionId::random());
        let mut freed = Vec::new();
        for _ in 0..4 {
            let entry = entry(session);
            freed.push(name(&key_pool, &entry));
            key_pool.free(&entry.entry_ref);
        }
        assert_eq!(freed, ["0", "1", "2", "0"]);
        let mut used: Vec<_> = (0..9).map(|_| name(&key_pool, &entry(session))).collect();
        let again = entry(session);
        used.push(name(&key_pool, &again));
        key_pool.free(&again.entry_ref);
        let next = name(&key_pool, &entry(session));
        assert_ne!(used.last(), Some(&next), "not at once, even if many are taken");
        used.sort_unstable();
        used.dedup();
        assert_eq!(used.len(), 10);
    }

    #[test]
    fn whoever_goes_round_several_queues_has_another_key_in_each_the_next_time() {
        let (key_pool, session) =
            (KeyPool::new(|_, _, number| number.to_string(), 16), SessionId::random());
        let rounds = (0..3).map(|_| {
            let of = |queue: usize| {
                let queue = QueueKey::new("lock", &queue.to_string(), 10).expect("a valid name");
                let entry_ref = EntryRef { queue, id: EntryId::random(session) };
                let entry = NewEntry { entry_ref, ..entry(session) };
                let used = name(&key_pool, &entry);
                key_pool.free(&entry.entry_ref);
                used
            };
            (0..16).map(of).collect::<Vec<_>>()
        });
        let rounds: Vec<_> = rounds.collect();
        for queue in 0..16 {
            let used = rounds.iter().map(|round| &round[queue]).collect::<Vec<_>>();
            assert!(used[0] != used[1] && used[1] != used[2], "{queue}: {used:?}");
        }
    }

    #[test]
    fn the_key_of_a_shared_entry_says_so_until_it_is_gone() {
        let (key_pool, session) = (key_pool(), SessionId::random());
        let shared = NewEntry { mode: Mode::Shared, ..entry(session) };
        assert_eq!(name(&key_pool, &shared), format!("r{session}-0"));
        assert_eq!(name(&key_pool, &entry(session)), format!("{session}-1"));
        key_pool.updated(&shared.entry_ref, 7, Mode::Exclusive);
        assert_eq!(&*key_pool.name(&shared.entry_ref), format!("r{session}-0"));
        let own = key_pool.own(&shared.entry_ref).expect("it is ours");
        assert_eq!((own.known.updated, own.mode), (Some(7), Mode::Exclusive));
    }

    #[test]
    fn a_listed_entry_of_another_has_the_key_it_was_listed_with() {
        let listed =
            EntryRef { id: EntryId::from_store("6c2f"), ..entry(SessionId::random()).entry_ref };
        assert_eq!(&*key_pool().name(&listed), "6c2f");
        assert!(key_pool().in_doubt(&listed).is_none() && !key_pool().delete(&listed));
    }

    #[test]
    fn nothing_is_kept_of_what_is_over() {
        let (key_pool, session) = (key_pool(), SessionId::random());
        let (first, second) = (entry(session), entry(session));
        key_pool.sent(&first, 1);
        key_pool.sent(&second, 1);
        key_pool.free(&first.entry_ref);
        key_pool.forget(session);
        assert!(key_pool.own_entries.of(session).is_empty() && key_pool.numbers().taken.is_empty());
    }
}
