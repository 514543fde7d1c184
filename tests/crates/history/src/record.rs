//! What is written down: one [`Record`] per thing that a client did, saw or suffered.

use coordination::ErrorKind;

/// Says "none" where a field of an [`Event`] is a slot.
pub const NO_SLOT: u32 = u32::MAX;

/// Says "none" where a field of an [`Event`] is a time.
pub const NEVER: u64 = u64::MAX;

/// One thing that happened to one client.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Record {
    /// When, in nanoseconds of [`now`](crate::now). Which side of the call it is read on, each event says.
    pub at: u64,
    /// The process, or the simulated client. One that was started again is a new client.
    pub client: u32,
    /// Ties the events of one acquire together; unique for its client. 0: none.
    pub attempt: u64,
    /// Which lock, semaphore, value; [`Rules::objects`](crate::Rules::objects) knows it. 0: none.
    pub object: u32,
    /// What happened.
    pub event: Event,
}

/// What happened. A clock that is read on the wrong side of a call makes false alarms: it is said here.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Event {
    /// An acquire begins: the clock is read before it.
    Call {
        /// Shared with others who call so.
        shared: bool,
        /// In nanoseconds; [`NEVER`]: none; 0: it tries, and does not wait.
        timeout: u64,
    },
    /// The acquire returned a guard: the clock is read after.
    Granted {
        /// The guard's fencing token.
        token: u64,
        /// The slot of a semaphore or limiter; [`NO_SLOT`]: none. Who takes several writes an attempt for each.
        slot: u32,
    },
    /// The acquire returned without a guard: the clock is read after.
    Refused {
        /// What it said.
        why: Why,
    },
    /// The caller dropped the acquire.
    Cancelled,
    /// The guard was asked whether it is held; `at` is read after.
    Probe {
        /// The clock before it was asked.
        before: u64,
        /// What it said.
        held: bool,
    },
    /// The guard told its loss; `at` is when the listening task saw it.
    Lost {
        /// The guard's last deadline on this clock; [`NEVER`]: not known.
        deadline: u64,
    },
    /// An exclusive guard lets others share: the clock is read before.
    Downgraded,
    /// The guard is released or dropped: the clock is read before.
    ReleaseCall,
    /// The release returned: the clock is read after.
    ReleaseReturn {
        /// 0: released, and the entry is gone; 1: it was lost already; 2: not known.
        outcome: u8,
    },
    /// The fenced resource was asked to apply `value` under `token`; the resource writes this itself, in the
    /// order in which it decides.
    Write {
        /// The writer's token.
        token: u64,
        /// Unique for the resource.
        value: u64,
        /// Whether it was applied.
        accepted: bool,
    },
    /// At the end: the resource holds so many values, each told by a [`Kept`](Event::Kept).
    Final {
        /// How many.
        values: u64,
    },
    /// One of the values that the resource holds at the end.
    Kept {
        /// Which.
        value: u64,
    },
    /// The process died; whoever killed it writes this after it is dead.
    Crash,
    /// The process is stopped: the clock is read before the signal.
    Paused,
    /// The process went on: the clock is read after the signal.
    Resumed,
    /// A fault begins: the clock is read before.
    Fault {
        /// Index in [`Rules::faults`](crate::Rules::faults).
        kind: u32,
    },
    /// The fault has ended: the clock is read after.
    FaultEnd {
        /// As it began.
        kind: u32,
    },
    /// From here on nothing is broken, until the next fault, crash or pause.
    Healed,
    /// At the end: so many entries of this object were left at the store.
    Remains {
        /// 0: none.
        entries: u64,
    },
    /// A small operation on a value, a counter or an election; `at` is read after it.
    ///
    /// A client that may be killed writes it before it asks too, with [`Answer::Unknown`] and the same
    /// [`attempt`](Record::attempt), not 0: what it answers takes the place of that.
    Operation {
        /// The clock before it.
        call: u64,
        /// What was asked.
        what: Operation,
        /// What was answered.
        answer: Answer,
    },
}

/// Why an acquire returned without a guard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Why {
    /// A try said that somebody else has it, or the timeout passed.
    NotFree,
    /// The store did not answer, or refused.
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
    /// What a release returned.
    pub fn released(returned: &coordination::Result<()>) -> Self {
        let outcome = match returned {
            Ok(()) => 0,
            Err(error) if error.loss_reason().is_some() => 1,
            Err(_) => 2,
        };
        Self::ReleaseReturn { outcome }
    }
}

/// A small operation, judged by O7.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Reads a shared value: [`Answer::Value`] or [`Answer::Absent`].
    Read,
    /// Sets it whatever it was: [`Answer::Written`].
    Set {
        /// To this.
        value: u32,
    },
    /// Sets it if it still has this version: [`Answer::Written`] or [`Answer::Mismatch`].
    CompareAndSet {
        /// The version; 0: there is none.
        expected: u64,
        /// To this.
        value: u32,
    },
    /// Deletes it: [`Answer::Deleted`] or [`Answer::Absent`].
    Delete,
    /// Deletes it if it still has this version: [`Answer::Deleted`] or [`Answer::Mismatch`].
    CompareAndDelete {
        /// The version.
        expected: u64,
    },
    /// Adds to a counter: [`Answer::Number`] is the sum after it.
    Add {
        /// So much.
        by: i64,
    },
    /// Reads a counter: [`Answer::Number`].
    Count,
    /// Asks an election who leads: [`Answer::Leader`] or [`Answer::Nobody`].
    Leader,
}

impl Operation {
    /// Whether it is one of its answers.
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

/// What a small operation answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Not known: it may have been carried out, or may be yet.
    Unknown,
    /// It was not carried out, for certain, and says nothing of the state.
    NotDone,
    /// There is no value.
    Absent,
    /// The value as it is.
    Value {
        /// Of the write.
        version: u64,
        /// What was written.
        value: u32,
    },
    /// It was written.
    Written {
        /// As this version; 0: not known.
        version: u64,
    },
    /// It has another version, or none.
    Mismatch,
    /// It was there, and is deleted.
    Deleted,
    /// The counter's number.
    Number(i64),
    /// Who leads.
    Leader {
        /// Its term, which is its fencing token.
        token: u64,
    },
    /// Nobody leads.
    Nobody,
}
