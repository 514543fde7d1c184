//! Mistakes made on purpose, to see that the tests catch them.
//!
//! Each is one that a lock library has shipped, or that this one could make. They exist only in builds with
//! `--cfg coordination_internals`, where the variable `COORDINATION_CANARY` chooses one; in every other build
//! [`sings`] is `false` at compile time, and the variable is not read. `docs/testing.md` says which run catches which.

/// Declares each mistake with its name for `COORDINATION_CANARY`.
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
    /// The entry of a cancelled acquire is left behind.
    CancelledAcquireNotCleaned = "cancelled-acquire-not-cleaned",
    /// Any answer of the store counts as a heartbeat, also that of a server that is cut off from its leader.
    DeadlineFromReads = "deadline-from-reads",
    /// After a loss the new session goes on with the entry of the old one.
    OldEntryAdopted = "old-entry-adopted",
    /// Tokens start again when the store has lost its data.
    PlainCounterToken = "plain-counter-token",
    /// The token is the place in the queue.
    TokenIsQueueLength = "token-is-queue-length",
    /// A guard is held until a task has noticed that it is not.
    LossSetByTaskOnly = "loss-set-by-task-only",
    /// The holder of a lock is granted it once more in the same session.
    Reentrant = "reentrant",
    /// The lock `ab` blocks the lock `a`.
    PrefixMatch = "prefix-match",
    /// Each wake-up gives the waiter its whole timeout again.
    TimeoutRestarts = "timeout-restarts",
    /// A heartbeat puts back an entry that was released meanwhile.
    RenewalAfterRelease = "renewal-after-release",
    /// The last entry that leaves a queue unlinks the queue's file.
    UnlinkOnRelease = "unlink-on-release",
    /// No re-check makes up for a missed notification.
    NoRecheck = "no-recheck",
    /// A cancelled acquire of a semaphore keeps its permit.
    PermitLeaked = "permit-leaked",
    /// The answer to a call that was given up is taken for that of the next one.
    AnswerOfAnotherCall = "answer-of-another-call",
    /// A dropped guard keeps what it held.
    NoDrop = "no-drop",
    /// An observer is told of whatever term it reads.
    TermsGoBack = "terms-go-back",
    /// The session is closed at the store before its guards are told.
    ClosedBeforeTold = "closed-before-told",
    /// A call whose outcome is not known is not asked for again.
    UnknownNotAsked = "unknown-not-asked",
    /// After the number of slots was made smaller, those above it do not count.
    SlotsAboveLimit = "slots-above-limit",
    /// Whoever finds one item of a page ready takes the rest of the page for free.
    RestIsFree = "rest-is-free",
    /// An acknowledgement does not look whether its claim has the item.
    AckOfAnyClaim = "ack-of-any-claim",
    /// A claim is over by the clock of whoever looks.
    ExpiryByClientsClock = "expiry-by-clients-clock",
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
    // Compared by position: if a canary were named here, a search would take this for the place of its mistake.
    *CHOSEN.get_or_init(choose) == Some(canary as usize)
}

#[cfg(coordination_internals)]
fn choose() -> Option<usize> {
    let name = std::env::var("COORDINATION_CANARY").ok()?;
    let known = NAMES.iter().position(|known| *known == name);
    // A run that is to catch a mistake proves nothing if no mistake is made.
    Some(known.unwrap_or_else(|| panic!("COORDINATION_CANARY={name:?}: no such canary")))
}
