//! Checks of the traits that a store implements: one at least for each rule at the head of `backend/mod.rs`, which the
//! check's name begins with.
//!
//! Not part of the public API: it exists only in builds with `--cfg coordination_internals`, for this project's own
//! tests. They know how to start a store and how to disturb what lies between it and a client ([`StoreAccess`], [`Proxy`]);
//! what must hold is here, where the traits are. [`simulated`] runs the checks on the store of the simulation.
//!
//! A check calls the store as the session does: each call is given up after a while, and repeated under its id. It sends
//! no heartbeats, so that nothing but the call in question notices that the store has fallen silent.

mod access;
mod entries;
mod late;
mod mistaken;
mod sessions;
mod simulated;
mod test_store;
mod values;
mod watching;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

pub use self::access::{Proxy, StoreAccess};
pub use self::mistaken::Mistake;
pub use self::simulated::simulated;
use self::test_store::TestStore;
use crate::error::Result;

/// The time limit of each check.
const LIMIT: Duration = Duration::from_secs(90);
/// How many polls a call may get before it is dropped. A call that waits would be polled for ever otherwise.
const MOST_POLLS: u32 = 12;

/// Why checks that need a [`Proxy`] are left out where there is none.
pub const WITHOUT_PROXY: &str =
    "a call is carried out in this process: it cannot be late, lost or left without an answer";

type Running<'a> = Pin<Box<dyn Future<Output = Result<()>> + 'a>>;

/// One of the checks.
#[derive(Clone, Copy)]
pub struct Check {
    /// The check's name. It begins with the name of its rule.
    pub name: &'static str,
    /// Whether it runs only where a client and the store can be kept apart; [`WITHOUT_PROXY`] says why.
    pub needs_proxy: bool,
    run: for<'a> fn(&'a TestStore<'a>) -> Running<'a>,
}

