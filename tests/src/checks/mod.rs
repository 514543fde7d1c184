//! What must hold on every backend: plain async functions over a [`Stage`], one for each thing that the
//! contract promises; their names begin with the clause.
//!
//! [`conformance!`](crate::conformance) lists them, and on which stages each runs; a backend's test
//! file invokes it. Where a clause has nothing to say about a backend, [`NOT_APPLICABLE`] says why, and
//! a test compares the two with [`CLAUSES`].
//!
//! Time is real, also on memory: these checks run threads, processes and servers besides tasks. Bounds
//! are the contract's own, or ten times what is expected.

pub mod barrier;
pub mod cancellation;
pub mod closing;
pub mod election;
pub mod errors;
pub mod grants;
pub mod group;
pub mod interruption;
pub mod limiter;
pub mod liveness;
pub mod multi_lock;
pub mod once;
pub mod partition;
pub mod rate_limiter;
pub mod recipes;
pub mod reconnect;
pub mod rwlock;
pub mod safety;
pub mod semaphore;
mod stage;
pub mod timed_release;
pub mod timing;
pub mod tools;
pub mod value;

use std::io::Write as _;
use std::time::Duration;

use coordination::Result;

pub use stage::{Backend, Programs, SLACK, Stage};

/// No check takes longer, whatever hangs.
const LIMIT: Duration = Duration::from_secs(90);

/// Runs a check, and notes for `tests/run` that it passed.
///
/// # Errors
///
/// Those of the check.
///
/// # Panics
///
/// When what is checked does not hold.
pub fn run(
    (module, name): (&str, &str),
    stage: Stage,
    check: impl AsyncFnOnce(&Stage) -> Result<()>,
) -> Result<()> {
    trace();
    let backend = stage.backend();
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).enable_all().build().expect("a runtime");
    let outcome = runtime.block_on(async { tokio::time::timeout(LIMIT, check(&stage)).await });
    runtime.shutdown_timeout(Duration::from_secs(1));
    outcome.expect("the check ends")?;
    note(&format!("{backend:?}\t{module}\t{name}\n"));
    Ok(())
}

