//! The recipes, and which check tests each aspect of each recipe.
//!
//! A recipe has a module of checks of the same name; the lock has several. For each [`Aspect`], a recipe names the
//! check that tests it, or the reason why there is none. A test compares these names with the list of checks.

use Aspect::{Cancellation, Contention, KilledProcess, NetworkCut, Order, SessionLoss};
use Proof::{Because, Check};

/// What the checks of every recipe have to test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aspect {
    /// Many clients at the same time.
    Contention,
    /// The order in which contenders are served.
    Order,
    /// A future that is dropped.
    Cancellation,
    /// The session ends.
    SessionLoss,
    /// A process is killed.
    KilledProcess,
    /// The store is out of reach.
    NetworkCut,
}

/// All aspects.
pub const ASPECTS: [Aspect; 6] =
    [Contention, Order, Cancellation, SessionLoss, KilledProcess, NetworkCut];

/// The name of a check, or the reason why there is none.
#[derive(Clone, Copy, Debug)]
pub enum Proof {
    /// The name of the check.
    Check(&'static str),
    /// The reason why there is no check.
    Because(&'static str),
}

/// A recipe: its modules of checks, its title, and its proofs in the order of [`ASPECTS`].
#[derive(Clone, Copy, Debug)]
pub struct Recipe {
    /// The modules in `checks` that test the recipe.
    pub modules: &'static [&'static str],
    /// The recipe's name in the README's table.
    pub title: &'static str,
    /// The page that describes the recipe.
    pub page: &'static str,
    /// One proof for each aspect, in the order of [`ASPECTS`].
    pub proofs: [Proof; 6],
}

/// The recipes in the order of the README's table.
pub const RECIPES: &[Recipe] = &[
    Recipe {
        modules: &[
            "safety",
            "grants",
            "timing",
            "liveness",
            "cancellation",
            "closing",
            "draining",
            "outlasting",
            "reconnect",
            "errors",
            "effects",
            "with",
            "release_request",
            "cohort",
        ],
        title: "lock",
        page: "docs/recipes/lock.md",
        proofs: [
            Check("s1_timed_exclusion"),
            Check("l7_first_come_first_served"),
            Check("c1_dropped_acquire_leaves_nothing"),
            Check("t3_told_of_a_revoked_session"),
            Check("l1_a_killed_holder_is_followed"),
            Check("s3_loss_before_grant"),
        ],
    },
    Recipe {
        modules: &["rwlock"],
        title: "read-write lock",
        page: "docs/recipes/read-write-lock.md",
        proofs: [
            Check("w1_never_a_writer_with_anybody"),
            Check("w1_order_of_a_mixed_queue"),
            Check("w1_a_dropped_share_leaves_nothing"),
            Check("w1_a_session_that_ends_lets_others_in"),
            Check("w1_killed_readers_and_writers_are_followed"),
            Check("w1_a_reader_cut_off_knows_before_a_writer_is_let_in"),
        ],
    },
    Recipe {
        modules: &["multi_lock"],
        title: "several locks at once",
        page: "docs/recipes/several-locks.md",
        proofs: [
            Check("ml1_opposite_orders_do_not_deadlock"),
            Check("ml1_the_same_locks_in_the_order_of_asking"),
            Check("ml1_dropped_it_leaves_nothing"),
            Check("ml1_the_end_of_the_session_takes_all"),
            Check("ml1_a_killed_process_is_followed"),
            Check("ml1_cut_off_all_are_lost_before_another_is_granted"),
        ],
    },
    Recipe {
        modules: &["timed_release"],
        title: "guards that let go by themselves",
        page: "docs/recipes/lock.md",
        proofs: [
            Check("tr1_holds_do_not_overlap"),
            Check("tr1_holds_do_not_overlap"),
            Check("tr1_the_task_may_end"),
            Check("tr1_the_session_ends_before"),
            Check("tr1_a_killed_process_frees_it_before"),
            Check("tr1_the_time_passes_during_an_outage"),
        ],
    },
    Recipe {
        modules: &["semaphore"],
        title: "semaphore",
        page: "docs/recipes/semaphore.md",
        proofs: [
            Check("p1_never_more_than_there_are"),
            Check("p1_first_come_first_served"),
            Check("p2_cancelled_acquires_leak_nothing"),
            Check("p2_a_lost_session_frees_its_permits"),
            Check("p2_a_killed_holder_frees_its_permits"),
            Check("p2_cut_off"),
        ],
    },
    Recipe {
        modules: &["limiter"],
        title: "limiter with standby",
        page: "docs/recipes/limiter.md",
        proofs: [
            Check("lm1_never_more_than_there_are"),
            Check("lm2_oldest_first"),
            Check("lm3_whoever_goes_leaves_nothing"),
            Check("lm3_a_lost_session_frees_its_slot"),
            Check("lm3_a_killed_worker_is_followed"),
            Check("lm3_cut_off"),
        ],
    },
    Recipe {
        modules: &["election"],
        title: "election",
        page: "docs/recipes/elections.md",
        proofs: [
            Check("e1_one_leader_of_many"),
            Check("e1_first_come_first_elected"),
            Check("e1_a_dropped_campaign_leaves_no_candidacy"),
            Check("e3_a_lost_leader_is_out"),
            Check("e4_a_killed_leader_is_followed"),
            Check("e3_a_leader_cut_off_is_told_in_time"),
        ],
    },
    Recipe {
        modules: &["value"],
        title: "value, counter",
        page: "docs/recipes/values.md",
        proofs: [
            Check("va1_of_many_writers_one_wins"),
            Check("va3_watchers_reach_the_last_value"),
            Check("va2_a_dropped_addition_counts_once_or_never"),
            Check("va1_outlives_its_writer"),
            Check("va2_a_killed_counter_has_counted"),
            Check("va2_a_lost_answer_counts_once"),
        ],
    },
    Recipe {
        modules: &["rate_limiter"],
        title: "rate limiter",
        page: "docs/recipes/rate-limiter.md",
        proofs: [
            Check("rl1_never_more_in_a_window"),
            Check("rl2_first_come_first_served"),
            Check("rl2_dropped_waits_let_nobody_in"),
            Check("rl1_a_lost_session_changes_nothing"),
            Check("rl1_crashes_and_restarts"),
            Check("rl2_cut_off"),
        ],
    },
    Recipe {
        modules: &["once"],
        title: "once per period",
        page: "docs/recipes/once-per-period.md",
        proofs: [
            Check("on1_one_of_many"),
            Because("nobody waits: whoever asks first after the end of a period has it"),
            Check("on1_dropped_calls"),
            Check("on1_a_lost_session_changes_nothing"),
            Check("on1_a_killed_process_spends_the_period"),
            Check("on1_cut_off"),
        ],
    },
    Recipe {
        modules: &["barrier"],
        title: "barrier",
        page: "docs/recipes/barriers.md",
        proofs: [
            Check("br1_lets_go_all_and_nobody_before"),
            Because("all who wait are let go at once"),
            Check("br1_dropped_waits"),
            Check("br1_belongs_to_nobody"),
            Check("br1_stays_closed_after_a_kill"),
            Check("br1_cut_off"),
        ],
    },
    Recipe {
        modules: &["barrier"],
        title: "double barrier",
        page: "docs/recipes/barriers.md",
        proofs: [
            Check("br2_together_in_and_out"),
            Check("br2_the_first_who_come"),
            Check("br2_who_gave_up_has_not_come"),
            Check("br2_a_lost_session_is_out"),
            Check("br2_a_killed_process_is_out"),
            Check("br2_cut_off"),
        ],
    },
    Recipe {
        modules: &["barrier"],
        title: "countdown latch",
        page: "docs/recipes/barriers.md",
        proofs: [
            Check("br3_each_count_counts_once"),
            Because("all who wait are let go at once"),
            Check("br3_dropped_waits"),
            Check("br3_counts_belong_to_nobody"),
            Check("br3_counts_survive_a_kill"),
            Check("br3_cut_off"),
        ],
    },
    Recipe {
        modules: &["group"],
        title: "group",
        page: "docs/recipes/groups.md",
        proofs: [
            Check("g1_contended_member_id"),
            Check("g2_joins_leaves_and_updates_in_order"),
            Check("g1_dropped_join_leaves_nobody"),
            Check("g1_a_lost_session_is_out"),
            Check("g1_a_killed_member_goes"),
            Check("g2_resync_after_an_outage"),
        ],
    },
    Recipe {
        modules: &["work", "work_busy", "work_defects", "work_life", "work_odd"],
        title: "work queue",
        page: "docs/recipes/work-queues.md",
        proofs: [
            Check("wk1_no_item_is_had_by_two"),
            Check("wk2_lifecycle"),
            Check("wk4_dropped_claims_leave_nothing"),
            Check("wk4_a_lost_sessions_items_come_back"),
            Check("wk4_a_killed_workers_items_come_back"),
            Check("wk6_cut_off"),
        ],
    },
    Recipe {
        modules: &["partition"],
        title: "partitioning",
        page: "docs/recipes/partitioning.md",
        proofs: [
            Check("hr1_many_agree"),
            Check("hr1_whoever_leaves_has_no_keys"),
            Check("hr1_dropped_join_gets_no_keys"),
            Check("hr1_a_stopped_one_is_refused"),
            Check("hr1_a_killed_process_loses_its_keys"),
            Check("hr1_catches_up_after_an_outage"),
        ],
    },
];

#[cfg(test)]
mod tests {
    use super::super::CHECKS;
    use super::*;

    #[test]
    fn every_aspect_of_every_recipe_has_a_check_or_a_reason() {
        for recipe in RECIPES {
            for (aspect, proof) in ASPECTS.iter().zip(recipe.proofs) {
                if let Proof::Check(name) = proof {
                    let known = CHECKS
                        .iter()
                        .any(|check| recipe.modules.contains(&check.module) && check.name == name);
                    assert!(known, "{}: no check {name} for {aspect:?}", recipe.title);
                }
            }
        }
    }
    #[test]
    fn every_recipe_has_a_page_that_can_be_chosen() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a workspace");
        let pages = root.join("docs/recipes");
        let choice = std::fs::read_to_string(pages.join("README.md")).expect("it is text");
        for recipe in RECIPES {
            assert!(root.join(recipe.page).is_file(), "{}: no {}", recipe.title, recipe.page);
            let name = recipe.page.rsplit('/').next().unwrap_or_default();
            assert!(choice.contains(&format!("]({name})")), "{} is not in README.md", recipe.title);
        }
        for link in choice.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next()) {
            assert!(pages.join(link).exists(), "README.md leads to {link}");
        }
    }
}
