//! Mistakes made on purpose, to see that the tests catch them.
//!
//! Each is one that a lock library has shipped, or that this one could make. They exist only in builds with
//! `--cfg coordination_internals`, where the variable `COORDINATION_CANARY` chooses one; in every other build
//! [`sings`] is `false` at compile time, and the variable is not read. `docs/testing.md` says which run catches which.

/// Declares each mistake with what `COORDINATION_CANARY` calls it.
macro_rules! canaries {
    ($($(#[$doc:meta])* $canary:ident = $name:literal,)*) => {
        /// A mistake, by what it gets wrong.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[cfg_attr(
            not(all(coordination_internals, feature = "file", feature = "memory")),
            expect(dead_code, reason = "each is made where its store is built")
        )]
        pub(crate) enum Canary {
            $($(#[$doc])* $canary,)*
        }

        /// The names that `COORDINATION_CANARY` takes, in the order of the canaries.
        #[cfg(coordination_internals)]
        pub(crate) const NAMES: &[&str] = &[$($name),*];
    };
}

canaries! {
    /// The deadline counts from when the heartbeat's answer came.
    ReceiveTimeDeadline = "receive-time-deadline",
    /// The deadline is judged by a clock that stops while the machine is suspended.
    ClockStopsInSuspend = "clock-stops-in-suspend",
    /// A waiter does not look whether its own entry still stands when its turn comes.
    NoOwnEntryCheck = "no-own-entry-check",
    /// A release removes whatever entry is first in the queue.
    ReleaseByName = "release-by-name",
    /// A release is not repeated when its answer is lost.
    OwnerForgottenBeforeRelease = "owner-forgotten-before-release",
    /// What a cancelled acquire entered is left behind.
    CancelledAcquireNotCleaned = "cancelled-acquire-not-cleaned",
    /// Any answer of the store counts as a heartbeat, that of a server cut off from its leader too.
    DeadlineFromReads = "deadline-from-reads",
    /// After a loss the new session goes on with the entry of the old one.
    OldEntryAdopted = "old-entry-adopted",
    /// Tokens start again when the store has lost its data.
    PlainCounterToken = "plain-counter-token",
    /// The token is the place in the queue.
    TokenIsQueueLength = "token-is-queue-length",
    /// A guard is held until a task has noticed that it is not.
    LossSetByTaskOnly = "loss-set-by-task-only",
    /// Who holds a lock may take it once more in the same session.
    Reentrant = "reentrant",
    /// A lock `ab` is in the way of the lock `a`.
    PrefixMatch = "prefix-match",
    /// Each wake-up gives the waiter its whole timeout again.
    TimeoutRestarts = "timeout-restarts",
    /// A heartbeat puts back an entry that was released meanwhile.
    RenewalAfterRelease = "renewal-after-release",
    /// The last one to leave a queue unlinks its file.
    UnlinkOnRelease = "unlink-on-release",
    /// A missed notification is never made up for.
    NoRecheck = "no-recheck",
    /// A cancelled acquire of a semaphore keeps its permit.
    PermitLeaked = "permit-leaked",
    /// The answer to a call that was given up is taken for that of the next one.
    AnswerOfAnotherCall = "answer-of-another-call",
    /// A dropped guard keeps what it held.
    NoDrop = "no-drop",
}

/// Whether this process is to make the mistake.
#[cfg(not(coordination_internals))]
pub(crate) const fn sings(_: Canary) -> bool {
    false
}

/// Whether this process is to make the mistake.
#[cfg(coordination_internals)]
pub(crate) fn sings(canary: Canary) -> bool {
    /// The position of the one that sings.
    static CHOSEN: std::sync::OnceLock<Option<usize>> = std::sync::OnceLock::new();
    // By position: a canary that is named here would look as if something made the mistake.
    *CHOSEN.get_or_init(choose) == Some(canary as usize)
}

#[cfg(coordination_internals)]
fn choose() -> Option<usize> {
    let name = std::env::var("COORDINATION_CANARY").ok()?;
    let known = NAMES.iter().position(|known| *known == name);
    // A run that was to catch a mistake and makes none would prove nothing.
    Some(known.unwrap_or_else(|| panic!("COORDINATION_CANARY={name:?}: no such canary")))
}
