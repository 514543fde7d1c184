//! What a value and a counter do, one operation after the other.

use std::fmt::Debug;
use std::hash::Hash;

use crate::record::{Answer, Operation};

/// The state of one object, without anything at the same time.
pub(super) trait Model: Copy + Debug + Default + Eq + Hash {
    /// The state after the operation; `None`: it would not have answered so. [`Answer::Unknown`]: with its effect.
    fn step(self, what: Operation, answer: Answer) -> Option<Self>;
}

/// A shared value with versions, absent at first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Register {
    value: Option<u32>,
    /// Of the last write, if `exact`; else all that is known is that it was a larger one.
    version: u64,
    exact: bool,
}

impl Default for Register {
    fn default() -> Self {
        Self { value: None, version: 0, exact: true }
    }
}

impl Register {
    /// As it is with its version known to be this; `None`: it has another one, or there is no value.
    fn at(self, version: u64) -> Option<Self> {
        let is_it = if self.exact { version == self.version } else { version > self.version };
        (self.value.is_some() && is_it).then_some(Self { version, exact: true, ..self })
    }

    /// As it is, if there is no value.
    fn absent(self) -> Option<Self> {
        self.value.is_none().then_some(self)
    }

    /// As a compare finds it; 0 expects that there is no value.
    fn expected(self, version: u64) -> Option<Self> {
        if version == 0 { self.absent() } else { self.at(version) }
    }

    /// After a write of a version that is not known.
    fn changed(self, value: u32) -> Self {
        let version = self.version.saturating_add(u64::from(!self.exact));
        Self { value: Some(value), version, exact: false }
    }

    /// After it was deleted, which may have taken a version or not.
    fn deleted(self) -> Self {
        Self { value: None, ..self }
    }

    /// After a write that answered so.
    fn written(self, value: u32, answer: Answer) -> Option<Self> {
        let changed = self.changed(value);
        match answer {
            Answer::Written { version: 0 } | Answer::Unknown => Some(changed),
            Answer::Written { version } => changed.at(version),
            _ => None,
        }
    }

    /// After a compare that found something else.
    fn mismatch(self, expected: u64) -> Option<Self> {
        // A version that is not known may be another one.
        let equal = if expected == 0 {
            self.value.is_none()
        } else {
            self.exact && self.at(expected).is_some()
        };
        (!equal).then_some(self)
    }
}

impl Model for Register {
    fn step(self, what: Operation, answer: Answer) -> Option<Self> {
        match (what, answer) {
            (Operation::Read, Answer::Value { version, value }) => {
                let same = self.value == Some(value);
                let found = if version == 0 { Some(self) } else { self.at(version) };
                found.filter(|_| same)
            }
            (Operation::Read | Operation::Delete, Answer::Absent) => self.absent(),
            (Operation::Set { value }, _) => self.written(value, answer),
            (
                Operation::CompareAndSet { expected, .. }
                | Operation::CompareAndDelete { expected },
                Answer::Mismatch,
            ) => self.mismatch(expected),
            (Operation::CompareAndSet { expected, value }, _) => {
                self.expected(expected)?.written(value, answer)
            }
            (Operation::CompareAndDelete { expected }, Answer::Deleted | Answer::Unknown) => {
                Some(self.at(expected)?.deleted())
            }
            (Operation::Delete, Answer::Deleted | Answer::Unknown) => {
                self.value.map(|_| self.deleted())
            }
            _ => None,
        }
    }
}

/// A counter, zero at first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Counter(i64);

impl Model for Counter {
    fn step(self, what: Operation, answer: Answer) -> Option<Self> {
        let after = match what {
            Operation::Add { by } => Self(self.0.wrapping_add(by)),
            Operation::Count => self,
            _ => return None,
        };
        match answer {
            Answer::Unknown => Some(after),
            Answer::Number(number) if number == after.0 => Some(after),
            _ => None,
        }
    }
}
