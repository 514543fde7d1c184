//! One direction of a proxy: its mode, its counters, and the cut that a test has asked for.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering},
    },
};

use tokio::sync::watch;

use super::{Mode, Unit, frames::Edge, lock};

/// One direction of all connections of a proxy.
#[derive(Debug, Default)]
pub(super) struct Lane {
    pub(super) mode: watch::Sender<Mode>,
    cut: Mutex<Option<Cut>>,
    pub(super) bytes: AtomicU64,
    counts: Mutex<Counts>,
}

#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) requests: u64,
    pub(super) messages: BTreeMap<(u64, u32), u64>,
}

/// A cut that a test has asked for and that has not happened yet.
#[derive(Clone, Copy, Debug)]
struct Cut {
    unit: Unit,
    left: u64,
    /// Whether the last counted unit is forwarded; otherwise the cut is before it.
    inclusive: bool,
    then: Then,
}

/// What the proxy does at a cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Then {
    /// The proxy closes the connection.
    End,
    /// The proxy keeps back everything that follows in this direction, on all connections.
    Stall,
}

impl Lane {
    pub(super) fn arm(&self, unit: Unit, count: u64, inclusive: bool, then: Then) {
        assert!(count > 0, "there is nothing to cut before the first unit");
        *self.cut() = Some(Cut { unit, left: count, inclusive, then });
    }

    pub(super) fn disarm(&self) {
        *self.cut() = None;
    }

    pub(super) fn is_cut_pending(&self) -> bool {
        self.cut().is_some()
    }

    fn cut(&self) -> MutexGuard<'_, Option<Cut>> {
        lock(&self.cut)
    }

    pub(super) fn counts(&self) -> MutexGuard<'_, Counts> {
        lock(&self.counts)
    }

    /// Adds the bytes and frames that arrived on a connection to the counters.
    pub(super) fn count(&self, connection: u64, bytes: usize, edges: &[Edge]) {
        self.bytes.fetch_add(bytes as u64, Ordering::SeqCst);
        let mut counts = self.counts();
        for frame in edges.iter().filter(|edge| !edge.end).map(|edge| edge.frame) {
            if frame.is(Unit::Requests) {
                counts.requests += 1;
            }
            if frame.is(Unit::Messages) {
                *counts.messages.entry((connection, frame.stream)).or_default() += 1;
            }
        }
    }

    /// Looks whether the cut falls into this chunk, which is about to be forwarded. If it does, returns the offset of
    /// the cut in the chunk, and what happens there.
    pub(super) fn cut_offset(&self, length: usize, edges: &[Edge]) -> Option<(usize, Then)> {
        let mut armed = self.cut();
        let cut = armed.as_mut()?;
        let then = cut.then;
        let offset = match cut.unit {
            Unit::Bytes => cut.offset_of_byte(length),
            _ => cut.offset_of_frame(edges),
        }?;
        *armed = None;
        if then == Then::Stall {
            // The mode is changed while `cut` is still locked. So when a test sees that no cut is pending any more, the
            // stall has begun.
            self.mode.send_replace(Mode::Stall);
        }
        Some((offset, then))
    }
}

impl Cut {
    fn offset_of_byte(&mut self, length: usize) -> Option<usize> {
        let length = length as u64;
        if self.left > length {
            self.left -= length;
            return None;
        }
        let offset = if self.inclusive { self.left } else { self.left - 1 };
        usize::try_from(offset).ok()
    }

    fn offset_of_frame(&mut self, edges: &[Edge]) -> Option<usize> {
        let (unit, inclusive) = (self.unit, self.inclusive);
        edges
            .iter()
            .filter(|edge| edge.end == inclusive && edge.frame.is(unit))
            .find(|_| {
                self.left -= 1;
                self.left == 0
            })
            .map(|edge| edge.offset)
    }
}
