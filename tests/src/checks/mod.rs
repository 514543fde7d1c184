//! What must hold on every backend: plain async functions over a [`Stage`], one for each thing that the
//! contract promises; their names begin with the clause.
//!
//! [`conformance!`](crate::conformance) lists them, and on which stages each runs; a backend's test
//! file invokes it. Where a clause has nothing to say about a backend, [`NOT_APPLICABLE`] says why, and
//! a test compares the two with [`CLAUSES`].
//!
//! Time is real, also on memory: these checks run threads, processes and servers besides tasks. Bounds
//! are the contract's own, or ten times what is expected.

pub mod cancellation;
pub mod closing;
pub mod errors;
pub mod grants;
pub mod liveness;
pub mod reconnect;
pub mod safety;
mod stage;
pub mod timing;
pub mod tools;

use std::time::Duration;

use coordination::Result;

pub use stage::{Backend, Programs, SLACK, Stage};

/// No check takes longer, whatever hangs.
const LIMIT: Duration = Duration::from_secs(90);

/// Runs a check.
///
/// # Errors
///
/// Those of the check.
///
/// # Panics
///
/// When what is checked does not hold.
pub fn run(stage: Stage, check: impl AsyncFnOnce(&Stage) -> Result<()>) -> Result<()> {
    trace();
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).enable_all().build().expect("a runtime");
    let outcome = runtime.block_on(async { tokio::time::timeout(LIMIT, check(&stage)).await });
    runtime.shutdown_timeout(Duration::from_secs(1));
    outcome.expect("the check ends")
}

/// With `COORDINATION_TEST_TRACE=1`, what the library traces goes to standard error.
fn trace() {
    if std::env::var_os("COORDINATION_TEST_TRACE").is_some() {
        let subscriber = tracing_subscriber::fmt().with_max_level(tracing::Level::DEBUG);
        // Another test of this process may have set it.
        let _ = subscriber.with_writer(std::io::stderr).with_ansi(false).try_init();
    }
}

