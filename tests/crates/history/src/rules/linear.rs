//! Searches for an order of operations that explains all results. It uses the algorithm of Wing and Gong, with Lowe's
//! cache of visited states.
//!
//! Each operation took effect at one moment between its call and its return. The search applies operations to a model
//! in the order of their calls. If the search comes to the return of an operation that it has not applied, and there is
//! no other operation that it can apply before this return, its choices so far are wrong, and it undoes the last one.
//! The search remembers each set of applied operations together with the resulting state of the model. It never applies
//! an operation that would lead to a set and state that it has seen before.
//!
//! An operation without a result may take effect at any time after its call, or never. Most of these operations are not
//! needed to explain the results. So the search applies one only if it can apply no other operation.

use std::collections::{HashMap, HashSet};

use super::models::Model;
use crate::timeline::Small;

/// The result of a search.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Linearizable,
    /// No order explains the result of the operation with this index together with all results before it.
    Not(usize),
    /// The search was given up, because it visited too many states.
    Undecided,
}

/// The index in `entries` of a dummy entry, which stands before the first entry of the linked list and after its last.
const EDGE: usize = 0;

/// When a search has visited too many states, it is given up. The limit is the first number times the number of
/// operations, plus the second number.
const STATES: (usize, usize) = (4, 500_000);

#[derive(Clone, Copy)]
enum Entry {
    Edge,
    Call(usize),
    Return(usize),
}

#[derive(Clone, Copy)]
enum Cursor {
    Entry(usize),
    /// An operation without a result: its index in `open`.
    Open(usize),
}

struct Search<'a, M> {
    operations: &'a [Small],
    entries: Vec<Entry>,
    /// For the entry of a call, the index of the entry of the same operation's return.
    partner: Vec<usize>,
    next: Vec<usize>,
    previous: Vec<usize>,
    /// The operations without a result, in the order of their calls, each with whether the search has applied it at
    /// present.
    open: Vec<(usize, bool)>,
    /// For each element of `open`, the index of the preceding element with an equal operation. Of several equal
    /// operations that are not applied, the search tries only the first, because the others would lead to the same
    /// states.
    twin: Vec<Option<usize>>,
    state: M,
    /// The set of the operations that are applied at present, as the XOR of their keys.
    taken: u128,
    seen: HashSet<(u128, M)>,
    undo: Vec<(Cursor, M)>,
    left: usize,
}

/// Searches for an order of the operations that explains all their results, beginning with the model's default state.
pub(super) fn search<M: Model>(operations: &[Small]) -> Verdict {
    let mut search = Search::<M>::new(operations);
    let mut cursor = Cursor::Entry(search.next[EDGE]);
    let mut furthest = EDGE;
    let limit = operations.len().saturating_mul(STATES.0).saturating_add(STATES.1);
    while search.seen.len() < limit {
        if search.left == 0 {
            return Verdict::Linearizable;
        }
        if let Cursor::Entry(entry) = cursor
            && matches!(search.entries[entry], Entry::Return(_))
        {
            furthest = furthest.max(entry);
        }
        cursor = match search.forward(cursor) {
            Some(cursor) => cursor,
            None => match search.back() {
                Some(cursor) => cursor,
                None => return Verdict::Not(search.place(furthest)),
            },
        };
    }
    Verdict::Undecided
}

impl<'a, M: Model> Search<'a, M> {
    fn new(operations: &'a [Small]) -> Self {
        let (mut moments, mut open) = (Vec::new(), Vec::new());
        for (place, operation) in operations.iter().enumerate() {
            if operation.returned == crate::record::NEVER {
                open.push((place, false));
            } else {
                // If a call and a return have the same time, the call comes first, because the two operations may have
                // overlapped.
                moments.push((operation.call, 0, place));
                moments.push((operation.returned, 1, place));
            }
        }
        moments.sort_unstable();
        open.sort_by_key(|(place, _)| operations[*place].call);
        let mut entries = vec![Entry::Edge];
        entries.extend(moments.iter().map(|(_, which, place)| match which {
            0 => Entry::Call(*place),
            _ => Entry::Return(*place),
        }));
        let mut partner = vec![EDGE; entries.len()];
        let mut calls = vec![EDGE; operations.len()];
        for (entry, kind) in entries.iter().enumerate() {
            match kind {
                Entry::Call(place) => calls[*place] = entry,
                Entry::Return(place) => partner[calls[*place]] = entry,
                Entry::Edge => {}
            }
        }
        let count = entries.len();
        let mut last = HashMap::new();
        let twin = open.iter().enumerate();
        let twin = twin.map(|(which, (place, _))| last.insert(operations[*place].what, which));
        let twin = twin.collect();
        Self {
            operations,
            partner,
            next: (0..count).map(|entry| (entry + 1) % count).collect(),
            previous: (0..count).map(|entry| (entry + count - 1) % count).collect(),
            left: (count - 1) / 2,
            entries,
            open,
            twin,
            state: M::default(),
            taken: 0,
            seen: HashSet::new(),
            undo: Vec::new(),
        }
    }

