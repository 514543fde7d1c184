//! Checks `tests/tooz-inventory.md`, the list of Tooz's tests and of the tests here that correspond to them.

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::{Path, PathBuf};

    use crate::checks::CHECKS;

    const INVENTORY: &str = include_str!("../tooz-inventory.md");

    /// The three columns of each row of the tables.
    fn rows() -> impl Iterator<Item = [&'static str; 3]> {
        INVENTORY.lines().filter_map(|line| {
            let mut cells = line.strip_prefix('|')?.strip_suffix('|')?.split('|').map(str::trim);
            let row = [cells.next()?, cells.next()?, cells.next()?];
            (row[0] != "Tooz" && row[0] != "---").then_some(row)
        })
    }

    /// The names that stand in backticks in a cell of a table.
    fn names(text: &str) -> impl Iterator<Item = &str> {
        text.split('`').skip(1).step_by(2)
    }

    /// The Rust sources of the library, the attribute and the tests.
    fn sources() -> Vec<String> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("it is in a workspace");
        let mut found = Vec::new();
        for folder in ["coordination/src", "coordination-macros/src", "tests/src", "tests/tests"] {
            read_into(&root.join(folder), &mut found);
        }
        found
    }

    fn read_into(folder: &Path, found: &mut Vec<String>) {
        let entries = fs::read_dir(folder).expect("a folder of sources");
        let paths: Vec<PathBuf> =
            entries.map(|entry| entry.expect("it can be listed").path()).collect();
        for path in paths {
            if path.is_dir() {
                read_into(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(fs::read_to_string(path).expect("it is text"));
            }
        }
    }

    #[test]
    fn every_name_in_the_inventory_exists() {
        let sources = sources();
        let exists = |name: &str| {
            // With the parenthesis, a longer name with the same beginning does not match.
            let definition = format!("fn {name}(");
            match name.split_once('_').filter(|(clause, _)| is_clause(clause)) {
                Some(_) => CHECKS.iter().any(|check| check.name == name),
                None => sources.iter().any(|source| source.contains(&definition)),
            }
        };
        let mut missing = Vec::new();
        for [tooz, ours, reason] in rows() {
            assert!(names(ours).next().is_some() || ours == "–" && !reason.is_empty(), "{tooz}");
            missing.extend(names(ours).filter(|name| !exists(name)));
        }
        assert!(missing.is_empty(), "{missing:#?}");
    }

    /// Whether this is the name of a clause, as at the beginning of a check's name: `s1`, and not `f01`, a fault row.
    fn is_clause(begin: &str) -> bool {
        crate::checks::clauses().any(|clause| clause.eq_ignore_ascii_case(begin))
    }

    #[test]
    fn every_tooz_test_is_in_the_inventory_once() {
        let mut seen = BTreeSet::new();
        for [tooz, ..] in rows() {
            assert!(seen.insert(tooz), "{tooz} is there twice");
        }
        // In this order: the tests of TestAPI, of TestHook, of the partitioner, the ring, retries, utilities and
        // drivers, and the rows about what is absent from Tooz's suite.
        assert_eq!(seen.len(), 82 + 2 + 5 + 18 + 6 + 12 + 13 + 12);
    }

    #[test]
    fn tooz_tests_that_are_named_elsewhere_are_in_the_inventory() {
        let known: BTreeSet<_> = rows().flat_map(|[tooz, ..]| names(tooz)).collect();
        let words = |text: &'static str| {
            text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_')
        };
        let mut unknown = BTreeSet::new();
        for source in sources() {
            let source: &'static str = source.leak();
            let mut of_tooz = false;
            for line in source.lines().map(str::trim) {
                let Some(line) = line.strip_prefix("/// ") else {
                    of_tooz = false;
                    continue;
                };
                of_tooz |= line.starts_with("Tooz: ");
                let named = words(line).filter(|word| of_tooz && word.starts_with("test_"));
                unknown.extend(named.filter(|name| !known.contains(name)));
            }
        }
        assert!(unknown.is_empty(), "{unknown:#?}");
    }
}