/// Lists the checks and makes them tests of a backend: `conformance!(memory)`.
#[macro_export]
macro_rules! conformance {
    (@list $to:ident) => {
        $crate::conformance! { @each $to
            safety s1_timed_exclusion [memory file etcd];
            safety s1_exclusion_of_processes [file etcd];
            safety s2_tokens_rise_however_a_holder_ends [memory file etcd];
            safety s2_tokens_survive [file own_etcd];
            safety s3_loss_before_grant [etcd];
            safety s3_loss_before_grant_one_way [etcd];
            safety s4_a_late_heartbeat_revives_nothing [etcd];
            safety s4_a_broken_lock_stays_lost [memory file etcd];
            grants s5_an_old_guard_frees_nothing [memory file etcd];
            grants s5_a_cancelled_release_frees_its_own_grant_only [memory file etcd];
            grants s6_broken_while_it_changes_hands [memory file etcd];
            grants s6_entry_removed_while_waiting [etcd];
            grants s6_session_removed_while_waiting [file];
            grants s7_not_reentrant [memory file etcd];
            grants s8_names_are_injective [memory file etcd];
            grants s8_namespaces_and_prefixes_are_apart [memory file etcd];
            grants s9_a_lost_answer_leaves_one_entry [etcd];
            grants s9_a_lost_answer_nobody_waits_for [etcd];
            timing t1_not_held_from_the_deadline_on [etcd];
            timing t1_needs_no_executor [etcd];
            timing t1_a_blocked_executor_loses_nothing [etcd];
            timing t2_told_within_50_ms_of_the_deadline [etcd];
            timing t2_told_within_50_ms_of_waking [etcd];
            timing t3_told_of_a_broken_lock [memory file etcd];
            timing t3_told_of_a_deleted_key [etcd];
            timing t3_told_of_a_revoked_session [file etcd];
            timing t4_suspended_is_not_lost [etcd];
            timing t5_closed_is_the_last_state [memory file etcd];
            timing t5_every_state_in_order [etcd];
            timing t5_the_reason_is_told [file etcd];
            liveness l1_a_killed_holder_is_followed [file etcd];
            liveness l1_a_paused_holder_keeps_a_lock_without_lease [file];
            liveness l2_no_wake_up_is_lost [memory file etcd];
            liveness l2_every_waiter_is_served [memory file etcd];
            liveness l3_cancelled_waiters_do_not_block [memory file etcd];
            liveness l3_killed_waiters_delay_once [file etcd];
            liveness l4_timeouts_are_kept [memory file etcd];
            liveness l4_timeouts_are_kept_while_the_store_hangs [own_etcd];
            liveness l4_a_waiter_cut_off_returns_in_time [etcd];
            closing l5_recovers_after_an_outage [own_etcd];
            closing l5_recovers_after_the_directory_was_away [file];
            closing l6_stop_is_confirmed [memory file etcd];
            closing l6_stop_is_bounded [own_etcd];
            liveness l7_a_thousand_waiters [memory file etcd];
            liveness l7_first_come_first_served [memory file etcd];
            cancellation c1_dropped_acquire_leaves_nothing [memory file etcd];
            cancellation c1_dropped_waiting_acquire_leaves_nothing [memory file etcd];
            cancellation c1_however_it_is_cancelled [memory file etcd];
            cancellation c2_timed_out_waiters_leave_the_queue [memory file etcd];
            cancellation c2_cancelled_during_an_outage [etcd];
            cancellation c4_drop_outside_of_a_runtime [memory file etcd];
            cancellation c4_drop_at_the_end_of_a_thread [memory file etcd];
            cancellation c4_drop_after_the_runtime [memory file etcd];
            cancellation c4_drop_never_blocks [etcd];
            cancellation c5_release_tells [memory file etcd];
            cancellation c5_unknown_is_told_and_goes_on [etcd];
            cancellation c5_lost_while_releasing [etcd];
            cancellation c5_cancelled_release_goes_on [memory file etcd];
            cancellation c6_nothing_is_renewed_after_release [memory file etcd];
            closing c7_dropped_coordinator_loses_its_guards [memory file etcd];
            closing c7_dropped_while_the_store_hangs [etcd];
            closing c7_ended_runtime_loses_its_guards [memory file etcd];
            closing c7_own_thread_outlives_the_runtime [file etcd];
            cancellation c8_panic_releases [memory file etcd];
            closing c9_forked_child_holds_nothing [memory file etcd];
            reconnect r1_a_reset_keeps_the_session [etcd];
            reconnect r1_one_reset_suspends_at_most_once [etcd];
            reconnect r2_watches_stand_again [etcd];
            reconnect r2_a_later_release_is_seen [etcd];
            reconnect r2_compaction_is_survived [own_etcd];
            reconnect r2_a_missed_deletion_is_noticed [etcd];
            reconnect r3_no_entry_outlives_its_session [file etcd];
            reconnect r4_reconnects_back_off [own_etcd];
            reconnect r5_a_new_session_after_a_loss [file etcd];
            errors x1_configuration_is_refused_at_connect [memory file etcd];
            errors x1_kinds_of_every_backend [memory file etcd];
            errors x1_kinds_of_a_directory [file];
            errors x1_kinds_of_a_server [etcd];
            errors x1_no_answer_is_unknown [etcd];
            errors x2_the_body_is_dropped_on_loss [memory file etcd];
            errors x2_the_body_finishes_if_asked_to [memory file etcd];
            errors x2_a_thread_is_told_afterwards [memory file etcd];
            errors x2_the_result_is_the_bodys [memory file etcd];
        }
    };
    (@each table $($module:ident $check:ident [$($stage:ident)+];)+) => {
        &[$((stringify!($check), &[$(stringify!($stage)),+])),+]
    };
    (@each $backend:ident $($module:ident $check:ident [$($stage:ident)+];)+) => {
        $($($crate::conformance! { @if $backend $stage $module $check })+)+
    };
    (@if memory memory $module:ident $check:ident) => {
        $crate::conformance! { @test memory $module $check }
    };
    (@if file file $module:ident $check:ident) => {
        $crate::conformance! { @test file $module $check }
    };
    (@if etcd etcd $module:ident $check:ident) => {
        $crate::conformance! { @test etcd $module $check }
    };
    (@if etcd own_etcd $module:ident $check:ident) => {
        $crate::conformance! { @test own_etcd $module $check }
    };
    (@if $backend:ident $stage:ident $module:ident $check:ident) => {};
    (@test $stage:ident $module:ident $check:ident) => {
        #[test]
        fn $check() -> ::coordination::Result<()> {
            let programs = $crate::checks::Programs {
                worker: env!("CARGO_BIN_EXE_worker"),
                forker: env!("CARGO_BIN_EXE_forker"),
            };
            let stage = $crate::checks::Stage::$stage(programs);
            $crate::checks::run(stage, $crate::checks::$module::$check)
        }
    };
    ($backend:ident) => { $crate::conformance! { @list $backend } };
}

