//! Models of a value and of a counter: they say which results operations can have if they run one after another.

use std::fmt::Debug;
use std::hash::Hash;

use crate::record::{Answer, Operation};

/// The state of one object, without concurrent operations.
pub(super) trait Model: Copy + Debug + Default + Eq + Hash {
    /// Returns the state after the operation, or `None` if the operation cannot have this result in this state. Here
    /// [`Answer::Unknown`] means that the operation took effect and its result is unknown.
    fn step(self, what: Operation, answer: Answer) -> Option<Self>;
}

/// A shared value with a version, absent at first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Register {
    value: Option<u32>,
    /// If `exact` is set: the version of the last write. Otherwise that version is unknown, except that it is larger
    /// than this number.
    version: u64,
    exact: bool,
}

impl Default for Register {
    fn default() -> Self {
        Self { value: None, version: 0, exact: true }
    }
}

impl Register {
    /// The state after the value was seen with `version`; `None` if it cannot have had this version, because it has
    /// another one or does not exist.
    fn at(self, version: u64) -> Option<Self> {
        let is_it = if self.exact { version == self.version } else { version > self.version };
        (self.value.is_some() && is_it).then_some(Self { version, exact: true, ..self })
    }

    /// The unchanged state if no value exists, otherwise `None`.
    fn absent(self) -> Option<Self> {
        self.value.is_none().then_some(self)
    }

    /// The state if a comparison with `version` can succeed, otherwise `None`. Version 0 expects that no value exists.
    fn expected(self, version: u64) -> Option<Self> {
        if version == 0 { self.absent() } else { self.at(version) }
    }

    /// The state after a write whose version is unknown.
    fn changed(self, value: u32) -> Self {
        let version = self.version.saturating_add(u64::from(!self.exact));
        Self { value: Some(value), version, exact: false }
    }

    /// The state after a delete. It keeps the version, because some stores use up a version for a delete and others do
    /// not.
    fn deleted(self) -> Self {
        Self { value: None, ..self }
    }

    /// The state after a write with this result; `None` if a write in this state cannot have this result.
    fn written(self, value: u32, answer: Answer) -> Option<Self> {
        let changed = self.changed(value);
        match answer {
            Answer::Written { version: 0 } | Answer::Unknown => Some(changed),
            Answer::Written { version } => changed.at(version),
            _ => None,
        }
    }

    /// The unchanged state if a comparison with `expected` can fail, otherwise `None`.
    fn mismatch(self, expected: u64) -> Option<Self> {
        // If only a lower bound of the version is known, the version may differ from `expected`, so the comparison can
        // fail.
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
