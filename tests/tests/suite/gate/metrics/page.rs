//! The tables of the documentation page `docs/metrics.md` as data. The page also shows a scrape, which has to be that
//! of the example `resize`.

use std::collections::{BTreeMap, BTreeSet};

use coordination_tests::harness::rerun_if_starved;

use super::Scrape;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/metrics.md");

/// The page's text, and the contents of its two tables: metrics, and values of labels.
pub(super) struct Page {
    pub(super) text: String,
    metrics: BTreeMap<String, Metric>,
    values: Vec<Values>,
}

struct Metric {
    kind: String,
    labels: BTreeSet<String>,
}

/// A row of the second table, which says what values a label can have.
struct Values {
    label: String,
    /// The metric for whose label the row is; `None`: for this label of all metrics.
    metric: Option<String>,
    /// The values that the row lists; `None`: the row only describes them in words, so any value is accepted.
    known: Option<BTreeSet<String>>,
}

impl Page {
    pub(super) fn read() -> Self {
        let text = std::fs::read_to_string(PAGE).expect("the page");
        let (mut metrics, mut values) = (BTreeMap::new(), Vec::new());
        for row in text.lines().filter(|line| line.starts_with("| `")) {
            let cells: Vec<_> = row.trim_matches('|').split(" | ").map(str::trim).collect();
            match cells[..] {
                [name, kind, labels, _] => {
                    let kind = kind.split(',').next().unwrap_or_default().to_owned();
                    metrics.insert(quoted(name).concat(), Metric { kind, labels: set(labels) });
                }
                [label, of, known] => values.push(Values {
                    label: quoted(label).concat(),
                    metric: quoted(of).into_iter().next(),
                    known: (!known.contains("as `ErrorKind`") && !known.contains("names of calls"))
                        .then(|| set(known)),
                }),
                _ => {}
            }
        }
        Self { text, metrics, values }
    }

    pub(super) fn types(&self) -> BTreeMap<&str, &str> {
        self.metrics.iter().map(|(name, metric)| (name.as_str(), metric.kind.as_str())).collect()
    }

    pub(super) fn labels(&self) -> impl Iterator<Item = (&str, BTreeSet<&str>)> {
        self.metrics.iter().map(|(name, metric)| {
            (name.as_str(), metric.labels.iter().map(String::as_str).collect())
        })
    }

    /// Whether the page says that this label may have this value.
    pub(super) fn knows(&self, metric: &str, label: &str, value: &str) -> bool {
        let of =
            |row: &&Values| row.label == label && row.metric.as_ref().is_none_or(|of| of == metric);
        let row = self.values.iter().find(of);
        row.is_some_and(|row| match &row.known {
            _ if label == "version" => true,
            Some(known) => known.contains(value),
            None => true,
        })
    }

    /// The text of the page's first code block in this language.
    pub(super) fn block(&self, language: &str) -> &str {
        let begin = format!("```{language}\n");
        let rest = self.text.split(&begin).nth(1).expect("a block");
        rest.split("```").next().expect("its end")
    }
}

/// The texts in backticks in this cell of a table.
fn quoted(cell: &str) -> Vec<String> {
    cell.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

fn set(cell: &str) -> BTreeSet<String> {
    quoted(cell).into_iter().collect()
}

/// The lines of a scrape in alphabetical order. The number of each series, which changes from run to run, is replaced
/// by "…".
fn masked(text: &str) -> Vec<String> {
    let mask = |line: &str| match line.rsplit_once(' ') {
        Some((series, _)) if !line.starts_with('#') => format!("{series} …"),
        _ => line.to_owned(),
    };
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with("…"));
    let mut lines: Vec<_> = lines.map(mask).collect();
    lines.sort();
    lines.dedup();
    lines
}

/// The scrape on the page has the same series as a scrape of the example `resize`; only the numbers differ.
#[test]
fn the_page_shows_a_scrape_of_resize() {
    rerun_if_starved(|| {
        let mut program = crate::gate::examples::example("resize");
        let output = program.arg("--metrics").output().expect("it starts");
        assert!(output.status.success(), "{}", crate::gate::examples::shown(&output));
        let text = String::from_utf8(output.stdout).expect("text");
        let is_scraped = |line: &&str| line.starts_with("# ") || line.starts_with("coordination_");
        let scraped = text.lines().filter(is_scraped).collect::<Vec<_>>().join("\n");
        let page = Page::read();
        let shown = page.block("prometheus");
        assert_eq!(masked(&scraped), masked(shown), "the example was scraped so:\n{scraped}");
        // The numbers on the page agree with one another: as many locks were released as were acquired.
        let scrape = Scrape::parse(shown.to_owned());
        let acquired = scrape.sum("coordination_acquire_seconds_count", &[("outcome", "acquired")]);
        let released = scrape.sum("coordination_hold_seconds_count", &[]);
        assert!(acquired > 0.0 && acquired == released, "{acquired} acquired, {released} released");
    });
}

/// The alerts use only metrics, labels and values that the page names.
#[test]
fn alerts_ask_for_what_there_is() {
    let page = Page::read();
    let alerts = page.block("yaml").to_owned();
    assert!(alerts.matches("- alert:").count() >= 4, "{alerts}");
    for alert in alerts.split("- alert:").skip(1) {
        let query = alert.split("expr:").nth(1).expect("a query");
        let query = query.split(" for: ").next().unwrap_or(query);
        super::dashboard::check_query(&page, query.split("annotations:").next().unwrap_or(query));
    }
}
