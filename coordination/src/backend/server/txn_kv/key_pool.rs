//! The key of each entry of ours, on stores where deleted keys cost something.
//!
//! A new key for every acquire would be simplest, and slow: etcd keeps every key that ever was in its index until the next
//! compaction, Consul keeps a tombstone of each for fifteen minutes, and a read of the queue's prefix walks over all of them. So
//! the entries that a session enters in a queue use a few keys again and again, numbered from 0: a key belongs to one entry until
//! it is known that the key is deleted.
//!
//! However late a call about an entry arrives, it must not change the next entry with the same key. So calls have conditions. A put
//! demands that the session's write fence holds; an update, that the key has the version of the update before; the delete of
//! another client's entry, that the key was created with that entry's number. The delete of our own entry has no condition, because
//! that is fastest: if such a delete was not answered, its key is not used again in this session.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use crate::backend::server::bounded_cache::BoundedCache;
use crate::backend::server::own_entries::{Own, OwnEntries};
use crate::backend::{EntryRef, Mode, NewEntry, SessionId};
use crate::key::QueueKey;

/// Makes the last part of an entry's key from its session, its mode and the key's number.
pub(crate) type Naming = fn(SessionId, Mode, usize) -> String;

/// The number of queues for which the last key's number is remembered.
const REMEMBERED: usize = 16 * 1024;

/// Gives keys to our entries, and knows which keys are taken.
pub(crate) struct KeyPool {
    naming: Naming,
    /// At least this many keys are used in rotation. More than one for stores whose notifications may not tell an entry that
    /// stayed from one that was deleted and whose key was put again.
    in_turn: usize,
    own_entries: OwnEntries<Slot>,
    numbers: Mutex<Numbers>,
    /// The number of the key that was taken last in each queue. The next entry gets another key: a client that waits for the end
    /// of the last entry may not have been notified yet, and would take the new entry under the same key for the last one.
    last: BoundedCache<QueueKey, usize>,
}

#[derive(Default)]
struct Numbers {
    /// For each session and queue, which numbers are taken.
    taken: HashMap<(SessionId, QueueKey), Vec<bool>>,
    /// How many numbers were taken. In a queue whose last number is not remembered, the search for a free number begins at this
    /// count.
    turn: usize,
}

/// The key of an entry of ours, and the calls about it.
#[derive(Clone)]
pub(crate) struct Slot {
    /// The last part of the entry's key.
    pub(crate) name: Arc<str>,
    /// The version of the entry's last update that was confirmed.
    pub(crate) updated: Option<u64>,
    number: usize,
    /// The version of the write fence under which its last put was sent.
    write_fence: u64,
    /// How many puts under this write fence were not answered. Puts under earlier write fences can have no effect any more.
    pending_creates: u32,
    /// How many deletes without a condition were sent and may have been carried out, or may still be.
    deletes: u32,
}

impl KeyPool {
    pub(crate) fn new(naming: Naming, in_turn: usize) -> Self {
        let (own_entries, numbers) = (OwnEntries::default(), Mutex::default());
        Self { naming, in_turn, own_entries, numbers, last: BoundedCache::of_at_most(REMEMBERED) }
    }

    /// Notes, before it happens, that a call which puts the entry is sent under the write fence of this version. All calls of one
    /// entry have the same key, until the entry is [freed](Self::free).
    pub(crate) fn sent(&self, entry: &NewEntry, write_fence: u64) -> Own<Slot> {
        let (own, _) = self.own_entries.begin(entry, || {
            let number = self.take_number(entry);
            let name = (self.naming)(entry.session, entry.mode, number).into();
            Slot { name, updated: None, number, write_fence, pending_creates: 0, deletes: 0 }
        });
        // The store refuses all calls that were sent under an older write fence, so only calls under the newest one have to be
        // counted. The caller has read the fence's version before it calls this. If the fence was ended since, the call is
        // counted under the old version, and the store refuses it.
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
        // If the last number is not remembered any more, it was taken long ago, and any number will do.
        let turn = self.last.get(queue, |last| last.wrapping_add(1)).unwrap_or(numbers.turn);
        let number = free_number(taken, turn, self.in_turn);
        taken.resize(taken.len().max(number + 1), false);
        if let Some(free) = taken.get_mut(number) {
            *free = true;
        }
        numbers.turn = numbers.turn.wrapping_add(1);
        // With one key in rotation the lowest free number is used, and the last number is not needed.
        if self.in_turn > 1 {
            self.last.note(queue.clone(), number);
        }
        number
    }

    /// Notes that a call that puts the entry was answered: it will not take effect later.
    pub(crate) fn answered(&self, entry: &EntryRef) {
        self.change(entry, |own| {
            own.known.pending_creates = own.known.pending_creates.saturating_sub(1)
        });
    }

    /// If a call that puts this entry was sent and not answered: the entry's session, and the version of the write fence under
    /// which that call was sent. The call may take effect as long as the fence has this version. `None`: there is no such call.
    pub(crate) fn in_doubt(&self, entry: &EntryRef) -> Option<(SessionId, u64)> {
        let own = self.own(entry).filter(|own| own.known.pending_creates > 0)?;
        Some((own.session, own.known.write_fence))
    }

    pub(crate) fn own(&self, entry: &EntryRef) -> Option<Own<Slot>> {
        self.own_entries.own(&entry.id)
    }

    /// The last part of an entry's key. For an entry of ours, its slot has it; for another client's, it is the id under which the
    /// entry was listed.
    pub(crate) fn name(&self, entry: &EntryRef) -> Arc<str> {
        self.own(entry).map_or_else(|| entry.id.as_str().into(), |own| own.known.name)
    }

    /// Notes that the entry was updated in this version.
    pub(crate) fn updated(&self, entry: &EntryRef, number: u64, mode: Mode) {
        self.change(entry, |own| (own.known.updated, own.mode) = (Some(number), mode));
    }

    /// Notes that a delete without a condition is sent. False: the entry is not ours.
    pub(crate) fn delete(&self, entry: &EntryRef) -> bool {
        self.change(entry, |own| own.known.deletes += 1).is_some()
    }

    /// Notes that this delete has no effect, now or later: it was not sent, or was refused.
    pub(crate) fn not_deleted(&self, entry: &EntryRef) {
        self.change(entry, |own| own.known.deletes = own.known.deletes.saturating_sub(1));
    }

    /// Forgets an entry that is known to be gone. Its key may be used again, unless a delete may still be on its way.
    pub(crate) fn free(&self, entry: &EntryRef) {
        // If one delete was counted, its answer said that the entry is gone. If there were two, the earlier one was not answered.
        // It may arrive after the next entry was put under the same key, and delete that entry: so the number stays taken until
        // the session ends. The entry is removed before its number is given back: otherwise, for a moment, two entries would have
        // the same number.
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

    /// Forgets a session that is over: its keys are deleted with it.
    pub(crate) fn forget(&self, session: SessionId) {
        self.own_entries.forget(session);
        self.numbers().taken.retain(|(owner, _), _| *owner != session);
    }

    /// How many entries, and queues of sessions, are remembered.
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

/// A free number: the lowest one if `in_turn` is less than two, and otherwise the next free one in rotation. The rotation has
/// `in_turn` numbers, or more than twice as many as are taken, whichever is larger: so a number that was just given back is not
/// taken again immediately.
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
        // The first delete was given up.
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
