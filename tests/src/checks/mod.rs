//! The checks of `docs/guarantees.md`: plain async functions over a [`TestStore`], at least one for each clause. Their
//! names begin with the clause.
//!
//! [`conformance!`](crate::conformance) lists them, with the [groups](Backend::is_in) of stores on which each one runs,
//! and with those stores on which the gate (`tests/run`) runs it. The soak (`tests/soak`) runs the rest. If a clause
//! says nothing about a store, [`NOT_APPLICABLE`] gives the reason. A test compares the list and these reasons with the
//! [`clauses`].
//!
//! Time is real, also on memory, because the checks run threads, processes and servers. Bounds of time are those of the
//! clauses, or ten times what is expected.

mod backend;
pub mod barrier;
pub mod cancellation;
pub mod closing;
pub mod cohort;
pub mod draining;
pub mod effects;
pub mod election;
pub mod errors;
pub mod grants;
pub mod group;
pub mod in_use;
pub mod interruption;
pub mod label;
pub mod limiter;
mod list;
pub mod liveness;
pub mod multi_lock;
pub mod once;
pub mod outlasting;
pub mod partition;
pub mod place;
pub mod rate_limiter;
pub mod recipes;
pub mod reconnect;
pub mod release_request;
pub mod rwlock;
pub mod safety;
pub mod semaphore;
mod test_store;
pub mod timed_release;
pub mod timing;
pub mod tools;
pub mod value;
pub mod with;
pub mod work;
pub mod work_busy;
pub mod work_defects;
pub mod work_life;
pub mod work_odd;

use std::time::Duration;

use coordination::Result;

use crate::harness::descriptors::with_descriptors;
use crate::harness::once_more::{PLAIN, once_more_with};
use crate::harness::{note, on_threads, rerun_alone, rerun_if_starved};

pub use crate::bounds::SCHEDULING;
pub use backend::{Backend, Kind, Setting, settings};
pub use list::{CHECKS, Check};
pub use test_store::{Programs, TestStore, with_option};
pub(crate) use test_store::{shared_server, unique};

/// The timeout of each check, in case something hangs.
const LIMIT: Duration = Duration::from_secs(180);
/// A check that runs alone, because it takes so much of the machine that other checks and their servers would get too
/// little processor time.
const CROWD: &str = "l7_a_thousand_waiters";

/// Runs a check, and prints a line for `tests/run` if it passed. If the check failed because of a [starved
/// machine](rerun_if_starved), it runs again on another store.
///
/// # Errors
///
/// Errors of the check.
///
/// # Panics
///
/// If an assertion of the check fails.
pub fn run(
    (module, name): (&str, &str),
    store: impl Fn() -> TestStore,
    check: impl AsyncFn(&TestStore) -> Result<()>,
) -> Result<()> {
    trace();
    let check = || {
        let store = store();
        let once = || once(module, name, &store, &check);
        match store.descriptors(name) {
            Some(most) => with_descriptors(most, once).unwrap_or(Ok(())),
            None if store.is_plain() => once_more_with(PLAIN, once).unwrap_or(Ok(())),
            None => once(),
        }
    };
    if name == CROWD { rerun_alone(check) } else { rerun_if_starved(check) }
}

fn once(
    module: &str,
    name: &str,
    store: &TestStore,
    check: impl AsyncFn(&TestStore) -> Result<()>,
) -> Result<()> {
    on_threads(async { tokio::time::timeout(LIMIT, check(store)).await })
        .expect("the check ends")?;
    let Setting { backend, word } = store.setting();
    if word.is_empty() {
        note("COORDINATION_TEST_PASSED", &format!("{backend:?}\t{module}\t{name}\n"));
    }
    Ok(())
}

/// With `COORDINATION_TEST_TRACE=1`, prints the library's traces to standard error.
fn trace() {
    if std::env::var_os("COORDINATION_TEST_TRACE").is_some() {
        let subscriber = tracing_subscriber::fmt().with_max_level(tracing::Level::DEBUG);
        // An error means that another test of this process has set a subscriber already, which is enough.
        let _ = subscriber.with_writer(std::io::stderr).with_ansi(false).try_init();
    }
}

/// The clauses of `docs/guarantees.md`, in its order, without the assumptions (`A1` and so on), which no test can
/// check.
pub fn clauses() -> impl Iterator<Item = &'static str> {
    let rows = include_str!("../../../docs/guarantees.md").lines();
    let names = rows.filter_map(|row| Some(row.strip_prefix("| **")?.split_once("**")?.0));
    names.filter(|name| name.contains(|c: char| c.is_ascii_digit()) && !name.starts_with('A'))
}

const NO_LEASE: &str = "a session has no lease: it lives as long as its process, so no deadline can \
                        pass, and nothing is granted to others before its end";
const NO_STORE: &str = "it is what rustc makes of a function, on whatever store: `gate/macros` and \
                        `coordination-macros/tests` check it";
const NO_ANSWER: &str =
    "a call is carried out in this process: it has no answer that could be lost";
const NO_CONNECTION: &str = "there is no connection that could be lost";
const ONE_PROCESS: &str = "the store ends with the process";

const NO_LOSS: &str = "its sessions cannot be lost but by the end of their coordinator";

/// Clauses that say nothing about some groups of stores, and the reason.
pub const NOT_APPLICABLE: &[(&str, &[&str], &str)] = &[
    ("S3", &["no_server"], NO_LEASE),
    ("S9", &["no_server"], NO_ANSWER),
    ("T1", &["no_server"], NO_LEASE),
    ("T2", &["no_server"], NO_LEASE),
    ("T4", &["no_server"], NO_CONNECTION),
    ("L1", &["in_process"], ONE_PROCESS),
    ("L5", &["in_process"], ONE_PROCESS),
    ("C3", &["no_server"], NO_CONNECTION),
    ("R1", &["no_server"], NO_CONNECTION),
    ("R2", &["no_server"], NO_CONNECTION),
    ("R3", &["in_process"], NO_LOSS),
    ("R4", &["no_server"], NO_CONNECTION),
    ("R5", &["in_process"], NO_LOSS),
    ("X2a", &["everywhere"], NO_STORE),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn is_checked_in_gate(clause: &str, backend: Backend) -> bool {
        let prefix = format!("{}_", clause.to_lowercase());
        let mut of_clause = CHECKS.iter().filter(|check| check.name.starts_with(&prefix));
        of_clause.any(|check| check.is_in_gate(backend))
    }

    #[test]
    fn the_gate_checks_every_clause_on_every_backend_or_there_is_a_reason() {
        assert!(clauses().count() > 70, "the clauses are listed in another way");
        for clause in clauses() {
            for backend in Backend::in_gate() {
                let excused =
                    NOT_APPLICABLE.iter().any(|(id, on, _)| *id == clause && backend.is_in(on));
                let checked = is_checked_in_gate(clause, backend);
                assert_ne!(excused, checked, "{clause} on {backend:?}: a check, or a reason");
            }
        }
    }

    #[test]
    fn every_check_names_its_clause() {
        for check in CHECKS {
            let clause = check.name.split('_').next().unwrap_or_default();
            let is_known = clauses().any(|known| known.eq_ignore_ascii_case(clause));
            assert!(is_known, "{}", check.name);
        }
    }
}
