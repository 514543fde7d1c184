//! Every store keeps the rules of the traits that it implements: `coordination::suite`, with one test for each check
//! and store.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::thread;

use coordination::Result;
use coordination::suite::{CHECKS, Mistake};
use coordination_tests::store_suite;

/// How many checks run at the same time, in tests that run all of them.
const SIDE_BY_SIDE: usize = 6;

macro_rules! on_store {
    (@store [] $module:ident $backend:ident $share:ident server) => {
        on_store! { $module $backend proxy }
    };
    (@store [] $module:ident $backend:ident $share:ident $kind:ident) => {
        on_store! { $module $backend direct }
    };
    ($module:ident $backend:ident $way:ident) => {
        mod $module {
            use coordination_tests::{checks::Backend, store_suite, harness::rerun_if_starved};

            fn check(name: &str) {
                rerun_if_starved(|| store_suite::run(Backend::$backend, name, None)).expect(name);
            }

            coordination::store_suite!($way check);
        }
    };
}

coordination_tests::stores! { [on_store] [] }

mod simulation {
    fn check(name: &str) {
        coordination_tests::store_suite::simulated(name, None).expect(name);
    }

    coordination::store_suite!(proxy check);
}

/// The deliberate mistakes, each with the beginning of the names of the checks that have to fail.
const MISTAKES: [(Mistake, &str); 2] =
    [(Mistake::LateEnterTakesEffect, "late_enter_"), (Mistake::GoneWaitsForEver, "bounded_gone_")];

/// The names of the checks that fail.
fn failing(run: impl Fn(&str) -> Result<()> + Sync) -> BTreeSet<&'static str> {
    let fails = |name| !matches!(catch_unwind(AssertUnwindSafe(|| run(name))), Ok(Ok(())));
    let (rest, failing) = (Mutex::new(CHECKS.iter()), Mutex::new(BTreeSet::new()));
    thread::scope(|scope| {
        for _ in 0..SIDE_BY_SIDE {
            scope.spawn(|| {
                loop {
                    let next = rest.lock().expect("no panic in between").next();
                    let Some(check) = next else { break };
                    if fails(check.name) {
                        failing.lock().expect("no panic in between").insert(check.name);
                    }
                }
            });
        }
    });
    failing.into_inner().expect("no panic in between")
}

fn only_checks_of_the_rule_fail(run: impl Fn(&str, Mistake) -> Result<()> + Sync) {
    for (mistake, rule) in MISTAKES {
        let of_rule = CHECKS.iter().map(|check| check.name).filter(|name| name.starts_with(rule));
        assert_eq!(failing(|name| run(name, mistake)), of_rule.collect(), "{mistake:?}");
    }
}

#[test]
fn mistakes_of_the_simulated_store_are_noticed() {
    only_checks_of_the_rule_fail(|name, mistake| store_suite::simulated(name, Some(mistake)));
}

#[cfg(feature = "etcd")]
#[test]
fn mistakes_of_a_store_with_a_server_are_noticed() {
    use coordination_tests::{checks::Backend, harness::rerun_if_starved};

    let run = |name: &str, mistake| store_suite::run(Backend::Etcd, name, Some(mistake));
    // On a starved machine, calls may be late without the mistake, and then other checks fail too.
    rerun_if_starved(|| only_checks_of_the_rule_fail(run));
}