/// Adds a line to the list of what passed, which `COORDINATION_TEST_PASSED` names.
fn note(line: &str) {
    if let Some(path) = std::env::var_os("COORDINATION_TEST_PASSED") {
        let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
        // One write each: test processes of several backends may share the file.
        file.and_then(|mut file| file.write_all(line.as_bytes())).expect("the list can be written");
    }
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
            safety s1_exclusion_of_threads [memory file etcd];
            safety s1_exclusion_of_processes [file etcd];
            safety s2_tokens_rise_however_a_holder_ends [memory file etcd];
            safety s2_tokens_survive [file own_etcd];
            safety s3_loss_before_grant [etcd];
            safety s3_loss_before_grant_one_way [etcd];
            safety s4_a_late_heartbeat_revives_nothing [etcd];
            safety s4_a_broken_lock_stays_lost [memory file etcd];
            grants s5_an_old_guard_frees_nothing [memory file etcd];
            grants s5_releasing_one_lock_keeps_another [memory file etcd];
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
            timing t1_heartbeats_keep_a_lock_past_its_lease [etcd];
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
            closing c2_dropped_connects_and_stops [memory file etcd];
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
            rwlock w1_never_a_writer_with_anybody [memory file etcd];
            rwlock w1_readers_and_writers_of_processes [file etcd];
            rwlock w1_one_handle_shares_twice [memory file etcd];
            rwlock w1_two_handles_share [memory file etcd];
            rwlock w1_a_share_keeps_writers_out [memory file etcd];
            rwlock w1_a_writer_keeps_readers_out [memory file etcd];
            rwlock w1_a_waiting_writer_goes_first [memory file etcd];
            rwlock w1_order_of_a_mixed_queue [memory file etcd];
            rwlock w1_tokens_of_shares_lie_between [memory file etcd];
            rwlock w1_downgrade_lets_readers_in [memory file etcd];
            rwlock w1_downgrade_opens_the_lock [memory file etcd];
            rwlock w1_downgrade_after_a_loss [memory file etcd];
            rwlock w1_a_dropped_downgrade_releases [memory file etcd];
            rwlock w1_no_upgrade [memory file etcd];
            rwlock w1_a_dropped_share_leaves_nothing [memory file etcd];
            rwlock w1_a_writer_who_gives_up_blocks_nobody [memory file etcd];
            rwlock w1_a_session_that_ends_lets_others_in [memory file etcd];
            rwlock w1_own_entry_check_on_both_sides [file etcd];
            rwlock w1_killed_readers_and_writers_are_followed [file etcd];
            rwlock w1_a_reader_cut_off_knows_before_a_writer_is_let_in [etcd];
            timed_release tr1_never_early_and_soon_after [memory file etcd];
            timed_release tr1_a_time_that_has_passed [memory file etcd];
            timed_release tr1_a_time_without_end [memory file etcd];
            timed_release tr1_holds_do_not_overlap [memory file etcd];
            timed_release tr1_the_task_may_end [memory file etcd];
            timed_release tr1_the_runtime_may_end [file etcd];
            timed_release tr1_lost_before_its_time [memory file etcd];
            timed_release tr1_the_session_ends_before [memory file etcd];
            timed_release tr1_shares_and_permits [memory file etcd];
            timed_release tr1_a_killed_process_frees_it_before [file etcd];
            timed_release tr1_the_time_passes_during_an_outage [etcd];
            multi_lock ml1_names_are_sorted_and_taken_once [memory file etcd];
            multi_lock ml1_opposite_orders_do_not_deadlock [memory file etcd];
            multi_lock ml1_the_same_locks_in_the_order_of_asking [memory file etcd];
            multi_lock ml1_all_or_nothing [memory file etcd];
            multi_lock ml1_one_deadline [memory file etcd];
            multi_lock ml1_dropped_it_leaves_nothing [memory file etcd];
            multi_lock ml1_a_dropped_release_goes_on [memory file etcd];
            multi_lock ml1_one_that_is_lost_is_told [memory file etcd];
            multi_lock ml1_lost_while_waiting_for_the_next [memory file etcd];
            multi_lock ml1_the_end_of_the_session_takes_all [memory file etcd];
            multi_lock ml1_shares_of_several [memory file etcd];
            multi_lock ml1_all_let_go_by_themselves [memory file etcd];
            multi_lock ml1_a_killed_process_is_followed [file etcd];
            multi_lock ml1_cut_off_all_are_lost_before_another_is_granted [etcd];
            semaphore p1_never_more_than_there_are [memory file etcd];
            semaphore p1_first_come_first_served [memory file etcd];
            semaphore p1_another_number_is_an_error [memory file etcd];
            semaphore p1_resized [memory file etcd];
            semaphore p1_what_cannot_be_is_refused [memory file etcd];
            semaphore p2_cancelled_acquires_leak_nothing [memory file etcd];
            semaphore p2_timed_out_waiters_leave [memory file etcd];
            semaphore p2_a_lost_session_frees_its_permits [memory file etcd];
            semaphore p2_a_revoked_session_frees_its_permits [file etcd];
            semaphore p2_a_killed_holder_frees_its_permits [file etcd];
            semaphore p2_cut_off [etcd];
            limiter lm1_slots_and_refusals [memory file etcd];
            limiter lm1_other_numbers_are_an_error [memory file etcd];
            limiter lm1_never_more_than_there_are [memory file etcd];
            limiter lm2_standby_takes_over [memory file etcd];
            limiter lm2_newcomers_do_not_overtake [memory file etcd];
            limiter lm2_oldest_first [memory file etcd];
            limiter lm2_the_latest_wins [memory file etcd];
            limiter lm3_patience_is_kept [memory file etcd];
            limiter lm3_whoever_goes_leaves_nothing [memory file etcd];
            limiter lm3_a_lost_session_frees_its_slot [memory file etcd];
            limiter lm3_a_revoked_session_frees_its_slot [file etcd];
            limiter lm3_a_killed_worker_is_followed [file etcd];
            limiter lm3_cut_off [etcd];
            election e1_who_stands_is_elected [memory file etcd];
            election e1_names_are_apart [memory file etcd];
            election e1_leaders_make_room_in_turn [memory file etcd];
            election e1_one_leader_of_many [memory file etcd];
            election e1_first_come_first_elected [memory file etcd];
            election e1_a_dropped_campaign_leaves_no_candidacy [memory file etcd];
            election e1_a_campaign_in_vain_leaves_no_candidacy [memory file etcd];
            election e2_every_change_is_told [memory file etcd];
            election e2_the_last_proclaimed_value_counts [memory file etcd];
            election e2_observers_see_terms_rise [memory file etcd];
            election e2_observers_go_on_after_an_outage [etcd];
            election e2_terms_rise_over_a_restart [own_etcd];
            election e3_a_lost_leader_is_out [memory file etcd];
            election e3_an_old_resignation_removes_no_new_leader [memory file etcd];
            election e3_a_leader_cut_off_is_told_in_time [etcd];
            election e3_a_paused_leader_is_told_when_it_wakes [etcd];
            election e4_a_stopped_leader_is_followed [memory file etcd];
            election e4_a_killed_leader_is_followed [file etcd];
            value va1_of_many_writers_one_wins [memory file etcd];
            value va1_versions_rise_over_deletion [memory file etcd];
            value va1_updates_are_not_lost [memory file etcd];
            value va1_what_cannot_be_stored_is_refused [memory file etcd];
            value va1_outlives_its_writer [memory file etcd];
            value va1_values_survive [file own_etcd];
            value va1_a_lost_answer_is_found_or_told [etcd];
            value va2_counts_every_addition [memory file etcd];
            value va2_overflow_is_refused [memory file etcd];
            value va2_a_dropped_addition_counts_once_or_never [memory file etcd];
            value va2_a_killed_counter_has_counted [file etcd];
            value va2_a_lost_answer_counts_once [etcd];
            value va2_out_of_reach_is_told [etcd];
            value va3_every_change_is_told [memory file etcd];
            value va3_watchers_reach_the_last_value [memory file etcd];
            value va3_watchers_go_on_after_an_outage [etcd];
            value va3_watchers_survive_compaction [own_etcd];
            rate_limiter rl1_never_more_in_a_window [memory file etcd];
            rate_limiter rl1_crashes_and_restarts [file etcd];
            rate_limiter rl1_a_lost_session_changes_nothing [memory file etcd];
            rate_limiter rl1_other_settings_are_an_error [memory file etcd];
            rate_limiter rl1_names_are_apart [memory file etcd];
            rate_limiter rl1_several_limits [memory file etcd];
            rate_limiter rl1_one_in_a_millisecond [memory file etcd];
            rate_limiter rl2_never_told_to_come_too_early [memory file etcd];
            rate_limiter rl2_first_come_first_served [memory file etcd];
            rate_limiter rl2_dropped_waits_let_nobody_in [memory file etcd];
            rate_limiter rl2_too_long_fails_at_once [memory file etcd];
            rate_limiter rl2_without_a_runtime [memory file etcd];
            rate_limiter rl2_cut_off [etcd];
            once on1_one_of_many [memory file etcd];
            once on1_once_in_each_period [memory file etcd];
            once on1_aligned [memory file etcd];
            once on1_given_back_by_its_owner_only [memory file etcd];
            once on1_dropped_calls [memory file etcd];
            once on1_a_lost_session_changes_nothing [memory file etcd];
            once on1_a_killed_process_spends_the_period [file etcd];
            once on1_cut_off [etcd];
            barrier br1_lets_go_all_and_nobody_before [memory file etcd];
            barrier br1_what_was_just_closed_holds [memory file etcd];
            barrier br1_dropped_waits [memory file etcd];
            barrier br1_belongs_to_nobody [memory file etcd];
            barrier br1_stays_closed_after_a_kill [file etcd];
            barrier br1_without_a_runtime [memory file etcd];
            barrier br1_cut_off [etcd];
            barrier br2_together_in_and_out [memory file etcd];
            barrier br2_the_first_who_come [memory file etcd];
            barrier br2_who_gave_up_has_not_come [memory file etcd];
            barrier br2_a_lost_session_is_out [memory file etcd];
            barrier br2_a_killed_process_is_out [file etcd];
            barrier br2_cut_off [etcd];
            barrier br2_another_number_is_an_error [memory file etcd];
            barrier br3_each_count_counts_once [memory file etcd];
            barrier br3_dropped_waits [memory file etcd];
            barrier br3_counts_belong_to_nobody [memory file etcd];
            barrier br3_counts_survive_a_kill [file etcd];
            barrier br3_cut_off [etcd];
            barrier br3_another_count_is_an_error [memory file etcd];
            group g1_groups_are_created_listed_and_deleted [memory file etcd];
            group g1_listed_from_join_to_leave [memory file etcd];
            group g1_one_member_of_one_id [memory file etcd];
            group g1_contended_member_id [memory file etcd];
            group g1_nobody_is_in_a_group_that_is_gone [memory file etcd];
            group g1_members_with_capabilities [memory file etcd];
            group g1_strangers_are_no_members [etcd];
            group g1_dropped_join_leaves_nobody [memory file etcd];
            group g1_a_killed_member_goes [file etcd];
            group g1_stop_leaves_the_groups [memory file etcd];
            group g1_a_lost_session_is_out [file etcd];
            group g1_a_silent_member_is_dropped [etcd];
            group g2_joins_leaves_and_updates_in_order [memory file etcd];
            group g2_replay_gives_the_last_snapshot [memory file etcd];
            group g2_a_missing_group_is_not_watched [memory file etcd];
            group g2_a_deleted_group_ends_the_watch [memory file etcd];
            group g2_a_removed_member_is_told [memory file etcd];
            group g2_resync_after_an_outage [etcd];
            group g3_back_as_a_new_incarnation [memory file etcd];
            group g3_back_after_an_outage [etcd];
            group g3_leaving_is_for_good [memory file etcd];
            group g4_capabilities_change_at_once [memory file etcd];
            partition hr1_all_place_alike [memory file etcd];
            partition hr1_whoever_leaves_has_no_keys [memory file etcd];
            partition hr1_many_agree [memory file etcd];
            partition hr1_dropped_join_gets_no_keys [memory file etcd];
            partition hr1_odd_weights_count [memory file etcd];
            partition hr1_a_killed_process_loses_its_keys [file etcd];
            partition hr1_a_stopped_one_is_refused [memory file etcd];
            partition hr1_catches_up_after_an_outage [etcd];
        }
    };
    (@each table $($module:ident $check:ident [$($stage:ident)+];)+) => {
        &[$((stringify!($module), stringify!($check), &[$(stringify!($stage)),+])),+]
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
            let name = (stringify!($module), stringify!($check));
            $crate::checks::run(name, stage, $crate::checks::$module::$check)
        }
    };
    ($backend:ident) => { $crate::conformance! { @list $backend } };
}

