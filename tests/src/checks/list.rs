//! The list of all checks: on which stores each check runs, and in which script.

use super::Backend;

/// A row of the list.
#[derive(Clone, Copy, Debug)]
pub struct Check {
    /// The module of this folder that has the check.
    pub module: &'static str,
    /// The name of the check's function, which begins with the clause.
    pub name: &'static str,
    /// The [groups](Backend::is_in) of stores on which the check runs.
    pub groups: &'static [&'static str],
    /// On which of these stores the gate runs the check: `gate` or `two`, see [`conformance!`](crate::conformance).
    pub gate: &'static str,
}

impl Check {
    /// Whether the gate runs the check on this store.
    pub fn is_in_gate(&self, backend: Backend) -> bool {
        let runs = backend.has_all_at_once() || self.gate == "gate";
        backend.is_in_gate() && backend.is_in(self.groups) && runs
    }
}

/// All checks.
pub const CHECKS: &[Check] = crate::conformance!(@list table);

/// Lists the checks, and makes tests of them, in a module for each store: `conformance!(gate)` makes those that the
/// gate runs, `conformance!(soak)` those that are left for the soak.
///
/// `conformance!(settings)` makes tests of all checks in each [setting](super::Setting).
///
/// The last column of a row says on which stores the gate runs the check:
///
/// * `gate`: on each store of the check's groups.
/// * `two`: only on stores whose share is `all` in the [table of stores](crate::store_table). The check tests the
///   recipe's own code, so checks on other stores would show nothing more. In the gate, these stores are memory and
///   Redis, the server that needs the least of the machine.
#[macro_export]
macro_rules! conformance {
    (@list $to:tt) => {
        $crate::conformance! { @each $to
            safety s1_timed_exclusion [everywhere] gate;
            safety s1_exclusion_of_threads [everywhere] gate;
            safety s1_exclusion_of_processes [processes] gate;
            safety s2_tokens_rise_however_a_holder_ends [everywhere] gate;
            safety s2_tokens_survive [file own_server] gate;
            safety s3_loss_before_grant [servers] gate;
            safety s3_loss_before_grant_one_way [servers] gate;
            safety s4_a_late_heartbeat_revives_nothing [servers] gate;
            safety s4_a_broken_lock_stays_lost [everywhere] gate;
            grants s5_an_old_guard_frees_nothing [everywhere] gate;
            grants s5_releasing_one_lock_keeps_another [everywhere] gate;
            grants s5_a_cancelled_release_frees_its_own_grant_only [everywhere] gate;
            grants s6_broken_while_it_changes_hands [everywhere] gate;
            grants s6_entry_removed_while_waiting [servers] gate;
            grants s6_session_removed_while_waiting [file] gate;
            grants s7_not_reentrant [everywhere] gate;
            grants s8_names_are_injective [everywhere] gate;
            grants s8_namespaces_and_prefixes_are_apart [everywhere] gate;
            grants s8_urls_are_apart [everywhere] gate;
            grants s9_a_lost_answer_leaves_one_entry [servers] gate;
            grants s9_a_lost_answer_nobody_waits_for [servers] gate;
            timing t1_not_held_from_the_deadline_on [servers] gate;
            timing t1_heartbeats_keep_a_lock_past_its_lease [servers] gate;
            timing t1_needs_no_executor [servers] gate;
            timing t1_a_blocked_executor_loses_nothing [servers] gate;
            timing t2_told_within_50_ms_of_the_deadline [servers] gate;
            timing t2_told_within_50_ms_of_waking [servers] gate;
            timing t3_told_of_a_broken_lock [everywhere] gate;
            timing t3_told_of_a_deleted_key [servers] gate;
            timing t3_one_of_many_is_told [servers] gate;
            timing t3_told_of_a_revoked_session [processes] gate;
            timing t4_suspended_is_not_lost [servers] gate;
            timing t5_closed_is_the_last_state [everywhere] gate;
            timing t5_every_state_in_order [servers] gate;
            timing t5_the_reason_is_told [processes] gate;
            liveness l1_a_killed_holder_is_followed [file own_server] gate;
            liveness l1_a_paused_holder_keeps_a_lock_without_lease [file] gate;
            liveness l2_no_wake_up_is_lost [everywhere] gate;
            liveness l2_every_waiter_is_served [everywhere] gate;
            liveness l2_loops_share_alike [everywhere] gate;
            liveness l2_turns_are_not_delayed_by_other_writes [everywhere] gate;
            liveness l3_cancelled_waiters_do_not_block [everywhere] gate;
            liveness l3_killed_waiters_delay_once [processes] gate;
            liveness l4_timeouts_are_kept [everywhere] gate;
            liveness l4_timeouts_are_kept_while_the_store_hangs [own_server] gate;
            liveness l4_a_waiter_cut_off_returns_in_time [servers] gate;
            closing l5_recovers_after_an_outage [own_server] gate;
            closing l5_recovers_after_the_directory_was_away [file] gate;
            outlasting l5_waits_outlast_refusals [servers] two;
            outlasting l5_waits_outlast_silence [servers] two;
            outlasting l5_waits_outlast_a_missing_name [servers] two;
            closing l6_stop_is_confirmed [everywhere] gate;
            closing l6_stop_is_bounded [own_server] gate;
            draining l8_holders_finish_and_all_others_are_refused [everywhere] gate;
            draining l8_who_does_not_finish_is_told [everywhere] gate;
            draining l8_however_often_it_is_stopped [everywhere] gate;
            draining l8_nothing_is_cut_off_between_two_steps [everywhere] gate;
            draining l8_bounded_while_the_store_hangs [servers] gate;
            liveness l7_a_thousand_waiters [everywhere] two;
            liveness l7_first_come_first_served [everywhere] gate;
            cancellation c1_dropped_acquire_leaves_nothing [everywhere] gate;
            cancellation c1_dropped_waiting_acquire_leaves_nothing [everywhere] gate;
            cancellation c1_however_it_is_cancelled [everywhere] gate;
            cancellation c2_timed_out_waiters_leave_the_queue [everywhere] gate;
            cancellation c2_cancelled_during_an_outage [servers] gate;
            cancellation c3_a_late_answer_is_nobodys [servers] gate;
            cancellation c4_drop_outside_of_a_runtime [everywhere] gate;
            cancellation c4_drop_at_the_end_of_a_thread [everywhere] gate;
            cancellation c4_drop_after_the_runtime [everywhere] gate;
            cancellation c4_drop_never_blocks [servers] gate;
            cancellation c5_release_tells [everywhere] gate;
            cancellation c5_unknown_is_told_and_goes_on [servers] gate;
            cancellation c5_lost_while_releasing [servers] gate;
            cancellation c5_cancelled_release_goes_on [everywhere] gate;
            cancellation c6_nothing_is_renewed_after_release [everywhere] gate;
            closing c2_dropped_connects_and_stops [everywhere] gate;
            closing c7_a_guard_keeps_its_session [everywhere] gate;
            closing c7_the_last_guard_is_dropped [everywhere] gate;
            closing c7_dropped_while_the_store_hangs [servers] gate;
            closing c7_ended_runtime_loses_its_guards [everywhere] gate;
            closing c7_own_thread_outlives_the_runtime [processes] gate;
            cancellation c8_panic_releases [everywhere] gate;
            closing c9_forked_child_holds_nothing [everywhere] gate;
            closing c9_whatever_a_forked_child_drops [everywhere] gate;
            reconnect r1_a_reset_keeps_the_session [servers] gate;
            reconnect r1_one_reset_suspends_at_most_once [servers] gate;
            reconnect r2_watches_stand_again [servers] gate;
            reconnect r2_a_later_release_is_seen [servers] gate;
            reconnect r2_compaction_is_survived [own_server] gate;
            reconnect r2_a_missed_deletion_is_noticed [servers] gate;
            reconnect r3_no_entry_outlives_its_session [processes] gate;
            reconnect r4_reconnects_back_off [own_server] gate;
            reconnect r5_a_new_session_after_a_loss [processes] gate;
            errors x1_configuration_is_refused_at_connect [everywhere] gate;
            errors x1_kinds_of_every_backend [everywhere] gate;
            errors x1_kinds_of_a_directory [file] gate;
            errors x1_kinds_of_a_server [servers] gate;
            errors x1_no_answer_is_unknown [servers] gate;
            errors x2_the_body_is_dropped_on_loss [everywhere] gate;
            errors x2_the_body_finishes_if_asked_to [everywhere] gate;
            errors x2_a_thread_is_told_afterwards [everywhere] gate;
            errors x2_the_result_is_the_bodys [everywhere] gate;
            effects x2b_the_effect_says_where_the_body_stood [everywhere] gate;
            effects x2b_a_body_that_never_began_has_no_effect [everywhere] gate;
            effects x2b_by_hand [everywhere] gate;
            effects x2b_a_release_that_is_not_confirmed_fails_nothing [servers] gate;
            effects x2b_a_watch_of_a_loss_keeps_nothing [everywhere] gate;
            with x2c_the_result_is_the_bodys [everywhere] gate;
            with x2c_a_loss_cancels_the_body [everywhere] gate;
            with x2c_a_success_after_a_loss_is_replaced [everywhere] gate;
            with x2c_out_of_time_the_body_never_begins [everywhere] two;
            with x2c_a_panic_releases [everywhere] gate;
            with x2c_a_dropped_future_releases [everywhere] gate;
            with x2c_a_guard_that_was_lost_runs_nothing [everywhere] two;
            with x2c_whatever_is_held [everywhere] gate;
            rwlock w1_never_a_writer_with_anybody [everywhere] gate;
            rwlock w1_readers_and_writers_of_processes [processes] gate;
            rwlock w1_one_handle_shares_twice [everywhere] two;
            rwlock w1_two_handles_share [everywhere] two;
            rwlock w1_a_share_keeps_writers_out [everywhere] two;
            rwlock w1_a_writer_keeps_readers_out [everywhere] two;
            rwlock w1_a_waiting_writer_goes_first [everywhere] two;
            rwlock w1_order_of_a_mixed_queue [everywhere] gate;
            rwlock w1_tokens_of_shares_lie_between [everywhere] two;
            rwlock w1_downgrade_lets_readers_in [everywhere] gate;
            rwlock w1_downgrade_opens_the_lock [everywhere] two;
            rwlock w1_a_downgrade_behind_many_opens_the_lock [everywhere] gate;
            rwlock w1_downgrade_after_a_loss [everywhere] two;
            rwlock w1_sharing_keeps_the_guard [everywhere] gate;
            rwlock w1_a_dropped_downgrade_releases [everywhere] gate;
            rwlock w1_no_upgrade [everywhere] two;
            rwlock w1_a_dropped_share_leaves_nothing [everywhere] gate;
            rwlock w1_a_writer_who_gives_up_blocks_nobody [everywhere] two;
            rwlock w1_a_session_that_ends_lets_others_in [everywhere] gate;
            rwlock w1_own_entry_check_on_both_sides [processes] gate;
            rwlock w1_killed_readers_and_writers_are_followed [processes] gate;
            rwlock w1_a_reader_cut_off_knows_before_a_writer_is_let_in [servers] gate;
            release_request rr1_the_holder_is_asked [everywhere] gate;
            release_request rr1_asked_before_it_listens [everywhere] two;
            release_request rr1_who_follows_is_not_asked [everywhere] gate;
            release_request rr1_all_who_share_are_asked [everywhere] gate;
            release_request rr1_dropped_futures_forget_nothing [everywhere] two;
            release_request rr1_a_loss_ends_the_wait [everywhere] two;
            release_request rr1_a_lost_notification_only_delays [servers] gate;
            cohort lc1_turns_exclude_each_other_and_their_tokens_rise [everywhere] gate;
            cohort lc1_a_lock_that_is_taken_away_ends_the_batch [everywhere] gate;
            cohort lc1_dropped_futures_pass_it_on [everywhere] two;
            cohort x2c_a_loss_ends_the_body_of_a_turn [everywhere] two;
            cohort lc2_others_have_their_turn_between_batches [everywhere] gate;
            cohort lc2_no_turn_begins_after_the_time_of_its_batch [everywhere] two;
            cohort rr1_a_cohort_that_is_asked_lets_go_after_the_turn [everywhere] gate;
            cohort rr1_a_long_batch_lets_go_although_no_task_listens [everywhere] two;
            timed_release tr1_never_early_and_soon_after [everywhere] gate;
            timed_release tr1_a_time_that_has_passed [everywhere] two;
            timed_release tr1_a_time_without_end [everywhere] two;
            timed_release tr1_holds_do_not_overlap [everywhere] two;
            timed_release tr1_the_task_may_end [everywhere] two;
            timed_release tr1_the_runtime_may_end [processes] gate;
            timed_release tr1_lost_before_its_time [everywhere] two;
            timed_release tr1_the_session_ends_before [everywhere] gate;
            timed_release tr1_it_keeps_the_session [everywhere] two;
            timed_release tr1_shares_and_permits [everywhere] two;
            timed_release tr1_a_killed_process_frees_it_before [processes] gate;
            timed_release tr1_the_time_passes_during_an_outage [servers] gate;
            multi_lock ml1_names_are_sorted_and_taken_once [everywhere] two;
            multi_lock ml1_opposite_orders_do_not_deadlock [everywhere] gate;
            multi_lock ml1_the_same_locks_in_the_order_of_asking [everywhere] two;
            multi_lock ml1_all_or_nothing [everywhere] gate;
            multi_lock ml1_one_deadline [everywhere] two;
            multi_lock ml1_late_behind_the_first [everywhere] two;
            multi_lock ml1_dropped_it_leaves_nothing [everywhere] gate;
            multi_lock ml1_a_dropped_release_goes_on [everywhere] gate;
            multi_lock ml1_one_that_is_lost_is_told [everywhere] two;
            multi_lock ml1_lost_while_waiting_for_the_next [everywhere] two;
            multi_lock ml1_the_end_of_the_session_takes_all [everywhere] gate;
            multi_lock ml1_shares_of_several [everywhere] two;
            multi_lock ml1_all_let_go_by_themselves [everywhere] two;
            multi_lock ml1_a_killed_process_is_followed [processes] gate;
            multi_lock ml1_cut_off_all_are_lost_before_another_is_granted [servers] gate;
            semaphore p1_never_more_than_there_are [everywhere] gate;
            semaphore p1_first_come_first_served [everywhere] gate;
            semaphore p1_another_number_is_an_error [everywhere] gate;
            semaphore p1_resized [everywhere] two;
            semaphore p1_what_cannot_be_is_refused [everywhere] two;
            semaphore p2_cancelled_acquires_leak_nothing [everywhere] gate;
            semaphore p2_timed_out_waiters_leave [everywhere] two;
            semaphore p2_a_lost_session_frees_its_permits [everywhere] gate;
            semaphore p2_a_grant_is_taken_away_by_its_token [everywhere] two;
            semaphore p2_a_revoked_session_frees_its_permits [processes] gate;
            semaphore p2_a_killed_holder_frees_its_permits [processes] gate;
            semaphore p2_cut_off [servers] gate;
            limiter lm1_slots_and_refusals [everywhere] gate;
            limiter lm1_other_numbers_are_an_error [everywhere] two;
            limiter lm1_never_more_than_there_are [everywhere] gate;
            limiter lm2_standby_takes_over [everywhere] two;
            limiter lm2_newcomers_do_not_overtake [everywhere] two;
            limiter lm2_oldest_first [everywhere] gate;
            limiter lm2_the_latest_wins [everywhere] gate;
            limiter lm3_patience_is_kept [everywhere] two;
            limiter lm3_whoever_goes_leaves_nothing [everywhere] gate;
            limiter lm3_a_lost_session_frees_its_slot [everywhere] gate;
            limiter lm3_a_slot_is_taken_away_by_its_token [everywhere] two;
            limiter lm3_a_revoked_session_frees_its_slot [processes] gate;
            limiter lm3_a_killed_worker_is_followed [processes] gate;
            limiter lm3_cut_off [servers] gate;
            election e1_who_stands_is_elected [everywhere] gate;
            election e1_names_are_apart [everywhere] two;
            election e1_leaders_make_room_in_turn [everywhere] two;
            election e1_one_leader_of_many [everywhere] gate;
            election e1_first_come_first_elected [everywhere] gate;
            election e1_a_dropped_campaign_leaves_no_candidacy [everywhere] gate;
            election e1_a_campaign_in_vain_leaves_no_candidacy [everywhere] two;
            election e2_every_change_is_told [everywhere] gate;
            election e2_the_last_proclaimed_value_counts [everywhere] two;
            election e2_observers_see_terms_rise [everywhere] gate;
            election e2_observers_go_on_after_an_outage [servers] gate;
            election e2_terms_rise_over_a_restart [own_server] gate;
            election e3_a_lost_leader_is_out [everywhere] gate;
            election e3_a_term_is_taken_away [everywhere] two;
            election e3_an_old_resignation_removes_no_new_leader [everywhere] two;
            election e3_a_leader_cut_off_is_told_in_time [servers] gate;
            election e3_a_paused_leader_is_told_when_it_wakes [servers] gate;
            election e4_a_stopped_leader_is_followed [everywhere] two;
            election e4_a_killed_leader_is_followed [processes] gate;
            value va1_of_many_writers_one_wins [everywhere] gate;
            value va1_versions_rise_over_deletion [everywhere] gate;
            value va1_updates_are_not_lost [everywhere] gate;
            value va1_what_cannot_be_stored_is_refused [everywhere] gate;
            value va1_outlives_its_writer [everywhere] gate;
            value va1_values_survive [file own_server] gate;
            value va1_a_lost_answer_is_found_or_told [servers] gate;
            value va2_counts_every_addition [everywhere] gate;
            value va2_overflow_is_refused [everywhere] gate;
            value va2_a_dropped_addition_counts_once_or_never [everywhere] gate;
            value va2_a_killed_counter_has_counted [processes] gate;
            value va2_a_lost_answer_counts_once [servers] gate;
            value va2_a_lost_request_is_settled [servers] two;
            value va2_out_of_reach_is_told [servers] gate;
            value va3_every_change_is_told [everywhere] gate;
            value va3_watchers_reach_the_last_value [everywhere] gate;
            value va3_watchers_go_on_after_an_outage [servers] gate;
            value va3_watchers_survive_compaction [own_server] gate;
            rate_limiter rl1_never_more_in_a_window [everywhere] gate;
            rate_limiter rl1_crashes_and_restarts [processes] gate;
            rate_limiter rl1_a_lost_session_changes_nothing [everywhere] gate;
            rate_limiter rl1_other_settings_are_an_error [everywhere] two;
            rate_limiter rl1_names_are_apart [everywhere] two;
            rate_limiter rl1_several_limits [everywhere] two;
            rate_limiter rl1_one_in_a_millisecond [everywhere] two;
            rate_limiter rl2_callers_that_come_and_go_are_served [everywhere] gate;
            rate_limiter rl2_a_raised_limit_is_there_at_once [everywhere] two;
            rate_limiter rl2_never_told_to_come_too_early [everywhere] gate;
            rate_limiter rl2_first_come_first_served [everywhere] gate;
            rate_limiter rl2_dropped_waits_let_nobody_in [everywhere] gate;
            rate_limiter rl2_too_long_fails_at_once [everywhere] two;
            rate_limiter rl2_without_a_runtime [everywhere] two;
            rate_limiter rl2_cut_off [servers] gate;
            work wk1_no_item_is_had_by_two [everywhere] gate;
            work wk2_lifecycle [everywhere] gate;
            work wk2_five_claims_of_ten_leave_one_of_51 [everywhere] two;
            work wk2_claimers_at_once [everywhere] gate;
            work wk2_a_delayed_item_stays [everywhere] gate;
            work wk2_dead_letters [everywhere] gate;
            work wk2_list_pop_and_delete [everywhere] gate;
            work wk2_dead_items_go [everywhere] gate;
            work wk2_counts_follow_each_call [everywhere] gate;
            work wk2_dead_items_are_collected_once [everywhere] gate;
            work wk2_out_of_range [everywhere] gate;
            work wk3_who_may_acknowledge [everywhere] gate;
            work wk3_an_operator_takes_a_claim_away [everywhere] gate;
            work wk5_a_repeated_claim_is_the_same [everywhere] gate;
            work_busy wk7_a_reader_beside_many_writers [everywhere] gate;
            work_busy wk7_a_far_client_beside_many_writers [servers] gate;
            work_busy wk7_writers_have_their_turn [everywhere] gate;
            work_defects wk1_a_live_claim_between_free_items [everywhere] gate;
            work_defects wk2_a_claim_outlasts_the_life_of_its_item [everywhere] gate;
            work_defects wk2_dead_items_in_front [everywhere] two;
            work_defects wk2_lives_of_claimed_items [everywhere] two;
            work_defects wk3_a_renewal_revives_nothing [everywhere] two;
            work_defects wk3_renewals_are_no_claims [everywhere] two;
            work_defects wk3_there_or_not [everywhere] gate;
            work_defects wk4_killed_within_a_claim [file own_server] gate;
            work_life wk3_a_claim_ends_with_its_ttl [everywhere] gate;
            work_life wk3_a_claim_is_kept_alive [everywhere] two;
            work_life wk4_a_killed_workers_items_come_back [file own_server] gate;
            work_life wk4_a_lost_sessions_items_come_back [everywhere] gate;
            work_life wk4_a_detached_claim_outlives_its_session [everywhere] gate;
            work_life wk4_a_dropped_claim_gives_back [everywhere] gate;
            work_life wk4_dropped_claims_leave_nothing [everywhere] gate;
            work_life wk5_a_lost_answer_leaves_one_claim [servers] two;
            work_life wk6_waiting [everywhere] gate;
            work_life wk6_cut_off [servers] gate;
            work_odd wk2_large_dead_letters [everywhere] gate;
            work_odd wk2_claims_of_a_thousand [everywhere] gate;
            work_odd wk2_a_dropped_claim_does_not_count [everywhere] two;
            work_odd wk2_wider_limits [everywhere] two;
            work_odd wk3_a_shorter_claim_is_kept_alive [everywhere] two;
            work_odd wk3_a_claim_is_kept_alive_late [everywhere] two;
            work_odd wk3_a_shorter_claim_is_not_relied_on [everywhere] two;
            work_odd wk3_what_was_given_back_is_not_left [everywhere] two;
            work_odd wk3_nobody_claims_under_no_name [everywhere] two;
            work_odd wk6_a_wait_of_no_time [everywhere] two;
            work_odd wk6_time_goes_on_after_a_restart [own_server] gate;
            once on1_one_of_many [everywhere] gate;
            once on1_once_in_each_period [everywhere] gate;
            once on1_aligned [everywhere] two;
            once on1_given_back_by_its_owner_only [everywhere] two;
            once on1_dropped_calls [everywhere] gate;
            once on1_a_lost_session_changes_nothing [everywhere] gate;
            once on1_a_killed_process_spends_the_period [processes] gate;
            once on1_cut_off [servers] gate;
            once on1_a_clock_that_is_years_ahead [processes] gate;
            once on1_at_a_fixed_rate [everywhere] two;
            once on1_reset [everywhere] two;
            once on1_no_closer_than_asked_for [everywhere] two;
            once on2_spent_by_success_only [everywhere] gate;
            once on2_done_while_others_ask [everywhere] two;
            once on2_a_lost_session_leaves_it_to_the_next [everywhere] gate;
            barrier br1_lets_go_all_and_nobody_before [everywhere] gate;
            barrier br1_what_was_just_closed_holds [everywhere] two;
            barrier br1_opened_for_a_moment [everywhere] two;
            barrier br1_dropped_waits [everywhere] gate;
            barrier br1_belongs_to_nobody [everywhere] gate;
            barrier br1_stays_closed_after_a_kill [processes] gate;
            barrier br1_without_a_runtime [everywhere] two;
            barrier br1_cut_off [servers] gate;
            barrier br2_together_in_and_out [everywhere] gate;
            barrier br2_the_first_who_come [everywhere] two;
            barrier br2_who_gave_up_has_not_come [everywhere] two;
            barrier br2_a_lost_session_is_out [everywhere] gate;
            barrier br2_leaving_is_asked_again [everywhere] two;
            barrier br2_a_killed_process_is_out [processes] gate;
            barrier br2_cut_off [servers] gate;
            barrier br2_another_number_is_an_error [everywhere] two;
            barrier br3_each_count_counts_once [everywhere] gate;
            barrier br3_dropped_waits [everywhere] two;
            barrier br3_reset_at_once [everywhere] two;
            barrier br3_counts_belong_to_nobody [everywhere] gate;
            barrier br3_counts_survive_a_kill [processes] gate;
            barrier br3_cut_off [servers] gate;
            barrier br3_another_count_is_an_error [everywhere] two;
            group g1_groups_are_created_listed_and_deleted [everywhere] gate;
            group g1_listed_from_join_to_leave [everywhere] gate;
            group g1_one_member_of_one_id [everywhere] gate;
            group g1_contended_member_id [everywhere] gate;
            group g1_nobody_is_in_a_group_that_is_gone [everywhere] gate;
            group g1_members_with_capabilities [everywhere] two;
            group g1_strangers_are_no_members [servers] gate;
            group g1_dropped_join_leaves_nobody [everywhere] gate;
            group g1_a_killed_member_goes [processes] gate;
            group g1_stop_leaves_the_groups [everywhere] gate;
            group g1_a_lost_session_is_out [processes] gate;
            group g1_a_silent_member_is_dropped [servers] gate;
            group g2_joins_leaves_and_updates_in_order [everywhere] gate;
            group g2_a_rolling_replacement_is_never_empty [everywhere] gate;
            group g2_replay_gives_the_last_snapshot [everywhere] gate;
            group g2_watchers_may_come_first [everywhere] gate;
            group g2_a_missing_group_is_not_watched [everywhere] two;
            group g2_a_deleted_group_ends_the_watch [everywhere] gate;
            group g2_a_removed_member_is_told [everywhere] gate;
            group g2_resync_after_an_outage [servers] gate;
            group g3_back_as_a_new_incarnation [everywhere] gate;
            group g3_back_after_an_outage [servers] gate;
            group g3_leaving_is_for_good [everywhere] two;
            group g4_capabilities_change_at_once [everywhere] gate;
            partition hr1_all_place_alike [everywhere] gate;
            partition hr1_whoever_leaves_has_no_keys [everywhere] two;
            partition hr1_many_agree [everywhere] gate;
            partition hr1_dropped_join_gets_no_keys [everywhere] gate;
            partition hr1_odd_weights_count [everywhere] two;
            partition hr1_a_killed_process_loses_its_keys [processes] gate;
            partition hr1_a_stopped_one_is_refused [everywhere] gate;
            partition hr1_catches_up_after_an_outage [servers] gate;
            in_use iu1_each_recipe_lists_its_own [everywhere] two;
            in_use iu1_who_waits_counts [everywhere] gate;
            in_use iu1_names_in_full [everywhere] two;
            in_use iu1_namespaces_and_prefixes_are_apart [everywhere] gate;
            in_use iu1_an_overview_tells_who_has_each [everywhere] gate;
            in_use iu1_what_nobody_holds_is_listed [everywhere] gate;
            in_use iu1_a_lost_session_uses_nothing [everywhere] gate;
            in_use iu1_a_killed_process_uses_nothing [processes] gate;
            in_use iu1_strangers_count_if_they_contend [servers] gate;
            label lb1_of_a_lock [everywhere] gate;
            label lb1_of_slots [everywhere] gate;
            label lb1_of_candidates_and_members [everywhere] gate;
            label lb1_bad_ones_are_refused [everywhere] two;
            place pl1_of_a_lock [everywhere] gate;
            place pl1_of_a_permit [everywhere] two;
        }
    };
    (@each table $($module:ident $check:ident [$($group:ident)+] $gate:ident;)+) => {
        &[$($crate::checks::Check {
            module: stringify!($module),
            name: stringify!($check),
            groups: &[$(stringify!($group)),+],
            gate: stringify!($gate),
        }),+]
    };
    (@each [$part:ident $share:ident $kind:ident $backend:ident]
        $($module:ident $check:ident [$($group:ident)+] $gate:ident;)+) => {
        $($($crate::conformance! {
            @part $part $share $gate $kind $group [shared $backend $module $check]
        })+)+
    };
    // The gate runs all checks of a store or most of them; the soak runs the rest.
    (@part gate $share:ident gate $($test:tt)+) => { $crate::conformance! { @if $($test)+ } };
    (@part gate all two $($test:tt)+) => { $crate::conformance! { @if $($test)+ } };
    (@part soak most two $($test:tt)+) => { $crate::conformance! { @if $($test)+ } };
    (@part settings all $gate:ident $($test:tt)+) => { $crate::conformance! { @if $($test)+ } };
    (@part $part:ident $share:ident $gate:ident $($test:tt)+) => {};
    // Which groups contain which kind of store. The first rule that matches is used.
    (@if $kind:ident everywhere $test:tt) => { $crate::conformance! { @test $test } };
    (@if in_process processes $test:tt) => {};
    (@if $kind:ident processes $test:tt) => { $crate::conformance! { @test $test } };
    (@if server servers $test:tt) => { $crate::conformance! { @test $test } };
    (@if server own_server [shared $($test:ident)+]) => {
        $crate::conformance! { @test [own $($test)+] }
    };
    (@if files file $test:tt) => { $crate::conformance! { @test $test } };
    (@if $kind:ident $group:ident $test:tt) => {};
    (@test [$store:ident $backend:ident $module:ident $check:ident]) => {
        #[test]
        fn $check() -> ::coordination::Result<()> {
            let programs = $crate::checks::Programs {
                worker: env!("CARGO_BIN_EXE_worker"),
                forker: env!("CARGO_BIN_EXE_forker"),
            };
            let store = || $crate::checks::TestStore::$store($crate::checks::settings::$backend, programs);
            let name = (stringify!($module), stringify!($check));
            $crate::checks::run(name, store, $crate::checks::$module::$check)
        }
    };
    (@store [$part:ident] $module:ident $backend:ident $share:ident $kind:ident) => {
        mod $module {
            $crate::conformance! { @list [$part $share $kind $backend] }
        }
    };
    (optional) => { $crate::optional_stores! { [$crate::conformance] [settings] } };
    (settings) => { $crate::settings! { [$crate::conformance] [settings] } };
    ($part:ident) => { $crate::stores! { [$crate::conformance] [$part] } };
}
