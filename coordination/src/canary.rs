//! Mistakes that the library makes on purpose (canaries), to see that the tests catch them.
//!
//! Each mistake is one that some lock library has made in a release, or that this one could make. They exist only in builds with
//! `--cfg coordination_internals`, where the environment variable `COORDINATION_CANARY` chooses one; in every other build [`sings`]
//! is `false` at compile time, and the variable is not read. `docs/testing.md` says which run of the tests catches which mistake.

/// Declares each mistake with its name for `COORDINATION_CANARY`.
macro_rules! canaries {
    ($($(#[$doc:meta])* $canary:ident = $name:literal,)*) => {
        /// A mistake. Each variant says what the library does wrong if the variant is chosen.
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
    /// The deadline counts from when the heartbeat's answer arrived, not from when the heartbeat was sent.
    ReceiveTimeDeadline = "receive-time-deadline",
    /// The deadline is compared with a clock that stops while the machine is suspended.
    ClockStopsInSuspend = "clock-stops-in-suspend",
    /// A waiter does not check, when its turn comes, that its own entry still exists.
    NoOwnEntryCheck = "no-own-entry-check",
    /// A release removes whatever entry is first in the queue.
    ReleaseByName = "release-by-name",
    /// A release is not repeated when its answer is lost.
    OwnerForgottenBeforeRelease = "owner-forgotten-before-release",
    /// The entry of a cancelled acquire is left behind.
    CancelledAcquireNotCleaned = "cancelled-acquire-not-cleaned",
    /// Any answer of the store counts as a confirmed heartbeat, also that of a server that is cut off from its leader.
    DeadlineFromReads = "deadline-from-reads",
    /// After a loss, the new session goes on with the entry of the old session.
    OldEntryAdopted = "old-entry-adopted",
    /// Tokens start again when the store has lost its data.
    PlainCounterToken = "plain-counter-token",
    /// The token is the entry's place in the queue.
    TokenIsQueueLength = "token-is-queue-length",
    /// `is_held` returns true until a task has noticed the loss; it does not compare the deadline with the clock itself.
    LossSetByTaskOnly = "loss-set-by-task-only",
    /// A session that holds a lock is granted the same lock again.
    Reentrant = "reentrant",
    /// The lock `ab` blocks the lock `a`.
    PrefixMatch = "prefix-match",
    /// Each wake-up gives the waiter its whole timeout again.
    TimeoutRestarts = "timeout-restarts",
    /// The tasks of a cohort pass the lock on once more than they may.
    OneTurnTooMany = "one-turn-too-many",
    /// A heartbeat enters an entry again that was released while the heartbeat was on its way.
    RenewalAfterRelease = "renewal-after-release",
    /// The last entry that leaves a queue unlinks the queue's file.
    UnlinkOnRelease = "unlink-on-release",
    /// Waiters do not re-check, so a waiter that misses a notification waits for ever.
    NoRecheck = "no-recheck",
    /// A held entry counts as lost as soon as a list of the session's entries lacks it, although the list may be an older one.
    UnlistedIsLost = "unlisted-is-lost",
    /// A waiter that is granted or gives up stays in its line, so those of its session that rest behind it are told nothing.
    NextInLineNotTold = "next-in-line-not-told",
    /// A cancelled acquire of a semaphore keeps its permit.
    PermitLeaked = "permit-leaked",
    /// The answer to a call that was given up is taken for the answer to the next call.
    AnswerOfAnotherCall = "answer-of-another-call",
    /// A dropped guard keeps what it held.
    NoDrop = "no-drop",
    /// An observer of an election returns every term that it reads, also one that is older than the last.
    TermsGoBack = "terms-go-back",
    /// The session is closed at the store before its guards are lost.
    ClosedBeforeTold = "closed-before-told",
    /// A call whose outcome is unknown is not repeated until the outcome is known.
    UnknownNotAsked = "unknown-not-asked",
    /// After the number of slots was reduced, holders of slots above the new number are not counted.
    SlotsAboveLimit = "slots-above-limit",
    /// If one item of a work queue's page is ready, the claim takes all other items of the page, too.
    RestIsFree = "rest-is-free",
    /// An acknowledgement does not check that its claim has the item.
    AckOfAnyClaim = "ack-of-any-claim",
    /// Whether a claim is over is decided by the clock of the client that reads the claim.
    ExpiryByClientsClock = "expiry-by-clients-clock",
}

/// Whether this process makes the mistake.
#[cfg(not(coordination_internals))]
pub(crate) const fn sings(_: Canary) -> bool {
    false
}

/// Whether this process makes the mistake.
#[cfg(coordination_internals)]
pub(crate) fn sings(canary: Canary) -> bool {
    /// The position, among the canaries, of the one that the variable names.
    static CHOSEN: std::sync::OnceLock<Option<usize>> = std::sync::OnceLock::new();
    // The canary is compared by its position, and not with a variant by name, so that a search for a variant finds only the place
    // of its mistake.
    *CHOSEN.get_or_init(choose) == Some(canary as usize)
}

#[cfg(coordination_internals)]
fn choose() -> Option<usize> {
    let name = std::env::var("COORDINATION_CANARY").ok()?;
    let known = NAMES.iter().position(|known| *known == name);
    // A run that is to catch a mistake proves nothing if no mistake is made, so an unknown name is an error.
    Some(known.unwrap_or_else(|| panic!("COORDINATION_CANARY={name:?}: no such canary")))
}