    /// Tries to apply the operation at the cursor. Returns where the search goes on, or `None` if no operation is left
    /// to try there.
    fn forward(&mut self, cursor: Cursor) -> Option<Cursor> {
        match cursor {
            Cursor::Entry(entry) => {
                let Entry::Call(place) = self.entries[entry] else { return Some(Cursor::Open(0)) };
                if !self.take(place, cursor) {
                    return Some(Cursor::Entry(self.next[entry]));
                }
                self.unlink(entry);
                self.unlink(self.partner[entry]);
                self.left -= 1;
                Some(Cursor::Entry(self.next[EDGE]))
            }
            Cursor::Open(which) => {
                let (place, is_taken) = *self.open.get(which)?;
                if self.operations[place].call > self.blocked_at() {
                    return None;
                }
                let twin_waits = self.twin[which].is_some_and(|twin| !self.open[twin].1);
                if is_taken || twin_waits || !self.take(place, cursor) {
                    return Some(Cursor::Open(which + 1));
                }
                self.open[which].1 = true;
                Some(Cursor::Entry(self.next[EDGE]))
            }
        }
    }

    /// Undoes the operation that was applied last. The search goes on behind that operation: returns the cursor for
    /// this, or `None` if no operation is applied.
    fn back(&mut self) -> Option<Cursor> {
        let (cursor, state) = self.undo.pop()?;
        self.state = state;
        match cursor {
            Cursor::Entry(entry) => {
                if let Entry::Call(place) = self.entries[entry] {
                    self.taken ^= key(place);
                }
                self.relink(self.partner[entry]);
                self.relink(entry);
                self.left += 1;
                Some(Cursor::Entry(self.next[entry]))
            }
            Cursor::Open(which) => {
                self.taken ^= key(self.open[which].0);
                self.open[which].1 = false;
                Some(Cursor::Open(which + 1))
            }
        }
    }

    /// Applies the operation to the state. Returns false, and changes nothing, if the operation cannot have its result
    /// in this state, or if the search has seen the resulting set and state before.
    fn take(&mut self, place: usize, cursor: Cursor) -> bool {
        let Small { what, answer, .. } = self.operations[place];
        let Some(state) = self.state.step(what, answer) else { return false };
        let taken = self.taken ^ key(place);
        if !self.seen.insert((taken, state)) {
            return false;
        }
        self.undo.push((cursor, self.state));
        (self.state, self.taken) = (state, taken);
        true
    }

    /// The earliest return of all operations that are not applied. The operation with this return has to be applied
    /// before any operation that was called after this return. 0 if all operations with a result are applied.
    fn blocked_at(&self) -> u64 {
        let mut entry = self.next[EDGE];
        while let Entry::Call(_) = self.entries[entry] {
            entry = self.next[entry];
        }
        match self.entries[entry] {
            Entry::Return(place) => self.operations[place].returned,
            _ => 0,
        }
    }

    fn unlink(&mut self, entry: usize) {
        let (previous, next) = (self.previous[entry], self.next[entry]);
        self.next[previous] = next;
        self.previous[next] = previous;
    }

    /// Reverts [`unlink`](Self::unlink). The entries have to be linked again in the reverse order of their unlinking.
    fn relink(&mut self, entry: usize) {
        let (previous, next) = (self.previous[entry], self.next[entry]);
        self.next[previous] = entry;
        self.previous[next] = entry;
    }

    /// The index of the operation to which an entry belongs.
    fn place(&self, entry: usize) -> usize {
        match self.entries[entry] {
            Entry::Call(place) | Entry::Return(place) => place,
            Entry::Edge => 0,
        }
    }
}

/// A key for an operation that looks like a random number of 128 bits. So two different sets of operations practically
/// never have the same XOR of keys.
fn key(place: usize) -> u128 {
    let half = |seed: u64| {
        let mut mixed = (place as u64).wrapping_add(seed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        u128::from(mixed ^ (mixed >> 31))
    };
    half(0x1234_5678_9abc_def1) << 64 | half(0x0fed_cba9_8765_4321)
}
