//! Checks that the queries of the Grafana dashboard and of the alerts use only metrics, labels and values that the
//! documentation page names.

use std::collections::BTreeSet;

use serde_json::Value;

use super::page::Page;

const DASHBOARD: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/grafana/coordination.json");
/// Labels that a query may use although the page does not name them: Prometheus adds `instance` and `job`, and a
/// histogram's buckets have `le`.
const ADDED: [&str; 3] = ["instance", "job", "le"];
/// The words of a query that are followed by a list of labels in parentheses.
const BEFORE_LABELS: [&str; 5] = ["by", "without", "on", "ignoring", "group_left"];

/// Panics unless all metrics and labels of this query are on the page.
pub(super) fn check_query(page: &Page, query: &str) {
    let mut labels: BTreeSet<&str> = ADDED.into();
    for (at, _) in query.match_indices("coordination_") {
        let rest = &query[at..];
        let end = rest.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(rest.len());
        let (name, after) = rest.split_at(end);
        let (metric, of_metric) = metric(page, name).unwrap_or_else(|| panic!("{name}: {query}"));
        let selector = after.strip_prefix('{').and_then(|after| after.split_once('}'));
        for (label, values) in matchers(selector.map_or("", |(selector, _)| selector)) {
            let is_known = of_metric.contains(label) || ADDED.contains(&label);
            assert!(is_known, "{label} of {metric}: {query}");
            for value in values.split('|').filter(|value| !value.starts_with('$')) {
                let is_known = page.knows(metric, label, value);
                assert!(is_known, "{label}={value:?} of {metric}: {query}");
            }
        }
        labels.extend(of_metric);
    }
    for before in BEFORE_LABELS {
        for part in query.split(&format!("{before} (")).skip(1) {
            let grouped = part.split(')').next().unwrap_or_default();
            for label in grouped.split(',').map(str::trim) {
                assert!(labels.contains(label), "{before} ({label}): {query}");
            }
        }
    }
}

/// The metric to which this series belongs, and that metric's labels; `None` if the page has no such metric.
fn metric<'a>(page: &'a Page, series: &str) -> Option<(&'a str, BTreeSet<&'a str>)> {
    let base = ["_bucket", "_sum", "_count"].iter().find_map(|end| series.strip_suffix(end));
    let types = page.types();
    let wanted = match base {
        Some(base) if types.get(base) == Some(&"histogram") => base,
        // A histogram has only series with one of the three endings, and none with its own name.
        _ if types.get(series) == Some(&"histogram") => return None,
        _ => series,
    };
    page.labels().find(|(name, _)| *name == wanted)
}

/// The parts of a selector such as `outcome="lost"`: each label, with the text that its value has to match.
fn matchers(selector: &str) -> Vec<(&str, &str)> {
    let matcher = |matcher: &'_ str| -> Option<(usize, usize)> {
        let quote = matcher.find('"')?;
        let end = matcher.find(['=', '!'])?;
        Some((end, quote))
    };
    let parts = selector.split("\",").filter(|part| !part.trim().is_empty());
    let parts = parts.map(|part| {
        let (end, quote) = matcher(part).unwrap_or_else(|| panic!("{part}"));
        (part[..end].trim(), part[quote + 1..].trim_end_matches('"'))
    });
    parts.collect()
}

/// Collects in `found` all texts that the JSON has under the key `wanted`, at any depth.
fn texts<'a>(json: &'a Value, wanted: &str, found: &mut Vec<&'a str>) {
    match json {
        Value::Object(fields) => {
            for (key, value) in fields {
                match value.as_str() {
                    Some(text) if key == wanted => found.push(text),
                    _ => texts(value, wanted, found),
                }
            }
        }
        Value::Array(values) => values.iter().for_each(|value| texts(value, wanted, found)),
        _ => {}
    }
}

fn dashboard() -> Value {
    let text = std::fs::read_to_string(DASHBOARD).expect("the dashboard");
    serde_json::from_str(&text).expect("JSON")
}

#[test]
fn the_dashboard_asks_for_what_there_is() {
    let (page, dashboard) = (Page::read(), dashboard());
    let mut queries = Vec::new();
    texts(&dashboard, "expr", &mut queries);
    assert!(queries.len() >= 8, "{queries:?}");
    queries.iter().for_each(|query| check_query(&page, query));
    // The dashboard has a query for each metric, except for `coordination_build_info`.
    for (metric, _) in page.labels() {
        let has = |query: &&str| query.contains(metric);
        assert!(queries.iter().any(has) || metric == "coordination_build_info", "{metric}");
    }
    // The lists at the top of the dashboard, from which its user chooses label values.
    let mut choices = Vec::new();
    texts(&dashboard["templating"], "query", &mut choices);
    texts(&dashboard["templating"], "definition", &mut choices);
    let asked = choices.iter().filter_map(|choice| choice.strip_prefix("label_values("));
    let mut count = 0;
    for choice in asked {
        let (metric, label) = choice.trim_end_matches(')').split_once(", ").expect("two");
        let labels = self::metric(&page, metric).expect("a metric").1;
        assert!(labels.contains(label), "{choice}");
        count += 1;
    }
    assert!(count >= 3, "{choices:?}");
}

#[test]
fn the_dashboard_is_one_that_grafana_imports() {
    let dashboard = dashboard();
    assert!(dashboard["id"].is_null() && dashboard["uid"].is_string(), "an import has no id");
    assert!(dashboard["schemaVersion"].as_u64().is_some_and(|version| version >= 36));
    let panels = dashboard["panels"].as_array().expect("panels");
    let mut ids = BTreeSet::new();
    let mut taken = BTreeSet::new();
    for panel in panels {
        assert!(ids.insert(panel["id"].as_u64().expect("an id")), "{panel}");
        assert!(panel["title"].is_string() && panel["type"].is_string(), "{panel}");
        let place = |side: &str| panel["gridPos"][side].as_u64().expect("a place");
        assert!(place("x") + place("w") <= 24, "{panel}");
        for x in place("x")..place("x") + place("w") {
            for y in place("y")..place("y") + place("h") {
                assert!(taken.insert((x, y)), "two panels in one place: {panel}");
            }
        }
        for target in panel["targets"].as_array().into_iter().flatten() {
            assert_eq!(target["datasource"]["uid"], "${datasource}", "{panel}");
        }
    }
}
