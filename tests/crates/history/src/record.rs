//! The records of a history: one [`Record`] for each thing that a client did, that it saw, or that happened to it.

use coordination::ErrorKind;

/// The value of an [`Event`]'s slot field if there is no slot.
pub const NO_SLOT: u32 = u32::MAX;

/// The value of an [`Event`]'s time field if there is no time.
pub const NEVER: u64 = u64::MAX;

/// One event of one client.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Record {
    /// The time in nanoseconds, as of [`now`](crate::now). [`Event`] says for each event whether the recording client
    /// reads the clock before or after the call.
    pub at: u64,
    /// The process or simulated client. A client that is restarted gets a new number.
    pub client: u32,
    /// A number for each acquire; all events of one acquire have the same number. It is unique only within its client.
    /// 0: the event belongs to no acquire.
    pub attempt: u64,
    /// Which lock, semaphore or value, by its id in [`Rules::objects`](crate::Rules::objects). 0: none.
    pub object: u32,
    /// What happened.
    pub event: Event,
}

/// What happened. Each event says whether the recording client has to read the clock before or after the call. If the
/// client reads it on the wrong side, the checker may report violations that did not happen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Event {
    /// An acquire begins; the clock is read before it.
    Call {
        /// Whether the acquire is for shared mode.
        shared: bool,
        /// The timeout in nanoseconds. [`NEVER`]: the acquire has no timeout. 0: a try, which does not wait.
        timeout: u64,
    },
    /// The acquire returned a guard; the clock is read after it.
    Granted {
        /// The guard's fencing token.
        token: u64,
        /// The slot of a semaphore or limiter; [`NO_SLOT`] if the object has none. An acquire of several permits is
        /// recorded as several attempts, one for each permit.
        slot: u32,
    },
    /// The acquire returned without a guard; the clock is read after it.
    Refused {
        /// The reason why it returned without a guard.
        why: Why,
    },
    /// The caller dropped the acquire's future before it returned.
    Cancelled,
    /// `is_held` was called on the guard; the record's time is read after the call.
    Probe {
        /// The time read before the call.
        before: u64,
        /// What `is_held` returned.
        held: bool,
    },
    /// The guard reported that it is lost. The record's time is the moment at which the test's task that listens for
    /// the loss saw the report.
    Lost {
        /// The last deadline that the guard had, on the clock of the records. O5 counts from it how late the report is.
        /// [`NEVER`]: the deadline is not known.
        deadline: u64,
    },
    /// An exclusive guard is downgraded to a shared one; the clock is read before.
    Downgraded,
    /// The guard is released or dropped; the clock is read before.
    ReleaseCall,
    /// The release returned; the clock is read after it.
    ReleaseReturn {
        /// The result: 0 if the guard was released and its entry is gone, 1 if the guard had been lost before, 2 if it
        /// is unknown.
        outcome: u8,
    },
    /// The fenced resource was asked to apply `value` under `token`. The resource itself writes this record, in the
    /// order in which it decides.
    Write {
        /// The writer's token.
        token: u64,
        /// The value. No other write to this resource has the same value, so that the checker can tell the writes
        /// apart.
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
    /// The process was killed. The process that killed it writes this record, after it has seen that the killed process
    /// is dead.
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
    /// A short operation on a value, a counter or an election. The record's time is read after the operation.
    ///
    /// A client that may be killed during the operation writes this record twice with the same
    /// [`attempt`](Record::attempt), which is not 0: before the operation with [`Answer::Unknown`], and after it with
    /// the result. The second record replaces the first. If the client is killed in between, the first record remains.
    Operation {
        /// The time read before the operation.
        call: u64,
        /// The operation.
        what: Operation,
        /// Its result.
        answer: Answer,
    },
    /// What happened to an item of a work queue; the record's time is read after the call.
    ///
    /// The events of one claim have the same [`attempt`](Record::attempt), which is not 0, and which no acquire of the
    /// client has. A call that concerns several items is recorded once for each item.
    Work {
        /// The time read before the call.
        call: u64,
        /// The item. The test numbers its items, and writes the number into the item's body.
        item: u64,
        /// The token of the claim; 0 if the call was made without a claim.
        token: u64,
        /// What was done, with its result.
        what: Work,
    },
}

/// What happened to an item of a work queue. O8 checks it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Work {
    /// The item is about to be posted. This is recorded before the call, because the client may be killed during it.
    Posting,
    /// The post succeeded.
    Posted,
    /// The post failed, and certainly had no effect.
    NotPosted,
    /// A claim returned with the item.
    Claimed,
    /// `is_held` returned true for the claim, and the client had neither acknowledged the item nor given it back.
    Had,
    /// The item is about to be acknowledged. This is recorded before the call. The result has the same time of the
    /// call: [`Acked`](Work::Acked), [`Gone`](Work::Gone) or [`NotAcked`](Work::NotAcked). Without one of these, the
    /// acknowledgement may have taken effect.
    Acking,
    /// The acknowledgement succeeded, and this call removed the item.
    Acked,
    /// The acknowledgement found that the item was gone.
    Gone,
    /// The acknowledgement failed, and certainly had no effect.
    NotAcked,
    /// The item was given back by itself (`nack`), and the claim had it until then.
    GivenBack,
    /// At the end of the run, after everything that was left was claimed and acknowledged: the queue has no item any
    /// more. The record's item is 0.
    Emptied,
}

impl Work {
    /// All of them, in the order of their codes in a file.
    pub(crate) const ALL: [Self; 11] = [
        Self::Posting,
        Self::Posted,
        Self::NotPosted,
        Self::Claimed,
        Self::Had,
        Self::Acking,
        Self::Acked,
        Self::Gone,
        Self::NotAcked,
        Self::GivenBack,
        Self::Emptied,
    ];
}

/// Why an acquire returned without a guard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Why {
    /// The object was not free: a try found it taken, or the timeout passed.
    NotFree,
    /// The store did not reply, or it refused the call.
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
    /// The event to record for the result of a release.
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
    /// Reads a shared value. The result is [`Answer::Value`] or [`Answer::Absent`].
    Read,
    /// Writes the value unconditionally. The result is [`Answer::Written`].
    Set {
        /// The new value.
        value: u32,
    },
    /// Writes the value if its present version is `expected`. The result is [`Answer::Written`] or
    /// [`Answer::Mismatch`].
    CompareAndSet {
        /// The version that the value has to have; 0: the value has to be absent.
        expected: u64,
        /// The new value.
        value: u32,
    },
    /// Deletes the value. The result is [`Answer::Deleted`], or [`Answer::Absent`] if no value existed.
    Delete,
    /// Deletes the value if its present version is `expected`. The result is [`Answer::Deleted`] or
    /// [`Answer::Mismatch`].
    CompareAndDelete {
        /// The version that the value has to have.
        expected: u64,
    },
    /// Adds to a counter. The result is [`Answer::Number`] with the sum after the addition.
    Add {
        /// The number to add.
        by: i64,
    },
    /// Reads a counter. The result is [`Answer::Number`].
    Count,
    /// Asks an election who leads. The result is [`Answer::Leader`] or [`Answer::Nobody`].
    Leader,
}

impl Operation {
    /// Whether the operation can have this result; if not, the recording test is wrong.
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
    /// The operation certainly had no effect. Its result tells nothing about the object's state.
    NotDone,
    /// There is no value.
    Absent,
    /// The current value.
    Value {
        /// The version that the value got when it was written.
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
