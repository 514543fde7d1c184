//! Mistakes made on purpose, to see that the tests catch them.
//!
//! Each is one that a lock library has shipped, or that this one could make. They exist only in builds with the
//! feature `simulation`, where the variable `COORDINATION_CANARY` chooses one; in every other build
//! [`sings`] is `false` at compile time. `docs/testing.md` says which run catches which.

/// A mistake, by what it gets wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    not(all(feature = "file", feature = "simulation")),
    expect(dead_code, reason = "each is made where its store is built")
)]
pub(crate) enum Canary {
    /// The deadline counts from when the heartbeat's answer came.
    ReceiveTimeDeadline,
    /// The deadline is judged by a clock that stops while the machine is suspended.
    ClockStopsInSuspend,
    /// A waiter does not look whether its own entry still stands when its turn comes.
    NoOwnEntryCheck,
    /// A release removes whatever entry is first in the queue.
    ReleaseByName,
    /// A release is not repeated when its answer is lost.
    OwnerForgottenBeforeRelease,
    /// What a cancelled acquire entered is left behind.
    CancelledAcquireNotCleaned,
    /// Any answer of the store counts as a heartbeat, that of a server cut off from its leader too.
    DeadlineFromReads,
    /// After a loss the new session goes on with the entry of the old one.
    OldEntryAdopted,
    /// Tokens start again when the store has lost its data.
    PlainCounterToken,
    /// The token is the place in the queue.
    TokenIsQueueLength,
    /// A guard is held until a task has noticed that it is not.
    LossSetByTaskOnly,
    /// Who holds a lock may take it once more in the same session.
    Reentrant,
    /// A lock `ab` is in the way of the lock `a`.
    PrefixMatch,
    /// Each wake-up gives the waiter its whole timeout again.
    TimeoutRestarts,
    /// A heartbeat puts back an entry that was released meanwhile.
    RenewalAfterRelease,
    /// The last one to leave a queue unlinks its file.
    UnlinkOnRelease,
    /// A missed notification is never made up for.
    NoRecheck,
    /// A cancelled acquire of a semaphore keeps its permit.
    PermitLeaked,
    /// The answer to a call that was given up is taken for that of the next one.
    AnswerOfAnotherCall,
    /// A dropped guard keeps what it held.
    NoDrop,
}

/// Whether this process is to make the mistake.
#[cfg(not(feature = "simulation"))]
pub(crate) const fn sings(_: Canary) -> bool {
    false
}

#[cfg(feature = "simulation")]
pub(crate) use chosen::{NAMES, sings};

#[cfg(feature = "simulation")]
mod chosen {
    use super::Canary;
    use std::sync::OnceLock;

    /// The names that `COORDINATION_CANARY` takes, in the order of the canaries.
    pub(crate) const NAMES: [&str; 20] = [
        "receive-time-deadline",
        "clock-stops-in-suspend",
        "no-own-entry-check",
        "release-by-name",
        "owner-forgotten-before-release",
        "cancelled-acquire-not-cleaned",
        "deadline-from-reads",
        "old-entry-adopted",
        "plain-counter-token",
        "token-is-queue-length",
        "loss-set-by-task-only",
        "reentrant",
        "prefix-match",
        "timeout-restarts",
        "renewal-after-release",
        "unlink-on-release",
        "no-recheck",
        "permit-leaked",
        "answer-of-another-call",
        "no-drop",
    ];

    /// The position of the one that sings.
    static CHOSEN: OnceLock<Option<usize>> = OnceLock::new();

    pub(crate) fn sings(canary: Canary) -> bool {
        *CHOSEN.get_or_init(choose) == Some(canary as usize)
    }

    fn choose() -> Option<usize> {
        let name = std::env::var("COORDINATION_CANARY").ok()?;
        let known = NAMES.iter().position(|known| *known == name);
        // A run that was to catch a mistake and makes none would prove nothing.
        Some(known.unwrap_or_else(|| panic!("COORDINATION_CANARY={name:?}: no such canary")))
    }
}
