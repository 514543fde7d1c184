//! Checks that each metric can be one instrument of OpenTelemetry, by the rules of its specification of metrics.
//!
//! No exporter of OpenTelemetry is among the tests. A recorder notes what the library tells any recorder, which is all that an
//! exporter can pass on.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder,
    SharedString, Unit,
};

use super::page::Page;
use super::{Result, life};

/// The longest name that an instrument may have.
const LONGEST_NAME: usize = 255;
/// Every implementation takes a description of this length.
const LONGEST_DESCRIPTION: usize = 1_023;

/// A recorder that keeps what it was told, by the metric's name.
struct Notes(Mutex<BTreeMap<String, Metric>>);

// A static: the library knows a recorder by its address, and tells it once what the metrics mean.
static NOTES: Notes = Notes(Mutex::new(BTreeMap::new()));

/// What the recorder was told of one metric.
#[derive(Clone, Debug, Default)]
struct Metric {
    /// Each description with its kind and unit.
    described: Vec<(&'static str, Option<Unit>, String)>,
    /// The kind of each series, and its labels.
    series: BTreeSet<(&'static str, Vec<(String, String)>)>,
    /// What was done to its series.
    calls: BTreeSet<&'static str>,
    /// What its histograms recorded.
    values: Vec<f64>,
}

impl Notes {
    fn note(&self, name: &str, note: impl FnOnce(&mut Metric)) {
        let mut metrics = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        note(metrics.entry(name.to_owned()).or_default());
    }

    fn describe(&self, kind: &'static str, name: &KeyName, unit: Option<Unit>, text: &str) {
        let described = (kind, unit, text.to_owned());
        self.note(name.as_str(), |metric| metric.described.push(described));
    }

    fn register(&self, kind: &'static str, key: &Key) -> Arc<Series> {
        let labels = key.labels().map(|label| (label.key().to_owned(), label.value().to_owned()));
        let labels: Vec<_> = labels.collect();
        self.note(key.name(), |metric| {
            metric.series.insert((kind, labels));
        });
        Arc::new(Series(key.name().to_owned()))
    }
}

impl Recorder for Notes {
    fn describe_counter(&self, name: KeyName, unit: Option<Unit>, text: SharedString) {
        self.describe("counter", &name, unit, &text);
    }
    fn describe_gauge(&self, name: KeyName, unit: Option<Unit>, text: SharedString) {
        self.describe("gauge", &name, unit, &text);
    }
    fn describe_histogram(&self, name: KeyName, unit: Option<Unit>, text: SharedString) {
        self.describe("histogram", &name, unit, &text);
    }
    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.register("counter", key))
    }
    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.register("gauge", key))
    }
    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(self.register("histogram", key))
    }
}

/// A handle to a series of the metric with this name.
struct Series(String);

impl Series {
    fn called(&self, call: &'static str) {
        NOTES.note(&self.0, |metric| {
            metric.calls.insert(call);
        });
    }
}

impl CounterFn for Series {
    fn increment(&self, _: u64) {
        self.called("add");
    }
    fn absolute(&self, _: u64) {
        self.called("replace");
    }
}

impl GaugeFn for Series {
    fn increment(&self, _: f64) {
        self.called("add");
    }
    fn decrement(&self, _: f64) {
        self.called("add");
    }
    fn set(&self, _: f64) {
        self.called("set");
    }
}

impl HistogramFn for Series {
    fn record(&self, value: f64) {
        self.called("record");
        NOTES.note(&self.0, |metric| metric.values.push(value));
    }
}

/// Panics unless this is one instrument of OpenTelemetry, of a kind that takes all that is done to the metric.
fn check(name: &str, metric: &Metric) {
    let is_allowed = |char: char| char.is_ascii_alphanumeric() || "_.-/".contains(char);
    assert!(name.starts_with(|first: char| first.is_ascii_alphabetic()), "{name}");
    assert!(name.chars().all(is_allowed) && name.len() <= LONGEST_NAME, "{name}");
    // Two descriptions of one name that differ are a conflict of two instruments.
    let first = metric.described.first().expect("it is described");
    assert!(metric.described.iter().all(|other| other == first), "{name}: {metric:?}");
    let (kind, unit, text) = first;
    assert!((1..=LONGEST_DESCRIPTION).contains(&text.len()), "{name}: {text}");
    // The codes of UCUM: what is measured is seconds, and what is only counted needs no unit.
    let unit = unit.as_ref().map_or("", Unit::as_canonical_label);
    assert_eq!(unit, if *kind == "histogram" { "s" } else { "" }, "{name}");
    // A gauge is an up-down counter if it is raised and lowered, and a gauge if it is set: it cannot be both.
    let instruments: &[&str] = match *kind {
        "counter" => &["add"],
        "gauge" => &["add", "set"],
        _ => &["record"],
    };
    let calls: Vec<_> = metric.calls.iter().collect();
    assert!(calls.len() == 1 && instruments.contains(calls[0]), "{name}, a {kind}: {calls:?}");
    assert!(metric.values.iter().all(|value| value.is_finite() && *value >= 0.0), "{name}");
    for (of, labels) in &metric.series {
        assert_eq!(of, kind, "{name}");
        let names: BTreeSet<_> = labels.iter().map(|(label, _)| label.as_str()).collect();
        assert_eq!(names.len(), labels.len(), "{name} has a label twice: {labels:?}");
        let is_attribute = |label: &&str| {
            let is_allowed = |char: char| char.is_ascii_lowercase() || char == '_';
            !label.is_empty() && label.chars().all(is_allowed)
        };
        assert!(names.iter().all(is_attribute), "{name}: {names:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn each_metric_can_be_an_instrument_of_opentelemetry() -> Result {
    let _listening = metrics::set_default_local_recorder(&NOTES);
    drop(life("opentelemetry").await?);
    let metrics = NOTES.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
    metrics.iter().for_each(|(name, metric)| check(name, metric));
    let kind = |metric: &Metric| metric.described[0].0;
    let kinds: BTreeMap<_, _> =
        metrics.iter().map(|(name, metric)| (name.as_str(), kind(metric))).collect();
    assert_eq!(kinds, Page::read().types());
    // Names of instruments are the same whatever the case of their letters.
    let names: BTreeSet<_> = metrics.keys().map(|name| name.to_ascii_lowercase()).collect();
    assert_eq!(names.len(), metrics.len());
    Ok(())
}