/// Each check by its name, and the stages on which it runs.
pub const CHECKS: &[(&str, &[&str])] = crate::conformance!(@list table);

/// The clauses of the contract that a lock has to keep.
pub const CLAUSES: &[&str] = &[
    "S1", "S2", "S3", "S4", "S5", "S6", "S7", "S8", "S9", "T1", "T2", "T3", "T4", "T5", "L1", "L2",
    "L3", "L4", "L5", "L6", "L7", "C1", "C2", "C3", "C4", "C5", "C6", "C7", "C8", "C9", "R1", "R2",
    "R3", "R4", "R5", "X1", "X2",
];

const NO_LEASE: &str = "a session has no lease: it lives as long as its process, so no deadline can \
                        pass, and nothing is granted to others before its end";
const NO_ANSWER: &str =
    "a call is carried out in this process: it has no answer that could be lost";
const NO_CONNECTION: &str = "there is no connection that could be lost";
const NO_SQL: &str = "it has no SQL connections";
const ONE_PROCESS: &str = "the store ends with the process";

/// Clauses that say nothing about a backend, and why.
pub const NOT_APPLICABLE: &[(&str, Backend, &str)] = &[
    ("S3", Backend::Memory, NO_LEASE),
    ("S3", Backend::File, NO_LEASE),
    ("S9", Backend::Memory, NO_ANSWER),
    ("S9", Backend::File, NO_ANSWER),
    ("T1", Backend::Memory, NO_LEASE),
    ("T1", Backend::File, NO_LEASE),
    ("T2", Backend::Memory, NO_LEASE),
    ("T2", Backend::File, NO_LEASE),
    ("T4", Backend::Memory, NO_CONNECTION),
    ("T4", Backend::File, NO_CONNECTION),
    ("L1", Backend::Memory, ONE_PROCESS),
    ("L5", Backend::Memory, ONE_PROCESS),
    ("C3", Backend::Memory, NO_SQL),
    ("C3", Backend::File, NO_SQL),
    ("C3", Backend::Etcd, NO_SQL),
    ("R1", Backend::Memory, NO_CONNECTION),
    ("R1", Backend::File, NO_CONNECTION),
    ("R2", Backend::Memory, NO_CONNECTION),
    ("R2", Backend::File, NO_CONNECTION),
    ("R3", Backend::Memory, "its sessions cannot be lost but by the end of their coordinator"),
    ("R4", Backend::Memory, NO_CONNECTION),
    ("R4", Backend::File, NO_CONNECTION),
    ("R5", Backend::Memory, "its sessions cannot be lost but by the end of their coordinator"),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn is_checked(clause: &str, backend: Backend) -> bool {
        let prefix = format!("{}_", clause.to_lowercase());
        let stages: &[&str] = match backend {
            Backend::Memory => &["memory"],
            Backend::File => &["file"],
            Backend::Etcd => &["etcd", "own_etcd"],
        };
        let mut of_clause = CHECKS.iter().filter(|(check, _)| check.starts_with(&prefix));
        of_clause.any(|(_, on)| on.iter().any(|stage| stages.contains(stage)))
    }

    #[test]
    fn every_clause_has_a_check_or_a_reason_on_every_backend() {
        for clause in CLAUSES {
            for backend in [Backend::Memory, Backend::File, Backend::Etcd] {
                let excused =
                    NOT_APPLICABLE.iter().any(|(id, on, _)| id == clause && *on == backend);
                let checked = is_checked(clause, backend);
                assert_ne!(excused, checked, "{clause} on {backend:?}: a check, or a reason");
            }
        }
    }

    #[test]
    fn every_check_names_its_clause() {
        for (check, _) in CHECKS {
            let clause = check.split('_').next().map(str::to_uppercase).unwrap_or_default();
            assert!(CLAUSES.contains(&clause.as_str()), "{check}");
        }
    }
}
