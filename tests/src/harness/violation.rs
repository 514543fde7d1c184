//! Violations: failures that prove that the library broke a promise. After a violation the check is not repeated.
//!
//! Examples are two holders of a lock, a token that does not rise, an update of an old holder that the fence let
//! through, or a wrong result. A slow machine is no excuse for any of these. Checks report violations by
//! [`must_hold!`](crate::must_hold) and [`violated`]. A panic in the library is a violation too. Every other failure
//! may have happened because the machine was slow:
//! [`rerun_if_starved`](super::rerun_if_starved) runs the check again.
//!
//! A violation is recognised by the beginning of its message. The panic may come from a task or thread of the check,
//! where `expect` or `join` turns it into a panic of another type. Only its text stays the same.

use std::backtrace::Backtrace;
use std::cell::RefCell;
use std::panic::{Location, PanicHookInfo, set_hook, take_hook};
use std::sync::Once;

use super::rerun::note;

/// The message of a violation begins with this text.
const MARK: &str = "violation: ";
/// The message of a violation that a starved machine excuses goes on with this text.
const OF_TIME: &str = "unless the machine was starved: ";
/// If a panic has this text, a test has injected it into the library's code, so it is no violation.
const ON_PURPOSE: &str = "on purpose";

/// Asserts a promise that the library has to keep, however slow the machine is. If the condition is false, the check
/// fails at once and is not repeated.
#[macro_export]
macro_rules! must_hold {
    ($condition:expr $(,)?) => {
        if !$condition {
            $crate::harness::violated(stringify!($condition));
        }
    };
    ($condition:expr, $($text:tt)+) => {
        if !$condition {
            $crate::harness::violated(&format!($($text)+));
        }
    };
}

/// [`must_hold!`](crate::must_hold) for a promise that is kept by a process which has to be given a processor in time. On a
/// starved machine that is a matter of time, and the check is run again.
#[macro_export]
macro_rules! must_hold_unless_starved {
    ($condition:expr, $($text:tt)+) => {
        if !$condition {
            $crate::harness::violated_unless_starved(&format!($($text)+));
        }
    };
}

/// Fails the check as [`must_hold_unless_starved!`](crate::must_hold_unless_starved) does.
///
/// # Panics
///
/// Always.
#[track_caller]
pub fn violated_unless_starved(what: &str) -> ! {
    violated(&format!("{OF_TIME}{what}"))
}

/// Fails the check with a violation: the library broke a promise.
///
/// # Panics
///
/// Always.
#[track_caller]
pub fn violated(what: &str) -> ! {
    panic!("{MARK}{what}")
}

thread_local! {
    /// The last panic of this thread. The hook that [`keep_accounts`] installs writes it.
    static LAST: RefCell<Option<Account>> = const { RefCell::new(None) };
}

/// The text of a panic with its backtrace, and whether the panic was in the library's code.
pub(super) struct Account {
    pub(super) text: String,
    is_of_library: bool,
}

impl Account {
    /// Takes what the hook has recorded of this thread's last panic.
    pub(super) fn take() -> Option<Self> {
        LAST.take()
    }

    fn of(info: &PanicHookInfo<'_>) -> Self {
        let text = format!("{info}\n{}", Backtrace::force_capture());
        let is_of_library = info.location().is_some_and(is_library) && !text.contains(ON_PURPOSE);
        Self { text, is_of_library }
    }
}

/// Whether a failure is a violation: its message says so, or the library has panicked.
pub(super) fn is_violation(fault: &str, account: Option<&Account>) -> bool {
    fault.contains(MARK) || account.is_some_and(|account| account.is_of_library)
}

/// Whether a starved machine excuses this violation.
pub(super) fn is_of_time(fault: &str) -> bool {
    let mut violations = fault.split(MARK).skip(1).peekable();
    violations.peek().is_some() && violations.all(|what| what.starts_with(OF_TIME))
}

/// Finds the cause of a failure in the log of a test that ran in a process of its own. This is the message of a
/// violation, or, if there is none, that of the first panic.
pub(super) fn why(log: &str) -> &str {
    let mut lines = log.lines();
    let violation = log.lines().find(|line| line.contains(MARK));
    let panic = || lines.by_ref().skip_while(|line| !line.contains(" panicked at ")).nth(1);
    violation.or_else(panic).unwrap_or("it did not say why")
}

/// Installs a panic hook that records each panic, so that it can be decided later whether it is a violation. The
/// library may panic on a thread for which no check waits. So each panic of the library is also appended to the list
/// that `COORDINATION_TEST_VIOLATIONS` names.
pub(super) fn keep_accounts() {
    static KEPT: Once = Once::new();
    KEPT.call_once(|| {
        let before = take_hook();
        set_hook(Box::new(move |info| {
            let account = Account::of(info);
            if account.is_of_library {
                let line = info.to_string().replace('\n', " ");
                note("COORDINATION_TEST_VIOLATIONS", &format!("{line}\n"));
            }
            LAST.set(Some(account));
            before(info);
        }));
    });
}

/// Whether this source file is the library's own code. The test suite for stores is in the library's folder too, but
/// does not count.
fn is_library(place: &Location<'_>) -> bool {
    place.file().starts_with("coordination/src/") && !place.file().contains("/suite/")
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;

    use super::*;
    use crate::harness::rerun::said;

    #[test]
    fn a_violation_is_known_by_its_text_on_whatever_way_it_comes() {
        let panicked = catch_unwind(|| must_hold!(1 > 2, "{} holders", 2));
        let text = said(&*panicked.expect_err("it does not hold"));
        assert_eq!(text, "violation: 2 holders");
        let joined = std::thread::spawn(|| must_hold!(1 > 2)).join();
        assert_eq!(said(&*joined.expect_err("it does not hold")), "violation: 1 > 2");
        assert!(is_violation("Panic(Id(7), \"violation: 2 holders\")", None));
        assert!(!is_violation("it took 3 s", None));
        must_hold!(2 > 1);
    }
}
