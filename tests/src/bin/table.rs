//! The table "recipe × store" of the README: how many checks of each recipe run on each store, in `tests/run` and
//! `tests/soak` together.
//!
//! `table README` compares the table in the README with the list of checks, and fails if they differ. `table README
//! PASSED…` compares the table with the checks that have passed; `tests/run` and `tests/soak` have written these to the
//! files `PASSED…`. If `--write` stands before these arguments, the program writes the right table into the README.

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::{env, fs};

use coordination_tests::checks::recipes::{RECIPES, Recipe};
use coordination_tests::checks::{Backend, CHECKS, Check};

const BEGIN: &str = "<!-- checks: begin (made by tests/run and tests/soak) -->\n";
const END: &str = "<!-- checks: end -->";

fn main() -> ExitCode {
    let mut arguments: Vec<_> = env::args().skip(1).collect();
    let writes = arguments.first().is_some_and(|first| first == "--write");
    arguments.drain(..usize::from(writes));
    let [readme, passed @ ..] = arguments.as_slice() else {
        eprintln!("usage: table [--write] README [PASSED…]");
        return ExitCode::FAILURE;
    };
    let text = fs::read_to_string(readme).expect("the README");
    let (before, after) = text.split_once(BEGIN).expect("the README has the table's beginning");
    let (table, after) = after.split_once(END).expect("the README has the table's end");
    let lists = passed.iter().map(|path| fs::read_to_string(path).expect("a list of what passed"));
    let lists: Vec<_> = lists.collect();
    let right = match lists.as_slice() {
        [] => table_of(&|_, _| true),
        lists => {
            let passed: BTreeSet<_> = lists.iter().flat_map(|list| list.lines()).collect();
            table_of(&|check, backend| {
                let line = format!("{backend:?}\t{}\t{}", check.module, check.name);
                passed.contains(line.as_str())
            })
        }
    };
    if table == right {
        return ExitCode::SUCCESS;
    }
    if writes {
        fs::write(readme, [before, BEGIN, &right, END, after].concat()).expect("writable");
        return ExitCode::SUCCESS;
    }
    println!("the README's table of checks should be (`table --write` puts it in):\n\n{right}");
    ExitCode::FAILURE
}

/// Whether a check counts on a store: because it is in the list, or, if files `PASSED…` are given, because it has
/// passed.
type Counts<'a> = &'a dyn Fn(&Check, Backend) -> bool;

fn table_of(counts: Counts<'_>) -> String {
    let names: Vec<_> = Backend::in_gate().map(Backend::name).collect();
    let lines = vec!["---"; 1 + names.len()].join(" | ");
    let mut table = format!("| recipe | {} |\n| {lines} |\n", names.join(" | "));
    for (at, recipe) in RECIPES.iter().enumerate() {
        // Recipes whose checks are in the same module share a row of the table.
        let same = |other: &&Recipe| other.modules == recipe.modules;
        if RECIPES.iter().take(at).any(|other| same(&other)) {
            continue;
        }
        let titles: Vec<_> = RECIPES.iter().filter(same).map(|same| same.title).collect();
        let cell = |backend| cell(recipe.modules, backend, counts);
        let cells: Vec<_> = Backend::in_gate().map(cell).collect();
        table += &format!("| [{}]({}) | {} |\n", titles.join(", "), recipe.page, cells.join(" | "));
    }
    table
}

/// The text of a cell: how many checks count, or "n of m" if some of the `m` checks in the list do not count.
fn cell(modules: &[&str], backend: Backend, counts: Counts<'_>) -> String {
    let listed = CHECKS
        .iter()
        .filter(|check| modules.contains(&check.module) && backend.is_in(check.groups));
    let (mut all, mut done) = (0, 0);
    for check in listed {
        all += 1;
        done += usize::from(counts(check, backend));
    }
    match done == all {
        true if all > 0 => format!("✓ {all}"),
        _ => format!("**{done} of {all}**"),
    }
}
