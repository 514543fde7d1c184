//! Compares lists that are written by hand with the tests that exist: the parts of `tests/soak`, and the tests of each
//! store in the [table](coordination_tests::store_table).

use std::fs;
use std::process::Command;

use coordination_tests::checks::Backend;

/// The names of all tests of this program.
fn tests() -> Vec<String> {
    let program = std::env::current_exe().expect("the path of this program");
    let listed = Command::new(program).arg("--list").output().expect("this program runs");
    let listed = String::from_utf8(listed.stdout).expect("names are text");
    listed.lines().filter_map(|line| line.strip_suffix(": test").map(str::to_owned)).collect()
}

/// A part of `tests/soak`. It runs each test whose name contains one of its words, and not the word that it skips.
struct Part {
    name: String,
    words: Vec<String>,
    skipped: Option<String>,
}

impl Part {
    fn runs(&self, test: &str) -> bool {
        let has = |word: &String| test.contains(&**word);
        self.words.iter().any(has) && !self.skipped.as_ref().is_some_and(has)
    }
}

/// The parts of `tests/soak` that run tests of this program.
fn parts() -> Vec<Part> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/soak");
    let script = fs::read_to_string(script).expect("tests/soak is there");
    let parts = script.lines().filter_map(|line| {
        let mut columns = line.split_whitespace().map(str::to_owned);
        let (name, minutes, kind) = (columns.next()?, columns.next()?, columns.next()?);
        let is_it = minutes.parse::<u32>().is_ok() && kind == "suite";
        let mut words: Vec<_> = columns.collect();
        let skip = words.iter().position(|word| word == "--skip");
        let skipped = skip.and_then(|at| words.split_off(at).into_iter().nth(1));
        is_it.then_some(Part { name, words, skipped })
    });
    parts.collect()
}

/// Whether a test is run by `tests/soak`.
fn is_of_soak(test: &str) -> bool {
    test.split("::").any(|module| module == "soak")
}

fn is_everything_built() -> bool {
    Backend::ALL.iter().all(|store| store.is_built_in())
}

#[test]
fn every_test_of_the_soak_is_in_one_part() {
    let parts = parts();
    let is_in_one = |test: &str| parts.iter().filter(|part| part.runs(test)).count() == 1;
    let mut soak = tests();
    soak.retain(|test| is_of_soak(test));
    assert!(soak.len() > 100, "tests are listed in another way");
    soak.retain(|test| !is_in_one(test));
    assert!(soak.is_empty(), "in no part of tests/soak, or in several: {soak:#?}");
}

#[test]
fn every_word_of_a_part_has_tests() {
    let tests = tests();
    let parts = parts();
    assert!(parts.len() > 10, "tests/soak lists its parts in another way");
    for Part { name, words, .. } in parts {
        for word in words.iter().filter(|_| is_everything_built()) {
            let has = tests.iter().any(|test| is_of_soak(test) && test.contains(&**word));
            assert!(has, "{word} of the part {name} is in no name of a test of the soak");
        }
    }
}

#[test]
fn every_store_has_its_tests() {
    let tests = tests();
    for store in Backend::ALL.iter().filter(|store| store.is_built_in()) {
        let (name, script) = (store.name(), if store.is_in_gate() { "gate" } else { "soak" });
        let has = |what: &str, is_it: &dyn Fn(&str) -> bool| {
            assert!(tests.iter().any(|test| is_it(test)), "{name}: no {what}");
        };
        has("conformance", &|test| test.starts_with(&format!("{script}::{name}::")));
        has("suite", &|test| test.starts_with(&format!("{script}::store_suite::{name}::")));
        if !store.is_in_process() {
            has("chaos", &|test| test == format!("soak::chaos::{name}"));
            let (folder, matrix) =
                (format!("faults::{name}::"), "every_row_has_a_test_or_a_reason");
            has("fault matrix", &|test| test.starts_with(&folder) && test.ends_with(matrix));
        }
    }
}
