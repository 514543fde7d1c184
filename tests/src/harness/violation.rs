//! Findings that no repetition excuses: a promise was broken.
//!
//! Two holders, a token that does not rise, an update that the fence let through, a wrong answer: no machine is so slow that
//! they may happen. They are raised by [`must_hold!`](crate::must_hold) and [`violated`], and by any panic in the library.
//! Whatever else fails may have failed for want of time: [`rerun_if_starved`](super::rerun_if_starved) tries it again.
//!
//! A violation is known by how its text begins, since that survives on the way from a task or a thread of a check to the
//! check itself, where `expect` makes a text of another type's panic.

use std::backtrace::Backtrace;
use std::cell::RefCell;
use std::panic::{Location, PanicHookInfo, set_hook, take_hook};
use std::sync::Once;

use super::rerun::note;

/// What the text of a violation begins with.
const MARK: &str = "violation: ";
/// What a panic says that a test makes within the library.
const ON_PURPOSE: &str = "on purpose";

/// A promise of the library, whatever the machine does: unless it holds, the check fails at once.
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

/// A promise was broken.
///
/// # Panics
///
/// Always.
#[track_caller]
pub fn violated(what: &str) -> ! {
    panic!("{MARK}{what}")
}

thread_local! {
    /// The last panic of this thread: where it was, and all of its account.
    static LAST: RefCell<Option<Account>> = const { RefCell::new(None) };
}

/// What is known of a panic.
pub(super) struct Account {
    pub(super) text: String,
    is_of_library: bool,
}

impl Account {
    /// That of this thread's last panic.
    pub(super) fn take() -> Option<Self> {
        LAST.take()
    }

    fn of(info: &PanicHookInfo<'_>) -> Self {
        let text = format!("{info}\n{}", Backtrace::force_capture());
        let is_of_library = info.location().is_some_and(is_library) && !text.contains(ON_PURPOSE);
        Self { text, is_of_library }
    }
}

/// Whether a check that failed so has found a broken promise.
pub(super) fn is_violation(fault: &str, account: Option<&Account>) -> bool {
    fault.contains(MARK) || account.is_some_and(|account| account.is_of_library)
}

/// What the output of a test that ran in a process of its own says of its failure.
pub(super) fn why(log: &str) -> &str {
    let mut lines = log.lines();
    let violation = log.lines().find(|line| line.contains(MARK));
    let panic = || lines.by_ref().skip_while(|line| !line.contains(" panicked at ")).nth(1);
    violation.or_else(panic).unwrap_or("it did not say why")
}

/// From now on panics are kept for the verdict, and those of the library that no check would hear of are noted.
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

/// The rules that a store's own suite checks stand in the library's folder, too.
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
