//! Violations: failures that prove that the library broke a promise, so that the check is not repeated.
//!
//! Two holders of a lock, a token that does not rise, an update that the fence let through, a wrong result: a slow
//! machine is no excuse for them. Checks report them by [`must_hold!`](crate::must_hold) and [`violated`]; any panic in
//! the library is one, too. Any other failure may have happened because the machine was slow:
//! [`rerun_if_starved`](super::rerun_if_starved) runs the check again.
//!
//! A violation is recognised by the beginning of its message. The message survives on its way from a task or thread of
//! the check to the check itself, where `expect` or `join` turns a panic into a panic with another type; only the text
//! stays.

use std::backtrace::Backtrace;
use std::cell::RefCell;
use std::panic::{Location, PanicHookInfo, set_hook, take_hook};
use std::sync::Once;

use super::rerun::note;

/// The beginning of the message of a violation.
const MARK: &str = "violation: ";
/// A panic with this text was injected by a test into the library's code, and is no violation.
const ON_PURPOSE: &str = "on purpose";

/// Asserts a promise that the library keeps however slow the machine is. If the condition is false, the check fails at
/// once and is not repeated.
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
    /// The last panic of this thread, kept by the hook that [`keep_accounts`] installs.
    static LAST: RefCell<Option<Account>> = const { RefCell::new(None) };
}

/// The text of a panic with its backtrace, and whether it was in the library's code.
pub(super) struct Account {
    pub(super) text: String,
    is_of_library: bool,
}

impl Account {
    /// Takes the record of this thread's last panic.
    pub(super) fn take() -> Option<Self> {
        LAST.take()
    }

    fn of(info: &PanicHookInfo<'_>) -> Self {
        let text = format!("{info}\n{}", Backtrace::force_capture());
        let is_of_library = info.location().is_some_and(is_library) && !text.contains(ON_PURPOSE);
        Self { text, is_of_library }
    }
}

/// Whether a failure is a violation: by its message, or because the library panicked.
pub(super) fn is_violation(fault: &str, account: Option<&Account>) -> bool {
    fault.contains(MARK) || account.is_some_and(|account| account.is_of_library)
}

/// Finds the cause in the log of a test that ran in a process of its own: the violation, or else the message of the
/// first panic.
pub(super) fn why(log: &str) -> &str {
    let mut lines = log.lines();
    let violation = log.lines().find(|line| line.contains(MARK));
    let panic = || lines.by_ref().skip_while(|line| !line.contains(" panicked at ")).nth(1);
    violation.or_else(panic).unwrap_or("it did not say why")
}

/// Installs a panic hook that keeps each panic for the verdict. A panic of the library on a thread that no check joins
/// is appended to the list that `COORDINATION_TEST_VIOLATIONS` names.
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

/// Whether this source file is the library's own code. The suite for stores is a test, but is in the library's folder.
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
