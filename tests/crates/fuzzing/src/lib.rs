//! How this workspace fuzzes its parsers.
//!
//! A fuzz target is a test named `fuzz_<parser>` that calls [`run`] with a strategy for inputs and a check. A plain
//! `cargo test` tries a few hundred inputs, different ones each time. With `COORDINATION_FUZZ_SECONDS=60` the target
//! runs for a minute; with `COORDINATION_FUZZ_CASES=4096` it tries at least that many inputs. The script `tests/fuzz`
//! sets these variables for all targets.
//!
//! An input that fails is shrunk and printed. All inputs follow from a seed, which is printed too. To find the failure
//! again, set `COORDINATION_FUZZ_SEED` to that number.
//!
//! A parser refuses most random bytes at the first byte. So [`Mutants`] begins with valid inputs and changes them a
//! little. The resulting inputs are often nearly valid, and nearly valid inputs find most faults of parsers.

mod mutants;

use std::fmt::Debug;
use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestCaseResult, TestError, TestRng, TestRunner};

pub use mutants::{Bytes, Mutants};

/// The number of inputs per seed. A run with the seed of a failure finds the failure again within this many inputs.
const BATCH: u32 = 256;

/// Checks generated inputs: 256 of them, or more if the environment variables say so.
///
/// # Panics
///
/// If the check fails for an input. The message has the smallest failing input, and the command that tries it again.
pub fn run<S: Strategy>(name: &str, inputs: &S, check: impl Fn(S::Value) -> TestCaseResult)
where
    S::Value: Debug,
{
    let replayed: Option<u64> = number("COORDINATION_FUZZ_SEED");
    let seconds = number("COORDINATION_FUZZ_SECONDS").unwrap_or(0);
    let wanted = number("COORDINATION_FUZZ_CASES").unwrap_or(0);
    let first = replayed.unwrap_or_else(any_seed);
    if seconds > 0 || wanted > 0 {
        // The seed is printed before the first input is tried, because an abort of the process would print nothing. A
        // run that begins with this seed finds the failure again.
        println!("{name}: COORDINATION_FUZZ_SEED={first}");
    }
    let (start, mut batches) = (Instant::now(), 0);
    loop {
        batch(name, first.wrapping_add(batches), inputs, &check);
        batches += 1;
        let (elapsed, cases) = (start.elapsed(), batches * u64::from(BATCH));
        if elapsed >= Duration::from_secs(seconds) && cases >= wanted {
            println!("{name}: {cases} cases in {} s", elapsed.as_secs());
            return;
        }
    }
}

/// Returns the text with each of the characters `<`, `>`, `{` and `}` doubled. A template has to contain it in this
/// form, because in a template a single one of these characters has a special meaning.
pub fn as_literal(text: &str) -> String {
    let doubled = |c: char| std::iter::repeat_n(c, if "<>{}".contains(c) { 2 } else { 1 });
    text.chars().flat_map(doubled).collect()
}

fn batch<S: Strategy>(
    name: &str,
    seed: u64,
    inputs: &S,
    check: &impl Fn(S::Value) -> TestCaseResult,
) where
    S::Value: Debug,
{
    let config = ProptestConfig {
        cases: BATCH,
        failure_persistence: None,
        max_shrink_iters: 20_000,
        ..ProptestConfig::default()
    };
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let outcome = TestRunner::new_with_rng(config, rng).run(inputs, check);
    let replay =
        format!("COORDINATION_FUZZ_SEED={seed} cargo test --workspace --all-features {name}");
    match outcome {
        Ok(()) => {}
        Err(TestError::Fail(reason, input)) => {
            panic!("{name}: {reason}\ninput: {input:?}\nreplay: {replay}")
        }
        Err(TestError::Abort(reason)) => panic!("{name}: {reason}\nreplay: {replay}"),
    }
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is a number, not {text:?}")))
}

/// A seed: a different number on each call.
fn any_seed() -> u64 {
    RandomState::new().hash_one(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The panic message of a fuzz target that fails for every text that contains `needle`.
    fn report(needle: &'static str) -> String {
        let inputs = Mutants::of(["one two three"]).text();
        let run = || {
            batch("fuzz_x", 1, &inputs, &|text| {
                prop_assert!(!text.contains(needle), "it is there");
                Ok(())
            });
        };
        let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
        panic
            .expect_err("it is found")
            .downcast::<String>()
            .map_or_else(|_| String::new(), |text| *text)
    }

    #[test]
    fn a_failure_is_small_and_can_be_had_again() {
        let text = report("tw");
        assert!(
            text.contains("it is there") && text.contains("COORDINATION_FUZZ_SEED=1 "),
            "{text}"
        );
        assert_eq!(text, report("tw"));
    }

    #[test]
    fn a_panic_is_a_failure() {
        let run = || batch("fuzz_x", 1, &Just(7), &|seven| panic!("no {seven}"));
        let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
        let text = panic.expect_err("it panics").downcast::<String>().expect("a text");
        assert!(text.contains("no 7"), "{text}");
    }
}