/// Each check: its module, its name, and the stages on which it runs.
pub const CHECKS: &[(&str, &str, &[&str])] = crate::conformance!(@list table);

/// The clauses of the contract, and those that `docs/guarantees.md` adds for recipes.
pub const CLAUSES: &[&str] = &[
    "S1", "S2", "S3", "S4", "S5", "S6", "S7", "S8", "S9", "T1", "T2", "T3", "T4", "T5", "L1", "L2",
    "L3", "L4", "L5", "L6", "L7", "C1", "C2", "C3", "C4", "C5", "C6", "C7", "C8", "C9", "R1", "R2",
    "R3", "R4", "R5", "X1", "X2", "P1", "P2", "LM1", "LM2", "LM3", "E1", "E2", "E3", "E4", "VA1",
    "VA2", "VA3", "RL1", "RL2", "W1", "TR1", "ML1", "ON1", "BR1", "BR2", "BR3", "G1", "G2", "G3",
    "G4", "HR1",
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
        let stages = backend.stages();
        let mut of_clause = CHECKS.iter().filter(|(_, check, _)| check.starts_with(&prefix));
        of_clause.any(|(_, _, on)| on.iter().any(|stage| stages.contains(stage)))
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
        for (_, check, _) in CHECKS {
            let clause = check.split('_').next().map(str::to_uppercase).unwrap_or_default();
            assert!(CLAUSES.contains(&clause.as_str()), "{check}");
        }
    }
}
