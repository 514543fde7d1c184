//! What is recorded: one [`Record`] for each thing that a client did, saw or suffered.

use coordination::ErrorKind;

/// Value of an [`Event`]'s slot field for "no slot".
pub const NO_SLOT: u32 = u32::MAX;

/// Value of an [`Event`]'s time field for "no time".
pub const NEVER: u64 = u64::MAX;

/// One event of one client.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Record {
    /// The time in nanoseconds, as of [`now`](crate::now). [`Event`] says for each event whether the clock is read
    /// before or after the call.
    pub at: u64,
    /// The process or simulated client. A client that is restarted gets a new number.
    pub client: u32,
    /// Joins the events of one acquire; unique for its client. 0: the event belongs to no acquire.
    pub attempt: u64,
    /// Which lock, semaphore or value, by its id in [`Rules::objects`](crate::Rules::objects). 0: none.
    pub object: u32,
    /// What happened.
    pub event: Event,
}

/// What happened. Each event says whether the clock is read before or after the call; the wrong side leads to false
/// alarms.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Event {
    /// An acquire begins; the clock is read before it.
    Call {
        /// Whether the acquire is for shared mode.
        shared: bool,
        /// In nanoseconds. [`NEVER`]: no timeout. 0: a try, which does not wait.
        timeout: u64,
    },
    /// The acquire returned a guard; the clock is read after it.
    Granted {
        /// The guard's fencing token.
        token: u64,
        /// The slot of a semaphore or limiter; [`NO_SLOT`] if the object has none. An acquire of several permits is
        /// recorded as an attempt for each.
        slot: u32,
    },
    /// The acquire returned without a guard; the clock is read after it.
    Refused {
        /// The reason that it returned.
        why: Why,
    },
    /// The caller dropped the acquire's future.
    Cancelled,
    /// `is_held` was called on the guard; the record's time is read after the call.
    Probe {
        /// The time read before the call.
        before: u64,
        /// What `is_held` returned.
        held: bool,
    },
    /// The guard reported that it is lost; the record's time is when the listening task saw it.
    Lost {
        /// The guard's last deadline on this clock; [`NEVER`] if it is not known.
        deadline: u64,
    },
    /// An exclusive guard is downgraded to a shared one; the clock is read before.
    Downgraded,
    /// The guard is released or dropped; the clock is read before.
    ReleaseCall,
    /// The release returned; the clock is read after it.
    ReleaseReturn {
        /// 0: released, and the entry is gone. 1: the guard was lost already. 2: not known.
        outcome: u8,
    },
    /// The fenced resource was asked to apply `value` under `token`. The resource itself writes this record, in the
    /// order in which it decides.
    Write {
        /// The writer's token.
        token: u64,
        /// The value, which no other write to this resource has.
        value: u64,
        /// Whether the resource applied the value.
        accepted: bool,
    },
    /// At the end of the run: how many values the resource holds. Each of them has a record [`Kept`](Event::Kept).
    Final {
        /// The number of values.
        values: u64,
    },
    /// One of the values that the resource holds at the end.
    Kept {
        /// The value.
        value: u64,
    },
    /// The process was killed; whoever killed it writes this record when the process is dead.
    Crash,
    /// The process is stopped by a signal; the clock is read before the signal.
    Paused,
    /// The process was continued; the clock is read after the signal.
    Resumed,
    /// A fault begins; the clock is read before.
    Fault {
        /// Index in [`Rules::faults`](crate::Rules::faults).
        kind: u32,
    },
    /// The fault has ended; the clock is read after.
    FaultEnd {
        /// Same index as in [`Fault`](Event::Fault).
        kind: u32,
    },
    /// All faults are over. Nothing is broken from here to the next fault, crash or pause.
    Healed,
    /// At the end of the run: how many entries of this object are left at the store.
    Remains {
        /// The number of entries.
        entries: u64,
    },
    /// A short operation on a value, a counter or an election; the record's time is read after it.
    ///
    /// A client that may be killed also writes this record before the operation, with [`Answer::Unknown`] and an
    /// [`attempt`](Record::attempt) other than 0. The record that it writes after the operation, with the same attempt,
    /// replaces the first.
    Operation {
        /// The time read before the operation.
        call: u64,
        /// The operation.
        what: Operation,
        /// Its result.
        answer: Answer,
    },
}

