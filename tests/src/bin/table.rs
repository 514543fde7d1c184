//! The README's table "recipe × store", made from what the checks ran.
//!
//! `table PASSED README` compares the table in the README with the list of what passed, which `tests/run`
//! has kept, and fails where they differ. `table PASSED README --write` puts the right one in.

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::{env, fs};

use coordination_tests::checks::recipes::{RECIPES, Recipe};
use coordination_tests::checks::{BACKENDS, Backend, CHECKS};

const BEGIN: &str = "<!-- checks: begin (made by tests/run) -->\n";
const END: &str = "<!-- checks: end -->";

/// A check that passed: store, module, name.
type Passed<'a> = BTreeSet<(&'a str, &'a str, &'a str)>;

fn main() -> ExitCode {
    let arguments: Vec<_> = env::args().skip(1).collect();
    let [passed, readme, rest @ ..] = arguments.as_slice() else {
        eprintln!("usage: table PASSED README [--write]");
        return ExitCode::FAILURE;
    };
    let passed = fs::read_to_string(passed).expect("the list of what passed");
    let text = fs::read_to_string(readme).expect("the README");
    let (before, after) = text.split_once(BEGIN).expect("the README has the table's beginning");
    let (table, after) = after.split_once(END).expect("the README has the table's end");
    let right = table_of(&passed.lines().filter_map(parse).collect());
    if table == right {
        return ExitCode::SUCCESS;
    }
    if rest.iter().any(|argument| argument == "--write") {
        fs::write(readme, [before, BEGIN, &right, END, after].concat()).expect("writable");
        return ExitCode::SUCCESS;
    }
    println!("the README's table is not what the checks ran, which is:\n\n{right}");
    ExitCode::FAILURE
}

fn parse(line: &str) -> Option<(&str, &str, &str)> {
    let mut fields = line.split('\t');
    Some((fields.next()?, fields.next()?, fields.next()?))
}

fn table_of(passed: &Passed<'_>) -> String {
    let names: Vec<_> = BACKENDS.iter().map(|backend| backend.name()).collect();
    let lines = vec!["---"; 1 + names.len()].join(" | ");
    let mut table = format!("| recipe | {} |\n| {lines} |\n", names.join(" | "));
    for (at, recipe) in RECIPES.iter().enumerate() {
        // Recipes with one module of checks share a row.
        let same = |other: &&Recipe| other.modules == recipe.modules;
        if RECIPES.iter().take(at).any(|other| same(&other)) {
            continue;
        }
        let titles: Vec<_> = RECIPES.iter().filter(same).map(|same| same.title).collect();
        let cell = |backend: &Backend| cell(recipe.modules, *backend, passed);
        let cells: Vec<_> = BACKENDS.iter().map(cell).collect();
        table += &format!("| [{}]({}) | {} |\n", titles.join(", "), recipe.page, cells.join(" | "));
    }
    table
}

/// How many checks passed; how many of how many, if not all did.
fn cell(modules: &[&str], backend: Backend, passed: &Passed<'_>) -> String {
    let listed = CHECKS
        .iter()
        .filter(|(module, _, groups)| modules.contains(module) && backend.is_in(groups));
    let name = format!("{backend:?}");
    let (mut all, mut done) = (0, 0);
    for (module, check, _) in listed {
        all += 1;
        done += usize::from(passed.contains(&(name.as_str(), *module, *check)));
    }
    match done == all {
        true if all > 0 => format!("✓ {all}"),
        _ => format!("**{done} of {all}**"),
    }
}