impl fmt::Debug for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Check").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Lists the checks. `store_suite!(proxy RUN)` makes a test of each, which calls `RUN` with its name; `store_suite!(direct
/// RUN)` of those that need no proxy.
#[doc(hidden)]
#[macro_export]
macro_rules! store_suite {
    (@list $to:tt) => {
        $crate::store_suite! { @each $to
            sessions repeat_open [direct];
            sessions repeat_open_keeps_the_session_alive [direct];
            sessions session_end_takes_its_entries [direct];
            sessions session_end_refuses_what_is_entered_after [direct];
            sessions session_end_keeps_values [direct];
            sessions close_twice [direct];
            sessions close_twice_spares_the_next_session [direct];
            sessions close_twice_of_what_was_never_opened [direct];
            sessions forgets_what_lost_sessions_had [direct];
            sessions member_is_taken [direct];
            sessions member_has_one_session_of_a_client [direct];
            sessions member_is_free_after_close [direct];
            sessions lost_is_told_when_the_session_is_over [direct];
            sessions lost_is_not_said_of_a_silent_store [proxy];
            sessions held_entries_that_are_gone_are_told [direct];
            sessions effect_of_a_refusal_is_none [direct];
            sessions cancel_safe_open [direct];
            entries repeat_enter [direct];
            entries repeat_update [direct];
            entries repeat_leave [direct];
            entries order_is_that_of_arrival [direct];
            entries order_over_an_empty_queue [direct];
            entries order_over_the_end_of_a_session [direct];
            entries order_over_a_value_that_comes_and_goes [direct];
            entries blocker_is_the_newest_before [direct];
            entries blocker_of_shared_entries [direct];
            entries blocker_after_an_update [direct];
            entries snapshot_has_all_that_was_said [direct];
            entries snapshot_has_another_revision_after_each_change [direct];
            entries pages_have_every_name [direct];
            entries own_entries_answer_to_their_session_only [direct];
            entries own_entries_have_their_number [direct];
            entries missing_is_what_is_not_listed [direct];
            entries exact_leave_takes_one [direct];
            entries exact_leave_takes_anothers_as_it_is_listed [direct];
            entries exact_leave_spares_the_next [direct];
            entries cancel_safe_enter [direct];
            entries cancel_safe_update [direct];
            entries cancel_safe_leave [direct];
            values write_once_by_compare_and_set [direct];
            values write_once_however_often_it_is_repeated [direct];
            values write_once_though_it_was_removed_since [direct];
            values write_once_though_it_was_written_over_since [direct];
            values write_once_though_it_was_written_over_and_removed_since [direct];
            values write_once_if_there_is_no_entry [direct];
            values versions_rise_over_removals [direct];
            values cancel_safe_write [direct];
            values beside_is_written_with_the_value_or_not_at_all [direct];
            values beside_as_much_as_is_allowed [direct];
            values beside_is_not_brought_back_by_a_repeated_write [direct];
            values beside_is_apart_by_queue [direct];
            late late_write_brings_nothing_beside_it [proxy];
            late late_open_after_close [proxy];
            late late_open_after_the_next_session [proxy];
            late late_enter_after_leave [proxy];
            late late_enter_of_a_shared_entry_after_leave [proxy];
            late late_enter_after_it_was_entered_and_left [proxy];
            late repeat_enter_while_the_first_is_late [proxy];
            late late_update_after_update [proxy];
            late late_update_after_leave [proxy];
            late exact_leave_that_is_late [proxy];
            late late_write_after_a_removal [proxy];
            late late_write_after_another [proxy];
            late write_once_though_it_arrives_twice [proxy];
            late effect_without_an_answer_is_unknown [proxy];
            watching recheck_gone_is_told_of_a_leave [direct];
            watching recheck_gone_is_told_of_the_end_of_a_session [direct];
            watching recheck_gone_is_told_of_an_update [direct];
            watching recheck_gone_of_what_is_gone_already [direct];
            watching recheck_gone_without_a_notification [proxy];
            watching recheck_changed_is_told_of_each_change [direct];
            watching recheck_changed_ends_though_nothing_changes [direct];
            watching recheck_changed_without_a_notification [proxy];
            watching bounded_gone_while_it_begins [proxy];
            watching bounded_gone_of_a_shared_waiter_while_it_begins [proxy];
            watching bounded_gone_while_it_waits [proxy];
            watching bounded_gone_of_a_shared_waiter_while_it_waits [proxy];
            watching bounded_gone_without_a_connection [proxy];
            watching bounded_changed_while_it_begins [proxy];
            watching bounded_changed_while_it_waits [proxy];
            watching no_retry_of_a_call_that_was_lost [proxy];
            watching cancel_safe_gone [direct];
        }
    };
    (@each table $($module:ident $check:ident [$need:ident];)+) => {
        &[$(Check {
            name: stringify!($check),
            needs_proxy: matches!(stringify!($need).as_bytes(), b"proxy"),
            run: |tested| Box::pin($module::$check(tested)),
        }),+]
    };
    (@each [$way:ident $run:path] $($module:ident $check:ident [$need:ident];)+) => {
        $($crate::store_suite! { @if $way $need $check $run })+
    };
    (@if direct proxy $check:ident $run:path) => {};
    (@if $way:ident $need:ident $check:ident $run:path) => {
        #[test]
        fn $check() {
            $run(stringify!($check));
        }
    };
    ($way:ident $run:path) => { $crate::store_suite! { @list [$way $run] } };
}

/// All checks.
pub const CHECKS: &[Check] = crate::store_suite!(@list table);

/// Runs the check of this name.
///
/// # Errors
///
/// Errors that the store returns where it should not.
///
/// # Panics
///
/// If what is checked does not hold, or if there is no such check.
pub async fn run(name: &str, access: &dyn StoreAccess, mistake: Option<Mistake>) -> Result<()> {
    let check = CHECKS.iter().find(|check| check.name == name).expect("a check of this name");
    let tested = TestStore::new(access, mistake);
    tokio::time::timeout(LIMIT, (check.run)(&tested)).await.expect("the check ends")
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: &str = include_str!("../backend/mod.rs");

    /// The names of the rules, in the form in which the checks' names begin with them.
    fn rules() -> Vec<String> {
        let listed =
            RULES.lines().filter_map(|line| line.strip_prefix("//! * `")?.split_once("`:"));
        listed.map(|(name, _)| name.replace('-', "_")).collect()
    }

    fn is_of(check: &Check, rule: &str) -> bool {
        let rest = check.name.strip_prefix(rule);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('_'))
    }

    #[test]
    fn every_rule_has_a_check() {
        assert!(rules().len() > 10, "the rules are listed in another way");
        for rule in rules() {
            assert!(CHECKS.iter().any(|check| is_of(check, &rule)), "{rule} has no check");
        }
    }

    #[test]
    fn every_check_has_a_rule() {
        for check in CHECKS {
            let rules: Vec<_> = rules().into_iter().filter(|rule| is_of(check, rule)).collect();
            assert_eq!(rules.len(), 1, "{}: {rules:?}", check.name);
        }
    }
}