/// Why an acquire returned without a guard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Why {
    /// A try found the object taken, or the timeout passed.
    NotFree,
    /// The store did not reply, or it refused.
    Unavailable,
    /// The session was lost.
    Lost,
    /// The session or the coordinator was closed.
    Closed,
    /// Anything else.
    Other,
}

impl From<ErrorKind> for Why {
    fn from(kind: ErrorKind) -> Self {
        match kind {
            ErrorKind::Timeout => Self::NotFree,
            ErrorKind::Unavailable => Self::Unavailable,
            ErrorKind::Lost => Self::Lost,
            ErrorKind::Closed => Self::Closed,
            _ => Self::Other,
        }
    }
}

impl Event {
    /// The event for what a release returned.
    pub fn released(returned: &coordination::Result<()>) -> Self {
        let outcome = match returned {
            Ok(()) => 0,
            Err(error) if error.loss_reason().is_some() => 1,
            Err(_) => 2,
        };
        Self::ReleaseReturn { outcome }
    }
}

/// A short operation, which O7 checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Reads a shared value: [`Answer::Value`] or [`Answer::Absent`].
    Read,
    /// Writes the value, whatever it was: [`Answer::Written`].
    Set {
        /// The new value.
        value: u32,
    },
    /// Writes the value if it still has this version: [`Answer::Written`] or [`Answer::Mismatch`].
    CompareAndSet {
        /// The version that the value must still have; 0: no value may exist.
        expected: u64,
        /// The new value.
        value: u32,
    },
    /// Deletes the value: [`Answer::Deleted`] or [`Answer::Absent`].
    Delete,
    /// Deletes the value if it still has this version: [`Answer::Deleted`] or [`Answer::Mismatch`].
    CompareAndDelete {
        /// The version that the value must still have.
        expected: u64,
    },
    /// Adds to a counter; [`Answer::Number`] is the sum after it.
    Add {
        /// The number to add.
        by: i64,
    },
    /// Reads a counter: [`Answer::Number`].
    Count,
    /// Asks an election who leads: [`Answer::Leader`] or [`Answer::Nobody`].
    Leader,
}

impl Operation {
    /// Whether the operation can have this result.
    pub(crate) fn may_answer(self, answer: Answer) -> bool {
        if matches!(answer, Answer::Unknown | Answer::NotDone) {
            return true;
        }
        match self {
            Self::Read => matches!(answer, Answer::Value { .. } | Answer::Absent),
            Self::Set { .. } => matches!(answer, Answer::Written { .. }),
            Self::CompareAndSet { .. } => {
                matches!(answer, Answer::Written { .. } | Answer::Mismatch)
            }
            Self::Delete => matches!(answer, Answer::Deleted | Answer::Absent),
            Self::CompareAndDelete { .. } => matches!(answer, Answer::Deleted | Answer::Mismatch),
            Self::Add { .. } | Self::Count => matches!(answer, Answer::Number(_)),
            Self::Leader => matches!(answer, Answer::Leader { .. } | Answer::Nobody),
        }
    }
}

/// The result of a short operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Not known: the operation may have taken effect, or may still take effect.
    Unknown,
    /// The operation certainly had no effect. The result says nothing about the object's state.
    NotDone,
    /// There is no value.
    Absent,
    /// The current value.
    Value {
        /// The version that its write got.
        version: u64,
        /// The value.
        value: u32,
    },
    /// The value was written.
    Written {
        /// The version that the write got; 0: not known.
        version: u64,
    },
    /// The value has another version, or there is no value.
    Mismatch,
    /// The value existed and was deleted.
    Deleted,
    /// The counter's value.
    Number(i64),
    /// The current leader.
    Leader {
        /// The leader's term, which is its fencing token.
        token: u64,
    },
    /// Nobody leads.
    Nobody,
}
